"""What is around a request and a reply: three messages, each after its length, which are one message of a frame. Pure.

A request is RpcConnHeader, RequestHeader, RequestBody; a reply is RpcConnHeader, ResponseHeader, and RspResponseBody or
RspExceptionBody. What follows the third is not looked at: the C++ client sends eight or nine bytes more.
"""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import TypeVar

from waltz_ray.errors import BadPayload
from waltz_ray.protocol.value import value
from waltz_ray.topics.codes import RpcStatus
from waltz_ray.topics.protobuf import ProtoCodec, ProtoKind, optional, required
from waltz_ray.topics.protobuf_bytes import add_varint, read_varint

__all__ = [
    "DEFAULT_TIMEOUT_MS",
    "FaultName",
    "RpcAnswer",
    "RpcCall",
    "RpcFault",
    "decode_call",
    "decode_reply",
    "encode_call",
    "encode_reply",
]

T = TypeVar("T")

DEFAULT_TIMEOUT_MS = 10_000
"""Of a request that names none."""

_REQUEST, _RESPONSE = 0, 1
_OLDEST = 2
_MOST_TEXT = 4096
_PACKAGES = {2: "com.tencent.tubemq", 3: "org.apache.tubemq"}
_NEWEST_PACKAGE = "org.apache.inlong.tubemq"


@value()
class RpcCall:
    """A request. ``request``: the bytes of the method's message, ``wire.decode_request``.

    A method that there is not is a call like another, so that it can be answered. The version is 2 of the C++ client, 3
    of the Java one; whatever it is, replies carry the same.
    """

    method: int
    request: bytes
    service_type: int
    """``codes.ServiceType``, or a number that is none."""
    protocol_ver: int = 3
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    """Nobody waits for the answer for longer; above 0."""

    def is_late(self, waited_ms: int) -> bool:
        """It has waited for longer than its client has: it is dropped, not executed."""
        return waited_ms > self.timeout_ms


@value()
class RpcAnswer:
    """The reply to a request that was understood. ``data``: ``wire.decode_response``."""

    method: int
    data: bytes
    service_type: int = 0
    protocol_ver: int = 3


@value()
class RpcFault:
    """The reply to a request that was not even tried. Java clients throw ``exception_name`` if they have that class."""

    exception_name: str
    text: str
    fatal: bool = False
    """The request could not be read."""
    service_type: int = 0
    protocol_ver: int = 3

    @property
    def is_standby(self) -> bool:
        """This master does not lead: another one is to be asked. The name counts wherever it stands."""
        return FaultName.STANDBY in self.exception_name or FaultName.STANDBY in self.text


class FaultName(str, enum.Enum):
    """Exceptions that clients know."""

    STANDBY = "StandbyException"
    """Ask another master."""
    NOT_READY = "ServerNotReadyException"
    STOPPING = "ServiceStoppingException"
    OVERFLOW = "OverflowException"
    """Too many requests wait."""
    UNREADABLE = "UnknownProtocolException"
    NO_METHOD = "UnsupportedOperationException"
    """There is no such method."""

    def fault(self, text: str, call: RpcCall | None = None) -> RpcFault:
        """The reply to ``call``, None: to what could not be read. Each version has its classes in another package."""
        version = call.protocol_ver if call is not None else _OLDEST
        service_type = call.service_type if call is not None else 0
        package = f"{_PACKAGES.get(version, _NEWEST_PACKAGE)}.corerpc.exception"
        name = f"{'java.lang' if self is FaultName.NO_METHOD else package}.{self.value}"
        return RpcFault(name, text[:_MOST_TEXT], call is None, service_type, version)


# ---- the six messages -------------------------------------------------------------------------------------


@value()
class RpcConnHeader:
    """``flag``: 0 = request, 1 = response. The others are for tracing, and unused."""

    flag: int
    trace_id: int | None = None
    span_id: int | None = None
    parent_id: int | None = None


@value()
class RequestHeader:
    """Of a request."""

    service_type: int | None = None
    protocol_ver: int | None = None


@value()
class RequestBody:
    """``timeout`` in milliseconds."""

    method: int
    timeout: int | None = None
    request: bytes | None = None


@value()
class ResponseHeader:
    """``status``: ``codes.RpcStatus``."""

    status: int
    service_type: int | None = None
    protocol_ver: int | None = None


@value()
class RspResponseBody:
    """``data`` is sent even if it is empty: clients ask for it."""

    method: int
    data: bytes | None


@value()
class RspExceptionBody:
    """``stack_trace``: a line for people."""

    exception_name: str
    stack_trace: str | None = None


_INT32, _INT64, _STRING, _BYTES = ProtoKind.INT32, ProtoKind.INT64, ProtoKind.STRING, ProtoKind.BYTES

_CONN_HEADER = ProtoCodec(
    RpcConnHeader,
    required(1, "flag", _INT32),
    optional(2, "traceId", _INT64),
    optional(3, "spanId", _INT64),
    optional(4, "parentId", _INT64),
)
_REQUEST_HEADER = ProtoCodec(RequestHeader, optional(1, "serviceType", _INT32), optional(2, "protocolVer", _INT32))
_REQUEST_BODY = ProtoCodec(
    RequestBody, required(1, "method", _INT32), optional(2, "timeout", _INT64), optional(3, "request", _BYTES)
)
_RESPONSE_HEADER = ProtoCodec(
    ResponseHeader,
    required(1, "status", _INT32),
    optional(2, "serviceType", _INT32),
    optional(3, "protocolVer", _INT32),
)
_RESPONSE_BODY = ProtoCodec(RspResponseBody, required(1, "method", _INT32), optional(2, "data", _BYTES))
_EXCEPTION_BODY = ProtoCodec(
    RspExceptionBody, required(1, "exceptionName", _STRING), optional(2, "stackTrace", _STRING)
)


