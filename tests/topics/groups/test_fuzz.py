"""Whatever is said to a master in whatever order: it answers each request once, keeps its limits and its books."""

from __future__ import annotations

import random

import pytest

from tests.topics.groups.desk import table, terms
from waltz_ray.topics.groups.effects import ConsumerAnswer, MasterEffect, ProducerAnswer, RefuseClient, TellClosed
from waltz_ray.topics.groups.events import (
    BalanceDue,
    BoundTerms,
    ConsumerBeats,
    ConsumerCloses,
    ConsumerRegisters,
    GroupTerms,
    HoldBalance,
    MasterEvent,
    OffsetsNotStored,
    OffsetsStored,
    OrderReport,
    OrderStatus,
    ProducerBeats,
    ProducerCloses,
    ProducerRegisters,
    SteppedDown,
    TableKnown,
    TookOver,
    WantReports,
)
from waltz_ray.topics.groups.limits import GroupLimits
from waltz_ray.topics.groups.machine import TopicMaster
from waltz_ray.topics.groups.table import SlotPlace, TopicPartition

LIMITS = GroupLimits(producers=3, groups=3, members=8, members_of_group=4, topics=2, filters=2, reported=5)

REQUESTS = (ProducerRegisters, ProducerBeats, ProducerCloses, ConsumerRegisters, ConsumerBeats, ConsumerCloses)


class Chatter:
    """Events without sense. ``last``: the ID of some order that was given, or none."""

    def __init__(self, seed: int) -> None:
        self.random, self.last, self.calls, self.epoch = random.Random(seed), 0, 0, 0

    def partitions(self) -> dict[TopicPartition, SlotPlace]:
        many = self.random.choices([0, 1, 2, 5, 9], [4, 4, 4, 2, 1])[0]
        found = [TopicPartition(self.random.choice("tuv"), self.random.randrange(-1, 6)) for _ in range(many)]
        return {each: SlotPlace("127.0.0.1", self.random.randrange(3)) for each in found}

    def terms(self) -> GroupTerms:
        if self.random.random() < 0.7:
            return terms("t", "u")
        topics = frozenset(self.random.choices(["t", "u", "v", ""], [9, 3, 1, 1], k=self.random.randrange(3)))
        filters = {"t": frozenset("ab"[: self.random.randrange(3)])} if self.random.random() < 0.1 else {}
        offsets = {partition: self.random.randrange(-1, 9) for partition in self.partitions()}
        bound = BoundTerms(self.random.choice("kl"), 1, self.random.randrange(4), True, offsets)
        return GroupTerms(topics, filters, bound if self.random.random() < 0.3 else None)

    def says(self) -> MasterEvent:
        chance = self.random
        self.calls += 1
        client, group = chance.choice([*"aaabbbccdef", "", "a b"]), chance.choice("ggghhij")
        word = OrderReport(chance.choice([self.last, self.last - 1, -5]), chance.choice(list(OrderStatus)))
        reported = self.partitions() if chance.random() < 0.5 else None
        of_producers: list[MasterEvent] = [
            ProducerRegisters(self.calls, client, "h", frozenset(chance.choices("tuv", k=2)), chance.choice([-1, 5])),
            ProducerBeats(self.calls, client, frozenset(chance.choices("tuv", k=1)), -1),
            ProducerCloses(self.calls, client),
        ]
        of_consumers: list[MasterEvent] = [
            ConsumerRegisters(
                self.calls, client, group, "h", self.terms(), reported or {}, chance.choice([None, True, False])
            ),
            ConsumerBeats(self.calls, client, group, reported, word if chance.random() < 0.5 else None),
            ConsumerCloses(self.calls, client, group),
        ]
        of_operators: list[MasterEvent] = [
            TableKnown(table({"t": chance.randrange(5), "u": 2}, slots=chance.randrange(5))),
            HoldBalance(group, chance.random() < 0.3),
            WantReports(group),
            OffsetsStored(group, chance.choice("kl")),
            OffsetsNotStored(group, chance.choice("kl"), "why"),
        ]
        kind = chance.random()
        if kind < 0.006:
            self.epoch += 1
            return SteppedDown() if chance.random() < 0.05 else TookOver(self.epoch, chance.choice([0, 30_000]))
        if kind < 0.7:
            return chance.choices(of_consumers, [6, 8, 1])[0]
        return chance.choice([*of_producers, *of_operators, BalanceDue(), BalanceDue(), BalanceDue()])


@pytest.mark.parametrize("seed", range(30))
def test_any_events_in_any_order(seed: int) -> None:
    """Seeded."""
    chatter, master, now_ms, taken = Chatter(seed), TopicMaster(limits=LIMITS), 0, 0
    master.step(TookOver(0, 0), 0)
    for _ in range(1_500):
        event = chatter.says()
        now_ms += chatter.random.choice([0, 10, 100, 500])
        effects = master.step(event, now_ms)
        assert master.broken() is None, event
        taken += sum(isinstance(each, ConsumerAnswer) for each in effects)
        assert calls_of(effects) == ([event.call] if isinstance(event, REQUESTS) else []), event
        chatter.last = max([chatter.last, *orders_of(effects)])
        groups = [master.group_status(name) for name in master.group_names()]
        members = [len(group.members) for group in groups if group is not None]
        assert len(members) <= 3
        assert max(members, default=0) <= 4
        assert sum(members) <= 8
        assert len(master.producer_status()) <= 3
    assert taken > 100


def calls_of(effects: list[MasterEffect]) -> list[int]:
    answers = (ConsumerAnswer, ProducerAnswer, TellClosed, RefuseClient)
    return [each.call for each in effects if isinstance(each, answers)]


def orders_of(effects: list[MasterEffect]) -> list[int]:
    orders = [each.order for each in effects if isinstance(each, ConsumerAnswer)]
    return [order.rebalance_id for order in orders if order is not None]
