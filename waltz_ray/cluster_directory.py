"""One at a time: bringing a cluster up in its directory, and taking it down.

Whoever does holds a lock of the file beside ``cluster.json``; it ends with the process, so a crash leaves nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from waltz_ray.errors import InvalidInput
from waltz_ray.finding import cluster_file
from waltz_ray.small_files import make_directories

__all__ = ["Progress", "beside_no_other", "holds_cluster", "one_at_a_time"]

Progress = Callable[[str], None]


def holds_cluster(directory: Path) -> bool:
    """Whether a cluster was ever brought up there."""
    return cluster_file.read(directory) is not None


@contextmanager
def one_at_a_time(directory: str, progress: Progress) -> Iterator[None]:
    """The directory is there, and nobody else brings a cluster up in it. InvalidInput if it cannot be had."""
    try:
        make_directories(directory, 0o755)
        lock = open(os.path.join(directory, cluster_file.LOCK), "w")  # noqa: SIM115 - what fails here has a name
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise InvalidInput(f"{directory} cannot be a cluster's directory: {why}; give another --dir") from error
    with lock:
        _wait_for_turn(lock, directory, progress)
        yield


@contextmanager
def beside_no_other(directory: str, progress: Progress) -> Iterator[None]:
    """Nobody else brings a cluster up in the directory, or takes it down.

    Where its lock cannot be had there is nobody: the directory is another machine's, nothing was ever brought up there,
    or its disk takes no writing any more, which ends a ``waltz up`` and must not keep processes from being ended.
    """
    try:
        lock = open(os.path.join(directory, cluster_file.LOCK), "r+")  # noqa: SIM115 - only what fails here
    except OSError:
        yield
        return
    with lock:
        _wait_for_turn(lock, directory, progress)
        yield


def _wait_for_turn(lock: TextIO, directory: str, progress: Progress) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress(f"waiting for another waltz up or down of {directory}")
        fcntl.flock(lock, fcntl.LOCK_EX)
