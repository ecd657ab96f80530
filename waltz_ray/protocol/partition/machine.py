"""One partition on its server: which session it has, what it admits, what it tells its clients.

``Partition.step`` hands each event to the part whose business it is and lets the others know what follows from it:

``reign``     which session the partition has here, and how the next one is taken
``intake``    what clients propose, until it is committed or refused (``admission``, ``held_failures``)
``mounts``    clients that ask to be mounted, until they are
``flushes``   clients that wait until everything before has its fate
``feed``      who is told what of the committed transactions

The parts share ``State``. None of them knows another one's rules; what a session's news leads to, and in which order,
stands here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from waltz_ray.config import ServerConfig
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.messages.client import FeedMode, Mounted, NotReady
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.partition.events import (
    NO_SUCH_SESSION,
    AppendReceived,
    Assigned,
    ConnectionClosed,
    CreditReceived,
    Effect,
    EndTurn,
    Event,
    FeedDue,
    FeedPaused,
    FeedRead,
    FeedReadFailed,
    FeedResumed,
    FlushReceived,
    MountReceived,
    RosterChanged,
    RosterRead,
    SendMessage,
    SessionConfirmed,
    TrimMarkRaised,
    TurnEnded,
    Unassigned,
    UnmountReceived,
)
from waltz_ray.protocol.partition.feed import FRAME_LIMITS, FeedHub
from waltz_ray.protocol.partition.flushes import Flushes
from waltz_ray.protocol.partition.hindrance import hindrance
from waltz_ray.protocol.partition.intake import LINES_TIMER, Intake
from waltz_ray.protocol.partition.mounts import Mounts
from waltz_ray.protocol.partition.reign import BACKOFF_TIMER, LOOK_TIMER, LogLost, LogOpened, Reign, Ruling
from waltz_ray.protocol.partition.state import PartitionState, Stage
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.records import RecordBatch, first_bad_record
from waltz_ray.protocol.retained import RetainedMemory
from waltz_ray.protocol.session import Session
from waltz_ray.protocol.session_types import (
    Committed,
    RangeRead,
    RangeReadFailed,
    ReopenWanted,
    ReplicaAppended,
    ReplicaAvailable,
    ReplicaFenced,
    ReplicaLost,
    ReplicaMarked,
    ReplicaOpened,
    ReplicaTruncated,
    RosterConflict,
    RosterWritten,
    SessionEffect,
    SessionEvent,
    SessionFailed,
    SessionFenced,
    SessionOpen,
    StartTimer,
    TimerFired,
    Warn,
)

__all__ = ["Partition", "orders_first"]

_RECENT_BATCHES = 1024  # in one answer to a reader, however small they are
_FEED_TIMER, _FEED_RETRY_MS = "feed", 200

_NEWS = (Committed, SessionOpen, ReopenWanted, SessionFailed, SessionFenced)
"""What a session tells its partition; everything else that it says is an order for the shell."""


def orders_first(effects: list[SessionEffect]) -> list[SessionEffect]:
    """What a session orders is handed on before anything follows from what it tells.

    For a reaction may admit appends: they must leave behind the records that the session has just ordered to be sent,
    or a replica would be given the newer ones first and refuse them.
    """
    if len(effects) < 2:  # nearly always
        return effects
    return sorted(effects, key=lambda effect: isinstance(effect, _NEWS))


class Partition:
    """``step(event) -> effects`` for one partition on one server. See the module."""

    def __init__(
        self,
        partition_id: int,
        config: ServerConfig,
        queue: Pool | None = None,
        owner: str = "",
        memory: RetainedMemory | None = None,
    ) -> None:
        """``queue``: for records in flight, ``memory``: for what is retained, each of all partitions of the server; by
        default this one's own.

        ``owner`` names the process: no other one, before or after it, has the same.
        """
        self.partition_id = partition_id
        self.state = PartitionState(partition_id, config)
        self.reign = Reign(self.state, owner, memory or RetainedMemory(config.retained_bytes))
        self.feed = FeedHub(partition_id, config.max_frame_bytes // 2)
        self.intake = Intake(self.state, queue or Pool(config.append_queue_bytes))
        self.mounts = Mounts(self.state, self.feed, self.intake)
        self.flushes = Flushes(self.state, self.intake)
        self._effects: list[Effect] = []
        self._turn_asked = False  # TurnEnded is to come

    # ---- the surface ------------------------------------------------------------------------------------

    @property
    def stage(self) -> Stage:
        return self.state.stage

    @property
    def generation(self) -> int:
        return self.state.generation

    @property
    def session(self) -> Session | None:
        """The session that is running, None if there is none."""
        return self.state.session

    @property
    def high_water_mark(self) -> int:
        """ID of the last committed transaction, -1 while unknown or none."""
        return self.state.high_water_mark

    @property
    def trim_mark(self) -> int:
        """The first ID that readers may count on: records below it may be gone."""
        return self.state.trim_mark

    @property
    def ready(self) -> bool:
        """Whether clients may mount: the log is known here (it stays so while a further session opens)."""
        return self.state.log is not None

    @property
    def next_id(self) -> int:
        """The ID the next admitted transaction gets; the log must be known."""
        assert self.state.log is not None
        return self.state.log.next_id

    @property
    def in_flight_bytes(self) -> int:
        """Record bytes that are admitted and not committed, and bytes that wait to be admitted."""
        return self.intake.in_flight_bytes

    @property
    def subscribers(self) -> int:
        """Number of mounted clients."""
        return len(self.feed)

    def lags(self, most: int) -> dict[int, int]:
        """The subscribers that are furthest behind, by client ID, and how many committed transactions."""
        return self.feed.lags(self.high_water_mark, most)

    def recent(self, first_id: int, end_id: int, max_bytes: int | None = None) -> list[RecordBatch] | None:
        """The first committed records of [first_id, end_id) from memory; None if they are no longer there, or not what
        their CRCs say: replicas have them."""
        log = self.state.log
        if log is None or first_id < log.retained.first_id:
            return None
        found = log.retained.between(first_id, min(end_id, log.high_water_mark + 1), max_bytes, _RECENT_BATCHES)
        return None if any(first_bad_record(batch) >= 0 for batch in found) else found

    def sources(self) -> tuple[int, tuple[int, ...]]:
        """The running session, and the replicas to read committed records from in the order in which to try them:
        each partition begins with another one. No replica while there is no session."""
        session = self.state.session
        if session is None:
            return NO_SUCH_SESSION, ()
        members = sorted(session.members)
        first = self.partition_id % max(1, len(members))
        return session.session_id, (*members[first:], *members[:first])

    def hindrance(self, zookeeper_trouble: str = "") -> str:
        """What keeps it from taking appends, one line for people; "" if nothing does.

        ``zookeeper_trouble``: why the last request of this partition to ZooKeeper had no answer that helps.
        """
        return hindrance(self.state, self.reign, zookeeper_trouble)

    def broken(self) -> str | None:
        """Which invariant does not hold; cheap, for after every step."""
        log, session = self.state.log, self.state.session
        if self.intake.in_flight_bytes < 0:
            return f"{self.intake.in_flight_bytes} bytes are in flight"
        if log is None:
            return None if session is None else f"session {session.session_id} runs without a log"
        if log.high_water_mark >= log.next_id:
            return f"transaction {log.high_water_mark} is committed, the next ID is {log.next_id}"
        if session is not None and not session.published:
            return f"session {session.session_id} runs before it is published"
        return None

    def step(self, event: Event) -> list[Effect]:
        """Take one fact in; get the orders it leads to."""
        self._HANDLERS[event.__class__](self, event)
        effects, self._effects = self._effects, []
        return effects

    # ---- sessions ---------------------------------------------------------------------------------------

    def _on_assigned(self, event: Assigned) -> None:
        self.reign.share_memory(event.partitions_here)
        if self.stage is not Stage.IDLE and event.generation == self.generation:
            return
        self._obey(self.reign.drop(f"generation {event.generation} has been assigned"))
        self.feed.generation = event.generation
        self._obey(self.reign.begin(event.generation))

    def _on_trim_mark(self, event: TrimMarkRaised) -> None:
        self.state.trim_mark = max(self.state.trim_mark, event.first_id)
        for session in self.reign.sessions:
            self._run(session.trim(self.state.trim_mark))

    def _on_unassigned(self, event: Unassigned) -> None:
        self._obey(self.reign.drop(event.reason))

    def _on_roster_changed(self, event: RosterChanged) -> None:
        self._obey(self.reign.look_at_the_roster())

    def _on_roster_read(self, event: RosterRead) -> None:
        self._obey(self.reign.roster_read(event.roster, event.version))

    def _on_roster_written(self, event: RosterWritten) -> None:
        if self.reign.is_taking(event.session_id):
            self._run(self.reign.taken(event.version))
        else:
            self._on_session_event(event)

    def _on_roster_conflict(self, event: RosterConflict) -> None:
        if self.reign.is_taking(event.session_id):
            self._obey(self.reign.not_taken())
        else:
            self._on_session_event(event)

    def _on_session_event(self, event: SessionEvent) -> None:
        """Events of a session that is over are dropped; NO_SUCH_SESSION (a link went up or down) is for all."""
        for session in self.reign.sessions:
            if event.session_id in (session.session_id, NO_SUCH_SESSION):
                self._run(session.step(event))

    def _on_link_changed(self, event: ReplicaLost | ReplicaAvailable) -> None:
        if isinstance(event, ReplicaLost) and event.lost_files:
            self._obey(self.reign.look_at_the_roster())
        if isinstance(event, ReplicaLost) and event.bad_records:
            self._obey(self.reign.look_at_the_memory())
        self._on_session_event(event)
        self._effects += self.mounts.confirm()  # the round under way may have lost an answer

    def _run(self, effects: list[SessionEffect]) -> None:
        """Hand on what a session orders, and react to what it tells."""
        for effect in orders_first(effects):
            if not isinstance(effect, _NEWS):
                self._effects.append(effect)
            elif self.stage is Stage.IDLE:
                return  # dropped by one of these
            elif isinstance(effect, Committed):
                self._on_committed(effect.high_water_mark)
            else:
                self._obey(self.reign.hear(effect))

    def _obey(self, rulings: list[Ruling]) -> None:
        """Hand on what the reign orders, and let the other parts know what it tells."""
        for ruling in rulings:
            if isinstance(ruling, LogOpened):
                self._on_committed(ruling.start)
                self._effects += self.mounts.confirm()
                self._obey(self.reign.reopen_if_asked())
            elif isinstance(ruling, LogLost):
                self._tell_that_the_log_is_lost(ruling.reason)
            else:
                self._effects.append(ruling)

    def _tell_that_the_log_is_lost(self, reason: str) -> None:
        mounts: list[SendMessage] = []
        for subscriber in self.feed.take_all():
            if subscriber.answered:
                told: Mounted | NotReady = NotReady(self.partition_id, self.generation)
            else:  # every mount gets its own answer: a bare NotReady may be about an earlier one
                told = Mounted(subscriber.req_id, MountState.NOT_READY, self.generation, NO_TRANSACTION)
            mounts.append(SendMessage(subscriber.connection_id, told))
        mounts += self.mounts.log_lost()
        self._effects += mounts
        self._effects += self.intake.log_lost(reason)
        self._effects += self.flushes.log_lost({each.connection_id for each in mounts})

    # ---- appends ----------------------------------------------------------------------------------------

    def _on_append(self, event: AppendReceived) -> None:
        newest = self.feed.newest(event.batch.client_id)
        self._effects += self.intake.append(event.connection_id, event.batch, newest)
        self._ask_for_end_of_turn()

    def _ask_for_end_of_turn(self) -> None:
        if not self._turn_asked:
            self._turn_asked = True
            self._effects.append(EndTurn())

    def _on_turn_ended(self, event: TurnEnded) -> None:
        self._turn_asked = False
        self.intake.clock_shows(event.now_ms)
        self._admit_next()
        if self.intake.may_admit:
            self._ask_for_end_of_turn()

    def _admit_next(self) -> None:
        """Send a piece of what has arrived to the replicas, or keep it for the session that opens."""
        log, session = self.state.log, self.state.session
        if log is None or not self.intake.may_admit:
            return
        effects, records = self.intake.admit(log)
        if records is not None and session is not None:
            self._run(session.append(records))
        self._effects += effects
        self._effects += self.mounts.attach_due()
        self._effects += self.flushes.hold_due()

    def _on_committed(self, high_water_mark: int) -> None:
        log = self.state.log
        assert log is not None
        first_id, log.high_water_mark = log.high_water_mark + 1, high_water_mark
        self._effects += self.intake.committed(first_id, log)
        self._effects += self.feed.committed(first_id, high_water_mark, log.retained)
        self._effects += self.flushes.committed()
        log.retained.trim(high_water_mark)
        self._admit_next()
        if self.intake.stands_still:  # a piece of which nothing passed: there will be no commit for what is behind it
            self._ask_for_end_of_turn()
        if self.stage is Stage.OPEN and self.reign.checkpoint_is_due(high_water_mark):
            self._obey(self.reign.reopen())

    # ---- clients ----------------------------------------------------------------------------------------

    def _on_mount(self, event: MountReceived) -> None:
        if event.mount.feed is FeedMode.RECORDS:  # it comes back at once if what it was fed was not what its CRC says
            self._obey(self.reign.look_at_the_memory(event.mount.client_mark + 1, FRAME_LIMITS))
        self._effects += self.mounts.mount(event.connection_id, event.mount)

    def _on_confirmed(self, event: SessionConfirmed) -> None:
        self._effects += self.mounts.confirmed(event.session_id, event.replica_id, event.number)

    def _on_unmount(self, event: UnmountReceived) -> None:
        self.feed.unmount(event.connection_id, event.client_id)
        self.mounts.forget(event.connection_id, event.client_id)

    def _on_connection_closed(self, event: ConnectionClosed) -> None:
        """Nobody is there any more to be answered."""
        self.feed.unmount(event.connection_id)
        self.intake.forget_connection(event.connection_id)
        self.flushes.forget_connection(event.connection_id)
        self.mounts.forget_connection(event.connection_id)

    def _on_flush(self, event: FlushReceived) -> None:
        self._effects += self.flushes.flush(event.connection_id, event.req_id)

    # ---- the feed ---------------------------------------------------------------------------------------

    def _feed_later(self) -> None:
        """Whatever a client asks, it gets its feed piece by piece, and other input comes in between."""
        self._effects += self.feed.ask_for_turn()

    def _on_feed_due(self, event: FeedDue) -> None:
        self.feed.turn_has_come()
        log = self.state.log
        if log is not None:
            self._effects += self.feed.advance(log.high_water_mark, log.retained)

    def _on_credit(self, event: CreditReceived) -> None:
        self.feed.add_credit(event.connection_id, event.credit_bytes)
        self.mounts.add_credit(event.connection_id, event.credit_bytes)
        self._feed_later()

    def _on_feed_paused(self, event: FeedPaused) -> None:
        self.feed.pause(event.connection_id)

    def _on_feed_resumed(self, event: FeedResumed) -> None:
        self.feed.resume(event.connection_id)
        self._feed_later()

    def _on_feed_read(self, event: FeedRead) -> None:
        self._effects += self.feed.read(event.client_id, event.connection_id, event.batch, self.high_water_mark)
        self._feed_later()

    def _on_feed_read_failed(self, event: FeedReadFailed) -> None:
        self._effects += self.feed.read_failed(event.client_id, event.connection_id, self.state.trim_mark)
        warning = f"partition {self.partition_id}: reading for a subscriber failed, trying again: {event.reason}"
        self._effects.append(Warn(NO_SUCH_SESSION, warning))
        self._effects.append(StartTimer(NO_SUCH_SESSION, _FEED_TIMER, _FEED_RETRY_MS))

    # ---- timers -----------------------------------------------------------------------------------------

    def _on_timer(self, event: TimerFired) -> None:
        if event.session_id != NO_SUCH_SESSION:
            self._on_session_event(event)
        elif event.name == BACKOFF_TIMER:
            self._obey(self.reign.pause_is_over())
        elif event.name == LOOK_TIMER:
            self._obey(self.reign.look())
        elif event.name == LINES_TIMER:
            self._effects += self.intake.pause_is_over()
        else:
            self.feed.try_again()
            self._feed_later()

    _HANDLERS: ClassVar[dict[type[Any], Callable[[Partition, Any], None]]] = {
        Assigned: _on_assigned,
        Unassigned: _on_unassigned,
        TrimMarkRaised: _on_trim_mark,
        RosterChanged: _on_roster_changed,
        RosterRead: _on_roster_read,
        RosterWritten: _on_roster_written,
        RosterConflict: _on_roster_conflict,
        ReplicaAppended: _on_session_event,
        ReplicaOpened: _on_session_event,
        ReplicaTruncated: _on_session_event,
        ReplicaMarked: _on_session_event,
        ReplicaFenced: _on_session_event,
        RangeRead: _on_session_event,
        RangeReadFailed: _on_session_event,
        ReplicaLost: _on_link_changed,
        ReplicaAvailable: _on_link_changed,
        AppendReceived: _on_append,
        TurnEnded: _on_turn_ended,
        MountReceived: _on_mount,
        SessionConfirmed: _on_confirmed,
        UnmountReceived: _on_unmount,
        ConnectionClosed: _on_connection_closed,
        FlushReceived: _on_flush,
        FeedDue: _on_feed_due,
        CreditReceived: _on_credit,
        FeedPaused: _on_feed_paused,
        FeedResumed: _on_feed_resumed,
        FeedRead: _on_feed_read,
        FeedReadFailed: _on_feed_read_failed,
        TimerFired: _on_timer,
    }
