"""The clock of a kv actor for deadlines, which never jumps."""

from __future__ import annotations

import time
from collections.abc import Callable

from waltz_ray.runtime.boot_clock import boot_s

__all__ = ["SteadyClock"]

_LARGEST_DRIFT = 0.01


def _wall_ms() -> float:
    return time.time_ns() / 1e6


class SteadyClock:
    """Milliseconds since 1970, without jumps: begins with the wall clock, goes with the monotonic one, and is drawn
    towards the wall clock by no more than 1 % of the time that passes. It never goes back.

    Who sets the wall clock an hour ahead expires nothing at once; after four days it is as he wants it. A wall clock
    that is behind when it begins is put right by what has been decided already (``at_least``). One that is ahead then
    cannot be told from one that has been stopped for long: it is believed.
    """

    def __init__(self, wall_ms: Callable[[], float] = _wall_ms, elapsed_s: Callable[[], float] = boot_s) -> None:
        self._wall_ms = wall_ms
        self._elapsed_s = elapsed_s
        self._at_s = elapsed_s()
        self._now_ms = wall_ms()

    def __call__(self) -> int:
        at_s = self._elapsed_s()
        passed_ms = 1000 * (at_s - self._at_s)
        if passed_ms < 1:  # every command asks
            return int(self._now_ms)
        self._at_s = at_s
        freely = self._now_ms + passed_ms
        most = _LARGEST_DRIFT * passed_ms
        self._now_ms = freely + min(most, max(-most, self._wall_ms() - freely))
        return int(self._now_ms)

    def at_least(self, now_ms: int) -> int:
        """It is so late at least; by how much it was behind that, milliseconds."""
        behind_ms = max(0, now_ms - self())
        self._now_ms += behind_ms
        return behind_ms
