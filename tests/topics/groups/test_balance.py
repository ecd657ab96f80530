"""Shares, moves, orders: T32 to T35, in scenes."""

from __future__ import annotations

import random

import pytest

from tests.topics.groups.desk import Desk, table, terms
from waltz_ray.topics.groups import rules
from waltz_ray.topics.groups.effects import Freeing, PartitionFreed, PartitionGranted
from waltz_ray.topics.groups.events import (
    ConsumerCloses,
    HoldBalance,
    OrderStatus,
    RebalanceOp,
    TableKnown,
    WantReports,
)
from waltz_ray.topics.groups.table import SlotPlace, TopicPartition


def test_t32_seven_partitions_with_one_three_two_and_five_members() -> None:
    desk = Desk(7)
    desk.joins("a")
    desk.settle()
    assert desk.counts() == [7]
    moved = desk.log.frees[Freeing.REPORTED]
    desk.joins("b")
    desk.joins("c")
    desk.settle()
    assert desk.counts() == [3, 2, 2]
    assert desk.log.frees[Freeing.REPORTED] - moved == 4, "only the surplus of a"
    del desk.consumers["b"]
    desk.step(ConsumerCloses(1, "b", "g"))
    moved = desk.log.frees[Freeing.REPORTED]
    desk.settle()
    assert desk.counts() == [4, 3]
    assert desk.log.frees[Freeing.REPORTED] == moved, "who stays gives nothing away"
    for name in "def":
        desk.joins(name)
    desk.settle()
    assert desk.counts() == [2, 2, 1, 1, 1]
    assert desk.log.frees[Freeing.REPORTED] - moved == 3
    assert set(desk.held()) == set(table({"t": 7}).partitions(["t"]))
    assert desk.held() == desk.log.holder


@pytest.mark.parametrize("seed", range(20))
def test_t32_shares_are_floor_or_ceil_whoever_has_what(seed: int) -> None:
    """Seeded: some members with some partitions; the sum is right, and as few as possible move."""
    chance = random.Random(seed)
    members = {f"c{number}": chance.randrange(6) for number in range(chance.randrange(1, 9))}
    partitions = sum(members.values()) + chance.randrange(4)
    found = rules.shares(members, partitions)
    least, more = divmod(partitions, len(members))
    assert sorted(found.values()) == [least] * (len(members) - more) + [least + 1] * more
    moved = sum(max(0, has - found[client]) for client, has in members.items())
    ranked = sorted(members.values(), reverse=True)
    assert moved == sum(max(0, has - least - (rank < more)) for rank, has in enumerate(ranked))


def test_t33_an_order_is_sent_until_it_is_done_and_ids_rise() -> None:
    desk = Desk(4)
    consumer = desk.joins("a")
    desk.balance()
    first = desk.beats("a")
    assert first is not None
    assert first.op is RebalanceOp.CONNECT
    assert [partition for partition, _ in first.partitions] == table({"t": 4}).partitions(["t"])
    sent = [desk.beats("a") for _ in range(15)]
    assert [beat for beat, order in enumerate(sent, 1) if order is not None] == [1, 2, 4, 6, 8, 10, 12, 14], (
        "a reply may be lost"
    )
    assert set(sent) == {first, None}
    desk.asks(consumer.registers(7), "a")
    assert desk.beats("a") == first, "it may have lost it with its connection"
    del consumer.inbox[3:]
    for _ in range(3):
        consumer.works()
    assert desk.beats("a") is None
    assert [len(consumer.results), len(consumer.held)] == [2, 4]
    desk.joins("b")
    desk.balance()
    second = desk.beats("a")
    assert second is not None
    assert second.op is RebalanceOp.DISCONNECT
    assert second.rebalance_id > first.rebalance_id
    assert desk.beats("a") is None, "what it says of the first, twice more, is no word on the second"
    assert desk.beats("a") == second
    assert len(desk.log.holder) == 4


def test_t34_statuses() -> None:
    """PROCESSING when it is sent; DONE ends it; of FAILED, UNKNOWN and TODO (given back) a new one is made later."""
    desk = Desk(2)
    consumer = desk.joins("a")
    desk.balance()
    for status in (OrderStatus.FAILED, OrderStatus.UNKNOWN, OrderStatus.TODO):
        order = desk.beats("a")
        assert order is not None
        assert order.status is OrderStatus.PROCESSING
        consumer.works(status=status)
        assert desk.beats("a") is None, "not at once"
        desk.balance()
        consumer.inbox.clear()
        again = desk.beats("a")
        assert again is not None
        assert again.partitions == order.partitions
        assert again.rebalance_id > order.rebalance_id
    last = desk.beats("a")
    consumer.works(status=OrderStatus.PROCESSING)
    assert desk.beats("a") is None, "it is at it"
    assert last in [desk.beats("a") for _ in range(3)]


