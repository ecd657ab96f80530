"""Measures what blocks a server's event loop: appends, acknowledgements and HELLOs of everybody wait meanwhile."""

from __future__ import annotations

import logging

from waltz_ray.runtime.seldom import Seldom

__all__ = ["SLOW_S", "Watchdog"]

log = logging.getLogger(__name__)

SLOW_S = 0.02
"""No step may take longer, whatever a client asks. What is worked off piece by piece ends its turn at half of it."""

_LOG_EVERY_S = 1.0


class Watchdog:
    """Counts the steps that took longer than ``SLOW_S`` and logs them, one line a second at the most."""

    def __init__(self) -> None:
        self.slow_steps = 0
        self.longest_ms = 0.0
        self._lines = Seldom(_LOG_EVERY_S)

    def slow(self, what: str, seconds: float) -> None:
        """``what`` (the machine and its event) took ``seconds``, which is longer than ``SLOW_S``."""
        self.slow_steps += 1
        self.longest_ms = max(self.longest_ms, seconds * 1000)
        if count := self._lines.due():
            more = f" ({count - 1} more since the last line)" if count > 1 else ""
            log.warning("%s took %.0f ms, everything else on this server waited%s", what, seconds * 1000, more)
