"""The rules of one replica's log of a partition, each by its name: who may change it, what fits, what is proven.

The checks raise what the caller is told; what is done once they pass is ``partition_log.py``'s and ``segment.py``'s.
Over which connection it may be asked for is decided before (``order_rules.py``).
``tests/simulation/mutations_storage.py`` and ``mutations_threads.py`` break these rules.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from waltz_ray.errors import Corruption, Fenced, InvalidInput, NotContiguous, PartitionDamaged, RecordsChanged
from waltz_ray.protocol.records import RecordBatch, first_bad_record
from waltz_ray.storage.layout import HEADER_BYTES

__all__ = [
    "MOST_SESSIONS_MISSED",
    "LogView",
    "check_append",
    "check_marks",
    "check_new_session",
    "check_records",
    "check_session",
    "may_be_fetched",
    "must_wait_for_sync",
    "proven_by_sync",
    "unproven",
]

Position = TypeVar("Position")

MOST_SESSIONS_MISSED = 1_000_000_000
"""How far ahead of its own a replica takes a session number. ZooKeeper counts sessions one by one, so a real one can be
ahead only by what the replica has missed: so many are one a millisecond for eleven days. A number further ahead is a
stranger's or a bug's, and would fence every real session off for ever (``waltz fence`` lowers what was accepted)."""


class LogView(Protocol):
    """What the rules look at of a log (``PartitionLog`` says what each is)."""

    partition_id: int
    last_id: int
    damaged: Corruption | None

    @property
    def session_id(self) -> int: ...
    @property
    def local_low_water_mark(self) -> int: ...
    def check_fence(self) -> None: ...


# ---- which session ----------------------------------------------------------------------------------------------


def check_new_session(log: LogView, session_id: int) -> None:
    """A session may be opened if none higher was: Fenced. InvalidInput if it is absurdly far ahead."""
    accepted = log.session_id
    if session_id < accepted or session_id < 0:
        raise Fenced(log.partition_id, session_id, accepted)
    if session_id > max(accepted, 0) + MOST_SESSIONS_MISSED:
        raise InvalidInput(
            f"partition {log.partition_id}: session {session_id} is refused: it is more than "
            f"{MOST_SESSIONS_MISSED} ahead of {accepted}, the highest so far, so ZooKeeper cannot have given it"
        )


def check_session(log: LogView, session_id: int) -> None:
    """Only the highest session that was opened may change the log: Fenced. PartitionDamaged if nobody knows which."""
    log.check_fence()
    if session_id != log.session_id or session_id < 0:
        raise Fenced(log.partition_id, session_id, log.session_id)


# ---- what fits --------------------------------------------------------------------------------------------------


def check_append(log: LogView, session_id: int, batch: RecordBatch) -> None:
    """Records of the session in force, behind the last one of an undamaged log, each as its CRC says: Fenced,
    PartitionDamaged, InvalidInput, NotContiguous, RecordsChanged.

    The same bytes go to every replica. What was changed on the way there, acknowledged, would be a committed record
    that nobody has whole.
    """
    check_session(log, session_id)
    if log.damaged is not None:
        raise PartitionDamaged(f"partition {log.partition_id} is damaged and takes no records: {log.damaged}")
    if batch.partition_id != log.partition_id:
        raise InvalidInput(f"partition {log.partition_id} was given records of partition {batch.partition_id}")
    if batch.first_id != log.last_id + 1:
        raise NotContiguous(log.partition_id, batch.first_id, log.last_id)
    check_records(batch)


def check_records(batch: RecordBatch) -> None:
    """Lengths fit the bytes, IDs and partition are right, and so is each CRC: RecordsChanged."""
    bad = first_bad_record(batch)
    if bad >= 0:
        raise RecordsChanged(batch.partition_id, batch.first_id + bad)


def check_marks(log: LogView, session_id: int, low: int, local_low: int) -> None:
    """Low-water marks of the session in force that the log reaches: Fenced, PartitionDamaged, InvalidInput."""
    check_session(log, session_id)
    if log.damaged is not None and local_low > log.last_id:
        raise PartitionDamaged(f"partition {log.partition_id} has lost records below the mark: {log.damaged}")
    if not -1 <= local_low <= log.last_id or low < -1:
        raise InvalidInput(
            f"partition {log.partition_id}: low-water marks {low}, {local_low} do not fit the log, "
            f"which ends with {log.last_id}"
        )


# ---- what has rotted -------------------------------------------------------------------------------------------


def may_be_fetched(local_low_water_mark: int, end_id: int) -> bool:
    """Whether a closed segment that ends before ``end_id`` may rot without taking the partition out: it is fetched
    from a peer, and the log goes on, appends and votes included.

    Only if all of it lies at or below this replica's own mark. Up to there the log is committed, so that every peer's
    mark is proof that it has the same records, and no vote speaks for them: the X of any session is at or above the
    mark. What a vote says is where the log *ends*, and all behind the mark is whole. Above the mark a bad record may
    be one that nobody else has, or that was never committed: that is damage, the replica loses its vote and is cut and
    copied.
    """
    return end_id - 1 <= local_low_water_mark


# ---- what is proven ---------------------------------------------------------------------------------------------


def must_wait_for_sync(end: int, size_bytes: int, limit_bytes: int) -> bool:
    """Whether an append of ``size_bytes`` waits for a running sync: it may close the segment, which ends at ``end``."""
    return end + size_bytes > limit_bytes


def proven_by_sync(begun: Position, ended: Position) -> Position:
    """A sync proves what was written when it began, not what had come when it ended."""
    return begun


def unproven(indexed_end: int, end: int, index_is_ours: bool) -> range:
    """The bytes of its newest segment, up to ``end``, that a start writes once more before it believes them.

    An index entry is only written for a record that is durable (``recovery.py``, "After a failed sync"), if it is this
    segment's. Everything else may be in the page cache only.
    """
    return range(indexed_end if index_is_ours else HEADER_BYTES, end)
