"""Appends that never end: what clients feel of an event is how long their next commits take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import perf_counter

from waltz_bench.clients import READY_S
from waltz_ray.client.client import WaltzClient
from waltz_ray.errors import DataUnavailable

__all__ = ["PARTITIONS", "Note", "SteadyAppends", "felt_s", "wait_for_commits"]

PARTITIONS = 4
_POLL_S = 0.01

Note = Callable[[int, int, float], None]
"""Told of each commit: partition, transaction ID, and when the client knew (``perf_counter``). In its IO thread."""


class SteadyAppends:
    """Keeps ``outstanding`` appends of ``size_bytes`` of a client under way in each partition."""

    def __init__(self, client: WaltzClient, outstanding: int, size_bytes: int, note: Note | None = None) -> None:
        self.commits = [0] * PARTITIONS
        self.failures: list[str] = []
        self._client, self._data, self._note = client, b"." * size_bytes, note
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        self._stopping = False
        self._open = 0
        self._last = [perf_counter()] * PARTITIONS
        self._longest = 0.0
        for partition_id in range(PARTITIONS):
            for _ in range(outstanding):
                self._append(partition_id)

    def _append(self, partition_id: int) -> None:
        with self._lock:
            if self._stopping:
                return
            self._open += 1
        self._client.append(partition_id, self._data).add_done_callback(lambda done: self._done(partition_id, done))

    def _done(self, partition_id: int, future: Future[int]) -> None:
        now, error = perf_counter(), future.exception()
        with self._lock:
            if error is not None:
                self.failures.append(f"{type(error).__name__}: {error}")
            else:
                self.commits[partition_id] += 1
                self._longest = max(self._longest, now - self._last[partition_id])
                self._last[partition_id] = now
            self._open -= 1
            self._drained.notify_all()
        if error is None and self._note is not None:
            self._note(partition_id, future.result(), now)
        self._append(partition_id)

    def felt_s(self) -> float:
        """The longest time without a commit in some partition since this was asked last."""
        now = perf_counter()
        with self._lock:
            longest = max(self._longest, *(now - last for last in self._last))
            self._longest = 0.0
            return longest

    def end(self) -> None:
        """No further appends; waits for those under way."""
        with self._lock:
            self._stopping = True
            if not self._drained.wait_for(lambda: not self._open, READY_S):
                raise DataUnavailable(f"{self._open} appends have no fate {READY_S:g} s after the last event")


def felt_s(appends: Sequence[SteadyAppends]) -> float:
    """By the client that felt the most, since this was asked last."""
    return max(each.felt_s() for each in appends)


def wait_for_commits(appends: Sequence[SteadyAppends]) -> None:
    """Until each client has committed something in each partition after now: what is felt is not over before.

    DataUnavailable.
    """
    before, until_s = [list(each.commits) for each in appends], perf_counter() + READY_S
    pause = threading.Event()
    while any(
        now == then
        for each, counts in zip(appends, before, strict=True)
        for now, then in zip(each.commits, counts, strict=True)
    ):
        if perf_counter() > until_s:
            raise DataUnavailable(f"a client has committed nothing for {READY_S:g} s after an event; see waltz status")
        pause.wait(_POLL_S)
