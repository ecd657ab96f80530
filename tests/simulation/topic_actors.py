"""The actors that serve the topic, and who arranges its slots."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from tests.simulation.late_feeds import heard_late
from tests.simulation.process import CLUSTER, Process
from tests.simulation.threads import listen
from tests.simulation.topic_offsets import offsets_of
from tests.simulation.zookeeper import SimZooKeeper
from waltz_ray.actors import units
from waltz_ray.actors.topic_slots import TopicSlots
from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.client.subscription import FeedItem, Subscription
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.config import ClientConfig, TopicConfig
from waltz_ray.connecting import StoreDirectory
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import ConfigError, CoordinationError
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.spaces import Space
from waltz_ray.topics.client import consumer, masters, producer, registering
from waltz_ray.topics.groups.effects import MasterEffect
from waltz_ray.topics.groups.events import MasterEvent
from waltz_ray.topics.groups.machine import TopicMaster
from waltz_ray.topics.serving import access_view, connection, deliveries, gateway, master_port, slot_partition
from waltz_ray.topics.serving import topic_server as topic_server_module
from waltz_ray.topics.serving.topic_log import TopicLog
from waltz_ray.topics.serving.topic_server import TopicServer

if TYPE_CHECKING:
    from tests.simulation.topics import TopicPart

__all__ = ["SimSlotArranger", "SimTopicActor", "log_client", "topic_conditions"]

_TIMED = (
    *(consumer, masters, producer, registering),
    *(connection, deliveries, master_port, units),
)
_MASTER_PORT = 7100
_RETRY_S = 0.5
_SAID_AGAIN = 30
"""Records after which an owner says again that it is one."""


async def log_client(
    process: Process, space: str, config: ClientConfig, session: SimZooKeeper | None = None
) -> AsyncWaltzClient:
    """A started client of a space; over the process's own session, if none is given."""
    session = session or process.zookeeper
    assert session is not None
    client = AsyncWaltzClient(StoreDirectory(session, CLUSTER, space), TcpTransport(), config=config)
    await client.start()
    return client


class SimTopicActor(Process):
    """One of the part's actors."""

    def __init__(self, part: TopicPart, number: int, random: Random) -> None:
        session_ms = random.choice([1000, 1500, 3000])
        super().__init__(part.world, f"topic-{number}", session_s=session_ms / 1000)
        self.part = part
        self.number = number
        self.clock_offset_ms = 0
        """How far its wall clock has jumped since it was started."""
        self.deaf_until_s = 0.0
        """Until then it hears nothing of what is written."""
        self.config = TopicConfig(
            host=self.host,
            master_port=_MASTER_PORT,
            broker_port=0,
            session_ms=session_ms,
            lease_margin_ms=session_ms // 5,
            client_ms=part.client_ms,
            balance_ms=part.balance_ms,
            hold_ms=random.choice([0, 100]),
            batch_messages=random.choice([2, 10, 1000]),
            batch_bytes=random.choice([200, 1 << 20]),
            tail_bytes=random.choice([1, 600, 1 << 20]),
        )
        self.server: TopicServer | None = None

    @property
    def master(self) -> Endpoint:
        """Where it listens for clients that ask for the master."""
        return Endpoint(self.host, _MASTER_PORT + self.number)

    @property
    def leads(self) -> bool:
        """Whether it believes to be the master."""
        return self.up and self.server is not None and self.server.master.machine.leads

    def wall_ms(self) -> float:
        return self.world.now_ms() + self.clock_offset_ms

    def deaf_for_s(self) -> float:
        """How long it will still hear nothing of what is written."""
        return max(0.0, self.deaf_until_s - self.world.scheduler.now)

    def start(self) -> None:
        self.begin()
        self.server, self.clock_offset_ms, self.deaf_until_s = None, 0, 0.0
        self.spawn(self._start())

    async def _start(self) -> None:
        assert self.zookeeper is not None
        offsets = offsets_of(self.part.store, self)
        try:
            key = str(ClusterStore(self.zookeeper, CLUSTER).info().cluster_key)
            server = TopicServer(self.number, CLUSTER, key, self.zookeeper, self.config, self._connect, offsets)
            self.server = server
            await server.start()
        except (CoordinationError, ConfigError) as error:
            self.kill(f"cannot start: {error}")
            self.start_later(_RETRY_S)

    async def _connect(self, space: Space) -> AsyncWaltzClient:
        return await log_client(self, space.name, ClientConfig(quick_mounts_ms=0, hindrance_after_ms=0))

    async def send_away(self, group: str, topic: str, partition: int) -> None:
        """Whoever consumes registers again, as when ``waltz topic reset`` has set the group elsewhere."""
        assert self.server is not None
        served = self.server.node.topics.get(topic)
        found = None if served is None else served.partitions.get(partition)
        delivery = None if found is None else self.server.node.duties.deliveries.of(topic, found, group)
        if delivery is not None:
            delivery.end_others("")

    def state(self) -> str:
        said = None if self.server is None else self.server.status()
        return f"{self.host}: up {self.up}, {said}"

    def broken(self) -> str:
        """A bug that has ended one of its tasks; "": none has."""
        server = self.server
        return "" if server is None or not self.up else server.broken


