"""What groups consume of the partitions of one actor: a ``Delivery`` for each (group, partition), driven.

Orders end in one fact each: offsets are taken and stored by ``Offsets``, batches read by ``batch_reading``. A pull for
which there is nothing new is held back for a moment, and looks when there is something.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, NamedTuple

from waltz_ray.errors import DataUnavailable, InvalidInput, WaltzError
from waltz_ray.topics import delivery_rules as rules
from waltz_ray.topics import delivery_types as t
from waltz_ray.topics.access import KnownClient
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.delivery import Delivery
from waltz_ray.topics.flow_rules import NO_RULES, FlowRules
from waltz_ray.topics.offset_item import offset_name
from waltz_ray.topics.serving.batch_reading import read_batch, read_from_memory
from waltz_ray.topics.serving.offsets import OffsetPlace, Offsets, OffsetsAway, TakenOffset
from waltz_ray.topics.serving.own_tasks import OwnTasks
from waltz_ray.topics.serving.slot_partition import SlotPartition

__all__ = ["ConsumerRights", "Deliveries", "GroupDelivery", "passed_ms", "unix_ms"]

log = logging.getLogger(__name__)

_LEASES_S = 1.0
_MOST_GROUPS = 4096  # of one partition
_MOST_CONSUMERS = 64  # whose connections are remembered: one has the partition, others try to get it

Replied = Callable[[t.DeliveryReply], None]


class _HeldPull(NamedTuple):
    consumer: str
    reply: t.DeliveryReply
    timer: asyncio.TimerHandle


class ConsumerRights(NamedTuple):
    """Who has registered last, and for what: his rights may be taken away."""

    consumer: str
    known: KnownClient
    filters: frozenset[str]


def unix_ms() -> int:
    """Milliseconds since 1970, as the system's clock has them: messages are dated by it, rules of flow hold by it, and
    what clients show is compared with it."""
    return time.time_ns() // 1_000_000


def passed_ms() -> int:
    """Milliseconds, by a clock that nobody sets: leases end by it, and waits."""
    return time.monotonic_ns() // 1_000_000


class GroupDelivery:
    """Of one group and one partition."""

    def __init__(self, owner: Deliveries, group: str, topic: str, partition: SlotPartition) -> None:
        self.group = group
        self.topic = topic
        self.machine = Delivery(owner.limits, owner.flow_of(group))
        self.registered: ConsumerRights | None = None
        self._owner = owner
        self._partition = partition
        self._lost_before = 0  # until the machine began to count, as the store has it
        self._replies: dict[int, Replied] = {}
        self._until_s: dict[int, float] = {}  # pulls that may wait
        self._held: dict[int, _HeldPull] = {}
        self._connections: dict[str, int] = {}  # by consumer, that it has used last; who asked last is last

    def ask(
        self, make: Callable[[int], t.DeliveryRequest | t.LeaseRenewed], told: Replied, connection: int = 0
    ) -> None:
        """A request, made with its token. ``connection``: over which a consumer sends it, whose requests of older ones
        he has given up; 0: of one that says by itself what it is about."""
        token = self._owner.next_token()
        request = make(token)
        if connection and not isinstance(request, t.ResetAsked | t.LeaseRenewed):
            if not rules.is_present(connection, self._connections.get(request.consumer, 0)):
                text = "this connection was given up: what it brings late is not done"
                told(t.DeliveryReply(token, TopicCode.BAD_REQUEST, text))
                return
            self._asks_over(request.consumer, connection)
            self._let_go_of_all(request.consumer)
        self._replies[token] = told
        if isinstance(request, t.PullAsked) and self._owner.hold_s:
            self._until_s[token] = asyncio.get_running_loop().time() + self._owner.hold_s
        self.step(request)

    def _replied(self, reply: t.DeliveryReply) -> None:
        """Give the reply; one that says that there is nothing new is kept for a while."""
        until_s = self._until_s.get(reply.token)
        status, loop = self.machine.status(), asyncio.get_running_loop()
        nothing = reply.code is TopicCode.NOT_FOUND and status.delivered >= self._partition.end
        if until_s is None or not nothing or loop.time() >= until_s or self._owner.flow_of(self.group) != NO_RULES:
            self._until_s.pop(reply.token, None)
            self._replies.pop(reply.token)(reply)
        else:
            timer = loop.call_at(until_s, self._let_go_of, reply.token)
            self._held[reply.token] = _HeldPull(status.consumer, reply, timer)

    def report(self, said: t.ProgressAsked, told: Replied, connection: int) -> None:
        """What a consumer says of what it has read by itself; what only this actor knows is still to be filled in. What
        it has read is known here a moment later, perhaps; nobody waits for what somebody claims who does not have the
        partition. He may have registered again by then, so it is of the lease that there is now."""
        consumer, offset, term = said.consumer, said.offset, self.machine.status().term

        def ask() -> None:
            end, at = self._partition.end, max(offset, self.machine.status().confirmed, 0)
            lag_bytes = int(max(0, end - at) * self._partition.fold.tail.record_bytes)
            known = replace(said, end=end, lag_bytes=lag_bytes, term=term)
            self.ask(lambda token: replace(known, token=token), told, connection)

        def behind(renewed: t.DeliveryReply) -> None:
            text = "what was read is not known here yet: say it again"
            told(replace(renewed, code=TopicCode.UNAVAILABLE, text=text) if renewed.code is TopicCode.OK else renewed)

        async def ask_later() -> None:
            await self._partition.settled(offset)
            if offset > self._partition.end and await self._may_be_in_the_log(offset):
                self.ask(lambda token: t.LeaseRenewed(token, consumer), behind)
            else:
                ask()

        if offset <= self._partition.end or self.machine.status().consumer != consumer:
            ask()
        else:
            self._owner.spawn(ask_later())

    def end_others(self, consumer: str) -> None:
        """The master has granted the partition to ``consumer``: who else has it has it no more. What he was given and
        has not confirmed comes again."""
        holder = self.machine.status().consumer
        if holder and holder != consumer:
            log.info("group %s: %s has been granted what %s still has", self.group, consumer, holder)
            self.ask(lambda token: t.PartitionGivenBack(token, holder, False), lambda reply: None)

    def grew(self) -> None:
        """There is more to be read: pulls that were held back look again, and say nothing of what was before."""
        for token in list(self._held):
            held = self._held.pop(token)
            held.timer.cancel()
            self.step(t.PullAsked(token, held.consumer, last_consumed=True, manual=True))

    def _asks_over(self, consumer: str, connection: int) -> None:
        self._connections.pop(consumer, None)
        self._connections[consumer] = connection
        if len(self._connections) > _MOST_CONSUMERS:
            del self._connections[next(iter(self._connections))]

    def _let_go_of_all(self, consumer: str) -> None:
        """What waits for something new has been given up by a client that asks anew: what it brought would be lost on
        its way, and be confirmed with what comes next."""
        for token, held in list(self._held.items()):
            if held.consumer == consumer:
                held.timer.cancel()
                self._let_go_of(token)

    def _let_go_of(self, token: int) -> None:
        del self._until_s[token]
        self._replies.pop(token)(self._held.pop(token).reply)

    def step(self, event: t.DeliveryEvent) -> None:
        """Tell the machine, and carry out what it orders."""
        for effect in self.machine.step(event, self._owner.now_ms(), self._owner.unix_ms()):
            match effect:
                case t.DeliveryReply():
                    self._replied(effect)
                case t.TakeOffset(number, asked):
                    self._owner.spawn(self._take(number, asked))
                case t.StoreOffset(number, offset, epoch):
                    self._owner.spawn(self._store(number, offset, epoch))
                case t.ReadBatch():
                    self._read(effect)
                case t.PartitionLost(consumer, reason):
                    text = "group %s: consumer %s has lost partition %d of topic %s: %s"
                    log.info(text, self.group, consumer, self._partition.partition, self.topic, reason)

    def stop(self) -> None:
        """The partition is served no more: everybody is told so."""
        self.step(t.DeliveryStops())
        for consumer in {held.consumer for held in self._held.values()}:
            self._let_go_of_all(consumer)

    @property
    def idle(self) -> bool:
        """It may be forgotten."""
        return self.machine.idle and not self._held and not self._replies

    def _place(self) -> OffsetPlace:
        partition = self._partition
        return OffsetPlace(self.group, self.topic, partition.partition, self._owner.actor, partition.epoch)

    async def _take(self, number: int, asked: int) -> None:
        taken = await self._owner.offsets.take(self._place())
        if isinstance(taken, OffsetsAway):
            self.step(t.OffsetUnknown(number, taken.reason))
            return
        try:
            first = await self._partition.first()
            await self._partition.settled(asked)
            await self._check_end(taken)
            if asked > self._partition.end and await self._may_be_in_the_log(asked):
                raise DataUnavailable(f"offset {asked} is not known here yet")
        except WaltzError as error:
            self.step(t.OffsetUnknown(number, str(error)))
            return
        # What it has counted may not be stored yet: then the store has less than it had before, and not more.
        self._lost_before = max(self._lost_before, taken.lost - self.machine.status().lost)
        self.step(t.OffsetTaken(number, taken.offset, taken.epoch, first, self._partition.end))

    async def _check_end(self, taken: TakenOffset) -> None:
        """A group may be behind the end of a log that a backup had, and never of one that is still to be read.
        DataUnavailable."""
        if taken.offset is None or taken.offset <= self._partition.end:
            return
        if await self._partition.log_end() > self._partition.end:
            raise DataUnavailable("the end of the log is not known here yet")
        text = "group %s is at %d of partition %d of topic %s, which ends at %d: restored from before? It goes on there"
        log.warning(text, self.group, taken.offset, self._partition.partition, self.topic, self._partition.end)

    async def _may_be_in_the_log(self, offset: int) -> bool:
        """Whether it is we who are behind, and not the log, as far as anybody can say."""
        try:
            return offset <= await self._partition.log_end()
        except WaltzError as error:
            log.info("partition %d of topic %s: %s", self._partition.partition, self.topic, error)
            return True

    async def _store(self, number: int, offset: int, epoch: int) -> None:
        lost = self._lost_before + self.machine.status().lost
        stored = await self._owner.offsets.store(self._place(), offset, epoch, lost)
        if isinstance(stored, OffsetsAway):
            self.step(t.OffsetUnknown(number, stored.reason))
        else:
            self.step(t.OffsetKept(number) if stored else t.OffsetFenced(number))

    def _read(self, order: t.ReadBatch) -> None:
        found = read_from_memory(self._partition, order)
        if found is not None:
            asyncio.get_running_loop().call_soon(self.step, found)
        else:
            self._owner.spawn(self._read_log(order))

    async def _read_log(self, order: t.ReadBatch) -> None:
        found = await read_batch(self._partition, order)
        if isinstance(found, t.BatchTrimmed):
            text = "group %s: partition %d of topic %s begins with %d now; from %d on nothing was consumed"
            log.warning(text, self.group, self._partition.partition, self.topic, found.first, order.offset)
        self.step(found)


class Deliveries:
    """All of one actor. In one event loop."""

    def __init__(
        self,
        actor: int,
        offsets: Offsets,
        limits: t.DeliveryLimits | None = None,
        flow_of: Callable[[str], FlowRules] = lambda group: NO_RULES,
        hold_s: float = 0.2,
    ) -> None:
        """``hold_s``: how long a pull waits for something new."""
        self.actor = actor
        self.offsets = offsets
        self.limits = limits or t.DeliveryLimits()
        self.flow_of = flow_of
        self.hold_s = hold_s
        self.now_ms: Callable[[], int] = passed_ms
        self.unix_ms: Callable[[], int] = unix_ms
        self.delivered = 0
        """Messages."""
        self._tokens = itertools.count(1)
        self._of: dict[tuple[str, int], dict[str, GroupDelivery]] = defaultdict(dict)
        self.tasks = OwnTasks(f"topic/{actor}")
        self._ticker: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Look after leases from now on."""
        self._ticker = asyncio.get_running_loop().call_later(_LEASES_S, self._tick)

    async def close(self) -> None:
        """End everything; who waits is told. Idempotent."""
        if self._ticker is not None:
            self._ticker.cancel()
        for groups in self._of.values():
            for each in groups.values():
                each.stop()
        self._of.clear()
        self._closed = True
        await self.tasks.stop()

    def is_limited(self, group: str) -> bool:
        """Whether there are rules of how fast it may consume."""
        return self.flow_of(group) != NO_RULES

    def next_token(self) -> int:
        return next(self._tokens)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done, until this is closed."""
        self.tasks.begin(work, "a delivery has failed")

    # ---- requests

    def of(self, topic: str, partition: SlotPartition, group: str) -> GroupDelivery | None:
        """What there is of a group; None: it has not been here."""
        return self._of.get((topic, partition.partition), {}).get(group)

    def begun(self, topic: str, partition: SlotPartition, group: str) -> GroupDelivery:
        """What there is of a group, from now on. InvalidInput if its name is too long, or there are too many."""
        groups = self._of[topic, partition.partition]
        if group not in groups:
            offset_name(group, topic, partition.partition)
            if len(groups) >= _MOST_GROUPS:
                raise InvalidInput(f"{len(groups)} groups consume the partition already: no further one can")
            groups[group] = GroupDelivery(self, group, topic, partition)
        return groups[group]

    # ---- what changes

    def changed(self, topic: str, partition: SlotPartition) -> None:
        """A partition is served, or not any more, or has grown."""
        groups = self._of.get((topic, partition.partition))
        if not groups:
            return
        if partition.serving:
            for each in groups.values():
                each.grew()
        else:
            self.gone(topic, partition)

    def gone(self, topic: str, partition: SlotPartition) -> None:
        """A partition is not served here any more."""
        for each in self._of.pop((topic, partition.partition), {}).values():
            each.stop()

    def flow_changed(self) -> None:
        """Rules of groups are others now."""
        for groups in self._of.values():
            for group, each in groups.items():
                each.step(t.FlowChanged(self.flow_of(group)))

    def _tick(self) -> None:
        try:
            self._look_after_leases()
        except Exception as error:
            self.tasks.failed("no lease ends any more", error)
            raise
        self.start()

    def _look_after_leases(self) -> None:
        for key, groups in list(self._of.items()):
            for group, each in list(groups.items()):
                each.step(t.LeasesDue())
                if each.idle:
                    del groups[group]
            if not groups:
                del self._of[key]

    def status(self) -> dict[tuple[str, int, str], t.DeliveryStatus]:
        """By (topic, partition, group)."""
        return {
            (topic, number, group): each.machine.status()
            for (topic, number), groups in self._of.items()
            for group, each in groups.items()
        }
