"""What the partitions of one client have to send in one turn of its loop leaves together.

A kv actor writes to several partitions in a turn, and so does whoever appends here and there. Sent one by one, each
append would be a system call, and a turn of its server with a round of its replicas; together they are one of each for
every server. Nothing waits for that: the loop looks as soon as it would have looked for the first one alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

__all__ = ["Rounds", "Ways"]

Look = Callable[[], None]


class Ways(Protocol):
    """The ways out, as far as a round knows them."""

    def hold(self) -> None:
        """Keep small frames back until ``let_go``."""

    def let_go(self) -> None: ...


class Rounds:
    """Of one client. ``ask`` is for any thread; ``post`` calls something on the client's loop, soon."""

    def __init__(self, post: Callable[[Look], None], ways: Ways) -> None:
        self._post = post
        self._ways = ways
        self._looks: deque[Look] = deque()
        self._asked = False

    def ask(self, look: Look) -> None:
        """Have ``look`` called on the loop, soon, with those of others that ask until then."""
        self._looks.append(look)
        if not self._asked:  # it is cleared before the looks are counted, so none is left behind
            self._asked = True
            self._post(self._round)

    def _round(self) -> None:
        self._asked = False
        looks = self._looks
        count = len(looks)  # who asks from now on is in the next round
        if count == 1:
            looks.popleft()()
            return
        self._ways.hold()
        try:
            for _ in range(count):
                looks.popleft()()
        finally:
            self._ways.let_go()
            if looks and not self._asked:  # one has failed, which is a bug; the others are not to wait for ever
                self._asked = True
                self._post(self._round)
