"""Appends rows under locks by key, many at a time: the engine of ``waltz load``.

A row takes a lock on its key. The first row of a key takes the *write* lock: if somebody else has written under the
key since this loader last heard of the log, the row is refused, the loader takes note and sends it again. Rows that
reach a key while an earlier one is under way wait for that one's fate and then follow all at once with *append* locks:
the loader reads nothing that could be stale, so for them the lock only has to tell others that the key has changed.
So a file with few keys is as fast as one with many, and the rows of a key keep the order of the file.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from waltz_ray.errors import LockConflict
from waltz_ray.protocol.ids import LockId

__all__ = ["AppendPort", "KeyedAppender", "PartitionCount"]


class AppendPort(Protocol):
    """What of a client is used."""

    def append(
        self,
        partition_id: int,
        data: bytes,
        header: int = 0,
        *,
        write_locks: tuple[LockId, ...] = (),
        append_locks: tuple[LockId, ...] = (),
        client_mark: int | None = None,
    ) -> Future[int]: ...

    def server_high_water_mark(self, partition_id: int) -> int: ...


@dataclass
class PartitionCount:
    """``rows`` appended by this loader; ``first_id`` and ``last_id`` of them, -1 = none."""

    rows: int = 0
    first_id: int = -1
    last_id: int = -1


@dataclass
class _Key:
    """Rows of one key: ``under_way`` sent; ``leading``: the first is, and ``waiting`` follow it."""

    leading: bool = True
    under_way: int = 1
    waiting: deque[bytes] = field(default_factory=deque)


_Done = tuple[int, LockId, bytes, "Future[int]"]


class KeyedAppender:
    """Used by one thread, for the keys of one column: a lock's ID decides its partition.

    ``limit``: rows handed in and without a fate; ``put`` waits there. More of them make more false lock conflicts (the
    log's lock table has a fixed size, and the loader's mark is older the more is under way), fewer make small batches.
    """

    def __init__(self, client: AppendPort, header: int = 0, limit: int = 4000) -> None:
        self._client = client
        self._header = header
        self._limit = limit
        self._keys: dict[int, _Key] = {}  # by the ID of the lock
        self._marks: dict[int, int] = {}
        self._done: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        self._open = 0
        self.appended = 0
        self.lock_conflicts = 0
        self.partitions: dict[int, PartitionCount] = {}

    @property
    def open(self) -> int:
        """Rows without a fate."""
        return self._open

    def put(self, partition_id: int, lock: LockId, data: bytes) -> None:
        """Append a row, now or when its predecessors allow it. Raises what an earlier row failed with."""
        if self._open >= self._limit:
            while self._open > self._limit * 3 // 4:  # many at a time: this thread and the client's take turns
                self._settle(self._done.get())
        self._open += 1
        key = self._keys.get(lock.id)
        if key is None:
            self._keys[lock.id] = _Key()
            self._lead(partition_id, lock, data)
        elif key.leading:
            key.waiting.append(data)
        else:
            key.under_way += 1
            self._follow(partition_id, lock, data)

    def finish(self, timeout_s: float | None = None) -> None:
        """Wait until every row has its fate, or for ``timeout_s`` (then ``open`` says how many have none)."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._open:
            try:
                left_s = None if deadline is None else max(0.001, deadline - time.monotonic())
                self._settle(self._done.get(timeout=left_s))
            except queue.Empty:
                return

    def abandon(self, timeout_s: float) -> None:
        """Send nothing more; wait at most ``timeout_s`` for the fates of what is under way, whatever they are."""
        for key in self._keys.values():
            self._open -= len(key.waiting)
            key.waiting.clear()
        deadline = time.monotonic() + timeout_s
        while self._open and (left_s := deadline - time.monotonic()) > 0:
            try:
                partition_id, _, _, future = self._done.get(timeout=left_s)
            except queue.Empty:
                return
            self._open -= 1
            if future.exception() is None:
                self._count(partition_id, future.result())

    def _lead(self, partition_id: int, lock: LockId, data: bytes) -> None:
        if partition_id not in self._marks:
            self._marks[partition_id] = self._client.server_high_water_mark(partition_id)
        future = self._client.append(
            partition_id, data, self._header, write_locks=(lock,), client_mark=self._marks[partition_id]
        )
        future.add_done_callback(partial(self._on_done, partition_id, lock, data))

    def _follow(self, partition_id: int, lock: LockId, data: bytes) -> None:
        future = self._client.append(
            partition_id, data, self._header, append_locks=(lock,), client_mark=self._marks[partition_id]
        )
        future.add_done_callback(partial(self._on_done, partition_id, lock, data))

    def _on_done(self, partition_id: int, lock: LockId, data: bytes, future: Future[int]) -> None:
        """On the client's thread: as little as possible."""
        self._done.put((partition_id, lock, data, future))

    def _settle(self, done: _Done) -> None:
        partition_id, lock, data, future = done
        error = future.exception()
        if isinstance(error, LockConflict):
            self.lock_conflicts += 1
            self._marks[partition_id] = max(self._marks[partition_id], error.transaction_id)
            self._lead(partition_id, lock, data)
            return
        self._open -= 1
        if error is not None:
            raise error
        self._count(partition_id, future.result())
        key = self._keys[lock.id]
        key.under_way -= 1
        if key.leading:
            key.leading = False
            key.under_way += len(key.waiting)
            while key.waiting:
                self._follow(partition_id, lock, key.waiting.popleft())
        if not key.under_way:
            del self._keys[lock.id]

    def _count(self, partition_id: int, transaction_id: int) -> None:
        self.appended += 1
        count = self.partitions.setdefault(partition_id, PartitionCount(first_id=transaction_id))
        count.rows += 1
        count.first_id = min(count.first_id, transaction_id)
        count.last_id = max(count.last_id, transaction_id)
        self._marks[partition_id] = max(self._marks[partition_id], transaction_id)
