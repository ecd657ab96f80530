"""Slots: partition i of every topic is served by slot i + 1, which clients take for a broker. Pure.

There are as many slots as the largest topic has partitions, so the table of who should have which grows with it: its
level is the number of its slots. What a slot's owner does is done for each partition by itself: a topic's partition has
one unit of ownership, ``THE_UNIT``, of which the table says what it says of the slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from waltz_ray.protocol.ownership_types import UnitPlace, UnitTable

__all__ = ["SLOTS", "THE_UNIT", "OneUnit", "SlotSplitting", "grown", "of_slot", "partition_of_slot", "slot_of"]

SLOTS = "slots"
"""Under this name the table of a cluster's slots is kept."""

THE_UNIT = 0


def slot_of(partition: int) -> int:
    """The slot of a topic's partition, counted from 0."""
    return partition + 1


def partition_of_slot(slot: int) -> int:
    """The partition that a slot has of each topic that is large enough."""
    return slot - 1


class SlotSplitting:
    """``protocol.ownership_types.Splitting`` of the cluster's slots, which are not split. ``count``: how many there are
    to be by now, asked each time."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    def level(self, unit: int) -> int:
        return self._count()

    def coarser(self, unit: int) -> int | None:
        return None

    def finer(self, unit: int) -> Sequence[int]:
        return ()

    def units(self, level: int) -> Sequence[int]:
        return range(1, level + 1)

    def first(self) -> int:
        return self._count()

    def next(self, level: int) -> int | None:
        return None


class OneUnit:
    """``Splitting`` of a partition: one unit, for ever."""

    def level(self, unit: int) -> int:
        return 0

    def coarser(self, unit: int) -> int | None:
        return None

    def finer(self, unit: int) -> Sequence[int]:
        return ()

    def units(self, level: int) -> Sequence[int]:
        return (THE_UNIT,)

    def first(self) -> int:
        return 0

    def next(self, level: int) -> int | None:
        return None


def grown(table: UnitTable[int], count: int) -> UnitTable[int]:
    """The table with ``count`` slots, if it has fewer: nobody has the new ones yet.

    Their epoch is the highest there is, so also above that of a record from before the table was lost.
    """
    if table.level >= count:
        return table
    newest = max((place.epoch for place in table.places.values()), default=0)
    added = {slot: UnitPlace(None, newest) for slot in range(table.level + 1, count + 1)}
    return UnitTable(count, {**table.places, **added})


def of_slot(table: UnitTable[int], slot: int) -> UnitTable[int]:
    """What the table of the slots says to a partition of one of them."""
    place = table.places.get(slot)
    return UnitTable(0, {} if place is None else {THE_UNIT: place})