def _delimited(message: T, codec: ProtoCodec[T], out: bytearray) -> None:
    inner = bytearray()
    codec.write(message, inner)
    add_varint(out, len(inner))
    out += inner


def _read(codec: ProtoCodec[T], message: bytes, position: int) -> T:
    name = codec.kind.__name__
    try:
        size, start = read_varint(message, position + 1, message[position])
    except IndexError:
        raise BadPayload(f"there is no {name}: the message ends before it") from None
    if start + size > len(message):
        raise BadPayload(f"{name}: {size} bytes, where {len(message) - start} are left")
    return codec.decode(message, start, start + size)


# Two of the three messages hardly ever change from one request to the next: what they say is remembered by their bytes.


def _heads_end(message: bytes) -> int:
    """Where the third message begins. BadPayload if the first two are not there, or longer than they can be."""
    position = 0
    for name in ("RpcConnHeader", "the header after it"):
        size = message[position] if position < len(message) else -1
        if not 0 <= size < 128 or position + 1 + size > len(message):
            raise BadPayload(f"{name} is not there, or longer than it can be: the message has {len(message)} bytes")
        position += 1 + size
    return position


@lru_cache(maxsize=256)
def _read_heads(heads: bytes, flag: int) -> tuple[int, int, int]:
    """Status, service type and version; the status of a request is SUCCESS. ``flag``: what it is to be."""
    connection = _read(_CONN_HEADER, heads, 0)
    if connection.flag != flag:
        raise BadPayload(
            f"RpcConnHeader.flag: {connection.flag}, of a {'response' if flag else 'request'} it is {flag}"
        )
    status: int = RpcStatus.SUCCESS
    header: RequestHeader | ResponseHeader
    if flag == _REQUEST:
        header = _read(_REQUEST_HEADER, heads, 1 + heads[0])
    else:
        header = _read(_RESPONSE_HEADER, heads, 1 + heads[0])
        status = header.status
    version = _OLDEST if header.protocol_ver is None else header.protocol_ver
    return status, header.service_type or 0, version


@lru_cache(maxsize=256)
def _heads_of(flag: int, status: int, service_type: int, protocol_ver: int) -> bytes:
    out = bytearray()
    _delimited(RpcConnHeader(flag), _CONN_HEADER, out)
    if flag == _REQUEST:
        _delimited(RequestHeader(service_type, protocol_ver), _REQUEST_HEADER, out)
    else:
        _delimited(ResponseHeader(status, service_type, protocol_ver), _RESPONSE_HEADER, out)
    return bytes(out)


# ---- requests and replies ---------------------------------------------------------------------------------


def encode_call(call: RpcCall) -> bytes:
    """The message of a request. InvalidInput if a value does not fit its field."""
    out = bytearray(_heads_of(_REQUEST, RpcStatus.SUCCESS, call.service_type, call.protocol_ver))
    _delimited(RequestBody(call.method, call.timeout_ms, call.request), _REQUEST_BODY, out)
    return bytes(out)


def decode_call(message: bytes) -> RpcCall:
    """What a client asks. BadPayload if it is not a request; then ``FaultName.UNREADABLE.fault(text)`` is the reply."""
    end = _heads_end(message)
    _, service_type, version = _read_heads(message[:end], _REQUEST)
    body = _read(_REQUEST_BODY, message, end)
    timeout_ms = body.timeout if body.timeout is not None and body.timeout > 0 else DEFAULT_TIMEOUT_MS
    return RpcCall(body.method, body.request or b"", service_type, version, timeout_ms)


def encode_reply(reply: RpcAnswer | RpcFault) -> bytes:
    """The message of a reply. InvalidInput if a value does not fit its field."""
    if isinstance(reply, RpcAnswer):
        out = bytearray(_heads_of(_RESPONSE, RpcStatus.SUCCESS, reply.service_type, reply.protocol_ver))
        _delimited(RspResponseBody(reply.method, reply.data), _RESPONSE_BODY, out)
    else:
        status = RpcStatus.FATAL if reply.fatal else RpcStatus.ERROR
        out = bytearray(_heads_of(_RESPONSE, status, reply.service_type, reply.protocol_ver))
        _delimited(RspExceptionBody(reply.exception_name, reply.text), _EXCEPTION_BODY, out)
    return bytes(out)


def decode_reply(message: bytes) -> RpcAnswer | RpcFault:
    """What a client is answered. BadPayload if it is not a reply."""
    end = _heads_end(message)
    status, service_type, version = _read_heads(message[:end], _RESPONSE)
    if status == RpcStatus.SUCCESS:
        body = _read(_RESPONSE_BODY, message, end)
        return RpcAnswer(body.method, body.data or b"", service_type, version)
    if status not in (RpcStatus.ERROR, RpcStatus.FATAL):
        raise BadPayload(f"ResponseHeader.status: there is no status {status}")
    fault = _read(_EXCEPTION_BODY, message, end)
    return RpcFault(fault.exception_name, fault.stack_trace or "", status == RpcStatus.FATAL, service_type, version)
