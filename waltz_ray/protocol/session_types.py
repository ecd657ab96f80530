"""What happens to a session (events, past facts) and what it orders (effects).

Every effect that waits ends in exactly one event:

====================  ==============================================================================
effect                answered by one of
====================  ==============================================================================
OpenReplica           ReplicaOpened, ReplicaLost, ReplicaFenced
TruncateReplica       ReplicaTruncated, ReplicaLost, ReplicaFenced
BeginReplica          ReplicaTruncated, ReplicaLost, ReplicaFenced
SetReplicaMark        ReplicaMarked, ReplicaLost, ReplicaFenced
ReadRange             RangeRead, RangeReadFailed
AppendToReplicas      ReplicaAppended (cumulative), ReplicaLost, ReplicaFenced
WriteRoster           RosterWritten, RosterConflict
StartTimer            TimerFired
====================  ==============================================================================

After ReplicaLost a replica is not ordered anything until ReplicaAvailable says that its link works again.
Events of a session carry its ID; those of a session that is over are dropped by the partition machine.
"""

from __future__ import annotations

from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.value import value

__all__ = [
    "AppendToReplicas",
    "BeginReplica",
    "Committed",
    "OpenReplica",
    "RangeRead",
    "RangeReadFailed",
    "ReadRange",
    "RosterConflict",
    "RosterWritten",
    "ReopenWanted",
    "ReplicaAppended",
    "ReplicaAvailable",
    "ReplicaFenced",
    "ReplicaLost",
    "ReplicaOpened",
    "ReplicaMarked",
    "ReplicaTruncated",
    "SessionEffect",
    "SessionEvent",
    "SessionFailed",
    "SessionFenced",
    "SessionOpen",
    "SetReplicaMark",
    "StartTimer",
    "TimerFired",
    "TruncateReplica",
    "Warn",
    "WriteRoster",
]


# ---- events -------------------------------------------------------------------------------------------------


@value()
class ReplicaOpened:
    """The replica has persisted ``session_id`` as its fence; ``last_id`` and all before it are on its disk."""

    session_id: int
    replica_id: int
    local_low_water_mark: int
    last_id: int
    damaged: bool = False


@value()
class ReplicaLost:
    """The replica did not do what it was told: link down, timed out, disk full, damaged, storage of a stranger.

    ``lost_files``: it does not remember the session that ZooKeeper says it has joined. ``bad_records``: it was sent
    records that are not what their CRCs say.
    """

    session_id: int
    replica_id: int
    reason: str
    lost_files: bool = False
    bad_records: bool = False


@value()
class ReplicaAvailable:
    """The link to the replica works (again)."""

    session_id: int
    replica_id: int


@value()
class ReplicaFenced:
    """The replica has accepted a higher session, or this one from another owner."""

    session_id: int
    replica_id: int
    current_session_id: int


@value()
class ReplicaTruncated:
    """Nothing is behind ``last_id`` any more; nothing at all, if the log was begun anew."""

    session_id: int
    replica_id: int
    last_id: int


@value()
class ReplicaMarked:
    """Its low-water mark is what was ordered last, durably."""

    session_id: int
    replica_id: int


@value()
class RangeRead:
    """Records read from ``source_id`` on behalf of ``target_id``; at least one, contiguous from what was asked."""

    session_id: int
    source_id: int
    target_id: int
    batch: RecordBatch


@value()
class RangeReadFailed:
    session_id: int
    source_id: int
    target_id: int
    reason: str


@value()
class ReplicaAppended:
    """Everything up to ``last_id`` is on the replica's disk (fdatasync returned)."""

    session_id: int
    replica_id: int
    last_id: int


@value()
class RosterWritten:
    session_id: int
    version: int


@value()
class RosterConflict:
    session_id: int


@value()
class TimerFired:
    session_id: int
    name: str


SessionEvent = (
    ReplicaOpened
    | ReplicaLost
    | ReplicaAvailable
    | ReplicaFenced
    | ReplicaTruncated
    | ReplicaMarked
    | RangeRead
    | RangeReadFailed
    | ReplicaAppended
    | RosterWritten
    | RosterConflict
    | TimerFired
)


# ---- effects ------------------------------------------------------------------------------------------------


@value()
class OpenReplica:
    """Fence with ``session_id``; refused by a replica that does not remember ``joined_session_id`` (ZooKeeper says
    it had joined that one, so a replica that remembers less has lost its files and must neither vote nor join), and
    by one to which another ``owner`` has given this session number."""

    session_id: int
    replica_id: int
    joined_session_id: int
    owner: str = ""


@value()
class TruncateReplica:
    session_id: int
    replica_id: int
    last_id: int


@value()
class BeginReplica:
    """Give up all records: the next one will be ``first_id``, for those before it were trimmed away elsewhere."""

    session_id: int
    replica_id: int
    first_id: int


@value()
class ReadRange:
    """Records [first_id, end_id) of the source's disk, or the first about ``max_bytes`` of them."""

    session_id: int
    source_id: int
    target_id: int
    first_id: int
    end_id: int
    max_bytes: int


@value()
class AppendToReplicas:
    session_id: int
    replica_ids: tuple[int, ...]
    batch: RecordBatch


@value()
class SetReplicaMark:
    session_id: int
    replica_id: int
    low_water_mark: int


@value()
class WriteRoster:
    """Compare-and-set of the partition's roster; keeps trying while ZooKeeper is away."""

    session_id: int
    roster: Roster
    version: int


@value()
class StartTimer:
    session_id: int
    name: str
    delay_ms: int


@value()
class SessionOpen:
    """The session is published; ``low_water_mark`` is X, the last ID of the log it begins with."""

    session_id: int
    low_water_mark: int


@value()
class Committed:
    session_id: int
    high_water_mark: int


@value()
class ReopenWanted:
    """A member has failed: go on with the rest, and open a new session as soon as ZooKeeper grants one."""

    session_id: int
    reason: str


@value()
class SessionFailed:
    """An attempt to open a session leads nowhere; a new one must be taken."""

    session_id: int
    reason: str


@value()
class SessionFenced:
    """Somebody else has a higher session."""

    session_id: int
    current_session_id: int


@value()
class Warn:
    """A line for the operator's log."""

    session_id: int
    message: str


SessionEffect = (
    OpenReplica
    | TruncateReplica
    | BeginReplica
    | ReadRange
    | AppendToReplicas
    | SetReplicaMark
    | WriteRoster
    | StartTimer
    | SessionOpen
    | Committed
    | ReopenWanted
    | SessionFailed
    | SessionFenced
    | Warn
)
