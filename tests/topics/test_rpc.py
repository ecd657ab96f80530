"""What is around requests and replies, beside google.protobuf."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.topics.oracle import message_class
from waltz_ray.errors import BadPayload, InvalidInput
from waltz_ray.topics.codes import RpcStatus, ServiceType
from waltz_ray.topics.rpc import (
    FaultName,
    RpcAnswer,
    RpcCall,
    RpcFault,
    decode_call,
    decode_reply,
    encode_call,
    encode_reply,
)


def delimited(*messages: tuple[str, dict[str, Any]]) -> bytes:
    """Each as google.protobuf writes it, after its length."""
    parts = []
    for name, given in messages:
        content = message_class(name)(**given).SerializeToString(deterministic=True)
        size = len(content)
        parts.append((bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])) + content)
    return b"".join(parts)


def call_of(method: int = 13, **given: Any) -> bytes:
    header = {"serviceType": 3, "protocolVer": 2, **given.pop("header", {})}
    return delimited(
        ("RpcConnHeader", given.pop("connection", {"flag": 0})),
        ("RequestHeader", {name: number for name, number in header.items() if number is not None}),
        ("RequestBody", {"method": method, **given}),
    )


def test_t05_a_request_is_three_messages() -> None:
    """T05: and so it is written."""
    message = call_of(timeout=3000, request=b"body" * 100)
    assert message.hex().startswith("020800" + "0408031002" + "98030" + "80d10b8171a9003")
    call = RpcCall(13, b"body" * 100, ServiceType.BROKER_WRITE, 2, 3000)
    assert decode_call(message) == call
    assert encode_call(call) == message


def test_t05_a_reply_is_three_messages() -> None:
    message = delimited(
        ("RpcConnHeader", {"flag": 1}),
        ("ResponseHeader", {"status": 0, "serviceType": 3, "protocolVer": 3}),
        ("RspResponseBody", {"method": 13, "data": b"answer"}),
    )
    answer = RpcAnswer(13, b"answer", ServiceType.BROKER_WRITE, 3)
    assert encode_reply(answer) == message
    assert decode_reply(message) == answer


def test_t05_empty_data_is_sent() -> None:
    """T05: data must be there, for Java and C++ clients."""
    assert encode_reply(RpcAnswer(3, b"", 1, 2)).endswith(bytes.fromhex("04 0803 1200"))


@pytest.mark.parametrize("fatal", [False, True])
def test_t10_an_exception_has_a_name_and_a_text(fatal: bool) -> None:
    """T10: ERROR is 1, FATAL 2."""
    message = delimited(
        ("RpcConnHeader", {"flag": 1}),
        ("ResponseHeader", {"status": 2 if fatal else 1, "serviceType": 1, "protocolVer": 3}),
        ("RspExceptionBody", {"exceptionName": "a.b.XException", "stackTrace": "it is so"}),
    )
    fault = RpcFault("a.b.XException", "it is so", fatal, 1, 3)
    assert encode_reply(fault) == message
    assert decode_reply(message) == fault
    assert not fault.is_standby


def test_t10_an_exception_may_have_no_text() -> None:
    message = delimited(
        ("RpcConnHeader", {"flag": 1}), ("ResponseHeader", {"status": 1}), ("RspExceptionBody", {"exceptionName": "x"})
    )
    assert decode_reply(message) == RpcFault("x", "", False, 0, 2)


def test_t06_flags() -> None:
    """T06: 0 asks, 1 answers; what is for tracing is read and does nothing."""
    traced = {"flag": 0, "traceId": -1, "spanId": 1 << 60, "parentId": 7}
    assert decode_call(call_of(connection=traced)) == decode_call(call_of())
    assert len(call_of(connection=traced)) == len(call_of()) + 11 + 10 + 2
    with pytest.raises(BadPayload, match=r"RpcConnHeader.flag: 1, of a request it is 0"):
        decode_call(call_of(connection={"flag": 1}))
    with pytest.raises(BadPayload, match=r"RpcConnHeader.flag: 0, of a response it is 1"):
        decode_reply(call_of())


@pytest.mark.parametrize("more", [8, 9, 1, 4096])
def test_t07_what_follows_is_not_looked_at(more: int) -> None:
    """T07: the C++ client writes eight or nine bytes too many."""
    assert decode_call(call_of(request=b"body") + bytes(more)) == decode_call(call_of(request=b"body"))
    assert decode_call(call_of(request=b"body") + b"\xff" * more).request == b"body"
    reply = RpcAnswer(13, b"data", 3, 2)
    assert decode_reply(encode_reply(reply) + b"\xff" * more) == reply


@pytest.mark.parametrize("version", [2, 3, 0, 4, 12])
@pytest.mark.parametrize("service", [1, 2, 3, 0, 9])
def test_t08_versions_and_services(version: int, service: int) -> None:
    """T08, D11: 2 of C++ clients and 3 of Java ones; others are read like them."""
    call = decode_call(call_of(header={"serviceType": service, "protocolVer": version}))
    assert (call.service_type, call.protocol_ver) == (service, version)


def test_t08_neither_has_to_be_there() -> None:
    call = decode_call(call_of(header={"serviceType": None, "protocolVer": None}))
    assert (call.service_type, call.protocol_ver) == (0, 2)


def test_t09_how_long_a_client_waits() -> None:
    """T09: 10 s if it does not say; what waited longer is not done."""
    assert decode_call(call_of()).timeout_ms == 10_000
    assert decode_call(call_of(timeout=0)).timeout_ms == 10_000
    assert decode_call(call_of(timeout=-5)).timeout_ms == 10_000
    call = decode_call(call_of(timeout=300))
    assert [call.is_late(waited_ms) for waited_ms in (0, 300, 301)] == [False, False, True]


@pytest.mark.parametrize("method", [0, 7, 99, -1])
def test_t51_any_method_is_a_call(method: int) -> None:
    """T51: so that its client gets an answer; also 0, of the C++ producer that closes."""
    call = decode_call(call_of(method, request=b"x"))
    assert (call.method, call.request) == (method, b"x")
    fault = FaultName.NO_METHOD.fault(f"there is no method {method}", call)
    assert decode_reply(encode_reply(fault)) == fault
    assert fault == RpcFault("java.lang.UnsupportedOperationException", f"there is no method {method}", False, 3, 2)


@pytest.mark.parametrize(
    ("version", "package"),
    [(2, "com.tencent.tubemq"), (3, "org.apache.tubemq"), (4, "org.apache.inlong.tubemq")],
)
def test_t38_each_version_has_its_exceptions(version: int, package: str) -> None:
    """T38, the bytes: a Java client looks for a class of its own packages, all look for StandbyException."""
    call = RpcCall(1, b"", ServiceType.MASTER, version)
    fault = FaultName.STANDBY.fault("ask 10.0.0.2:8715", call)
    assert fault == RpcFault(f"{package}.corerpc.exception.StandbyException", "ask 10.0.0.2:8715", False, 1, version)
    assert fault.is_standby
    assert RpcFault("RemoteException", "a.b.StandbyException#not me").is_standby


def test_what_cannot_be_read_is_answered_as_fatal() -> None:
    fault = FaultName.UNREADABLE.fault("x" * 10_000)
    assert (fault.fatal, fault.protocol_ver, len(fault.text)) == (True, 2, 4096)
    assert b"\x08\x02" in encode_reply(fault)[:8]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"", "RpcConnHeader is not there"),
        (b"\x05\x08\x00", "RpcConnHeader is not there, or longer than it can be"),
        (b"\x02\x08\x00", "the header after it is not there"),
        (b"\x02\x08\x00\x80\x01" + bytes(200), "the header after it is not there, or longer than it can be"),
        (b"\x02\x08\x00\x00", "there is no RequestBody: the message ends before it"),
        (b"\x02\x08\x00\x00\xff\xff", "there is no RequestBody: the message ends before it"),
        (b"\x02\x08\x00\x00\x00", "RequestBody: method must be there, and is not"),
        (b"\x00\x00\x02\x08\x01", "RpcConnHeader: flag must be there, and is not"),
        (b"\x02\x08\x00\x00\x09\x08\x0d", "RequestBody: 9 bytes, where 2 are left"),
    ],
)
def test_what_is_no_request(message: bytes, problem: str) -> None:
    with pytest.raises(BadPayload) as caught:
        decode_call(message)
    assert problem in str(caught.value)


def test_a_status_that_there_is_not() -> None:
    message = delimited(("RpcConnHeader", {"flag": 1}), ("ResponseHeader", {"status": 3}))
    with pytest.raises(BadPayload, match="there is no status 3"):
        decode_reply(message + b"\x00")
    assert [int(status) for status in RpcStatus] == [0, 1, 2]


def test_what_does_not_fit_is_not_sent() -> None:
    with pytest.raises(InvalidInput, match=r"RequestBody.method: 2147483648 does not fit int32"):
        encode_call(RpcCall(1 << 31, b"", 1))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_messages_are_refused_or_read(seed: int) -> None:
    """Nothing but BadPayload comes out, and every call that is read can be answered."""
    chance = random.Random(seed)
    whole = call_of(timeout=3000, request=b"body" * 10)
    read = 0
    for _ in range(3000):
        content = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        del content[chance.randrange(len(content) * 2) :]
        call = _read(bytes(content))
        if call is not None:
            read += 1
            fault = FaultName.NOT_READY.fault("later", call)
            assert decode_reply(encode_reply(fault)) == fault
    assert 0 < read < 3000


def _read(content: bytes) -> RpcCall | None:
    try:
        return decode_call(content)
    except BadPayload:
        return None
