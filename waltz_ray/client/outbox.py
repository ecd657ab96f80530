"""Where application threads put appends and the IO thread takes batches; what bounds a client.

An append is *open* from ``put`` until ``forget``. From ``put`` until ``free`` its records and bytes count against the
limits, whether it waits here, is under way, or waits to be sent again. At the limit ``put`` blocks. One append larger
than the limit passes when nothing else counts.

A fate is ``free``, then the future's result, then ``forget``: a callback of the future finds room for the next append,
and whoever looks for open appends misses none whose future has no result yet.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from waltz_ray.client.requests import Append, Batch, ManyAppend, Slice
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendFailed, PartitionNotReady, WaltzError

__all__ = ["Outbox"]


class Outbox:
    """The open appends of one partition. ``put`` and ``open_appends`` for any thread, the rest for the IO thread."""

    def __init__(
        self, partition_id: int, config: ClientConfig, wake: Callable[[], None], may_block: Callable[[], bool]
    ) -> None:
        self._partition_id = partition_id
        self._config = config
        self._wake = wake
        self._may_block = may_block
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiters = 0
        self._queue: deque[Append | Slice] = deque()
        self._open: set[Append] = set()
        self._records = 0
        self._bytes = 0
        self._max_records = config.outstanding_appends
        self._max_bytes = config.outstanding_bytes
        self._error: WaltzError | None = None
        self._woken = False
        self.appends = 0
        """Records ever put."""

    def put(self, append: Append) -> None:
        """Queue it; blocks at the limits, PartitionNotReady if that lasts longer than ``mount_timeout_ms``."""
        count = append.count
        size = len(append.data)
        with self._lock:
            if self._error is None and not self._fits(count, size):
                self._wait_for_room(append)
            if self._error is not None:
                raise type(self._error)(*self._error.args)
            self._records += count
            self._bytes += size
            self.appends += count
            self._open.add(append)
            self._queue.append(append if append.__class__ is Append else _whole(append))
        # The IO thread clears the flag before it looks at the queue, so an append is never overlooked.
        if not self._woken:
            self._woken = True
            self._wake()

    def _fits(self, count: int, size: int) -> bool:
        return not self._records or (
            self._records + count <= self._max_records and self._bytes + size <= self._max_bytes
        )

    def _wait_for_room(self, append: Append) -> None:
        if not self._may_block():
            raise AppendFailed(
                f"partition {self._partition_id}: {self._records} appends are without a fate, and the thread that "
                f"brings fates cannot wait for one; append from another thread than a future's callback"
            )
        count, size, timeout_s = append.count, len(append.data), self._config.mount_timeout_ms / 1000
        self._waiters += 1
        try:
            if not self._room.wait_for(lambda: self._error is not None or self._fits(count, size), timeout_s):
                raise PartitionNotReady(
                    f"partition {self._partition_id}: {self._records} appends ({self._bytes} bytes) are without a fate "
                    f"and none got one within {self._config.mount_timeout_ms} ms; this one was not sent"
                )
        finally:
            self._waiters -= 1
        append.since = time.monotonic()

    def open_appends(self) -> list[Append]:
        """Every append without a fate at this moment."""
        with self._lock:
            return list(self._open)

    @property
    def waiting(self) -> int:
        """Entries that wait to be sent."""
        return len(self._queue)

    def look_later(self) -> None:
        """The IO thread will look before it does anything else: puts need not wake it."""
        self._woken = True

    def awake(self) -> None:
        """The IO thread is about to look; later puts have to wake it again."""
        self._woken = False

    def take(self, max_records: int, max_bytes: int) -> Batch | None:
        """What goes into the next batch, oldest first; an append that is too large is cut. None: nothing may go."""
        taken: list[Append | Slice] = []
        queue, count, plain = self._queue, 0, True
        while queue and count < max_records:
            one = queue[0]
            size, records = one.size_bytes, 1 if one.__class__ is Append else one.end - one.start  # type: ignore[union-attr]
            if count + records > max_records or size > max_bytes:
                part = self._take_part(one, max_records - count, max_bytes, not taken)
                if part is not None:
                    taken.append(part)
                    count += 1 if isinstance(part, Append) else part.end - part.start
                    plain = plain and isinstance(part, Append)
                break
            taken.append(one)
            queue.popleft()
            count += records
            max_bytes -= size
            plain = plain and one.__class__ is Append
        return Batch(taken, count, plain) if taken else None

    def _take_part(self, one: Append | Slice, max_records: int, max_bytes: int, first: bool) -> Append | Slice | None:
        """The part of ``one``, the head of the queue, that fits; of the first at least one record."""
        if isinstance(one, Append):
            if first:
                self._queue.popleft()
            return one if first else None
        if not first and max_bytes <= 0:
            return None
        part = one.cut(max_records, max_bytes)
        if not first and part.size_bytes > max_bytes:
            return None
        if part.end == one.end:
            self._queue.popleft()
        else:
            self._queue[0] = one._replace(start=part.end)
        return part

    def put_back(self, entries: Iterable[Append | Slice]) -> None:
        """These are known not to be in the log: send them again, before what waits."""
        now = time.monotonic()
        for one in reversed(list(entries)):
            _append_of(one).since = now
            self._queue.appendleft(one)

    def take_older(self, before_s: float) -> list[Append]:
        """Take out the appends that have waited since before this point of the monotonic clock.

        Only whole ones: where a part has been sent, its fate may still be open.
        """
        with self._lock:
            whole = (one for one in self._queue if isinstance(one, Append) or one.end - one.start == one.append.count)
            old = [one for one in whole if _append_of(one).since < before_s]
            if old:
                gone = set(old)
                self._queue = deque(one for one in self._queue if one not in gone)
        return [_append_of(one) for one in old]

    def free(self, appends: Iterable[Append]) -> None:
        """These have their fates: their room is for others. Once for each."""
        with self._lock:
            for append in appends:
                if append in self._open:  # else the outbox was closed
                    self._records -= append.count
                    self._bytes -= len(append.data)
            if self._waiters:
                self._room.notify_all()

    def forget(self, appends: Iterable[Append]) -> None:
        """The futures of these have their results."""
        with self._lock:
            self._open.difference_update(appends)

    def close(self, error: WaltzError) -> list[Append]:
        """Every later ``put`` raises ``error``; takes out what is open."""
        with self._lock:
            self._error = error
            left = list(self._open)
            self._open.clear()
            self._queue.clear()
            self._records = self._bytes = 0
            self._room.notify_all()
        return left


def _whole(append: Append) -> Slice:
    assert isinstance(append, ManyAppend)
    return Slice(append, 0, append.count)


def _append_of(one: Append | Slice) -> Append:
    return one if isinstance(one, Append) else one.append
