"""A file system in memory that can lose its power: what was not synced is gone.

As on a journalling file system a rename is durable as a whole, when either of its directories is synced.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence

from waltz_spark.streams.files import CHUNK_BYTES, ByteSpan, Joining, SeenPath

from waltz_ray.protocol.checksum import crc32

__all__ = ["MemoryFiles"]


class _File:
    def __init__(self) -> None:
        self.data = self.synced = b""
        self.modified = 0.0

    def lose(self) -> None:
        self.data = self.synced


class _Directory:
    def __init__(self) -> None:
        self.entries: dict[str, _Directory | _File] = {}
        self.synced: dict[str, _Directory | _File] = {}

    def lose(self) -> None:
        self.entries = dict(self.synced)
        for entry in self.entries.values():
            entry.lose()


class MemoryFiles:
    """Fulfils ``Files``; every path is absolute."""

    def __init__(self) -> None:
        self._top = _Directory()
        self._renames: list[tuple[_Directory, str, _Directory, str]] = []

    def touch(self, path: str, modified: float) -> None:
        """Seconds since 1970."""
        self._file(path).modified = modified

    def lose_power(self) -> None:
        self._renames.clear()
        self._top.lose()

    def _find(self, path: str) -> _Directory | _File | None:
        place: _Directory | _File | None = self._top
        for name in path.strip("/").split("/") if path.strip("/") else []:
            if not isinstance(place, _Directory):
                return None
            place = place.entries.get(name)
        return place

    def _directory(self, path: str) -> _Directory:
        found = self._find(path)
        if found is None:
            raise FileNotFoundError(path)
        if not isinstance(found, _Directory):
            raise NotADirectoryError(path)
        return found

    def _file(self, path: str) -> _File:
        found = self._find(path)
        if found is None:
            raise FileNotFoundError(path)
        if not isinstance(found, _File):
            raise IsADirectoryError(path)
        return found

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def look(self, path: str) -> SeenPath | None:
        found = self._find(path)
        if isinstance(found, _File):
            return SeenPath("file", len(found.data), found.modified)
        return SeenPath("directory", 0, 0.0) if found is not None else None

    def list(self, directory: str) -> list[str]:
        return sorted(self._directory(directory).entries)

    def make_directories(self, path: str) -> None:
        if self._find(path) is None:
            self.make_directories(posixpath.dirname(path))
            self.make_directory(path)
            self.sync_directory(posixpath.dirname(path))
        elif isinstance(self._find(path), _File):
            raise FileExistsError(path)

    def make_directory(self, path: str) -> None:
        parent = self._directory(posixpath.dirname(path))
        if posixpath.basename(path) in parent.entries:
            raise FileExistsError(path)
        parent.entries[posixpath.basename(path)] = _Directory()

    def read(self, path: str) -> bytes:
        return self._file(path).data

    def chunks(self, path: str, span: ByteSpan | None = None) -> Iterator[bytes]:
        data = self._spanned(path, span)
        for begin in range(0, len(data), CHUNK_BYTES):
            yield data[begin : begin + CHUNK_BYTES]

    def write(self, path: str, content: Iterable[bytes]) -> None:
        self.write_unsynced(path, b"".join(content))
        file = self._file(path)
        file.synced = file.data

    def write_unsynced(self, path: str, data: bytes) -> None:
        parent = self._directory(posixpath.dirname(path))
        if posixpath.basename(path) not in parent.entries:
            parent.entries[posixpath.basename(path)] = _File()
        self._file(path).data = data

    def copy(self, path: str, target: str, span: ByteSpan | None = None) -> int:
        data = self._spanned(path, span)
        self.write(target, [data])
        return crc32(data)

    def checksum(self, path: str, span: ByteSpan | None = None) -> int:
        return crc32(self._spanned(path, span))

    def _spanned(self, path: str, span: ByteSpan | None) -> bytes:
        data = self.read(path)
        return data if span is None else data[span.first :][: span.size_bytes]

    joins: Joining = "bytes"

    def joining(self, directory: str) -> Joining:
        return self.joins

    def join(self, pieces: Sequence[str], target: str) -> None:
        self.write(target, [self.read(piece) for piece in pieces])
        for piece in pieces if self.joins == "names" else ():
            self.delete(piece)

    def rename(self, source: str, target: str) -> None:
        if self._find(target) is not None:
            raise FileExistsError(target)
        self._move(source, target)

    def replace(self, source: str, target: str) -> None:
        self._file(source)
        if isinstance(self._find(target), _Directory):
            raise IsADirectoryError(target)
        self._move(source, target)

    def _move(self, source: str, target: str) -> None:
        if self._find(source) is None:
            raise FileNotFoundError(source)
        one, other = self._directory(posixpath.dirname(source)), self._directory(posixpath.dirname(target))
        name, new_name = posixpath.basename(source), posixpath.basename(target)
        other.entries[new_name] = one.entries.pop(name)
        self._renames.append((one, name, other, new_name))

    def delete(self, path: str) -> None:
        if self._find(path) is not None:
            del self._directory(posixpath.dirname(path)).entries[posixpath.basename(path)]

    def remove_empty(self, directory: str) -> bool:
        found = self._find(directory)
        if found is None:
            return True
        if self._directory(directory).entries:
            return False
        self.delete(directory)
        return True

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        for one, name, other, new_name in self._renames:
            if directory in (one, other):
                entry = one.synced.pop(name, None)
                if new_name in other.entries:
                    other.synced[new_name] = other.entries[new_name]
                elif entry is not None:
                    other.synced[new_name] = entry
        self._renames = [rename for rename in self._renames if directory not in (rename[0], rename[2])]
        directory.synced = dict(directory.entries)

    def file_system(self, path: str) -> str:
        return "memory"
