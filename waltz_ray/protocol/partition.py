"""One partition on its server: which session it has, what it admits, what it tells its clients.

Stages::

    IDLE --Assigned--> READING --> TAKING --> OPENING --> OPEN --+
      ^                   ^   (ZooKeeper record,             |   |  member failed, checkpoint
      |                   |    session ID by CAS)            |   |
      |                   +--- BACKOFF <-- attempt failed ---+---+ (the running session goes on committing
      +-- Unassigned, newer generation, log moved on              until the next one's ID is taken)

The *log* (retained records, next ID, lock table, high-water mark) outlives sessions as long as no other server has
published one in between: in-flight appends at or below the new X are committed, the others are sent again with the
same IDs under the new session. When another server has published, the log is dropped and every mount told NOT_READY;
the clients learn the fates of their appends from the next mount's feed.

Everything a client sends gets an answer; in-flight records are never dropped as long as the log lives.

A mount is answered only after a quorum of the session's members has confirmed, in a round begun after the mount came,
that they know of no higher session. Without it a server that was replaced without noticing would call a client READY
that has appends in flight (or committed) at its successor, and the client would execute them a second time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain

from waltz_ray.config import ServerConfig
from waltz_ray.protocol.admission import MAX_BATCH_BYTES, Admitted, Arrival, admit, arrivals, pieces
from waltz_ray.protocol.feed import FEED_CREDIT_LIMIT_BYTES, FeedHub, Subscriber
from waltz_ray.protocol.held_failures import HeldFailures, LockFailures
from waltz_ray.protocol.ids import NO_TRANSACTION, ReqId
from waltz_ray.protocol.locks import LockTable
from waltz_ray.protocol.partition_record import PartitionRecord
from waltz_ray.protocol.partition_types import (
    NO_SUCH_SESSION,
    AppendReceived,
    Assigned,
    ConfirmSession,
    ConnectionClosed,
    CreditReceived,
    Effect,
    EndTurnAgain,
    Event,
    FeedDue,
    FeedPaused,
    FeedRead,
    FeedReadFailed,
    FeedResumed,
    FlushReceived,
    MountReceived,
    PartitionDropped,
    PartitionReady,
    ReadRecord,
    RecordRead,
    SendMessage,
    SessionConfirmed,
    TurnEnded,
    Unassigned,
    UnmountReceived,
)
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.records import AppendBatch, RecordBatch
from waltz_ray.protocol.retained import RetainedRecords
from waltz_ray.protocol.session import Session
from waltz_ray.protocol.session_types import (
    Committed,
    RecordConflict,
    RecordWritten,
    ReopenWanted,
    ReplicaAppended,
    ReplicaAvailable,
    ReplicaLost,
    SessionEffect,
    SessionEvent,
    SessionFailed,
    SessionFenced,
    SessionOpen,
    StartTimer,
    TimerFired,
    Warn,
    WriteRecord,
)
from waltz_ray.wire.batches import FeedMode, LockFailureBatch, Mount, Mounted, NotReady, Rejected, RejectionCode
from waltz_ray.wire.client_messages import FlushResponse, MountState

__all__ = ["FROM_NOW", "Partition", "Stage"]

FROM_NOW = -2
"""Client mark of an OWN mount with nothing pending: its feed begins at the log's end."""

_RECORD_COST_BYTES = 64
"""More than a record adds to its data in any frame."""

_BATCHES_IN_FLIGHT = 2
_MOST_FLUSHES = 64  # of one connection at a time; a client has one
_RECENT_BATCHES = 1024  # in one answer to a reader, however small they are

_BACKOFF_TIMER, _FEED_TIMER, _LINES_TIMER = "backoff", "feed", "lines"
_FIRST_BACKOFF_MS, _LAST_BACKOFF_MS, _FEED_RETRY_MS = 50, 2_000, 200
_LINES_PAUSE_MS = 5  # some round trips: who was told of a lock failure has tried again by then, if it will

