"""The topics' part of the cluster manager: slots are arranged while it leads, as many as the largest topic needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from waltz_ray.actors.units import SpaceUnits
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.unit_store import UnitStore
from waltz_ray.protocol.ownership_types import UnitTable
from waltz_ray.protocol.spaces import SpaceState, SpaceTable
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


class TopicSlots:
    """Follows the topics of ``cluster``. ``actors``: how many there are to be. In one event loop."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        cluster: str,
        leading: Callable[[], bool],
        actors: Callable[[], int],
        settle_s: float,
    ) -> None:
        self._zookeeper, self._cluster = zookeeper, cluster
        self._leading, self._actors, self._settle_s = leading, actors, settle_s
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._running: asyncio.Task[None] | None = None
        self._watch: Any = None

    async def start(self) -> None:
        """Begin with the topics there are."""

        def seen(table: SpaceTable) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._seen, table)

        spaces = ClusterStore(self._zookeeper, self._cluster).spaces
        self._watch = await asyncio.to_thread(spaces.watch, seen)

    async def close(self) -> None:
        """Arrange nothing more. Idempotent."""
        if self._watch is not None:
            self._watch.cancel()
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _seen(self, table: SpaceTable) -> None:
        ready = [each for each in table.present() if each.kind == "topic" and each.state is SpaceState.READY]
        self._count = max([self._count, *(each.count for each in ready)])
        if self._count and self._running is None:
            self._running = self._loop.create_task(self._arrange())
            self._running.add_done_callback(self._ended)

    async def _arrange(self) -> None:
        splitting = SlotSplitting(lambda: self._count)
        store = SlotStore(self._zookeeper, self._cluster, lambda: self._count)
        await SpaceUnits(store, splitting, self._leading, self._actors, 1, self._settle_s).run()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler({"message": "slots are not arranged", "exception": task.exception()})
