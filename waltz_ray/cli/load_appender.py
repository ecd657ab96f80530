"""Appends rows under locks by key, many at a time: the engine of ``waltz load``.

A row takes an *append* lock on its key: the loader has read nothing that could be stale, so nothing has to be checked
for it, but everybody else who decides about the key learns that it has changed. So no row waits for another one, and
the rows of a partition are sent in the order of the file.
"""

from __future__ import annotations

import queue
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from waltz_ray.client.waits import item_of
from waltz_ray.protocol.ids import NO_TRANSACTION, LockId

__all__ = ["AppendPort", "KeyedAppender", "PartitionCount"]


class AppendPort(Protocol):
    """What of a client is used."""

    def append(
        self,
        partition_id: int,
        data: bytes,
        header: int = 0,
        *,
        append_locks: tuple[LockId, ...] = (),
        client_mark: int | None = None,
    ) -> Future[int]: ...


@dataclass
class PartitionCount:
    """``rows`` appended by this loader; ``first_id`` and ``last_id`` of them, -1 = none."""

    rows: int = 0
    first_id: int = -1
    last_id: int = -1


_Done = tuple[int, "Future[int]"]


class KeyedAppender:
    """Used by one thread. ``limit``: rows handed in and without a fate; ``put`` waits there."""

    def __init__(self, client: AppendPort, header: int = 0, limit: int = 4000) -> None:
        self._client = client
        self._header = header
        self._limit = limit
        self._done: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        self.open = 0
        """Rows without a fate."""
        self.appended = 0
        self.partitions: dict[int, PartitionCount] = {}

    def put(self, partition_id: int, lock: LockId, data: bytes) -> None:
        """Append a row. Raises what an earlier row failed with."""
        if self.open >= self._limit:
            while self.open > self._limit * 3 // 4:  # many at a time: this thread and the client's take turns
                self._settle(*item_of(self._done))
        future = self._client.append(partition_id, data, self._header, append_locks=(lock,), client_mark=NO_TRANSACTION)
        self.open += 1
        future.add_done_callback(partial(self._on_done, partition_id))

    def finish(self) -> None:
        """Wait until every row has its fate. Raises what one failed with."""
        while self.open:
            self._settle(*item_of(self._done))

    def abandon(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` for the fates of what is under way, whatever they are; ``open`` have none then."""
        deadline = time.monotonic() + timeout_s
        while self.open and (left_s := deadline - time.monotonic()) > 0:
            try:
                partition_id, future = self._done.get(timeout=left_s)
            except queue.Empty:
                return
            self.open -= 1
            if future.exception() is None:
                self._count(partition_id, future.result())

    def _on_done(self, partition_id: int, future: Future[int]) -> None:
        """On the client's thread: as little as possible."""
        self._done.put((partition_id, future))

    def _settle(self, partition_id: int, future: Future[int]) -> None:
        self.open -= 1
        self._count(partition_id, future.result())

    def _count(self, partition_id: int, transaction_id: int) -> None:
        self.appended += 1
        count = self.partitions.setdefault(partition_id, PartitionCount(first_id=transaction_id))
        count.rows += 1
        count.first_id = min(count.first_id, transaction_id)
        count.last_id = max(count.last_id, transaction_id)
