"""The producers that a master knows: which topics each publishes, and what of slots and topics it is told."""

from __future__ import annotations

from dataclasses import dataclass

from waltz_ray.topics.groups import rules
from waltz_ray.topics.groups.checks import client_id_wrong, names_wrong
from waltz_ray.topics.groups.effects import GroupRefusal, MasterEffect, ProducerAnswer, RefuseClient
from waltz_ray.topics.groups.events import ProducerBeats, ProducerRegisters
from waltz_ray.topics.groups.limits import GroupLimits
from waltz_ray.topics.groups.table import TopicTable, slots_checksum

__all__ = ["KnownProducer", "Producers"]


@dataclass
class KnownProducer:
    """``topics`` only get more."""

    client_id: str
    host: str
    topics: frozenset[str]
    seen_ms: int


class Producers:
    """Of one leader."""

    def __init__(self, limits: GroupLimits, client_ms: int) -> None:
        self.known: dict[str, KnownProducer] = {}
        self._limits, self._client_ms = limits, client_ms

    def registers(self, event: ProducerRegisters, table: TopicTable, now_ms: int) -> MasterEffect:
        """A new one, or one that is known and keeps its topics."""
        wrong = client_id_wrong(event.client_id, self._limits)
        if wrong is not None:
            return RefuseClient(event.call, GroupRefusal.BAD_REQUEST, wrong)
        known = self.known.get(event.client_id)
        if known is None and len(self.known) >= self._limits.producers:
            text = f"there are {self._limits.producers} producers, which is the limit: close some, or share one"
            return RefuseClient(event.call, GroupRefusal.TOO_MANY, text)
        topics = event.topics if known is None else known.topics | event.topics
        producer = KnownProducer(event.client_id, event.host, topics, now_ms)
        return self._publishes(producer, event.call, event.checksum, table)

    def beats(self, event: ProducerBeats, table: TopicTable, now_ms: int) -> MasterEffect:
        """A sign of life, perhaps with new topics."""
        known = self.known.get(event.client_id)
        if known is None or rules.is_gone(known.seen_ms, now_ms, self._client_ms):
            text = f"producer {event.client_id:.100} is not registered, or was silent for {self._client_ms} ms: "
            return RefuseClient(event.call, GroupRefusal.NO_NODE, text + "register again")
        producer = KnownProducer(event.client_id, known.host, known.topics | event.topics, now_ms)
        return self._publishes(producer, event.call, event.checksum, table)

    def closes(self, client_id: str) -> None:
        self.known.pop(client_id, None)

    def expire(self, now_ms: int) -> None:
        """Forget who was silent for too long."""
        gone = [each for each in self.known.values() if rules.is_gone(each.seen_ms, now_ms, self._client_ms)]
        for each in gone:
            del self.known[each.client_id]

    def _publishes(self, producer: KnownProducer, call: int, checksum: int, table: TopicTable) -> MasterEffect:
        wrong = names_wrong("topics", producer.topics, self._limits.topics, self._limits)
        if wrong is not None:
            return RefuseClient(call, GroupRefusal.BAD_REQUEST, wrong)
        self.known[producer.client_id] = producer
        ours = slots_checksum(table.slots)
        topics = {topic: table.topics[topic] for topic in sorted(producer.topics) if topic in table.topics}
        return ProducerAnswer(call, ours, None if checksum == ours else table.slots, topics)
