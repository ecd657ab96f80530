"""What becomes of groups when another actor leads: T33 and T39 with a new master."""

from __future__ import annotations

import pytest

from tests.topics.groups.consumers import FakeConsumer
from tests.topics.groups.desk import CALL, Desk, table, terms
from waltz_ray.topics.groups.effects import (
    GroupRefusal,
    RefuseClient,
)
from waltz_ray.topics.groups.events import (
    ConsumerBeats,
    SteppedDown,
    TableKnown,
    TookOver,
)
from waltz_ray.topics.groups.machine import TopicMaster
from waltz_ray.topics.groups.table import TopicPartition


def test_t33_t39_a_new_leader_believes_reports_and_grants_nothing_else_at_first() -> None:
    desk = Desk(6)
    consumers = [desk.joins(name) for name in "abc"]
    desk.settle()
    before, last_id = desk.held(), desk.log.last_id
    desk.master = TopicMaster()
    desk.log.leader_changes()
    desk.step(TookOver(2, 30_000))
    desk.step(TableKnown(table({"t": 6})))
    for consumer in consumers[:2]:
        answer = desk.asks(consumer.beat(CALL), consumer.client_id)
        assert isinstance(answer, RefuseClient)
        assert answer.reason is GroupRefusal.NO_NODE
        desk.asks(consumer.registers(CALL), consumer.client_id)
    third = desk.consumers.pop("c")
    desk.settle()
    assert desk.log.holder == {p: name for p, name in before.items() if name != "c"}
    assert desk.log.last_id > last_id
    desk.now_ms += 20_000
    desk.round()
    desk.asks(third.registers(CALL), "c")
    desk.consumers["c"] = third
    desk.now_ms += 10_000
    desk.round()
    desk.settle()
    assert desk.held() == before == desk.log.holder


def test_a_new_leader_gives_away_what_nobody_came_for() -> None:
    desk = Desk(6)
    consumer = desk.joins("a")
    desk.joins("b")
    desk.settle()
    desk.master, desk.consumers = TopicMaster(), {"a": consumer}
    desk.log.leader_changes()
    desk.step(TookOver(2, 30_000))
    desk.step(TableKnown(table({"t": 6})))
    desk.asks(consumer.registers(CALL), "a")
    desk.now_ms += 29_999
    desk.settle()
    assert desk.counts() == [3]
    desk.now_ms += 1
    desk.settle()
    assert desk.counts() == [6]


def test_of_two_that_report_one_partition_the_first_keeps_it() -> None:
    desk = Desk(2, settle_ms=30_000)
    first, second = FakeConsumer("b", terms()), FakeConsumer("a", terms())
    partition = TopicPartition("t", 1)
    first.held = second.held = {partition: table({}).slots[1]}
    second.held = dict(first.held)
    for each in (first, second):
        desk.asks(each.registers(CALL), each.client_id)
        desk.consumers[each.client_id] = each
    desk.round(2)
    assert desk.log.holder == {partition: "b"}
    assert not second.held
    assert list(first.held) == [partition]


def test_who_does_not_lead_refuses_everybody() -> None:
    desk = Desk()
    desk.joins("a")
    desk.step(SteppedDown())
    assert not desk.master.leads
    for event in (FakeConsumer("a", terms()).registers(CALL), ConsumerBeats(CALL, "a", "g")):
        answer = desk.asks(event, "a")
        assert isinstance(answer, RefuseClient)
        assert answer.reason is GroupRefusal.STANDBY
        assert "StandbyException" in answer.message
    assert desk.balance() == []


@pytest.mark.parametrize("epoch", [-1, 1 << 31])
def test_an_epoch_that_has_no_room_in_an_id(epoch: int) -> None:
    with pytest.raises(ValueError, match="epoch"):
        TopicMaster().step(TookOver(epoch, 0), 0)
