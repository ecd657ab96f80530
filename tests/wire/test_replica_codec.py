"""Server to replica: golden bytes, round trips, and what is refused."""

from __future__ import annotations

import uuid
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.helpers import assert_same, fuzz, int32s, int64s, joined
from waltz_ray.errors import WireError
from waltz_ray.protocol.messages.replica import (
    Append,
    Appended,
    Begin,
    Begun,
    Close,
    Closed,
    ExcessFound,
    FindExcess,
    FindTime,
    LowWaterMarkSet,
    Open,
    Read,
    ReadTimes,
    Records,
    RefusalCode,
    Refused,
    ReplicaMessage,
    SetLowWaterMark,
    State,
    StateReply,
    TimeFound,
    Times,
    Truncate,
    Truncated,
)
from waltz_ray.protocol.records import RecordBatch, build_records, first_bad_record
from waltz_ray.wire.framing import MAGIC_REPLICA, FrameDecoder
from waltz_ray.wire.replica_codec import (
    append_frame_parts,
    decode_replica,
    encode_replica,
)

KEY = uuid.UUID("00112233445566778899aabbccddeeff")
ADDRESS = "00000003 0000000000000007"
TWO_RECORDS = bytes(range(81))
TIME = "{:016x} {:016x}"
ONE_RECORD_HEX = "0000000000000009 00000001 00000028" + bytes(40).hex()
TWO_RECORDS_HEX = "0000000000000009 00000002 00000028 00000029" + TWO_RECORDS.hex()

# Frozen: a published message is never changed.
GOLDEN: list[tuple[ReplicaMessage, str]] = [
    (Open(3, 7, KEY, 6), f"01 {ADDRESS} 00112233445566778899aabbccddeeff 0000000000000006"),
    (
        StateReply(3, 7, 6, 100, 99, 120, True),
        f"02 {ADDRESS} 0000000000000006 0000000000000064 0000000000000063 0000000000000078 01",
    ),
    (State(3, 7), f"03 {ADDRESS}"),
    (Append(3, 7, 9, int32s(40, 41), TWO_RECORDS), f"05 {ADDRESS} {TWO_RECORDS_HEX}"),
    (Appended(3, 7, 10), f"06 {ADDRESS} 000000000000000a"),
    (Read(3, 7, 9, 11, 65536), f"07 {ADDRESS} 0000000000000009 000000000000000b 00010000"),
    (Records(3, 7, 9, int32s(40, 41), TWO_RECORDS), f"08 {ADDRESS} {TWO_RECORDS_HEX}"),
    (Truncate(3, 7, -1), f"09 {ADDRESS} ffffffffffffffff"),
    (Truncated(3, 7, -1), f"0a {ADDRESS} ffffffffffffffff"),
    (SetLowWaterMark(3, 7, 10, 8), f"0b {ADDRESS} 000000000000000a 0000000000000008"),
    (LowWaterMarkSet(3, 7), f"0c {ADDRESS}"),
    (Close(3, 7), f"0d {ADDRESS}"),
    (Closed(3, 7), f"0e {ADDRESS}"),
    (
        Refused(3, 7, 5, RefusalCode.FENCED, 8, 10, "no é"),
        f"0f {ADDRESS} 05 01 0000000000000008 000000000000000a 00000005 6e6f20c3a9",
    ),
    (
        Open(3, 7, KEY, 6, "a1/2"),
        f"11 {ADDRESS} 00112233445566778899aabbccddeeff 0000000000000006 00000004 61312f32",
    ),
    (
        Append(3, 7, 9, int32s(40, 41), TWO_RECORDS, ((9, 1000), (10, 1000))),
        f"13 {ADDRESS} 00000002 0000000000000009 00000000000003e8 000000000000000a 00000000000003e8 {TWO_RECORDS_HEX}",
    ),
    (
        Append(3, 7, 9, int32s(40), bytes(range(40)), ((9, 1000),)),
        f"13 {ADDRESS} 00000001 0000000000000009 00000000000003e8 0000000000000009 00000001 00000028 "
        + bytes(range(40)).hex(),
    ),
    (ReadTimes(3, 7, 9, 11), f"15 {ADDRESS} 0000000000000009 000000000000000b"),
    (Times(3, 7, 11, ((9, 1000),)), f"16 {ADDRESS} 000000000000000b 00000001 0000000000000009 00000000000003e8"),
    (Times(3, 7, 11, ()), f"16 {ADDRESS} 000000000000000b 00000000"),
    (FindTime(3, 7, 1000), f"17 {ADDRESS} 00000000000003e8"),
    (TimeFound(3, 7, 9), f"18 {ADDRESS} 0000000000000009"),
    (Begin(3, 7, 9), f"19 {ADDRESS} 0000000000000009"),
    (Begun(3, 7, 9), f"1a {ADDRESS} 0000000000000009"),
    (FindExcess(3, 7, 9, -1), f"1b {ADDRESS} 0000000000000009 ffffffffffffffff"),
    (ExcessFound(3, 7, 9), f"1c {ADDRESS} 0000000000000009"),
]
SAMPLES = [bytes.fromhex(golden) for _, golden in GOLDEN]


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes(message: ReplicaMessage, golden: str) -> None:
    assert joined(encode_replica(message)) == bytes.fromhex(golden)
    assert_same(decode_replica(bytes.fromhex(golden)), message)


