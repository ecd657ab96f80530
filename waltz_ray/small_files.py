"""Small files: those that people write, read whole; those that we write, whose they are and durable."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from waltz_ray.errors import InvalidInput

__all__ = [
    "MOST_FILE_BYTES",
    "make_directories",
    "read_small_file",
    "replace_small_file",
    "sync_directory",
    "sync_file",
]

MOST_FILE_BYTES = 1 << 20
"""As much as ZooKeeper keeps in a node; none of these files comes near it. A device never ends."""


def read_small_file(path: str | os.PathLike[str]) -> bytes:
    """All of it. InvalidInput if it cannot be read, or is too long to be what was meant."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{os.fspath(path)} cannot be read: {error.strerror}") from error
    if len(data) > MOST_FILE_BYTES:
        raise InvalidInput(f"{os.fspath(path)} has more than {MOST_FILE_BYTES} bytes; is this the right file?")
    return data


def opener(mode: int) -> Callable[[str, int], int]:
    """For ``open``: a new file has at most that mode, also where the umask would leave it to everybody to write."""

    def opened(path: str, flags: int) -> int:
        return os.open(path, flags, mode)

    return opened


def replace_small_file(path: Path, text: str, mode: int) -> None:
    """``text`` in place of what is there, atomically, and durable when this returns. ``mode`` as in ``opener``.
    OSError."""
    temporary = path.with_suffix(".new")
    with open(temporary, "w", opener=opener(mode)) as file:
        file.write(text)
        sync_file(file)
    temporary.replace(path)
    sync_directory(path.parent)


def make_directories(path: str | os.PathLike[str], mode: int) -> None:
    """The directory is there; the names of those that had to be made for it, with at most ``mode``, survive a loss of
    power when this returns. OSError."""
    if os.path.isdir(path):
        return
    parent = Path(path).parent
    make_directories(parent, mode)
    try:
        os.mkdir(path, mode)
    except FileExistsError:  # somebody else was faster
        if not os.path.isdir(path):
            raise
    with contextlib.suppress(PermissionError):  # there are directories in which we may make something, and not look
        sync_directory(parent)


def sync_file(file: IO[Any]) -> None:
    """What was written into it stays, not yet its name. OSError."""
    file.flush()
    os.fsync(file.fileno())


def sync_directory(directory: str | os.PathLike[str]) -> None:
    """What was renamed in it stays so. OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
