"""The IO thread: an event loop (uvloop where it can be imported) that owns the sockets of all clients of a process.

The thread is made with the first client and ends with the last: one thread for a hundred clients, because threads that
take turns at the interpreter's lock cost more than the appends they carry. Each client has its own ``IoThread``, which
waits for and cancels only what that client started there, so one client's end or failure is nothing to the others. What
they share is time: a future's callback that blocks, blocks them all.

The thread is a daemon: a client that is never closed does not keep the interpreter alive. When that ends the thread is
the first that does, and whoever is collected later (``__del__``) waits for nothing here. A forked child begins without
it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from waltz_ray.client.forks import in_forked_child, left_to_parent
from waltz_ray.client.waits import result_of
from waltz_ray.errors import ClientClosed, InvalidInput

__all__ = ["IoThread", "check_elsewhere", "in_io_thread"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WAITS_FOR_ITSELF = "this call waits for the IO thread and was made on it, in a future's callback"


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on every platform; only slower without it
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class _LoopThread:
    """The loop and its thread; ``users`` clients have it."""

    def __init__(self) -> None:
        self.users = 0
        self._ending = False
        self.loop = _new_loop()
        self.thread = threading.Thread(target=self._run, name="waltz-io", daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Cancel what is left, end the thread and wait for it."""
        self._ending = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    def _has_ended(self) -> bool:
        """Run the loop until it is stopped, or something is raised that asyncio lets pass."""
        try:
            self.loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            logger.error("in the IO thread: %r", error, exc_info=error)
            return self._ending
        return True

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._has_ended():
                continue  # an application's codec has called sys.exit, say: who called it is told, and others go on
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


class _Shared:
    """The process's loop thread, while it has users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running: _LoopThread | None = None

    def take(self) -> _LoopThread:
        with self._lock:
            running = self.running
            if running is None or not running.thread.is_alive():
                running = self.running = _LoopThread()
            running.users += 1
        return running

    def give_back(self, running: _LoopThread) -> None:
        with self._lock:
            running.users -= 1
            if running.users:
                return
            if self.running is running:
                self.running = None
        running.end()

    def forget(self) -> None:
        """In a forked child: the thread was not copied, and whoever held the lock neither."""
        self._lock = threading.Lock()
        self.running = None


_shared = _Shared()
in_forked_child(_shared.forget)


def in_io_thread() -> bool:
    """Whether the caller runs in the IO thread of this process."""
    running = _shared.running
    return running is not None and running.thread.ident == threading.get_ident()


def check_elsewhere() -> None:
    """InvalidInput in the IO thread of this process: whoever calls is about to wait for it, or for a lock that is held
    by who does."""
    if in_io_thread():
        raise InvalidInput(_WAITS_FOR_ITSELF)


class IoThread:
    """One client's part of the IO thread, from construction until ``stop``."""

    def __init__(self) -> None:
        self._running = _shared.take()
        self.loop = self._running.loop
        self._thread_id = self._running.thread.ident
        self._lock = threading.RLock()  # a garbage collection while it is held may ``post``: followers do
        self._tasks: set[asyncio.Task[Any]] = set()  # what ``start`` has begun; IO thread only
        self._stopped = self._left_to_parent = False
        left_to_parent(self)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in the IO thread, which must not wait for itself."""
        return threading.get_ident() == self._thread_id

    @property
    def is_parent_s(self) -> bool:
        """Whether this is a forked child of the process that has it: nothing of it is to be let go of here."""
        return self._left_to_parent

    def check_elsewhere(self) -> None:
        """InvalidInput in the IO thread: whoever calls is about to wait for it."""
        if self.is_current:
            raise InvalidInput(_WAITS_FOR_ITSELF)

    def leave_to_parent(self) -> None:
        """In a forked child: nothing happens there, and whoever would wait for it is told so."""
        self._lock = threading.RLock()
        self._stopped = self._left_to_parent = True
        self._thread_id = None

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function(*args)`` on the IO thread, soon; after ``stop`` nothing happens."""
        if threading.get_ident() == self._thread_id:
            if not self._stopped:
                self.loop.call_soon(function, *args)  # the loop is awake: no system call to wake it
            return
        with self._lock:  # the loop may be closed as soon as this client has stopped
            if not self._stopped:
                self.loop.call_soon_threadsafe(function, *args)

    def ask(self, function: Callable[..., object], *args: object) -> None:
        """``post`` for who waits for what comes of it. ClientClosed: nothing would; InvalidInput: the IO thread would
        wait for itself."""
        self.check_elsewhere()
        with self._lock:
            if self._stopped:
                raise ClientClosed("the client is closed; connect again")
            self.loop.call_soon_threadsafe(function, *args)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there."""
        if sys.is_finalizing():
            coroutine.close()
            raise ClientClosed("the interpreter ends, and the client with it")
        with self._lock:
            if self._stopped:
                coroutine.close()
                raise ClientClosed("the client is closed; connect again")
            return asyncio.run_coroutine_threadsafe(self._own(coroutine), self.loop)

    def start_elsewhere(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """``start`` for who waits for what comes of it. InvalidInput: the IO thread would wait for itself."""
        try:
            self.check_elsewhere()
        except InvalidInput:
            coroutine.close()
            raise
        return self.start(coroutine)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for its result."""
        future = self.start_elsewhere(coroutine)
        return self.result(future)

    def call_interruptibly(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """``call``, and who is interrupted while he waits leaves nothing behind: it is cancelled."""
        future = self.start_elsewhere(coroutine)
        try:
            return self.result(future)
        except BaseException:
            future.cancel()
            raise

    @staticmethod
    def result(future: Future[T]) -> T:
        """The result of ``start``; ClientClosed if the client was closed meanwhile."""
        try:
            return result_of(future)
        except CancelledError:
            raise ClientClosed("the client was closed while it waited for an answer") from None

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel what ``start`` has begun, run ``last``, and wait for both; the last client ends the thread."""
        if self._left_to_parent or sys.is_finalizing():
            last.close()
            return
        try:  # from here on: a signal may come before it waits
            with self._lock:
                self._stopped = True
                finished = asyncio.run_coroutine_threadsafe(self._end(last), self.loop)
            result_of(finished)
        finally:
            self._thread_id = None  # another thread may get that number
            _shared.give_back(self._running)

    async def _own(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await coroutine
        finally:
            self._tasks.discard(task)

    async def _end(self, last: Coroutine[Any, Any, None]) -> None:
        # Every task of ``start`` has taken its first step: the loop runs first come, first served.
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await last
