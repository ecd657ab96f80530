"""Which minutes of a collector are missing between two that were published. Pure.

A collector marks every minute, empty ones too, so a reader may wait for each. Where one never comes (the collector was
away, or writes no empty ones) the local service publishes it empty, once it is certain (``holes_after_s``). What counts
is kept in the thread's node with the commits: for every collector the newest minute and the missing ones before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from waltz_spark.streams.layout import PublishedPath

__all__ = ["LONGEST", "MinutesSeen", "hole_key", "seen_with"]

LONGEST = timedelta(days=7)
"""A gap that is longer is no hole: the collector was given up, and another began under its name. Who brings nothing
for so long is forgotten."""

_RUNS = 32  # of one collector: the newest ones are kept
_MINUTE = timedelta(minutes=1)


class MinutesSeen(NamedTuple):
    """Of one collector: the newest minute that was published, and runs (first, last) of missing ones, oldest first."""

    newest: datetime
    missing: tuple[tuple[datetime, datetime], ...] = ()

    def with_minute(self, minute: datetime) -> MinutesSeen:
        """After ``minute`` was published."""
        if minute > self.newest:
            gap = (self.newest + _MINUTE, minute - _MINUTE)
            is_hole = gap[0] <= gap[1] and minute - self.newest <= LONGEST
            return MinutesSeen(minute, (*self.missing, gap)[-_RUNS:] if is_hole else self.missing)
        runs: list[tuple[datetime, datetime]] = []
        for first, last in self.missing:
            parts = [(first, min(last, minute - _MINUTE)), (max(first, minute + _MINUTE), last)]
            runs += [part for part in parts if part[0] <= part[1]] if first <= minute <= last else [(first, last)]
        return MinutesSeen(self.newest, tuple(runs[-_RUNS:]))

    def missing_until(self, end: datetime) -> Iterator[datetime]:
        """The missing minutes that begin before ``end``, oldest first."""
        for first, last in self.missing:
            while first <= last and first < end:
                yield first
                first += _MINUTE


def hole_key(category: str, collector: str) -> str:
    return f"{category}/{collector}"


def seen_with(seen: Mapping[str, MinutesSeen], path: PublishedPath) -> dict[str, MinutesSeen]:
    """After ``path`` was published."""
    key = hole_key(path.category, path.collector)
    mine = seen[key].with_minute(path.minute) if key in seen else MinutesSeen(path.minute)
    now = {**seen, key: mine}
    oldest = max(each.newest for each in now.values()) - LONGEST
    return {key: each for key, each in now.items() if each.newest >= oldest}
