"""Where application threads put appends and the IO thread takes batches; what bounds a client.

An append is *open* from ``put`` until ``finish``: its records and bytes count against the limits whether it waits
here, is under way, or waits to be sent again. At the limit ``put`` blocks. One append larger than the limit passes
when nothing else is open.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from waltz_ray.client.requests import Append, Slice
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
        self._queue: deque[Slice] = deque()
        self._open: set[Append] = set()
        self._records = 0
        self._bytes = 0
        self._error: WaltzError | None = None
        self._woken = False
        self.appends = 0
        """Records ever put."""

    def put(self, append: Append) -> None:
        """Queue it; blocks at the limits, PartitionNotReady if that lasts longer than ``mount_timeout_ms``."""
        with self._lock:
            if self._error is None and not self._fits(append):
                self._wait_for_room(append)
            if self._error is not None:
                raise type(self._error)(*self._error.args)
            self._records += append.count
            self._bytes += append.size
            self.appends += append.count
            self._open.add(append)
            self._queue.append(Slice(append, 0, append.count))
        # The IO thread clears the flag before it looks at the queue, so an append is never overlooked.
        if not self._woken:
            self._woken = True
            self._wake()

    def _fits(self, append: Append) -> bool:
        return not self._open or (
            self._records + append.count <= self._config.outstanding_appends
            and self._bytes + append.size <= self._config.outstanding_bytes
        )

    def _wait_for_room(self, append: Append) -> None:
        if not self._may_block():
            raise AppendFailed(
                f"partition {self._partition_id}: {self._records} appends are without a fate, and the thread that "
                f"brings fates cannot wait for one; append from another thread than a future's callback"
            )
        timeout_s = self._config.mount_timeout_ms / 1000
        self._waiters += 1
        try:
            if not self._room.wait_for(lambda: self._error is not None or self._fits(append), timeout_s):
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
        """Slices that wait to be sent."""
        return len(self._queue)

    def awake(self) -> None:
        """The IO thread is about to look; later puts have to wake it again."""
        self._woken = False

    def take(self, max_records: int, max_bytes: int) -> list[Slice]:
        """What goes into the next batch, oldest first; an append that is too large is cut."""
        taken: list[Slice] = []
        while self._queue and max_records > 0:
            one = self._queue[0]
            size = one.size_bytes
            if one.end - one.start > max_records or size > max_bytes:
                if taken and (one.append.offsets is None or max_bytes <= 0):
                    break
                part = one.cut(max_records, max_bytes)
                if taken and part.size_bytes > max_bytes:
                    break
                taken.append(part)
                if part.end == one.end:
                    self._queue.popleft()
                else:
                    self._queue[0] = one._replace(start=part.end)
                break
            taken.append(one)
            self._queue.popleft()
            max_records -= one.end - one.start
            max_bytes -= size
        return taken

    def put_back(self, slices: Iterable[Slice]) -> None:
        """These are known not to be in the log: send them again, before what waits."""
        now = time.monotonic()
        for one in reversed(list(slices)):
            one.append.since = now
            self._queue.appendleft(one)

    def take_older(self, before_s: float) -> list[Append]:
        """Take out the appends that have waited since before this point of the monotonic clock.

        Only whole ones: where a part has been sent, its fate may still be open.
        """
        with self._lock:
            whole = (one for one in self._queue if one.end - one.start == one.append.count)
            old = [one for one in whole if one.append.since < before_s]
            if old:
                gone = set(old)
                self._queue = deque(one for one in self._queue if one not in gone)
        return [one.append for one in old]

    def finish(self, appends: Iterable[Append]) -> None:
        """These have their fates: their room is free."""
        with self._lock:
            for append in appends:
                if append in self._open:
                    self._open.discard(append)
                    self._records -= append.count
                    self._bytes -= append.size
            if self._waiters:
                self._room.notify_all()

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
