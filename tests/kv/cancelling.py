"""A task that is cancelled at each of its awaits in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

__all__ = ["cancelled_after"]


async def cancelled_after(turns: int, work: Coroutine[Any, Any, None]) -> None:
    """``work`` is cancelled after so many turns of the loop, and says so."""
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
