"""The slots that one actor has: their ports, and the partitions of all topics behind them. In one event loop.

A slot's port is open while the table gives the slot to this actor, and until the last of its partitions is let go of.
Each slot has a port of its own: what a client says to a broker names a topic and a partition, and no broker.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.config import PORTS_OF_AN_ACTOR
from waltz_ray.net.listener import Tls
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.protocol.ownership_types import LeaseConfirmed, RegisteredAs, UnitTable, Unregistered
from waltz_ray.topics.serving.gateway import BROKER_METHODS, TopicGateway
from waltz_ray.topics.serving.own_tasks import OwnTasks
from waltz_ray.topics.serving.port import TopicPortLimits
from waltz_ray.topics.serving.served_topic import CoordinationView, ServedTopic, TopicSurroundings
from waltz_ray.topics.serving.slot_duties import SlotDuties
from waltz_ray.topics.serving.slot_port import SlotPort

__all__ = ["SlotListening", "TopicNode"]

log = logging.getLogger(__name__)

_AGAIN_S = 1.0


@dataclass(frozen=True)
class SlotListening:
    """How slots listen. ``first_port``: the first of ``PORTS_OF_AN_ACTOR``, 0 = any free one.
    ``cluster_key``: ``TopicGateway``."""

    host: str = "127.0.0.1"
    first_port: int = 0
    limits: TopicPortLimits = field(default_factory=TopicPortLimits)
    tls: Tls | None = None
    cluster_key: str = ""


class TopicNode:
    """``announce(ports)``: where the slots of this actor listen now."""

    def __init__(
        self,
        around: TopicSurroundings,
        duties: SlotDuties,
        listening: SlotListening,
        announce: Callable[[Mapping[int, int]], None],
    ) -> None:
        self.actor = around.actor
        self.view = CoordinationView()
        self.topics: dict[str, ServedTopic] = {}
        self.gateways: dict[int, TopicGateway] = {}
        """By slot."""
        self.ports: dict[int, int] = {}
        """Where the slots listen."""
        self.failure = ""
        """Why a slot cannot listen."""
        self._around, self.duties, self._listening, self._announce = around, duties, listening, announce
        self._outgoing = Outgoing()
        self._stirred = asyncio.Event()
        self.tasks = OwnTasks(f"topic/{self.actor}")
        self._timers: set[asyncio.TimerHandle] = set()

    def start(self) -> None:
        """Do what the table says, from now on."""
        self.tasks.begin(self._follow(), "slots are left as they are")

    async def close(self) -> None:
        """Serve nothing any more."""
        await self.tasks.stop()
        for timer in self._timers:
            timer.cancel()
        for topic in list(self.topics.values()):
            await topic.close()
        for slot in list(self.gateways):
            await self._close_slot(slot)

    # ---- what is known

    def slots(self) -> list[int]:
        """Those that the table gives to this actor."""
        return self.view.slots_of(self.actor)

    def unserved(self) -> list[tuple[str, int]]:
        """(topic, slot) of this actor's slots, where nothing can be appended yet, or any more."""
        mine = self.slots()
        return [(topic.name, slot) for topic in self.topics.values() for slot in topic.unserved(mine)]

    def outrun(self) -> str:
        """Which partition this actor is given and may not take (``OwnershipMachine.outrun``), and why; "" = none."""
        found = (
            f"partition {number} of topic {topic.name}: {why}"
            for topic in self.topics.values()
            for number, partition in topic.partitions.items()
            if (why := partition.outrun)
        )
        return next(found, "")

    # ---- what there is to be done

    def add_topic(self, name: str, count: int, client: AsyncWaltzClient) -> None:
        """A topic of ``count`` partitions, whose client is closed with it."""
        self.topics[name] = ServedTopic(name, count, client, self._around, self.view, self._changed)
        self._stirred.set()

    async def remove_topic(self, name: str) -> None:
        """It was deleted. Idempotent."""
        topic = self.topics.pop(name, None)
        if topic is not None:
            for partition in topic.partitions.values():
                self.duties.gone(name, partition)
            await topic.close()

    def table_seen(self, table: UnitTable[int]) -> None:
        """Of all slots."""
        self.view.table = table
        for topic in self.topics.values():
            topic.table_seen(table)
        self._stirred.set()

    def members_seen(self, incarnations: Mapping[int, str]) -> None:
        """The registered actors."""
        self.view.incarnations = incarnations
        for topic in self.topics.values():
            topic.members_seen(incarnations)

    def told(self, event: RegisteredAs | Unregistered | LeaseConfirmed) -> None:
        """About our own registration."""
        if isinstance(event, LeaseConfirmed):
            self.view.lease = event
        else:
            self.view.incarnation = event if isinstance(event, RegisteredAs) else None
            self.view.lease = None
        for topic in self.topics.values():
            topic.told(event)

    def _changed(self, topic: str, partition: int) -> None:
        served = self.topics.get(topic)
        found = None if served is None else served.partitions.get(partition)
        if found is not None:
            self.duties.changed(topic, found)
            if found.failure or found.idle:
                self._stirred.set()

    # ---- doing it

    async def _follow(self) -> None:
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            mine = self.slots()
            for topic in list(self.topics.values()):
                await self._close_what_is_over(topic)
            await self._listen_for(mine)
            for topic in list(self.topics.values()):
                for slot in topic.wants(slot for slot in mine if slot in self.gateways):
                    topic.open(slot)
            for slot in [each for each in self.gateways if each not in mine and not self._has_partitions(each)]:
                await self._close_slot(slot)

    async def _close_what_is_over(self, topic: ServedTopic) -> None:
        for number in topic.over():
            partition = topic.partitions.get(number)
            if partition is None:  # the topic was deleted, and closed, while another one was waited for
                continue
            if partition.failure:
                log.error("topic/%d: %s, partition %d: %s", self.actor, topic.name, number, partition.failure)
                self._look_again()
            self.duties.gone(topic.name, partition)
            await topic.close_partition(number)

    async def _listen_for(self, slots: Iterable[int]) -> None:
        self.failure = ""
        for slot in slots:
            if slot not in self.gateways:
                try:
                    await self._open_slot(slot)
                except OSError as error:
                    self.failure = (
                        f"slot {slot} cannot listen on {self._listening.host}: {error.strerror or error}; "
                        "choose another TopicConfig.broker_port, or 0 for any free one"
                    )
                    log.error("topic/%d: %s", self.actor, self.failure)
                    self._look_again()

    async def _open_slot(self, slot: int) -> None:
        port = SlotPort(slot, self.topics, self.duties)
        name = f"topic/{self.actor}, slot {slot}"
        listening = self._listening
        gateway = TopicGateway(
            name, port, BROKER_METHODS, listening.limits, self._outgoing, listening.tls, listening.cluster_key
        )
        first = listening.first_port
        for candidate in range(first, first + PORTS_OF_AN_ACTOR) if first else (0,):
            try:
                self.ports[slot] = await gateway.listen(listening.host, candidate)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or candidate in (0, first + PORTS_OF_AN_ACTOR - 1):
                    raise
        self.gateways[slot] = gateway
        self._announce(dict(self.ports))

    async def _close_slot(self, slot: int) -> None:
        gateway = self.gateways.pop(slot)
        del self.ports[slot]
        self._announce(dict(self.ports))
        await gateway.close()

    def _has_partitions(self, slot: int) -> bool:
        return any(topic.of_slot(slot) is not None for topic in self.topics.values())

    def _look_again(self) -> None:
        loop = asyncio.get_running_loop()

        def look() -> None:
            self._timers.discard(timer)
            self._stirred.set()

        timer = loop.call_later(_AGAIN_S, look)
        self._timers.add(timer)
