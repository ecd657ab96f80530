"""T30: a bound group has a session, a fixed number of members, and offsets at which it begins."""

from __future__ import annotations

from collections.abc import Mapping

from tests.topics.groups.consumers import FakeConsumer
from tests.topics.groups.desk import CALL, Desk, table, terms
from waltz_ray.topics.groups.effects import ConsumerAnswer, Freeing, GroupRefusal, RefuseClient, StoreOffsets
from waltz_ray.topics.groups.events import (
    BoundTerms,
    ConsumerCloses,
    GroupTerms,
    OffsetsNotStored,
    OffsetsStored,
    TableKnown,
    TookOver,
)
from waltz_ray.topics.groups.limits import GroupTimes
from waltz_ray.topics.groups.machine import TopicMaster
from waltz_ray.topics.groups.table import TopicPartition

ONE, TWO = TopicPartition("t", 1), TopicPartition("t", 2)


def bound(
    key: str = "k", count: int = 2, offsets: Mapping[TopicPartition, int] | None = None, big: bool = True
) -> GroupTerms:
    return terms(bound=BoundTerms(key, 1, count, big, offsets or {}))


def test_t30_it_starts_when_all_are_there() -> None:
    desk = Desk(4)
    desk.joins("a", bound())
    desk.settle()
    assert desk.counts() == [0]
    answer = desk.asks(FakeConsumer("b", bound()).registers(CALL), "b")
    assert isinstance(answer, ConsumerAnswer)
    assert answer.not_allocated
    desk.consumers["b"] = FakeConsumer("b", bound())
    desk.settle()
    assert desk.counts() == [2, 2]


def test_t30_an_offset_of_a_partition_that_there_is_not_is_refused() -> None:
    """It would be stored for good, and that of a second partition of a slot for its first."""
    desk = Desk(4)
    for partition in (TopicPartition("t", 0), TopicPartition("t", 5), TopicPartition("t", 1, 3)):
        refused = desk.refused("a", bound(offsets={ONE: 5, partition: 7}))
        assert (refused.reason, str(partition) in refused.message) == (GroupRefusal.BAD_REQUEST, True)
    wants = GroupTerms(frozenset({"t", "later"}), {}, bound(offsets={TopicPartition("later", 9): 1}).bound)
    desk.joins("a", wants)


def test_t30_it_begins_at_the_offsets_given_and_not_before_they_are_stored() -> None:
    desk = Desk(4)
    desk.joins("a", bound(offsets={ONE: 5, TWO: 7}))
    desk.joins("b", bound(offsets={ONE: 9}))
    effects = desk.balance()
    assert effects == [StoreOffsets("g", "k", {ONE: 9, TWO: 7})]
    assert desk.balance() == [], "it is under way"
    desk.round()
    assert desk.counts() == [0, 0]
    desk.step(OffsetsNotStored("g", "k", "no quorum"))
    assert desk.balance() == effects, "tried again"
    desk.step(OffsetsStored("g", "other"))
    assert not desk.log.holder
    desk.step(OffsetsStored("g", "k"))
    desk.round(2)
    assert desk.counts() == [2, 2]
    assert desk.balance() == []


def test_t30_the_smaller_offset_without_select_big() -> None:
    desk = Desk(4)
    desk.joins("a", bound(offsets={ONE: 5}, big=False))
    desk.joins("b", bound(offsets={ONE: 9}, big=False))
    assert desk.balance() == [StoreOffsets("g", "k", {ONE: 5})]


def test_t30_a_group_that_is_full_takes_nobody_else() -> None:
    desk = Desk(4)
    desk.joins("a", bound())
    desk.joins("b", bound())
    refusal = desk.refused("c", bound())
    assert refusal.reason is GroupRefusal.GROUP_FULL
    assert "2 consumers" in refusal.message
    desk.joins("b", bound())
    desk.step(ConsumerCloses(CALL, "b", "g"))
    desk.joins("c", bound())


def test_t30_the_partitions_of_one_that_is_gone_go_to_the_rest_until_another_comes() -> None:
    desk = Desk(4)
    for name in "ab":
        desk.joins(name, bound())
    desk.settle()
    desk.step(ConsumerCloses(CALL, "b", "g"))
    del desk.consumers["b"]
    desk.settle()
    assert desk.counts() == [4]
    desk.joins("c", bound())
    desk.settle()
    assert desk.counts() == [2, 2]


def test_t30_a_zombies_session_gives_way_to_the_next() -> None:
    desk = Desk(4, GroupTimes(session_ms=60_000))
    desk.joins("a", bound())
    zombie = desk.joins("b", bound())
    desk.settle()
    assert desk.refused("n", bound("next")).reason is GroupRefusal.SESSION_DIFFERS
    desk.now_ms += 100_000
    for name in "ab":
        desk.asks(desk.consumers[name].registers(CALL), name)
    assert desk.refused("n", bound("next")).reason is GroupRefusal.SESSION_DIFFERS, "all are there: it goes on"
    desk.step(ConsumerCloses(CALL, "a", "g"))
    del desk.consumers["a"]
    for _ in range(5):
        desk.now_ms += 11_999
        desk.round()
        refusal = desk.refused("n", bound("next"))
        assert "gives way after 60000 ms" in refusal.message
    desk.now_ms += 5
    desk.joins("n", bound("next"))
    assert not desk.log.holder
    assert desk.log.frees[Freeing.REPLACED] == 4
    answer = desk.asks(zombie.beat(CALL), "b")
    assert isinstance(answer, RefuseClient)
    assert answer.reason is GroupRefusal.NO_NODE
    assert desk.refused("b", bound()).reason is GroupRefusal.SESSION_DIFFERS


def test_t30_a_session_whose_members_are_all_gone_is_over() -> None:
    desk = Desk(4)
    desk.joins("a", bound())
    desk.now_ms += 30_000
    desk.balance()
    desk.joins("n", bound("next"))


def test_t30_a_new_leader_does_not_set_the_offsets_back() -> None:
    desk = Desk(4)
    consumers = [desk.joins(name, bound(offsets={ONE: 5})) for name in "ab"]
    desk.balance()
    desk.step(OffsetsStored("g", "k"))
    desk.settle()
    before = desk.held()
    desk.master = TopicMaster()
    desk.log.leader_changes()
    desk.step(TookOver(2, 0))
    desk.step(TableKnown(table({"t": 4})))
    for each in consumers:
        desk.asks(each.registers(CALL), each.client_id)
    assert not [effect for effect in desk.balance() if isinstance(effect, StoreOffsets)]
    desk.settle()
    assert desk.held() == before == desk.log.holder
