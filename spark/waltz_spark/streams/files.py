"""The one gate to file systems: what the services need of one, and the local one.

Errors are the built-in ones of file systems: FileNotFoundError, FileExistsError, another OSError. ``HadoopFiles`` (in
``hadoop_files``) raises the same; one contract test holds all kinds equal.

Durable means: after a loss of power it is still there. The content of a file is durable when ``write`` returns; a name
(made, renamed, deleted) when ``sync_directory`` of its directory has returned. Whoever writes a state into ZooKeeper
that claims a name syncs its directory before.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Literal, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.checksum import crc32

__all__ = [
    "CHUNK_BYTES",
    "Checksum",
    "Files",
    "FilesOf",
    "Joining",
    "LocalFiles",
    "SeenPath",
    "ByteSpan",
    "copy_file",
    "directory_of",
    "local_files",
    "normal_root",
    "other_bytes",
]

CHUNK_BYTES = 1024 * 1024

Joining = Literal["no", "names", "bytes"]
"""What ``Files.join`` costs: it cannot be; only names are changed; the bytes are copied again (or shared, where the
file system can do that)."""


class ByteSpan(NamedTuple):
    """Bytes of a file: ``size_bytes`` from ``first`` on."""

    first: int
    size_bytes: int


class SeenPath(NamedTuple):
    """What stands at a path. ``other``: a pipe, a socket, a device, a link to nothing: not to be opened.

    ``modified``: seconds since 1970, by the file system's clock.
    """

    kind: Literal["file", "directory", "other"]
    size_bytes: int
    modified: float


class Files(Protocol):
    """One file system. Paths are absolute texts with ``/``."""

    def exists(self, path: str) -> bool: ...

    def look(self, path: str) -> SeenPath | None:
        """What is there; None = nothing. A link is what it leads to."""
        ...

    def list(self, directory: str) -> list[str]:
        """Sorted names in a directory. FileNotFoundError; NotADirectoryError for a file."""
        ...

    def make_directories(self, path: str) -> None:
        """Make what is missing of a path, durably. Idempotent. FileExistsError or NotADirectoryError over a file."""
        ...

    def make_directory(self, path: str) -> None:
        """Only the last name of a path. FileNotFoundError without its directory, FileExistsError."""
        ...

    def read(self, path: str) -> bytes:
        """A small file. FileNotFoundError."""
        ...

    def chunks(self, path: str, span: ByteSpan | None = None) -> Iterator[bytes]:
        """A file, or a span of it, in pieces of at most CHUNK_BYTES. Ends early with the file. FileNotFoundError."""
        ...

    def write(self, path: str, content: Iterable[bytes]) -> None:
        """A new file, or an old one with new content; the content is durable. FileNotFoundError without its directory.

        A missing directory is never made: it may have been taken away from a run that was replaced.
        """
        ...

    def copy(self, path: str, target: str, span: ByteSpan | None = None) -> int:
        """Copy the file's bytes to ``target``, durable like those of ``write``: the CRC-32 of what was read.

        FileNotFoundError."""
        ...

    def checksum(self, path: str, span: ByteSpan | None = None) -> int:
        """The CRC-32 of the file's bytes. FileNotFoundError."""
        ...

    def joining(self, directory: str) -> Joining:
        """Whether files in a directory can be joined, and what that costs."""
        ...

    def join(self, pieces: Sequence[str], target: str) -> None:
        """A new file with the bytes of one or more others of its directory, in their order; durable like ``write``'s.

        The pieces may be gone afterwards, and some of them, or grown, after an error. None is empty. FileNotFoundError.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic. FileNotFoundError without ``source`` or the target's directory; FileExistsError with a ``target``."""
        ...

    def replace(self, source: str, target: str) -> None:
        """Rename a file, in place of one at ``target`` if there is one."""
        ...

    def delete(self, path: str) -> None:
        """A file, or a directory with everything in it. Idempotent. Not atomic for directories."""
        ...

    def remove_empty(self, directory: str) -> bool:
        """Remove a directory if nothing is in it; whether it is gone. Never removes anything else."""
        ...

    def sync_directory(self, path: str) -> None:
        """The names in it are durable. FileNotFoundError."""
        ...

    def file_system(self, path: str) -> str:
        """Identifies the file system that has, or would have, ``path``; a rename needs the same for both ends."""
        ...


FilesOf = Callable[[str], Files]
"""The gate for a root. The same gate for two roots means that files are copied between them without a detour."""


def normal_root(root: str) -> str:
    """A local root (a directory, a ``file:`` URI) as an absolute directory; another URI as it is. InvalidInput."""
    if not root:
        raise InvalidInput("a root is empty; name a directory or a URI")
    if root.startswith("file:"):
        root = unquote(urlsplit(root).path)
    return root.rstrip("/") if "://" in root else os.path.abspath(root)


_LOCAL: Files


def local_files(root: str) -> Files:
    """The gate for local roots. InvalidInput for any other: those need a HadoopFiles."""
    if "://" in normal_root(root):
        raise InvalidInput(
            f"{root} is on a Hadoop file system, which needs a running Spark; start the service with one"
        )
    return _LOCAL


