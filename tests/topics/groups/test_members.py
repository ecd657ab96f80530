"""Who is in a group: T21, T23 (the master's side), T31, T36, T39; and after a change of leader."""

from __future__ import annotations

import pytest

from tests.topics.groups.consumers import FakeConsumer
from tests.topics.groups.desk import CALL, Desk, table, terms
from waltz_ray.topics.groups.effects import (
    ConsumerAnswer,
    EndLease,
    Freeing,
    GroupRefusal,
    PartitionFreed,
    RefuseClient,
    TellClosed,
)
from waltz_ray.topics.groups.events import (
    BoundTerms,
    ConsumerBeats,
    ConsumerCloses,
    GroupTerms,
    OrderStatus,
    RebalanceOp,
    SteppedDown,
    TableKnown,
    TookOver,
)
from waltz_ray.topics.groups.limits import GroupLimits, GroupTimes
from waltz_ray.topics.groups.machine import TopicMaster
from waltz_ray.topics.groups.table import TopicPartition

BOUND = BoundTerms("key", 1, 2, True, {})


def test_t21_registering_brings_no_partitions_and_closing_frees_them() -> None:
    desk = Desk(3)
    desk.joins("a")
    desk.settle()
    assert desk.counts() == [3]
    effects = desk.step(ConsumerCloses(CALL, "a", "g"))
    assert [each.how for each in effects if isinstance(each, PartitionFreed)] == [Freeing.CLOSED] * 3
    assert len([each for each in effects if isinstance(each, EndLease)]) == 3
    assert effects[-1] == TellClosed(CALL)
    assert desk.step(ConsumerCloses(CALL, "a", "g")) == [TellClosed(CALL)], "twice is no error"
    assert desk.master.group_names() == []


def test_t21_an_answer_has_the_topics_and_whether_anybody_has_partitions() -> None:
    desk = Desk(3)
    answer = desk.asks(FakeConsumer("a", terms("t", "later")).registers(CALL), "a")
    assert isinstance(answer, ConsumerAnswer)
    assert answer.not_allocated
    assert dict(answer.topics) == dict(table({"t": 3}).topics)
    desk.consumers["a"] = FakeConsumer("a", terms("t", "later"))
    desk.settle()
    answer = desk.asks(ConsumerBeats(CALL, "a", "g"), "a")
    assert isinstance(answer, ConsumerAnswer)
    assert not answer.not_allocated


def test_t23_who_is_sent_away_loses_its_leases_also_without_a_grant() -> None:
    """b has what is a's, and does not leave it: else a's slot would refuse a for as long as b goes on."""
    desk = Desk(2, GroupTimes(client_ms=30_000))
    desk.joins("a")
    desk.settle()
    other = desk.joins("b")
    other.held = {TopicPartition("t", 1): table({}).slots[1]}
    for _ in range(3):
        desk.beats("b")
    effects = desk.step(ConsumerCloses(CALL, "b", "g"))
    assert effects == [EndLease("g", TopicPartition("t", 1), "b"), TellClosed(CALL)]


def test_t23_a_second_one_that_has_a_partition_is_told_to_leave_it() -> None:
    desk = Desk(2)
    desk.joins("a")
    desk.settle()
    other = desk.joins("b")
    other.held = dict(desk.consumers["a"].held)
    desk.round(3)
    assert desk.log.holder == dict.fromkeys(desk.log.holder, "a")
    assert not other.held


def test_what_nobody_knows_is_left() -> None:
    """A partition of a topic that there is no more, or of which the group knows nothing."""
    desk = Desk(2)
    consumer = desk.joins("a")
    consumer.held = {TopicPartition("gone", 4): table({}).slots[4]}
    desk.settle()
    assert sorted(consumer.held) == table({"t": 2}).partitions(["t"])


@pytest.mark.parametrize(
    ("first", "second", "reason", "named"),
    [
        (terms("t"), terms("t", "u"), GroupRefusal.TOPICS_DIFFER, "only this consumer has u"),
        (terms("t", "u"), terms("t"), GroupRefusal.TOPICS_DIFFER, "only the group has u"),
        (terms(filters={"t": "ab"}), terms(filters={"t": "bc"}), GroupRefusal.FILTERS_DIFFER, "the group has a, "),
        (terms(), terms(filters={"t": "a"}), GroupRefusal.FILTERS_DIFFER, "topic t: of one of the two it has none"),
        (terms(), terms(bound=BOUND), GroupRefusal.BOUND_DIFFERS, "is not bound"),
        (terms(bound=BOUND), terms(), GroupRefusal.BOUND_DIFFERS, "is bound"),
        (
            terms(bound=BOUND),
            terms(bound=BoundTerms("other", 1, 2, True, {})),
            GroupRefusal.SESSION_DIFFERS,
            "session key key, and this consumer other",
        ),
        (
            terms(bound=BOUND),
            terms(bound=BoundTerms("key", 1, 3, True, {})),
            GroupRefusal.SESSION_DIFFERS,
            "source count 2, and this consumer 3",
        ),
        (
            terms(bound=BOUND),
            terms(bound=BoundTerms("key", 1, 2, False, {})),
            GroupRefusal.SESSION_DIFFERS,
            "selectBig True",
        ),
    ],
)
def test_t31_who_does_not_agree_is_told_in_what(
    first: GroupTerms, second: GroupTerms, reason: GroupRefusal, named: str
) -> None:
    desk = Desk()
    desk.joins("a", first)
    refusal = desk.refused("b", second)
    assert refusal.reason is reason
    assert named in refusal.message
    desk.joins("b", first)


