"""The messages of version 5 of the client protocol: many records to a frame, as packed columns.

``APPEND_BATCH`` is ``protocol.records.AppendBatch`` itself; the others are here. Columns are native-endian numpy
arrays of one length n. The bytes are in ``docs/wire.md``, "Version 5", and ``waltz_ray.wire.client_codec``; the door
is ``waltz_ray.wire.codec``.

The fate of an append: exactly one of its entry in the feed (``FeedBatch``, ``FeedRecords`` or ``AppendedBatch``),
``LockFailureBatch`` and ``Rejected``; or, when the connection or the partition is lost first, none until the next
``Mounted``: the feed up to that mount's mark shows what has committed; what it does not show never will (what the
server owes for that: ``docs/wire.md``, "Rules").
"""

from __future__ import annotations

from dataclasses import field, replace
from enum import IntEnum

from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.records import AppendBatch, Int32s, Int64s, RecordBatch
from waltz_ray.protocol.times import TimeMarks
from waltz_ray.protocol.value import value

__all__ = [
    "FROM_NOW",
    "AppendedBatch",
    "BatchMessage",
    "ChannelClosed",
    "DataRangeRequest",
    "DataRangeResponse",
    "ErrorMessage",
    "FeedBatch",
    "FeedCredit",
    "FeedMode",
    "FeedRecords",
    "FirstIdAtRequest",
    "FirstIdAtResponse",
    "HindranceRequest",
    "HindranceResponse",
    "InChannel",
    "LockFailureBatch",
    "Mount",
    "Mounted",
    "NotAllowed",
    "NotReady",
    "PartitionStateRequest",
    "PartitionStateResponse",
    "RecordsTrimmed",
    "Rejected",
    "RejectionCode",
    "ShowToken",
    "TimesRequest",
    "TimesResponse",
    "Unmount",
]


FROM_NOW = -2
"""Client mark of an OWN mount with nothing pending: its feed begins at the log's end."""


class FeedMode(IntEnum):
    """What a mounted client is told about committed transactions."""

    NONE = 0  # nothing: it only appends, and learns of no success
    HEADERS = 1  # FeedBatch: every transaction, without its data
    RECORDS = 2  # FeedRecords: every transaction with its data
    OWN = 3  # AppendedBatch: the client's own transactions, and the mark


class RejectionCode(IntEnum):
    """Why appends were refused. None of them is, or ever will be, in the log."""

    WRONG_GENERATION = 1
    NOT_MOUNTED = 2
    SUPERSEDED = 3  # a newer connection of the same client is mounted
    QUEUE_FULL = 4
    CLOSING = 5
    BAD_CHECKSUM = 6
    TOO_LARGE = 7
    NOT_ALLOWED = 8  # of a mount, too: no sequence numbers then


@value(eq=False)
class FeedBatch:
    """Committed transactions first_id, first_id + 1, ...: who asked for each, and its header. Columns of n."""

    partition_id: int
    first_id: int
    client_ids: Int32s
    generations: Int32s
    sequence_numbers: Int32s
    headers: Int32s

    def __len__(self) -> int:
        return len(self.headers)

    def called(self, partition_id: int) -> FeedBatch:
        """The same, as of a partition of another number."""
        return replace(self, partition_id=partition_id)


@value(eq=False)
class FeedRecords:
    """Committed transactions with their data, as they lie on disk."""

    batch: RecordBatch


@value(eq=False)
class AppendedBatch:
    """The receiver's own appends that have committed, and the server's high-water mark. n may be 0."""

    partition_id: int
    high_water_mark: int
    sequence_numbers: Int32s
    transaction_ids: Int64s


@value(eq=False)
class Rejected:
    """Appends that were not taken. ``generation`` is the partition's current one, -1 if this server can't say."""

    partition_id: int
    generation: int
    code: RejectionCode
    sequence_numbers: Int32s
    message: str


@value(eq=False)
class LockFailureBatch:
    """Appends that failed their lock check, each against the transaction of the same position."""

    partition_id: int
    sequence_numbers: Int32s
    transaction_ids: Int64s


@value()
class Mount:
    """Attach the client of ``req_id`` to its partition; feed what comes after ``client_mark``.

    ``credit_bytes``: how many bytes of feed may be sent before the first ``FeedCredit``. ``in_order``: after an append
    was refused with QUEUE_FULL, those behind it are, too, until the client shows that it knows (docs/wire.md, "Rules").
    """

    req_id: ReqId
    client_mark: int
    feed: FeedMode
    credit_bytes: int
    in_order: bool = False


