"""Slots and topics as the master knows them. Partition i of every topic is served by slot i + 1.

A slot is what TubeMQ calls a broker: an ID with an address, one partition and one store of each topic. Addresses change
when a slot gets another actor; partitions never change their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from waltz_ray.protocol.value import value

__all__ = ["SlotPlace", "TopicPartition", "TopicShape", "TopicTable", "slots_checksum"]


class TopicPartition(NamedTuple):
    """A partition as clients name it: topic, slot (broker ID, from 1), number within the slot (ours have 0 only)."""

    topic: str
    slot: int
    number: int = 0

    def __str__(self) -> str:
        return f"{self.slot}:{self.topic}:{self.number}"


class SlotPlace(NamedTuple):
    """Where clients reach a slot."""

    host: str
    port: int


class TopicShape(NamedTuple):
    """How large a topic is. ``max_message_bytes``: None, as everywhere."""

    partitions: int
    max_message_bytes: int | None = None


@value()
class TopicTable:
    """All slots that have an address just now, and all topics. Do not change the mappings in place."""

    slots: Mapping[int, SlotPlace]
    topics: Mapping[str, TopicShape]

    def has(self, partition: TopicPartition) -> bool:
        """Whether there is such a partition."""
        shape = self.topics.get(partition.topic)
        return shape is not None and 1 <= partition.slot <= shape.partitions and partition.number == 0

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Those of the ``topics`` that there are, sorted."""
        shapes = [(topic, self.topics[topic]) for topic in sorted(set(topics)) if topic in self.topics]
        return [TopicPartition(topic, index + 1) for topic, shape in shapes for index in range(shape.partitions)]


def slots_checksum(slots: Mapping[int, SlotPlace]) -> int:
    """By which a producer's copy of the addresses is compared with ours: 63 bits, so never -1, which means "none".

    Every master computes the same for the same slots: a change of leader makes nobody fetch them again.
    """
    text = ",".join(f"{slot}:{place.host}:{place.port}" for slot, place in sorted(slots.items()))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
