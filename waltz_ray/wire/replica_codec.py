"""The replica protocol in bytes: magic ``R``, version 1 (``docs/wire.md``, "R1").

Every message is ``byte type | int partition ID | long session ID | body``; what the messages mean is said where they
are declared (``waltz_ray.protocol.messages.replica``).
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import fields
from operator import attrgetter
from typing import Any, get_args

import numpy as np

from waltz_ray.protocol.messages.replica import (
    APPEND_REQUEST,
    REPLICA_TYPES,
    Append,
    Appended,
    Close,
    Closed,
    LowWaterMarkSet,
    Open,
    Read,
    Records,
    RefusalCode,
    Refused,
    ReplicaMessage,
    ReplicaRequest,
    SetLowWaterMark,
    State,
    StateReply,
    Truncate,
    Truncated,
)
from waltz_ray.protocol.records import RECORD_OVERHEAD_BYTES, RecordBatch
from waltz_ray.wire.framing import MAGIC_REPLICA, frame_header
from waltz_ray.wire.primitives import MAX_LONG, BytesLike, Reader, Writer, record_parts
from waltz_ray.wire.table import MessageRow, MessageTable

__all__ = [
    "REPLICA_TABLE",
    "REPLICA_VERSION",
    "REPLICA_VERSIONS",
    "append_frame_parts",
    "decode_replica",
    "encode_replica",
]

REPLICA_VERSION = 1
REPLICA_VERSIONS = (REPLICA_VERSION,)

_OWNED_OPEN = 17  # an Open that names its owner
_LONGEST_OWNER_BYTES = 255
_REQUEST_TYPES = frozenset(REPLICA_TYPES[cls] for cls in get_args(ReplicaRequest))

_HEAD = struct.Struct(">Biq")
_ADDRESS = struct.Struct(">iq")
_LONG = struct.Struct(">q")
_REFUSAL = struct.Struct(">BBqq")
_APPENDED = struct.Struct(">iqq")
_APPENDED_BYTES = 1 + _APPENDED.size
_ONE_APPEND = struct.Struct(">iqqii")
_ONE_APPEND_BYTES = 1 + _ONE_APPEND.size


def _numbers(cls: type[Any], body: str) -> MessageRow:
    """A message whose body is only numbers, in the order of its fields."""
    number = REPLICA_TYPES[cls]
    layout, whole = struct.Struct(_ADDRESS.format + body), struct.Struct(_HEAD.format + body)
    values = attrgetter(*(field.name for field in fields(cls)))
    return MessageRow(
        number,
        cls.__name__,
        cls,
        REPLICA_VERSION,
        lambda _version, reader: cls(*reader.unpack(layout)),
        lambda _version, message: [whole.pack(number, *values(message))],
    )


def _records(cls: type[Append | Records]) -> MessageRow:
    number = REPLICA_TYPES[cls]

    def read(version: int, reader: Reader) -> Append | Records:
        partition_id, session_id = reader.unpack(_ADDRESS)
        return cls(partition_id, session_id, *reader.read_records())

    def write(version: int, message: Append | Records) -> list[BytesLike]:
        head = _HEAD.pack(number, message.partition_id, message.session_id)
        return [head, *record_parts(message.first_id, message.lengths, message.records)]

    return MessageRow(number, cls.__name__, cls, REPLICA_VERSION, read, write)


def _read_refused(version: int, reader: Reader) -> Refused:
    partition_id, session_id = reader.unpack(_ADDRESS)
    request_type, code, current_session_id, last_id = reader.unpack(_REFUSAL)
    if request_type not in _REQUEST_TYPES:
        reader.fail(f"refuses a request of type {request_type}, which is none")
    reader.check_enum(RefusalCode, code, "refusal code")
    message = reader.read_string()
    return Refused(partition_id, session_id, request_type, RefusalCode(code), current_session_id, last_id, message)


def _write_refused(version: int, message: Refused) -> list[BytesLike]:
    head = _HEAD.pack(REPLICA_TYPES[Refused], message.partition_id, message.session_id)
    said = _REFUSAL.pack(message.request_type, message.code, message.current_session_id, message.last_id)
    writer = Writer(head, said)
    writer.write_string(message.message)
    return [writer.to_bytes()]


def _read_open(version: int, reader: Reader) -> Open:
    partition_id, session_id = reader.unpack(_ADDRESS)
    start = reader.need(16)
    key = uuid.UUID(bytes=bytes(reader.payload[start : start + 16]))
    (joined_session_id,) = reader.unpack(_LONG)
    owner = reader.read_string() if reader.type == _OWNED_OPEN else ""
    if len(owner.encode()) > _LONGEST_OWNER_BYTES or (not owner and reader.type == _OWNED_OPEN):
        reader.fail(f"names an owner of {len(owner.encode())} bytes, which must be 1 to {_LONGEST_OWNER_BYTES}")
    return Open(partition_id, session_id, key, joined_session_id, owner)


def _write_open(version: int, message: Open) -> list[BytesLike]:
    number = _OWNED_OPEN if message.owner else REPLICA_TYPES[Open]
    writer = Writer(_HEAD.pack(number, message.partition_id, message.session_id), message.cluster_key.bytes)
    writer.write_long(message.joined_session_id)
    if message.owner:
        writer.write_string(message.owner)
    return [writer.to_bytes()]


def _read_one_appended(payload: BytesLike) -> Appended | None:
    """Three for every turn of a server."""
    if len(payload) != _APPENDED_BYTES or payload[0] != REPLICA_TYPES[Appended]:
        return None
    return Appended(*_APPENDED.unpack_from(payload, 1))


def _read_one_append(payload: BytesLike) -> Append | None:
    """One record, as of a client that waits for each append."""
    if len(payload) < _ONE_APPEND_BYTES or payload[0] != APPEND_REQUEST:
        return None
    partition_id, session_id, first_id, count, length = _ONE_APPEND.unpack_from(payload, 1)
    records = memoryview(payload)[_ONE_APPEND_BYTES:]
    if count == 1 and RECORD_OVERHEAD_BYTES <= length == len(records) and 0 <= first_id < MAX_LONG:
        return Append(partition_id, session_id, first_id, np.array((length,), np.int32), records)
    return None


REPLICA_TABLE: MessageTable[ReplicaMessage] = MessageTable(
    "replica protocol",
    (
        MessageRow(REPLICA_TYPES[Open], "Open", Open, REPLICA_VERSION, _read_open, _write_open),
        _numbers(StateReply, "qqqq?"),
        _numbers(State, ""),
        _records(Append),
        _numbers(Appended, "q"),
        _numbers(Read, "qqi"),
        _records(Records),
        _numbers(Truncate, "q"),
        _numbers(Truncated, "q"),
        _numbers(SetLowWaterMark, "qq"),
        _numbers(LowWaterMarkSet, ""),
        _numbers(Close, ""),
        _numbers(Closed, ""),
        MessageRow(REPLICA_TYPES[Refused], "Refused", Refused, REPLICA_VERSION, _read_refused, _write_refused),
        MessageRow(_OWNED_OPEN, "Open with owner", Open, REPLICA_VERSION, _read_open, _write_open),
    ),
    fast=((REPLICA_VERSION, _read_one_appended), (REPLICA_VERSION, _read_one_append)),
)


def encode_replica(message: ReplicaMessage) -> list[BytesLike]:
    """The payload in parts, to be joined once in the frame; record bytes are not copied.

    ``WireError`` if a number does not fit its place.
    """
    return REPLICA_TABLE.encode(REPLICA_VERSION, message)


def decode_replica(payload: BytesLike) -> ReplicaMessage:
    """One message. Record bytes are a view of ``payload``, not a copy. ``WireError`` for anything else."""
    return REPLICA_TABLE.decode(REPLICA_VERSION, payload)


def append_frame_parts(partition_id: int, session_id: int, batch: RecordBatch) -> list[BytesLike]:
    """A whole ``Append`` frame, header included: made once and sent to every replica. The body is not copied."""
    parts = encode_replica(Append(partition_id, session_id, batch.first_id, batch.lengths, batch.records))
    return [frame_header(MAGIC_REPLICA, REPLICA_VERSION, sum(map(len, parts))), *parts]
