"""Bytes that requests without an answer may have, of all connections of a port together."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Room"]


class Room:
    """``used`` of ``most`` bytes. Who finds it full waits; all who wait are called when it is so no longer."""

    def __init__(self, most: int) -> None:
        self.used = 0
        self.waiting: dict[Callable[[], None], None] = {}
        self._most = most

    @property
    def full(self) -> bool:
        return self.used >= self._most

    def fits(self, size: int) -> bool:
        """Whether there is room for so much, which is taken then."""
        if self.used + size > self._most:
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        """So much is free again."""
        self.used -= size
        if self.waiting and self.used < self._most:
            waiting, self.waiting = self.waiting, {}
            for call in waiting:
                call()
