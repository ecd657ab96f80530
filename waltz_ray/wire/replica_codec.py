"""The replica protocol in bytes: magic ``R``, version 1 (``docs/wire.md``, "R1").

Every message is ``byte type | int partition ID | long session ID | body``; what the messages mean is said where they
are declared (``waltz_ray.protocol.messages.replica``).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, get_args

import numpy as np

from waltz_ray.errors import WireError
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

__all__ = [
    "REPLICA_NAMES",
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
REPLICA_NAMES = {number: cls.__name__ for cls, number in REPLICA_TYPES.items()} | {_OWNED_OPEN: "Open with owner"}
_REQUEST_TYPES = frozenset(REPLICA_TYPES[cls] for cls in get_args(ReplicaRequest))

# Messages whose body is only numbers: the struct of the body, fields in the order of the class.
_FIXED: dict[type[Any], struct.Struct] = {
    State: struct.Struct(">"),
    Read: struct.Struct(">qqi"),
    Truncate: struct.Struct(">q"),
    SetLowWaterMark: struct.Struct(">qq"),
    Close: struct.Struct(">"),
    StateReply: struct.Struct(">qqqq?"),
    Appended: struct.Struct(">q"),
    Truncated: struct.Struct(">q"),
    LowWaterMarkSet: struct.Struct(">"),
    Closed: struct.Struct(">"),
}
_HEAD = struct.Struct(">Biq")
_ADDRESS = struct.Struct(">iq")
_LONG = struct.Struct(">q")
_REFUSAL = struct.Struct(">BBqq")


def _fixed_encoder(cls: type[Any]) -> Callable[[Any], bytes]:
    layout = struct.Struct(_HEAD.format + _FIXED[cls].format[1:])
    values = attrgetter(*(field.name for field in fields(cls)))
    number = REPLICA_TYPES[cls]
    return lambda message: layout.pack(number, *values(message))


_FIXED_ENCODERS = {cls: _fixed_encoder(cls) for cls in _FIXED}
_FIXED_DECODERS = {REPLICA_TYPES[cls]: (cls, struct.Struct(_ADDRESS.format + _FIXED[cls].format[1:])) for cls in _FIXED}

_APPENDED = struct.Struct(">iqq")
_APPENDED_BYTES = 1 + _APPENDED.size
_ONE_APPEND = struct.Struct(">iqqii")
_ONE_APPEND_BYTES = 1 + _ONE_APPEND.size


def encode_replica(message: ReplicaMessage) -> list[BytesLike]:
    """The payload in parts, to be joined once in the frame; record bytes are not copied.

    ``WireError`` if a number does not fit its place.
    """
    try:
        return _encode(message)
    except struct.error as error:
        raise WireError(f"{type(message).__name__} cannot be written: {error}") from None


def _encode(message: ReplicaMessage) -> list[BytesLike]:
    encoder = _FIXED_ENCODERS.get(type(message))
    if encoder is not None:
        return [encoder(message)]
    head = _HEAD.pack(REPLICA_TYPES[type(message)], message.partition_id, message.session_id)
    if isinstance(message, Append | Records):
        return [head, *record_parts(message.first_id, message.lengths, message.records)]
    if isinstance(message, Open):
        return [_encode_open(message)]
    assert isinstance(message, Refused)
    last_id = message.last_id
    writer = Writer(head, _REFUSAL.pack(message.request_type, message.code, message.current_session_id, last_id))
    writer.write_string(message.message)
    return [writer.to_bytes()]


def _encode_open(message: Open) -> bytes:
    number = _OWNED_OPEN if message.owner else REPLICA_TYPES[Open]
    writer = Writer(_HEAD.pack(number, message.partition_id, message.session_id), message.cluster_key.bytes)
    writer.write_long(message.joined_session_id)
    if message.owner:
        writer.write_string(message.owner)
    return writer.to_bytes()


def append_frame_parts(partition_id: int, session_id: int, batch: RecordBatch) -> list[BytesLike]:
    """A whole ``Append`` frame, header included: made once and sent to every replica. The body is not copied."""
    parts = encode_replica(Append(partition_id, session_id, batch.first_id, batch.lengths, batch.records))
    return [frame_header(MAGIC_REPLICA, REPLICA_VERSION, sum(map(len, parts))), *parts]


def decode_replica(payload: BytesLike) -> ReplicaMessage:
    """One message. Record bytes are a view of ``payload``, not a copy. ``WireError`` for anything else."""
    if len(payload) == _APPENDED_BYTES and payload[0] == REPLICA_TYPES[Appended]:  # three for every turn of a server
        return Appended(*_APPENDED.unpack_from(payload, 1))
    if len(payload) >= _ONE_APPEND_BYTES and payload[0] == APPEND_REQUEST:  # a client that waits for each append
        partition_id, session_id, first_id, count, length = _ONE_APPEND.unpack_from(payload, 1)
        records = memoryview(payload)[_ONE_APPEND_BYTES:]
        if count == 1 and RECORD_OVERHEAD_BYTES <= length == len(records) and 0 <= first_id < MAX_LONG:
            return Append(partition_id, session_id, first_id, np.array((length,), np.int32), records)
    reader = Reader(payload, REPLICA_NAMES)
    fixed = _FIXED_DECODERS.get(reader.type)
    if fixed is not None:
        cls, layout = fixed
        message: ReplicaMessage = cls(*reader.unpack(layout))
    elif reader.type in REPLICA_NAMES:
        message = _decode_variable(reader)
    else:
        raise WireError(f"message type {reader.type} is unknown in version {REPLICA_VERSION} of the replica protocol")
    reader.done()
    return message


def _decode_variable(reader: Reader) -> ReplicaMessage:
    partition_id, session_id = reader.unpack(_ADDRESS)
    if reader.type == REPLICA_TYPES[Append]:
        return Append(partition_id, session_id, *reader.read_records())
    if reader.type == REPLICA_TYPES[Records]:
        return Records(partition_id, session_id, *reader.read_records())
    if reader.type in (REPLICA_TYPES[Open], _OWNED_OPEN):
        return _decode_open(reader, partition_id, session_id)
    request_type, code, current_session_id, last_id = reader.unpack(_REFUSAL)
    if request_type not in _REQUEST_TYPES:
        reader.fail(f"refuses a request of type {request_type}, which is none")
    reader.check_enum(RefusalCode, code, "refusal code")
    message = reader.read_string()
    return Refused(partition_id, session_id, request_type, RefusalCode(code), current_session_id, last_id, message)


def _decode_open(reader: Reader, partition_id: int, session_id: int) -> Open:
    start = reader.need(16)
    key = uuid.UUID(bytes=bytes(reader.payload[start : start + 16]))
    (joined_session_id,) = reader.unpack(_LONG)
    owner = reader.read_string() if reader.type == _OWNED_OPEN else ""
    if len(owner.encode()) > _LONGEST_OWNER_BYTES or (not owner and reader.type == _OWNED_OPEN):
        reader.fail(f"names an owner of {len(owner.encode())} bytes, which must be 1 to {_LONGEST_OWNER_BYTES}")
    return Open(partition_id, session_id, key, joined_session_id, owner)
