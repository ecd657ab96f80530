"""What all slots of one topic actor do alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from waltz_ray.topics.access import TopicAccess
from waltz_ray.topics.serving.deliveries import Deliveries
from waltz_ray.topics.serving.slot_partition import SlotPartition

__all__ = ["SlotDuties"]


@dataclass
class SlotDuties:
    """What all slots of an actor do alike."""

    deliveries: Deliveries
    max_message_bytes: int
    """Of a message of any topic."""
    access: Callable[[], TopicAccess] = TopicAccess
    """Asked at each request: what holds now."""
    access_again: Callable[[], Awaitable[None]] | None = None
    """Looks at ZooKeeper again: what holds may be newer than what was told."""
    topic_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of a message of a topic that says so itself: never more."""
    produced: int = 0
    """Messages that were appended."""
    refused: int = 0
    """Messages that were not."""

    def most_bytes(self, topic: str) -> int:
        """How large a message may be."""
        return self.topic_bytes.get(topic, self.max_message_bytes)

    def changed(self, topic: str, partition: SlotPartition) -> None:
        """A partition is served, or not any more, or has grown."""
        self.deliveries.changed(topic, partition)

    def gone(self, topic: str, partition: SlotPartition) -> None:
        """A partition is about to be closed."""
        self.deliveries.gone(topic, partition)