@value()
class Mounted:
    """Answer to ``Mount``, sent once the feed has reached ``high_water_mark`` (the server's as of the mount).

    With TRIMMED, ``high_water_mark`` is that of a client which has seen all that is gone: the lowest that can mount.
    """

    req_id: ReqId
    state: MountState
    generation: int
    high_water_mark: int


@value()
class FeedCredit:
    """``credit_bytes`` more bytes of feed may be sent."""

    partition_id: int
    credit_bytes: int


@value()
class DataRangeRequest:
    """Transactions [first_id, end_id), at most about ``max_bytes``. ``request_id`` comes back in the answer."""

    request_id: int
    partition_id: int
    first_id: int
    end_id: int
    max_bytes: int


@value(eq=False)
class DataRangeResponse:
    """Transactions from the first one asked for, possibly fewer, none if it is above the mark; or an error.

    Exactly one of ``batch`` and ``error`` is given.
    """

    request_id: int
    batch: RecordBatch | None
    high_water_mark: int
    error: str | None


@value()
class RecordsTrimmed:
    """Answer to a ``DataRangeRequest`` for what was trimmed away: the first transaction there is, ``first_id``."""

    request_id: int
    partition_id: int
    first_id: int


@value()
class NotReady:
    """The server has lost or is leaving the partition. What has no fate yet stays open until the next ``Mounted``."""

    partition_id: int
    generation: int


@value()
class ErrorMessage:
    """Why the connection is about to be closed."""

    message: str


@value()
class Unmount:
    """The client has done with the partition."""

    partition_id: int
    client_id: int


@value(eq=False)
class InChannel:
    """A message to or from one of several clients that share a connection (docs/wire.md, "Channels")."""

    channel: int
    message: memoryview
    """Its payload, the type byte first; never another ``InChannel``."""


@value()
class ChannelClosed:
    """The client of this channel has gone."""

    channel: int


@value()
class PartitionStateRequest:
    """How is this partition? ``request_id`` comes back in the answer."""

    request_id: int
    partition_id: int


@value()
class PartitionStateResponse:
    """-1 stands for a generation, session or mark that this server does not know."""

    request_id: int
    partition_id: int
    generation: int
    session_id: int
    high_water_mark: int
    state: MountState


@value()
class TimesRequest:
    """When were the transactions [first_id, end_id) appended? ``request_id`` comes back in the answer."""

    request_id: int
    partition_id: int
    first_id: int
    end_id: int


@value()
class TimesResponse:
    """``times``: of the transactions up to ``end_id`` (excluded), possibly fewer than asked for; or an error.

    Exactly one of ``times`` and ``error`` is given.
    """

    request_id: int
    end_id: int
    times: TimeMarks | None
    error: str | None


@value()
class FirstIdAtRequest:
    """Which is the first transaction that may have been appended at ``time_ms`` or later?"""

    request_id: int
    partition_id: int
    time_ms: int


@value()
class FirstIdAtResponse:
    """``first_id``: of a committed transaction, or of the next one that will be; or an error.

    Exactly one of ``first_id`` and ``error`` is given.
    """

    request_id: int
    first_id: int | None
    error: str | None


@value()
class HindranceRequest:
    """What keeps this partition from taking appends? ``request_id`` comes back in the answer."""

    request_id: int
    partition_id: int


@value()
class HindranceResponse:
    """``reason``: one line for people, the same as long as it stays the same; "" = nothing that the server knows of."""

    request_id: int
    partition_id: int
    reason: str


@value()
class ShowToken:
    """Who the client is, before anything else. It is not answered: what is not allowed then is refused."""

    token: str = field(repr=False)


@value()
class NotAllowed:
    """The client has not the right to ask this: request ``request_id``, or -1 of a message without such a number, of
    that partition (-1: of none)."""

    request_id: int
    partition_id: int
    message: str


BatchMessage = (
    AppendBatch
    | FeedBatch
    | FeedRecords
    | AppendedBatch
    | Rejected
    | LockFailureBatch
    | Mount
    | Mounted
    | FeedCredit
    | DataRangeRequest
    | DataRangeResponse
    | NotReady
    | ErrorMessage
    | Unmount
    | PartitionStateRequest
    | PartitionStateResponse
    | TimesRequest
    | TimesResponse
    | FirstIdAtRequest
    | FirstIdAtResponse
    | HindranceRequest
    | HindranceResponse
    | RecordsTrimmed
    | InChannel
    | ChannelClosed
    | ShowToken
    | NotAllowed
)
