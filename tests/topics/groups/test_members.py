"""Who is in a group: T21, T23 (the master's side), T31, T36 and T39."""

from __future__ import annotations

import pytest

from tests.topics.groups.consumers import FakeConsumer
from tests.topics.groups.desk import CALL, Desk, table, terms
from waltz_ray.topics.groups.effects import (
    ConsumerAnswer,
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
    TableKnown,
)
from waltz_ray.topics.groups.limits import GroupTimes
from waltz_ray.topics.groups.table import TopicPartition

BOUND = BoundTerms("key", 1, 2, True, {})


def test_t21_registering_brings_no_partitions_and_closing_frees_them() -> None:
    desk = Desk(3)
    desk.joins("a")
    desk.settle()
    assert desk.counts() == [3]
    grant = desk.master.grant_of("g", TopicPartition("t", 1))
    assert grant is not None
    assert grant.client_id == "a"
    effects = desk.step(ConsumerCloses(CALL, "a", "g"))
    assert [each.how for each in effects if isinstance(each, PartitionFreed)] == [Freeing.CLOSED] * 3
    assert desk.master.grant_of("g", TopicPartition("t", 1)) is None
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
