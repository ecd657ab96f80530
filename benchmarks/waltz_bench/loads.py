"""Loads of appends through the public client.

``AppendLoad``: closed loops. Each acknowledgement starts the next call, in the future's callback, on the client's IO
thread: no thread of ours wakes up between two appends, as there is none between two publishes of the peers we
compare with. ``PipelinedLoad``: one thread that appends and does not wait, as an application with much to write.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from waltz_ray.client.client import WaltzClient
from waltz_ray.errors import AppendTimeout

__all__ = ["AppendLoad", "Call", "PipelinedLoad", "batches", "pairs", "payloads", "single_appends"]

Call = Callable[[], "Future[Any]"]
"""Starts one call."""

_LAST_FATES_S = 30.0


def payloads(size_bytes: int, count: int = 256) -> list[bytes]:
    """Random data, so that nothing on the way can make it smaller."""
    return [os.urandom(size_bytes) for _ in range(count)]


def single_appends(client: WaltzClient, partition_id: int, size_bytes: int) -> Call:
    """One append without locks for each call."""
    datas = itertools.cycle(payloads(size_bytes))
    append = client.append
    return lambda: append(partition_id, next(datas))


def batches(client: WaltzClient, partition_id: int, size_bytes: int, records: int) -> Call:
    """One ``append_many`` of ``records`` for each call."""
    datas = payloads(size_bytes)
    batch = [datas[i % len(datas)] for i in range(records)]
    append_many = client.append_many
    return lambda: append_many(partition_id, batch)


def pairs(calls: Sequence[Call], outstanding: int) -> list[Call]:
    """``outstanding`` chains, spread evenly over ``calls``."""
    return [calls[i % len(calls)] for i in range(outstanding)]


class AppendLoad:
    """As many chains as there are entries in ``calls``, each with exactly one call in the air. Use it once."""

    def __init__(self, calls: Sequence[Call], records_per_call: int = 1) -> None:
        self.records_per_call = records_per_call
        self.latencies_s: list[float] = []
        self.failed = threading.Event()
        self.errors: list[BaseException] = []
        self.stopped = False
        self.ended = threading.Semaphore(0)
        self._calls = calls
        self._started = 0

    def start(self) -> None:
        """See ``measure.Load``."""
        for call in self._calls:
            self._started += 1
            _Chain(self, call).next()

    def stop(self) -> None:
        """See ``measure.Load``. AppendTimeout if a call gets no fate: it is lost."""
        self.ending()
        deadline = time.monotonic() + _LAST_FATES_S
        for ended in range(self._started):
            if not self.ended.acquire(timeout=max(0.001, deadline - time.monotonic())):
                raise AppendTimeout(
                    f"{self._started - ended} of {self._started} calls of the load had no fate {_LAST_FATES_S:g} s "
                    f"after its end; look for the reason in the servers' logs"
                )
        if self.errors:
            raise self.errors[0]

    def ending(self) -> None:
        """What is acknowledged from now on starts no successor."""
        self.stopped = True

    def fail(self, error: BaseException) -> None:
        """A chain has ended with this."""
        self.errors.append(error)
        self.failed.set()
        self.ended.release()


class _Chain:
    """One call after the other, without anything being made for each but the call."""

    __slots__ = ("_began", "_call", "_done", "_load")

    def __init__(self, load: AppendLoad, call: Call) -> None:
        self._load = load
        self._call = call
        self._began = 0.0
        self._done = self._ended

    def next(self) -> None:
        self._began = time.perf_counter()
        try:
            self._call().add_done_callback(self._done)
        except BaseException as error:  # noqa: BLE001 - raised by stop(), and nobody hears it in a callback
            self._load.fail(error)

    def _ended(self, future: Future[Any]) -> None:
        took_s = time.perf_counter() - self._began
        error = future.exception()
        if error is not None:
            self._load.fail(error)
            return
        self._load.latencies_s.append(took_s)
        if self._load.stopped:
            self._load.ended.release()
        else:
            self.next()


class PipelinedLoad:
    """``call`` again and again in one thread; the client itself bounds what is outstanding. Use it once."""

    def __init__(self, call: Call) -> None:
        self.records_per_call = 1
        self.latencies_s: list[float] = []
        self.failed = threading.Event()
        self.errors: list[BaseException] = []
        self._call = call
        self._began: deque[float] = deque()  # of the calls without a fate; fates come in the order of the calls
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="pipelined load", daemon=True)

    def start(self) -> None:
        """See ``measure.Load``."""
        self._thread.start()

    def stop(self) -> None:
        """See ``measure.Load``. AppendTimeout if a call gets no fate: it is lost."""
        self._stopped = True
        self._thread.join(_LAST_FATES_S)
        deadline = time.monotonic() + _LAST_FATES_S
        while self._began and not self.errors:
            if time.monotonic() > deadline:
                raise AppendTimeout(f"{len(self._began)} appends of the load had no fate after {_LAST_FATES_S:g} s")
            time.sleep(0.01)  # polling interval
        if self.errors:
            raise self.errors[0]

    def _run(self) -> None:
        call, began, done = self._call, self._began, self._done
        try:
            while not self._stopped and not self.errors:
                began.append(time.perf_counter())
                call().add_done_callback(done)
        except BaseException as error:  # noqa: BLE001 - raised by stop()
            self._fail(error)

    def _done(self, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            self._fail(error)
        self.latencies_s.append(time.perf_counter() - self._began.popleft())

    def _fail(self, error: BaseException) -> None:
        self.errors.append(error)
        self.failed.set()
