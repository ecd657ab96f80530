"""What happens to a partition on its server (events) and what it orders (effects), beside those of its session.

A connection is named by an opaque number; the shell owns the sockets. Every effect that waits ends in exactly
one event: ReadRoster in RosterRead; ReadFeed in FeedRead or FeedReadFailed; StartTimer in TimerFired; ConfirmSession,
per replica, in SessionConfirmed, ReplicaLost or ReplicaFenced; FeedAgain in FeedDue.
"""

from __future__ import annotations

from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import AppendedBatch as AppendedBatch
from waltz_ray.protocol.messages.client import FeedMode, LockFailureBatch, Mount, Mounted, NotReady, Rejected
from waltz_ray.protocol.messages.original import FlushResponse
from waltz_ray.protocol.records import AppendBatch, RecordBatch
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.session_types import AppendToReplicas, RangeRead, SessionEffect, SessionEvent
from waltz_ray.protocol.value import value

__all__ = [
    "NO_SUCH_SESSION",
    "AppendReceived",
    "Assigned",
    "ConfirmSession",
    "ConnectionClosed",
    "CreditReceived",
    "Effect",
    "EndTurn",
    "Event",
    "FeedAgain",
    "FeedDue",
    "FeedPaused",
    "FeedRead",
    "FeedReadFailed",
    "FeedResumed",
    "FlushReceived",
    "HEAVY",
    "MountReceived",
    "PartitionDropped",
    "PartitionReady",
    "ReadFeed",
    "ReadRoster",
    "RosterChanged",
    "RosterRead",
    "SendFeed",
    "SendMessage",
    "SessionConfirmed",
    "TrimMarkRaised",
    "TurnEnded",
    "Unassigned",
    "UnmountReceived",
]

NO_SUCH_SESSION = 0
"""Session ID in the timers that belong to the partition rather than to a session (sessions begin at 1)."""


# ---- events -------------------------------------------------------------------------------------------------


@value()
class Assigned:
    """ZooKeeper says that this partition belongs to this server. Comes again when ``partitions_here`` changes: the
    number of partitions of this server, which share its memory."""

    generation: int
    partitions_here: int = 1


@value()
class Unassigned:
    """The partition does not belong to this server, or does not any more."""

    reason: str


@value()
class TrimMarkRaised:
    """Records below ``first_id`` may be gone from now on, says ZooKeeper, on any replica."""

    first_id: int


@value()
class RosterChanged:
    """Another set of replicas was recorded for this partition: its server does not notice by itself."""


@value()
class RosterRead:
    roster: Roster
    version: int


@value()
class MountReceived:
    connection_id: int
    mount: Mount


@value()
class UnmountReceived:
    connection_id: int
    client_id: int


@value()
class ConnectionClosed:
    connection_id: int


@value(eq=False)
class AppendReceived:
    connection_id: int
    batch: AppendBatch


@value()
class TurnEnded:
    """The shell has handed over everything that was waiting in its sockets.

    ``now_ms``: the server's wall clock, in milliseconds since 1970; 0 = not known. What is admitted from here on bears
    this time, or that of the turn before if the clock has gone back.
    """

    now_ms: int = 0


@value()
class FlushReceived:
    connection_id: int
    req_id: ReqId


@value()
class CreditReceived:
    connection_id: int
    credit_bytes: int


@value()
class FeedPaused:
    """The connection's peer does not take what is sent to it: no more feed for it for now, whatever its credit."""

    connection_id: int


@value()
class FeedResumed:
    """A connection that had fallen behind has taken most of what was waiting for it."""

    connection_id: int


@value()
class FeedDue:
    """Other input and other partitions have had their turn: the next piece of the feed may go out."""


@value()
class FeedRead:
    """At least one record, from the ID that was asked for."""

    connection_id: int
    client_id: int
    batch: RecordBatch


@value()
class FeedReadFailed:
    connection_id: int
    client_id: int
    reason: str


@value()
class SessionConfirmed:
    """When the replica answered question ``number``, it had not accepted a session above ``session_id``."""

    session_id: int
    replica_id: int
    number: int


PartitionEvent = (
    Assigned
    | Unassigned
    | TrimMarkRaised
    | RosterChanged
    | RosterRead
    | MountReceived
    | UnmountReceived
    | ConnectionClosed
    | AppendReceived
    | TurnEnded
    | FlushReceived
    | CreditReceived
    | FeedPaused
    | FeedResumed
    | FeedDue
    | FeedRead
    | FeedReadFailed
    | SessionConfirmed
)
Event = PartitionEvent | SessionEvent


# ---- effects ------------------------------------------------------------------------------------------------


@value()
class ReadRoster:
    """Read the partition's record from ZooKeeper; keeps trying while ZooKeeper is away."""


ServerMessage = Mounted | Rejected | LockFailureBatch | NotReady | AppendedBatch | FlushResponse


@value()
class SendMessage:
    connection_id: int
    message: ServerMessage


@value()
class SendFeed:
    """Send one feed frame, encoded once, to all of ``connection_ids``."""

    connection_ids: tuple[int, ...]
    mode: FeedMode
    batch: RecordBatch


@value()
class ReadFeed:
    """Read records [first_id, end_id) (or the first about ``max_bytes`` of them) from a replica, for a subscriber."""

    connection_id: int
    client_id: int
    first_id: int
    end_id: int
    max_bytes: int


@value()
class EndTurn:
    """Something waits to be admitted: TurnEnded is to come, once, when what waits in the sockets has been handed over
    and what has been ordered is on its way."""


@value()
class FeedAgain:
    """Somebody can be told more: FeedDue is to come once what else waits has had its turn. One at a time."""


@value()
class ConfirmSession:
    """Ask each of these replicas whether ``session_id`` is still the highest it has accepted."""

    session_id: int
    replica_ids: tuple[int, ...]
    number: int


@value()
class PartitionReady:
    generation: int
    session_id: int
    high_water_mark: int


@value()
class PartitionDropped:
    reason: str


Effect = (
    ReadRoster
    | SendMessage
    | SendFeed
    | ReadFeed
    | EndTurn
    | FeedAgain
    | ConfirmSession
    | PartitionReady
    | PartitionDropped
    | SessionEffect
)

HEAVY: frozenset[type] = frozenset((AppendReceived, FeedRead, SendFeed, SendMessage, RangeRead, AppendToReplicas))
"""Those that hold records or columns."""
