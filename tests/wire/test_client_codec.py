"""Client protocol, version 5: golden bytes of the batches, round trips, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.helpers import assert_same, fuzz, int32s, int64s, joined, uint32s
from waltz_ray.errors import WireError
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import (
    AppendedBatch,
    ChannelClosed,
    DataRangeRequest,
    DataRangeResponse,
    ErrorMessage,
    FeedBatch,
    FeedCredit,
    FeedMode,
    FeedRecords,
    FirstIdAtRequest,
    FirstIdAtResponse,
    HindranceRequest,
    HindranceResponse,
    InChannel,
    LockFailureBatch,
    Mount,
    Mounted,
    NotAllowed,
    NotReady,
    PartitionStateRequest,
    PartitionStateResponse,
    RecordsTrimmed,
    Rejected,
    RejectionCode,
    ShowToken,
    TimesRequest,
    TimesResponse,
    Unmount,
)
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.records import AppendBatch, LockColumns, RecordBatch
from waltz_ray.wire.channel_codec import CHANNELS
from waltz_ray.wire.client_codec import BATCHES, read_one_append
from waltz_ray.wire.codec import CLIENT_TABLE, ClientMessage, decode_client, encode_client
from waltz_ray.wire.table import MessageTable
from waltz_ray.wire.time_codec import TIME_QUESTIONS

ID = ReqId(1, 2, 3, 4)
REQ = "00000001 00000002 00000003 00000004"
RECORDS = bytes(range(81))
RECORDS_HEX = f"00000003 0000000000000009 00000002 00000028 00000029 {RECORDS.hex()}"
TWO = RecordBatch(3, 9, int32s(40, 41), RECORDS)
NONE = RecordBatch(3, 9, int32s(), b"")
PLAIN = AppendBatch(1, 2, 3, int32s(4, 5), int64s(7, 7), int32s(8, -9), int32s(2, 1), uint32s(10, 0xFFFFFFFE), b"abc")
PLAIN_COLUMNS = "00000004 00000005 00000008 fffffff7 00000002 00000001 0000000a fffffffe"
LOCKED = dataclasses.replace(
    PLAIN,
    client_marks=int64s(7, -1),
    write_locks=LockColumns.pack([[11], []]),
    read_locks=LockColumns.pack([[], [12, -13]]),
    append_locks=LockColumns.pack([[14], [15]]),
)

# Frozen: a published message is never changed.
GOLDEN: list[tuple[ClientMessage, str]] = [
    (PLAIN, f"20 00000001 00000002 00000003 00000002 01 0000000000000007 {PLAIN_COLUMNS} 616263"),
    (
        LOCKED,
        f"20 00000001 00000002 00000003 00000002 0e 0000000000000007 ffffffffffffffff {PLAIN_COLUMNS}"
        "00000000 00000001 00000001 0000000b"
        "00000000 00000000 00000002 0000000c fffffff3"
        "00000000 00000001 00000002 0000000e 0000000f"
        "616263",
    ),
    (
        AppendBatch(1, 2, 3, int32s(4), int64s(-1), int32s(0), int32s(0), uint32s(0), b"", LockColumns.pack([[6]])),
        f"20 00000001 00000002 00000003 00000001 03 ffffffffffffffff 00000004 {'00' * 12} 00000000 00000001 00000006",
    ),
    (
        FeedBatch(3, 9, int32s(1, 1), int32s(2, 2), int32s(4, 5), int32s(8, -9)),
        "21 00000003 0000000000000009 0000000200000001 00000001 00000002 00000002 00000004 00000005 00000008 fffffff7",
    ),
    (FeedRecords(TWO), f"22 {RECORDS_HEX}"),
    (
        AppendedBatch(3, 10, int32s(4, 5), int64s(9, 10)),
        "23 00000003 000000000000000a 00000002 00000004 00000005 0000000000000009 000000000000000a",
    ),
    (AppendedBatch(3, 10, int32s(), int64s()), "23 00000003 000000000000000a 00000000"),
    (
        Rejected(3, -1, RejectionCode.QUEUE_FULL, int32s(4, 5), "full"),
        "24 00000003 ffffffff 04 00000002 00000004 00000005 00000004 66756c6c",
    ),
    (LockFailureBatch(3, int32s(4), int64s(9)), "25 00000003 00000001 00000004 0000000000000009"),
    (Mount(ID, -1, FeedMode.RECORDS, 1 << 32), f"26 {REQ} ffffffffffffffff 02 0000000100000000"),
    (Mount(ID, -1, FeedMode.OWN, 1 << 32, in_order=True), f"26 {REQ} ffffffffffffffff 83 0000000100000000"),
    (Mounted(ID, MountState.CLIENT_AHEAD, 5, 99), f"27 {REQ} 02 00000005 0000000000000063"),
    (FeedCredit(3, 65536), "28 00000003 0000000000010000"),
    (
        DataRangeRequest(6, 3, 9, 11, 65536),
        "29 00000006 00000003 0000000000000009 000000000000000b 00010000",
    ),
    (DataRangeResponse(6, TWO, 10, None), f"2a 00000006 000000000000000a 01 {RECORDS_HEX}"),
    (
        DataRangeResponse(6, NONE, 8, None),
        "2a 00000006 0000000000000008 01 00000003 0000000000000009 00000000",
    ),
    (DataRangeResponse(6, None, -1, "no"), "2a 00000006 ffffffffffffffff 00 00000002 6e6f"),
    (NotReady(3, 5), "2b 00000003 00000005"),
    (ErrorMessage("é"), "2c 00000002 c3a9"),
    (Unmount(3, 1), "2d 00000003 00000001"),
    (PartitionStateRequest(6, 3), "2e 00000006 00000003"),
    (
        PartitionStateResponse(6, 3, 5, 7, 99, MountState.NOT_READY),
        "2f 00000006 00000003 00000005 0000000000000007 0000000000000063 01",
    ),
    (TimesRequest(6, 3, 9, 11), "32 00000006 00000003 0000000000000009 000000000000000b"),
    (
        TimesResponse(6, 11, ((9, 1000), (10, 1000)), None),
        "33 00000006 01 000000000000000b 00000002 0000000000000009 00000000000003e8 000000000000000a 00000000000003e8",
    ),
    (TimesResponse(6, -1, None, "no"), "33 00000006 00 ffffffffffffffff 00000002 6e6f"),
    (FirstIdAtRequest(6, 3, 1000), "34 00000006 00000003 00000000000003e8"),
    (FirstIdAtResponse(6, 9, None), "35 00000006 01 0000000000000009"),
    (FirstIdAtResponse(6, None, "no"), "35 00000006 00 ffffffffffffffff 00000002 6e6f"),
    (HindranceRequest(6, 3), "30 00000006 00000003"),
    (HindranceResponse(6, 3, "é"), "31 00000006 00000003 00000002 c3a9"),
    (ShowToken("abc"), "37 00000003 616263"),
    (NotAllowed(6, -1, "no"), "38 00000006 ffffffff 00000002 6e6f"),
    (RecordsTrimmed(6, 3, 9), "36 00000006 00000003 0000000000000009"),
    (Mounted(ID, MountState.TRIMMED, 5, 99), f"27 {REQ} 03 00000005 0000000000000063"),
    (InChannel(7, memoryview(bytes.fromhex("2b0000000300000005"))), "40 00000007 2b 00000003 00000005"),
    (ChannelClosed(7), "41 00000007"),
]
ROWS = (*BATCHES, *TIME_QUESTIONS, *CHANNELS)
SAMPLES = [bytes.fromhex(golden) for _, golden in GOLDEN]


def decode(payload: bytes | str) -> ClientMessage:
    return decode_client(5, bytes.fromhex(payload) if isinstance(payload, str) else payload)


def encode(message: ClientMessage) -> bytes:
    return joined(encode_client(5, message))


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes(message: ClientMessage, golden: str) -> None:
    assert encode(message).hex() == bytes.fromhex(golden).hex()
    assert_same(decode(golden), message)


def test_every_type_has_golden_bytes_and_both_halves() -> None:
    assert {sample[0] for sample in SAMPLES} == {row.number for row in ROWS} == {*range(32, 57), 64, 65}
    assert {type(message) for message, _ in GOLDEN} == {row.cls for row in ROWS}


def test_enum_numbers_are_frozen() -> None:
    assert [(code.name, code.value) for code in RejectionCode] == [
        ("WRONG_GENERATION", 1),
        ("NOT_MOUNTED", 2),
        ("SUPERSEDED", 3),
        ("QUEUE_FULL", 4),
        ("CLOSING", 5),
        ("BAD_CHECKSUM", 6),
        ("TOO_LARGE", 7),
        ("NOT_ALLOWED", 8),
    ]
    assert [(mode.name, mode.value) for mode in FeedMode] == [("NONE", 0), ("HEADERS", 1), ("RECORDS", 2), ("OWN", 3)]
    names = ["READY", "NOT_READY", "CLIENT_AHEAD", "TRIMMED"]
    assert [(state.name, state.value) for state in MountState] == [(name, n) for n, name in enumerate(names)]


INT = st.integers(-(1 << 31), (1 << 31) - 1)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
LOCKS = st.lists(INT, max_size=4)
PROPOSAL = st.tuples(INT, LONG, INT, st.binary(max_size=20), st.integers(0, (1 << 32) - 1), LOCKS, LOCKS, LOCKS)


def _append_batch(proposals: list[Any], shared_mark: bool) -> AppendBatch:
    rows = [list(column) for column in zip(*proposals, strict=True)] or [[] for _ in range(8)]
    numbers, marks, headers, datas, checksums, *locks = rows
    return AppendBatch(
        1,
        2,
        3,
        np.array(numbers, dtype=np.int32),
        np.array([marks[0]] * len(marks) if shared_mark and marks else marks, dtype=np.int64),
        np.array(headers, dtype=np.int32),
        np.array([len(data) for data in datas], dtype=np.int32),
        np.array(checksums, dtype=np.uint32),
        b"".join(datas),
        *(LockColumns.pack(kind) for kind in locks),
    )


@settings(max_examples=300)
@given(st.lists(PROPOSAL, max_size=6), st.booleans())
def test_append_batch_round_trip(proposals: list[Any], shared_mark: bool) -> None:
    batch = _append_batch(proposals, shared_mark)
    again = decode(encode(batch))
    assert_same(again, batch)
    assert isinstance(again, AppendBatch)
    for index, proposal in enumerate(proposals):
        assert again.write_locks.of(index).tolist() == proposal[5]
        assert again.read_locks.of(index).tolist() == proposal[6]
        assert again.append_locks.of(index).tolist() == proposal[7]


@settings(max_examples=100)
@given(st.integers(0, (1 << 63) - 100), st.lists(st.tuples(INT, INT, INT, INT, LONG), max_size=10))
def test_column_messages_round_trip(first_id: int, rows: list[tuple[int, ...]]) -> None:
    columns = [np.array(column, dtype=np.int32) for column in list(zip(*rows, strict=True))[:4]] or [int32s()] * 4
    ids = np.array([row[4] for row in rows], dtype=np.int64)
    messages: list[ClientMessage] = [
        FeedBatch(3, first_id, *columns),
        AppendedBatch(3, first_id, columns[0], ids),
        LockFailureBatch(3, columns[1], ids),
        Rejected(3, 4, RejectionCode.CLOSING, columns[2], "closing"),
    ]
    for message in messages:
        assert_same(decode(encode(message)), message)


def test_one_mark_is_sent_when_all_are_equal() -> None:
    many = dataclasses.replace(PLAIN, client_marks=int64s(7, 6))
    assert len(encode(many)) - len(encode(PLAIN)) == 8


def test_an_empty_batch_is_a_batch() -> None:
    empty = _append_batch([], False)
    assert_same(decode(encode(empty)), empty)


def test_bodies_are_neither_copied_in_nor_out() -> None:
    body = memoryview(b"abc")
    assert any(part is body for part in encode_client(5, dataclasses.replace(PLAIN, body=body)))
    assert any(part is RECORDS for part in encode_client(5, FeedRecords(TWO)))
    assert any(part is RECORDS for part in encode_client(5, DataRangeResponse(6, TWO, 10, None)))
    payload = bytearray(SAMPLES[0])
    message = decode_client(5, payload)
    assert isinstance(message, AppendBatch)
    payload[-1] = ord("z")
    assert bytes(message.body) == b"abz"


APPEND = "20 00000001 00000002 00000003"
MARK = "0000000000000007"
ONE = "00000004 00000008 00000002 0000000a"
LOCK_HEAD = f"{APPEND} 00000001 03 {MARK} {ONE}"


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (f"{APPEND} ffffffff 00", "-1 appends do not fit"),
        (f"{APPEND} 7fffffff 01 {MARK}", "2147483647 appends do not fit in the 8 bytes"),
        (f"{APPEND} 00000001 10 {MARK} {ONE} 6162", "flags 0x10 are unknown"),
        (f"{APPEND} 00000001 00 {MARK} 00000004 00000008 00000002", "do not fit|cut short"),
        (f"{APPEND} 00000001 01 {MARK} {ONE} 61", "the lengths of 1 parts do not add up to the 1 bytes"),
        (f"{APPEND} 00000001 01 {MARK} {ONE} 616263", "do not add up to the 3 bytes"),
        (f"{APPEND} 00000002 01 {MARK} {'00' * 16} ffffffff 00000003 {'00' * 8} 6162", "do not add up to the 2 bytes"),
        (f"{LOCK_HEAD} 00000001 00000001 00000006 6162", "lock offsets do not rise from 0"),
        (f"{LOCK_HEAD} 00000000 ffffffff 6162", "lock offsets do not rise from 0"),
        (f"{LOCK_HEAD} 00000000 7fffffff 6162", "2147483647 lock hashes do not fit"),
        (f"{LOCK_HEAD} 00000000", "is cut short"),
        ("21 00000003 0000000000000009 ffffffff", "-1 feed entries do not fit"),
        ("21 00000003 ffffffffffffffff 00000000", "cannot begin at transaction -1"),
        (f"21 00000003 7fffffffffffffff 00000001 {'00' * 16}", "cannot begin at transaction"),
        (f"21 00000003 0000000000000009 00000001 {'00' * 17}", "1 bytes are left over"),
        (f"22 00000003 0000000000000009 00000001 00000029 {'00' * 40}", "do not add up to the 40 bytes"),
        (f"22 00000003 0000000000000009 00000001 00000003 {'00' * 3} {'00' * 40}", "do not add up"),
        (f"22 00000003 0000000000000009 00000002 00000027 00000029 {'00' * 80}", "shorter than 40 bytes"),
        ("23 00000003 0000000000000009 00000001 00000004 00000000", "1 appends do not fit in the 8 bytes"),
        ("24 00000003 00000002 00 00000000 00000000", "rejection code 0 is unknown"),
        ("24 00000003 00000002 09 00000000 00000000", "rejection code 9 is unknown"),
        ("24 00000003 00000002 01 00000001 00000000", "cut short"),
        ("24 00000003 00000002 01 00000000 ffffffff", "a string is null"),
        ("25 00000003 80000000", "-2147483648 appends do not fit"),
        (f"26 {REQ} {MARK} 04 {MARK}", "feed mode 4 is unknown"),
        (f"26 {REQ} {MARK} 01 ffffffffffffffff", "a credit of -1 bytes"),
        (f"27 {REQ} 04 00000005 {MARK}", "mount state 4 is unknown"),
        ("28 00000003 ffffffffffffffff", "a credit of -1 bytes"),
        ("29 00000006 00000003 0000000000000009 0000000000000008 00010000", r"impossible range \[9, 8\)"),
        ("29 00000006 00000003 ffffffffffffffff 0000000000000008 00010000", r"impossible range \[-1, 8\)"),
        ("29 00000006 00000003 0000000000000000 0000000000000008 ffffffff", "at most -1 bytes"),
        ("2a 00000006 000000000000000a 00 ffffffff", "a string is null"),
        ("2b 00000003 00000005 00", "left over"),
        ("2c 00000001 ff", "not UTF-8"),
        ("2e 00000006", "cut short at byte 5"),
        ("37 00000000", "a token has 1 to 4096 characters"),
        (f"2f 00000006 00000003 00000005 {MARK} {MARK} 04", "mount state 4 is unknown"),
        ("40 00000007", "no message in it"),
        ("40 00000000 2b 00000003 00000005", "channel 0; they are counted from 1"),
        ("40 ffffffff 2b 00000003 00000005", "channel -1"),
        ("40 00000007 40 00000008 2b 00000003 00000005", "a message of type 64 does not belong in a channel"),
        ("40 00000007 41 00000008", "a message of type 65 does not belong in a channel"),
        ("40 0000", "cut short"),
        ("41 00000000", "channel 0"),
        ("41 00000007 00", "left over"),
    ],
)
def test_refused_payloads(payload: str, error: str) -> None:
    with pytest.raises(WireError, match=error) as raised:
        decode(payload)
    number = bytes.fromhex(payload)[0]
    assert f"message type {number} ({CLIENT_TABLE.names[number]})" in str(raised.value)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (dataclasses.replace(PLAIN, headers=int32s(8)), "columns differ in length: [2, 2, 1, 2, 2]"),
        (dataclasses.replace(PLAIN, client_marks=int64s(7)), "columns differ in length: [1, 2, 2, 2, 2]"),
        (dataclasses.replace(PLAIN, body=b"abcd"), "do not add up to its body of 4 bytes"),
        (dataclasses.replace(PLAIN, write_locks=LockColumns(int32s(0, 1), int32s(5))), "2 values in a message of 3"),
        (dataclasses.replace(PLAIN, write_locks=LockColumns(int32s(0, 1, 1), int32s(5, 6))), "2 values in a message"),
        (FeedBatch(3, 9, int32s(1), int32s(), int32s(1), int32s(1)), "columns differ in length: [1, 0, 1, 1]"),
        (AppendedBatch(3, 9, int32s(1), int64s()), "a column of 0 values in a message of 1"),
        (LockFailureBatch(3, int32s(1), int64s()), "a column of 0 values in a message of 1"),
        (DataRangeResponse(6, None, 9, None), "a batch or an error"),
        (DataRangeResponse(6, TWO, 9, "no"), "a batch or an error"),
        (NotReady(1 << 31, 1), "NotReady cannot be written"),
        (FeedCredit(3, 1 << 63), "FeedCredit cannot be written"),
    ],
)
def test_what_is_inconsistent_is_not_written(message: ClientMessage, error: str) -> None:
    with pytest.raises(WireError, match=re.escape(error)):
        encode(message)


@pytest.mark.parametrize(
    "message",
    [
        dataclasses.replace(PLAIN, headers=int64s(8, 1 << 40)),
        FeedBatch(3, 9, int64s(1 << 40), int32s(2), int32s(4), int32s(8)),
        AppendedBatch(3, 9, int64s(1 << 40), int64s(9)),
    ],
)
def test_a_wider_column_is_not_cut(message: ClientMessage) -> None:
    with pytest.raises(TypeError, match="safe"):
        encode(message)


def test_fuzz() -> None:
    assert fuzz(decode, SAMPLES, 300) > 2000


@settings(max_examples=300)
@given(st.integers(32, 66), st.binary(max_size=150))
def test_random_payloads_are_read_or_refused(number: int, rest: bytes) -> None:
    try:
        message = decode(bytes([number]) + rest)
    except WireError:
        return
    assert_same(decode(encode(message)), message)


@settings(max_examples=200)
@given(st.sampled_from(SAMPLES), st.data())
def test_what_survives_a_mutation_is_consistent(sample: bytes, data: st.DataObject) -> None:
    """Whatever is let through can be written again: its columns, lengths, offsets and body belong together."""
    mutated = bytearray(sample)
    place = data.draw(st.integers(1, len(sample) - 1))
    mutated[place] = data.draw(st.integers(0, 255))
    try:
        message = decode(bytes(mutated))
    except WireError:
        return
    assert_same(decode(encode(message)), message)


def test_marks_that_differ_only_in_the_middle_are_all_sent() -> None:
    batch = AppendBatch(
        1, 2, 3, int32s(4, 5, 6), int64s(7, 6, 7), int32s(0, 0, 0), int32s(0, 0, 0), uint32s(0, 0, 0), b""
    )
    assert_same(decode(encode(batch)), batch)


@st.composite
def locks_of_one(draw: st.DrawFn) -> LockColumns:
    hashes = draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3) | st.just([7] * 65))
    return LockColumns(int32s(0, len(hashes)), int32s(*hashes)) if hashes else LockColumns()


@given(st.tuples(locks_of_one(), locks_of_one(), locks_of_one()), st.binary(max_size=5), st.data())
def test_one_append_is_read_from_scalars_as_it_is_from_columns(
    locks: tuple[LockColumns, LockColumns, LockColumns], body: bytes, data: st.DataObject
) -> None:
    batch = AppendBatch(1, 2, 3, int32s(4), int64s(5), int32s(-6), int32s(len(body)), uint32s(7), body, *locks)
    payload = bytearray(encode(batch))
    assert (read_one_append(payload) is not None) == all(len(kind.hashes) <= 64 for kind in locks)
    for _ in range(data.draw(st.integers(0, 2))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255) | st.integers(0, 3))
    changed = bytes(payload)[: data.draw(st.just(len(payload)) | st.integers(0, len(payload)))]
    changed += data.draw(st.just(b"") | st.binary(max_size=4))
    one = read_one_append(changed)
    if one is not None:
        assert_same(one, MessageTable[ClientMessage]("columns alone", BATCHES).decode(5, changed))


def test_one_append_with_any_byte_changed_is_read_from_scalars_as_it_is_from_columns() -> None:
    locks = LockColumns(int32s(0, 2), int32s(7, 8)), LockColumns(int32s(0, 1), int32s(9)), LockColumns()
    payload = encode(AppendBatch(1, 2, 3, int32s(4), int64s(5), int32s(-6), int32s(4), uint32s(7), b"body", *locks))
    columns, read = MessageTable[ClientMessage]("columns alone", BATCHES), 0
    for position, byte in itertools.product(range(len(payload)), (0, 1, 2, 3, 5, 255)):
        changed = payload[:position] + bytes((byte,)) + payload[position + 1 :]
        one = read_one_append(changed)
        if one is not None:
            assert_same(one, columns.decode(5, changed))
            read += 1
    assert read > len(payload)
