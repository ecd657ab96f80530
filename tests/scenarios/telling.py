"""Events and effects of a partition in one plain line each, for the transcripts."""

from __future__ import annotations

from waltz_ray.protocol.ids import NO_SESSION
from waltz_ray.protocol.messages.client import AppendedBatch, LockFailureBatch, Mounted, NotReady, Rejected
from waltz_ray.protocol.messages.original import FlushResponse
from waltz_ray.protocol.partition.events import (
    AppendReceived,
    Assigned,
    ConfirmSession,
    Effect,
    Event,
    FeedRead,
    FlushReceived,
    MountReceived,
    PartitionDropped,
    PartitionReady,
    ReadFeed,
    ReadRoster,
    RosterRead,
    SendFeed,
    SendMessage,
    ServerMessage,
    SessionConfirmed,
    TurnEnded,
    Unassigned,
)
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.session_types import (
    AppendToReplicas,
    OpenReplica,
    RangeRead,
    RangeReadFailed,
    ReadRange,
    ReplicaAppended,
    ReplicaAvailable,
    ReplicaFenced,
    ReplicaLost,
    ReplicaMarked,
    ReplicaOpened,
    ReplicaTruncated,
    RosterConflict,
    RosterWritten,
    SetReplicaMark,
    StartTimer,
    TimerFired,
    TruncateReplica,
    Warn,
    WriteRoster,
)

__all__ = ["tell_effect", "tell_event", "tell_record"]


def _ids(first_id: int, end_id: int) -> str:
    return f"{first_id}" if end_id == first_id + 1 else f"{first_id}..{end_id - 1}"


def _batch(batch: RecordBatch) -> str:
    return _ids(batch.first_id, batch.end_id)


def _replicas(replica_ids: tuple[int, ...]) -> str:
    return ("replica " if len(replica_ids) == 1 else "replicas ") + ",".join(map(str, replica_ids))


def tell_record(record: Roster) -> str:
    """What ZooKeeper holds: who is a member of which session, and where the others' logs end."""
    entries = []
    for replica_id, entry in sorted(record.replicas.items()):
        if entry.session_id == NO_SESSION:
            text = "never joined"
        elif entry.closing_mark is None:
            text = f"in {entry.session_id}"
        else:
            text = f"left {entry.session_id}, right up to {entry.closing_mark}"
        entries.append(f"{replica_id} {text}")
    return f"session {record.session_id} of generation {record.generation}; replicas: {'; '.join(entries)}"


def tell_event(event: Event) -> str:
    """A past fact that a server hears of."""
    match event:
        case Assigned(generation):
            return f"manager: yours, generation {generation}"
        case Unassigned(reason):
            return f"manager: not yours ({reason})"
        case RosterRead(record, _):
            return f"zookeeper: {tell_record(record)}"
        case RosterWritten():
            return "zookeeper: written"
        case RosterConflict():
            return "zookeeper: not written, somebody else has"
        case MountReceived(_, mount):
            return f"client {mount.req_id.client_id}: mount, mine is up to {mount.client_mark}"
        case AppendReceived(_, batch):
            return f"client {batch.client_id}: append requests {_numbers(batch.sequence_numbers.tolist())}"
        case FlushReceived(_, req_id):
            return f"client {req_id.client_id}: flush"
        case TurnEnded():
            return "end of turn"
        case ReplicaOpened(_, replica_id, low, last_id, damaged):
            damage = ", damaged behind that" if damaged else ""
            return f"replica {replica_id}: opened; low-water mark {low}, last {last_id}{damage}"
        case ReplicaLost(_, replica_id, reason):
            return f"replica {replica_id}: lost ({reason})"
        case ReplicaAvailable(_, replica_id):
            return f"replica {replica_id}: reachable"
        case ReplicaFenced(session_id, replica_id, current):
            return f"replica {replica_id}: session {session_id} is over, I obey {current}"
        case ReplicaMarked(_, replica_id):
            return f"replica {replica_id}: low-water mark set"
        case ReplicaTruncated(_, replica_id, last_id):
            return f"replica {replica_id}: cut, last {last_id}"
        case ReplicaAppended(_, replica_id, last_id):
            return f"replica {replica_id}: on disk up to {last_id}"
        case RangeRead(_, source_id, target_id, batch):
            return f"replica {source_id}: here is {_batch(batch)} for replica {target_id}"
        case RangeReadFailed(_, source_id, target_id, reason):
            return f"replica {source_id}: nothing for replica {target_id} ({reason})"
        case FeedRead(_, client_id, batch):
            return f"some replica: here is {_batch(batch)} for client {client_id}"
        case SessionConfirmed(session_id, replica_id, _):
            return f"replica {replica_id}: I still obey session {session_id}"
        case TimerFired(_, name):
            return f"timer {name}"
        case _:
            raise AssertionError(f"no words for {event}")


def tell_effect(effect: Effect, client_of: dict[int, int]) -> str:
    """An order of a server. ``client_of``: connection -> client."""
    match effect:
        case ReadRoster():
            return "zookeeper: read the record"
        case WriteRoster(_, record, _):
            return f"zookeeper: write {tell_record(record)}"
        case OpenReplica(session_id, replica_id, joined):
            known = "" if joined == NO_SESSION else f", you had joined {joined}"
            return f"replica {replica_id}: open session {session_id}{known}"
        case TruncateReplica(_, replica_id, last_id):
            return f"replica {replica_id}: cut behind {last_id}"
        case ReadRange(_, source_id, target_id, first_id, end_id):
            return f"replica {source_id}: read {_ids(first_id, end_id)} for replica {target_id}"
        case AppendToReplicas(_, replica_ids, batch):
            return f"{_replicas(replica_ids)}: append {_batch(batch)}"
        case SetReplicaMark(_, replica_id, low_water_mark):
            return f"replica {replica_id}: low-water mark {low_water_mark}"
        case ConfirmSession(session_id, replica_ids, _):
            return f"{_replicas(replica_ids)}: do you still obey session {session_id}?"
        case StartTimer(_, name, _):
            return f"timer {name}"
        case SendMessage(connection_id, message):
            return f"client {client_of[connection_id]}: {_message(message)}"
        case SendFeed(connection_ids, _, batch):
            return f"client {','.join(str(client_of[c]) for c in connection_ids)}: feed {_batch(batch)}"
        case ReadFeed(connection_id, _, first_id, end_id, _):
            return f"some replica: read {_ids(first_id, end_id)} for client {client_of[connection_id]}"
        case PartitionReady(_, session_id, high_water_mark):
            return f"READY: session {session_id}, high-water mark {high_water_mark}"
        case PartitionDropped(reason):
            return f"DROPPED: {reason}"
        case Warn(_, message):
            return f"warning: {message}"
        case _:
            raise AssertionError(f"no words for {effect}")


def _message(message: ServerMessage) -> str:
    match message:
        case Mounted(_, state, generation, high_water_mark):
            return f"mount {state.name}, generation {generation}, high-water mark {high_water_mark}"
        case NotReady():
            return "NOT_READY, mount again"
        case Rejected(_, _, code, numbers, why):
            return f"requests {_numbers(numbers.tolist())} refused, {code.name}: {why}"
        case LockFailureBatch(_, numbers, conflicts):
            return f"requests {_numbers(numbers.tolist())} fail by a lock that {_numbers(conflicts.tolist())} updated"
        case FlushResponse(_, high_water_mark):
            return f"flushed, high-water mark {high_water_mark}"
        case AppendedBatch():
            return f"own transactions committed: {message}"


def _numbers(values: list[int]) -> str:
    return ",".join(map(str, values))
