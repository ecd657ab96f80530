"""Contexts that were refused under the same lock stand in line instead of trying all at once.

Of n contexts that want one lock, one can commit in a round trip. If all of them tried again whenever one has
committed, n - 1 would be refused each time: with a thousand of them that was 670 attempts for each commit. So a refused
context takes a place in the line of each of its locks, and only who stands first in all of them tries again. Its place
is given up when it ends, by commit or otherwise.

Places are taken in the order of the lock hashes, so no two contexts wait for each other. This is a matter of speed
between the contexts of one client only: whether a lock is passed is decided by the server, as ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

__all__ = ["LockLines", "Place"]


class Place:
    """One context's places in the lines of its locks; made when an attempt is refused."""

    __slots__ = ("_action", "_held", "_left", "_wanted", "after", "hashes")

    def __init__(self, hashes: Iterable[int], after: int, action: Callable[[], None]) -> None:
        self.hashes = frozenset(hashes)
        self.after = after
        """The last transaction known to have been under one of the locks: to be applied before the next attempt."""
        self._wanted = deque(sorted(self.hashes))  # lines not yet entered, or not yet first in the first of them
        self._held: list[int] = []
        self._left = False
        self._action = action


class LockLines:
    """The lines of one partition. Any thread; actions are called on the thread that makes room for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[int, deque[Place]] = {}  # lock hash -> who holds it, then who waits for it

    def enter(self, place: Place) -> None:
        """Let ``place`` stand in its lines; its action is called when it is first in all, now or later."""
        with self._lock:
            first = not place._left and self._advance(place)
        if first:
            place._action()

    def leave(self, place: Place, transaction_id: int) -> None:
        """Give up a place, also one that still waits; ``transaction_id`` is what it has committed, -1 = nothing."""
        ready: list[Place] = []
        with self._lock:
            place._left = True
            waiting = self._lines.get(place._wanted[0]) if place._wanted else None
            if waiting is not None and place in waiting:
                waiting.remove(place)  # not the first there, so nobody's turn comes by this
            for line_hash in place._held:
                line = self._lines[line_hash]
                line.popleft()
                if not line:
                    del self._lines[line_hash]
                    continue
                line[0].after = max(line[0].after, transaction_id)
                line[0]._held.append(line_hash)
                line[0]._wanted.popleft()
                if self._advance(line[0]):
                    ready.append(line[0])
            place._held.clear()
        for one in ready:
            one._action()

    def _advance(self, place: Place) -> bool:
        """Go as far as there is nobody before it; True if it stands first in all."""
        while place._wanted:
            line = self._lines.setdefault(place._wanted[0], deque())
            line.append(place)
            if len(line) > 1:
                return False
            place._held.append(place._wanted.popleft())
        return True
