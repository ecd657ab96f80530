"""One partition of one client, as a machine: find its server, mount, append, take fates and feed, and all over again.

::

    LOCATING --stream opened--> MOUNTING --MOUNTED(READY)--> READY
       ^                            |                          |
       +------ back-off ------------+----- stream lost, NOT_READY, moved, rewind
                                    +--MOUNTED(CLIENT_AHEAD or TRIMMED), or not allowed--> GIVEN_UP (for a person)

    any of them --Stopped--> CLOSED

Appends are sent in READY only. What was sent and has no fate when a mount ends stays with the monitor until the
next MOUNTED(READY), which fails the rest: only then is it known what is in the log. A partition is mounted from
``position``, the last transaction delivered, so nothing is skipped and nothing delivered twice. If what follows it was
trimmed away, the partition is given up, rather than a gap delivered. Two kinds go on: who asked for the earliest there
is and has nothing yet begins at it, and who is told of its own appends only (OWN mode) mounts from now on, but will
never know what became of those under way.

``step`` is told what has happened and answers what is to be done, in that order. Who carries it out
(``client/core.py``) has the loop, the clock and the chance; ``OpenStream`` and ``SetTimer`` are the only effects that
wait. The first ends in ``StreamOpened`` or ``OpenFailed``, the second in ``TimerFired`` unless it is cancelled or set
anew.

A stream carries one mount after another, so what an earlier one was still owed arrives during the next, and some of it
has been let go in between. Until this mount is answered it could be either's: an answer names its mount by number; a
feed that begins behind ``position`` is an earlier one's; where the feed of this mount begins, the credit of what came
before is written off; and own records that are told (OWN mode) say nothing about others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from waltz_ray.config import ClientConfig
from waltz_ray.errors import AccessRefused, ClientAhead, PartitionNotReady, Trimmed, WaltzError, WireError
from waltz_ray.protocol import mounting_rules as rules
from waltz_ray.protocol.client_monitor import ClientMonitor, Piece
from waltz_ray.protocol.ids import Location, ReqId
from waltz_ray.protocol.messages.client import (
    FROM_NOW,
    AppendedBatch,
    FeedBatch,
    FeedCredit,
    FeedMode,
    FeedRecords,
    LockFailureBatch,
    Mount,
    Mounted,
    NotReady,
    Rejected,
    RejectionCode,
    Unmount,
)
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.mounting_types import (
    TRANSITIONS,
    AppendsTaken,
    Applied,
    CancelTimer,
    Deliver,
    Effect,
    Event,
    ExpireAppends,
    FailAppends,
    GaveUp,
    Hindered,
    Located,
    LoseAppends,
    MountingState,
    MountTimerFired,
    OpenFailed,
    OpenStream,
    Received,
    RefuseAppends,
    RefuseLocks,
    Rewound,
    SendAppends,
    SendCredit,
    SendMount,
    SendUnmount,
    SendWaiting,
    SetTimer,
    Started,
    StateChanged,
    Stopped,
    StreamBroken,
    StreamLost,
    StreamOpened,
    Timer,
)
from waltz_ray.protocol.records import Int32s, Int64s, RecordBatch, first_bad_record

__all__ = ["Mounting"]

Token = TypeVar("Token")

_FIRST_PAUSE_S = 0.02  # between two attempts to mount; jittered
_QUEUE_FULL_PAUSE_S, _LONGEST_FULL_PAUSE_S = 0.005, 0.2
_SHORTEST_EXPIRY_STEP_S = 0.001

_LAST_MOUNT_NUMBER = 0x7FFFFFFF
_FINAL_REJECTIONS = (RejectionCode.BAD_CHECKSUM, RejectionCode.TOO_LARGE, RejectionCode.NOT_ALLOWED)
_MOUNT_IS_GONE = (
    RejectionCode.WRONG_GENERATION,
    RejectionCode.NOT_MOUNTED,
    RejectionCode.SUPERSEDED,
    RejectionCode.CLOSING,
)

_SEND_WAITING = SendWaiting()
_NONE: Int64s = np.zeros(0, dtype=np.int64)
_NO_NUMBERS: Int32s = np.zeros(0, dtype=np.int32)

_MOUNTED = (MountingState.READY, MountingState.MOUNTING)
_MAY_RECOVER = (*_MOUNTED, MountingState.LOCATING)


class Mounting(Generic[Token]):
    """The machine of one partition of one client. ``Token``: a batch of appends, as whoever sends it has it."""

    def __init__(
        self,
        partition_id: int,
        client_id: int,
        mode: FeedMode,
        position: int,
        config: ClientConfig,
        earliest: bool = False,
    ) -> None:
        """``earliest``: it may begin behind ``position``, where what follows was trimmed away."""
        self.partition_id = partition_id
        self.client_id = client_id
        self.state = MountingState.LOCATING
        self.position = position
        """ID of the last transaction delivered (RECORDS and HEADERS modes)."""
        self.trouble: Exception | None = None
        """Why it is not ready, as far as is known."""
        self.error: AccessRefused | ClientAhead | Trimmed | None = None
        """Why it never will be."""
        self.hindrance = ""
        """What keeps it from taking appends, as its server has said when it was asked; "" = nothing that is known."""
        self.mounts = 0
        """Mounts ever sent."""
        self.monitor: ClientMonitor[Token] = ClientMonitor(config.outstanding_appends)
        self._mode = mode
        self._earliest = earliest  # until something is delivered
        self._config = config
        self._location: Location | None = None
        self._opening: Location | None = None  # a stream to there is awaited
        self._mounted_at: Location | None = None  # set in MOUNTING and READY
        self._mount_number = 0
        self._mount_mark = position  # that the newest mount began at
        self._mount_bytes = 0  # of frames that have come since
        self._held_bytes = 0  # of frames that have been delivered and not applied
        self._credit_bytes = 0  # applied, and not yet told to the server
        self._epoch = 0
        self._hurry = False  # something has changed since the last attempt: the next one need not wait
        self._pausing = False  # RETRY is set
        self._queue_full = False  # FULL is set
        self._turned_away = False  # since then nothing was sent
        self._expiring = False  # EXPIRY is set
        self._pause_s, self._paused_s = _FIRST_PAUSE_S, 0.0
        self._full_pause_s = _QUEUE_FULL_PAUSE_S

    def step(self, event: Event) -> Sequence[Effect[Token]]:
        """What is to be done now that ``event`` has happened, in this order. After ``Stopped`` nothing is."""
        if self.state is MountingState.CLOSED:
            return ()
        return _RULES[event.__class__](self, event)

    @property
    def room(self) -> int:
        """How many records may be sent now."""
        if self.state is not MountingState.READY or self._queue_full:
            return 0
        if self._turned_away and rules.waits_for_fates(self.monitor.pending):
            return 0
        return self.monitor.room

    def not_ready_error(self, waited_ms: float) -> WaltzError:
        """Why this partition could not be used."""
        if self.error is not None:
            return self.error
        why = self.hindrance or self.trouble or "no server owns it"
        return PartitionNotReady(
            f"partition {self.partition_id} was not ready within {waited_ms:.0f} ms: {why}; try again; `waltz doctor` "
            "says what it lacks (a full disk, too few replicas)"
        )

    def broken(self) -> str | None:
        """Which invariant does not hold; cheap, for after every step (``monitor.broken`` is not)."""
        state, opening = self.state, self._opening
        if self._held_bytes < 0:
            return f"{self._held_bytes} bytes of the feed are held"
        if self.error is not None and state in _MAY_RECOVER:
            return f"it is {state.value} after {self.error}"
        if self._mounted_at is not None:
            if state not in _MOUNTED or opening is not None or self._pausing:
                return f"it is {state.value}, mounted at {self._mounted_at}, on its way to {opening}"
        elif state in _MOUNTED:
            return f"it is {state.value} and mounted nowhere"
        elif self._pausing and opening is not None:
            return f"it pauses and is on its way to {opening}"
        elif state is MountingState.LOCATING:
            if not self._pausing and opening is None and self._endpoint_of(self._location) is not None:
                return "nothing will ever make it go on"
        elif state is MountingState.GIVEN_UP and (self._pausing or opening is not None):
            return f"it is {state.value} and on its way to {opening}"
        return None

    # ---- life

    def _started(self, event: Started) -> Sequence[Effect[Token]]:
        self._location = event.location
        return [*self._watch_expiry(), *self._locate()]

    def _stopped(self, event: Stopped) -> Sequence[Effect[Token]]:
        left = self._leave()
        self.monitor.drain()
        return [*left, *self._enter(MountingState.CLOSED)]

    def _located(self, event: Located) -> Sequence[Effect[Token]]:
        location, mounted_at = event.location, self._mounted_at
        if location == self._location:
            return ()
        self._location = location
        if mounted_at is None:
            return self._try_at_once()
        self._hurry = True
        if not rules.has_moved(mounted_at, location):
            return ()
        where = self._endpoint_of(location)
        return self._end(ConnectionResetError(f"partition {self.partition_id} has moved to {where}"))

    def _rewound(self, event: Rewound) -> Sequence[Effect[Token]]:
        self.position, self._earliest = event.position, False
        self._epoch = event.epoch
        reason = ConnectionResetError(f"the application went back to transaction {event.position}")
        if self._mounted_at is None:
            self.trouble = reason
            return self._try_at_once()
        self._hurry = True
        return self._end(reason)

    def _hindered(self, event: Hindered) -> Sequence[Effect[Token]]:
        self.hindrance = event.reason
        return ()

    def _try_at_once(self) -> Sequence[Effect[Token]]:
        """Not mounted, and something has changed."""
        if self.state is MountingState.GIVEN_UP:
            return ()
        if self._opening is not None:
            self._hurry = True
            return ()
        if not self._pausing:
            return self._locate()
        self._pausing = False
        return [CancelTimer(Timer.RETRY), *self._locate()]

    def _locate(self) -> Sequence[Effect[Token]]:
        """The next attempt, if it is known where; otherwise ``Located`` will begin it."""
        self._hurry = False
        location = self._location
        if location is None or self._endpoint_of(location) is None:
            return ()
        self._opening = location
        return [OpenStream(location)]

    @property
    def opens_in_vain(self) -> bool:
        """Whether a stream is being opened to where the partition is no more."""
        opening, location = self._opening, self._location
        return opening is not None and location is not None and rules.has_moved(opening, location)

    @staticmethod
    def _endpoint_of(location: Location | None) -> object:
        return None if location is None else location.endpoint

    def _stream_opened(self, event: StreamOpened) -> Sequence[Effect[Token]]:
        location, self._opening = self._opening, None
        if location is None or location != self._location:
            return self._pause()
        self._mounted_at = location
        return [*self._enter(MountingState.MOUNTING), SendMount(self._mount(location))]

    def _open_failed(self, event: OpenFailed) -> Sequence[Effect[Token]]:
        self._opening = None
        self.trouble = event.error
        return self._pause()

    def _pause(self) -> Sequence[Effect[Token]]:
        """Back off before the next attempt, unless something has changed meanwhile."""
        pause_s = self._pause_s
        self._paused_s += pause_s
        self._pause_s = rules.next_pause_s(pause_s, self._paused_s, self._config.quick_mounts_ms / 1000)
        if self._hurry:
            return self._locate()
        self._pausing = True
        return [SetTimer(Timer.RETRY, pause_s, jittered=True)]

    def _mount(self, location: Location) -> Mount:
        self._mount_number = (self._mount_number + 1) & _LAST_MOUNT_NUMBER
        self.mounts += 1
        mark = self.position
        if self._mode is FeedMode.OWN:
            mark = self.monitor.resume_mark if self.monitor.pending else FROM_NOW
        req_id = ReqId(self.client_id, location.generation, self.partition_id, self._mount_number)
        self._credit_bytes, self._mount_mark, self._mount_bytes = 0, mark, 0
        credit_bytes = rules.mount_credit_bytes(self._config.feed_credit_bytes, self._held_bytes)
        self._turned_away = False
        return Mount(req_id, mark, self._mode, credit_bytes, in_order=True)

    def _stream_lost(self, event: StreamLost) -> Sequence[Effect[Token]]:
        return self._end(event.error)

    def _end(self, reason: Exception) -> Sequence[Effect[Token]]:
        """The mount is over and its appends wait for the next one."""
        self.trouble = reason
        if self._mounted_at is None:
            return ()
        return [*self._leave(), *self._enter(MountingState.LOCATING), *self._pause()]

    def _leave(self) -> Sequence[Effect[Token]]:
        if self._mounted_at is None:
            return ()
        self._mounted_at = None
        return [SendUnmount(Unmount(self.partition_id, self.client_id))]

    def _enter(self, state: MountingState) -> Sequence[Effect[Token]]:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"partition {self.partition_id}: {self.state.name} is never followed by {state.name}")
        self.state = state
        return [*self._watch_expiry(), StateChanged(state)]

    # ---- timers

    def _timer_fired(self, event: MountTimerFired) -> Sequence[Effect[Token]]:
        if event.timer is Timer.RETRY:
            self._pausing = False
            return self._locate()
        if event.timer is Timer.FULL:
            self._queue_full = False
            return [_SEND_WAITING]
        self._expiring = False
        watch = self._watch_expiry()
        return [ExpireAppends(self.not_ready_error(self._config.mount_timeout_ms)), *watch] if watch else ()

    def _watch_expiry(self) -> Sequence[Effect[Token]]:
        """While it is not ready, and may become so, look now and then for what has waited too long."""
        if self._expiring or self.state not in (MountingState.LOCATING, MountingState.MOUNTING):
            return ()
        self._expiring = True
        return [SetTimer(Timer.EXPIRY, max(_SHORTEST_EXPIRY_STEP_S, self._config.mount_timeout_ms / 10_000))]

    # ---- what the server says

    def _received(self, event: Received) -> Sequence[Effect[Token]]:
        if self._mounted_at is None:
            return ()  # this mount is over; the next one brings it again
        return _ANSWERS[event.message.__class__](self, event.message, event.frame_bytes)

    def _on_mounted(self, message: Mounted, frame_bytes: int) -> Sequence[Effect[Token]]:
        if not rules.answers_newest_mount(message, self.client_id, self._mount_number):
            return ()
        if message.state == MountState.NOT_READY:
            return self._end(
                PartitionNotReady(
                    f"partition {self.partition_id} is not ready at its server "
                    f"(generation {message.req_id.generation}, the server has {message.generation})"
                )
            )
        if self.state is not MountingState.MOUNTING:
            return [StreamBroken(WireError(f"partition {self.partition_id}: the server answered one mount twice"))]
        if message.state == MountState.CLIENT_AHEAD:
            return self._client_ahead(message.high_water_mark)
        if message.state == MountState.TRIMMED:
            return self._trimmed(message.high_water_mark)
        self._pause_s, self._paused_s = _FIRST_PAUSE_S, 0.0
        self.trouble, self.hindrance = None, ""
        failed = self.monitor.mounted_ready(message.high_water_mark)
        fates: list[Effect[Token]] = [FailAppends(failed, self._dropped)] if failed else []
        return [*fates, *self._enter(MountingState.READY), _SEND_WAITING]

    def _client_ahead(self, server_mark: int) -> Sequence[Effect[Token]]:
        error = ClientAhead(
            f"partition {self.partition_id}: the application's high-water mark is {self.position}, the log ends at "
            f"{server_mark}; the application has applied what this log never had: restore one or the other"
        )
        self.monitor.drain()
        return self._given_up(error)

    def _trimmed(self, lowest_mark: int) -> Sequence[Effect[Token]]:
        """What this mount began with is gone; from ``lowest_mark`` on one may mount."""
        what = self.partition_id, max(self.position, self._mount_mark) + 1, lowest_mark + 1
        fed = not rules.needs_no_past(self._mode)
        if fed and rules.may_begin_further_on(self._earliest, lowest_mark, self.position):
            self.position = max(self.position, lowest_mark)
            return self._end(Trimmed(*what))
        lost = self.monitor.drain()
        unknown = Trimmed(*what, "the append was under way, and may or may not be in the log")
        effects: list[Effect[Token]] = [LoseAppends(lost, unknown)] if lost else []
        return [*effects, *(self._given_up(Trimmed(*what)) if fed else self._end(Trimmed(*what)))]

    def _given_up(self, error: AccessRefused | ClientAhead | Trimmed) -> Sequence[Effect[Token]]:
        self.trouble = self.error = error
        return [*self._enter(MountingState.GIVEN_UP), *self._leave(), GaveUp(error)]

    def _not_allowed(self, why: str) -> Sequence[Effect[Token]]:
        """This client may not mount here (any more)."""
        where, lost = f"partition {self.partition_id}: {why}", self.monitor.drain()
        unknown = AccessRefused(f"{where}; the append was under way, and may or may not be in the log")
        effects: list[Effect[Token]] = [LoseAppends(lost, unknown)] if lost else []
        return [*effects, *self._given_up(AccessRefused(where))]

    def _on_not_ready(self, message: NotReady, frame_bytes: int) -> Sequence[Effect[Token]]:
        return self._end(PartitionNotReady(f"partition {self.partition_id} is leaving its server"))

    def _on_records(self, message: FeedRecords, frame_bytes: int) -> Sequence[Effect[Token]]:
        batch = message.batch
        bad = first_bad_record(batch)
        if bad >= 0:
            changed = f"transaction {batch.first_id + bad} of the feed is not what its CRC says: it was changed in the "
            changed += "server's memory or on its way"
            return [StreamBroken(WireError(f"partition {self.partition_id}: {changed}"))]
        if not self.monitor.pending:  # who only follows need not look whose records these are
            return self._feed(batch, batch.first_id, _NONE, _NO_NUMBERS, frame_bytes)
        fields = batch.fields
        own = np.nonzero(fields["client_id"] == self.client_id)[0]
        return self._feed(batch, batch.first_id, own, fields["sequence_number"][own].astype(np.int32), frame_bytes)

    def _on_headers(self, message: FeedBatch, frame_bytes: int) -> Sequence[Effect[Token]]:
        own = np.nonzero(message.client_ids == self.client_id)[0]
        return self._feed(message, message.first_id, own, message.sequence_numbers[own], frame_bytes)

    def _feed(
        self, feed: RecordBatch | FeedBatch, first_id: int, own: Int64s, sequence_numbers: Int32s, frame_bytes: int
    ) -> Sequence[Effect[Token]]:
        if first_id > self.position + 1:
            if self.state is MountingState.MOUNTING:
                return ()  # the rest of an earlier mount over the same stream, from before a rewind
            jump = f"the feed jumps from transaction {self.position} to {first_id}"
            return [StreamBroken(WireError(f"partition {self.partition_id}: {jump}"))]
        if rules.begins_newest_feed(first_id, self._mount_mark):
            self._credit_bytes -= self._mount_bytes
            self._mount_bytes = 0
        self._mount_bytes += frame_bytes
        self._held_bytes += frame_bytes
        last_id = first_id + len(feed) - 1
        self.position, self._earliest = max(self.position, last_id), False
        if not len(own):
            self.monitor.mark_seen(last_id)
            return [Deliver(feed, (), own, (), "", frame_bytes, self._epoch)]
        transaction_ids = own.astype(np.int64) + first_id
        committed, failed = self.monitor.committed(sequence_numbers, transaction_ids)
        return self._news(feed, committed, failed, transaction_ids, last_id, frame_bytes)

    def _on_appended(self, message: AppendedBatch, frame_bytes: int) -> Sequence[Effect[Token]]:
        # Before the answer this may be the rest of an earlier mount over the same stream. What came of that while none
        # was mounted has been let go, and this mount will tell it: until then nothing follows for what is older.
        gapless = self.state is MountingState.READY
        committed, failed = self.monitor.committed(message.sequence_numbers, message.transaction_ids, gapless)
        return self._news(None, committed, failed, message.transaction_ids, message.high_water_mark, 0)

    def _news(
        self,
        feed: RecordBatch | FeedBatch | None,
        committed: Sequence[Piece[Token]],
        failed: Sequence[Piece[Token]],
        transaction_ids: Int64s,
        server_mark: int,
        frame_bytes: int,
    ) -> Sequence[Effect[Token]]:
        """Records of ours are in the log."""
        self.monitor.mark_seen(server_mark)
        self._full_pause_s = _QUEUE_FULL_PAUSE_S
        reason = self._dropped if failed else ""
        return [Deliver(feed, committed, transaction_ids, failed, reason, frame_bytes, self._epoch)]

    def _on_lock_failures(self, message: LockFailureBatch, frame_bytes: int) -> Sequence[Effect[Token]]:
        refused = self.monitor.lock_failed(message.sequence_numbers)
        return [RefuseLocks(refused, message.transaction_ids)]

    def _on_rejected(self, message: Rejected, frame_bytes: int) -> Sequence[Effect[Token]]:
        """Never admitted: again, unless sending it again cannot help."""
        if rules.is_refused_mount(message):
            return self._not_allowed(message.message) if self.state is MountingState.MOUNTING else ()
        effects: list[Effect[Token]] = []
        if message.code == RejectionCode.QUEUE_FULL:
            effects.append(SetTimer(Timer.FULL, self._full_pause_s))
            self._queue_full = self._turned_away = True
            self._full_pause_s = min(2 * self._full_pause_s, _LONGEST_FULL_PAUSE_S)
        pieces = self.monitor.rejected(message.sequence_numbers)
        reason = f"partition {self.partition_id}: the append was refused ({message.code.name}): {message.message}"
        if message.code in _FINAL_REJECTIONS:
            effects += [RefuseAppends(pieces, reason, message.code), _SEND_WAITING]
        else:
            effects.append(FailAppends(pieces, reason))
        if message.code in _MOUNT_IS_GONE:
            effects += self._end(PartitionNotReady(reason))
        return effects

    @property
    def _dropped(self) -> str:
        return f"partition {self.partition_id}: the append was dropped before it was committed; it is not in the log"

    # ---- sending

    def _appends_taken(self, event: AppendsTaken[Token]) -> Sequence[Effect[Token]]:
        assert self.state is MountingState.READY, self.state
        assert self._mounted_at is not None
        if self._turned_away:
            self._turned_away = False
            self.monitor.leave_out_a_number()
        first_sequence = self.monitor.register(event.batch, 0, event.count)
        return [SendAppends(event.batch, self._mounted_at.generation, first_sequence)]

    def _applied(self, event: Applied) -> Sequence[Effect[Token]]:
        """The server hears of it in large portions."""
        self._held_bytes -= event.frame_bytes
        self._credit_bytes += event.frame_bytes
        if self._mounted_at is None or self._credit_bytes < self._config.feed_credit_bytes // 4:
            return ()
        credit_bytes, self._credit_bytes = self._credit_bytes, 0
        return [SendCredit(FeedCredit(self.partition_id, credit_bytes))]


_RULES: Mapping[type, Callable[[Mounting[Any], Any], Sequence[Effect[Any]]]] = {
    Started: Mounting._started,
    Located: Mounting._located,
    StreamOpened: Mounting._stream_opened,
    OpenFailed: Mounting._open_failed,
    StreamLost: Mounting._stream_lost,
    Received: Mounting._received,
    Rewound: Mounting._rewound,
    Applied: Mounting._applied,
    AppendsTaken: Mounting._appends_taken,
    Hindered: Mounting._hindered,
    MountTimerFired: Mounting._timer_fired,
    Stopped: Mounting._stopped,
}

_ANSWERS: Mapping[type, Callable[[Mounting[Any], Any, int], Sequence[Effect[Any]]]] = {
    Mounted: Mounting._on_mounted,
    NotReady: Mounting._on_not_ready,
    FeedRecords: Mounting._on_records,
    FeedBatch: Mounting._on_headers,
    AppendedBatch: Mounting._on_appended,
    LockFailureBatch: Mounting._on_lock_failures,
    Rejected: Mounting._on_rejected,
}