def directory_of(path: str) -> str:
    """The directory ``path`` is in."""
    return path.rpartition("/")[0]


def copy_file(source: Files, path: str, target: Files, target_path: str, span: ByteSpan | None = None) -> int:
    """Copy a file, or a span of it, from one gate to another, durable at the target: the CRC-32 of what was read.

    FileNotFoundError.
    """
    if source is target:
        return target.copy(path, target_path, span)
    passing = Checksum()
    target.write(target_path, passing.of(source.chunks(path, span)))
    return passing.value


def other_bytes(path: str) -> OSError:
    """What stands at the path is not what was written to it."""
    return OSError(f"{path} does not have the bytes that were written to it; look at its disk")


class Checksum:
    """The CRC-32 of pieces that pass through; ``value`` when they have."""

    def __init__(self) -> None:
        self.value = 0

    def of(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.value = crc32(piece, self.value)
            yield piece


class LocalFiles:
    """The gate to the operating system's own files."""

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def look(self, path: str) -> SeenPath | None:
        if not os.path.lexists(path):
            return None
        try:
            found = os.stat(path)
        except OSError:
            return SeenPath("other", 0, 0.0)
        is_file, is_directory = stat.S_ISREG(found.st_mode), stat.S_ISDIR(found.st_mode)
        return SeenPath("file" if is_file else "directory" if is_directory else "other", found.st_size, found.st_mtime)

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directories(self, path: str) -> None:
        parent = os.path.dirname(path)
        if os.path.isdir(path):
            # Another may have made it just now, or have been killed behind that: it has not come to its own sync.
            with suppress(PermissionError):  # above a root is what is not ours to look into
                self.sync_directory(parent)
            return
        self.make_directories(parent)
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
        self.sync_directory(parent)

    def make_directory(self, path: str) -> None:
        os.mkdir(path)

    def read(self, path: str) -> bytes:
        with _opened(path) as file:
            return file.read()

    def chunks(self, path: str, span: ByteSpan | None = None) -> Iterator[bytes]:
        with _opened(path) as file:
            yield from _pieces(file, span)

    def write(self, path: str, content: Iterable[bytes]) -> None:
        with open(path, "wb") as file:
            for piece in content:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())

    def copy(self, path: str, target: str, span: ByteSpan | None = None) -> int:
        passing = Checksum()
        with _opened(path) as file:  # before the target: nothing is made where there is no source
            self.write(target, passing.of(_pieces(file, span)))
        return passing.value

    def checksum(self, path: str, span: ByteSpan | None = None) -> int:
        passing = Checksum()
        for _ in passing.of(self.chunks(path, span)):
            pass
        return passing.value

    def joining(self, directory: str) -> Joining:
        return "bytes"

    def join(self, pieces: Sequence[str], target: str) -> None:
        with open(target, "wb") as joined:
            for piece in pieces:
                with _opened(piece) as file:
                    _append(file, joined)
            joined.flush()
            os.fsync(joined.fileno())

    def rename(self, source: str, target: str) -> None:
        # Between the look and the rename only a run that was replaced could act, and what it could rename from has
        # been taken away from it (commit.py); the operating system refuses to replace a directory that has entries.
        if os.path.lexists(target):
            raise FileExistsError(f"{target} is there already; {source} is not renamed to it")
        os.rename(source, target)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)

    def delete(self, path: str) -> None:
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except FileNotFoundError:
            # Gone already; or another deletes the same tree: what it took is gone, the rest is looked at again.
            if os.path.lexists(path):
                self.delete(path)

    def remove_empty(self, directory: str) -> bool:
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            return True
        except OSError:
            if os.path.isdir(directory) and os.listdir(directory):
                return False
            raise
        return True

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def file_system(self, path: str) -> str:
        while not os.path.exists(path) and os.path.dirname(path) != path:
            path = os.path.dirname(path)
        return f"device {os.stat(path).st_dev}"


def _opened(path: str) -> IO[bytes]:
    """A file to be read; OSError for anything else. Nobody waits in here for one who writes to a pipe: what stood
    there when it was looked at may be a pipe by now."""

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | os.O_NONBLOCK)
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is not a file", name)
        return descriptor

    return open(path, "rb", opener=opener)


def _pieces(file: IO[bytes], span: ByteSpan | None) -> Iterator[bytes]:
    if span is None:
        yield from iter(lambda: file.read(CHUNK_BYTES), b"")
        return
    file.seek(span.first)
    left = span.size_bytes
    while left > 0 and (piece := file.read(min(CHUNK_BYTES, left))):
        left -= len(piece)
        yield piece


def _append(file: IO[bytes], joined: IO[bytes]) -> None:
    """By the kernel, where it can: XFS and Btrfs share the blocks, a server of NFS 4.2 copies by itself."""
    size_bytes = os.fstat(file.fileno()).st_size
    done = 0
    with suppress(OSError, AttributeError):  # this file system, or this system, cannot: what is left is copied below
        while done < size_bytes and (copied := os.copy_file_range(file.fileno(), joined.fileno(), size_bytes - done)):
            done += copied
    shutil.copyfileobj(file, joined, CHUNK_BYTES)  # from where the kernel stopped: both descriptors are there
    joined.flush()


_LOCAL = LocalFiles()
