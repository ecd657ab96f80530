"""How many connections an endpoint has at one time, in all and from one address (docs/wire.md, "Limits")."""

from __future__ import annotations

import logging
from collections import Counter

from waltz_ray.runtime.seldom import Few, Seldom

__all__ = ["ConnectionLimit"]

log = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0


class ConnectionLimit:
    """``most`` in all, ``most_of_one`` from one address. For one thread at a time."""

    def __init__(self, name: str, most: int, most_of_one: int) -> None:
        self._name, self._most, self._most_of_one = name, most, most_of_one
        self._open_from: Counter[str] = Counter()
        self._refused = Seldom(_LOG_EVERY_S)
        self.lines = Few()
        """Of the log, about single connections."""

    @property
    def open(self) -> int:
        """Connections that were admitted and have not left."""
        return self._open_from.total()

    def admits(self, address: str) -> bool:
        """Whether there is room for one more from there, which is counted then; if not, the log says so."""
        if self.open < self._most and self._open_from[address] < self._most_of_one:
            self._open_from[address] += 1
            return True
        if count := self._refused.due():
            log.warning(
                "%s: refused %d connection(s), the last one from %s: the limits are %d in all and %d from one address "
                "(connections, connections_per_peer)",
                self._name,
                count,
                address,
                self._most,
                self._most_of_one,
            )
        return False

    def left(self, address: str) -> None:
        """One that was admitted is gone."""
        self._open_from[address] -= 1
        if not self._open_from[address]:
            del self._open_from[address]
