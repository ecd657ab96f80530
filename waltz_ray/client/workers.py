"""Threads that run an application's code: a pool for contexts, one that takes turns for callbacks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from waltz_ray.client.shell import Turn

__all__ = ["TurnThread", "WorkerPool"]

logger = logging.getLogger(__name__)

_Call = tuple[Callable[..., object], tuple[object, ...]]


class WorkerPool:
    """At most ``threads`` daemon threads, begun as they are needed. Calls begin in the order in which they came.

    Beside a ``ThreadPoolExecutor`` it costs a fifth for each call: there is no future to be made and none to be set.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most = threads
        self._name = name
        self._lock = threading.Lock()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._under_way = 0  # calls that wait or run
        self._threads: list[threading.Thread] = []
        self._closed = False

    def put(self, function: Callable[..., object], *args: object) -> bool:
        """Call ``function(*args)`` on a thread; what it raises is logged. False: closed, it will not be called.

        RuntimeError, MemoryError: nor will it, since not a single thread can be started.
        """
        with self._lock:
            if self._closed:
                return False
            if len(self._threads) < min(self._under_way + 1, self._most):
                self._begin_thread()
            self._calls.put((function, args))
            self._under_way += 1
        return True

    def _begin_thread(self) -> None:
        """One more, if it can be had: else those that there are do it, and who calls need not hear of it."""
        thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def close(self, wait: bool) -> None:
        """Begin no further call. ``wait`` for those that run, unless this is one of them."""
        with self._lock:
            self._closed = True
            threads = list(self._threads)
        try:
            while True:
                self._calls.get_nowait()
        except Empty:
            pass
        for _ in threads:
            self._calls.put(None)
        if wait and threading.current_thread() not in threads:
            for thread in threads:
                thread.join()

    def _belongs(self) -> bool:
        """This thread is one of those that ``close`` ends, by now: who was starting it may have been interrupted."""
        thread = threading.current_thread()
        with self._lock:
            if thread not in self._threads and not self._closed:
                self._threads.append(thread)
            return thread in self._threads

    def _run(self) -> None:
        if not self._belongs():
            return
        while (call := self._calls.get()) is not None:
            function, args = call
            try:
                function(*args)
            except BaseException:
                logger.exception("a transaction context's hook has failed")
            with self._lock:
                self._under_way -= 1


class TurnThread:
    """A daemon thread that calls ``turn`` whenever it has been rung for, or asked for it (``shell.Turn``)."""

    def __init__(self, turn: Turn, name: str) -> None:
        self._turn = turn
        self._rung = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """This is the thread."""
        return threading.current_thread() is self._thread

    def ring(self) -> None:
        """There is something to do. Any thread."""
        self._rung.set()

    def stop(self) -> None:
        """No further turn; waits for the one that runs, unless that is who calls."""
        self._stopped = True
        self._rung.set()
        if not self.is_current:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            delay_s = self._turn()
            if delay_s != 0:
                self._rung.wait(delay_s)
                self._rung.clear()
