"""Where a backup lies: the one gate to pyarrow's file systems, a local directory or a URL.

An object is written under its name with ``.new`` behind and then renamed, where renaming is one step; on object stores
one is there when it has been written to its end, and not before, so it gets its name at once. On a local disk it is
synced before it is renamed, and its folder after it: what ``write`` has returned of survives a loss of power. What is
called ``*.new`` was left by a run that was killed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from waltz_ray.backup.format import ASIDE
from waltz_ray.errors import DiskFull, InvalidInput, StorageError

__all__ = ["Target"]

_IN_ONE_STEP = ("local", "hdfs", "mock")
"""File systems that rename in one step; an object store copies and deletes."""

_NOT_OURS = "a file whose name is no UTF-8"
"""In place of such a name; there may be several."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Target:
    """Objects by their names (``/`` between the parts) below one root."""

    def __init__(self, file_system: Any, root: str, shown: str) -> None:
        """``file_system``: a pyarrow.fs.FileSystem; ``shown``: the root as people call it."""
        self._fs = file_system
        self._root = root.rstrip("/")
        self.shown = shown.rstrip("/")
        self._renames = file_system.type_name in _IN_ONE_STEP
        self._local = file_system.type_name == "local"
        self._made: set[str] = set()  # folders that are there, durably

    @classmethod
    def at(cls, where: str) -> Target:
        """``where``: a local path, or a URL of pyarrow's (s3://, gs://, abfs://, hdfs://, file://). InvalidInput."""
        if "://" not in where:
            path = os.path.abspath(where)
            try:
                path.encode()
            except UnicodeEncodeError as error:
                raise InvalidInput(f"{path!a} is no place that pyarrow can write to: it is not UTF-8") from error
            return cls(fs.LocalFileSystem(), path, path)
        try:
            file_system, root = fs.FileSystem.from_uri(where)
        except (ValueError, OSError, ImportError, NotImplementedError) as error:
            # pyarrow quotes what it was given. As it is no URL, a password may have anything in it that it should not.
            scheme, _, rest = where.partition("://")
            before, _, query = rest.partition("?")
            secret, _, place = before.rpartition("@")
            why = str(error)
            for private in filter(None, (secret, query)):
                why = why.replace(private, "...")
            raise InvalidInput(
                f"{scheme}://{place} is no place that pyarrow can write to: {' '.join(why.split())}"
            ) from None
        return cls(file_system, root, _without_secrets(where))

    def place(self, name: str) -> str:
        """The object as people call it."""
        return f"{self.shown}/{name}"

    def names(self, folder: str = "") -> dict[str, int]:
        """Name -> size of each object, ``*.new`` too, below ``folder``; of none if there is no such folder."""
        below = self._path(folder) if folder else self._root
        with self._named("listed", folder):
            found = self._fs.get_file_info(fs.FileSelector(below, allow_not_found=True, recursive=True))
            return {self._name_of(info): int(info.size) for info in found if info.type == fs.FileType.File}

    def _name_of(self, info: Any) -> str:
        try:
            return str(info.path[len(self._root) + 1 :])
        except UnicodeDecodeError:  # pyarrow cannot say it
            return _NOT_OURS

    def read(self, name: str, start: int = 0) -> bytes:
        """The object from byte ``start`` on. FileNotFoundError; StorageError."""
        with self._named("read", name), self._fs.open_input_file(self._path(name)) as stream:
            stream.seek(start)
            raw: bytes = stream.read()
            return raw

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """The object is there, whole and durable, when this returns; before that it is not there, or as it was.

        DiskFull, StorageError.
        """
        path = self._path(name)
        aside = path + ASIDE if self._renames else path
        with self._named("written", name):
            self._make_folder(path.rpartition("/")[0])
            try:
                with self._fs.open_output_stream(aside) as stream:
                    for part in parts:
                        stream.write(part)
            except BaseException:
                self._give_up(aside)
                raise
            wanted = sum(map(len, parts))
            written = self._fs.get_file_info(aside).size
            if written != wanted:
                raise StorageError(f"{self.place(name)} has {written} bytes, and {wanted} were written: is it a disk?")
            if self._renames:
                self._sync(aside)
                self._fs.move(aside, path)
                self._sync(path.rpartition("/")[0])

    def delete(self, names: Iterable[str]) -> None:
        """Nothing of these is there when this returns. An object that has gone meanwhile is no error."""
        for name in names:
            with self._named("deleted", name):
                try:
                    self._fs.delete_file(self._path(name))
                except FileNotFoundError:
                    continue

    def _give_up(self, path: str) -> None:
        """Closing a stream in which a write has failed makes an object of what had been written: not to stay under its
        name, nor in the room of a full disk. If it does after all, its checksums, or its name, say what it is."""
        with suppress(OSError):
            self._fs.delete_file(path)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _make_folder(self, path: str) -> None:
        if path in self._made:
            return
        top = self._root  # of what may be new
        while self._local and not os.path.exists(top.rpartition("/")[0] or "/"):
            top = top.rpartition("/")[0]
        self._fs.create_dir(path, recursive=True)
        while len(path) >= len(top) and path not in self._made:  # each of them may be new, or not yet durable
            self._made.add(path)
            path = path.rpartition("/")[0]
            self._sync(path or "/")

    def _sync(self, path: str) -> None:
        if not self._local:
            return
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    @contextmanager
    def _named(self, what: str, name: str) -> Iterator[None]:
        place = self.place(name) if name else self.shown
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and what == "read":
                raise
            if error.errno in _NO_SPACE or "No space left" in str(error):
                raise DiskFull(
                    f"{place}: no space left where the backup is written; make room and give the same command again: "
                    "it goes on from what is there, and the last backup that was finished stays good"
                ) from error
            raise StorageError(f"{place} cannot be {what}: {_told(error)}") from error


def _without_secrets(url: str) -> str:
    """What may be shown and kept: a URL may have a password, and options behind a question mark."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _told(error: BaseException) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split())
