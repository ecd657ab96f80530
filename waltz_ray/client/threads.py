"""The shell of ``WaltzClient``: the IO thread, one thread for callbacks, a pool for contexts.

::

    application's threads --offer, ring--> IO thread (of all clients) --deliver, ring--> apply thread
             ^                               |      ^                                       |
             +------- room, futures ---------+      +--------- credit, rewinds -------------+
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, TimeoutError  # in Python 3.10 it is not the builtin one
from functools import partial
from typing import Any, TypeVar

from waltz_ray.client.io_thread import IoThread
from waltz_ray.client.outbox import Outbox
from waltz_ray.client.requests import AppendCall
from waltz_ray.client.shell import Turn
from waltz_ray.client.waits import result_of
from waltz_ray.client.workers import TurnThread, WorkerPool
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendFailed, WaltzError

__all__ = ["Threads"]

T = TypeVar("T")

_CONTEXT_THREADS = "waltz-context"


class Threads:
    """The shell of one ``WaltzClient`` (``shell.Shell``), from construction until ``stop``."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._pool = WorkerPool(config.context_threads, _CONTEXT_THREADS)
        self._apply: TurnThread | None = None
        self._io = IoThread()
        self.post = self._io.post

    # ---- Shell

    monotonic = staticmethod(time.monotonic)  # called for each append

    def jitter(self) -> float:
        return random.uniform(0.5, 1.0)

    def run_context(self, function: Callable[..., None], *args: object) -> None:
        self._pool.put(function, *args)  # if that is closed, ContextRunner.close() ends the context

    def stop_contexts(self) -> None:
        """Waits, unless a context calls: that of another client may be waiting for this one's in turn."""
        self._pool.close(wait=not threading.current_thread().name.startswith(_CONTEXT_THREADS))

    def drive(self, turn: Turn) -> Callable[[], None]:
        self._apply = TurnThread(turn, "waltz-apply")
        return self._apply.ring

    def stop_driving(self) -> None:
        if self._apply is not None:
            self._apply.stop()

    # ---- the application's threads

    @property
    def on_loop(self) -> bool:
        """Whether the caller runs in the thread that brings fates and answers, which must not wait for any."""
        return self._io.is_current

    @property
    def on_applying(self) -> bool:
        """This is the thread that runs callbacks: it must not wait for what is applied."""
        return self._apply is not None and self._apply.is_current

    def put(self, outbox: Outbox, append: AppendCall) -> None:
        """Blocks at the limits; PartitionNotReady if that lasts longer than ``mount_timeout_ms``."""
        if not outbox.offer(append):
            self.wait_for_room(outbox, append)

    def wait_for_room(self, outbox: Outbox, append: AppendCall, timeout: float | None = None) -> None:
        """What ``put`` does when there was none. OutboxFull after ``timeout`` seconds, if they are given."""
        if self.on_loop:
            if outbox.offer(append, ahead=True):  # the loop must not wait; who stands in line may
                return
            raise AppendFailed(
                f"partition {outbox.partition_id}: {outbox.outstanding} appends are without a fate, and the thread "
                f"that brings fates cannot wait for one; append from another thread than a future's callback"
            )
        taken: Future[None] = Future()
        try:
            outbox.stand_in_line(append, partial(_settle, taken))
            result_of(taken, self._config.mount_timeout_ms / 1000 if timeout is None else timeout)
        except TimeoutError:
            if outbox.leave_line(append):
                raise (outbox.no_room_error() if timeout is None else outbox.full_error(timeout)) from None
            taken.result()  # at the last moment
        except BaseException:  # KeyboardInterrupt: who waited believes that it was not sent
            if not outbox.leave_line(append):
                outbox.take_back(append)
            raise

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        return self._io.call(coroutine)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop."""
        return self._io.start(coroutine)

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Run ``last`` on the loop as the last thing of this client there, and wait for it."""
        self._io.stop(last)


def _settle(taken: Future[None], error: WaltzError | None) -> None:
    if error is None:
        taken.set_result(None)
    else:
        taken.set_exception(error)
