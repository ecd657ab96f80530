"""A cluster that is only what a backup sees of it; and a file system that is cut off before any of its operations."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyarrow import fs

from tests.storage.helpers import records
from waltz_ray.backup.source import Counters
from waltz_ray.errors import CoordinationError, DataUnavailable, Trimmed
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.spaces import Space, SpaceState, SpaceTable
from waltz_ray.protocol.times import TimeMarks, times_within

KEY = uuid.UUID("ae7968ef-3b42-479f-9fe3-a49b2ba8ff33")
CLOCK_MS = 1_700_000_000_000


class MemorySource:
    """Partitions 0 and 1 are space log, 2 is space orders. Record n of each is what ``tests.storage.helpers`` makes."""

    def __init__(self) -> None:
        self.cluster, self.cluster_key, self.replica_count = "c", KEY, 3
        self.config: Mapping[str, Any] = {"name": "c", "servers": 2, "storage": {"segment_size_bytes": 900}}
        self.ends = {0: 0, 1: 0, 2: 0}
        self.marks: dict[int, int] = {}
        self.state = SpaceState.READY
        self.rights: dict[str, str] = {}
        self.recovered, self.forks = "", dict[int, int]()  # partition -> from where on its records are other ones
        self.holds: dict[str, dict[int, int]] = {}
        self.reads: list[tuple[int, int, int]] = []
        self.lock_lost = False
        self.locks: set[uuid.UUID] = set()
        self.on_lock: Callable[[], None] = lambda: None
        self.before_hold: Callable[[], None] = lambda: None
        self.on_read: Callable[[], None] = lambda: None

    def documents(self) -> dict[str, str]:
        return dict(self.rights)

    def spaces(self) -> SpaceTable:
        log, orders = (
            Space("log", "log", 0, 2, SpaceState.READY),
            Space("orders", "kv", 2, 1, self.state, {"retention_ms": 1}),
        )
        return SpaceTable(3, {"log": log, "orders": orders})

    def end(self, partition_id: int) -> int:
        if partition_id not in self.ends:
            raise DataUnavailable("no server has it")
        return self.ends[partition_id]

    def trim_marks(self) -> dict[int, int]:
        return dict(self.marks)

    def recovery(self) -> str:
        return self.recovered

    def counters(self) -> Counters:
        return Counters(17, 4, {0: 3, 1: 2, 2: 1})

    def read(self, partition_id: int, first_id: int, end_id: int) -> Iterator[RecordBatch]:
        self.reads.append((partition_id, first_id, end_id))
        while first_id < end_id:
            self.on_read()
            if partition_id in self.spaces().gone:
                raise DataUnavailable("the space is gone")
            assert first_id >= self.marks.get(partition_id, 0)
            count = min(7, end_id - first_id)
            whole = records(0, end_id, tag=partition_id, partition_id=partition_id)
            fork = self.forks.get(partition_id, end_id)
            if first_id >= fork:
                whole = records(0, end_id, tag=partition_id + 1000, partition_id=partition_id)
            elif fork < first_id + count:
                count = fork - first_id
            yield whole.slice(first_id, first_id + count)
            first_id += count

    def times(self, partition_id: int, first_id: int, end_id: int) -> TimeMarks:
        """A mark a second, of three records each; record 0 and 1 of partition 1 have none."""
        marks = [(3 * n, CLOCK_MS + 1000 * n) for n in range(end_id // 3 + 1)]
        return times_within(marks[partition_id % 2 :], first_id, end_id)

    @contextmanager
    def locked(self, backup: uuid.UUID) -> Iterator[Callable[[], None]]:
        def check() -> None:
            if self.lock_lost:
                raise CoordinationError("lost")

        if backup in self.locks:
            raise CoordinationError("another run is under way")
        self.locks.add(backup)
        try:
            self.on_lock()
            yield check
        finally:
            self.locks.remove(backup)

    def hold(self, name: str, positions: Mapping[int, int], why: str) -> None:
        self.before_hold()
        self.holds[name] = dict(positions)
        for p, first_id in positions.items():
            if first_id < self.marks.get(p, 0):
                raise Trimmed(p, first_id, self.marks[p])

    def advance(self, name: str, positions: Mapping[int, int], why: str) -> None:
        self.holds[name] = dict(positions)

    def release(self, name: str) -> None:
        self.holds.pop(name, None)


ASIDE_OF_STORE = ".multipart"  # where nobody sees it


class Killed(BaseException):
    """The process ends here."""


class _Stream:
    def __init__(self, owner: BrittleFileSystem, path: str) -> None:
        self._owner, self._path = owner, path
        real = path + ASIDE_OF_STORE if owner.type_name == "s3" else path
        self._stream = fs.LocalFileSystem().open_output_stream(real)

    def write(self, part: bytes) -> None:
        half = bytes(part)[: len(part) // 2]
        self._owner.step(lambda: self._stream.write(half))
        if self._owner.room is not None:
            self._owner.room -= len(part)
            if self._owner.room < 0:
                self._stream.write(half)
                raise OSError(errno.ENOSPC, "No space left on device")
        self._stream.write(part)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._stream.close()
        if self._owner.type_name == "s3" and kind is not Killed:
            os.replace(self._path + ASIDE_OF_STORE, self._path)


class BrittleFileSystem:
    """A local file system; with ``left`` = n the process is killed at the n-th step that changes something, a write
    half done. ``room``: bytes until the disk is full. As ``s3`` it is an object store: nothing is renamed, an object is
    there when its stream is closed, and not if the process is killed before."""

    def __init__(self, type_name: str = "local") -> None:
        self.type_name = type_name
        self._inner = fs.LocalFileSystem()
        self.left: int | None = None
        self.room: int | None = None
        self.steps = 0

    def step(self, half: Callable[[], None] = lambda: None) -> None:
        self.steps += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                half()
                raise Killed

    def open_output_stream(self, path: str) -> _Stream:
        self.step()
        return _Stream(self, path)

    def move(self, old: str, new: str) -> None:
        self.step()
        self._inner.move(old, new)

    def delete_file(self, path: str) -> None:
        self.step()
        self._inner.delete_file(path)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.step()
        self._inner.create_dir(path, recursive=recursive)

    def get_file_info(self, what: Any) -> Any:
        found = self._inner.get_file_info(what)
        return [info for info in found if not info.path.endswith(ASIDE_OF_STORE)] if isinstance(found, list) else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class SharedFileSystem(BrittleFileSystem):
    """With ``left`` = n ``meanwhile`` is called, once, before the n-th look at the files, or step that changes some."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None, type_name: str = "local") -> None:
        super().__init__(type_name)
        self._meanwhile = meanwhile

    def step(self, half: Callable[[], None] = lambda: None) -> None:
        if self.steps == self.left:
            self.left = None
            self._meanwhile()
        self.steps += 1

    def get_file_info(self, what: Any) -> Any:
        self.step()
        return super().get_file_info(what)

    def open_input_file(self, path: str) -> Any:
        self.step()
        return self._inner.open_input_file(path)


class Quiet:
    """Nobody is shown anything; what was counted is known."""

    def __init__(self) -> None:
        self.stages: list[list[Any]] = []

    def begin(self, what: str, total: int) -> None:
        self.stages.append([what, total, 0])

    def done(self, count: int) -> None:
        self.stages[-1][2] += count