def test_t33_who_is_busy_with_what_is_over_is_not_told_more() -> None:
    """A client that was stuck answers each order as often as it got it."""
    desk = Desk(2)
    consumer = desk.joins("a")
    desk.balance()
    for _ in range(4):
        desk.beats("a")
    consumer.held = dict.fromkeys(table({"t": 2}).partitions(["t"]), table({}).slots[1])
    while consumer.inbox:
        consumer.works()
    desk.beats("a")
    desk.joins("b")
    desk.balance()
    order = desk.beats("a")
    assert order is not None
    assert order.op is RebalanceOp.DISCONNECT
    while consumer.results:
        assert desk.beats("a") is None
    assert desk.beats("a") == order


def test_t33_a_list_shows_that_a_connect_is_done() -> None:
    desk = Desk(2)
    consumer = desk.joins("a")
    desk.balance()
    desk.beats("a")
    consumer.works()
    consumer.results.clear()  # the word is lost
    for _ in range(4):
        desk.beats("a")
    status = desk.master.group_status("g")
    assert status is not None
    assert status.members[0].order is None


def test_t35_released_before_it_is_assigned() -> None:
    desk = Desk(2)
    first = desk.joins("a")
    desk.settle()
    second = desk.joins("b")
    assert not [each for each in desk.balance() if isinstance(each, PartitionGranted)]
    assert desk.beats("b") is None, "a has not let go"
    order = desk.beats("a")
    assert order is not None
    assert order.op is RebalanceOp.DISCONNECT
    partition = order.partitions[0][0]
    desk.balance()
    assert desk.beats("b") is None
    first.works()
    desk.beats("a")
    assert desk.log.story[-2:] == [f"{partition} free of a: REPORTED", f"{partition} to b"]
    assert desk.beats("b") is not None
    second.works()
    assert desk.beats("b") is None
    assert list(second.held) == [partition]


def test_t35_a_list_without_the_word_frees_nothing() -> None:
    desk = Desk(2)
    first = desk.joins("a")
    desk.settle()
    desk.joins("b")
    desk.balance()
    first.held.clear()
    first.inbox.clear()
    for _ in range(4):
        desk.beats("a")
    assert set(desk.log.holder.values()) == {"a"}


def test_t35_who_comes_too_early_tries_again_in_a_later_round() -> None:
    """410 of a slot: it is done, and what the consumer has lacks the partition."""
    desk = Desk(2)
    consumer = desk.joins("a")
    desk.balance()
    desk.beats("a")
    consumer.works(admits=set())
    assert desk.beats("a") is None
    desk.balance()
    order = desk.beats("a")
    assert order is not None
    assert len(order.partitions) == 2
    consumer.works(admits={TopicPartition("t", 1)})
    desk.balance()
    assert desk.beats("a") is None
    desk.balance()
    order = desk.beats("a")
    assert order is not None
    assert [partition for partition, _ in order.partitions] == [TopicPartition("t", 2)]


def test_a_partition_its_slot_took_away_is_connected_again() -> None:
    desk = Desk(2)
    consumer = desk.joins("a")
    desk.settle()
    del consumer.held[TopicPartition("t", 2)]
    desk.round(5)
    assert len(consumer.held) == 2


def test_first_given_away_is_what_is_not_consumed_yet() -> None:
    desk = Desk(4)
    consumer = desk.joins("a")
    desk.balance()
    desk.beats("a")
    consumer.works(admits={TopicPartition("t", 3), TopicPartition("t", 4)})
    desk.beats("a")
    desk.joins("b")
    desk.balance()
    order = desk.beats("a")
    assert order is not None
    assert [partition.slot for partition, _ in order.partitions] == [1, 2]


def test_what_was_never_told_is_taken_back_without_asking() -> None:
    desk = Desk(4)
    desk.joins("a")
    desk.balance()
    desk.joins("b")
    assert [each.how for each in desk.balance() if isinstance(each, PartitionFreed)] == [Freeing.WITHDRAWN] * 2
    desk.round(2)
    assert desk.counts() == [2, 2]


