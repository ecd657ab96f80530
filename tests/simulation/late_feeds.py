"""Feeds of actors that are deaf at times: what they follow comes late. What they append has its fate at once, over
another connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from waltz_ray.client.subscription import FeedItem

__all__ = ["heard_late"]


def heard_late(deaf_for_s: Callable[[], float], put: Callable[[FeedItem], None]) -> Callable[[FeedItem], None]:
    """``put``, while nobody is deaf, and then in the order it came in. ``deaf_for_s``: how long still, 0: it is not."""
    loop, late = asyncio.get_running_loop(), deque[FeedItem]()

    def deliver() -> None:
        deaf_s = deaf_for_s()
        if deaf_s:
            loop.call_later(deaf_s, deliver)
            return
        while late:
            put(late.popleft())

    def taken(item: FeedItem) -> None:
        if late or deaf_for_s():
            late.append(item)
            if len(late) == 1:
                deliver()
        else:
            put(item)

    return taken
