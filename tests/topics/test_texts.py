"""Texts inside of messages: both ways, and errors that say which part is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.errors import BadPayload, InvalidInput
from waltz_ray.topics.texts import (
    MAX_CLIENT_ID,
    MAX_CONDITIONS,
    MAX_REQUIRED,
    BrokerAddress,
    BrokerStores,
    PartitionFailure,
    PartitionPlace,
    SubscribedPartition,
    TopicPlacement,
    checked_client_id,
    checked_group,
    condition_text,
    consumer_id,
    parse_broker,
    parse_condition,
    parse_conditions,
    parse_failure,
    parse_place,
    parse_required_partitions,
    parse_subscription,
    parse_topic,
    producer_id,
    required_partitions_text,
)

BROKER = BrokerAddress(3, "10.0.0.7", 8124)
PLACE = PartitionPlace(BROKER, "orders", 20_001)

NAMES = st.text(st.characters(codec="ascii", exclude_characters="#:,@=", categories=("L", "N", "P")), min_size=1)
IDS = st.integers(0, (1 << 31) - 1)
BROKERS = st.builds(BrokerAddress, IDS, NAMES, st.integers(0, 65_535))
PLACES = st.builds(PartitionPlace, BROKERS, NAMES, IDS)


def test_t15_brokers() -> None:
    """T15: an empty or blank port is the default; more parts are of later versions."""
    assert parse_broker("3:10.0.0.7:8124") == BROKER
    assert str(BROKER) == "3:10.0.0.7:8124"
    for text in ("3:10.0.0.7", "3:10.0.0.7:", "3:10.0.0.7: ", " 3:10.0.0.7 "):
        assert parse_broker(text, 8124) == BROKER
        assert parse_broker(text).port == 8123
    assert parse_broker("3:10.0.0.7:8124:8125:x") == BROKER


def test_t15_topics() -> None:
    """T15, D4: the longest message is the third part, and may be left out."""
    placement = TopicPlacement("orders", (BrokerStores(1, 4, 1), BrokerStores(2, 4, 3)), 1_048_576)
    assert parse_topic("orders#1:4:1,2:4:3#1048576") == placement
    assert str(placement) == "orders#1:4:1,2:4:3#1048576"
    without = TopicPlacement("orders", placement.brokers)
    for text in ("orders#1:4:1,2:4:3", "orders#1:4:1,2:4:3#", " orders#1:4:1,2:4:3 "):
        assert parse_topic(text) == without
    assert str(without) == "orders#1:4:1,2:4:3"
    assert parse_topic(str(TopicPlacement("t", ()))) == TopicPlacement("t", ())


@given(
    placement=st.builds(
        TopicPlacement, NAMES, st.lists(st.builds(BrokerStores, IDS, IDS, IDS), max_size=5).map(tuple), st.none() | IDS
    )
)
def test_t15_both_ways(placement: TopicPlacement) -> None:
    assert parse_topic(str(placement)) == placement


def test_t24_partitions_and_failures() -> None:
    """T24, D3: the parts of the protocol, between # and not -."""
    assert str(PLACE) == "3:10.0.0.7:8124#orders:20001"
    assert parse_place(str(PLACE)) == PLACE
    assert str(PartitionFailure(410, PLACE)) == "410:3:10.0.0.7:8124#orders:20001"
    assert parse_failure("410:3:10.0.0.7:8124#orders:20001") == PartitionFailure(410, PLACE)


@given(place=PLACES, code=IDS, who=NAMES, group=NAMES)
def test_t24_both_ways(place: PartitionPlace, code: int, who: str, group: str) -> None:
    failure, subscription = PartitionFailure(code, place), SubscribedPartition(who, group, place)
    assert parse_place(str(place)) == place
    assert parse_failure(str(failure)) == failure
    assert parse_subscription(str(subscription)) == subscription


def test_t37_who_has_a_partition() -> None:
    """T37, D3."""
    text = "audit_10.0.0.1-7-1700000000123-1-Pull-1.12.0@audit#3:10.0.0.7:8124#orders:20001"
    subscription = SubscribedPartition("audit_10.0.0.1-7-1700000000123-1-Pull-1.12.0", "audit", PLACE)
    assert parse_subscription(text) == subscription
    assert str(subscription) == text


