"""Producers of the topic: those that speak the protocol with slots, and native ones, which append by themselves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.process import CLUSTER, Process
from tests.simulation.topic_actors import log_client
from tests.simulation.topic_history import Sent
from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.client.client import WaltzClient
from waltz_ray.config import ClientConfig
from waltz_ray.errors import ClientClosed, PartitionNotReady, TopicRefused, WaltzError, WireError
from waltz_ray.finding.find import FoundCluster
from waltz_ray.net.connector import connect
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics.client.aio import AsyncTopicClient
from waltz_ray.topics.client.connecting import MasterDirectory
from waltz_ray.topics.client.links import TopicLink
from waltz_ray.topics.client.producer import AsyncTopicProducer
from waltz_ray.topics.client.settings import TopicClientConfig
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.messages_producer import (
    RegisterRequestP2M,
    RegisterResponseM2P,
    SendMessageRequestP2B,
    SendMessageResponseB2P,
)
from waltz_ray.topics.payload import check_sum
from waltz_ray.topics.rpc import RpcFault
from waltz_ray.topics.texts import parse_broker
from waltz_ray.topics.wire import TopicRequest, TopicResponse

if TYPE_CHECKING:
    from tests.simulation.topics import TopicPart

__all__ = ["Asking", "SimForeignProducer", "SimNativeProducer", "SimTopicsPlace"]

_AGAIN_S = 0.2


class SimTopicsPlace:
    """``TopicsPlace`` of the simulated cluster, for one process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def directory(self) -> MasterDirectory:
        """Over the process's own session."""
        assert self._process.zookeeper is not None
        return MasterDirectory(self._process.zookeeper, FoundCluster(CLUSTER, "simulated"))

    def log(self, topic: str, config: ClientConfig | None = None) -> WaltzClient:
        raise AssertionError("there are no threads here")

    async def log_async(self, topic: str, config: ClientConfig | None = None) -> AsyncWaltzClient:
        return await log_client(self._process, topic, replace(config or ClientConfig(), quick_mounts_ms=0))


class Asking(Process):
    """A client of the protocol: its connections, one with each address, and requests on them."""

    def __init__(self, part: TopicPart, name: str, random: Random) -> None:
        super().__init__(part.world, name, session_s=6.0)
        self.part, self.random = part, random
        self.timeout_s = random.choice([0.5, 2.0, 5.0])
        self._links: dict[Endpoint, TopicLink] = {}

    def begin_asking(self) -> None:
        """A new life, without connections."""
        self.begin()
        self._links = {}

    async def link(self, endpoint: Endpoint) -> TopicLink:
        """The connection there is, or a new one. OSError."""
        link = self._links.get(endpoint)
        if link is None or link.ended:
            link = self._links[endpoint] = await connect(lambda: TopicLink(endpoint), *endpoint, self.timeout_s)
        return link

    async def ask(self, endpoint: Endpoint, request: TopicRequest) -> TopicResponse | RpcFault | None:
        """None: no answer came."""
        try:
            link = await self.link(endpoint)
            return await link.ask(request, self.timeout_s)
        except TimeoutError:
            if self.random.random() < 0.5:
                self.drop(endpoint)
            return None
        except (OSError, WireError):
            return None

    def drop(self, endpoint: Endpoint) -> None:
        """Give the connection up."""
        link = self._links.pop(endpoint, None)
        if link is not None:
            link.finish("given up")

    async def ask_master(self, request: TopicRequest) -> TopicResponse | None:
        """Whoever leads, if he answers."""
        for actor in self.random.sample(self.part.actors, len(self.part.actors)):
            answer = await self.ask(actor.master, request)
            if answer is not None and not isinstance(answer, RpcFault):
                return answer
        return None