_TOLD = (Committed, SessionOpen, ReopenWanted, SessionFailed, SessionFenced)
"""What a session tells its partition; everything else that it says is an order for the shell."""


def _queued_bytes(batch: AppendBatch) -> int:
    """What a batch that waits counts for in the queue: records without data are not free."""
    return len(batch.body) + _RECORD_COST_BYTES * len(batch)


class Stage(Enum):
    """Where the next session is (drawing above); a session may be running meanwhile."""

    IDLE = "idle"
    READING = "reading"
    TAKING = "taking"
    OPENING = "opening"
    BACKOFF = "backoff"
    OPEN = "open"


@dataclass(slots=True)
class _Log:
    """What this server knows of the partition's log while it owns it."""

    retained: RetainedRecords
    locks: LockTable
    high_water_mark: int
    published_session: int

    @property
    def next_id(self) -> int:
        return self.retained.end_id


@dataclass(frozen=True, slots=True)
class _HeldMount:
    """A mount without an answer; any round after ``after_round`` began after it came."""

    connection_id: int
    mount: Mount
    after_round: int

    @property
    def key(self) -> tuple[int, int]:
        return self.connection_id, self.mount.req_id.client_id

    def with_credit(self, credit_bytes: int) -> _HeldMount:
        credit_bytes = min(self.mount.credit_bytes + credit_bytes, FEED_CREDIT_LIMIT_BYTES)
        return replace(self, mount=replace(self.mount, credit_bytes=credit_bytes))


@dataclass(frozen=True, slots=True)
class _Flush:
    connection_id: int
    req_id: ReqId


