"""Whether the clock of a service was set: what is deleted for its age, and taken since nobody writes it, waits then.

A clock that is years ahead for a moment would otherwise have everything purged that was ever published. One that is
wrong when the service begins cannot be told from one that is right. Pure, but for ``utc_now``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timezone

__all__ = ["SetClock", "utc_now"]

log = logging.getLogger(__name__)

_MOST_S = 60.0
"""So far apart may the clocks go from one look to the next."""
_WAIT_S = 3600.0


def utc_now() -> datetime:
    """What the machine's clock shows."""
    return datetime.now(timezone.utc)


class SetClock:
    """Of one service. ``elapsed_s``: seconds of a clock that nobody sets."""

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self._last: tuple[datetime, float] | None = None
        self._until_s = 0.0

    def look(self, now: datetime) -> bool:
        """To be asked at each pass: whether it was set since the last look."""
        last, at_s = self._last, self._elapsed_s()
        self._last = now, at_s
        set_by_s = 0.0 if last is None else (now - last[0]).total_seconds() - (at_s - last[1])
        if abs(set_by_s) <= _MOST_S:
            return False
        log.warning("the clock was set by %.0f s, to %s: nothing is purged for an hour", set_by_s, now)
        self._until_s = at_s + _WAIT_S
        return True

    @property
    def trusted(self) -> bool:
        """It has not been set for an hour: it was meant, or is right again."""
        return self._elapsed_s() >= self._until_s
