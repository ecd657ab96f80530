"""Which servers a client leaves alone for a while, and which it takes. Pure; the time is given in.

Two reasons, as in the protocol's own clients:

- more than 5 failures of the link within 60 s: the address is shielded for 30 minutes. Never more than 30 addresses at
  once, nor more than 30 % of those known (rounded, so that one of three may be), or a fault of the client's own network
  would leave it nobody. A success ends it and forgets the failures.
- the server has answered 503: that server is shielded for 50 s, however many there are of these; it has said so itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

__all__ = ["FAILURES", "SHIELD_MS", "UNAVAILABLE_MS", "WITHIN_MS", "LinkQuality", "is_bad", "most_shielded"]

FAILURES = 5
WITHIN_MS = 60_000
SHIELD_MS = 1_800_000
UNAVAILABLE_MS = 50_000

_MOST, _PERCENT = 30, 30


def is_bad(failures: int) -> bool:
    """Whether so many failures within a minute are too many."""
    return failures > FAILURES


def most_shielded(known: int) -> int:
    """How many of the known addresses may be shielded for their failures at once."""
    return min(_MOST, round(known * _PERCENT / 100))


class LinkQuality:
    """Of the servers that one client knows, by address; what is not known to it is forgotten, so it stays small."""

    def __init__(self) -> None:
        self._failures: dict[str, deque[int]] = {}
        self._shielded: dict[str, int] = {}
        self._unavailable: dict[str, int] = {}

    def know(self, addresses: Iterable[str]) -> None:
        """These are the servers there are now, and no others."""
        before = self._failures
        self._failures = {address: before.get(address, deque(maxlen=FAILURES + 1)) for address in addresses}
        for times in (self._shielded, self._unavailable):
            for address in times.keys() - self._failures.keys():
                del times[address]

    def failed(self, address: str, now_ms: int) -> None:
        """A connection could not be opened, broke, or a call was not answered in time."""
        failures = self._failures.get(address)
        if failures is None:
            return
        failures.append(now_ms)
        while failures[0] <= now_ms - WITHIN_MS:
            failures.popleft()
        self._let_go(now_ms)
        if is_bad(len(failures)) and (
            address in self._shielded or len(self._shielded) < most_shielded(len(self._failures))
        ):
            self._shielded[address] = now_ms + SHIELD_MS

    def answered(self, address: str) -> None:
        """It works: nothing is held against the link any more. What a 503 has said stays."""
        self._shielded.pop(address, None)
        if failures := self._failures.get(address):
            failures.clear()

    def unavailable(self, address: str, now_ms: int) -> None:
        """It has answered 503."""
        if address in self._failures:
            self._unavailable[address] = now_ms + UNAVAILABLE_MS

    def free_at_ms(self, address: str, now_ms: int) -> int:
        """When it may be used again: ``now_ms``, or when its shield ends."""
        return max(now_ms, self._shielded.get(address, now_ms), self._unavailable.get(address, now_ms))

    def best(self, addresses: Iterable[str], now_ms: int) -> str | None:
        """Of ``addresses`` the one to use: that is not shielded, has failed least in the last minute, and stands first
        among equals, so that whoever gives them in turns spreads the load. None: all are shielded."""
        free = [each for each in addresses if self.free_at_ms(each, now_ms) <= now_ms]
        return min(free, key=lambda each: self._recent(each, now_ms), default=None)

    def next_free_ms(self, addresses: Iterable[str], now_ms: int) -> int | None:
        """When the first of them may be used; None if there are none."""
        return min((self.free_at_ms(each, now_ms) for each in addresses), default=None)

    def shielded(self, now_ms: int) -> list[str]:
        """Which must not be used now, for either reason."""
        self._let_go(now_ms)
        return sorted(self._shielded.keys() | self._unavailable.keys())

    def _recent(self, address: str, now_ms: int) -> int:
        return sum(at > now_ms - WITHIN_MS for at in self._failures.get(address, ()))

    def _let_go(self, now_ms: int) -> None:
        for times in (self._shielded, self._unavailable):
            for address in [address for address, until in times.items() if until <= now_ms]:
                del times[address]
