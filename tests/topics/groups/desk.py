"""A master and obedient consumers, driven by hand: for tests that tell one scene."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.topics.groups.consumers import FakeConsumer
from tests.topics.groups.grant_log import BrokenPromise, GrantLog
from waltz_ray.topics.groups.effects import ConsumerAnswer, MasterEffect, RebalanceOrder, RefuseClient
from waltz_ray.topics.groups.events import BalanceDue, BoundTerms, GroupTerms, MasterEvent, TableKnown, TookOver
from waltz_ray.topics.groups.limits import GroupLimits, GroupTimes
from waltz_ray.topics.groups.machine import TopicMaster
from waltz_ray.topics.groups.table import SlotPlace, TopicPartition, TopicShape, TopicTable

__all__ = ["Desk", "table", "terms"]

CALL = 7


def table(topics: Mapping[str, int], slots: int = 20, port: int = 8000) -> TopicTable:
    """Topics by their number of partitions."""
    places = {slot: SlotPlace("127.0.0.1", port + slot) for slot in range(1, slots + 1)}
    return TopicTable(places, {topic: TopicShape(count) for topic, count in topics.items()})


def terms(
    *topics: str, filters: Mapping[str, Iterable[str]] | None = None, bound: BoundTerms | None = None
) -> GroupTerms:
    return GroupTerms(frozenset(topics or ("t",)), {t: frozenset(types) for t, types in (filters or {}).items()}, bound)


class Desk:
    """``now_ms`` goes on by hand."""

    def __init__(
        self,
        partitions: int = 7,
        times: GroupTimes | None = None,
        limits: GroupLimits | None = None,
        settle_ms: int = 0,
    ) -> None:
        self.now_ms = 1_000
        self.log = GrantLog()
        self.master = TopicMaster(times, limits)
        self.consumers: dict[str, FakeConsumer] = {}
        self.step(TookOver(1, settle_ms))
        self.step(TableKnown(table({"t": partitions})))

    def step(self, event: MasterEvent, client_id: str | None = None) -> list[MasterEffect]:
        effects = self.master.step(event, self.now_ms)
        if self.master.broken() is not None:
            raise BrokenPromise(self.master.broken())
        self.log.takes(effects, client_id)
        return effects

    def asks(self, event: MasterEvent, client_id: str) -> ConsumerAnswer | RefuseClient:
        answers = [each for each in self.step(event, client_id) if isinstance(each, ConsumerAnswer | RefuseClient)]
        assert len(answers) == 1
        return answers[0]

    def joins(self, client_id: str, asked: GroupTerms | None = None, group: str = "g") -> FakeConsumer:
        consumer = FakeConsumer(client_id, asked or terms(), group)
        answer = self.asks(consumer.registers(CALL), client_id)
        assert isinstance(answer, ConsumerAnswer), answer
        assert answer.order is None, "partitions come with heartbeats"
        self.consumers[client_id] = consumer
        return consumer

    def refused(self, client_id: str, asked: GroupTerms, group: str = "g") -> RefuseClient:
        answer = self.asks(FakeConsumer(client_id, asked, group).registers(CALL), client_id)
        assert isinstance(answer, RefuseClient)
        return answer

    def beats(self, client_id: str) -> RebalanceOrder | None:
        """A heartbeat; what it is told comes into its inbox, too."""
        consumer = self.consumers[client_id]
        answer = self.asks(consumer.beat(CALL), client_id)
        assert isinstance(answer, ConsumerAnswer), answer
        if answer.order is not None:
            consumer.told(answer.order)
        return answer.order

    def round(self, rounds: int = 1) -> None:
        """Everybody beats, does what it is told, and says so."""
        for _ in range(rounds):
            for client_id in self.consumers:
                self.round_of(client_id)

    def round_of(self, client_id: str) -> None:
        self.beats(client_id)
        while self.consumers[client_id].inbox:
            self.consumers[client_id].works()

    def balance(self) -> list[MasterEffect]:
        return self.step(BalanceDue())

    def settle(self) -> None:
        """Two balances, with time for everybody to obey."""
        for _ in range(2):
            self.balance()
            self.round(3)

    def counts(self) -> list[int]:
        """How many partitions each consumer holds, the most first."""
        return sorted((len(each.held) for each in self.consumers.values()), reverse=True)

    def held(self) -> dict[TopicPartition, str]:
        """By the consumers' own books; nothing twice."""
        pairs = [(p, client_id) for client_id, each in self.consumers.items() for p in each.held]
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)
