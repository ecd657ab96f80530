"""What is in a topic's transactions: bytes that never change, and bytes that make no sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.errors import BadPayload, InvalidInput
from waltz_ray.topics.payload import java_hash
from waltz_ray.topics.records import (
    OWNERSHIP_HEADER,
    SlotOwn,
    SlotRelease,
    TopicMessage,
    decode_topic_record,
    encode_topic_record,
    is_message,
    message_parts,
    topic_header,
)

GOLDEN = [
    (
        TopicMessage(b"hello", 1, 907060870, -1073741310, 1700000000123, "aaa", "202311142213"),
        "0100000000013610a686c00002020000018bcfe5687b00030c6161613230323331313134323231 3368656c6c6f",
    ),
    (TopicMessage(b"", 0, 0, 0, 0), "0100" + "00" * 23),
    (SlotOwn(3, 1, "abc", 5), "0200000000030000000100000000000000 05616263"),
    (SlotRelease(3, 1, "abc", 5), "0300000000030000000100000000000000 05616263"),
]


@pytest.mark.parametrize(("record", "golden"), GOLDEN)
def test_the_bytes_of_a_record(record: TopicMessage | SlotOwn | SlotRelease, golden: str) -> None:
    assert encode_topic_record(record).hex() == golden.replace(" ", "")
    assert decode_topic_record(bytes.fromhex(golden)) == record
    assert is_message(bytes.fromhex(golden)) == isinstance(record, TopicMessage)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
INT32S = st.integers(-(1 << 31), (1 << 31) - 1)


@given(st.builds(TopicMessage, st.binary(), INT32S, INT32S, INT32S, st.integers(0, 1 << 62), TEXTS, TEXTS))
def test_any_message_comes_back(message: TopicMessage) -> None:
    assert decode_topic_record(encode_topic_record(message)) == message


def parts_of(data: bytes) -> tuple[bytes, int, int, str, str] | None:
    """As ``message_parts``, by the other way."""
    try:
        found = decode_topic_record(data)
    except BadPayload:
        return None
    if not isinstance(found, TopicMessage):
        return None
    return found.payload, found.flag, found.append_ms, found.msg_type, found.msg_time


@given(
    st.builds(TopicMessage, st.binary(), INT32S, INT32S, INT32S, st.integers(0, 1 << 62), TEXTS, TEXTS)
    | st.sampled_from([record for record, _ in GOLDEN]),
    st.integers(0, 400),
    st.dictionaries(st.integers(0, 30), st.integers(0, 255), max_size=3),
)
def test_the_parts_of_a_message_are_what_decoding_says(
    record: TopicMessage | SlotOwn | SlotRelease, end: int, damage: dict[int, int]
) -> None:
    """Of damaged ones, too."""
    data = bytearray(encode_topic_record(record)[: end or None])
    for place, value in damage.items():
        if place < len(data):
            data[place] = value
    assert message_parts(memoryview(bytes(data))) == parts_of(bytes(data))


def test_t44_the_header_is_the_hash_of_the_type() -> None:
    message = TopicMessage(b"x", 0, 0, 0, 0, "Aa")
    assert topic_header(message) == 2112 == java_hash("BB")
    assert topic_header(TopicMessage(b"x", 0, 0, 0, 0)) == 0
    assert topic_header(SlotOwn(1, 0, "a", 1)) == topic_header(SlotRelease(1, 0, "a", 1)) == OWNERSHIP_HEADER


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no record of a topic"),
        (b"{}", "no record of a topic"),
        (b"\x01\x00\x00", "its head alone 25"),
        (b"\x02\x00", "its head alone 18"),
        (b"\x01\x07" + bytes(23), "version 7"),
        (b"\x01\x00" + bytes(20) + b"\x00\x09\x00", "names 34 bytes of type and time"),
    ],
)
def test_what_is_no_record(data: bytes, why: str) -> None:
    with pytest.raises(BadPayload, match=why):
        decode_topic_record(data)


def test_what_cannot_be_written() -> None:
    with pytest.raises(InvalidInput, match="a message type of 1025 bytes: 1024 are the most"):
        encode_topic_record(TopicMessage(b"", 0, 0, 0, 0, "a" * 1025))
    with pytest.raises(InvalidInput, match="a message's time is no Unicode text"):
        encode_topic_record(TopicMessage(b"", 0, 0, 0, 0, "", "\ud800"))
