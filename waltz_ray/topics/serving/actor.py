"""``topic/<n>``: the Ray shell around the slots that one actor serves, and the master if it leads."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from dataclasses import replace

from waltz_ray import kv
from waltz_ray.actors.actor_log import begin_log
from waltz_ray.actors.member_credentials import kv_credentials, member_credentials
from waltz_ray.actors.metrics import TopicGauges, keep_telling
from waltz_ray.actors.process_tuning import quieten_garbage_collector, take_normal_priority
from waltz_ray.actors.settings import own_host, own_settings
from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.config import ClientConfig, TopicConfig
from waltz_ray.connecting import connect_member
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.pulse import ZooKeeperPulse
from waltz_ray.coordination.unit_lease import agreed_session_ms
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.protocol.spaces import OFFSETS_SPACE, Space
from waltz_ray.runtime.process import about_process
from waltz_ray.runtime.status import ActorState, TopicActorStatus
from waltz_ray.topics.groups.status import GroupStatus
from waltz_ray.topics.serving.offsets import KvOffsets
from waltz_ray.topics.serving.topic_server import TopicServer

__all__ = ["TopicActor"]

log = logging.getLogger(__name__)

_CLIENT = ClientConfig(mount_timeout_ms=8_000, request_timeout_ms=5_000)
"""Less than a client of the protocol waits: it is told."""


class TopicActor:
    """An async actor. Every method may be called again after a lost answer; none is on the data path."""

    def __init__(self, cluster: str, zookeeper: str, actor_id: int) -> None:
        begin_log(cluster, f"topic/{actor_id}")
        self._cluster = cluster
        self._connect_string = zookeeper
        self._actor_id = actor_id
        self._config = TopicConfig()  # once it has started: the cluster's
        self._zookeeper: KazooZooKeeper | None = None
        self._pulse: ZooKeeperPulse | None = None
        self._items: kv.AsyncKvClient | None = None
        self._server: TopicServer | None = None
        self._starting: asyncio.Task[None] | None = None
        self._metrics: asyncio.Task[None] | None = None
        self._failure = ""

    async def start(self) -> None:
        """Idempotent: it is registered and follows the cluster's topics when it returns. Errors say what to do."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        try:
            await asyncio.shield(self._starting)
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"
            if self._starting is not None and self._starting.done():
                self._starting = None  # the next call tries again
            raise

    async def health(self) -> bool:
        """Whether it serves what it should."""
        return (await self.status()).serving

    async def status(self) -> TopicActorStatus:
        """What it says of itself. Waits for nothing."""
        if self._server is None or self._pulse is None:
            reason = self._failure or "it has not been told to start, or waits for ZooKeeper"
            return TopicActorStatus(state=ActorState.STARTING, reason=reason, pid=os.getpid(), actor=self._actor_id)
        own = about_process()
        return replace(self._server.status(), pid=os.getpid(), process=own, zookeeper=self._pulse.view())

    async def groups(self) -> list[GroupStatus] | None:
        """What the master knows of groups of consumers; None: this actor is not the master."""
        return None if self._server is None else self._server.groups()

    async def shutdown(self) -> None:
        """Leave: what it has is given to others; the actor is of no use afterwards."""
        if self._metrics is not None:
            self._metrics.cancel()
            with suppress(asyncio.CancelledError):
                await self._metrics
        server, self._server = self._server, None
        if server is not None:
            await server.close()
        if self._items is not None:
            await self._items.close()
        if self._pulse is not None:
            self._pulse.close()
        if self._zookeeper is not None:
            await asyncio.to_thread(self._zookeeper.close)

    # ----

    async def _start(self) -> None:
        take_normal_priority()
        if self._zookeeper is None:
            self._zookeeper = await asyncio.to_thread(self._connected)
        if self._items is None:
            where = self._connect_string
            shown = await asyncio.to_thread(kv_credentials, ClusterStore(self._zookeeper, self._cluster))
            self._items = await kv.connect_async(self._cluster, OFFSETS_SPACE, zookeeper=where, credentials=shown)
        key = str((await asyncio.to_thread(ClusterStore(self._zookeeper, self._cluster).info)).cluster_key)
        offsets = KvOffsets(self._items)
        server = TopicServer(
            self._actor_id, self._cluster, key, self._zookeeper, self._config, self._client_of, offsets
        )
        try:
            await server.start()
            self._pulse = ZooKeeperPulse(self._zookeeper, f"/{self._cluster}")
        except BaseException:
            await server.close()
            raise
        self._server, self._failure = server, ""
        self._metrics = asyncio.ensure_future(self._export(TopicGauges(self._cluster, str(self._actor_id))))
        quieten_garbage_collector()

    def _connected(self) -> KazooZooKeeper:
        """With the cluster's settings as they are now. Blocks."""
        config = own_settings(self._cluster, self._connect_string).config.topics
        client = KazooZooKeeper(self._connect_string, config.session_ms)
        try:
            session_ms = agreed_session_ms(f"topic/{self._actor_id}", config.session_ms, client.session_timeout_ms)
            self._config = replace(config, host=own_host(config.host), session_ms=session_ms)
        except BaseException:
            client.close()
            raise
        return client

    async def _client_of(self, space: Space) -> AsyncWaltzClient:
        assert self._zookeeper is not None
        shown = await asyncio.to_thread(member_credentials, ClusterStore(self._zookeeper, self._cluster))
        return await connect_member(self._connect_string, self._cluster, space.name, shown, _CLIENT)

    async def _export(self, gauges: TopicGauges) -> None:
        async def tell() -> None:
            gauges.actor(await self.status())

        await keep_telling(f"topic/{self._actor_id}", tell)