def test_t31_many_differences_are_named_in_a_few_words() -> None:
    desk = Desk()
    desk.joins("a", terms(*(f"topic{number}" for number in range(200))))
    message = desk.refused("b", terms("t")).message
    assert "and 195 more" in message
    assert len(message) < 1000


def test_t31_who_is_alone_may_change_its_mind() -> None:
    desk = Desk(2)
    desk.step(TableKnown(table({"t": 2, "u": 1})))
    desk.joins("a")
    desk.settle()
    again = FakeConsumer("a", terms("u"), held=dict(desk.consumers["a"].held))
    answer = desk.asks(again.registers(CALL), "a")
    assert isinstance(answer, ConsumerAnswer)
    desk.consumers["a"] = again
    desk.settle()
    assert list(again.held) == [TopicPartition("u", 1)]


def test_t36_the_partitions_of_a_dead_member_move_and_its_late_heartbeat_is_refused() -> None:
    desk = Desk(5)
    desk.joins("a")
    dead = desk.joins("b")
    desk.settle()
    del desk.consumers["b"]
    desk.now_ms += 29_999
    desk.beats("a")
    desk.balance()
    assert desk.log.frees[Freeing.GONE] == 0
    desk.now_ms += 1
    desk.settle()
    assert desk.counts() == [5]
    assert desk.log.frees[Freeing.GONE] == 2
    answer = desk.asks(dead.beat(CALL), "b")
    assert isinstance(answer, RefuseClient)
    assert answer.reason is GroupRefusal.NO_NODE
    assert "register again" in answer.message
    desk.asks(dead.registers(CALL), "b")
    desk.consumers["b"] = dead
    desk.settle()
    assert sorted(desk.counts()) == [2, 3]
    assert desk.held() == desk.log.holder


def test_t36_also_before_the_balance_has_noticed() -> None:
    desk = Desk(5)
    consumer = desk.joins("a")
    desk.settle()
    desk.now_ms += 30_000
    answer = desk.asks(consumer.beat(CALL), "a")
    assert isinstance(answer, RefuseClient)
    assert not desk.log.holder


def test_t39_who_registers_again_keeps_what_it_has() -> None:
    desk = Desk(5)
    desk.joins("a")
    consumer = desk.joins("b")
    desk.settle()
    before, told = desk.held(), len(desk.log.story)
    desk.now_ms += 20_000
    desk.asks(consumer.registers(CALL), "b")
    desk.asks(FakeConsumer("a", terms()).registers(CALL), "a")  # a copy of its first, late
    desk.settle()
    assert desk.held() == before
    assert len(desk.log.story) == told


def test_t39_all_come_back_after_their_time_with_what_they_had() -> None:
    """The master could not be reached by anybody for a minute."""
    desk = Desk(5)
    consumers = [desk.joins(name) for name in "abc"]
    desk.settle()
    before = desk.held()
    desk.now_ms += 60_000
    for each in consumers:
        answer = desk.asks(each.beat(CALL), each.client_id)
        assert isinstance(answer, RefuseClient)
        desk.asks(each.registers(CALL), each.client_id)
    desk.settle()
    assert desk.held() == before == desk.log.holder
    assert desk.log.frees[Freeing.REPORTED] == 0


def test_t39_also_after_its_time_if_nobody_else_took_it() -> None:
    desk = Desk(5)
    consumer = desk.joins("a")
    desk.settle()
    desk.now_ms += 60_000
    desk.asks(consumer.registers(CALL), "a")
    assert set(desk.log.holder) == set(consumer.held)
    assert len(consumer.held) == 5


# ---- orders that are never done


def test_who_never_does_its_order_is_sent_away_and_has_to_prove_itself() -> None:
    desk = Desk(4, GroupTimes(order_ms=90_000))
    desk.joins("a")
    stuck = desk.joins("b")
    desk.balance()
    for _ in range(9):
        desk.round_of("a")
        desk.beats("b")
        desk.now_ms += 10_000
    assert desk.log.frees[Freeing.OVERDUE] == 0
    desk.balance()
    assert desk.log.frees[Freeing.OVERDUE] == 2
    desk.round_of("a")
    assert set(desk.log.holder.values()) == {"a"}
    refusal = desk.asks(stuck.beat(CALL), "b")
    assert isinstance(refusal, RefuseClient)
    assert refusal.reason is GroupRefusal.NO_NODE
    desk.asks(stuck.registers(CALL), "b")
    stuck.inbox.clear()
    desk.balance()
    order = desk.beats("b")
    assert order is not None
    assert (order.op, order.partitions) == (RebalanceOp.DISCONNECT, ()), "an empty one first"
    desk.balance()
    assert set(desk.log.holder.values()) == {"a"}, "before that it gets nothing"
    desk.settle()
    assert desk.counts() == [2, 2]


