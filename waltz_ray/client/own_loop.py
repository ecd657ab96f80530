"""The shell of ``AsyncWaltzClient``: the caller's event loop, and no thread. The application's code runs on it, too."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from waltz_ray.client.outbox import Outbox
from waltz_ray.client.requests import AppendCall
from waltz_ray.client.shell import Turn
from waltz_ray.config import ClientConfig
from waltz_ray.errors import WaltzError

__all__ = ["AwaitedFate", "OwnLoop"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class AwaitedFate(Generic[T]):
    """``futures.Fate`` of which somebody awaits ``waiter``, until he no longer wants to know."""

    __slots__ = ("_told", "waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.waiter: asyncio.Future[T] = loop.create_future()
        self._told = False

    def done(self) -> bool:
        return self._told

    def set_result(self, result: T) -> None:
        self._told = True
        if not self.waiter.done():
            self.waiter.set_result(result)

    def set_exception(self, exception: BaseException) -> None:
        self._told = True
        if not self.waiter.done():
            self.waiter.set_exception(exception)


class OwnLoop:
    """The shell of ``AsyncWaltzClient`` (``shell.Shell``): the loop that runs now, from construction until ``stop``."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._offers: set[asyncio.Task[None]] = set()  # attempts of contexts that wait for room
        self.loop = asyncio.get_running_loop()
        self._stopped = self._contexts_stopped = self._driving_stopped = False
        self._turn: Turn = lambda: None
        self._next_turn: asyncio.Handle | None = None
        self._rung = False

    def jitter(self) -> float:
        return random.uniform(0.5, 1.0)

    def post(self, function: Callable[..., object], *args: object) -> None:
        """From any thread: a directory speaks from one of its own."""
        if not self._stopped:
            with suppress(RuntimeError):  # a loop that has been closed before its client
                self.loop.call_soon_threadsafe(self._call, function, args)

    def _call(self, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self._stopped:
            function(*args)

    def stop(self) -> None:
        """Nothing that is posted happens any more."""
        self._stopped = True

    def run_context(self, function: Callable[..., None], *args: object) -> None:
        self.loop.call_soon(self._run_context, function, args)

    def _run_context(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._contexts_stopped:
            return  # ContextRunner.close() ends the context
        try:
            function(*args)
        except Exception:
            logger.exception("a transaction context's hook has failed")

    def stop_contexts(self) -> None:
        self._contexts_stopped = True

    def drive(self, turn: Turn) -> Callable[[], None]:
        self._turn = turn
        return self._ring

    def stop_driving(self) -> None:
        self._driving_stopped = True
        if self._next_turn is not None:
            self._next_turn.cancel()

    def _ring(self) -> None:
        if self._rung or self._driving_stopped:
            return
        if self._next_turn is not None:
            self._next_turn.cancel()  # it would have been later
        self._rung = True
        self._next_turn = self.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._rung, self._next_turn = False, None
        delay_s = self._turn()
        if delay_s is None or self._rung or self._driving_stopped:
            return
        self._rung = delay_s == 0
        again = self._take_turn
        self._next_turn = self.loop.call_soon(again) if self._rung else self.loop.call_later(delay_s, again)

    # ---- room

    async def offer(self, outbox: Outbox, append: AppendCall) -> None:
        """Wait for room; PartitionNotReady if that lasts longer than ``mount_timeout_ms``."""
        if outbox.offer(append):
            return
        try:
            async with asyncio.timeout(self._config.mount_timeout_ms / 1000):
                while not await self._offered(outbox, append):
                    pass
        except TimeoutError:
            raise outbox.no_room_error() from None

    async def _offered(self, outbox: Outbox, append: AppendCall) -> bool:
        room = asyncio.Event()
        if outbox.offer(append, room.set):
            return True
        try:
            await room.wait()
        finally:
            outbox.give_up(room.set)
        return False

    def put(self, outbox: Outbox, append: AppendCall) -> None:
        """Contexts cannot wait: somebody else does."""
        if not outbox.offer(append):
            task = self.loop.create_task(self._put_later(outbox, append))
            self._offers.add(task)
            task.add_done_callback(self._offers.discard)

    async def _put_later(self, outbox: Outbox, append: AppendCall) -> None:
        try:
            await self.offer(outbox, append)
        except WaltzError as error:
            append.fail(error)

    async def stop_offers(self) -> None:
        """Wait for those that wait for room; closed outboxes have ended them."""
        await asyncio.gather(*self._offers)