class Partition:
    """``step(event) -> effects`` for one partition on one server."""

    def __init__(self, partition_id: int, config: ServerConfig, queue: Pool | None = None, owner: str = "") -> None:
        """``queue``: for records in flight, of all partitions of the server; by default this one's own.

        ``owner`` names the process: no other one, before or after it, has the same.
        """
        self.partition_id = partition_id
        self.generation = -1
        self.stage = Stage.IDLE
        self.session: Session | None = None  # the running one
        self._opening: Session | None = None
        self._config = config
        self._queue = queue or Pool(config.append_queue_bytes)
        self._retained_bytes = config.retained_bytes
        self._piece_bytes = config.catch_up_bytes(1)
        self._log: _Log | None = None
        self._owner = owner
        self._attempts = 0  # to take a session
        self._taking: tuple[PartitionRecord, int] | None = None
        self._backoff_ms = _FIRST_BACKOFF_MS
        self._reopen_again = False
        self._in_flight_bytes = 0  # admitted and not committed, or waiting to be admitted
        self._waiting_bytes = 0  # the latter
        self._in_flight: deque[RecordBatch] = deque()
        self._arrivals: list[Arrival] = []
        self._come = self._admitted = 0  # arrivals, ever
        # Mounts that are confirmed, and flushes, that wait until so many arrivals are admitted: those before them.
        self._behind: deque[tuple[int, _HeldMount | _Flush]] = deque()
        self._held_mounts: dict[tuple[int, int], _HeldMount] = {}  # by connection and client
        self._round = 0  # number of the last round of ConfirmSession
        self._confirmed: set[int] | None = None  # the members that have answered it; None = it is over
        self._held_failures = HeldFailures()
        self._lines_timer = False  # it runs
        self._held_flushes: deque[tuple[int, _Flush]] = deque()  # with the last ID before it
        self._feed = FeedHub(partition_id, config.max_frame_bytes // 2)
        self._effects: list[Effect] = []

    # ---- the surface ------------------------------------------------------------------------------------

    @property
    def high_water_mark(self) -> int:
        """ID of the last committed transaction, -1 while unknown or none."""
        return NO_TRANSACTION if self._log is None else self._log.high_water_mark

    @property
    def ready(self) -> bool:
        """Whether clients may mount: the log is known here (it stays so while a further session opens)."""
        return self._log is not None

    @property
    def next_id(self) -> int:
        """The ID the next admitted transaction gets; the log must be known."""
        assert self._log is not None
        return self._log.next_id

    @property
    def in_flight_bytes(self) -> int:
        """Record bytes that are admitted and not committed."""
        return self._in_flight_bytes

    @property
    def subscribers(self) -> int:
        """Number of mounted clients."""
        return len(self._feed)

    def recent(self, first_id: int, end_id: int, max_bytes: int | None = None) -> list[RecordBatch] | None:
        """The first committed records of [first_id, end_id) from memory; None if they are no longer there."""
        if self._log is None or first_id < self._log.retained.first_id:
            return None
        end_id = min(end_id, self._log.high_water_mark + 1)
        return self._log.retained.between(first_id, end_id, max_bytes, _RECENT_BATCHES)

    def step(self, event: Event) -> list[Effect]:
        """Take one fact in; get the orders it leads to."""
        match event:
            case AppendReceived(connection_id, batch):
                self._on_append(connection_id, batch)
            case TurnEnded():
                self._admit_next()
                if self._may_admit():
                    self._effects.append(EndTurnAgain())
            case ReplicaAppended():
                self._step_session(event)
            case CreditReceived(connection_id, credit_bytes):
                self._feed.add_credit(connection_id, credit_bytes)
                self._credit_held_mounts(connection_id, credit_bytes)
                self._feed_later()
            case FeedDue():
                self._feed.turn_has_come()
                self._advance_feed()
            case FeedPaused(connection_id):
                self._feed.pause(connection_id)
            case FeedResumed(connection_id):
                self._feed.resume(connection_id)
                self._feed_later()
            case MountReceived(connection_id, mount):
                self._on_mount(connection_id, mount)
            case UnmountReceived(connection_id, client_id):
                self._feed.unmount(connection_id, client_id)
                self._forget_mount(connection_id, client_id)
            case ConnectionClosed(connection_id):
                self._forget_connection(connection_id)
            case FlushReceived(connection_id, req_id):
                self._on_flush(connection_id, req_id)
            case FeedRead(connection_id, client_id, records):
                self._effects += self._feed.read(client_id, connection_id, records, self.high_water_mark)
                self._feed_later()
            case FeedReadFailed(connection_id, client_id, reason):
                self._feed.read_failed(client_id, connection_id)
                self._warn(f"reading for a subscriber failed, trying again: {reason}")
                self._effects.append(StartTimer(NO_SUCH_SESSION, _FEED_TIMER, _FEED_RETRY_MS))
            case Assigned(generation, partitions_here):
                self._share_memory(partitions_here)
                self._on_assigned(generation)
            case Unassigned(reason):
                self._drop(reason)
            case RecordRead(record, version):
                self._on_record(record, version)
            case SessionConfirmed(session_id, replica_id, number):
                self._on_confirmed(session_id, replica_id, number)
            case TimerFired(session_id, name) if session_id == NO_SUCH_SESSION:
                self._on_timer(name)
            case RecordWritten(session_id, version) if self._is_taking(session_id):
                self._on_taken(version)
            case RecordConflict(session_id) if self._is_taking(session_id):
                self._taking = None
                self._read_record()
            case _:
                if isinstance(event, ReplicaLost) and event.lost_files and self.stage in (Stage.OPEN, Stage.OPENING):
                    self._effects.append(ReadRecord())
                self._step_session(event)
                if isinstance(event, ReplicaLost | ReplicaAvailable):
                    self._confirm()  # the round under way may have lost an answer
        effects, self._effects = self._effects, []
        return effects

    # ---- sessions ---------------------------------------------------------------------------------------

    def _share_memory(self, partitions_here: int) -> None:
        self._retained_bytes = self._config.retained_bytes // partitions_here
        self._piece_bytes = self._config.catch_up_bytes(partitions_here)
        for session in (self.session, self._opening):
            if session is not None:
                session.piece_bytes = self._piece_bytes
        if self._log is not None:
            self._log.retained.budget_bytes = self._retained_bytes
            self._log.retained.trim(self._log.high_water_mark)

    def _on_assigned(self, generation: int) -> None:
        if self.stage is not Stage.IDLE and generation == self.generation:
            return
        if self.stage is not Stage.IDLE:
            self._drop(f"generation {generation} has been assigned")
        self.generation = generation
        self._feed.generation = generation
        self._backoff_ms = _FIRST_BACKOFF_MS
        self._read_record()

    def _read_record(self) -> None:
        self.stage = Stage.READING
        self._effects.append(ReadRecord())

    def _on_record(self, record: PartitionRecord, version: int) -> None:
        if self.stage is Stage.OPEN and self.session is not None and not self.session.writing:
            if version != self.session.version:
                self._reopen()  # an operator has declared the replica replaced (or we are fenced: it will show)
            return
        if self.stage is Stage.OPENING and self._opening is not None and not self._opening.writing:
            if version > self._opening.version:
                self._warn(f"session {self._opening.session_id}: the partition's record has changed; trying again")
                self._retry_later()  # as above, and the replica may be needed for this very session to open
            return
        if self.stage is not Stage.READING:
            return
        if record.generation > self.generation:
            self._drop(f"generation {record.generation} is recorded, this server was given {self.generation}")
            return
        if self._log is not None and record.last_published_session != self._log.published_session:
            self._lose_log("another server has opened a session in between")
        if self.session is not None:
            self.session.stop_registering()
        self._attempts += 1
        owner = f"{self._owner}/{self._attempts}"
        taken = replace(record, session_id=record.session_id + 1, generation=self.generation, owner=owner)
        self._taking = (taken, version)
        self.stage = Stage.TAKING
        self._effects.append(WriteRecord(taken.session_id, taken, version))

    def _is_taking(self, session_id: int) -> bool:
        return self._taking is not None and self._taking[0].session_id == session_id

    def _on_taken(self, version: int) -> None:
        """The number is ours. From here on nothing is sent in the session that was running."""
        assert self._taking is not None
        record, self._taking = self._taking[0], None
        self.stage = Stage.OPENING
        self.session = None
        self._reopen_again = False
        self._opening = Session(
            self.partition_id,
            record,
            version,
            None if self._log is None else self._log.retained,
            retained_bytes=self._retained_bytes,
            join_grace_ms=self._config.join_grace_ms,
            piece_bytes=self._piece_bytes,
        )
        self._run(self._opening.start())

    def _step_session(self, event: SessionEvent) -> None:
        """Events of a session that is over are dropped; NO_SUCH_SESSION (a link went up or down) is for all."""
        for session in (self.session, self._opening):
            if session is not None and event.session_id in (session.session_id, NO_SUCH_SESSION):
                self._run(session.step(event))

    def _run(self, effects: list[SessionEffect]) -> None:
        """Hand on what a session orders, then react to what it tells.

        In this order, for a reaction may admit appends: they must leave behind the records that the session has just
        ordered to be sent, or a replica would be given the newer ones first and refuse them.
        """
        told: list[SessionEffect] = []
        for effect in effects:
            (told if isinstance(effect, _TOLD) else self._effects).append(effect)
        for effect in told:
            if self.stage is Stage.IDLE:
                return  # dropped by one of these
            match effect:
                case Committed(_, high_water_mark):
                    self._on_committed(high_water_mark)
                case SessionOpen():
                    self._on_open()
                case ReopenWanted(session_id, reason):
                    self._warn(f"session {session_id}: {reason}; opening a new session")
                    self._reopen()
                case SessionFailed(session_id, reason):
                    self._warn(f"session {session_id} failed: {reason}")
                    self._retry_later()
                case SessionFenced(session_id, current):
                    self._warn(f"session {session_id} is fenced off by session {current}")
                    self._retry_later()

    def _reopen(self) -> None:
        """Open a further session; the running one goes on until its successor's ID is taken."""
        if self.stage is Stage.OPEN:
            self._read_record()
        else:
            self._reopen_again = True

    def _retry_later(self) -> None:
        self.session = self._opening = None
        if self.stage in (Stage.OPEN, Stage.OPENING):
            self.stage = Stage.BACKOFF
            self._effects.append(StartTimer(NO_SUCH_SESSION, _BACKOFF_TIMER, self._backoff_ms))
            self._backoff_ms = min(2 * self._backoff_ms, _LAST_BACKOFF_MS)

    def _on_timer(self, name: str) -> None:
        if name == _BACKOFF_TIMER and self.stage is Stage.BACKOFF:
            self._read_record()
        elif name == _FEED_TIMER:
            self._feed.try_again()
            self._feed_later()
        elif name == _LINES_TIMER:
            self._lines_timer = False
            self._tell_all(self._held_failures.pause_over())

    def _on_open(self) -> None:
        session, self._opening = self._opening, None
        assert session is not None
        assert session.retained is not None
        assert session.low_water_mark is not None
        self.session, self.stage, self._backoff_ms = session, Stage.OPEN, _FIRST_BACKOFF_MS
        start = session.low_water_mark
        if self._log is None:
            locks = LockTable(self._config.lock_table_size, self._config.lock_table_probes, start)
            self._log = _Log(session.retained, locks, start, session.session_id)
        elif not self._log.high_water_mark <= start < self._log.next_id:
            self._drop(
                f"session {session.session_id} begins at {start}, but this server has committed up to "
                f"{self._log.high_water_mark} and assigned up to {self._log.next_id - 1}: the log is not one line; "
                "stop the cluster and run `waltz verify` on its directories"
            )
            return
        self._log.published_session = session.session_id
        self._effects.append(PartitionReady(self.generation, session.session_id, start))
        self._on_committed(start)
        self._confirm()
        if self._reopen_again:
            self._reopen_again = False
            self._reopen()

    def _lose_log(self, reason: str) -> None:
        """Another server's session is (or may be) ahead: what was in flight here gets its fate there."""
        for subscriber in self._feed.take_all():
            if subscriber.answered:
                self._send(subscriber.connection_id, NotReady(self.partition_id, self.generation))
            else:  # every mount gets its own answer: a bare NotReady may be about an earlier one
                not_ready = Mounted(subscriber.req_id, MountState.NOT_READY, self.generation, NO_TRANSACTION)
                self._send(subscriber.connection_id, not_ready)
        behind = [each for _, each in self._behind if isinstance(each, _HeldMount)]
        for held in [*self._held_mounts.values(), *behind]:
            self._answer_mount(held, MountState.NOT_READY)
        for arrival in self._arrivals:
            self._reject(arrival.connection_id, arrival.batch, RejectionCode.CLOSING, reason)
        self._held_mounts, self._arrivals = {}, []
        self._held_failures.clear()
        self._held_flushes.clear()
        self._behind.clear()
        self._admitted = self._come
        self._in_flight.clear()
        self._hold(-self._in_flight_bytes)
        self._waiting_bytes = 0
        self._log = None
        self._confirmed = None
        self.session = self._opening = None

    def _drop(self, reason: str) -> None:
        if self.stage is Stage.IDLE:
            return
        self._lose_log(reason)
        self.stage = Stage.IDLE
        self._taking = None
        self._reopen_again = False
        self._effects.append(PartitionDropped(reason))

    # ---- appends ----------------------------------------------------------------------------------------

    def _on_append(self, connection_id: int, batch: AppendBatch) -> None:
        newest = self._feed.connection_of(batch.client_id)
        if batch.generation != self.generation:
            code, why = RejectionCode.WRONG_GENERATION, f"the partition's generation is {self.generation}"
        elif self._log is None or newest is None:
            code, why = RejectionCode.NOT_MOUNTED, "mount the partition first"
        elif newest != connection_id:
            code, why = RejectionCode.SUPERSEDED, "a newer connection of this client has mounted the partition"
        elif _queued_bytes(batch) > self._config.max_frame_bytes // 2:
            code, why = RejectionCode.TOO_LARGE, "its records would not fit the frames to replicas and subscribers"
        elif not self._queue.has_room(self._in_flight_bytes, _queued_bytes(batch)):
            code, why = RejectionCode.QUEUE_FULL, "too many appends are in flight; try again shortly"
        else:
            come = arrivals(connection_id, batch)
            self._arrivals += come
            self._come += len(come)
            self._waiting_bytes += _queued_bytes(batch)
            self._hold(_queued_bytes(batch))
            return
        self._reject(connection_id, batch, code, why)

    def _hold(self, size_bytes: int) -> None:
        self._in_flight_bytes += size_bytes
        self._queue.used_bytes += size_bytes

    def _may_admit(self) -> bool:
        """Two batches under way keep every replica busy: what comes meanwhile makes the next one larger.

        Unless it is a large one already: then the server's work on it overlaps with the replicas'.
        """
        return bool(self._arrivals) and (
            len(self._in_flight) < _BATCHES_IN_FLIGHT or self._waiting_bytes >= MAX_BATCH_BYTES
        )

    def _admit_next(self) -> None:
        """Give a piece of what has arrived its IDs and send it to the replicas (or keep it for the session that opens).

        One piece a time: it is on its way while the next one is worked on.
        """
        if self._may_admit():
            run = next(pieces(self._arrivals))
            del self._arrivals[: len(run)]
            self._admit(run)
            self._admitted += len(run)
            while self._behind and self._behind[0][0] <= self._admitted:
                waited = self._behind.popleft()[1]
                if isinstance(waited, _HeldMount):
                    self._attach(waited)
                else:
                    self._hold_flush(waited)

    def _admit(self, run: list[Arrival]) -> None:
        assert self._log is not None
        admitted = admit(run, self.partition_id, self._log.next_id, self._log.locks)
        size_bytes = sum(_queued_bytes(arrival.batch) for arrival in run)
        self._waiting_bytes -= size_bytes
        self._hold(-size_bytes)
        for arrival in admitted.damaged:
            self._reject(
                arrival.connection_id, arrival.batch, RejectionCode.BAD_CHECKSUM, "data differs from its checksum"
            )
        self._take_in(admitted)

    def _take_in(self, admitted: Admitted) -> None:
        assert self._log is not None
        if admitted.records is not None:
            self._log.retained.append(admitted.records)
            self._in_flight.append(admitted.records)
            self._hold(admitted.records.size_bytes)
            if self.session is not None:
                self._run(self.session.append(admitted.records))
            if self._held_failures and admitted.estimates is not None:
                self._held_failures.passed(admitted.records.first_id, admitted.estimates)
        for failures in admitted.lock_failures:
            in_flight = failures.conflicts > self._log.high_water_mark
            if in_flight.all():  # nearly always: who asks has applied what is committed
                self._held_failures.hold(failures)
            else:
                self._tell(failures.chosen(~in_flight))
                self._held_failures.hold(failures.chosen(in_flight))

    def _on_committed(self, high_water_mark: int) -> None:
        assert self._log is not None
        log, first_id = self._log, self._log.high_water_mark + 1
        log.high_water_mark = high_water_mark
        while self._in_flight and self._in_flight[0].last_id <= high_water_mark:
            self._hold(-self._in_flight.popleft().size_bytes)
        if self._held_failures:
            newest = self._newest_of_clients(first_id, high_water_mark)
            self._tell_all(self._held_failures.committed(high_water_mark, newest))
        else:
            self._held_failures.committed(high_water_mark, {})
        self._effects += self._feed.committed(first_id, high_water_mark, log.retained)
        while self._held_flushes and self._held_flushes[0][0] <= high_water_mark:
            self._flushed(self._held_flushes.popleft()[1])
        log.retained.trim(high_water_mark)
        self._admit_next()
        if self.stage is Stage.OPEN and self._beyond_checkpoint(high_water_mark):
            self._reopen()

    def _newest_of_clients(self, first_id: int, high_water_mark: int) -> dict[int, int]:
        """Whose transactions these are, and the last sequence number of each."""
        assert self._log is not None
        newest: dict[int, int] = {}
        for batch in self._log.retained.between(first_id, high_water_mark + 1):
            newest.update(batch.origins)
        return newest

    def _tell_all(self, failures: list[LockFailures]) -> None:
        for one in failures:
            self._tell(one)
        if self._held_failures.resting and not self._lines_timer:
            self._lines_timer = True
            self._effects.append(StartTimer(NO_SUCH_SESSION, _LINES_TIMER, _LINES_PAUSE_MS))

    def _beyond_checkpoint(self, high_water_mark: int) -> bool:
        start = None if self.session is None else self.session.low_water_mark
        return start is not None and high_water_mark - start >= self._config.checkpoint_interval

    # ---- clients ----------------------------------------------------------------------------------------

    def _on_mount(self, connection_id: int, mount: Mount) -> None:
        held = _HeldMount(connection_id, mount, self._round)
        if self.stage is Stage.IDLE or mount.req_id.generation != self.generation:
            self._answer_mount(held, MountState.NOT_READY)
            return
        for before in self._forget_mount(connection_id, mount.req_id.client_id):
            self._answer_mount(before, MountState.NOT_READY)  # it has asked again: that one counts
        self._held_mounts[held.key] = held
        if self._confirmed is None:
            self._confirm()

    def _forget_connection(self, connection_id: int) -> None:
        """Nobody is there any more to be answered."""
        self._feed.unmount(connection_id)
        self._held_failures.forget(connection_ids=(connection_id,))
        self._held_flushes = deque(each for each in self._held_flushes if each[1].connection_id != connection_id)
        self._behind = deque(each for each in self._behind if each[1].connection_id != connection_id)
        self._held_mounts = {key: held for key, held in self._held_mounts.items() if key[0] != connection_id}

    def _forget_mount(self, connection_id: int, client_id: int) -> list[_HeldMount]:
        """The mounts of a client over this connection that have no answer yet; they will get none from now on."""
        key = connection_id, client_id
        held = self._held_mounts.pop(key, None)
        gone = [each for _, each in self._behind if isinstance(each, _HeldMount) and each.key == key]
        if gone:
            self._behind = deque(each for each in self._behind if each[1] not in gone)
        return gone if held is None else [*gone, held]

    def _credit_held_mounts(self, connection_id: int, credit_bytes: int) -> None:
        """Credit that comes while a mount waits is the mount's: it says what may be sent beyond what the mount said."""
        self._held_mounts = {
            key: held.with_credit(credit_bytes) if key[0] == connection_id else held
            for key, held in self._held_mounts.items()
        }
        for position, (after, waits) in enumerate(self._behind):
            if isinstance(waits, _HeldMount) and waits.connection_id == connection_id:
                self._behind[position] = after, waits.with_credit(credit_bytes)

    def _confirm(self) -> None:
        """Begin a round for the mounts that wait; without a session the next one to open does.

        The round before is over in any case: its answers may be lost, and the next mount must not wait for them.
        """
        self._confirmed = None
        if self._held_mounts and self.session is not None and self.session.published:
            self._round += 1
            self._confirmed = set()
            self._effects.append(ConfirmSession(self.session.session_id, self.session.members, self._round))

    def _on_confirmed(self, session_id: int, replica_id: int, number: int) -> None:
        session = self.session
        if self._confirmed is None or number != self._round or session is None or session.session_id != session_id:
            return
        if replica_id in session.members:
            self._confirmed.add(replica_id)
        if len(self._confirmed) < session.quorum:
            return
        self._confirmed = None
        mounts, self._held_mounts = self._held_mounts, {}
        for key, held in mounts.items():
            if held.after_round >= number:
                self._held_mounts[key] = held
            elif self._arrivals:
                self._attach_behind(held)
            else:
                self._attach(held)
        self._confirm()

    def _attach_behind(self, held: _HeldMount) -> None:
        """What came over an older connection of this client is settled before READY; nothing more is taken from it."""
        client_id = held.mount.req_id.client_id
        older = self._feed.connection_of(client_id)
        if older is not None and not self._feed.has_newer_mount(held.connection_id, held.mount.req_id):
            self._feed.unmount(older, client_id)
        self._behind.append((self._come, held))

    def _answer_mount(self, held: _HeldMount, state: MountState) -> None:
        mark = NO_TRANSACTION if self._log is None or state is MountState.NOT_READY else self._log.high_water_mark
        self._send(held.connection_id, Mounted(held.mount.req_id, state, self.generation, mark))

    def _attach(self, held: _HeldMount) -> None:
        """The mount is confirmed: begin its feed; READY follows when the feed has passed all that is in flight."""
        assert self._log is not None
        connection_id, mount = held.connection_id, held.mount
        client_mark, client_id = mount.client_mark, mount.req_id.client_id
        if self._feed.has_newer_mount(connection_id, mount.req_id):
            # Two connections of one client have no order between them: this is what is left of the older one.
            self._answer_mount(held, MountState.NOT_READY)
            return
        if client_mark > self._log.high_water_mark:
            self._answer_mount(held, MountState.CLIENT_AHEAD)
            return
        target = self._log.next_id - 1
        from_now = mount.feed is FeedMode.OWN and client_mark == FROM_NOW
        position = self._log.high_water_mark if from_now else max(client_mark, NO_TRANSACTION)
        self._held_failures.forget(client_ids=(client_id,))
        self._feed.mount(
            Subscriber(
                connection_id,
                client_id,
                mount.feed,
                position,
                mount.credit_bytes,
                mount.req_id,
                NO_TRANSACTION if from_now else target,
            )
        )
        self._feed_later()

    def _on_flush(self, connection_id: int, req_id: ReqId) -> None:
        if self._log is None:
            self._send(connection_id, NotReady(self.partition_id, self.generation))
            return
        flush = _Flush(connection_id, req_id)
        waiting = chain(self._held_flushes, self._behind)
        held = sum(isinstance(each, _Flush) and each.connection_id == connection_id for _, each in waiting)
        if held >= _MOST_FLUSHES:
            self._send(connection_id, NotReady(self.partition_id, self.generation))
        elif self._arrivals:
            self._behind.append((self._come, flush))
        else:
            self._hold_flush(flush)

    def _hold_flush(self, flush: _Flush) -> None:
        """Everything that came before it has its ID: it waits for the last of these."""
        assert self._log is not None
        last_before = self._log.next_id - 1
        if last_before <= self._log.high_water_mark:
            self._flushed(flush)
        else:
            self._held_flushes.append((last_before, flush))

    def _flushed(self, flush: _Flush) -> None:
        """Everything that its connection sent before has its fate, or is told it now."""
        self._tell_all(self._held_failures.settle(connection_ids=(flush.connection_id,)))
        self._send(flush.connection_id, FlushResponse(flush.req_id, self.high_water_mark))

    def _advance_feed(self) -> None:
        if self._log is not None:
            self._effects += self._feed.advance(self._log.high_water_mark, self._log.retained)

    def _feed_later(self) -> None:
        """Whatever a client asks, it gets its feed piece by piece, and other input comes in between."""
        self._effects += self._feed.ask_for_turn()

    def _reject(self, connection_id: int, batch: AppendBatch, code: RejectionCode, why: str) -> None:
        self._send(connection_id, Rejected(self.partition_id, self.generation, code, batch.sequence_numbers, why))

    def _tell(self, failures: LockFailures) -> None:
        if len(failures.conflicts):
            message = LockFailureBatch(self.partition_id, failures.sequence_numbers, failures.conflicts)
            self._send(failures.connection_id, message)

    def _send(
        self, connection_id: int, message: Mounted | Rejected | LockFailureBatch | NotReady | FlushResponse
    ) -> None:
        self._effects.append(SendMessage(connection_id, message))

    def _warn(self, message: str) -> None:
        self._effects.append(Warn(NO_SUCH_SESSION, f"partition {self.partition_id}: {message}"))