@pytest.mark.parametrize("code", list(RefusalCode))
def test_every_refusal_code(code: RefusalCode) -> None:
    message = Refused(0, 1, 1, code, -1, -1, "")
    assert decode_replica(joined(encode_replica(message))) == message


def test_refusal_code_numbers_are_frozen() -> None:
    assert {code.name: code.value for code in RefusalCode} == {
        "FENCED": 1,
        "NOT_CONTIGUOUS": 2,
        "WRONG_CLUSTER": 3,
        "DAMAGED": 4,
        "NOT_OPEN": 5,
        "DISK_FULL": 6,
        "UNKNOWN_PARTITION": 7,
        "LOST_FILES": 8,
        "OTHER_OWNER": 9,
        "NO_RESOURCES": 10,
        "INVALID_REQUEST": 11,
        "TRIMMED": 12,
        "ROTTEN": 13,
        "NOT_ALLOWED": 14,
    }


def _batch(datas: list[bytes]) -> RecordBatch:
    count = len(datas)
    lengths = np.array([len(data) for data in datas], dtype=np.int32)
    checksums = np.array([zlib.crc32(data) for data in datas], dtype=np.uint32)
    numbers = np.arange(count, dtype=np.int32)
    return build_records(3, 9, 1, 2, (numbers, numbers, lengths, checksums), b"".join(datas))


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=50), max_size=8))
def test_records_arrive_as_they_were_built(datas: list[bytes]) -> None:
    batch = _batch(datas)
    payload = joined(encode_replica(Append(3, 7, batch.first_id, batch.lengths, batch.records)))
    message = decode_replica(payload)
    assert isinstance(message, Append)
    assert first_bad_record(message.batch) == -1
    assert [bytes(data) for data in message.batch.datas()] == datas
    assert len(message.batch) == len(datas)


def test_append_frame_is_the_frame_of_the_append_and_copies_no_record() -> None:
    batch = _batch([b"one", b"two"])
    parts = append_frame_parts(3, 7, batch)
    assert any(part is batch.records for part in parts)
    (frame,) = FrameDecoder(1000).feed(joined(parts))
    assert (frame.magic, frame.version) == (MAGIC_REPLICA, 2)
    assert_same(decode_replica(frame.payload), Append(3, 7, 9, batch.lengths, batch.records))