class SimForeignProducer(Asking):
    """``working`` False: it sends nothing new. Several messages are under way on a connection at a time."""

    def __init__(self, part: TopicPart, number: int, random: Random) -> None:
        super().__init__(part, f"topic-producer-{number}", random)
        self.working = True
        self.busy = 0
        """Messages without a fate."""
        self._pace_s = random.uniform(0.005, 0.05)
        self._most = random.choice([1, 4, 20])
        self._slots: dict[int, Endpoint] = {}
        self._count = self._lines = 0
        self._names: dict[TopicLink, str] = {}

    def start(self) -> None:
        self.begin_asking()
        self._slots, self._names, self.busy = {}, {}, 0
        self.spawn(self._live())

    def kill(self, why: str, silent_s: float = 0.0) -> None:
        super().kill(why, silent_s)
        self.busy = 0

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(1 / self._pace_s))
            if not self.working or self.busy >= self._most:
                continue
            partition = self.random.randrange(len(self.part.partitions))
            endpoint = self._slots.get(partition + 1)
            if endpoint is None or self.random.random() < 0.02:
                await self._look_up()
                continue
            try:
                link = await self.link(endpoint)
            except OSError:
                self._slots.pop(partition + 1, None)
                await asyncio.sleep(_AGAIN_S)
                continue
            self.busy += 1
            self.spawn(self._send(endpoint, link, partition))
            await asyncio.sleep(0)  # it is written before the next one

    async def _look_up(self) -> None:
        request = RegisterRequestP2M(self.host, (self.part.topic,), -1, self.host)
        answer = await self.ask_master(request)
        if isinstance(answer, RegisterResponseM2P) and answer.success:
            found = map(parse_broker, answer.broker_infos)
            self._slots = {each.broker_id: Endpoint(each.host, each.port) for each in found}
        else:
            await asyncio.sleep(_AGAIN_S)

    async def _send(self, endpoint: Endpoint, link: TopicLink, partition: int) -> None:
        self._count += 1
        body = f"{self.loop.name}/{self._count}".encode()
        if link not in self._names:
            self._lines += 1
            self._names[link] = f"{self.loop.name}, connection {self._lines}"
        sent = self.part.history.sends(body, partition, self._names[link], self.part.actor_on(endpoint.host))
        msg_type = self.random.choice(self.part.types)
        request = SendMessageRequestP2B(
            self.host, self.part.topic, 0, body, 0, check_sum(body), 0, msg_type or None, "202611232200"
        )
        answer: TopicResponse | RpcFault | None
        try:
            answer = await link.ask(request, self.timeout_s)
        except (OSError, WireError):
            answer = None
        self.busy -= 1
        if isinstance(answer, SendMessageResponseB2P):
            self._answered(sent, answer, partition)
        else:
            self._slots.pop(partition + 1, None)

    def _answered(self, sent: Sent, answer: SendMessageResponseB2P, partition: int) -> None:
        if answer.success:
            assert answer.message_id is not None
            self.part.history.committed(sent, answer.message_id)
        elif answer.err_code in (TopicCode.NOT_READY, TopicCode.FORBIDDEN):
            self.part.history.refused(sent)
            self._slots.pop(partition + 1, None)
        elif answer.err_code != TopicCode.INTERNAL_ERROR:
            raise AssertionError(f"a slot answers with {answer.err_code}: {answer.err_msg}")


class SimNativeProducer(Process):
    """The native client. ``working`` False: it sends nothing new."""

    def __init__(self, part: TopicPart, number: int, random: Random) -> None:
        super().__init__(part.world, f"topic-producer-{number}", session_s=6.0)
        self.part, self.random = part, random
        self.working = True
        self.busy = 0
        """Messages without a fate."""
        self._pace_s = random.uniform(0.01, 0.1)
        self._most = random.choice([1, 4, 20])
        self._count = 0

    def start(self) -> None:
        self.begin()
        self.busy = 0
        self.spawn(self._live())

    def kill(self, why: str, silent_s: float = 0.0) -> None:
        super().kill(why, silent_s)
        self.busy = 0

    async def _live(self) -> None:
        config = TopicClientConfig(timeout_s=self.random.choice([1.0, 4.0]), heartbeat_s=0.4)
        client = AsyncTopicClient(SimTopicsPlace(self), config)
        await client.start()
        client._process = 0  # who is killed closes nothing, and is not told so
        producer = client.producer()
        while True:
            await asyncio.sleep(self.random.expovariate(1 / self._pace_s))
            if self.working and self.busy < self._most:
                await self._send(producer)

    async def _send(self, producer: AsyncTopicProducer) -> None:
        self._count += 1
        body, partition = f"{self.loop.name}/{self._count}".encode(), self.random.randrange(len(self.part.partitions))
        msg_type = self.random.choice(self.part.types)
        self.busy += 1
        try:
            # What is sent is noted once it is: to begin it may fail.
            begun = await producer.begin(self.part.topic, body, msg_type, partition=partition)
        except (PartitionNotReady, TopicRefused):
            self.busy -= 1
            return
        sent = self.part.history.sends(body, partition, self.loop.name, None)
        self.spawn(self._ended(sent, begun))

    async def _ended(self, sent: Sent, begun: asyncio.Task[object]) -> None:
        try:
            where = await begun
        except ClientClosed:
            raise
        except WaltzError:
            where = None
        self.busy -= 1
        if where is not None:
            self.part.history.committed(sent, where.offset)  # type: ignore[attr-defined]
