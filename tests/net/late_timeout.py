"""``compat.timeout`` as Python 3.10 may have it for a task that is cancelled in the turn in which its time is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from waltz_ray import compat

__all__ = ["cancelled_as_time_is_over"]


def cancelled_as_time_is_over(patch: pytest.MonkeyPatch) -> list[float | None]:
    """From now on the first that is cancelled is told of the time only. What time that was is in the list then."""
    told: list[float | None] = []

    @asynccontextmanager
    async def over(delay: float | None) -> AsyncIterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            if told:
                raise
            told.append(delay)
            raise TimeoutError from None

    patch.setattr(compat, "timeout", over)
    return told
