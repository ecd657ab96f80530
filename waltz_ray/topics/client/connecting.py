"""Putting a client of topics together: the cluster is found as ``waltz_ray.connect`` does, its actors in ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.client.client import WaltzClient
from waltz_ray.config import ClientConfig
from waltz_ray.connecting import connect as connect_log
from waltz_ray.connecting import connect_async as connect_log_async
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.unit_store import UnitMember, UnitStore
from waltz_ray.errors import InvalidInput
from waltz_ray.finding.find import FoundCluster, check_key, find_cluster
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics.client.aio import AsyncTopicClient
from waltz_ray.topics.client.client import TopicClient
from waltz_ray.topics.client.settings import TopicClientConfig
from waltz_ray.topics.slots import SLOTS, SlotSplitting

__all__ = ["ClusterTopics", "MasterDirectory", "connect", "connect_async"]


def connect(
    cluster: str | None = None,
    config: TopicClientConfig | None = None,
    *,
    zookeeper: str | None = None,
    directory: str | None = None,
    address: str | None = None,
) -> TopicClient:
    """A client of the topics of ``cluster``, connected: ``with topics.connect("demo") as client``.

    Which cluster: as of ``waltz_ray.connect``. That there are actors is not waited for: calls wait. ClusterNotFound,
    ClusterMismatch, RayNotRunning, ZooKeeperUnreachable.
    """
    client = TopicClient(ClusterTopics(find_cluster(cluster, directory, address, zookeeper)), config)
    try:
        return client.open()
    except BaseException:
        client.close()
        raise


async def connect_async(
    cluster: str | None = None,
    config: TopicClientConfig | None = None,
    *,
    zookeeper: str | None = None,
    directory: str | None = None,
    address: str | None = None,
) -> AsyncTopicClient:
    """The same for the loop that runs now: ``async with await topics.connect_async("demo") as client``.

    The arguments and the errors are those of ``connect``. What blocks on the way there runs in the loop's executor.
    """
    found = await asyncio.to_thread(find_cluster, cluster, directory, address, zookeeper)
    client = AsyncTopicClient(ClusterTopics(found), config)
    await client.start()
    return client


@dataclass(frozen=True)
class ClusterTopics:
    """``TopicsPlace`` of a cluster that was found."""

    found: FoundCluster

    def directory(self) -> MasterDirectory:
        # Here, so that nobody loads kazoo who never connects.
        from waltz_ray.coordination.zookeeper import KazooZooKeeper

        return MasterDirectory(KazooZooKeeper(self.found.zookeeper), self.found)

    def log(self, topic: str, config: ClientConfig | None = None) -> WaltzClient:
        return connect_log(self.found.name, zookeeper=self.found.zookeeper, space=topic, config=config)

    async def log_async(self, topic: str, config: ClientConfig | None = None) -> AsyncWaltzClient:
        return await connect_log_async(self.found.name, zookeeper=self.found.zookeeper, space=topic, config=config)


class MasterDirectory:
    """``TopicDirectory`` of what the actors have registered in ZooKeeper. Owns ``zookeeper``."""

    def __init__(self, zookeeper: ZooKeeper, found: FoundCluster) -> None:
        self._zookeeper = zookeeper
        try:
            self._store = ClusterStore(zookeeper, found.name)
            info = self._store.info()
            check_key(found, info)
        except BaseException:
            zookeeper.close()
            raise
        self.cluster_key = str(info.cluster_key)
        self._units = UnitStore[int](zookeeper, found.name, "topic", SLOTS, SlotSplitting(lambda: 1))

    def watch(self, callback: Callable[[Sequence[Endpoint]], None]) -> Callable[[], None]:
        def told(members: dict[int, UnitMember]) -> None:
            callback([member.endpoint for _, member in sorted(members.items())])

        return self._units.watch_members(told).cancel

    def partitions(self, topic: str) -> int:
        space = self._store.spaces.get(topic)
        if space.kind != "topic":
            raise InvalidInput(f"space {topic!r} is of kind {space.kind}, not topic; see waltz space list")
        return space.count

    def close(self) -> None:
        self._zookeeper.close()
