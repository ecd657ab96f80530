"""Client protocol, versions 0-4 (and 5 for what it shares): golden bytes per layout, round trips, refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.helpers import fuzz, joined
from waltz_ray.errors import WireError
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.original import (
    AddPreferredRequest,
    AddPreferredResponse,
    AppendRequest,
    AssignmentRequest,
    AssignmentResponse,
    CheckConnectivityRequest,
    CheckConnectivityResponse,
    DataRequest,
    DataResponse,
    FeedData,
    FeedRequest,
    FeedSuspended,
    FlushRequest,
    FlushResponse,
    HealthRequest,
    HealthResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    MountState,
    RemovePreferredRequest,
    RemovePreferredResponse,
)
from waltz_ray.wire.codec import CLIENT_VERSIONS, ClientMessage, decode_client, encode_client
from waltz_ray.wire.original_codec import ORIGINALS

ID = ReqId(1, 2, 3, 4)
REQ = "00000001 00000002 00000003 00000004"

# (versions with this layout, message, bytes). Frozen: a published message is never changed.
GOLDEN: list[tuple[tuple[int, ...], ClientMessage, str]] = [
    ((0, 1, 2, 3, 4, 5), MountRequest(ID, -1, 6), f"00 {REQ} ffffffffffffffff 0000000000000006"),
    ((0, 1, 2), MountResponse(ID, MountState.READY), f"01 {REQ} 01"),
    ((0, 1, 2), MountResponse(ID, MountState.NOT_READY), f"01 {REQ} 00"),
    ((3, 4, 5), MountResponse(ID, MountState.READY), f"01 {REQ} 00000000"),
    ((3, 4, 5), MountResponse(ID, MountState.NOT_READY), f"01 {REQ} 00000001"),
    ((3, 4, 5), MountResponse(ID, MountState.CLIENT_AHEAD), f"01 {REQ} 00000002"),
    (
        (0,),
        AppendRequest(ID, 5, (7, -8), (), (), 9, b"hi", 0xFEDCBA98),
        f"02 {REQ} 0000000000000005 00000002 00000007 fffffff8 00000009 00000002 6869 fedcba98",
    ),
    (
        (1,),
        AppendRequest(ID, 5, (7,), (8,), (), 9, b"hi", 1),
        f"02 {REQ} 0000000000000005 00000001 00000007 00000001 00000008 00000009 00000002 6869 00000001",
    ),
    (
        (2, 3, 4, 5),
        AppendRequest(ID, 5, (), (8,), (10, 11), -9, b"", 0),
        f"02 {REQ} 0000000000000005 00000000 00000001 00000008 00000002 0000000a 0000000b fffffff7 00000000 00000000",
    ),
    ((0, 1, 2, 3, 4, 5), FeedRequest(ID, 5), f"03 {REQ} 0000000000000005"),
    ((0, 1, 2, 3, 4, 5), FeedData(ID, 5, 6), f"04 {REQ} 0000000000000005 00000006"),
    ((0, 1, 2, 3, 4, 5), FeedSuspended(ID), f"05 {REQ}"),
    ((0, 1, 2, 3, 4, 5), DataRequest(ID, 5), f"06 {REQ} 0000000000000005"),
    (
        (0, 1, 2, 3, 4, 5),
        DataResponse(ID, 5, b"hi", 0x80000000, None),
        f"07 {REQ} 0000000000000005 01 00000002 6869 80000000",
    ),
    ((0, 1, 2, 3, 4, 5), DataResponse(ID, 5, None, 0, "no"), f"07 {REQ} 0000000000000005 00 00000002 6e6f"),
    ((0, 1, 2, 3, 4, 5), FlushRequest(ID), f"08 {REQ}"),
    ((0, 1, 2, 3, 4, 5), FlushResponse(ID, -1), f"09 {REQ} ffffffffffffffff"),
    ((0, 1, 2, 3, 4, 5), LockFailure(ID, 5), f"0a {REQ} 0000000000000005"),
    ((0, 1, 2, 3, 4, 5), HighWaterMarkRequest(ID), f"0b {REQ}"),
    ((0, 1, 2, 3, 4, 5), HighWaterMarkResponse(ID, 5), f"0c {REQ} 0000000000000005"),
    ((1, 2, 3, 4, 5), CheckConnectivityRequest(ID), f"0d {REQ}"),
    (
        (1, 2, 3, 4, 5),
        CheckConnectivityResponse(ID, {"a": True, "é": False}),
        f"0e {REQ} 00000002 00000001 61 01 00000002 c3a9 00",
    ),
    ((2, 3, 4, 5), AssignmentRequest(ID), f"0f {REQ}"),
    ((2, 3, 4, 5), AssignmentResponse(ID, (0, 5)), f"10 {REQ} 00000002 00000000 00000005"),
    ((2, 3, 4, 5), AddPreferredRequest(ID, (5,)), f"11 {REQ} 00000001 00000005"),
    ((2, 3, 4, 5), AddPreferredResponse(ID, True), f"12 {REQ} 01"),
    ((2, 3, 4, 5), RemovePreferredRequest(ID, ()), f"13 {REQ} 00000000"),
    ((2, 3, 4, 5), RemovePreferredResponse(ID, False), f"14 {REQ} 00"),
    ((4, 5), HealthRequest(ID), f"15 {REQ}"),
    ((4, 5), HealthResponse(ID, {0: True, 7: False}), f"16 {REQ} 00000002 00000000 01 00000007 00"),
]
CASES = [(version, message, golden) for versions, message, golden in GOLDEN for version in versions]


@pytest.mark.parametrize(("version", "message", "golden"), CASES)
def test_golden_bytes(version: int, message: ClientMessage, golden: str) -> None:
    assert joined(encode_client(version, message)) == bytes.fromhex(golden)
    assert decode_client(version, bytes.fromhex(golden)) == message


def test_every_type_of_every_version_has_golden_bytes() -> None:
    seen = {(version, type(message)) for version, message, _ in CASES}
    wanted = {(version, kind.cls) for kind in ORIGINALS for version in CLIENT_VERSIONS if version >= kind.since}
    assert seen == wanted
    assert sorted(row.number for row in ORIGINALS) == list(range(23))


@pytest.mark.parametrize(
    ("version", "number"),
    [(version, kind.number) for kind in ORIGINALS for version in CLIENT_VERSIONS if version < kind.since],
)
def test_a_type_that_a_version_does_not_have_is_refused(version: int, number: int) -> None:
    message, golden = next((message, golden) for _, message, golden in CASES if golden.startswith(f"{number:02x} "))
    with pytest.raises(WireError, match=f"type {number} .* is unknown in version {version}"):
        decode_client(version, bytes.fromhex(golden))
    with pytest.raises(WireError, match=f"{type(message).__name__} does not exist in version {version}"):
        encode_client(version, message)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
@pytest.mark.parametrize("number", [23, 31, 57, 255])
def test_unknown_types_are_named(version: int, number: int) -> None:
    with pytest.raises(WireError, match=f"message type {number} is unknown in version {version}"):
        decode_client(version, bytes([number]) + bytes(100))


def test_batches_do_not_exist_before_version_5() -> None:
    with pytest.raises(WireError, match=r"message type 32 \(APPEND_BATCH\) is unknown in version 4"):
        decode_client(4, bytes([32]) + bytes(100))


def test_client_ahead_is_not_ready_before_version_3() -> None:
    payload = joined(encode_client(2, MountResponse(ID, MountState.CLIENT_AHEAD)))
    assert decode_client(2, payload) == MountResponse(ID, MountState.NOT_READY)


def test_locks_that_a_version_cannot_carry_are_not_dropped() -> None:
    bare = AppendRequest(ID, 5, (), (), (), 9, b"hi", 1)
    for version, message in (
        (0, dataclasses.replace(bare, read_locks=(1,))),
        (0, dataclasses.replace(bare, append_locks=(1,))),
        (1, dataclasses.replace(bare, append_locks=(1,))),
    ):
        with pytest.raises(WireError, match=f"version {version} cannot carry the locks"):
            encode_client(version, message)


def test_a_data_response_is_data_or_an_error() -> None:
    for data, error in ((None, None), (b"x", "no")):
        with pytest.raises(WireError, match="data or an error"):
            encode_client(4, DataResponse(ID, 5, data, 0, error))


def test_any_byte_but_zero_is_true() -> None:
    assert decode_client(2, bytes.fromhex(f"01 {REQ} 7f")) == MountResponse(ID, MountState.READY)


def test_data_is_neither_copied_in_nor_out() -> None:
    data = memoryview(b"some data")
    parts = encode_client(4, AppendRequest(ID, 5, (), (), (), 9, data, 1))
    assert any(part is data for part in parts)
    payload = bytearray(joined(parts))
    message = decode_client(4, payload)
    assert isinstance(message, AppendRequest)
    payload[payload.index(b"some")] = ord("c")
    assert bytes(message.data) == b"come data"


@pytest.mark.parametrize(
    ("version", "payload", "error"),
    [
        (4, "", "an empty message"),
        (4, "05", r"message type 5 \(FEED_SUSPENDED\) is cut short at byte 1: 16 bytes are needed, 0 are left"),
        (4, f"05 {REQ} 00", "1 bytes are left over after byte 17"),
        (3, f"01 {REQ} 00000004", "mount state 4 is unknown"),
        (3, f"01 {REQ} ffffffff", "mount state -1 is unknown"),
        (2, f"02 {REQ} 0000000000000005 ffffffff", "-1 ints do not fit"),
        (2, f"02 {REQ} 0000000000000005 7fffffff", "2147483647 ints do not fit"),
        (0, f"02 {REQ} 0000000000000005 00001001 {'00' * 16_388}", "4097 ints, where 4096 are the most"),
        (4, f"11 {REQ} 00100001 {'00' * 4_194_308}", "1048577 ints, where 1048576 are the most"),
        (0, f"02 {REQ} 0000000000000005 00000000 00000009 ffffffff 00000000", "bytes are null"),
        (0, f"02 {REQ} 0000000000000005 00000000 00000009 fffffffe 00000000", "a length of -2 at byte 33"),
        (4, f"0e {REQ} 00000001 ffffffff 01", "a string is null"),
        (4, f"0e {REQ} 00000002 00000001 61 01 00000001 61 00", "names a replica twice"),
        (4, f"0e {REQ} 00000001 00000001 ff 01", "not UTF-8"),
        (4, f"16 {REQ} 00000002 00000001 01 00000001 01", "names a partition twice"),
        (4, f"16 {REQ} 7fffffff", "2147483647 partitions do not fit"),
        (4, f"16 {REQ} ffffffff", "-1 partitions do not fit"),
    ],
)
def test_refused_payloads(version: int, payload: str, error: str) -> None:
    with pytest.raises(WireError, match=error):
        decode_client(version, bytes.fromhex(payload))


def test_what_does_not_fit_is_not_written() -> None:
    with pytest.raises(WireError, match="FeedData cannot be written"):
        encode_client(4, FeedData(ID, 5, 1 << 31))
    with pytest.raises(WireError, match="AppendRequest cannot be written"):
        encode_client(4, AppendRequest(ID, 5, (1 << 31,), (), (), 0, b"", 0))


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_fuzz(version: int) -> None:
    samples = [bytes.fromhex(golden) for known, _, golden in CASES if known == version]
    assert fuzz(lambda payload: decode_client(version, payload), samples, 40) > 500


@settings(max_examples=300)
@given(st.sampled_from(CLIENT_VERSIONS), st.integers(0, 50), st.binary(max_size=120))
def test_random_payloads_are_read_or_refused(version: int, number: int, rest: bytes) -> None:
    try:
        message = decode_client(version, bytes([number]) + rest)
    except WireError:
        return
    again: Any = decode_client(version, joined(encode_client(version, message)))
    assert type(again) is type(message)


INT = st.integers(-(1 << 31), (1 << 31) - 1)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
LOCKS = st.lists(INT, max_size=5).map(tuple)


REQ_IDS = st.builds(ReqId, INT, INT, INT, INT)
APPENDS = st.builds(
    AppendRequest, REQ_IDS, LONG, LOCKS, LOCKS, LOCKS, INT, st.binary(max_size=50), st.integers(0, (1 << 32) - 1)
)


@settings(max_examples=200)
@given(APPENDS)
def test_append_round_trip(message: AppendRequest) -> None:
    assert decode_client(4, joined(encode_client(4, message))) == message


@settings(max_examples=100)
@given(st.dictionaries(st.text(max_size=8), st.booleans(), max_size=5), st.dictionaries(INT, st.booleans(), max_size=5))
def test_dictionaries_round_trip(replicas: dict[str, bool], partitions: dict[int, bool]) -> None:
    for message in (CheckConnectivityResponse(ID, replicas), HealthResponse(ID, partitions)):
        assert decode_client(4, joined(encode_client(4, message))) == message
