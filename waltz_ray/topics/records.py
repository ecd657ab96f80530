"""The bytes of a topic's transactions, as docs/formats.md, "Topic records" has them: messages, and who owns it. Pure.

Big-endian, packed. The first byte says what it is, the second in which version. The transaction's header is the hash of
a message's type, so that a filter looks at no data of what it does not want; of two types with the same hash the data
tells which it is. Records of ownership have a header of their own, and no consumer is ever given one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from waltz_ray.errors import BadPayload, InvalidInput
from waltz_ray.protocol.value import value
from waltz_ray.topics.payload import check_sum, java_hash

__all__ = [
    "MAX_TYPE_BYTES",
    "OWNERSHIP_HEADER",
    "SlotOwn",
    "SlotRelease",
    "TopicMessage",
    "TopicRecord",
    "decode_topic_record",
    "encode_messages",
    "encode_topic_record",
    "header_of_type",
    "is_message",
    "message_parts",
    "topic_header",
]

OWNERSHIP_HEADER = -(1 << 31)
"""Of records of ownership. A message type may have the same hash: the first byte of the data is what counts."""

MAX_TYPE_BYTES = 1024
"""Of a message's type, in UTF-8."""

_VERSION = 0
_MESSAGE, _OWN, _RELEASE = 1, 2, 3
_HEAD = struct.Struct(">BBiiiqHB")
_OWNER = struct.Struct(">BBIIQ")
_INT = struct.Struct(">i")
_CHECK_SUM_AT = 6


@value()
class TopicMessage:
    """A message as it is kept. ``payload`` (with the attributes, if bit 0 of ``flag`` says so), ``flag`` and
    ``sent_addr`` are the producer's; ``check_sum`` is right, also where the producer has computed none.
    """

    payload: bytes
    flag: int
    check_sum: int
    sent_addr: int
    append_ms: int
    """When its owner, or a native producer, took it, milliseconds since 1970."""
    msg_type: str = ""
    msg_time: str = ""


@value()
class SlotOwn:
    """From here on ``actor``, under its registration ``incarnation``, serves the partition's slot."""

    slot: int
    actor: int
    incarnation: str
    epoch: int


@value()
class SlotRelease:
    """It does so no more, and nothing of it is under way."""

    slot: int
    actor: int
    incarnation: str
    epoch: int


TopicRecord = TopicMessage | SlotOwn | SlotRelease


def header_of_type(msg_type: str | None) -> int:
    """The header of messages of a type; 0: of none."""
    return java_hash(msg_type) if msg_type else 0


def topic_header(record: TopicRecord) -> int:
    """The header of the transaction that has the record."""
    return header_of_type(record.msg_type) if isinstance(record, TopicMessage) else OWNERSHIP_HEADER


def is_message(data: bytes | memoryview) -> bool:
    """Whether a transaction's data is a message, by its first byte."""
    return bool(data) and data[0] == _MESSAGE


def encode_topic_record(record: TopicRecord) -> bytes:
    """InvalidInput if a type or a time is longer than it may be, or no text."""
    if isinstance(record, TopicMessage):
        msg_type = _packed(record.msg_type, "a message type", MAX_TYPE_BYTES)
        msg_time = _packed(record.msg_time, "a message's time", 255)
        head = _HEAD.pack(
            _MESSAGE,
            _VERSION,
            record.flag,
            record.check_sum,
            record.sent_addr,
            record.append_ms,
            len(msg_type),
            len(msg_time),
        )
        return b"".join((head, msg_type, msg_time, record.payload))
    kind = _OWN if isinstance(record, SlotOwn) else _RELEASE
    return _OWNER.pack(kind, _VERSION, record.slot, record.actor, record.epoch) + record.incarnation.encode()


def encode_messages(payloads: Sequence[bytes], msg_type: str, sent_addr: int, append_ms: int) -> list[bytes]:
    """``encode_topic_record`` of many messages of one type, without attributes and time. InvalidInput."""
    packed = _packed(msg_type, "a message type", MAX_TYPE_BYTES)
    head = _HEAD.pack(_MESSAGE, _VERSION, 0, 0, sent_addr, append_ms, len(packed), 0)
    before, behind, join = head[:_CHECK_SUM_AT], head[_CHECK_SUM_AT + 4 :] + packed, b"".join
    return [join((before, _INT.pack(check_sum(payload)), behind, payload)) for payload in payloads]


def decode_topic_record(data: bytes | memoryview) -> TopicRecord:
    """BadPayload if it is no record of a topic: somebody else has appended to its space."""
    kind = data[0] if data else 0
    if kind not in (_MESSAGE, _OWN, _RELEASE):
        raise BadPayload(f"{bytes(data[:16])!r} is no record of a topic")
    head = _HEAD if kind == _MESSAGE else _OWNER
    if len(data) < head.size:
        raise BadPayload(f"a record of a topic has {len(data)} bytes, its head alone {head.size}")
    if data[1] != _VERSION:
        raise BadPayload(f"a record of version {data[1]}, which this release does not know")
    if kind != _MESSAGE:
        _, _, slot, actor, epoch = _OWNER.unpack_from(data)
        incarnation = bytes(data[_OWNER.size :]).decode(errors="replace")
        return (SlotOwn if kind == _OWN else SlotRelease)(slot, actor, incarnation, epoch)
    _, _, flag, check_sum, sent_addr, append_ms, of_type, of_time = _HEAD.unpack_from(data)
    time_at = _HEAD.size + of_type
    payload_at = time_at + of_time
    if payload_at > len(data):
        raise BadPayload(f"a message of {len(data)} bytes names {payload_at} bytes of type and time")
    return TopicMessage(
        bytes(data[payload_at:]),
        flag,
        check_sum,
        sent_addr,
        append_ms,
        bytes(data[_HEAD.size : time_at]).decode(errors="replace"),
        bytes(data[time_at:payload_at]).decode(errors="replace"),
    )


def message_parts(data: memoryview) -> tuple[bytes, int, int, str, str] | None:
    """What a consumer is given of a message: payload, flag, append_ms, type, time; None: it is no message. As
    ``decode_topic_record``, for who goes through many."""
    if len(data) < _HEAD.size:
        return None
    kind, version, flag, _, _, append_ms, of_type, of_time = _HEAD.unpack_from(data)
    payload_at = _HEAD.size + of_type + of_time
    if kind != _MESSAGE or version != _VERSION or payload_at > len(data):
        return None
    if not of_type and not of_time:
        return bytes(data[payload_at:]), flag, append_ms, "", ""
    msg_type = str(data[_HEAD.size : _HEAD.size + of_type], errors="replace")
    return (
        bytes(data[payload_at:]),
        flag,
        append_ms,
        msg_type,
        str(data[payload_at - of_time : payload_at], errors="replace"),
    )


def _packed(text: str, what: str, most: int) -> bytes:
    try:
        packed = text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} is no Unicode text: {text[:40]!a}") from None
    if len(packed) > most:
        raise InvalidInput(f"{what} of {len(packed)} bytes: {most} are the most")
    return packed
