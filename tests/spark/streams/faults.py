"""Something happens at the n-th change that a service makes, to a file or in ZooKeeper: a crash, or a takeover.

A crash is a BaseException that unwinds the service; after it nothing the service tries has an effect any more. It comes
before the change, or in its middle: half a file, half of a directory deleted, or a ZooKeeper write without its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from waltz_spark.streams.files import ByteSpan, Joining, SeenPath

from tests.spark.streams.memory_files import MemoryFiles
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer

__all__ = ["Crash", "FaultyFiles", "FaultyZooKeeper", "Fuse"]


class Crash(BaseException):
    """The process is gone."""


class Fuse:
    """Counts changes. At the ``at``-th (from 0) ``strike`` is called, with what was to be done."""

    def __init__(self, at: int = -1, middle: bool = False, strike: Callable[[], None] | None = None) -> None:
        self.at, self.middle, self.strike = at, middle, strike
        self.count = 0
        self.blown = False
        self.names: list[str] = []

    def change(self, name: str, half: Callable[[], object]) -> None:
        """Call it before a change; ``half`` does it halfway."""
        if self.blown:
            raise Crash("gone already")
        self.names.append(name)
        self.count += 1
        if self.count - 1 != self.at:
            return
        if self.strike is not None:
            self.strike()
            return
        self.blown = True
        if self.middle:
            half()
        raise Crash(name)


class FaultyFiles:
    """A gate like any other; what changes something asks the fuse first."""

    def __init__(self, files: MemoryFiles, fuse: Fuse) -> None:
        self._files, self._fuse = files, fuse

    def _change(self, name: str, path: str, half: Callable[[], object] = lambda: None) -> None:
        self._fuse.change(f"{name} {path}", half)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def look(self, path: str) -> SeenPath | None:
        return self._files.look(path)

    def list(self, directory: str) -> list[str]:
        return self._files.list(directory)

    def read(self, path: str) -> bytes:
        return self._files.read(path)

    def chunks(self, path: str, span: ByteSpan | None = None) -> Iterator[bytes]:
        return self._files.chunks(path, span)

    def make_directories(self, path: str) -> None:
        if not self._files.exists(path):
            self._change("make", path, lambda: self._files.make_directories(path.rpartition("/")[0]))
        self._files.make_directories(path)

    def make_directory(self, path: str) -> None:
        self._change("make", path)
        self._files.make_directory(path)

    def write(self, path: str, content: Iterable[bytes]) -> None:
        data = b"".join(content)
        self._change("write", path, lambda: self._files.write_unsynced(path, data[: len(data) // 2]))
        self._files.write(path, [data])

    def copy(self, path: str, target: str, span: ByteSpan | None = None) -> int:
        self.write(target, self._files.chunks(path, span))
        return self._files.checksum(path, span)

    def checksum(self, path: str, span: ByteSpan | None = None) -> int:
        return self._files.checksum(path, span)

    def joining(self, directory: str) -> Joining:
        return self._files.joining(directory)

    def join(self, pieces: Sequence[str], target: str) -> None:
        self._change("join", target, lambda: self._files.write_unsynced(target, self._files.read(pieces[0])))
        self._files.join(pieces, target)

    def rename(self, source: str, target: str) -> None:
        self._change("rename", f"{source} to {target}")
        self._files.rename(source, target)

    def replace(self, source: str, target: str) -> None:
        self._change("rename", f"{source} to {target}")
        self._files.replace(source, target)

    def delete(self, path: str) -> None:
        self._change("delete", path, lambda: self._half_delete(path))
        self._files.delete(path)

    def _half_delete(self, path: str) -> None:
        try:
            names = self._files.list(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names[: (len(names) + 1) // 2]:
            self._files.delete(f"{path}/{name}")

    def remove_empty(self, directory: str) -> bool:
        self._change("remove", directory)
        return self._files.remove_empty(directory)

    def sync_directory(self, path: str) -> None:
        self._change("sync", path)
        self._files.sync_directory(path)

    def file_system(self, path: str) -> str:
        return self._files.file_system(path)


class FaultyZooKeeper(MemoryZooKeeper):
    """In the middle of a write: it happened, the answer did not come."""

    def __init__(self, server: MemoryZooKeeperServer, fuse: Fuse) -> None:
        super().__init__(server)
        self._fuse = fuse
        self._within = False

    def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False, make_parents: bool = False
    ) -> str:
        make = super().create

        def do() -> str:
            self._within, before = True, self._within
            try:
                return make(path, data, ephemeral=ephemeral, sequence=sequence, make_parents=make_parents)
            finally:
                self._within = before

        # The twin makes parents by calling this again; like the real client, it never stops at one that is there.
        if not self._within:
            self._fuse.change(f"create {path}", do)
        return do()

    def set(self, path: str, data: bytes, version: int) -> int:
        put = super().set
        self._fuse.change(f"set {path}", lambda: put(path, data, version))
        return put(path, data, version)

    def delete(self, path: str, version: int = -1) -> None:
        remove = super().delete
        self._fuse.change(f"delete {path}", lambda: remove(path, version))
        remove(path, version)
