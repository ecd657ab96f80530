"""Server to replica and back: magic ``R``, version 1 (``docs/wire.md``, "R1").

Every message is ``byte type | int partition ID | long session ID | body``. Requests have odd types; a reply carries
the partition and the session of its request, so replies can be told apart on a connection that serves many
partitions. A request is answered by the reply of the next even type or by ``Refused``. Appends are pipelined:
``Appended`` is cumulative, one may answer many.

Lengths are those of whole records and ``records`` their bytes as on disk (``protocol.records``): the same bytes go
to every replica, and nobody on the way looks at a single record.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import fields
from enum import IntEnum
from operator import attrgetter
from typing import Any

import numpy as np

from waltz_ray.errors import WireError
from waltz_ray.protocol.records import RECORD_OVERHEAD_BYTES, Int32s, RecordBatch
from waltz_ray.protocol.value import value
from waltz_ray.wire.framing import MAGIC_REPLICA, frame_header
from waltz_ray.wire.primitives import MAX_LONG, BytesLike, Reader, Writer, record_parts

__all__ = [
    "APPEND_REQUEST",
    "OPEN_REQUEST",
    "REPLICA_NAMES",
    "REPLICA_VERSION",
    "REPLICA_VERSIONS",
    "STATE_REQUEST",
    "Append",
    "Appended",
    "Close",
    "Closed",
    "LowWaterMarkSet",
    "Open",
    "Read",
    "Records",
    "RefusalCode",
    "Refused",
    "ReplicaMessage",
    "ReplicaReply",
    "ReplicaRequest",
    "SetLowWaterMark",
    "State",
    "StateReply",
    "Truncate",
    "Truncated",
    "append_frame_parts",
    "decode_replica",
    "encode_replica",
]

REPLICA_VERSION = 1
REPLICA_VERSIONS = (REPLICA_VERSION,)


class RefusalCode(IntEnum):
    """Why a replica said no."""

    FENCED = 1  # current_session_id is higher than the request's
    NOT_CONTIGUOUS = 2  # the append does not begin at last_id + 1
    WRONG_CLUSTER = 3
    DAMAGED = 4  # this partition of this replica is not served
    NOT_OPEN = 5  # no session has been opened for the partition since the replica started
    DISK_FULL = 6
    UNKNOWN_PARTITION = 7
    LOST_FILES = 8  # the replica remembers a lower session than the one ZooKeeper says it has joined
    OTHER_OWNER = 9  # the session was opened here by somebody else, who took the same number
    NO_RESOURCES = 10  # no file handles or memory just now; the log is whole, the same request may succeed later
    INVALID_REQUEST = 11  # what no server of this cluster can mean: a session absurdly far ahead of the replica's


@value()
class Open:
    """Accept session ``session_id``, refuse all lower ones from now on, and tell your state: ``StateReply``.

    ``joined_session_id`` is the session ZooKeeper says this replica has joined (-1 = none). A replica that remembers
    a lower one has lost its files: it refuses, changes nothing, and so can never vote with a log that forgot records.

    ``owner`` (in UTF-8 at most 255 bytes; "" = not told, an Open of type 1) names the attempt that took the session. A
    replica refuses a second owner of the session that it has open.
    """

    partition_id: int
    session_id: int
    cluster_key: uuid.UUID
    joined_session_id: int = -1
    owner: str = ""


@value()
class State:
    """Tell your state, change nothing: ``StateReply``."""

    partition_id: int
    session_id: int


@value(eq=False)
class Append:
    """Write these records after your last one, flush, and say how far you are: ``Appended``."""

    partition_id: int
    session_id: int
    first_id: int
    lengths: Int32s
    records: memoryview | bytes

    @property
    def batch(self) -> RecordBatch:
        return RecordBatch(self.partition_id, self.first_id, self.lengths, self.records)


@value()
class Read:
    """Send records [first_id, end_id), at most about ``max_bytes`` (but one at least): ``Records``."""

    partition_id: int
    session_id: int
    first_id: int
    end_id: int
    max_bytes: int


@value()
class Truncate:
    """Drop every record above ``last_id``: ``Truncated``."""

    partition_id: int
    session_id: int
    last_id: int


@value()
class SetLowWaterMark:
    """Keep both marks for this session, durably: ``LowWaterMarkSet``."""

    partition_id: int
    session_id: int
    low_water_mark: int
    local_low_water_mark: int


@value()
class Close:
    """This server has done with the partition: ``Closed``."""

    partition_id: int
    session_id: int


@value()
class StateReply:
    """``previous_session_id``: the session whose marks these are; ``last_id``: the last valid record, -1 = none."""

    partition_id: int
    session_id: int
    previous_session_id: int
    low_water_mark: int
    local_low_water_mark: int
    last_id: int
    damaged: bool


@value()
class Appended:
    """Every record up to ``last_id`` is on disk and flushed."""

    partition_id: int
    session_id: int
    last_id: int


@value(eq=False)
class Records:
    """Records from ``first_id`` on, possibly fewer than asked for."""

    partition_id: int
    session_id: int
    first_id: int
    lengths: Int32s
    records: memoryview | bytes

    @property
    def batch(self) -> RecordBatch:
        return RecordBatch(self.partition_id, self.first_id, self.lengths, self.records)


@value()
class Truncated:
    """``last_id``: the last record that is left, -1 = none."""

    partition_id: int
    session_id: int
    last_id: int


@value()
class LowWaterMarkSet:
    """The marks are on disk."""

    partition_id: int
    session_id: int


@value()
class Closed:
    """The replica holds nothing open for this session."""

    partition_id: int
    session_id: int


@value()
class Refused:
    """No, to a request of ``request_type``; nothing was changed. ``session_id`` is the request's.

    ``current_session_id``: the highest the replica has accepted; ``last_id``: its last record. -1 = unknown or none.
    """

    partition_id: int
    session_id: int
    request_type: int
    code: RefusalCode
    current_session_id: int
    last_id: int
    message: str


ReplicaRequest = Open | State | Append | Read | Truncate | SetLowWaterMark | Close
ReplicaReply = StateReply | Appended | Records | Truncated | LowWaterMarkSet | Closed | Refused
ReplicaMessage = ReplicaRequest | ReplicaReply

_TYPES: dict[type[Any], int] = {
    Open: 1,
    StateReply: 2,
    State: 3,
    Append: 5,
    Appended: 6,
    Read: 7,
    Records: 8,
    Truncate: 9,
    Truncated: 10,
    SetLowWaterMark: 11,
    LowWaterMarkSet: 12,
    Close: 13,
    Closed: 14,
    Refused: 15,
}
_OWNED_OPEN = 17  # an Open that names its owner
_LONGEST_OWNER_BYTES = 255
OPEN_REQUEST, STATE_REQUEST, APPEND_REQUEST = _TYPES[Open], _TYPES[State], _TYPES[Append]
REPLICA_NAMES = {number: cls.__name__ for cls, number in _TYPES.items()} | {_OWNED_OPEN: "Open with owner"}
_REQUEST_TYPES = frozenset((1, 3, 5, 7, 9, 11, 13))

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
    number = _TYPES[cls]
    return lambda message: layout.pack(number, *values(message))


_FIXED_ENCODERS = {cls: _fixed_encoder(cls) for cls in _FIXED}
_FIXED_DECODERS = {_TYPES[cls]: (cls, struct.Struct(_ADDRESS.format + _FIXED[cls].format[1:])) for cls in _FIXED}

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
    head = _HEAD.pack(_TYPES[type(message)], message.partition_id, message.session_id)
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
    number = _OWNED_OPEN if message.owner else _TYPES[Open]
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
    if len(payload) == _APPENDED_BYTES and payload[0] == _TYPES[Appended]:  # three for every turn of a server
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
    if reader.type == _TYPES[Append]:
        return Append(partition_id, session_id, *reader.read_records())
    if reader.type == _TYPES[Records]:
        return Records(partition_id, session_id, *reader.read_records())
    if reader.type in (_TYPES[Open], _OWNED_OPEN):
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
