"""A bound group: sessions that begin together, at offsets that their members name; beside ``TOPICS``, with ``BOUND``.

Every few seconds another session begins; half of them under a master that is deposed while it stores where they begin.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.topic_consumers import SimGroup, SimNativeConsumer
from waltz_ray.errors import PartitionNotReady, TopicRefused
from waltz_ray.topics.client.aio import AsyncTopicClient
from waltz_ray.topics.client.membership import BoundGroup

if TYPE_CHECKING:
    from tests.simulation.topic_actors import SimTopicActor
    from tests.simulation.topics import TopicPart

__all__ = ["BoundSessions", "SimBoundConsumer"]

_AGAIN_S = 0.2


class BoundSessions:
    """One session after the other; every member knows the one there is now."""

    def __init__(self, part: TopicPart, random: Random) -> None:
        self.part, self.random = part, random
        self.group = SimGroup("b0", frozenset())
        self._count = random.choice([1, 2, 2, 3])
        self._sessions = 0
        self._ended = False
        self.now = self._next({})
        self.members = [
            SimBoundConsumer(part, self, number, Random(random.getrandbits(64))) for number in range(self._count)
        ]

    def _next(self, offsets: dict[tuple[str, int], int]) -> BoundGroup:
        self._sessions += 1
        return BoundGroup(f"session {self._sessions}", self._count, offsets, self.random.random() < 0.5)

    def go_on(self) -> None:
        """Begin another session in a while, and so on until ``end``."""
        self.part.world.scheduler.after(self.random.uniform(1.0, 8.0), self._begin_anew)

    def end(self) -> None:
        """The session there is now is the last one."""
        self._ended = True

    def _begin_anew(self) -> None:
        """All members are killed, and come again with another session, from other offsets."""
        if self._ended:
            return
        committed = self.part.world.history.committed
        offsets = {
            (self.part.topic, partition): self.random.randint(0, max(committed[number], default=-1) + 1)
            for partition, number in enumerate(self.part.partitions)
        }
        self.now = self._next(offsets)
        for member in self.members:
            if member.up:
                member.kill("is to begin anew")
                member.start_later(self.random.choice([0.05, 0.5]))
        self.part.history.on_storing = self._depose if self.random.random() < 0.5 else None
        self.go_on()

    def _depose(self, master: SimTopicActor) -> None:
        """What it hears of the store it hears late, and that others lead when they have led for long."""
        world = self.part.world
        seconds = master.session_s * self.random.uniform(3.0, 6.0)
        master.tell(f"is far from the offsets, and leads on without ZooKeeper for {seconds:.2f} s")
        self.part.store.far[master.host] = world.scheduler.now + seconds + 10.0
        if master.zookeeper is not None:
            world.zookeeper.cut_off(master.zookeeper, seconds, master.session_s)


class SimBoundConsumer(SimNativeConsumer):
    """A member. One that is killed is missed until its lease ends, and a session until it is over: it asks again."""

    def __init__(self, part: TopicPart, sessions: BoundSessions, number: int, random: Random) -> None:
        super().__init__(part, sessions.group, number, random)
        self._sessions = sessions

    async def _consume(self, client: AsyncTopicClient) -> None:
        types = {self.part.topic: self.group.types}
        consumer = client.consumer(self.group.name, types, bound=self._sessions.now)
        try:
            await consumer.start()
            self._consumer = consumer
            while True:
                await self.take(consumer)
        except (PartitionNotReady, TopicRefused):
            self._consumer = None
            await consumer.close()
            await asyncio.sleep(_AGAIN_S)
