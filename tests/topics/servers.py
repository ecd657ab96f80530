"""Topic actors with a ZooKeeper and a manager's part in memory: everything but Ray and kv actors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.topics.actors import LIMIT_S, MemoryOffsets
from tests.topics.foreign_client import ForeignClient
from waltz_ray import compat
from waltz_ray.actors.topic_slots import TopicSlots
from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.config import TopicConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper
from waltz_ray.protocol.spaces import Space
from waltz_ray.testing import InMemoryCluster
from waltz_ray.topics.serving.topic_server import TopicServer

CLUSTER = "memory"


class TopicCluster:
    def __init__(self, log: InMemoryCluster, config: TopicConfig) -> None:
        self.log, self.config = log, config
        self.offsets = MemoryOffsets()
        self.servers: dict[int, TopicServer] = {}
        self.sessions: dict[int, MemoryZooKeeper] = {}
        self.clients: list[ForeignClient] = []
        self.wanted, self.key = 0, ""
        self.created: set[str] = set()
        self._manager = log._zookeeper.client()
        self._slots = TopicSlots(self._manager, CLUSTER, lambda: True, lambda: self.wanted, 0.05)

    async def start(self, actors: int) -> None:
        self.wanted = actors
        await self._slots.start()
        for actor in range(actors):
            await self.add(actor)

    async def add(self, actor: int) -> TopicServer:
        async def connect(space: Space) -> AsyncWaltzClient:
            return await self.log.connect_async(space=space.name)

        session = self.sessions[actor] = self.log._zookeeper.client()
        self.key = str(ClusterStore(session, CLUSTER).info().cluster_key)
        server = TopicServer(actor, CLUSTER, self.key, session, self.config, connect, self.offsets)
        self.servers[actor] = server
        await server.start()
        return server

    async def end(self, actor: int) -> None:
        """As at a shutdown."""
        await self.servers.pop(actor).close()
        self.sessions.pop(actor).close()

    async def create(self, topic: str, partitions: int) -> None:
        await asyncio.to_thread(self.log.create_space, topic, partitions, "topic")
        self.created.add(topic)

    async def delete(self, topic: str) -> None:
        self.created.remove(topic)
        await asyncio.to_thread(self.log.delete_space, topic)

    def settled(self) -> bool:
        """Everybody serves what it should, and the master knows where."""
        said = [server.status() for server in self.servers.values()]
        if not all(each.serving and each.incarnation for each in said):
            return False
        topics = {name: count for each in said for name, count in each.topics.items()}
        if any(not self.created <= set(each.topics) for each in said):
            return False
        slots = sorted(slot for server in self.servers.values() for slot in server.node.ports)
        if slots != list(range(1, max(topics.values(), default=0) + 1)) or self.leader() is None:
            return False
        ports = {slot: port for server in self.servers.values() for slot, port in server.node.ports.items()}
        return all(
            {slot: place.port for slot, place in server.master._table.slots.items()} == ports
            for server in self.servers.values()
        )

    def leader(self) -> int | None:
        leading = [actor for actor, server in self.servers.items() if server.master.machine.leads]
        return leading[0] if len(leading) == 1 else None

    async def master(self, actor: int | None = None) -> ForeignClient:
        actor = self.leader() if actor is None else actor
        assert actor is not None
        endpoint = self.servers[actor].endpoint
        assert endpoint is not None
        return await self.client(endpoint.port)

    async def client(self, port: int, ssl: Any = None) -> ForeignClient:
        client = await ForeignClient.open(port, ssl=ssl)
        self.clients.append(client)
        return client

    async def until(self, what: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        async with compat.timeout(limit_s):
            while not what():
                await asyncio.sleep(0.01)  # polling interval, not synchronisation

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        await self._slots.close()
        for actor in list(self.servers):
            await self.end(actor)
        self._manager.close()


@asynccontextmanager
async def topic_cluster(actors: int, **config: Any) -> AsyncIterator[TopicCluster]:
    settings = {"session_ms": 1000, "lease_margin_ms": 300, "balance_ms": 20, "hold_ms": 0, **config}
    async with InMemoryCluster(servers=2) as log:
        found = TopicCluster(log, TopicConfig(**settings))
        try:
            await found.start(actors)
            yield found
        finally:
            await found.close()
