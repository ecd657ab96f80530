"""What is let go of by a task that may be cancelled while it waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["Ending"]


class Ending:
    """The end of something, which comes once and whole: who is cancelled while he waits for it waits no longer, and
    it goes on."""

    def __init__(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._end = end
        self._task: asyncio.Task[None] | None = None

    async def come(self) -> None:
        """Begin it, if nobody has, and wait until it is over. Raises what it raises."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._end())
        await asyncio.shield(self._task)
