"""One topic on one actor: a partition for each slot that the table gives to this actor, as long as that is so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from waltz_ray.client.aio import AsyncWaltzClient, engine_of, next_client_id_of
from waltz_ray.errors import WaltzError
from waltz_ray.protocol.ownership_types import LeaseConfirmed, RegisteredAs, UnitTable, Unregistered
from waltz_ray.topics.serving.slot_partition import PartitionPlaces, SlotPartition
from waltz_ray.topics.serving.topic_log import TopicLog
from waltz_ray.topics.slots import partition_of_slot, slot_of

__all__ = ["CoordinationView", "ServedTopic", "TopicSurroundings"]

log = logging.getLogger(__name__)


@dataclass
class CoordinationView:
    """What this actor has been told last, for partitions that begin later."""

    incarnations: Mapping[int, str] = field(default_factory=dict)
    table: UnitTable[int] | None = None
    incarnation: RegisteredAs | None = None
    lease: LeaseConfirmed | None = None

    def slots_of(self, actor: int) -> list[int]:
        """Those that the table gives to an actor."""
        places = {} if self.table is None else self.table.places
        return [slot for slot, place in places.items() if place.primary == actor]


@dataclass(frozen=True)
class TopicSurroundings:
    """What all topics of an actor are given. ``confirm_members`` reads the registered actors anew, so that all is seen
    that was written before."""

    actor: int
    confirm_members: Callable[[], Awaitable[Mapping[int, str]]]
    tail_bytes: int
    session_s: float
    margin_s: float


class ServedTopic:
    """``client``: of its space, started, without callbacks; it is closed with this. ``changed(topic, partition)``: it
    is served now, or not any more, or has grown."""

    def __init__(
        self,
        name: str,
        count: int,
        client: AsyncWaltzClient,
        around: TopicSurroundings,
        view: CoordinationView,
        changed: Callable[[str, int], None],
    ) -> None:
        self.name = name
        self.count = count
        self.partitions: dict[int, SlotPartition] = {}
        """Those that are open, by number."""
        self.log = TopicLog(engine_of(client), partial(next_client_id_of, client))
        self._client = client
        self._view = view
        self._places = PartitionPlaces(
            around.actor,
            name,
            self.log,
            around.confirm_members,
            partial(changed, name),
            around.tail_bytes,
            around.session_s,
            around.margin_s,
        )
        self._running: dict[int, asyncio.Task[None]] = {}
        self._unknown: set[int] = set()  # closed since nothing could be known of them

    def of_slot(self, slot: int) -> SlotPartition | None:
        """The slot's partition, if it is open here; whether it is served says the partition."""
        return self.partitions.get(partition_of_slot(slot))

    def wants(self, slots: Iterable[int]) -> list[int]:
        """Those of the slots that it has a partition for, which is not open yet; and those that were closed because
        nothing could be known of them: the log may still say that they are ours, and nobody else could release them."""
        wanted = {s for s in slots if s <= self.count} | {slot_of(number) for number in self._unknown}
        return sorted(s for s in wanted if partition_of_slot(s) not in self.partitions)

    def open(self, slot: int) -> None:
        """Begin with a partition."""
        number, view = partition_of_slot(slot), self._view
        self._unknown.discard(number)
        partition = self.partitions[number] = SlotPartition(self._places, number)
        if view.incarnation is not None:
            partition.told(view.incarnation)
        if view.lease is not None:
            partition.told(view.lease)
        partition.members_seen(view.incarnations)
        if view.table is not None:
            partition.table_seen(view.table)
        self._running[number] = asyncio.get_running_loop().create_task(self._run(partition))

    async def _run(self, partition: SlotPartition) -> None:
        try:
            await partition.run()
        except WaltzError as error:
            self._ended(partition, str(error))
        except Exception as error:
            log.critical("partition %d of topic %s has failed", partition.partition, self.name, exc_info=error)
            self._ended(partition, f"{error!r}, a bug of this actor; see its log")

    def _ended(self, partition: SlotPartition, why: str) -> None:
        """It is closed, and opened anew."""
        partition.failure = why
        self._places.changed(partition.partition)

    async def close_partition(self, number: int) -> None:
        """Begin nothing more of it. Idempotent."""
        partition = self.partitions.pop(number, None)
        if partition is not None and partition.failure:
            self._unknown.add(number)
        running = self._running.pop(number, None)
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        if partition is not None:
            await partition.close()

    def over(self) -> list[int]:
        """Partitions that are to be closed: another actor has their slot, or nothing can be known of them any more."""
        found = self.partitions.items()
        return [number for number, each in found if each.failure or (each.idle and not self._ours(each))]

    def _ours(self, partition: SlotPartition) -> bool:
        place = None if self._view.table is None else self._view.table.places.get(partition.slot)
        return place is not None and place.primary == self._places.actor

    def unserved(self, slots: Iterable[int]) -> list[int]:
        """Slots of this actor whose partition of the topic is not served yet, or not any more."""
        return [s for s in slots if s <= self.count and not ((p := self.of_slot(s)) is not None and p.serving)]

    async def close(self) -> None:
        """Serve nothing of it any more."""
        for number in list(self.partitions):
            await self.close_partition(number)
        await self._client.close()

    # ---- what the coordination says

    def table_seen(self, table: UnitTable[int]) -> None:
        for partition in list(self.partitions.values()):
            partition.table_seen(table)

    def members_seen(self, incarnations: Mapping[int, str]) -> None:
        for partition in list(self.partitions.values()):
            partition.members_seen(incarnations)

    def told(self, event: RegisteredAs | Unregistered | LeaseConfirmed) -> None:
        for partition in list(self.partitions.values()):
            partition.told(event)

    def slots(self) -> range:
        """Of all its partitions."""
        return range(slot_of(0), slot_of(self.count))
