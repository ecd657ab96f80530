"""The native client on topic actors in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.topics.servers import CLUSTER, TopicCluster, topic_cluster
from tests.topics.test_access import rules
from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.client.client import WaltzClient
from waltz_ray.config import ClientConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.finding.find import FoundCluster
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics.client.aio import AsyncTopicClient
from waltz_ray.topics.client.connecting import MasterDirectory
from waltz_ray.topics.client.settings import TopicClientConfig
from waltz_ray.topics.offset_item import OffsetItem

__all__ = ["MemoryPlace", "TopicWorld", "topic_world"]

FAST = TopicClientConfig(heartbeat_s=0.05)


@dataclass
class MemoryPlace:
    """``TopicsPlace`` of a cluster in memory."""

    cluster: TopicCluster
    first_masters: Sequence[Endpoint] = ()
    """Known beside those that are registered, before them."""

    def directory(self) -> _Directory:
        return _Directory(self.cluster, self.first_masters)

    def log(self, topic: str, config: ClientConfig | None = None) -> WaltzClient:
        return self.cluster.log.connect(space=topic, config=config)

    async def log_async(self, topic: str, config: ClientConfig | None = None) -> AsyncWaltzClient:
        return await self.cluster.log.connect_async(space=topic, config=config)


class _Directory(MasterDirectory):
    def __init__(self, cluster: TopicCluster, first: Sequence[Endpoint]) -> None:
        super().__init__(cluster.log._zookeeper.client(), FoundCluster(CLUSTER, "in memory"))
        self._first = first

    def watch(self, callback: Callable[[Sequence[Endpoint]], None]) -> Callable[[], None]:
        return super().watch(lambda found: callback([*self._first, *found]))


class TopicWorld:
    """``topic`` has messages of native and other producers."""

    def __init__(self, cluster: TopicCluster) -> None:
        self.cluster = cluster
        self.place = MemoryPlace(cluster)

    async def until(self, what: Callable[[], bool]) -> None:
        await self.cluster.until(what)

    def offset(self, group: str, partition: int, topic: str = "orders") -> int | None:
        """What is stored."""
        found = self.cluster.offsets.items.get((group, topic, partition))
        return None if found is None else found.offset

    async def confirmed(self, group: str, partition: int, offset: int, topic: str = "orders") -> None:
        await self.until(lambda: self.offset(group, partition, topic) == offset)

    def take_away(self, group: str, partition: int, topic: str = "orders") -> None:
        """As if the group's offset had been set by an operator, or another actor had it."""
        items, key = self.cluster.offsets.items, (group, topic, partition)
        before = items[key]
        items[key] = OffsetItem(before.offset, before.epoch + 1, before.slot_epoch, before.actor)

    def delete(self, topic: str) -> None:
        """With all its messages."""
        ClusterStore(self.cluster.log._zookeeper.client(), CLUSTER).spaces.delete(topic, topic)

    async def set_document(self, name: str, text: str) -> None:
        """Rights ("access"), or rules of flow ("flow"): set, and known to all actors."""
        await rules(self.cluster, json.loads(text), name)

    @asynccontextmanager
    async def client(self, config: TopicClientConfig = FAST) -> AsyncIterator[AsyncTopicClient]:
        async with AsyncTopicClient(self.place, config) as client:
            yield client


@asynccontextmanager
async def topic_world(
    actors: int = 1, topic: str = "orders", partitions: int = 2, **config: Any
) -> AsyncIterator[TopicWorld]:
    async with topic_cluster(actors, **config) as cluster:
        await cluster.create(topic, partitions)
        await cluster.until(cluster.settled)
        yield TopicWorld(cluster)
