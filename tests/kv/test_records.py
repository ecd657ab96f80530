"""Records of a kv space and their bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kv.records_of_all_kinds import KEYS, RECORDS
from waltz_ray.errors import InvalidInput, WireError
from waltz_ray.kv.model import (
    BARRIER,
    NOBODYS,
    Delete,
    Expired,
    ItemKey,
    Lock,
    Own,
    Record,
    Release,
    RequestId,
    Set,
    Several,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    SnapshotItem,
    Touch,
    Unlock,
    WriteRefused,
)
from waltz_ray.kv.records import SetRow, decode_record, encode_record, header_of, set_rows
from waltz_ray.kv.routing import Unit
from waltz_ray.kv.tables import CHANGED_BYTES, item_key, item_value

KEY = ItemKey(0x01020304, 0x7E47596B, b"something")
REQUEST = RequestId(0xA1, 0xB2, 0xC3)
KEY_HEX = "01020304 7e47596b 0009 736f6d657468696e67"
REQUEST_HEX = "00000000000000a1 00000000000000b2 00000000000000c3"

# The bytes that docs/formats.md, "Key/value records" promises. They never change: a new need gets a new version.
GOLDEN: list[tuple[Record, str]] = [
    (Set(KEY, 4, b"45"), f"01 00 00 {KEY_HEX} 04 0000000000000000 00 3435"),
    (Set(KEY, 4, b"45", at_ms=7), f"01 00 02 0000000000000007 {KEY_HEX} 04 0000000000000000 00 3435"),
    (
        Set(KEY, 16, b"45", 9, b"map", REQUEST, 7),
        f"01 00 03 {REQUEST_HEX} 0000000000000007 {KEY_HEX} 10 0000000000000009 03 6d6170 3435",
    ),
    (Delete(KEY, REQUEST), f"02 00 01 {REQUEST_HEX} {KEY_HEX}"),
    (Touch(KEY, 9), f"03 00 00 {KEY_HEX} 0000000000000009"),
    (Expired(((KEY, 5),)), f"04 00 00000001 {KEY_HEX} 0000000000000005"),
    (Lock(b"door", 0xABCD, 9, 3 << 16), "05 00 00 abcd 0000000000000009 0000000000030000 646f6f72"),
    (Unlock(b"door", 3 << 16), "06 00 00 0000000000030000 646f6f72"),
    (
        WriteRefused(6, 255, RequestId(1, 2, 3), 4),
        "0e 00 03 0000000000000001 0000000000000002 0000000000000003 0000000000000004 06 00000000000000ff",
    ),
    (Own(Unit(0xFF, 0x6B), 2, "ab", 4), "07 00 000000ff 0000006b 00000002 0000000000000004 6162"),
    (Release(Unit(0xFF, 0x6B), 2, "ab", 4), "08 00 000000ff 0000006b 00000002 0000000000000004 6162"),
    (BARRIER, "09 00"),
    (SnapshotBegin(), "0a 00"),
    (SnapshotBegin(0b100), "0a 00 04"),
    (
        SnapshotChunk(8, (SnapshotItem(1, b"k", b"vv", 6),)),
        "0b 00 0000000000000008 01 0000000000000006 0001 00000002 6b 7676",
    ),
    (SnapshotEnd(8), "0c 00 0000000000000008"),
    (
        Several((Set(KEY, 4, b"45"), Delete(KEY))),
        f"0d 00 00000002 00000022 01 00 00 {KEY_HEX} 04 0000000000000000 00 3435 00000016 02 00 00 {KEY_HEX}",
    ),
]


@pytest.mark.parametrize(("record", "text"), GOLDEN)
def test_golden_bytes(record: Record, text: str) -> None:
    assert encode_record(record).hex() == text.replace(" ", "")
    assert decode_record(bytes.fromhex(text)) == record


@given(RECORDS)
def test_what_was_written_is_read(record: Record) -> None:
    data = encode_record(record)
    assert decode_record(data) == record
    assert decode_record(memoryview(data)) == record


@given(RECORDS)
def test_no_beginning_of_a_record_is_the_record(record: Record) -> None:
    data = encode_record(record)
    for end in range(len(data)):
        with contextlib.suppress(WireError):
            assert decode_record(data[:end]) != record


def test_what_has_lengths_is_refused_when_cut_short() -> None:
    for record, text in GOLDEN:
        if not isinstance(
            record, Set | Lock | Unlock | Own | Release | SnapshotBegin | SnapshotChunk
        ):  # these end in what is the rest
            data = bytes.fromhex(text)
            for end in range(len(data)):
                with pytest.raises(WireError):
                    decode_record(data[:end])
            with pytest.raises(WireError, match="1 bytes too many"):
                decode_record(data + b"x")


@given(st.binary(max_size=80))
def test_nonsense_is_a_wire_error_or_a_record(data: bytes) -> None:
    with contextlib.suppress(WireError):
        encode_record(decode_record(data))


@given(st.sampled_from(GOLDEN), st.data())
def test_a_damaged_record_is_a_wire_error_or_a_record(golden: tuple[Record, str], data: st.DataObject) -> None:
    damaged = bytearray(bytes.fromhex(golden[1]))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        encode_record(decode_record(bytes(damaged)))


FULL_SETS = st.builds(
    Set,
    KEYS,
    st.integers(0, 255),
    st.binary(max_size=20),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=20),
    st.builds(RequestId, *[st.integers(1, 2**64 - 1)] * 3),
    st.integers(1, 2**64 - 1),
)
SETS = FULL_SETS | st.builds(Several, st.lists(FULL_SETS, min_size=1, max_size=3).map(tuple))


def as_rows(record: Record) -> list[SetRow]:
    """What ``set_rows`` has to say of a record of sets."""
    sets = record.writes if isinstance(record, Several) else (record,)
    rows = []
    for each in sets:
        assert isinstance(each, Set)
        item = item_value(0, each.type, each.deadline_ms, each.map_name, each.data)[CHANGED_BYTES:]
        rows.append((item_key(each.key), item, *each.request, each.at_ms))
    return rows


@given(SETS)
def test_sets_are_read_as_rows(record: Record) -> None:
    assert set_rows(encode_record(record)) == as_rows(record)


@given(RECORDS)
def test_only_what_clients_have_set_is_read_as_rows(record: Record) -> None:
    writes = record.writes if isinstance(record, Several) else (record,)
    full = all(isinstance(each, Set) and each.request != NOBODYS and each.at_ms for each in writes)
    assert (set_rows(encode_record(record)) is not None) == full


@given(SETS, st.data())
def test_rows_say_of_damaged_bytes_what_the_record_says(record: Record, data: st.DataObject) -> None:
    damaged = bytearray(encode_record(record))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, min(59, len(damaged) - 1)) | st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    cut = bytes(damaged)[: data.draw(st.just(len(damaged)) | st.integers(0, len(damaged)))]
    found = cut + data.draw(st.just(b"") | st.binary(max_size=9))
    rows = set_rows(found)
    if rows is not None:
        assert rows == as_rows(decode_record(found))


def test_what_is_no_record_is_not_read_as_rows() -> None:
    one = Set(KEY, 16, b"", 9, b"map", REQUEST, 7)
    alone, together = encode_record(one), encode_record(Several((one, one)))
    assert set_rows(alone)
    assert set_rows(together)
    long_name = alone[:43] + (481).to_bytes(2, "big") + bytes(481) + alone[54:]
    wrong_count = together[:5] + b"\3" + together[6:]
    wrong = [long_name, wrong_count, together + b"x", together[:6], together[:2] + bytes(4)]
    for data in (alone, together):
        wrong += [data[:end] for end in range(len(data))]
    for data in wrong:
        with pytest.raises(WireError):
            decode_record(data)
        assert set_rows(data) is None, data.hex()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "at least 2 bytes"),
        (b"\x63\x00", "kind 99 is unknown: a newer waltz_ray"),
        (b"\x09\x01", "kind 9 has version 1, and 0 is the newest"),
        (b"\x02\x00\x04", "unknown flags 0x4"),
        (b"\x04\x00\xff\xff\xff\xff", "kind 4 is cut short"),
        (b"\x06\x00\x00" + bytes(8 + 481), "a name of 481 bytes, over 480"),
        (b"\x07\x00" + bytes(20) + b"\xff", "not UTF-8"),
        (b"\x0a\x00\x00", "a byte of sections, 1 to 14, not 00"),
        (b"\x0a\x00\x0f", "a byte of sections, 1 to 14, not 0f"),
        (b"\x0a\x00\x01\x01", "a byte of sections, 1 to 14, not 0101"),
        (b"\x0d\x00\x00\x00\x00\x00", "kind 13 has no writes"),
        (b"\x0e\x00\x00\x06" + b"\x7f" + bytes(7), "which no item has"),
        (b"\x0e\x00\x00\x06" + b"\xff" * 7 + b"\xfe", "version -2, which no item has"),
        (b"\x0d\x00\x00\x00\x00\x01\x00\x00\x00\x02\x09\x00", "no write: 0900"),
        (b"\x0d\x00\x00\x00\x00\x01\x00\x00\x00\x06\x0d\x00\x00\x00\x00\x00", "no write: 0d00"),
        (b"\x0d\x00\x00\x00\x00\x01\x00\x00\x00\x00", "no write: nothing"),
    ],
)
def test_why_a_record_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        decode_record(data)


@pytest.mark.parametrize(
    "record",
    [
        Set(ItemKey(0, 0, bytes(481)), 4, b""),
        Delete(ItemKey(0, 0, bytes(481))),
        Unlock(bytes(481), 0),
        Set(KEY, 4, b"", map_name=bytes(256)),
        Set(KEY, 300, b""),
        Touch(KEY, -1),
        Own(Unit(0xF, 0), 0, "\ud800", 0),
    ],
)
def test_what_no_record_can_say(record: Record) -> None:
    with pytest.raises(InvalidInput, match="no record can say this"):
        encode_record(record)


@pytest.mark.parametrize(
    ("record", "header"),
    [
        (Set(KEY, 4, b""), 0x7E47596B),
        (Delete(ItemKey(0, 0xFFFFFFFF, b"")), -1),
        (Touch(ItemKey(0, 0x80000000, b""), 0), -(1 << 31)),
        (Lock(b"something", 0, 0), 0x7E47596B),
        (Unlock(b"", 0), 0x811C9DC5 - (1 << 32)),
        (Own(Unit(0xFF, 0x6B), 0, "", 0), 0x6B),
        (Release(Unit(0xF, 0xB), 0, "", 0), 0xB),
        (Expired(((KEY, 1),)), 0),
        (BARRIER, 0),
        (SnapshotEnd(3), 0),
    ],
)
def test_the_header_is_the_hash(record: Record, header: int) -> None:
    assert header_of(record) == header