class SimSlotArranger(Process):
    """Who writes the table of slots: the manager's part."""

    def __init__(self, part: TopicPart) -> None:
        super().__init__(part.world, "topic-arranger", session_s=2.0)
        self.part = part
        self.offsets = offsets_of(part.store, self)

    def start(self) -> None:
        self.begin()
        self.offsets = offsets_of(self.part.store, self)
        self.spawn(self._start())

    async def _start(self) -> None:
        assert self.zookeeper is not None
        slots = TopicSlots(self.zookeeper, CLUSTER, lambda: True, lambda: len(self.part.actors), 0.05)
        await slots.start()


@contextmanager
def topic_conditions(part: TopicPart) -> Iterator[None]:
    """The clocks of whichever process runs, and one source of chance; what masters do is written down."""
    actors = {actor.host: actor for actor in part.actors}
    scheduler = part.world.scheduler

    def present() -> SimTopicActor | None:
        assert scheduler.current is not None
        return actors.get(scheduler.current.name.partition(".")[0])

    def monotonic() -> float:
        assert scheduler.current is not None
        return scheduler.current.time()

    def wall_ns() -> int:
        actor = present()
        return int((part.world.now_ms() if actor is None else actor.wall_ms()) * 1_000_000)

    def now_s() -> float:
        return scheduler.now

    clock = SimpleNamespace(
        monotonic=monotonic,
        time=lambda: wall_ns() / 1e9,
        time_ns=wall_ns,
        monotonic_ns=lambda: int(monotonic() * 1e9),
    )
    chance = SimpleNamespace(
        token_hex=lambda size: part.random.randbytes(size).hex(), randbelow=lambda end: part.random.randrange(end)
    )
    patches: list[Any] = [
        *(mock.patch.object(module, "time", clock) for module in _TIMED),
        *(mock.patch.object(module, "_COUNTS", itertools.count(1)) for module in (consumer, registering)),
        *(mock.patch.object(each, "os", SimpleNamespace(getpid=lambda: 1)) for each in (consumer, registering)),
        mock.patch.object(topic_server_module, "boot_s", now_s),
        *(mock.patch.object(each, "secrets", chance) for each in (access_view, consumer, registering)),
        mock.patch.object(gateway, "listen", listen),
        mock.patch.object(slot_partition, "SAID_AGAIN_RECORDS", _SAID_AGAIN),
        mock.patch.object(TopicLog, "follow", _hearing_late(present)),
        mock.patch.object(TopicMaster, "step", _written_down(part)),
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()


def _written_down(part: TopicPart) -> Callable[[TopicMaster, MasterEvent, int], list[MasterEffect]]:
    """``TopicMaster.step`` that also tells the history."""
    original = TopicMaster.step

    def step(self: TopicMaster, event: MasterEvent, now_ms: int) -> list[MasterEffect]:
        effects = original(self, event, now_ms)
        part.history.master_steps(self, event, effects)
        if broken := self.broken():
            part.world.history.blame("topic_grants", broken)
        return effects

    return step


def _hearing_late(present: Callable[[], SimTopicActor | None]) -> Callable[..., Any]:
    """``TopicLog.follow`` of actors that are deaf at times."""
    original = TopicLog.follow

    async def follow(self: TopicLog, partition: int, first_id: int, put: Callable[[FeedItem], None]) -> Subscription:
        actor = present()
        assert actor is not None
        return await original(self, partition, first_id, heard_late(actor.deaf_for_s, put))

    return follow
