"""Lines of the log that a peer or a load could cause without end: who floods a port must not flood a disk, too."""

from __future__ import annotations

import time

__all__ = ["Seldom"]


class Seldom:
    """Counts what happens, and says when a line about it is due: every ``every_s`` seconds at the most."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._silent_until = 0.0
        self._unsaid = 0

    def due(self) -> int:
        """Note that it has happened again; how often since the last line, 0 if it is too early for another one."""
        self._unsaid += 1
        now = time.monotonic()
        if now < self._silent_until:
            return 0
        count, self._unsaid = self._unsaid, 0
        self._silent_until = now + self._every_s
        return count
