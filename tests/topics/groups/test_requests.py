"""Requests that cannot be, limits, and what is shown of groups."""

from __future__ import annotations

import pytest

from tests.topics.groups.desk import CALL, Desk, table, terms
from waltz_ray.protocol.spaces import MOST_TOPIC_PARTITIONS
from waltz_ray.topics.groups.effects import (
    GroupRefusal,
    RefuseClient,
)
from waltz_ray.topics.groups.events import (
    BoundTerms,
    ConsumerBeats,
    GroupTerms,
    RebalanceOp,
    TableKnown,
)
from waltz_ray.topics.groups.limits import GroupLimits, GroupTimes
from waltz_ray.topics.groups.table import TopicPartition
from waltz_ray.topics.offset_item import offset_name


@pytest.mark.parametrize(
    ("client_id", "asked", "group", "named"),
    [
        ("", terms(), "g", "client ID ''"),
        ("a b", terms(), "g", "client ID 'a b'"),
        ("x" * 1025, terms(), "g", "client ID 'xxx"),
        ("a\n", terms(), "g", "client ID"),
        ("a", terms(), " ", "group"),
        ("a", terms("t"), "g" * 474, "480 bytes are the most: take a shorter name for the group"),
        ("a", terms("t", "u" * 64), "\u00e9" * 206, "480 bytes"),
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


def test_the_longest_name_of_a_group_that_a_slot_can_keep() -> None:
    """Beside its topic's and the highest number of a partition."""
    Desk().joins("a", terms("t"), "g" * 473)
    offset_name("g" * 473, "t", MOST_TOPIC_PARTITIONS - 1)


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
