"""The units of a kv space as what ownership is about: buckets, split sixteenfold under the next mask. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from waltz_ray.kv import routing
from waltz_ray.kv.routing import Unit

__all__ = ["BucketSplitting"]


class BucketSplitting:
    """``protocol.ownership_types.Splitting`` of a space with so many partitions. The level of a unit is its mask."""

    def __init__(self, partitions: int) -> None:
        self._first = routing.first_mask(partitions)

    def level(self, unit: Unit) -> int:
        return unit.mask

    def coarser(self, unit: Unit) -> Unit | None:
        return None if unit.mask <= self._first else routing.coarser(unit)

    def finer(self, unit: Unit) -> Sequence[Unit]:
        return routing.finer(unit)

    def units(self, level: int) -> Sequence[Unit]:
        return routing.units_of(level)

    def next(self, level: int) -> int | None:
        larger = [mask for mask in routing.MASKS if mask > level]
        return larger[0] if larger else None

    def first(self) -> int:
        return self._first
