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
from concurrent.futures import Future
from typing import Any, TypeVar

from waltz_ray.client.io_thread import IoThread
from waltz_ray.client.outbox import Outbox
from waltz_ray.client.requests import AppendCall
from waltz_ray.client.shell import Turn
from waltz_ray.client.workers import TurnThread, WorkerPool
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendFailed

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

    def put(self, outbox: Outbox, append: AppendCall) -> None:
        """Blocks at the limits; PartitionNotReady if that lasts longer than ``mount_timeout_ms``."""
        if not outbox.offer(append):
            self.wait_for_room(outbox, append)

    def wait_for_room(self, outbox: Outbox, append: AppendCall) -> None:
        """What ``put`` does when there was none."""
        if self.on_loop:
            raise AppendFailed(
                f"partition {outbox.partition_id}: {outbox.outstanding} appends are without a fate, and the thread "
                f"that brings fates cannot wait for one; append from another thread than a future's callback"
            )
        room = threading.Event()
        end_s = time.monotonic() + self._config.mount_timeout_ms / 1000
        while not outbox.offer(append, room.set):
            if not room.wait(max(0.0, end_s - time.monotonic())):
                outbox.give_up(room.set)
                raise outbox.no_room_error()
            room.clear()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        return self._io.call(coroutine)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop."""
        return self._io.start(coroutine)

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Run ``last`` on the loop as the last thing of this client there, and wait for it."""
        self._io.stop(last)
