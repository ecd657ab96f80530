"""Virtual time, and one event loop per simulated process.

``Scheduler`` owns the only clock and the only source of chance: everything that happens is an entry of its heap, so
the same seed gives the same history. ``ProcessLoop`` is what asyncio code of one process runs on: first in, first out
within a process as asyncio promises, in an order drawn from the seed between processes. A process can be paused (its
clock goes on, nothing of it runs), can have a clock that jumps, and can end: then nothing of it ever runs again.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tests.simulation.network import Network

__all__ = ["ProcessLoop", "Scheduler", "new_loop", "note"]

T = TypeVar("T")

_TURN_S = (2e-6, 120e-6)  # from being woken to running, between processes
_CALL_S = (0.0002, 0.004)  # a blocking call in another thread, there and back


class Scheduler:
    """``now`` in seconds since the start. ``failure``: the first exception nobody caught."""

    def __init__(self, random: Random) -> None:
        self.now = 0.0
        self.random = random
        self.current: ProcessLoop | None = None
        self.failure: BaseException | None = None
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> None:
        """Call at ``now + delay_s``; entries of one moment run in the order they were made."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, call, arguments))

    def run(self, until_s: float, done: Callable[[], bool] | None = None) -> None:
        """Until that moment, or until ``done`` (asked about every 50 ms of simulated time), or the first failure."""
        ask_at = self.now
        while self._heap and self._heap[0][0] <= until_s:
            moment, _, call, arguments = heapq.heappop(self._heap)
            self.now = moment
            call(*arguments)
            if self.failure is not None:
                raise self.failure
            if done is not None and moment >= ask_at:
                if done():
                    return
                ask_at = moment + 0.05
        self.now = max(self.now, until_s)

    def fail(self, error: BaseException) -> None:
        self.failure = self.failure or error


class ProcessLoop(asyncio.AbstractEventLoop):
    """The loop of one process; see the module's docstring."""

    def __init__(self, scheduler: Scheduler, network: Network, name: str) -> None:
        self.name = name
        self.scheduler = scheduler
        self.network = network
        self.paused = False
        self.dead = False
        self.clock_offset_s = 0.0
        self.slow_calls_s = 0.0
        """Added to every call in another thread."""
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = 0
        self._wake_at = float("inf")
        self._wake_number = 0
        self._tasks: list[asyncio.Task[Any]] = []

    # ---- what the world does to it ------------------------------------------------------------------------

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._wake(0.0)

    def kill(self) -> None:
        """Nothing of this process runs any more; ``bury`` closes what it left, at the end of the history."""
        self.dead = True
        self._ready.clear()
        self._timers.clear()

    def jump(self, seconds: float) -> None:
        """The process's clock jumps forward: its timers are due earlier."""
        self.clock_offset_s += seconds
        self._wake(0.0)

    def bury(self) -> None:
        """Close the coroutines of tasks that never ended; what their clean-up orders goes nowhere."""
        self.kill()
        events._set_running_loop(self)
        try:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    coroutine = task.get_coro()
                    assert coroutine is not None
                    coroutine.close()
        finally:
            events._set_running_loop(None)
        self._tasks.clear()

    # ---- running ------------------------------------------------------------------------------------------

    def _wake(self, delay_s: float) -> None:
        moment = self.scheduler.now + delay_s
        if moment < self._wake_at and not self.dead and not self.paused:
            self._wake_at = moment
            self._wake_number += 1
            self.scheduler.after(delay_s, self._turn, self._wake_number)

    def _turn(self, number: int) -> None:
        if number != self._wake_number or self.dead or self.paused:
            if number == self._wake_number:
                self._wake_at = float("inf")
            return
        self._wake_at = float("inf")
        now = self.time()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled():
                self._ready.append(timer)
        self.enter(self._run_ready)
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if self._ready:
            self._wake(self._turn_s())
        elif self._timers:
            self._wake(max(0.0, self._timers[0][0] - self.time()))

    def _run_ready(self) -> None:
        for _ in range(len(self._ready)):
            if self.dead or self.paused or self.scheduler.failure is not None:
                return
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()

    def enter(self, call: Callable[[], T]) -> T:
        """Run ``call`` as code of this process, between two turns of its loop."""
        before, outer = self.scheduler.current, events._get_running_loop()
        self.scheduler.current = self
        events._set_running_loop(self)
        try:
            return call()
        finally:
            events._set_running_loop(outer)
            self.scheduler.current = before

    def _turn_s(self) -> float:
        return self.scheduler.random.uniform(*_TURN_S)

    # ---- asyncio.AbstractEventLoop, as far as the code under test uses it ----------------------------------

    def time(self) -> float:
        return self.scheduler.now + self.clock_offset_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.dead:
            self._ready.append(handle)
            self._wake(self._turn_s())
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.dead:
            self._timers_made += 1
            heapq.heappush(self._timers, (when, self._timers_made, timer))
            self._wake(max(0.0, when - self.time()))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays in the heap until it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        given: dict[str, Any] = {} if context is None else {"context": context}  # which Python 3.10 does not know
        task = asyncio.Task(coro, loop=self, name=name or "task", **given)
        if len(self._tasks) > 200:
            self._tasks = [one for one in self._tasks if not one.done()]
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.dead:
            return
        error = context.get("exception")
        if not isinstance(error, BaseException):
            error = RuntimeError(str(context.get("message")))
        note(error, f"in {self.name}: {context.get('message')}")
        self.scheduler.fail(error)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """The call takes place after a while, its result arrives a while later."""
        future: asyncio.Future[T] = self.create_future()
        random = self.scheduler.random

        def call() -> None:
            if self.dead:
                return
            if self.paused:  # a stopped process's threads are stopped too
                self.scheduler.after(0.01, call)
                return
            result: T | None = None
            problem: Exception | None = None
            try:
                result = self.enter(lambda: func(*args))
            except Exception as error:  # noqa: BLE001 - handed over, as an executor does
                problem = error
            self.scheduler.after(random.uniform(*_CALL_S) + self.slow_calls_s / 2, answer, result, problem)

        def answer(result: T, problem: Exception | None) -> None:
            self.call_soon(settle, result, problem)

        def settle(result: T, problem: Exception | None) -> None:
            if future.cancelled():
                return
            if problem is not None:
                future.set_exception(problem)
            else:
                future.set_result(result)

        self.scheduler.after(random.uniform(*_CALL_S) + self.slow_calls_s / 2, call)
        return future

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, ssl: None = None
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self.network.connect(self, protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, ssl: None = None
    ) -> Any:
        return self.network.listen(self, protocol_factory, host, port)


def new_loop(scheduler: Scheduler, network: Network, name: str) -> ProcessLoop:
    """Of ``AbstractEventLoop`` it has what the code under test uses; the rest raises NotImplementedError."""
    return ProcessLoop(scheduler, network, name)  # type: ignore[abstract]


def note(error: Any, text: str) -> None:
    """``error.add_note(text)``, also in Python 3.10."""
    error.__notes__ = [*getattr(error, "__notes__", ()), text]
