"""The replica protocol in bytes: magic ``R``, version 2 (``docs/wire.md``, "R2").

Version 2 is version 1's messages in version 1's bytes, over a connection whose two sides have proved to each other that
they know the cluster's secret (``wire.authentication``). Version 1 had no proof, and is spoken with nobody any more.

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
    ReplicaRequest,
    SetLowWaterMark,
    State,
    StateReply,
    TimeFound,
    Times,
    Truncate,
    Truncated,
)
from waltz_ray.protocol.records import RECORD_OVERHEAD_BYTES, RecordBatch
from waltz_ray.protocol.times import NO_TIMES
from waltz_ray.wire.framing import MAGIC_REPLICA, frame_header
from waltz_ray.wire.primitives import MAX_LONG, BytesLike, Reader, Writer, record_parts
from waltz_ray.wire.table import MessageRow, MessageTable
from waltz_ray.wire.time_columns import read_times, time_bytes

__all__ = [
    "MAX_REPLICA_FRAME_BYTES",
    "REPLICA_TABLE",
    "REPLICA_VERSION",
    "REPLICA_VERSIONS",
    "append_frame_parts",
    "decode_replica",
    "encode_replica",
]

REPLICA_VERSION = 2
REPLICA_VERSIONS = (REPLICA_VERSION,)

MAX_REPLICA_FRAME_BYTES = 64 * 1024 * 1024
"""Of a payload, both ways. Nobody's setting: a record that was taken once has to be read for ever."""

_OWNED_OPEN = 17  # an Open that names its owner
_TIMED_APPEND = 19  # an Append with times
_LONGEST_OWNER_BYTES = 255
_REQUEST_TYPES = frozenset(REPLICA_TYPES[cls] for cls in get_args(ReplicaRequest))

_HEAD = struct.Struct(">Biq")
_ADDRESS = struct.Struct(">iq")
_LONG = struct.Struct(">q")
_REFUSAL = struct.Struct(">BBqq")
_APPENDED = struct.Struct(">iqq")
_APPENDED_BYTES = 1 + _APPENDED.size
_ONE_APPEND = struct.Struct(">iqiqqqii")
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


def _read_append(version: int, reader: Reader) -> Append:
    partition_id, session_id = reader.unpack(_ADDRESS)
    times = read_times(reader) if reader.type == _TIMED_APPEND else NO_TIMES
    first_id, lengths, records = reader.read_records()
    if times and not first_id <= times[0][0] <= times[-1][0] < first_id + len(lengths):
        reader.fail(f"time marks are of other records than [{first_id}, {first_id + len(lengths)})")
    return Append(partition_id, session_id, first_id, lengths, records, times)


def _write_append(version: int, message: Append) -> list[BytesLike]:
    number = _TIMED_APPEND if message.times else APPEND_REQUEST
    head = _HEAD.pack(number, message.partition_id, message.session_id)
    if message.times:
        head += time_bytes(message.times)
    return [head, *record_parts(message.first_id, message.lengths, message.records)]


def _read_records(version: int, reader: Reader) -> Records:
    partition_id, session_id = reader.unpack(_ADDRESS)
    return Records(partition_id, session_id, *reader.read_records())


def _write_records(version: int, message: Records) -> list[BytesLike]:
    head = _HEAD.pack(REPLICA_TYPES[Records], message.partition_id, message.session_id)
    return [head, *record_parts(message.first_id, message.lengths, message.records)]


def _read_marks(version: int, reader: Reader) -> Times:
    partition_id, session_id = reader.unpack(_ADDRESS)
    return Times(partition_id, session_id, reader.read_long(), read_times(reader))


def _write_marks(version: int, message: Times) -> list[BytesLike]:
    head = _HEAD.pack(REPLICA_TYPES[Times], message.partition_id, message.session_id)
    return [head + _LONG.pack(message.end_id) + time_bytes(message.times)]


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
    """One record with its time, as of a client that waits for each append."""
    if len(payload) < _ONE_APPEND_BYTES or payload[0] != _TIMED_APPEND:
        return None
    partition_id, session_id, marks, marked, time_ms, first_id, count, length = _ONE_APPEND.unpack_from(payload, 1)
    records = memoryview(payload)[_ONE_APPEND_BYTES:]
    fits = marks == count == 1 and RECORD_OVERHEAD_BYTES <= length == len(records)
    if fits and 0 <= first_id == marked < MAX_LONG and time_ms >= 0:
        times = ((first_id, time_ms),)
        return Append(partition_id, session_id, first_id, np.array((length,), np.int32), records, times)
    return None


REPLICA_TABLE: MessageTable[ReplicaMessage] = MessageTable(
    "replica protocol",
    (
        MessageRow(REPLICA_TYPES[Open], "Open", Open, REPLICA_VERSION, _read_open, _write_open),
        _numbers(StateReply, "qqqq?"),
        _numbers(State, ""),
        MessageRow(APPEND_REQUEST, "Append", Append, REPLICA_VERSION, _read_append, _write_append),
        _numbers(Appended, "q"),
        _numbers(Read, "qqi"),
        MessageRow(REPLICA_TYPES[Records], "Records", Records, REPLICA_VERSION, _read_records, _write_records),
        _numbers(Truncate, "q"),
        _numbers(Truncated, "q"),
        _numbers(SetLowWaterMark, "qq"),
        _numbers(LowWaterMarkSet, ""),
        _numbers(Close, ""),
        _numbers(Closed, ""),
        MessageRow(REPLICA_TYPES[Refused], "Refused", Refused, REPLICA_VERSION, _read_refused, _write_refused),
        MessageRow(_OWNED_OPEN, "Open with owner", Open, REPLICA_VERSION, _read_open, _write_open),
        MessageRow(_TIMED_APPEND, "Append with times", Append, REPLICA_VERSION, _read_append, _write_append),
        _numbers(ReadTimes, "qq"),
        MessageRow(REPLICA_TYPES[Times], "Times", Times, REPLICA_VERSION, _read_marks, _write_marks),
        _numbers(FindTime, "q"),
        _numbers(TimeFound, "q"),
        _numbers(Begin, "q"),
        _numbers(Begun, "q"),
        _numbers(FindExcess, "qq"),
        _numbers(ExcessFound, "q"),
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
    message = Append(partition_id, session_id, batch.first_id, batch.lengths, batch.records, batch.times)
    parts = encode_replica(message)
    return [frame_header(MAGIC_REPLICA, REPLICA_VERSION, sum(map(len, parts))), *parts]
