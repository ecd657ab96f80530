"""What is opened by a call that blocks, for a task that may be cancelled while it waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["opened"]

T = TypeVar("T")


async def opened(make: Callable[[], T], close: Callable[[T], object]) -> T:
    """What ``make`` returns, called in the loop's executor.

    Who is cancelled meanwhile gets nothing, and nothing is left behind: the call goes on in its thread, and what comes
    of it is given to ``close``, in a thread, too.
    """
    opening = _Opening(make, close)
    try:
        return await asyncio.to_thread(opening.run)
    except asyncio.CancelledError:
        if opening.leave():
            asyncio.get_running_loop().run_in_executor(None, opening.end)
        raise


class _Opening(Generic[T]):
    """One call of ``opened``."""

    def __init__(self, make: Callable[[], T], close: Callable[[T], object]) -> None:
        self._make, self._close = make, close
        self._lock = threading.Lock()
        self._made: list[T] = []
        self._left = False

    def run(self) -> T:
        made = self._make()
        with self._lock:
            self._made.append(made)
            left = self._left
        if left:
            self.end()
        return made

    def leave(self) -> bool:
        """Nobody waits any more. True: it is there, and somebody has to ``end`` it."""
        with self._lock:
            self._left = True
            return bool(self._made)

    def end(self) -> None:
        self._close(self._made[0])
