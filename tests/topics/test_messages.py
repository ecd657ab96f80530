"""Messages of topic ports: stored bytes, both directions of every exchange, and nonsense, beside google.protobuf."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tests.topics.all_codecs import CODECS, KINDS, golden, samples
from tests.topics.oracle import as_oracle, attribute, message_class, plain, spec
from waltz_ray.errors import BadPayload
from waltz_ray.topics import wire
from waltz_ray.topics.codes import RpcMethod, ServiceType
from waltz_ray.topics.messages import UnknownMethod

ALLOWED = ("is not UTF-8", "it comes twice")  # where we are stricter, and say so
REQUESTS = {
    1: ("RegisterRequestP2M", "RegisterResponseM2P"),
    2: ("HeartRequestP2M", "HeartResponseM2P"),
    3: ("CloseRequestP2M", "CloseResponseM2P"),
    4: ("RegisterRequestC2M", "RegisterResponseM2C"),
    5: ("HeartRequestC2M", "HeartResponseM2C"),
    6: ("CloseRequestC2M", "CloseResponseM2C"),
    13: ("SendMessageRequestP2B", "SendMessageResponseB2P"),
    15: ("RegisterRequestC2B", "RegisterResponseB2C"),
    16: ("HeartBeatRequestC2B", "HeartBeatResponseB2C"),
    17: ("GetMessageRequestC2B", "GetMessageResponseB2C"),
    18: ("CommitOffsetRequestC2B", "CommitOffsetResponseB2C"),
    101: ("ProgressRequestC2B", "ProgressResponseB2C"),
    102: ("ClusterMeantRequest", "ClusterMeantResponse"),
}


def values_of(name: str) -> st.SearchStrategy[Any]:
    """Any value of one message."""
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "s": st.text(max_size=40),
        "y": st.binary(max_size=300),
        "b": st.booleans(),
        "i": st.integers(-(1 << 31), (1 << 31) - 1),
        "l": st.integers(-(1 << 63), (1 << 63) - 1),
    }
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for row in spec()[name]:
        one = kinds[row.kind] if row.kind in kinds else values_of(row.kind)
        if row.mark == "*":
            fields[attribute(row.name)] = st.lists(one, max_size=4).map(tuple)
        elif row.mark != "x":
            fields[attribute(row.name)] = one if row.mark == "!" else st.none() | one
    return st.builds(KINDS[name], **fields)


@pytest.mark.parametrize("name", sorted(samples()))
def test_golden_bytes(name: str) -> None:
    """T11, T12, T16, T21, T22, T24, T25, T26, D9, D12: out and in, every field at its public number."""
    value, codec = samples()[name], CODECS[name.split(".")[0]]
    assert codec.encode(value) == golden()[name]
    assert codec.decode(golden()[name]) == value


def test_every_message_has_its_lines() -> None:
    """And the file is what google.protobuf makes of them."""
    assert CODECS.keys() == spec().keys()
    made = {name: as_oracle(value).SerializeToString(deterministic=True) for name, value in samples().items()}
    assert golden() == made


@pytest.mark.parametrize("name", sorted(CODECS))
def test_tables_are_the_published_definitions(name: str) -> None:
    """D9, D12: numbers, kinds, what must be there; fields out of use are none."""
    letters = {"STRING": "s", "BYTES": "y", "BOOL": "b", "INT32": "i", "INT64": "l"}
    found = [
        (
            row.number,
            row.name,
            row.codec.kind.__name__ if row.codec else letters[row.kind.name],
            "!" if row.is_required else "*" if row.is_repeated else "",
        )
        for row in CODECS[name].table
    ]
    assert found == [tuple(row) for row in spec()[name] if row.mark != "x"]


@given(data=st.data())
def test_both_ways_as_google_does(data: st.DataObject) -> None:
    value = data.draw(values_of(data.draw(st.sampled_from(sorted(CODECS)))))
    codec = CODECS[type(value).__name__]
    encoded = codec.encode(value)
    assert encoded == as_oracle(value).SerializeToString(deterministic=True)
    assert codec.decode(encoded) == value


@pytest.mark.parametrize("name", sorted(name for name, rows in spec().items() if any(row.mark == "x" for row in rows)))
def test_fields_out_of_use_are_skipped(name: str) -> None:
    """D9: older clients still send them."""
    value = samples()[f"{name}.whole"]
    message = as_oracle(value)
    message.ssdStoreId = -7
    assert CODECS[name].decode(message.SerializeToString()) == value


# ---- exchanges ----------------------------------------------------------------------------------------------


def test_t51_every_method_has_its_messages() -> None:
    """T51: eight exchanges of eleven methods, two of ours, and no other method has any."""
    assert {int(method) for method in RpcMethod} == set(REQUESTS)
    for method, (request, response) in REQUESTS.items():
        asked, answered = samples()[f"{request}.whole"], samples()[f"{response}.whole"]
        assert wire.encode_request(asked) == (method, golden()[f"{request}.whole"])
        assert wire.decode_request(method, golden()[f"{request}.whole"]) == asked
        assert wire.encode_response(answered) == (method, golden()[f"{response}.whole"])
        assert wire.decode_response(method, golden()[f"{response}.whole"]) == answered


@pytest.mark.parametrize("method", [0, -1, 7, 8, 9, 10, 11, 12, 14, 19, 20, 21, 22, 2**31 - 1])
def test_t51_another_method_is_a_value(method: int) -> None:
    """T51: also 0, of the C++ producer that closes; whatever its bytes are."""
    assert wire.decode_request(method, b"\xff nonsense") == UnknownMethod(method)
    assert wire.decode_response(method, b"\xff nonsense") == UnknownMethod(method)


def test_t08_every_method_has_its_service() -> None:
    services = {method: method.service for method in RpcMethod}
    assert {int(method) for method in services if services[method] is ServiceType.MASTER} == {1, 2, 3, 4, 5, 6}
    assert {int(method) for method in services if services[method] is ServiceType.BROKER_WRITE} == {13}
    reads = {int(method) for method in services if services[method] is ServiceType.BROKER_READ}
    assert reads == {15, 16, 17, 18, 101, 102}


# ---- nonsense -----------------------------------------------------------------------------------------------


def _decode_google(name: str, content: bytes) -> Any | None:
    message = message_class(name)()
    try:
        message.ParseFromString(content)
        return plain(message) if message.IsInitialized() else None
    except (DecodeError, UnicodeDecodeError):
        return None


def _same_as_google(name: str, content: bytes) -> None:
    theirs = _decode_google(name, content)
    refused = ""
    ours: Any = None
    try:
        ours = plain(CODECS[name].decode(content))
    except BadPayload as error:
        refused = str(error)
    if not any(part in refused for part in ALLOWED):
        assert ours == theirs, (name, content.hex(), refused)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_bytes_are_refused_or_read_as_google_does(seed: int) -> None:
    chance = random.Random(seed)
    names = sorted(golden())
    for _ in range(1500):
        name = chance.choice(names)
        content = bytearray(golden()[name])
        for _ in range(chance.randrange(1, 4)):
            where = chance.randrange(len(content) + 1)
            kind = chance.randrange(4)
            if kind == 0 and where < len(content):
                content[where] = chance.randrange(256)
            elif kind == 1:
                content[where:where] = chance.randbytes(chance.randrange(1, 5))
            elif kind == 2:
                del content[where : where + chance.randrange(1, 5)]
            else:
                del content[where:]
        _same_as_google(name.split(".")[0], bytes(content))


@given(name=st.sampled_from(sorted(CODECS)), content=st.binary(max_size=60))
def test_any_bytes_are_refused_or_read_as_google_does(name: str, content: bytes) -> None:
    _same_as_google(name, content)


def test_every_beginning_of_a_message_is_refused() -> None:
    """Unless it is one: what follows may be left out."""
    for name, content in golden().items():
        for end in range(len(content)):
            _same_as_google(name.split(".")[0], content[:end])


def test_a_missing_field_is_named() -> None:
    with pytest.raises(BadPayload, match="SendMessageRequestP2B: topicName and partitionId and data and flag"):
        wire.decode_request(13, bytes([10, 1, 65]))


def test_an_error_names_the_message_inside() -> None:
    with pytest.raises(BadPayload, match=r"MasterCertificateInfo.authInfo: 90 bytes, where 2 are left"):
        wire.decode_request(3, bytes([10, 1, 65, 18, 4, 10, 90, 1, 2]))


@pytest.mark.parametrize(
    ("unit", "problem"),
    [
        ("4b", "more than 32 groups in one another"),
        ("4b" + "5000" * 131_071, "a group of more than 131072 fields"),
        ("f80100", "RegisterRequestP2M: more than 131072 fields"),
        ("0a00", "RegisterRequestP2M: more than 131072 fields"),
        ("1200", "RegisterRequestP2M.topicList: more than 65536 items"),
        ("ff", "more than ten bytes"),
    ],
)
def test_hostile_messages_end_soon(unit: str, problem: str) -> None:
    """28 MiB of whatever takes most turns: no event loop stands still for it."""
    content = bytes.fromhex(unit) * ((28 << 20) // (len(unit) // 2))
    began = time.process_time()
    with pytest.raises(BadPayload, match=problem):
        wire.decode_request(1, content)
    assert time.process_time() - began < 5  # a tenth of a second; without bounds it is two to four