def test_t30_where_a_group_begins() -> None:
    """T30: offsets of 64 bits, by broker, topic and partition."""
    offsets = {(3, "orders", 0): 0, (3, "orders", 1): (1 << 63) - 1, (4, "bills", 0): 5}
    assert required_partitions_text(offsets) == "3:orders:0=0,3:orders:1=9223372036854775807,4:bills:0=5"
    assert parse_required_partitions(required_partitions_text(offsets)) == offsets
    assert parse_required_partitions(" ") == {}


def test_t44_which_types_a_group_wants() -> None:
    """T44: sorted and once each, so that members of a group can be compared."""
    assert parse_condition("orders#bbb, aaa,,aaa") == ("orders", ("aaa", "bbb"))
    assert parse_condition("orders#") == ("orders", ())
    assert parse_condition("orders") == ("orders", ())
    assert condition_text("orders", ["bbb", "aaa", "aaa"]) == "orders#aaa,bbb"


def test_d5_client_ids() -> None:
    """D5: nothing is read from them; the formulas of Java clients, with the other one's prefix left out."""
    made = consumer_id("audit", "10.0.0.1", 7, 1_700_000_000_123, 1, "Pull", "1.12.0")
    assert made == "audit_10.0.0.1-7-1700000000123-1-Pull-1.12.0"
    assert producer_id("10.0.0.1", 7, 1_700_000_000_123, 1, "1.12.0") == "10.0.0.1-7-1700000000123-1-1.12.0"
    for text in (made, "PRODUCER_10.0.0.1-7", "x" * MAX_CLIENT_ID):
        assert checked_client_id(text) == text
    with pytest.raises(BadPayload, match="a client ID of 1025 characters, 1024 are the most"):
        checked_client_id("x" * (MAX_CLIENT_ID + 1))
    for text in ("", "a b", "a#b", "ä", "a\n"):
        with pytest.raises(BadPayload, match="it has letters, digits"):
            checked_client_id(text)
    with pytest.raises(InvalidInput, match="it has letters, digits"):
        producer_id("::1", 7, 1, 1, "1")
    with pytest.raises(InvalidInput, match="a group of these clients has letters"):
        consumer_id("audit/a", "10.0.0.1", 7, 1, 1, "Pull", "1.12.0")


