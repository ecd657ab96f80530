"""Topic actors over a log in memory, and the ZooKeeper and manager that they believe in: this."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tests.topics.foreign_client import ForeignClient
from waltz_ray import compat
from waltz_ray.config import ClientConfig
from waltz_ray.protocol.ownership_types import LeaseConfirmed, RegisteredAs, UnitPlace, UnitTable
from waltz_ray.testing import InMemoryCluster
from waltz_ray.topics.offset_item import OffsetItem
from waltz_ray.topics.serving.deliveries import Deliveries
from waltz_ray.topics.serving.offsets import OffsetPlace, OffsetsAway, TakenOffset, always
from waltz_ray.topics.serving.served_topic import TopicSurroundings
from waltz_ray.topics.serving.slot_duties import SlotDuties
from waltz_ray.topics.serving.topic_node import SlotListening, TopicNode

LIMIT_S = 10.0
TAIL_BYTES = 1 << 20


class MemoryOffsets:
    """As ``KvOffsets``, in a dict; ``away``: nobody can say anything."""

    def __init__(self) -> None:
        self.items: dict[tuple[str, str, int], OffsetItem] = {}
        self.away = False
        self.between: Callable[[], Awaitable[None]] = self._at_once
        """Awaited before what is put is decided."""

    async def _at_once(self) -> None:
        return

    @property
    def trouble(self) -> str:
        return "it is away" if self.away else ""

    def _look(self, place: OffsetPlace) -> tuple[tuple[str, str, int], OffsetItem]:
        key = place.group, place.topic, place.partition
        return key, self.items.get(key, OffsetItem(-1, 0, 0, 0))

    async def take(self, place: OffsetPlace) -> TakenOffset | OffsetsAway:
        key, before = self._look(place)
        if self.away:
            return OffsetsAway("it is away")
        if before.slot_epoch > place.slot_epoch:
            return OffsetsAway(f"actor {before.actor} has the slot by a newer epoch")
        self.items[key] = OffsetItem(before.offset, before.epoch + 1, place.slot_epoch, place.actor, before.lost)
        return TakenOffset(None if before.offset < 0 else before.offset, before.epoch + 1, before.lost)

    async def put(self, group: str, topic: str, partition: int, offset: int, still: Callable[[], bool] = always) -> str:
        await self.between()
        if not still():
            return "not now"
        before = self.items.get((group, topic, partition), OffsetItem(-1, 0, 0, 0))
        after = replace(before, offset=offset, epoch=before.epoch + 1)
        self.items[group, topic, partition] = after
        return "it is away" if self.away else ""

    async def store(self, place: OffsetPlace, offset: int, epoch: int, lost: int) -> bool | OffsetsAway:
        key, before = self._look(place)
        if self.away:
            return OffsetsAway("it is away")
        if before.epoch != epoch:
            return False
        self.items[key] = OffsetItem(offset, epoch, place.slot_epoch, place.actor, lost)
        return True


@dataclass
class TopicActors:
    """The actors of one cluster."""

    cluster: InMemoryCluster
    nodes: dict[int, TopicNode] = field(default_factory=dict)
    incarnations: dict[int, str] = field(default_factory=dict)
    places: dict[int, UnitPlace] = field(default_factory=dict)
    ports: dict[int, dict[int, int]] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    clients: list[ForeignClient] = field(default_factory=list)
    most_bytes: int = 1 << 20
    hold_s: float = 0.0
    offsets: MemoryOffsets = field(default_factory=lambda: MemoryOffsets())

    async def add(self, actor: int) -> TopicNode:
        async def confirm() -> Mapping[int, str]:
            return dict(self.incarnations)

        around = TopicSurroundings(actor, confirm, TAIL_BYTES, 1000.0, 0.0)

        def announce(ports: Mapping[int, int]) -> None:
            self.ports[actor] = dict(ports)

        node = self.nodes[actor] = TopicNode(around, self.duties(actor), SlotListening(), announce)
        node.start()
        for topic in self.topics:
            await self._give(node, topic)
        self.register(actor, f"{actor}-first")
        return node

    def duties(self, actor: int) -> SlotDuties:
        deliveries = Deliveries(actor, self.offsets, hold_s=self.hold_s)
        deliveries.start()
        return SlotDuties(deliveries, self.most_bytes)

    async def create(self, topic: str, partitions: int) -> None:
        await asyncio.to_thread(self.cluster.create_space, topic, partitions, "topic")
        self.topics[topic] = partitions
        for node in self.nodes.values():
            await self._give(node, topic)

    async def _give(self, node: TopicNode, topic: str) -> None:
        config = ClientConfig(request_timeout_ms=2_000)
        client = await self.cluster.connect_async(config=config, space=topic)
        node.add_topic(topic, self.topics[topic], client)

    def register(self, actor: int, incarnation: str) -> None:
        self.incarnations[actor] = incarnation
        self.nodes[actor].told(RegisteredAs(incarnation))
        self.nodes[actor].told(LeaseConfirmed(incarnation, time.monotonic()))
        self.tell_members()

    def gone(self, actor: int) -> None:
        """Its registration is."""
        del self.incarnations[actor]
        self.tell_members()

    def tell_members(self, *but: int) -> None:
        for actor, node in self.nodes.items():
            if actor not in but:
                node.members_seen(dict(self.incarnations))

    def arrange(self, owner: Callable[[int], int | None], slots: int, but: tuple[int, ...] = ()) -> None:
        """The manager writes a table of so many slots; the actors ``but`` do not hear of it."""
        for slot in range(1, slots + 1):
            primary, before = owner(slot), self.places.get(slot)
            epoch = 1 + max((each.epoch for each in self.places.values()), default=0)
            if before is not None and before.primary == primary:
                epoch = before.epoch
            self.places[slot] = UnitPlace(primary, epoch, None)
        table = UnitTable(slots, dict(self.places))
        for actor, node in self.nodes.items():
            if actor not in but:
                node.table_seen(table)

    def serves(self, actor: int, topic: str, slot: int) -> bool:
        partition = self.nodes[actor].topics[topic].of_slot(slot)
        return partition is not None and partition.serving

    async def until_served(self, *slots: int) -> None:
        """By who should have them, of all topics that are large enough; and announced."""

        def served(slot: int) -> bool:
            actor = self.places[slot].primary
            assert actor is not None
            there = [topic for topic, count in self.topics.items() if slot <= count]
            return slot in self.ports.get(actor, {}) and all(self.serves(actor, topic, slot) for topic in there)

        await self.until(lambda: all(map(served, slots)))

    async def broker(self, slot: int, actor: int | None = None, **options: Any) -> ForeignClient:
        """A foreign client's connection with a slot."""
        if actor is None:
            actor = self.places[slot].primary
        assert actor is not None
        client = await ForeignClient.open(self.ports[actor][slot], **options)
        self.clients.append(client)
        return client

    async def until(self, what: Callable[[], bool]) -> None:
        async with compat.timeout(LIMIT_S):
            while not what():
                await asyncio.sleep(0.005)  # polling interval, not synchronisation

    def log_of(self, topic: str, partition: int) -> list[tuple[int, int, bytes]]:
        """(ID, header, data) of every transaction."""
        with self.cluster.connect(space=topic) as client:
            return [(each.transaction_id, each.header, each.data) for each in client.feed(partition)]

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        for node in self.nodes.values():
            await node.close()
            await node.duties.deliveries.close()


@asynccontextmanager
async def actors(count: int, **options: Any) -> AsyncIterator[TopicActors]:
    async with InMemoryCluster(servers=2) as cluster:
        found = TopicActors(cluster, **options)
        try:
            for actor in range(count):
                await found.add(actor)
            yield found
        finally:
            await found.close()
