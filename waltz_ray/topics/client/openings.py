"""What several wait for while it is being opened: a connection, the log of a topic."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from waltz_ray.errors import ClientClosed

__all__ = ["CLOSED", "outcome_of"]

T = TypeVar("T")

CLOSED = "the client of topics is closed; connect again"


async def outcome_of(opening: asyncio.Task[T]) -> T:
    """What it gives or raises. ClientClosed if it was cancelled: only closing the client does that.

    Whoever is cancelled while it waits here leaves it alone: the others go on waiting.
    """
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        if opening.cancelled():
            raise ClientClosed(CLOSED) from None
        opening.add_done_callback(_looked_at)  # perhaps nobody else waits, and asyncio would log why it failed
        raise


def _looked_at(opening: asyncio.Task[T]) -> None:
    if not opening.cancelled():
        opening.exception()