def test_decoded_records_are_a_view_of_the_payload() -> None:
    payload = bytearray(SAMPLES[3])
    message = decode_replica(payload)
    assert isinstance(message, Append)
    payload[-1] ^= 0xFF
    assert bytes(message.records)[-1] == TWO_RECORDS[-1] ^ 0xFF


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ("", "an empty message"),
        ("00", "message type 0 is unknown in version 2"),
        ("04", "message type 4 is unknown in version 2"),
        ("10", "message type 16 is unknown in version 2"),
        ("03 00000003", r"message type 3 \(State\) is cut short at byte 1: 12 bytes are needed, 4 are left"),
        (f"03 {ADDRESS} 00", r"message type 3 \(State\): 1 bytes are left over"),
        (f"05 {ADDRESS} 0000000000000009 ffffffff", "-1 records do not fit"),
        (f"05 {ADDRESS} 0000000000000009 7fffffff", "2147483647 records do not fit"),
        (f"05 {ADDRESS} ffffffffffffffff 00000000", "cannot begin at transaction -1"),
        (f"05 {ADDRESS} 7fffffffffffffff 00000001 00000028 {'00' * 40}", "cannot begin at transaction 9223"),
        (f"05 {ADDRESS} 0000000000000009 00000001 00000027 {'00' * 40}", "do not add up to the 40 bytes"),
        (f"05 {ADDRESS} 0000000000000009 00000002 00000027 00000029 {'00' * 80}", "shorter than 40 bytes"),
        (f"05 {ADDRESS} 0000000000000009 00000002 ffffffff 00000051 {'00' * 80}", "do not add up"),
        (f"13 {ADDRESS} ffffffff", "-1 time marks do not fit"),
        (f"13 {ADDRESS} 00000001 {TIME.format(8, 1000)} {ONE_RECORD_HEX}", "time marks are of other records than"),
        (f"13 {ADDRESS} 00000001 {TIME.format(10, 1000)} {ONE_RECORD_HEX}", "time marks are of other records than"),
        (f"13 {ADDRESS} 00000001 {TIME.format(9, (1 << 64) - 1)} {ONE_RECORD_HEX}", "time marks are negative"),
        (f"16 {ADDRESS} {'00' * 8} 00000002 {TIME.format(9, 5)} {TIME.format(9, 5)}", "out of order"),
        (f"16 {ADDRESS} {'00' * 8} 00000002 {TIME.format(9, 5)} {TIME.format(10, 4)}", "out of order"),
        (f"0f {ADDRESS} 06 01 {'00' * 16} 00000000", "refuses a request of type 6"),
        (f"0f {ADDRESS} 05 00 {'00' * 16} 00000000", "refusal code 0 is unknown"),
        (f"0f {ADDRESS} 05 7f {'00' * 16} 00000000", "refusal code 127 is unknown"),
        (f"0f {ADDRESS} 05 01 {'00' * 16} ffffffff", "a string is null"),
        (f"0f {ADDRESS} 05 01 {'00' * 16} fffffffe", "a length of -2"),
        (f"0f {ADDRESS} 05 01 {'00' * 16} 7fffffff", "cut short"),
        (f"0f {ADDRESS} 05 01 {'00' * 16} 00000001 ff", "not UTF-8"),
    ],
)
def test_refused_payloads(payload: str, error: str) -> None:
    with pytest.raises(WireError, match=error):
        decode_replica(bytes.fromhex(payload))


def test_what_does_not_fit_is_not_written() -> None:
    with pytest.raises(WireError, match="Truncate cannot be written"):
        encode_replica(Truncate(3, 7, 1 << 63))
    with pytest.raises(WireError, match="Open cannot be written"):
        encode_replica(Open(1 << 31, 7, KEY))
    with pytest.raises(TypeError, match="safe"):
        encode_replica(Append(3, 7, 9, int64s(40), bytes(40)))


def test_fuzz() -> None:
    assert fuzz(decode_replica, SAMPLES, 300) > 1000


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_payloads_are_read_or_refused(payload: bytes) -> None:
    try:
        message = decode_replica(payload)
    except WireError:
        return
    assert decode_replica(joined(encode_replica(message))) is not None
