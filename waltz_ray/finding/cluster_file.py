"""``DIR/cluster.json``: how a command finds the cluster of a directory again, and whom ``waltz down`` may end.

It is a hint, never the truth: what the cluster *is* stands in ZooKeeper and on the disks. Ray's head is written down
right after its process was made. A crash in between leaves a Ray that no file names and that holds nothing of ours.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil  # type: ignore[import-untyped]

from waltz_ray.errors import ClusterNotFound, InvalidInput, StorageError
from waltz_ray.small_files import replace_small_file

__all__ = ["LOCK", "ClusterFile", "LocalRay", "alone", "find_running", "read", "remove", "running_clusters", "write"]

logger = logging.getLogger(__name__)

LOCK = "cluster.lock"
"""Beside it: had (``flock``) by whoever brings the cluster up, takes it down, or changes the file."""

_NAME = "cluster.json"
_VERSION = 1


@dataclass(frozen=True)
class LocalRay:
    """A head we started: its address ("LOCALHOST:port"), its dashboard ("" if none), and the process to end it by.

    ``started_at`` (seconds, as psutil gives it) tells our process from a later one that got the same pid; so does
    ``temporary``, the directory that Ray was given for its sockets and logs: when a machine's clock is set, all its
    processes have been started at other times.
    """

    address: str
    dashboard: str
    pid: int
    started_at: float
    temporary: str = ""

    def process(self) -> psutil.Process | None:
        """The live head process, None if it has ended."""
        try:
            process = psutil.Process(self.pid)
            ours = abs(process.create_time() - self.started_at) < 1 or self._is_told_by(process.cmdline())
            return process if ours and process.status() != psutil.STATUS_ZOMBIE else None
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # somebody else's has its pid
            return None

    def _is_told_by(self, command: list[str]) -> bool:
        return bool(self.temporary) and f"--temp-dir={self.temporary}" in command


@dataclass(frozen=True)
class ClusterFile:
    """``address``: Ray's; ``zookeeper``: the connect string; ``embedded``: it is ours, in ``directory``/zookeeper;
    ``ray``: the head we started, None if the Ray is somebody else's or none of ours runs; ``key``: the cluster's, as
    text, "" before ZooKeeper has it; ``replication``: how many replicas hold a partition, 0: all."""

    name: str
    directory: str
    partitions: int
    replicas: int
    servers: int
    address: str = ""
    zookeeper: str = ""
    embedded: bool = True
    ray: LocalRay | None = None
    key: str = ""
    replication: int = 0

    @property
    def running(self) -> bool:
        """Whether it runs, as far as can be told here: our head lives, or the cluster is on a Ray that is not ours."""
        return self.ray.process() is not None if self.ray else bool(self.address)

    def stopped(self) -> ClusterFile:
        """What the file says of this cluster once it does not run."""
        return replace(self, address="", ray=None)


_Part = TypeVar("_Part", LocalRay, ClusterFile)
_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}


def read(directory: str | os.PathLike[str]) -> ClusterFile | None:
    """None if there is no such file. InvalidInput if it is damaged."""
    path = Path(directory) / _NAME
    try:
        values: Any = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is not JSON ({error}); move it away and run waltz up again") from error
    if not isinstance(values, dict):
        raise InvalidInput(f"{path} is damaged (it is no object); move it away and run waltz up again")
    if values.pop("version", None) != _VERSION:
        raise InvalidInput(f"{path} is not of version {_VERSION}; it was written by another waltz")
    try:
        values["ray"] = _checked(LocalRay(**values["ray"])) if values.get("ray") else None
        # The directory may have been moved: the file knows it by being in it.
        there = values.get("directory", "")
        found = _checked(ClusterFile(**values | {"directory": str(path.parent.resolve())}))
        if found.ray is not None and found.ray.pid < 1:
            raise ValueError(f"no process has the pid {found.ray.pid}")
        if found.key:
            uuid.UUID(found.key)
        return found.stopped() if _is_copy(path, there, found) else found
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{path} is damaged ({error}); move it away and run waltz up again") from error


def _is_copy(path: Path, directory: str, found: ClusterFile) -> bool:
    """Whether this is a copy of the file in ``directory``, which it says that it is in: what runs is that one's then,
    and not to be ended, or taken for its own, by whoever names this directory."""
    original = Path(directory) / _NAME
    try:
        if original.samefile(path):
            return False
        values = json.loads(original.read_text())
        ray = values["ray"] and LocalRay(**values["ray"])
        return bool((values["address"], ray) == (found.address, found.ray))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False  # moved: there is none any more, or another cluster's


def _checked(found: _Part) -> _Part:
    """The same. TypeError if a field is of another type than it says."""
    for each in fields(found):
        value, kinds = getattr(found, each.name), _KINDS.get(str(each.type))
        if kinds is not None and type(value) not in kinds:
            raise TypeError(f"{each.name} is {value!r:.60}")
    return found


def write(cluster: ClusterFile) -> None:
    """Atomically, so that a reader never sees half of it, nor a start after a loss of power. StorageError if it cannot
    be written."""
    path = Path(cluster.directory) / _NAME
    text = json.dumps({"version": _VERSION} | asdict(cluster), indent=1) + "\n"
    try:
        replace_small_file(path, text, 0o644)  # whom ``waltz down`` ends is in it
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def alone(directory: str | os.PathLike[str]) -> Iterator[None]:
    """The file is nobody else's meanwhile. StorageError: it is, a ``waltz up`` or ``down`` is under way; it does not
    wait. Or the lock cannot be had."""
    try:
        lock = (Path(directory) / LOCK).open("a")
    except OSError as error:
        raise StorageError(f"{Path(directory) / LOCK} cannot be opened: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StorageError(f"a waltz up or down of {directory} is under way") from error
        yield


def remove(directory: str | os.PathLike[str]) -> None:
    """Forget the cluster. Idempotent."""
    (Path(directory) / _NAME).unlink(missing_ok=True)


def running_clusters() -> list[ClusterFile]:
    """The clusters on this machine whose Ray we started: heads whose working directory holds a cluster file. One whose
    file cannot be read, damaged or of another waltz, is told and left out: others are looked for in vain otherwise."""
    found: dict[str, ClusterFile] = {}
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if "ray.scripts.scripts" not in command or "--head" not in command:
                continue
            directory = process.cwd()
        except psutil.Error:  # gone, or not ours to look at
            continue
        try:
            cluster = read(directory)
        except InvalidInput as error:
            logger.warning("a cluster that runs here is left out: %s", error)
            continue
        if cluster is not None and cluster.ray is not None and cluster.ray.pid == process.pid:
            found[cluster.directory] = cluster
    return sorted(found.values(), key=lambda cluster: cluster.name)


def find_running(directory: str = "", name: str = "") -> ClusterFile:
    """The running cluster of the directory, of the name, or, if neither is given, the only one of this machine.

    ClusterNotFound says which ones run and how to name one.
    """
    if directory:
        return _of_directory(directory, name)
    running = running_clusters()
    matching = [cluster for cluster in running if not name or cluster.name == name]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(f"{cluster.name} ({cluster.directory})" for cluster in running) or "none"
    if name and not matching:
        raise ClusterNotFound(
            f"no cluster {name!r} of this machine runs (running: {names}); name its directory, or the address of the "
            "Ray it runs on"
        )
    if not matching:
        raise ClusterNotFound("no cluster runs on this machine; start one with: waltz up --dir DIR")
    raise ClusterNotFound(f"several clusters run here: {names}; say which by its directory (--dir, WALTZ_DIR)")


def _of_directory(directory: str, name: str) -> ClusterFile:
    cluster = read(directory)
    if cluster is None:
        raise ClusterNotFound(f"{directory} holds no cluster; make one with: waltz up --dir {directory}")
    if name and cluster.name != name:
        raise ClusterNotFound(f"{directory} holds cluster {cluster.name!r}, not {name!r}")
    if not cluster.running:
        raise ClusterNotFound(
            f"cluster {cluster.name!r} of {directory} is not running; start it with: waltz up --dir {directory}"
        )
    return cluster