def test_topics_and_partitions_come_and_go() -> None:
    desk = Desk(2)
    consumer = desk.joins("a", terms("t", "u"))
    desk.settle()
    assert len(consumer.held) == 2, "u is not there yet"
    desk.step(TableKnown(table({"t": 3, "u": 2})))
    desk.settle()
    assert len(consumer.held) == 5
    desk.step(TableKnown(table({"u": 2})))
    desk.settle()
    assert sorted(consumer.held) == table({"u": 2}).partitions(["u"])
    assert sorted(desk.log.holder) == sorted(consumer.held)


def test_t35_a_topic_that_comes_back_waits_for_who_still_has_it() -> None:
    desk = Desk(2)
    desk.joins("a", terms("t", "u"))
    late = desk.joins("b", terms("t", "u"))
    desk.settle()
    desk.step(TableKnown(table({"t": 2, "u": 1})))
    partition = TopicPartition("u", 1)
    desk.step(TableKnown(table({"t": 2})))
    late.held[partition] = table({}).slots[1]
    for _ in range(3):
        desk.beats("b")
    desk.step(TableKnown(table({"t": 2, "u": 1})))
    desk.balance()
    assert partition not in desk.log.holder
    desk.round(3)
    desk.settle()
    assert desk.held() == desk.log.holder
    assert partition in desk.log.holder


def test_a_slot_at_a_new_address_is_connected_anew_and_nothing_moves() -> None:
    desk = Desk(4)
    consumers = [desk.joins("a"), desk.joins("b")]
    desk.settle()
    before, told = desk.held(), len(desk.log.story)
    places = {**table({"t": 4}).slots, 2: SlotPlace("127.0.0.2", 9)}
    desk.step(TableKnown(type(table({}))(places, table({"t": 4}).topics)))
    desk.settle()
    assert desk.held() == before
    assert len(desk.log.story) == told, "no grant, nothing freed"
    assert [each.held[TopicPartition("t", 2)] for each in consumers if TopicPartition("t", 2) in each.held] == [
        SlotPlace("127.0.0.2", 9)
    ]


def test_a_slot_without_an_address_waits() -> None:
    desk = Desk(2)
    consumer = desk.joins("a")
    desk.step(TableKnown(table({"t": 2}, slots=1)))
    desk.settle()
    assert len(consumer.held) == 1
    desk.step(TableKnown(table({"t": 2}, slots=2)))
    desk.settle()
    assert len(consumer.held) == 2


def test_a_balance_that_is_held_moves_nothing() -> None:
    desk = Desk(4)
    desk.joins("a")
    desk.settle()
    desk.step(HoldBalance("g", True))
    desk.joins("b")
    told = desk.beats("a")
    assert told is not None
    assert told.op is RebalanceOp.STOPREBALANCE
    desk.consumers["a"].inbox.clear()
    assert desk.beats("a") is None, "said once, no answer is waited for"
    desk.settle()
    assert desk.counts() == [4, 0]
    desk.step(HoldBalance("g", False))
    desk.settle()
    assert desk.counts() == [2, 2]


def test_a_report_is_asked_for_once() -> None:
    desk = Desk(2)
    desk.joins("a")
    desk.settle()
    desk.step(WantReports("g"))
    told = desk.beats("a")
    assert told is not None
    assert (told.op, told.partitions) == (RebalanceOp.REPORT, ())
    assert desk.beats("a") is None


@pytest.mark.parametrize("seed", range(5))
def test_t32_fifty_members_join_and_leave_at_random(seed: int) -> None:
    """Seeded. Shares are floor and ceil whenever nothing has happened for two balances."""
    chance, desk = random.Random(seed), Desk(120)
    desk.step(TableKnown(table({"t": 120}, slots=120)))
    for number in range(50):
        desk.joins(f"m{number}")
    for turn in range(30):
        for _ in range(chance.randrange(1, 6)):
            if chance.random() < 0.5 and len(desk.consumers) > 1:
                name = chance.choice(sorted(desk.consumers))
                del desk.consumers[name]
                desk.step(ConsumerCloses(1, name, "g"))
            elif len(desk.consumers) < 50:
                desk.joins(f"m{turn}-{chance.randrange(10**9)}")
        if chance.random() < 0.7:
            desk.balance()
            desk.round()
        else:
            desk.settle()
            least = 120 // len(desk.consumers)
            assert set(desk.counts()) <= {least, least + 1}
            assert desk.held() == desk.log.holder
            assert len(desk.held()) == 120
