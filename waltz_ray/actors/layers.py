"""The layers' part of the cluster manager: units of every kv space are arranged while it leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Any

from waltz_ray.actors.units import SpaceUnits
from waltz_ray.config import KvConfig
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.unit_store import UnitStore
from waltz_ray.protocol.ownership_types import Splitting
from waltz_ray.protocol.spaces import Space, SpaceState, SpaceTable

__all__ = ["Layers"]

log = logging.getLogger(__name__)

Splittings = Callable[[Space], Splitting[Any]]


class Layers:
    """Follows the spaces of ``cluster``. ``splitting``: how the units of a kv space are split. In one event loop."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        cluster: str,
        config: KvConfig,
        splitting: Splittings,
        leading: Callable[[], bool],
        actors: Callable[[], int],
        settle_s: float,
    ) -> None:
        self._zookeeper, self._cluster, self._config = zookeeper, cluster, config
        self._splitting, self._leading, self._actors, self._settle_s = splitting, leading, actors, settle_s
        self._loop = asyncio.get_running_loop()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._watch: Any = None

    async def start(self) -> None:
        """Begin with the spaces there are."""

        def seen(table: SpaceTable) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._seen, table)

        spaces = ClusterStore(self._zookeeper, self._cluster).spaces
        self._watch = await asyncio.to_thread(spaces.watch, seen)

    async def close(self) -> None:
        """Arrange nothing more. Idempotent."""
        if self._watch is not None:
            self._watch.cancel()
        running, self._running = self._running, {}
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)

    def _seen(self, table: SpaceTable) -> None:
        wanted = {s.name: s for s in table.present() if s.kind == "kv" and s.state is SpaceState.READY}
        for name in self._running.keys() - wanted.keys():
            self._running.pop(name).cancel()
        for name, space in wanted.items():
            if name not in self._running:
                task = self._running[name] = self._loop.create_task(self._arrange(space))
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler({"message": "units are not arranged", "exception": task.exception()})

    async def _arrange(self, space: Space) -> None:
        splitting: Splitting[Hashable] = self._splitting(space)
        store = UnitStore(self._zookeeper, self._cluster, "kv", space.name, splitting)
        fewest = self._config.fewest_buckets
        units = SpaceUnits(store, splitting, self._leading, self._actors, fewest, self._settle_s)
        await units.run()