def test_who_says_failed_for_ever_is_sent_away_too() -> None:
    desk = Desk(2, GroupTimes(order_ms=60_000))
    consumer = desk.joins("a")
    desk.settle()
    desk.joins("b")
    for _ in range(6):
        desk.balance()
        desk.beats("a")
        if consumer.inbox:
            consumer.works(status=OrderStatus.FAILED)
        desk.round_of("b")
        desk.now_ms += 10_000
    assert set(desk.log.holder.values()) == {"a"}
    desk.balance()
    assert desk.log.frees[Freeing.OVERDUE] == 2
    assert set(desk.log.holder.values()) == {"b"}


# ---- a new leader


def test_a_new_leader_believes_reports_and_grants_nothing_else_at_first() -> None:
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


# ---- bad requests, limits


@pytest.mark.parametrize(
    ("client_id", "asked", "group", "named"),
    [
        ("", terms(), "g", "client ID ''"),
        ("a b", terms(), "g", "client ID 'a b'"),
        ("x" * 1025, terms(), "g", "client ID 'xxx"),
        ("a\n", terms(), "g", "client ID"),
        ("a", terms(), " ", "group"),
        ("a", GroupTerms(frozenset(), {}), "g", "no topic"),
        ("a", terms(""), "g", "topics ''"),
        ("a", terms(*map(str, range(257))), "g", "257 topics: there may be 256"),
        ("a", terms("t", filters={"u": "a"}), "g", "a filter for topic u"),
        ("a", terms("t", filters={"t": map(str, range(501))}), "g", "501 message types"),
        ("a", terms(bound=BoundTerms("", 1, 2, True, {})), "g", "session key"),
        ("a", terms(bound=BoundTerms("k", 1, 0, True, {})), "g", "source count 0"),
        ("a", terms(bound=BoundTerms("k", 1, 2, True, {TopicPartition("u", 1): 1})), "g", "partition 1:u:0"),
        ("a", terms(bound=BoundTerms("k", 1, 2, True, {TopicPartition("t", 1): -1})), "g", "offset -1"),
    ],
)
def test_a_request_that_cannot_be_is_refused(client_id: str, asked: GroupTerms, group: str, named: str) -> None:
    desk = Desk()
    refusal = desk.refused(client_id, asked, group)
    assert refusal.reason is GroupRefusal.BAD_REQUEST
    assert named in refusal.message
    assert len(refusal.message) < 500
    assert desk.master.group_names() == []


def test_limits() -> None:
    desk = Desk(limits=GroupLimits(groups=2, members=4, members_of_group=2, reported=3))
    for name in "ab":
        desk.joins(name)
    assert "2 consumers, which is the limit" in desk.refused("c", terms()).message
    desk.joins("a", group="h")
    assert "2 groups, which is the limit" in desk.refused("a", terms(), "i").message
    desk.master._limits = GroupLimits(groups=2, members=3, members_of_group=2, reported=3)
    refusal = desk.refused("b", terms(), "h")
    assert (refusal.reason, refusal.message[:21]) == (GroupRefusal.TOO_MANY, "there are 3 consumers")
    many = dict.fromkeys(table({"t": 4}).partitions(["t"]), table({}).slots[1])
    answer = desk.asks(ConsumerBeats(CALL, "a", "g", many), "a")
    assert isinstance(answer, RefuseClient)
    assert "4 partitions reported" in answer.message
    desk.joins("a")


@pytest.mark.parametrize("wrong", [{"client_ms": 0}, {"order_ms": -1}, {"session_ms": 0}])
def test_times_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        GroupTimes(**wrong)


def test_limits_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="groups is 0"):
        GroupLimits(groups=0)


def test_status_says_who_has_what() -> None:
    desk = Desk(3)
    consumer = desk.joins("a")
    desk.settle()
    desk.joins("b")
    desk.balance()
    desk.beats("a")
    desk.now_ms += 100
    desk.step(TableKnown(table({"t": 3})))
    status = desk.master.group_status("g")
    assert status is not None
    assert (status.topics, status.started, status.not_allocated, status.held) == (("t",), True, False, False)
    assert [(each.client_id, each.silent_ms, len(each.owned)) for each in status.members] == [
        ("a", 100, 2),
        ("b", 100, 0),
    ]
    order = status.members[0].order
    assert order is not None
    assert (order.op, order.partitions, order.age_ms) == (RebalanceOp.DISCONNECT, (TopicPartition("t", 3),), 100)
    assert [(each.owner, each.connected, each.leaving) for each in status.partitions] == [
        ("a", True, ()),
        ("a", True, ()),
        ("a", False, ("a",)),
    ]
    assert len(consumer.held) == 3
    assert desk.master.group_status("h") is None
