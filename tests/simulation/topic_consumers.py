"""Members of groups: those that speak the protocol with slots, and native ones, which are fed by the log itself."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.process import Process
from tests.simulation.topic_producers import Asking, SimTopicsPlace
from waltz_ray.errors import PartitionNotReady, TopicRefused, TopicUnknownFate
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics.client.aio import AsyncTopicClient
from waltz_ray.topics.client.consumer import AsyncTopicConsumer
from waltz_ray.topics.client.messages import MessageBatch
from waltz_ray.topics.client.settings import TopicClientConfig
from waltz_ray.topics.codes import BrokerOperation, TopicCode
from waltz_ray.topics.groups.events import OrderStatus, RebalanceOp
from waltz_ray.topics.messages import EventProto
from waltz_ray.topics.messages_consumer import (
    CommitOffsetRequestC2B,
    CommitOffsetResponseB2C,
    GetMessageRequestC2B,
    GetMessageResponseB2C,
    HeartBeatRequestC2B,
    HeartBeatResponseB2C,
    HeartRequestC2M,
    HeartResponseM2C,
    RegisterRequestC2B,
    RegisterRequestC2M,
    RegisterResponseB2C,
    RegisterResponseM2C,
)
from waltz_ray.topics.texts import condition_text, parse_failure, parse_subscription

if TYPE_CHECKING:
    from tests.simulation.topics import TopicPart

__all__ = ["SimForeignConsumer", "SimGroup", "SimNativeConsumer"]

_LOST = (TopicCode.MOVED, TopicCode.HB_NO_NODE, TopicCode.DUPLICATE_PARTITION)
"""A slot that says so has nothing for this consumer any more."""
_CONNECTS = (RebalanceOp.CONNECT, RebalanceOp.ONLY_CONNECT)


class SimGroup(NamedTuple):
    """``types``: of messages that it wants; none: all."""

    name: str
    types: frozenset[str]


class SimForeignConsumer(Asking):
    """One that confirms by hand, after it has done something with what it was given."""

    def __init__(self, part: TopicPart, group: SimGroup, number: int, random: Random) -> None:
        super().__init__(part, f"topic-{group.name}-{number}", random)
        self.group = group
        self._pace_s = random.uniform(0.005, 0.1)
        self._beat_s = random.uniform(0.1, 0.3) * part.client_ms / 1000
        self._has: dict[str, int] = {}
        """Which registration it is: what was begun under an older one is not gone on with."""
        self._registrations = 0
        self._event: EventProto | None = None
        self._registered = False

    @property
    def partitions(self) -> list[int]:
        """Of the topic, that it has."""
        return [_partition_of(each) for each in self._has]

    def hurry(self) -> None:
        """There is little time left to consume the rest."""
        self._pace_s = 0.005

    @property
    def _id(self) -> str:
        return self.loop.name

    def start(self) -> None:
        self.begin_asking()
        self._has, self._event, self._registered = {}, None, False
        self.spawn(self._live())
        self.spawn(self._renew())

    # ---- the master

    async def _live(self) -> None:
        while True:
            if self._registered:
                await self._beat()
            else:
                await self._register()
            await asyncio.sleep(self._beat_s)

    async def _register(self) -> None:
        condition = (condition_text(self.part.topic, self.group.types),) if self.group.types else ()
        request = RegisterRequestC2M(
            self._id, self.group.name, self.host, (self.part.topic,), tuple(self._has), condition
        )
        answer = await self.ask_master(request)
        if isinstance(answer, RegisterResponseM2C):
            assert answer.success, answer.err_msg
            self._registered, self._event = True, None

    async def _beat(self) -> None:
        answer = await self.ask_master(HeartRequestC2M(self._id, self.group.name, tuple(self._has), True, self._event))
        if not isinstance(answer, HeartResponseM2C):
            return
        if answer.err_code == TopicCode.HB_NO_NODE:
            self._registered = False
            return
        assert answer.success, answer.err_msg
        self._event = None
        if answer.event is not None:
            event = answer.event
            for each in event.subscribe_info:
                await (self._connect(each) if event.op_type in _CONNECTS else self._leave(each))
            self._event = EventProto(event.rebalance_id, event.op_type, OrderStatus.DONE, event.subscribe_info)

    # ---- slots

    def try_at(self, slot: Endpoint) -> None:
        """Ask there, as who has heard of nothing else; who has the partition there would begin it anew."""
        if all(_endpoint_of(each) != slot for each in self._has):
            self.spawn(self._try_at(slot))

    async def _try_at(self, slot: Endpoint) -> None:
        await self.ask(slot, self._registration(BrokerOperation.REGISTER))

    def _registration(self, operation: BrokerOperation) -> RegisterRequestC2B:
        """Who logs out has not done with what it was given last."""
        read_status = int(operation is BrokerOperation.LOGOUT)
        types = tuple(sorted(self.group.types))
        return RegisterRequestC2B(operation, self._id, self.group.name, self.part.topic, 0, read_status, types)

    async def _connect(self, subscription: str) -> None:
        answer = await self.ask(_endpoint_of(subscription), self._registration(BrokerOperation.REGISTER))
        if isinstance(answer, RegisterResponseB2C) and answer.success and subscription not in self._has:
            self._registrations += 1
            self._has[subscription] = self._registrations
            self.spawn(self._consume(subscription, self._registrations))

    async def _leave(self, subscription: str) -> None:
        if subscription in self._has:
            del self._has[subscription]
            await self.ask(_endpoint_of(subscription), self._registration(BrokerOperation.LOGOUT))

    async def _lost(self, subscription: str) -> None:
        """The master gives it to somebody; some ask the slot again before that."""
        if self._has.pop(subscription, None) is not None and self.random.random() < 0.5:
            await self._connect(subscription)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._beat_s)
            for subscription in list(self._has):
                place = str(parse_subscription(subscription).place)
                request = HeartBeatRequestC2B(self._id, self.group.name, 0, (place,))
                answer = await self.ask(_endpoint_of(subscription), request)
                if isinstance(answer, HeartBeatResponseB2C):
                    codes = [parse_failure(each).code for each in answer.failure_info]
                    if any(code in _LOST for code in codes):
                        await self._lost(subscription)

    async def _consume(self, subscription: str, registration: int) -> None:
        """Until it is ours no more. After a pull without an answer, what it may have brought is asked for again."""
        endpoint, missed = _endpoint_of(subscription), False
        while True:
            await asyncio.sleep(self.random.expovariate(1 / self._pace_s))
            if self._has.get(subscription) != registration:
                return
            if missed:
                missed = await self._confirm(endpoint, False) != TopicCode.OK
                continue
            given_s = self.world.scheduler.now
            pull = GetMessageRequestC2B(self._id, 0, self.group.name, self.part.topic, True, True)
            answer = await self.ask(endpoint, pull)
            if not isinstance(answer, GetMessageResponseB2C):
                missed = True
            elif answer.err_code in _LOST:
                await self._lost(subscription)
            elif answer.success:
                found = [(each.message_id, each.pay_load_data) for each in answer.messages]
                self.part.history.given(self.group.name, _partition_of(subscription), found)
                await asyncio.sleep(self.random.expovariate(1 / self._pace_s))
                if self._has.get(subscription) == registration:
                    self.part.history.done(self.group.name, _partition_of(subscription), [at for at, _ in found])
                code: int | None = TopicCode.UNAVAILABLE
                while self._has.get(subscription) == registration and code in (None, TopicCode.UNAVAILABLE):
                    code = await self._confirm(endpoint, True)
                if code == TopicCode.OK:
                    where = self.group.name, _partition_of(subscription)
                    self.part.history.confirmed(*where, [at for at, _ in found], given_s)

    async def _confirm(self, endpoint: Endpoint, consumed: bool) -> int | None:
        """The code; None: no answer came."""
        request = CommitOffsetRequestC2B(self._id, self.part.topic, 0, self.group.name, consumed)
        answer = await self.ask(endpoint, request)
        return answer.err_code if isinstance(answer, CommitOffsetResponseB2C) else None


class SimNativeConsumer(Process):
    """The native client; some batches are confirmed and waited for, others not."""

    def __init__(self, part: TopicPart, group: SimGroup, number: int, random: Random) -> None:
        super().__init__(part.world, f"topic-{group.name}-{number}", session_s=6.0)
        self.part, self.group, self.random = part, group, random
        self._pace_s = random.choice([0.01, 0.1, 0.6])
        self._most = random.choice([3, 50, 1000])
        self._consumer: AsyncTopicConsumer | None = None
        self.at_work_on: int | None = None
        """The partition of the batch that it is dealing with."""
        self.slow_until_s = 0.0
        """Until then it is not done with any."""

    @property
    def partitions(self) -> list[int]:
        """Of the topic, that it has."""
        return [] if self._consumer is None else [partition for _, partition in self._consumer.partitions]

    def hurry(self) -> None:
        """There is little time left to consume the rest."""
        self._pace_s = 0.005

    def start(self) -> None:
        self.begin()
        self._consumer, self.at_work_on = None, None
        self.spawn(self._live())

    async def _live(self) -> None:
        beat_s = self.random.uniform(0.1, 0.3) * self.part.client_ms / 1000
        config = TopicClientConfig(timeout_s=self.random.choice([0.5, 2.0, 5.0]), heartbeat_s=beat_s, ahead_bytes=4096)
        client = AsyncTopicClient(SimTopicsPlace(self), config)
        await client.start()
        client._process = 0  # who is killed closes nothing, and is not told so
        while True:
            await self._consume(client)

    async def _consume(self, client: AsyncTopicClient) -> None:
        """Until the group has no place for it."""
        consumer = client.consumer(self.group.name, {self.part.topic: self.group.types})
        try:
            await consumer.start()
        except PartitionNotReady:
            await consumer.close()
            return
        self._consumer = consumer
        while True:
            await self.take(consumer)

    async def take(self, consumer: AsyncTopicConsumer) -> None:
        """A batch, if one comes, and deal with it."""
        batch = await consumer.pull(self._most, timeout=1.0)
        if batch is None:
            return
        given_s, history, group = self.world.scheduler.now, self.part.history, self.group.name
        found = [(message.offset, message.data) for message in batch]
        history.given(group, batch.partition, found)
        self.at_work_on = batch.partition
        await asyncio.sleep(self.random.expovariate(1 / self._pace_s))
        await asyncio.sleep(max(0.0, self.slow_until_s - self.world.scheduler.now))
        self.at_work_on = None
        offsets = [offset for offset, _ in found]
        history.done(group, batch.partition, offsets)
        if self.random.random() < 0.3:
            consumer.consumed(batch)
        elif await self._confirmed(consumer, batch):
            history.confirmed(group, batch.partition, offsets, given_s)

    async def _confirmed(self, consumer: AsyncTopicConsumer, batch: MessageBatch) -> bool:
        try:
            await consumer.confirm(batch)
        except (TopicRefused, TopicUnknownFate):
            return False
        return True


def _partition_of(subscription: str) -> int:
    return parse_subscription(subscription).place.broker.broker_id - 1


def _endpoint_of(subscription: str) -> Endpoint:
    broker = parse_subscription(subscription).place.broker
    return Endpoint(broker.host, broker.port)
