"""The shell of ``AsyncWaltzClient``: the caller's event loop, and no thread. The application's code runs on it, too."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import Any, Generic, TypeVar

from waltz_ray.client.outbox import Outbox
from waltz_ray.client.requests import AppendCall
from waltz_ray.client.shell import Turn
from waltz_ray.client.time_limits import checked_wait, expire_append, unknown_error
from waltz_ray.config import ClientConfig
from waltz_ray.errors import InvalidInput, WaltzError

__all__ = ["AwaitedFate", "OwnLoop", "check_loop", "check_loop_of_end"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_APPENDS_A_TURN = 128  # begun: some 2 ms


def check_loop(own: asyncio.AbstractEventLoop) -> None:
    """InvalidInput on another loop: what is sent from there would be done, and who awaits it would never hear of it."""
    if asyncio.get_running_loop() is not own:
        raise InvalidInput("a client for coroutines belongs to the loop it was started on; connect another one on this")


def check_loop_of_end(own: asyncio.AbstractEventLoop) -> None:
    """The same of who ends something, which he may do from anywhere once its loop is closed."""
    if not own.is_closed():
        check_loop(own)


class AwaitedFate(Generic[T]):
    """``futures.Fate`` of which somebody awaits ``waiter``, until he no longer wants to know."""

    __slots__ = ("_told", "waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.waiter: asyncio.Future[T] = loop.create_future()
        self._told = False

    async def told_within(self, timeout: float) -> bool:
        """Wait for it; False if that lasts longer than ``timeout`` seconds."""
        try:
            await asyncio.wait([self.waiter], timeout=timeout)
        except asyncio.CancelledError:
            self.waiter.cancel()
            raise
        return self.waiter.done()

    def left_alone(self) -> asyncio.Future[T]:
        """``waiter``, for who may or may not look at it; no exception of it is reported as never retrieved."""
        self.waiter.add_done_callback(lambda waiter: waiter.cancelled() or waiter.exception())
        return self.waiter

    def done(self) -> bool:
        return self._told

    def set_result(self, result: T) -> None:
        self._told = True
        if not self.waiter.done():
            self.waiter.set_result(result)

    def set_exception(self, exception: BaseException) -> None:
        self._told = True
        if isinstance(
            exception, StopIteration
        ):  # asyncio's futures take none before Python 3.12; as coroutines raise it
            cause, exception = exception, RuntimeError("the context raised StopIteration")
            exception.__cause__ = cause
        if not self.waiter.done():
            self.waiter.set_exception(exception)


class OwnLoop:
    """The shell of ``AsyncWaltzClient`` (``shell.Shell``): the loop that runs now, from construction until ``stop``."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._offers: set[asyncio.Task[None]] = set()  # attempts of contexts that wait for room
        self.loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._stopped = self._contexts_stopped = self._driving_stopped = False
        self._turn: Turn = lambda: None
        self._next_turn: asyncio.Handle | None = None
        self._rung = False
        self._appends_begun = 0  # in this turn of the loop
        self._appends_later: deque[asyncio.Future[None]] = deque()
        self._let_go = False  # some of those have just been, and have not begun yet

    def jitter(self) -> float:
        return random.uniform(0.5, 1.0)

    def post(self, function: Callable[..., object], *args: object) -> None:
        """From any thread: a directory speaks from one of its own."""
        if self._stopped:
            return
        with suppress(RuntimeError):  # a loop that has been closed before its client
            if get_ident() == self._thread:  # nearly always; to wake the loop costs two system calls
                self.loop.call_soon(self._call, function, args)
            else:
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

    def before_append(self) -> asyncio.Future[None] | None:
        """What an append awaits first: None, unless this turn of the loop has begun enough of them.

        A thousand tasks that begin to append in one turn would hold up everybody else for as long as that takes.
        """
        if self._appends_begun < _APPENDS_A_TURN and not self._others_wait:
            if not self._appends_begun:
                self.loop.call_soon(self._next_appends)
            self._appends_begun += 1
            return None
        return self._in_its_turn()

    def before_many(self) -> asyncio.Future[None] | None:
        """The same for many at once: None, unless appends wait that were called before."""
        return self._in_its_turn() if self._others_wait else None

    @property
    def _others_wait(self) -> bool:
        """Appends that were called before have not begun."""
        return self._let_go or bool(self._appends_later)

    def _in_its_turn(self) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._appends_later.append(waiter)
        return waiter

    def _next_appends(self) -> None:
        self._appends_begun, self._let_go = 0, False  # their tasks have run since the turn before
        if not self._appends_later:
            return
        while self._appends_later and self._appends_begun < _APPENDS_A_TURN:
            waiter = self._appends_later.popleft()
            if not waiter.done():  # else it has been cancelled
                waiter.set_result(None)
                self._appends_begun, self._let_go = self._appends_begun + 1, True
        self.loop.call_soon(self._next_appends)

    async def offer(self, outbox: Outbox, append: AppendCall, timeout: float | None = None) -> None:
        """Wait for room; PartitionNotReady if that lasts longer than ``mount_timeout_ms``.

        OutboxFull after ``timeout`` seconds, if they are given.
        """
        if outbox.offer(append):
            return
        taken: asyncio.Future[None] = self.loop.create_future()
        outbox.stand_in_line(append, partial(_settle, taken))
        limit_s = self._config.mount_timeout_ms / 1000 if timeout is None else timeout
        timer = self.loop.call_later(limit_s, self._give_up, outbox, append, taken, timeout)
        try:
            await taken
        except asyncio.CancelledError:
            if not outbox.leave_line(append):  # taken at the last moment
                outbox.withdraw(append)
            raise
        finally:
            timer.cancel()

    @staticmethod
    def _give_up(outbox: Outbox, append: AppendCall, taken: asyncio.Future[None], timeout: float | None) -> None:
        if outbox.leave_line(append):
            _settle(taken, outbox.no_room_error() if timeout is None else outbox.full_error(timeout))

    async def sent(self, outbox: Outbox, append: AppendCall, fate: AwaitedFate[T], timeout: float | None) -> T:
        """Send it, wait for its fate, and say what that is; within ``timeout`` seconds, if they are given."""
        timeout = checked_wait(timeout)
        end_s = 0.0 if timeout is None else self.monotonic() + timeout
        try:
            await self.offer(outbox, append, timeout)
        except BaseException:
            fate.waiter.cancel()  # or asyncio logs what becomes of it, if it was taken at the last moment
            raise
        if timeout is None:
            return await self.told(outbox, append, fate)
        return await self.told(outbox, append, fate, (timeout, max(0.0, end_s - self.monotonic())))

    async def told(
        self, outbox: Outbox, append: AppendCall, fate: AwaitedFate[T], limit: tuple[float, float] | None = None
    ) -> T:
        """The fate. ``limit``: the time-out that was given, and what is left of it, in seconds."""
        try:
            if limit is None or await fate.told_within(limit[1]):
                return await fate.waiter
        except asyncio.CancelledError:
            outbox.withdraw(append)
            raise
        error = expire_append(outbox, append, limit[0])
        if error is not None:
            fate.waiter.cancel()
            raise error
        raise unknown_error("the append", limit[0], fate.left_alone(), outbox.why)

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


def _settle(taken: asyncio.Future[None], error: WaltzError | None) -> None:
    if taken.done():
        return  # who waited has been cancelled
    if error is None:
        taken.set_result(None)
    else:
        taken.set_exception(error)
