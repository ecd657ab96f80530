"""How often a value fell between which bounds: what costs the same however much is counted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LATENCY_S", "SIZES", "Histogram", "HistogramView"]

LATENCY_S = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0),
)
"""Bounds for durations in seconds: three a decade, from a turn of a loop to what an operator is called for."""

SIZES = tuple(float(4**power) for power in range(14))
"""Bounds for counts and bytes: powers of 4, up to 64 Mi."""


@dataclass(frozen=True, slots=True)
class HistogramView:
    """A histogram as it stood. ``counts``: of each bound, values above the one before and up to it, and last those
    above all bounds; ``total`` is the sum of the values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """As Prometheus counts: (bound, values up to it), the last bound being "+Inf"."""
        pairs, count = list[tuple[str, int]](), 0
        for bound, here in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            count += here
            pairs.append((bound, count))
        return pairs

    def since(self, before: HistogramView | None) -> HistogramView:
        """What has come since it stood as ``before``; all, if it began anew since."""
        if before is None or before.bounds != self.bounds:
            return self
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        return self if min(counts) < 0 else HistogramView(self.bounds, counts, self.total - before.total)

    def below(self, share: float) -> float | None:
        """The bound up to which ``share`` (0 to 1) of the values are; None without any, infinity above all bounds."""
        wanted, count = share * self.count, 0
        for bound, here in zip((*self.bounds, float("inf")), self.counts, strict=True):
            count += here
            if count and count >= wanted:
                return bound
        return None


class Histogram:
    """Counts values between ``bounds``, which rise. Used by one thread; ``view`` by any."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """One more."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def view(self) -> HistogramView:
        """As it stands."""
        return HistogramView(self._bounds, tuple(self._counts), self._total)
