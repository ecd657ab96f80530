"""What several users of one event loop have together, made for the first of them and ended after the last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Held", "SharedByLoop"]

T = TypeVar("T")


class Held(Generic[T]):
    """One of them, and how many use it."""

    __slots__ = ("users", "what")

    def __init__(self, what: T) -> None:
        self.what = what
        self.users = 0


class SharedByLoop(dict[tuple[asyncio.AbstractEventLoop, Hashable], list[Held[T]]]):
    """By loop, and by what users must have in common; an entry is there while it has users, and its loop's alone."""

    def take(self, key: Hashable, make: Callable[[], T], most: int) -> T:
        """One that has fewer than ``most`` users on the loop that runs, or a new one; to be left once."""
        for place in list(self):  # at once: loops of other threads come and go meanwhile
            if place[0].is_closed():
                self.pop(place, None)  # of users that never left
        those = self.setdefault((asyncio.get_running_loop(), key), [])
        held = next((one for one in those if one.users < most), None)
        if held is None:
            held = Held(make())
            those.append(held)
        held.users += 1
        return held.what

    def leave(self, key: Hashable, what: T) -> bool:
        """Whether it was the last user, on the loop that runs: then it is nobody's, and to be ended."""
        place = asyncio.get_running_loop(), key
        those = self[place]
        held = next(one for one in those if one.what is what)
        held.users -= 1
        if held.users:
            return False
        those.remove(held)
        if not those:
            del self[place]
        return True
