"""The actors that serve the kv space, and who arranges its units."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest import mock

from tests.simulation.late_feeds import heard_late
from tests.simulation.process import CLUSTER, Process
from waltz_ray.client.aio import AsyncWaltzClient, engine_of, next_client_id_of
from waltz_ray.client.subscription import FeedItem, Subscription
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.config import ClientConfig, KvConfig
from waltz_ray.connecting import StoreDirectory
from waltz_ray.coordination.unit_store import UnitStore
from waltz_ray.errors import ConfigError, CoordinationError, ProjectionFailed, Trimmed, VersionConflict
from waltz_ray.kv.client import connections, engine
from waltz_ray.kv.placement import BucketSplitting
from waltz_ray.kv.routing import Unit
from waltz_ray.kv.serving import space_node, space_server
from waltz_ray.kv.serving.clock import SteadyClock
from waltz_ray.kv.serving.space_log import SpaceLog
from waltz_ray.kv.serving.space_server import SpaceServer
from waltz_ray.kv.state import MemoryState
from waltz_ray.protocol.arrangement import arrange, first_table

if TYPE_CHECKING:
    from tests.simulation.kv import KvPart

__all__ = ["KV_PORT", "SimArranger", "SimKvActor", "kv_conditions"]

KV_PORT = 7011
_RETRY_S = 0.5
_TAILS_BYTES, _SHORTER_BYTES = (1024, 4096, 1 << 20), (1024, 1024, 4096)
"""How much is written to a partition before it is compacted, and where who lags is to be overtaken."""
_FEWEST_TO_SPLIT = 40
"""Units of an actor: more than there are under the first mask, fewer than under the second, for 1 to 4 of them."""


def unit_store(process: Process, part: KvPart) -> UnitStore[Unit]:
    assert process.zookeeper is not None
    return UnitStore(process.zookeeper, CLUSTER, "kv", "kv", BucketSplitting(part.space.count))


class _LateFeeds(SpaceLog):
    """The real one; what it follows comes late while the process is deaf to it."""

    def __init__(self, process: SimKvActor, client: AsyncWaltzClient) -> None:
        super().__init__(engine_of(client), partial(next_client_id_of, client))
        self._process = process

    async def follow(
        self, first_ids: Mapping[int, int], put: Callable[[FeedItem], None], earliest: bool
    ) -> Subscription:
        def counted(item: FeedItem) -> None:
            if isinstance(item, Trimmed):
                self._process.world.history.counts["kv feeds overtaken"] += 1
            put(item)

        return await super().follow(first_ids, heard_late(self._process.deaf_for_s, counted), earliest)


class _SimSpaceServer(SpaceServer):
    """The real one, with projections in memory."""

    def __init__(self, process: SimKvActor, client: AsyncWaltzClient, config: KvConfig) -> None:
        assert process.zookeeper is not None
        space, nowhere = process.part.space, Path("/nowhere")
        super().__init__(
            process.number, CLUSTER, space, client, process.zookeeper, config, nowhere, process.projection_failed
        )
        self._process = process
        self._space_log = _LateFeeds(process, client)

    async def _opened(self) -> dict[int, MemoryState]:  # type: ignore[override]
        process = self._process
        process.states = {p: process.states.get(p) or MemoryState() for p in range(self.space.count)}
        return process.states


class SimKvActor(Process):
    """``states``: its projections, by partition of the space, which outlive the process."""

    def __init__(self, part: KvPart, number: int, random: Random) -> None:
        session_ms = random.choice([1000, 1500, 3000])
        super().__init__(part.world, f"kv-{number}", session_s=session_ms / 1000)
        self.part = part
        self.number = number
        self.random = random
        self.states: dict[int, MemoryState] = {}
        self.clock_offset_ms = 0
        """How far its wall clock has jumped since it was started."""
        self.deaf_until_s = 0.0
        """Until then it hears nothing of what is written."""
        self.deadline_rate = random.choice([0.92, 1.0, 1.0, 1.03])
        """Of its clock for deadlines, by a right one."""
        self.lease_rate, margin = random.choice([(0.92, 0.12), (1.03, 0.12), (0.4, 0.65), (0.4, 0.65)])
        """Of its clock for leases, by a right one: as slow as the margin, a share of the session, allows."""
        self.config = KvConfig(
            actors=2,  # so many that there are secondaries
            host=self.host,
            session_ms=session_ms,
            lease_margin_ms=int(margin * session_ms),
            fullwait_ms=1_000,
            compact_bytes=part.space.count
            * random.choice(_TAILS_BYTES if part.world.trimming is None else _SHORTER_BYTES),
        )
        self.server: _SimSpaceServer | None = None

    # ---- clocks

    def wall_ms(self) -> float:
        return self.world.now_ms() + self.clock_offset_ms

    def elapsed_s(self) -> float:
        return self.world.scheduler.now * self.deadline_rate

    def lease_clock_s(self) -> float:
        return self.world.scheduler.now * self.lease_rate

    def deaf_for_s(self) -> float:
        """How long it will still hear nothing of what is written."""
        return max(0.0, self.deaf_until_s - self.world.scheduler.now)

    # ---- life

    def start(self) -> None:
        self.begin()
        self.server, self.clock_offset_ms, self.deaf_until_s = None, 0, 0.0
        self.spawn(self._start())

    async def _start(self) -> None:
        assert self.zookeeper is not None
        directory = StoreDirectory(self.zookeeper, CLUSTER, "kv")
        config = ClientConfig(feed_credit_bytes=1, quick_mounts_ms=0, hindrance_after_ms=0)
        client = AsyncWaltzClient(directory, TcpTransport(), config=config)
        try:
            await client.start()
            server = self.server = _SimSpaceServer(self, client, self.config)
            await server.start(KV_PORT)
        except (CoordinationError, ConfigError) as error:
            self.kill(f"cannot start: {error}")
            self.start_later(_RETRY_S)

    def projection_failed(self, error: ProjectionFailed) -> None:
        self.world.scheduler.fail(AssertionError(str(error)))

    def state(self) -> str:
        node = None if self.server is None else self.server.node
        if node is None or not self.up:
            return f"{self.host}: up {self.up}"
        return f"{self.host}: caught up {node.caught_up}, level {node.mask:X}, serves {len(node.ownership.hosted())}"


@contextmanager
def kv_conditions(part: KvPart) -> Iterator[None]:
    """The clocks of whichever actor runs, and one source of chance."""
    actors = {actor.host: actor for actor in part.actors}

    def present() -> SimKvActor:
        current = part.world.scheduler.current
        assert current is not None
        return actors[current.name.partition(".")[0]]

    def clock() -> SteadyClock:
        return SteadyClock(present().wall_ms, present().elapsed_s)

    def lease_clock_s() -> float:
        return present().lease_clock_s()

    chance = SimpleNamespace(randbits=part.random.getrandbits)
    with (
        mock.patch.object(space_server, "SteadyClock", clock),
        mock.patch.object(space_server, "boot_s", lease_clock_s),
        mock.patch.object(space_node, "secrets", chance),
        mock.patch.object(engine, "secrets", chance),
        mock.patch.object(connections, "random", part.random),
    ):
        yield


class SimArranger(Process):
    """Who writes the table of units, as the leading manager does."""

    def __init__(self, part: KvPart, fewest: int) -> None:
        super().__init__(part.world, "arranger", session_s=2.0)
        self.part = part
        self.fewest = fewest
        self._changed: asyncio.Event | None = None

    def start(self) -> None:
        self.begin()
        self.spawn(self._arrange())

    def split(self) -> bool:
        """More units are wanted from now on. False if they are split already, or nobody is there to do it."""
        if not self.up or self._changed is None or self.fewest == _FEWEST_TO_SPLIT:
            return False
        self.fewest = _FEWEST_TO_SPLIT
        self.loop.call_soon(self._changed.set)
        return True

    async def _arrange(self) -> None:
        loop = asyncio.get_running_loop()
        store = unit_store(self, self.part)
        changed = self._changed = asyncio.Event()

        def members(found: object) -> None:
            loop.call_soon_threadsafe(changed.set)

        await loop.run_in_executor(None, store.watch_members, members)
        while True:
            await changed.wait()
            changed.clear()
            await asyncio.sleep(0.05)
            try:
                await loop.run_in_executor(None, self._once, store)
            except (CoordinationError, VersionConflict):
                changed.set()

    def _once(self, store: UnitStore[Unit]) -> None:
        splitting = BucketSplitting(self.part.space.count)
        members = store.members()
        found, version = store.table()
        before = found or first_table(splitting, 1)
        after = arrange(splitting, before, sorted(members), self.fewest)
        if after != found:
            store.set_table(after, version)
            self.tell(f"arranges units of level {after.level:X} for {sorted(members)}")
