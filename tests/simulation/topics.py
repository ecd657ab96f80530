"""Topics while everything goes wrong: in the histories of seeds that have the bit ``TOPICS``.

A space of the kind topic is added to the cluster, a few actors serve it, and producers and groups of consumers use it:
native ones and such that speak the protocol. What they have seen must fit the log (``topic_history.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.history import Violation
from tests.simulation.process import Process
from tests.simulation.topic_actors import SimSlotArranger, SimTopicActor
from tests.simulation.topic_bound import BoundSessions
from tests.simulation.topic_consumers import SimForeignConsumer, SimGroup, SimNativeConsumer
from tests.simulation.topic_faults import TopicFaults
from tests.simulation.topic_history import TopicHistory
from tests.simulation.topic_offsets import OffsetStore
from tests.simulation.topic_producers import SimForeignProducer, SimNativeProducer

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["BOUND", "TOPICS", "TopicPart"]

TOPICS = 1 << 29
BOUND = 1 << 36
"""Beside ``TOPICS``: a group that is bound, as well."""


class TopicPart:
    """The space, its actors, its clients, and where groups are."""

    topic = "orders"
    types = ("", "a", "a", "b")

    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random = world, random
        self.space = world.operator_store.spaces.create(self.topic, random.choice([1, 2, 3]), kind="topic")
        self.partitions = self.space.partitions
        """Their numbers in the cluster."""
        world.history.grow(self.partitions.stop)
        self.history = TopicHistory(self)
        self.client_ms = random.choice([1_500, 3_000])
        """After this time without a sign of life clients are gone."""
        self.balance_ms = random.choice([50, 300])
        self.store = OffsetStore(self, Random(random.getrandbits(64)))
        count = random.choice([2, 2, 3])
        self.actors = [SimTopicActor(self, n, Random(random.getrandbits(64))) for n in range(count)]
        self.arranger = SimSlotArranger(self)
        either: list[type[SimForeignProducer] | type[SimNativeProducer]] = [SimForeignProducer, SimNativeProducer]
        second = random.choice(either)
        self.producers: list[SimForeignProducer | SimNativeProducer] = [
            SimForeignProducer(self, 0, Random(random.getrandbits(64))),
            second(self, 1, Random(random.getrandbits(64))),
        ]
        self.groups = [SimGroup("g0", frozenset()), SimGroup("g1", frozenset(random.choice([("a",), ("b",), ()])))]
        self.consumers: list[SimForeignConsumer | SimNativeConsumer] = []
        for group, kinds in zip(self.groups, self._kinds(), strict=True):
            for number in range(random.choice([1, 2, 2, 3])):
                kind = random.choice(kinds)
                self.consumers.append(kind(self, group, number, Random(random.getrandbits(64))))
        self.bound = BoundSessions(self, Random(random.getrandbits(64))) if world.seed & BOUND else None
        if self.bound is not None:
            self.groups.append(self.bound.group)
            self.consumers += self.bound.members
            self.bound.go_on()
        self.faults = TopicFaults(self)

    def _kinds(self) -> list[list[type[SimForeignConsumer] | type[SimNativeConsumer]]]:
        """Of the members of each group."""
        return [[SimForeignConsumer, SimForeignConsumer, SimNativeConsumer], [SimNativeConsumer, SimForeignConsumer]]

    def processes(self) -> list[Process]:
        return [*self.actors, self.arranger, *self.producers, *self.consumers]

    def actor_on(self, host: str) -> int:
        """Whose host that is."""
        return next(actor.number for actor in self.actors if actor.host == host)

    def reset(self, group: SimGroup, partition: int) -> bool:
        """Set the group to some offset, as an operator does. False if nobody is there to do it."""
        if not self.arranger.up:
            return False
        end = max(self.world.history.committed[self.partitions[partition]], default=-1) + 1
        offset = self.random.randint(0, end)

        async def put() -> None:
            why = await self.arranger.offsets.put(group.name, self.topic, partition, offset)
            self.arranger.tell(f"sets group {group.name} of partition {partition} to {offset}: {why or 'done'}")

        self.arranger.spawn(put())
        return True

    # ---- the end ------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Clocks and the store are right again; nobody sends anything new."""
        for actor in self.actors:
            actor.clock_offset_ms, actor.deaf_until_s = 0, 0.0
        self.store.slow_until_s = self.store.deaf_until_s = 0.0
        self.store.far.clear()
        if self.bound is not None:
            self.bound.end()
            self.history.on_storing = None
        for producer in self.producers:
            producer.working = False
        for consumer in self.consumers:
            consumer.hurry()
        # Those are told that an operator has set their group elsewhere: by themselves they see it with their next
        # confirm, and nothing new may come.
        for group, partition in self.history.were_reset():
            for actor in self.actors:
                if actor.up and actor.server is not None:
                    actor.spawn(actor.send_away(group, self.topic, partition))

    def quiet(self) -> bool:
        """Every message has its fate."""
        return all(producer.up and not producer.busy for producer in self.producers)

    def shared(self) -> bool:
        """Of each group each partition is had by one consumer."""
        for group in self.groups:
            had = [each for consumer in self.consumers if consumer.group is group for each in consumer.partitions]
            if sorted(had) != list(range(len(self.partitions))):
                return False
        return True

    def all_consumed(self) -> bool:
        """Every group has confirmed all that it wants."""
        return all(
            self.history.is_consumed(group.name, partition, group.types)
            for group in self.groups
            for partition in range(len(self.partitions))
        )

    def check(self, log: Sequence[Sequence[bytes]]) -> None:
        """``log``: the records of each partition of the cluster. Violation."""
        for actor in self.actors:
            if broken := actor.broken():
                raise Violation("crash", f"{actor.host}: {broken}")
        self.history.check(log)

    def state(self) -> str:
        """For who waits in vain."""
        had = {consumer.host: consumer.partitions for consumer in self.consumers}
        at = {where: known.item for where, known in self.history.consumed.items()}
        busy = [producer.busy for producer in self.producers]
        return "\n".join([f"messages open: {busy}; had: {had}; offsets: {at}", *(a.state() for a in self.actors)])
