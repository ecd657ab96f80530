"""The layers' part of the cluster manager: their units are arranged while it leads, those of every kv space here."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import partial
from typing import Any

from waltz_ray.actors.units import SpaceUnits
from waltz_ray.config import KvConfig
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.unit_store import UnitStore
from waltz_ray.errors import WaltzError
from waltz_ray.protocol.ownership_types import Splitting
from waltz_ray.protocol.spaces import Space, SpaceState, SpaceTable

__all__ = ["Layers", "UnitsOfSpaces"]

log = logging.getLogger(__name__)

_AGAIN_S = 1.0

Splittings = Callable[[Space], Splitting[Any]]


class UnitsOfSpaces:
    """Follows the spaces of ``cluster``, and has units arranged of those of one kind; by name. In one event loop.

    ``actors``: how many there are to be.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        cluster: str,
        kind: str,
        leading: Callable[[], bool],
        actors: Callable[[], int],
        settle_s: float,
    ) -> None:
        self._zookeeper, self._cluster, self._kind = zookeeper, cluster, kind
        self._leading, self._actors, self._settle_s = leading, actors, settle_s
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
        self.changed([each for each in table.present() if each.kind == self._kind and each.state is SpaceState.READY])

    @abstractmethod
    def changed(self, spaces: Sequence[Space]) -> None:
        """These are there now: ``begin`` what is not running."""

    def begin(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it until it is cancelled, again where it ends by an error: else nobody got what a killed actor had."""
        self._running[name] = self._loop.create_task(self._kept_running(name, work))

    async def arrange(self, store: UnitStore[Any], splitting: Splitting[Any], fewest: int) -> None:
        """The units of one table, for as long as this runs."""
        await SpaceUnits(store, splitting, self._leading, self._actors, fewest, self._settle_s).run()

    async def _kept_running(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
            except (WaltzError, RuntimeError) as error:  # ZooKeeper is away, or there is no thread just now
                log.warning("units of %s are not arranged just now: %s", name, error)
            except Exception:  # unforeseen
                log.exception("units of %s are not arranged just now", name)
            await asyncio.sleep(_AGAIN_S)


class Layers(UnitsOfSpaces):
    """``splitting``: how the units of a kv space are split."""

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
        super().__init__(zookeeper, cluster, "kv", leading, actors, settle_s)
        self._config, self._splitting = config, splitting

    def changed(self, spaces: Sequence[Space]) -> None:
        wanted = {space.name: space for space in spaces}
        for name in self._running.keys() - wanted.keys():
            self._running.pop(name).cancel()
        for name, space in wanted.items():
            if name not in self._running:
                self.begin(name, partial(self._arrange, space))

    async def _arrange(self, space: Space) -> None:
        splitting: Splitting[Hashable] = self._splitting(space)
        store = UnitStore(self._zookeeper, self._cluster, "kv", space.name, splitting)
        await self.arrange(store, splitting, self._config.fewest_buckets)
