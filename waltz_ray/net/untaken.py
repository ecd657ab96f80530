"""What all peers of a port have been sent and have not taken, together: each alone is bounded, but there are thousands.

Beyond the bound a peer that has more than its share is sent no more. Who reads what it asks for has none of it, so
nothing is refused to anybody else for the sake of those who do not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from typing import Protocol

__all__ = ["Untaken"]

_COUNT_S = 0.01  # between two counts of thousands of peers
_SMALL = 1024  # an ack: of these there are no more than what a peer may ask for at once, and they are not counted


class Peer(Protocol):
    """One of the port's connections."""

    @property
    def unsent_bytes(self) -> int: ...


class Untaken:
    """``most_bytes`` of all ``peers``; for one thread."""

    def __init__(self, most_bytes: int, peers: Callable[[], Collection[Peer]]) -> None:
        self._most, self._peers = most_bytes, peers
        self._bytes = 0  # at the most: what was taken since the last count is in it
        self._counted_s = -math.inf

    def allows(self, size_bytes: int, own_bytes: int) -> bool:
        """Whether a peer that has, or would have, ``own_bytes`` unsent may be sent ``size_bytes`` more; they count, but
        for small ones."""
        if size_bytes <= _SMALL:
            return True
        if self._bytes + size_bytes > self._most:
            self._count()
            if self._bytes + size_bytes > self._most and own_bytes > self._most // max(1, len(self._peers())):
                return False
        self._bytes += size_bytes
        return True

    def _count(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._counted_s + _COUNT_S:
            self._counted_s = now_s
            self._bytes = sum([peer.unsent_bytes for peer in self._peers()])
