"""Tasks of a part of a topic actor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

__all__ = ["OwnTasks"]

log = logging.getLogger(__name__)


class OwnTasks:
    """They end with the part. An exception in one of them is a bug of ours, and what it did is not done any more."""

    def __init__(self, who: str) -> None:
        """``who``: for the log."""
        self.broken = ""
        """A bug has ended something that never should: what, for the actor's status."""
        self._who = who
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Have it done. ``what`` is said where it fails."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self.failed(what, error)

        task.add_done_callback(ended)

    def failed(self, what: str, error: BaseException) -> None:
        """Something else than a task has failed, as a timer."""
        self.broken = f"{what}: {error!r}, a bug of this actor; see its log, and restart it"
        log.error("%s: %s", self._who, self.broken, exc_info=error)

    async def stop(self) -> None:
        """End what has not ended. Idempotent."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
