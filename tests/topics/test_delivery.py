"""One partition delivered to one group, told facts one by one."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.errors import InvariantBroken
from waltz_ray.topics import delivery_rules as rules
from waltz_ray.topics import delivery_types as t
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.delivery import Delivery
from waltz_ray.topics.flow_rules import MIB, parse_flow_rules

NOW = 1_700_006_400_000
LIMITS = t.DeliveryLimits(lease_ms=30_000, waiting=4, batch_messages=3, reads=3, skipped=100)


class Shop:
    """A machine, the log [first, end) that it reads (a message's type is its ID modulo 2), and the stored offset."""

    def __init__(self, end: int = 10, first: int = 0, stored: int | None = None, flow: str = "[]") -> None:
        self.machine = Delivery(LIMITS, parse_flow_rules(flow))
        self.first, self.end, self.stored, self.epoch = first, end, stored, 0
        self.now = NOW
        self.tokens = 0
        self.stores = 0
        self.message_bytes = 1
        self.lost: list[str] = []
        self.held: list[t.DeliveryEffect] = []
        self.hold = False  # orders are kept in ``held`` instead of being carried out

    def tell(self, event: t.DeliveryEvent) -> list[t.DeliveryReply]:
        replies = []
        for effect in self.machine.step(event, self.now):
            if isinstance(effect, t.DeliveryReply):
                replies.append(effect)
            elif isinstance(effect, t.PartitionLost):
                self.lost.append(effect.consumer)
            elif self.hold:
                self.held.append(effect)
            else:
                replies += self.tell(self.carried_out(effect))
        return replies

    def carried_out(self, order: t.DeliveryEffect) -> t.DeliveryEvent:
        match order:
            case t.TakeOffset(number):
                self.epoch += 1
                return t.OffsetTaken(number, self.stored, self.epoch, self.first, self.end)
            case t.StoreOffset(number, offset, epoch):
                if epoch != self.epoch:
                    return t.OffsetFenced(number)
                self.stored = offset
                self.stores += 1
                return t.OffsetKept(number)
            case t.ReadBatch(number, offset, end, filters, most):
                if offset < self.first:
                    return t.BatchTrimmed(number, self.first)
                end = self.end if end is None else end
                found: list[int] = []
                at = offset
                while at < min(end, offset + 8) and len(found) < most:
                    if not filters or str(at % 2) in filters:
                        found.append(at)
                    at += 1
                size = len(found) * self.message_bytes
                return t.BatchRead(number, found, at, self.end, size, (self.end - at) * self.message_bytes)
        raise AssertionError(order)

    def one(self, event: t.DeliveryEvent) -> t.DeliveryReply:
        (reply,) = self.tell(event)
        return reply

    def token(self) -> int:
        self.tokens += 1
        return self.tokens

    def register(
        self, consumer: str = "c", status: int = 0, offset: int = -1, filters: frozenset[str] = frozenset()
    ) -> t.DeliveryReply:
        return self.one(t.PartitionWanted(self.token(), consumer, status, offset, filters))

    def pull(self, last: bool = True, manual: bool = False, consumer: str = "c") -> t.DeliveryReply:
        return self.one(t.PullAsked(self.token(), consumer, last, manual))

    def confirm(self, consumed: bool = True, consumer: str = "c") -> t.DeliveryReply:
        return self.one(t.ConfirmAsked(self.token(), consumer, consumed))

    def progress(self, offset: int, read_bytes: int = 0, consumer: str = "c") -> t.DeliveryReply:
        lag_bytes = (self.end - max(0, offset)) * self.message_bytes
        term = self.machine.status().term
        return self.one(t.ProgressAsked(self.token(), consumer, offset, read_bytes, False, self.end, lag_bytes, term))

    def alive(self, consumer: str = "c") -> TopicCode:
        return self.one(t.LeaseRenewed(self.token(), consumer)).code

    def give_back(self, last: bool = True, consumer: str = "c") -> t.DeliveryReply:
        return self.one(t.PartitionGivenBack(self.token(), consumer, last))

    def reset(self, offset: int) -> t.DeliveryReply:
        return self.one(t.ResetAsked(self.token(), offset))


def test_t22_register_pull_and_log_out() -> None:
    shop = Shop()
    reply = shop.register()
    assert (reply.code, reply.offset, reply.end) == (TopicCode.OK, 0, 10)
    reply = shop.pull()
    assert reply == t.DeliveryReply(2, TopicCode.OK, "", [0, 1, 2], 0, 3, 10, 7)
    assert shop.give_back(last=True).code == TopicCode.OK
    assert shop.stored == 3
    assert shop.give_back().code == TopicCode.HB_NO_NODE
    assert shop.machine.idle
    shop.register("d")
    assert shop.pull(consumer="d").messages == [3, 4, 5]
    assert shop.give_back(last=False, consumer="d").code == TopicCode.OK
    assert shop.stored == 3


def test_t23_a_partition_belongs_to_one_consumer() -> None:
    shop = Shop()
    shop.register("c")
    occupied = shop.register("d")
    assert occupied.code == TopicCode.PARTITION_OCCUPIED
    assert "consumer c has" in occupied.text
    for reply in (shop.pull(consumer="d"), shop.confirm(consumer="d"), shop.give_back(consumer="d")):
        assert reply.code == TopicCode.DUPLICATE_PARTITION
    assert shop.pull(consumer="c").messages == [0, 1, 2]
    shop.give_back()
    assert shop.register("d").code == TopicCode.OK
    assert shop.pull(consumer="c").code == TopicCode.DUPLICATE_PARTITION


def test_t24_heartbeats_say_whose_a_partition_is_and_renew_the_lease() -> None:
    shop = Shop()
    assert shop.alive() == TopicCode.HB_NO_NODE
    shop.register()
    for _ in range(5):
        shop.now += 29_999
        assert shop.alive() == TopicCode.OK
    assert shop.alive("d") == TopicCode.DUPLICATE_PARTITION
    shop.now += 30_000
    assert shop.alive() == TopicCode.HB_NO_NODE
    assert shop.lost == ["c"]


def test_t25_a_pull_without_data_says_so() -> None:
    shop = Shop(end=0)
    shop.register()
    reply = shop.pull()
    assert (reply.code, reply.offset, reply.end) == (TopicCode.NOT_FOUND, 0, 0)
    shop.end = 1
    assert shop.pull().messages == [0]


def test_t26_a_confirm_moves_on_or_rewinds() -> None:
    shop = Shop()
    shop.register()
    assert shop.pull().messages == [0, 1, 2]
    reply = shop.confirm(True)
    assert (reply.code, reply.offset, shop.stored) == (TopicCode.OK, 3, 3)
    assert shop.confirm(True).offset == 3
    assert shop.pull().messages == [3, 4, 5]
    assert shop.confirm(False).offset == 3
    assert shop.pull().messages == [3, 4, 5]
    assert shop.pull(last=True).messages == [6, 7, 8]
    assert shop.stored == 6
    assert shop.pull(last=False).messages == [6, 7, 8]
    assert shop.stored == 6


def test_t26_what_was_delivered_before_a_consumer_registered_again_is_not_confirmed() -> None:
    """Its answer to the registration may come late, and the batch before it: all of that comes again."""
    shop = Shop()
    shop.register()
    assert shop.confirm().code == TopicCode.OK, "there is nothing to be confirmed"
    assert shop.pull(manual=True).messages == [0, 1, 2]
    shop.register()
    reply = shop.confirm()
    assert (reply.code, reply.offset, shop.stored) == (TopicCode.NOT_FOUND, 0, 0)
    assert "comes again" in reply.text
    assert shop.pull(manual=True).messages == [0, 1, 2]
    for _ in range(2):  # the answer may be lost, and it is asked again
        assert shop.confirm().code == TopicCode.OK
        assert shop.stored == 3
    shop.register()
    assert shop.confirm().code == TopicCode.OK, "it is confirmed"


def test_t26_an_answer_waits_until_the_offset_is_stored() -> None:
    shop = Shop()
    shop.register()
    shop.pull()
    shop.hold = True
    assert shop.tell(t.ConfirmAsked(90, "c", True)) == []
    (store,) = shop.held
    shop.hold = False
    (reply,) = shop.tell(shop.carried_out(store))
    assert (reply.code, reply.offset) == (TopicCode.OK, 3)
    shop.pull()
    shop.hold, shop.held = True, []
    assert shop.tell(t.PullAsked(91, "c", True, False)) == []
    store, read = shop.held
    assert shop.tell(shop.carried_out(read)) == []
    (reply,) = shop.tell(shop.carried_out(store))
    assert reply.messages == [6, 7, 8]


def test_t27_what_a_lost_consumer_did_not_confirm_comes_again_as_it_was() -> None:
    shop = Shop(end=5)
    shop.register()
    assert shop.pull().messages == [0, 1, 2]
    assert shop.pull().messages == [3, 4]
    shop.end = 9
    shop.now += 30_000
    assert shop.register("d").offset == 3
    assert shop.lost == ["c"]
    assert shop.pull(consumer="d").messages == [3, 4]
    assert shop.pull(last=False, consumer="d").messages == [3, 4]
    assert shop.pull(consumer="d").messages == [5, 6, 7]
    assert shop.register("d").offset == 5
    assert shop.pull(last=True, consumer="d").messages == [5, 6, 7]
    assert shop.stored == 5


def test_t28_many_pulls_and_one_confirm() -> None:
    shop = Shop()
    shop.register()
    shop.end = 4
    assert [shop.pull(manual=True).messages for _ in range(2)] == [[0, 1, 2], [3]]
    shop.end = 10
    assert shop.pull(manual=True, last=False).messages == [4, 5, 6]
    assert shop.stored == 0
    shop.confirm(False)
    again = [shop.pull(manual=True).messages for _ in range(4)]
    assert again == [[0, 1, 2], [3], [4, 5, 6], [7, 8, 9]]
    assert shop.confirm(True).offset == shop.stored == 10
    assert shop.pull(manual=True).code == TopicCode.NOT_FOUND


def test_t28_pulls_do_not_become_slower_the_more_is_not_confirmed() -> None:
    """A consumer that confirms by hand, and never does, would keep all others of its actor waiting in the end."""
    shop, pulls = Shop(end=60_000), 20_000
    shop.register()
    took_s = []
    for _ in range(2):
        began_s = time.process_time()
        for _ in range(pulls // 2):
            assert shop.pull(manual=True).messages
        took_s.append(time.process_time() - began_s)
    assert took_s[1] < 2 * took_s[0]
    assert shop.confirm().offset == shop.stored == 3 * pulls


@pytest.mark.parametrize(
    ("status", "offset", "stored", "start"),
    [
        (0, -1, None, 2), (0, -1, 5, 5), (1, -1, None, 10), (1, -1, 5, 5), (2, -1, None, 10), (2, -1, 5, 10),
        (0, 7, 5, 7), (2, 3, 5, 3), (0, 10, None, 10), (0, -1, 12, 10), (1, -1, 12, 10), (2, -1, 12, 10),
    ],
)  # fmt: skip
def test_t29_where_a_consumer_begins(status: int, offset: int, stored: int | None, start: int) -> None:
    """Never lower than what is stored, if the log goes so far: else it was restored from before, and ends there."""
    shop = Shop(end=10, first=2, stored=stored)
    assert shop.register(status=status, offset=offset).offset == start
    assert shop.stored == start


def test_t29_from_the_end_for_the_first_time_holds_although_nothing_was_pulled() -> None:
    shop = Shop(end=10)
    shop.register(status=1)
    shop.give_back()
    shop.end = 13
    assert shop.register(status=1).offset == 10


def test_t30_an_offset_that_is_not_in_the_log_is_refused() -> None:
    shop = Shop(stored=5)
    for offset in (11, 1 << 62, -2):
        reply = shop.register(offset=offset)
        assert reply.code == TopicCode.BAD_REQUEST
        assert "0 to 10" in reply.text
    assert shop.alive() == TopicCode.HB_NO_NODE
    assert shop.register().offset == 5


def test_t35_a_zombie_is_refused_and_moves_nothing() -> None:
    """The offset was taken elsewhere: the consumer is told that the partition has moved, and registers where it is."""
    shop = Shop()
    shop.register()
    shop.pull()
    shop.epoch += 1
    reply = shop.confirm(True)
    assert reply.code == TopicCode.MOVED
    assert (shop.stored, shop.lost) == (0, ["c"])
    assert shop.pull().code == TopicCode.HB_NO_NODE
    shop.stored = 8
    assert shop.register().offset == 8


def test_t36_a_lease_ends_while_a_pull_is_under_way() -> None:
    shop = Shop()
    shop.register()
    shop.hold = True
    shop.tell(t.PullAsked(90, "c", True, False))
    (read,) = shop.held
    shop.now += 30_000
    shop.hold = False
    (reply,) = shop.tell(shop.carried_out(read))
    assert (reply.code, reply.messages) == (TopicCode.HB_NO_NODE, ())
    shop.register("d")
    assert shop.pull(consumer="d").messages == [0, 1, 2]


def test_t27_what_was_confirmed_counts_although_it_could_not_be_stored() -> None:
    shop = Shop()
    shop.register()
    shop.pull()
    shop.hold = True
    shop.tell(t.ConfirmAsked(90, "c", True))
    (store,) = shop.held
    assert isinstance(store, t.StoreOffset)
    (reply,) = shop.tell(t.OffsetUnknown(store.number, "ZooKeeper is away"))
    assert reply.code == TopicCode.UNAVAILABLE
    assert "ZooKeeper is away" in reply.text
    shop.hold = False
    assert shop.stored == 0
    shop.now += 30_000
    assert shop.register("d").offset == 3
    assert shop.stored == 3


def test_t27_what_is_remembered_counts_only_if_nobody_had_the_partition_between() -> None:
    shop = Shop()
    shop.register()
    shop.pull()
    shop.hold = True
    shop.tell(t.ConfirmAsked(90, "c", True))
    (store,) = shop.held
    assert isinstance(store, t.StoreOffset)
    shop.tell(t.OffsetUnknown(store.number, "it is away"))
    shop.hold = False
    shop.epoch, shop.stored = 7, 1
    assert shop.register().offset == 1


def test_resets_go_where_they_are_told_to_and_drop_what_was_delivered() -> None:
    shop = Shop(end=10, first=1)
    shop.register()
    shop.pull()
    for offset, there in ((7, 7), (10, 10), (0, 1), (1, 1)):
        reply = shop.reset(offset)
        assert (reply.code, reply.offset, shop.stored) == (TopicCode.OK, there, there)
        assert shop.alive() == TopicCode.HB_NO_NODE, "who reads the log itself would confirm where it is"
        assert shop.register().offset == there
    assert shop.pull(last=True).messages == [1, 2, 3]
    for offset in (11, -1):
        assert shop.reset(offset).code == TopicCode.BAD_REQUEST
    assert shop.pull(last=True).messages == [4, 5, 6]


def test_a_reset_needs_no_consumer_and_fences_those_of_other_brokers() -> None:
    shop, other = Shop(), Shop()
    other.register()
    other.pull()
    shop.epoch, shop.stored = other.epoch, other.stored
    assert shop.reset(6).offset == 6
    other.epoch, other.stored = shop.epoch, shop.stored
    assert other.confirm(True).code == TopicCode.MOVED
    assert other.stored == 6


def test_what_was_trimmed_is_passed_over_and_counted_once() -> None:
    shop = Shop(stored=2)
    shop.register()
    assert shop.pull().messages == [2, 3, 4]
    shop.first = 4
    assert shop.pull(last=False).messages == [4]
    assert shop.machine.status().lost == 2
    shop.first = 7
    assert shop.pull(last=False).messages == [7, 8, 9]
    assert shop.machine.status().lost == 5
    shop.confirm(True)
    assert shop.stored == 10
    shop.give_back()
    shop.first = shop.end = 20
    assert shop.register().offset == 20
    assert shop.machine.status().lost == 15


def test_what_was_trimmed_is_not_counted_again_after_a_rewind() -> None:
    shop = Shop()
    shop.register()
    assert shop.pull(manual=True).messages == [0, 1, 2]
    shop.first = 5
    assert shop.pull(manual=True).messages == [5, 6, 7]
    assert shop.machine.status().lost == 2
    shop.confirm(False)
    assert shop.pull(manual=True).messages == [5, 6, 7]
    assert shop.machine.status().lost == 2
    assert shop.confirm(True).offset == 8


def test_a_log_that_trims_what_it_has_is_a_bug() -> None:
    shop = Shop()
    shop.register()
    shop.hold = True
    shop.tell(t.PullAsked(90, "c", True, False))
    (read,) = shop.held
    assert isinstance(read, t.ReadBatch)
    with pytest.raises(InvariantBroken, match="begins with 0"):
        shop.tell(t.BatchTrimmed(read.number, 0))


def test_t44_what_filters_leave_out_needs_no_confirm_and_is_seldom_stored() -> None:
    shop = Shop(end=60)
    nothing = frozenset({"none"})
    shop.register(filters=nothing)
    assert shop.stores == 1
    for position in (24, 48, 60):
        assert shop.pull().code == TopicCode.NOT_FOUND
        assert shop.machine.status().confirmed == position
    assert shop.stores == 1
    shop.end = 200
    for _ in range(3):
        shop.pull()
    assert (shop.stores, shop.stored) == (2, 108)
    shop.give_back()
    shop.register(filters=frozenset({"0"}))
    assert shop.stored == 132
    reply = shop.pull()
    assert (reply.messages, reply.slow) == ([132, 134, 136], True)


def test_t45_a_group_that_is_too_fast_is_told_when_to_come_again() -> None:
    rule = '[{"type":0,"rule":[{"start":"00:00","end":"23:59","dltInM":30,"limitInM":20,"freqInMs":1000}]}]'
    shop = Shop(end=100, flow=rule)
    shop.message_bytes = 7 * MIB
    shop.register()
    assert [shop.pull().code for _ in range(3)] == [TopicCode.OK, TopicCode.OK, TopicCode.SPEED_LIMIT]
    refused = shop.pull()
    assert (refused.code, refused.wait_ms) == (TopicCode.SPEED_LIMIT, 1000)
    assert shop.stored == 6
    shop.tell(t.FlowChanged(parse_flow_rules("[]")))
    assert shop.pull().messages == [6, 7, 8]


def test_t46_empty_pulls_come_too_often() -> None:
    shop = Shop(end=0, flow='[{"type":1,"rule":[{"zeroCnt":2,"freqInMs":300}]}]')
    shop.register()
    assert [shop.pull().code for _ in range(3)] == [TopicCode.NOT_FOUND, TopicCode.NOT_FOUND, TopicCode.SPEED_LIMIT]
    shop.now += 299
    assert shop.pull().wait_ms == 1
    shop.now += 1
    assert shop.pull().code == TopicCode.NOT_FOUND


def test_requests_wait_in_their_order_and_not_too_many_of_them() -> None:
    shop = Shop()
    shop.register()
    shop.hold = True
    for token in range(90, 95):
        assert shop.tell(t.PullAsked(token, "c", True, False)) == []
    assert shop.one(t.PullAsked(95, "c", True, False)).code == TopicCode.RECEIVE_OVERFLOW
    shop.hold = False
    replies = shop.tell(shop.carried_out(shop.held[0]))
    assert [reply.token for reply in replies] == [90, 91, 92, 93, 94]
    assert [list(reply.messages) for reply in replies] == [[], [], [], [], [0, 1, 2]], "all but the last were given up"


@pytest.mark.parametrize(
    "later",
    [
        t.PullAsked(91, "c", True, False),
        t.PullAsked(91, "c", True, True),
        t.ConfirmAsked(91, "c", True),
        t.PartitionGivenBack(91, "c", True),
    ],
)
def test_t25_what_is_said_while_a_pull_is_under_way_is_not_said_of_what_it_brings(later: t.DeliveryRequest) -> None:
    """Who asks for something else has given it up: what it brought would be confirmed, and nobody would have it."""
    shop = Shop()
    shop.register()
    assert list(shop.pull().messages) == [0, 1, 2]
    shop.hold = True
    assert shop.tell(t.PullAsked(90, "c", True, False)) == []
    assert shop.tell(later) == []
    shop.hold = False
    given_up, *_ = [reply for order in shop.held for reply in shop.tell(shop.carried_out(order))]
    assert (given_up.token, given_up.code, list(given_up.messages)) == (90, TopicCode.NOT_FOUND, [])
    assert (shop.stored, shop.machine.status().confirmed) == (3, 3)
    shop.give_back(False)
    shop.register("d")
    assert list(shop.pull(consumer="d").messages) == [3, 4, 5]


def test_a_slot_that_goes_away_answers_all_and_late_facts_change_nothing() -> None:
    shop = Shop()
    shop.register()
    shop.pull()
    shop.hold = True
    shop.tell(t.PullAsked(90, "c", True, False))
    shop.tell(t.ConfirmAsked(91, "c", True))
    replies = shop.tell(t.DeliveryStops())
    assert [(reply.token, reply.code) for reply in replies] == [(90, TopicCode.MOVED), (91, TopicCode.MOVED)]
    assert shop.lost == ["c"]
    for order in shop.held:
        assert shop.tell(shop.carried_out(order)) == []
    assert shop.machine.idle
    assert shop.machine.status() == t.DeliveryStatus("", -1, 3, 3, 0, 10, 7, 0, 0, 0)


def test_a_log_that_cannot_be_read_or_a_store_that_cannot_be_asked_is_told_to_ask_again() -> None:
    shop = Shop()
    shop.hold = True
    shop.tell(t.PartitionWanted(1, "c", 0, -1, frozenset()))
    (take,) = shop.held
    assert isinstance(take, t.TakeOffset)
    (reply,) = shop.tell(t.OffsetUnknown(take.number, "nobody answers"))
    assert reply.code == TopicCode.UNAVAILABLE
    assert shop.machine.idle
    shop.hold = False
    shop.register()
    shop.hold, shop.held = True, []
    shop.tell(t.PullAsked(2, "c", True, False))
    (read,) = shop.held
    assert isinstance(read, t.ReadBatch)
    (reply,) = shop.tell(t.BatchNotRead(read.number, "it moves"))
    assert reply.code == TopicCode.UNAVAILABLE
    shop.hold = False
    assert shop.pull().messages == [0, 1, 2]


BROKEN = [
    ("counted_as_lost", lambda at, first, below: first - at, test_what_was_trimmed_is_not_counted_again_after_a_rewind),
    ("is_in_the_log", lambda offset, end: True, test_t30_an_offset_that_is_not_in_the_log_is_refused),
    ("has_to_store", lambda told, confirmed, stored, skipped: confirmed > stored,
     test_t44_what_filters_leave_out_needs_no_confirm_and_is_seldom_stored),
    ("after_trim", lambda at, first: at, test_resets_go_where_they_are_told_to_and_drop_what_was_delivered),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "broken", "test"), BROKEN, ids=[rule for rule, _, _ in BROKEN])
def test_a_broken_rule_is_noticed_without_walking(
    monkeypatch: pytest.MonkeyPatch, rule: str, broken: Callable[..., object], test: Callable[[], None]
) -> None:
    break_rule(monkeypatch, rules, rule, broken)
    with pytest.raises(AssertionError):
        test()


# ---- consumers that read the log themselves


def test_what_a_reader_of_the_log_has_consumed_is_stored_and_never_goes_back() -> None:
    shop = Shop(stored=2)
    assert shop.register().offset == 2
    reply = shop.progress(7)
    assert (reply.code, reply.offset, reply.end, shop.stored) == (TopicCode.OK, 7, 10, 7)
    assert shop.progress(-1).offset == 7
    assert shop.progress(4).offset == 7, "it says less than before"
    assert (shop.stored, shop.stores) == (7, 1), "and nothing is written for that"
    assert shop.progress(11).code is TopicCode.BAD_REQUEST, "nobody can have consumed what is not there"
    assert shop.stored == 7
    assert shop.pull().offset == 7, "whoever pulls goes on there"


def test_only_who_has_the_partition_says_how_far_it_is() -> None:
    shop = Shop()
    assert shop.progress(3).code is TopicCode.HB_NO_NODE
    shop.register("a")
    assert shop.progress(3, consumer="b").code is TopicCode.DUPLICATE_PARTITION
    shop.now += LIMITS.lease_ms - 1
    assert shop.progress(1, consumer="a").code is TopicCode.OK, "it is a sign of life"
    shop.now += LIMITS.lease_ms - 1
    assert shop.progress(2, consumer="a").code is TopicCode.OK
    shop.now += LIMITS.lease_ms
    assert shop.progress(3, consumer="a").code is TopicCode.HB_NO_NODE
    assert shop.stored == 2


def test_a_zombie_that_reads_the_log_moves_nothing() -> None:
    shop = Shop()
    shop.register()
    shop.progress(3)
    shop.epoch += 1  # another owner of the slot has taken the offset
    assert shop.progress(5).code is TopicCode.MOVED
    assert shop.stored == 3


def test_t45_who_reads_the_log_is_told_when_more_may_be_read() -> None:
    shop = Shop(
        flow='[{"type": 3, "rule": [{"normFreqInMs": 400, "filterFreqInMs": 400, "minDataFilterFreqInMs": 400}]}]'
    )
    shop.register()
    assert shop.progress(-1).wait_ms == 0
    reply = shop.progress(3, read_bytes=100)
    assert (reply.code, reply.wait_ms, shop.stored) == (TopicCode.OK, 400, 3), "what was consumed counts all the same"
    shop.now += 399
    assert shop.progress(-1).wait_ms == 1
    shop.now += 1
    assert shop.progress(-1).wait_ms == 0
