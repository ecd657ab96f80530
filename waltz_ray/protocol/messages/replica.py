"""The messages between a server and a replica: magic ``R``, version 2 (``docs/wire.md``, "R2").

Requests have odd types, replies even ones; ``Refused`` answers any request. Each carries the partition and the session
of its request, so replies can be told apart on a connection that serves many partitions. Appends are pipelined:
``Appended`` is cumulative, one may answer many. The bytes are in ``waltz_ray.wire.replica_codec``.

``lengths`` are those of whole records and ``records`` their bytes as on disk (``protocol.records``): the same bytes go
to every replica, and nobody on the way looks at a single record.
"""

from __future__ import annotations

import uuid
from enum import IntEnum
from typing import Any

from waltz_ray.protocol.records import Int32s, RecordBatch
from waltz_ray.protocol.times import NO_TIMES, TimeMarks
from waltz_ray.protocol.value import value

__all__ = [
    "APPEND_REQUEST",
    "OPEN_REQUEST",
    "REPLICA_TYPES",
    "STATE_REQUEST",
    "Append",
    "Appended",
    "Begin",
    "Begun",
    "Close",
    "Closed",
    "ExcessFound",
    "FindExcess",
    "FindTime",
    "LowWaterMarkSet",
    "Open",
    "Read",
    "ReadTimes",
    "Records",
    "RefusalCode",
    "Refused",
    "ReplicaMessage",
    "ReplicaReply",
    "ReplicaRequest",
    "SetLowWaterMark",
    "State",
    "StateReply",
    "TimeFound",
    "Times",
    "Truncate",
    "Truncated",
]


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
    INVALID_REQUEST = 11  # what no server of this cluster can mean: a session absurdly far ahead of the replica's, or
    # records that are not what their CRCs say
    TRIMMED = 12  # the records asked for are below where this log begins; ``last_id``: the last that is gone
    ROTTEN = 13  # these records have rotted here and are fetched from a peer; everything else is served
    NOT_ALLOWED = 14  # who asks has proved to be a reader, and this changes something


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
    """Write these records after your last one, flush, and say how far you are: ``Appended``.

    ``times``: when they were appended to the log (none = not told, an Append of type 5).
    """

    partition_id: int
    session_id: int
    first_id: int
    lengths: Int32s
    records: memoryview | bytes
    times: TimeMarks = NO_TIMES

    @property
    def batch(self) -> RecordBatch:
        return RecordBatch(self.partition_id, self.first_id, self.lengths, self.records, times=self.times)


@value()
class Read:
    """Send records [first_id, end_id), at most about ``max_bytes`` (but one at least): ``Records``."""

    partition_id: int
    session_id: int
    first_id: int
    end_id: int
    max_bytes: int


@value()
class ReadTimes:
    """Say when the records [first_id, end_id) were appended: ``Times``."""

    partition_id: int
    session_id: int
    first_id: int
    end_id: int


@value()
class FindTime:
    """Say from which record on all were appended at ``time_ms`` or later: ``TimeFound``."""

    partition_id: int
    session_id: int
    time_ms: int


@value()
class Truncate:
    """Drop every record above ``last_id``: ``Truncated``."""

    partition_id: int
    session_id: int
    last_id: int


@value()
class Begin:
    """Give up every record and go on as an empty log with ``first_id``, for what is before that was trimmed away where
    you would be sent it from: ``Begun``."""

    partition_id: int
    session_id: int
    first_id: int


@value()
class FindExcess:
    """Say from which record on to keep, if records older than ``age_ms`` may go, and what is more than ``most_bytes``
    of segments (-1 = whatever that is): ``ExcessFound``. By your own clock."""

    partition_id: int
    session_id: int
    age_ms: int
    most_bytes: int


@value()
class SetLowWaterMark:
    """Keep both marks for this session, durably: ``LowWaterMarkSet``."""

    partition_id: int
    session_id: int
    low_water_mark: int
    local_low_water_mark: int


@value()
class Close:
    """The server has done with the partition; answered by ``Closed``."""

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
class Times:
    """The marks of the records up to ``end_id`` (excluded), which is less than was asked for if they are too many."""

    partition_id: int
    session_id: int
    end_id: int
    times: TimeMarks


@value()
class TimeFound:
    """Every record that was appended at the time asked for, or later, is ``first_id`` or behind it; the log's next ID
    if there is none."""

    partition_id: int
    session_id: int
    first_id: int


@value()
class Truncated:
    """``last_id``: the last record that is left, -1 = none."""

    partition_id: int
    session_id: int
    last_id: int


@value()
class Begun:
    """The log is empty; its first record will be ``first_id``."""

    partition_id: int
    session_id: int
    first_id: int


@value()
class ExcessFound:
    """Everything before ``first_id`` may go, as far as this replica knows."""

    partition_id: int
    session_id: int
    first_id: int


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

    ``current_session_id``: the highest the replica has accepted; ``last_id``: its last record (of TRIMMED: the last
    that is gone). -1 = unknown or none.
    """

    partition_id: int
    session_id: int
    request_type: int
    code: RefusalCode
    current_session_id: int
    last_id: int
    message: str


ReplicaRequest = (
    Open | State | Append | Read | ReadTimes | FindTime | FindExcess | Truncate | Begin | SetLowWaterMark | Close
)
ReplicaReply = (
    StateReply
    | Appended
    | Records
    | Times
    | TimeFound
    | ExcessFound
    | Truncated
    | Begun
    | LowWaterMarkSet
    | Closed
    | Refused
)
ReplicaMessage = ReplicaRequest | ReplicaReply

REPLICA_TYPES: dict[type[Any], int] = {
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
    ReadTimes: 21,
    Times: 22,
    FindTime: 23,
    TimeFound: 24,
    Begin: 25,
    Begun: 26,
    FindExcess: 27,
    ExcessFound: 28,
}
"""The number of each message. An Open that names its owner, and an Append with times, have others, which only the codec
knows."""

OPEN_REQUEST, STATE_REQUEST, APPEND_REQUEST = REPLICA_TYPES[Open], REPLICA_TYPES[State], REPLICA_TYPES[Append]