@pytest.mark.parametrize(
    ("parse", "text", "problem"),
    [
        (parse_broker, "3", "broker '3': it is to be id:host:port"),
        (parse_broker, "x:h:1", "the broker's ID in 'x:h:1' is 'x': it is to be a number from 0 to 2147483647"),
        (parse_broker, "2147483648:h:1", "the broker's ID in '2147483648:h:1'"),
        (parse_broker, "-1:h:1", "the broker's ID in '-1:h:1'"),
        (parse_broker, "\u0663:h:1", "the broker's ID in '\\u0663:h:1'"),
        (parse_broker, "3::1", "the host in '3::1' is ''"),
        (parse_broker, "3:h:65536", "the port in '3:h:65536' is '65536': it is to be a number from 0 to 65535"),
        (parse_topic, "orders", "topic 'orders': it is to be topic#id:partitions:stores"),
        (parse_topic, "#1:1:1", "the topic in '#1:1:1' is ''"),
        (parse_topic, "orders#1:4", "'1:4' of topic 'orders#1:4'"),
        (parse_topic, "orders#1:x:1", "the number of partitions in 'orders#1:x:1' is 'x'"),
        (parse_topic, "orders#1:1:1#many", "the longest message in 'orders#1:1:1#many' is 'many'"),
        (parse_place, "3:h:1-orders:1", "partition '3:h:1-orders:1': it is to end in id:host:port#topic:partition"),
        (parse_place, "3:h:1#orders", "partition '3:h:1#orders'"),
        (parse_place, "3:h:1#orders:x", "the partition in '3:h:1#orders:x' is 'x'"),
        (parse_failure, "410", "failure '410': it is to be code:"),
        (parse_failure, "x:3:h:1#orders:1", "the code in 'x:3:h:1#orders:1' is 'x'"),
        (parse_subscription, "c@g", "subscription 'c@g': it is to be consumer@group#"),
        (parse_subscription, "c#3:h:1#t:1", "subscription 'c#3:h:1#t:1'"),
        (parse_subscription, "c@#3:h:1#t:1", "the group in 'c@#3:h:1#t:1' is ''"),
        (parse_condition, "#a", "the topic in '#a' is ''"),
        (parse_condition, "t#" + "x" * 257, "a message type of 257 characters"),
        (parse_condition, "t#" + ",".join(map(str, range(501))), "501 message types, 500 are the most"),
        (parse_condition, "t#" + "," * 2000, "2001 message types, 500 are the most"),
        (parse_required_partitions, "," * 16_384, "16385 required partitions, 16384 are the most"),
        (parse_required_partitions, "3:t:1", "required partition '3:t:1': it is to be id:topic:partition=offset"),
        (parse_required_partitions, "3:t=1", "required partition '3:t=1'"),
        (parse_required_partitions, "3:t:1=5,3:t:1=6", "required partition '3:t:1=6': it comes twice"),
        (parse_required_partitions, "3:t:1=-5", "the offset in '3:t:1=-5' is '-5'"),
        (parse_required_partitions, "3:t:1=9223372036854775808", "the offset in"),
    ],
)
def test_what_is_wrong_is_named(parse: Callable[[str], Any], text: str, problem: str) -> None:
    with pytest.raises(BadPayload) as caught:
        parse(text)
    assert problem in str(caught.value)
    assert str(caught.value).isascii()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["g\x1b[2J", "g\x07", "g\x9b1m", "g\u202e", "g\0", "g\ue000"])
def test_a_groups_name_can_do_nothing_to_a_terminal(name: str) -> None:
    """Whoever may consume says it, and operators see it: in tables and in logs."""
    with pytest.raises(BadPayload, match="it is to be a printable name"):
        checked_group(name)
    assert checked_group("gr\u00fcppe") == "gr\u00fcppe"


def test_as_many_as_a_group_may_have_are_read() -> None:
    assert len(parse_required_partitions(",".join(f"1:t:{number}=5" for number in range(MAX_REQUIRED)))) == MAX_REQUIRED
    assert parse_condition("t#" + ",".join(["a"] * 2000)) == ("t", ("a",))
    conditions = [f"t{number}#a" for number in range(MAX_CONDITIONS + 1)]
    assert len(parse_conditions(conditions[1:])) == MAX_CONDITIONS
    with pytest.raises(BadPayload, match="257 conditions, 256 are the most"):
        parse_conditions(conditions)


def test_a_long_text_is_not_repeated() -> None:
    with pytest.raises(BadPayload) as caught:
        parse_place("x" * 1_000_000)
    assert len(str(caught.value)) < 200


@given(text=st.text(max_size=40) | st.text(st.sampled_from("#:,@=0123a "), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """And what is read is written and read the same."""
    for parse in (parse_broker, parse_topic, parse_place, parse_failure, parse_subscription):
        read = _read(parse, text)
        if read is not None:
            assert parse(str(read)) == read
    offsets = _read(parse_required_partitions, text)
    if offsets is not None:
        assert parse_required_partitions(required_partitions_text(offsets)) == offsets
    _read(parse_condition, text)


def _read(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except BadPayload:
        return None


@pytest.mark.parametrize(
    "one",
    [
        BrokerAddress(-1, "h", 1),
        BrokerAddress(1, "a:b", 1),
        BrokerAddress(1, "", 1),
        TopicPlacement("a#b", ()),
        PartitionPlace(BROKER, "a b", 1),
        SubscribedPartition("a@b", "g", PLACE),
        PartitionFailure(-1, PLACE),
    ],
)
def test_what_cannot_be_written(one: object) -> None:
    with pytest.raises(InvalidInput, match="cannot be written"):
        str(one)
