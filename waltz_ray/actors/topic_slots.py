"""The topics' part of the cluster manager: slots are arranged while it leads, as many as the largest topic needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from waltz_ray.actors.layers import UnitsOfSpaces
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.unit_store import UnitStore
from waltz_ray.protocol.ownership_types import UnitTable
from waltz_ray.protocol.spaces import Space
from waltz_ray.topics.slots import SLOTS, SlotSplitting, grown

__all__ = ["TopicSlots"]


class SlotStore(UnitStore[int]):
    """The table of slots, with those that it is to have by now."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str, count: Callable[[], int]) -> None:
        super().__init__(zookeeper, cluster, "topic", SLOTS, SlotSplitting(count))
        self._count = count

    def table(self) -> tuple[UnitTable[int] | None, int]:
        table, version = super().table()
        return (None if table is None else grown(table, self._count())), version


class TopicSlots(UnitsOfSpaces):
    """One table for all topics of the cluster."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        cluster: str,
        leading: Callable[[], bool],
        actors: Callable[[], int],
        settle_s: float,
    ) -> None:
        super().__init__(zookeeper, cluster, "topic", leading, actors, settle_s)
        self._count = 0

    def changed(self, spaces: Sequence[Space]) -> None:
        self._count = max([self._count, *(each.count for each in spaces)])
        if self._count and not self._running:
            store = SlotStore(self._zookeeper, self._cluster, lambda: self._count)
            self.begin(SLOTS, lambda: self.arrange(store, SlotSplitting(lambda: self._count), 1))
