"""The one IO thread of a client: an event loop (uvloop where it can be imported) that owns all its sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from waltz_ray.errors import ClientClosed, InvalidInput

__all__ = ["IoThread"]

T = TypeVar("T")


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on every platform; only slower without it
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class IoThread:
    """Runs from construction until ``stop``."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="waltz-io", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """This is the IO thread: it must not wait for itself."""
        return threading.current_thread() is self._thread

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function(*args)`` on the IO thread; after ``stop`` nothing happens."""
        with self._lock:
            if not self._stopped:
                self.loop.call_soon_threadsafe(function, *args)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there."""
        with self._lock:
            if self._stopped:
                coroutine.close()
                raise ClientClosed("the client is closed; connect again")
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for its result."""
        if self.is_current:
            coroutine.close()
            raise InvalidInput("this call waits for the IO thread and was made on it, in a future's callback")
        return self.result(self.start(coroutine))

    @staticmethod
    def result(future: Future[T]) -> T:
        """The result of ``start``; ClientClosed if the client was closed meanwhile."""
        try:
            return future.result()
        except CancelledError:
            raise ClientClosed("the client was closed while it waited for an answer") from None

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Run ``last``, cancel everything else, end the thread and wait for it."""
        finished = asyncio.run_coroutine_threadsafe(last, self.loop)
        try:
            finished.result()
        finally:
            with self._lock:
                self._stopped = True
                self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
