"""Says that connections are refused, without filling the log: who floods a port must not flood a disk, too."""

from __future__ import annotations

import logging
import time

__all__ = ["Refusals"]

log = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0


class Refusals:
    """One line every ten seconds at the most."""

    def __init__(self, name: str) -> None:
        self.count = 0
        self._name = name
        self._said = 0
        self._silent_until = 0.0

    def refused(self, address: str, most: int, most_of_one: int) -> None:
        """A connection from ``address`` is one too many."""
        self.count += 1
        now = time.monotonic()
        if now < self._silent_until:
            return
        log.warning(
            "%s: refused %d connection(s), the last one from %s: the limits are %d in all and %d from one address "
            "(connections, connections_per_peer)",
            self._name,
            self.count - self._said,
            address,
            most,
            most_of_one,
        )
        self._said, self._silent_until = self.count, now + _LOG_EVERY_S
