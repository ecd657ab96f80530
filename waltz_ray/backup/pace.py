"""A bounded rate."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Pace"]

_BURST_S = 0.25


class Pace:
    """``took(n)`` after each n bytes: it waits for as long as they were too fast for ``rate`` bytes a second (None: as
    fast as it goes). What was not used is kept for a quarter of a second only."""

    def __init__(
        self,
        rate: float | None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._monotonic, self._sleep = rate, monotonic, sleep
        self._free_at = monotonic()

    def took(self, size: int) -> None:
        if self._rate is None:
            return
        now = self._monotonic()
        self._free_at = max(self._free_at, now - _BURST_S) + size / self._rate
        if self._free_at > now:
            self._sleep(self._free_at - now)
