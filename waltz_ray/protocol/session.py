"""One session: recovery, publication, quorum commits, late joiners; when what happens. Who votes, what is cut and what
is committed is decided in ``session_rules.py``.

Why each step is as it is: docs/design.md, "Sessions and recovery".

Life of a replica within a session::

    LOST <----------------------------- (link down, refused, timed out; from everywhere)
      | ReplicaAvailable
      v
    OPENING --> OPENED --> [TRUNCATING] --> [COPYING] --> HOLDING ----- publication -----> MEMBER
                  |             (needs X)                                                    ^
                  +-- after publication: copy until memory reaches it --> LIVE --registered--+

*Before publication* nothing of this session is appended. The members of the last published session vote with
their last ID; with more than |M| - quorum votes in (that session's quorum: replicas may have come and gone since),
X is the largest. Nothing is cut on any replica before X is known. What a replica lacks up to X is copied; once a
quorum *of the assigned replicas* holds X on disk, the session is published by compare-and-set. Copy-then-publish is
what prevents forks.

*After publication* records go to MEMBER and LIVE replicas; only the acks of MEMBERs count. A member that fails
leaves for good: ``ReopenWanted``.

What a crash of the server leaves, by step: session ID taken - a number is burnt; replicas opened - they refuse
lower sessions, their entries still describe the last published one; truncated or copied - prefixes of the same
log, cut again next time if they were not members; published - the joined replicas are M of the next opening.
"""

from __future__ import annotations

from waltz_ray.protocol import session_rules as rules
from waltz_ray.protocol.ids import NO_TRANSACTION, quorum_of
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.retained import RetainedRecords
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.session_replica import Phase, SessionReplica
from waltz_ray.protocol.session_types import (
    AppendToReplicas,
    BeginReplica,
    Committed,
    OpenReplica,
    RangeRead,
    RangeReadFailed,
    ReadRange,
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
    SetReplicaMark,
    StartTimer,
    TimerFired,
    TruncateReplica,
    Warn,
    WriteRoster,
)

__all__ = ["GRACE_TIMER", "READ_TIMER", "Session"]

GRACE_TIMER = "grace"
READ_TIMER = "read"
_READ_RETRY_MS = 500


class Session:
    """``step(event) -> effects`` for one session ID, beginning with ``start()``.

    ``roster`` is the partition's roster right after this session's ID was taken (its entries still
    describe the last published session) and ``version`` that node's version. ``retained`` is the memory of the
    running server's log, or None when this server opens the partition afresh.

    ``piece_bytes`` is about how much a replica is sent at a time to bring it up: it shares a link with the live stream
    and with other partitions, and a link that falls too far behind is cut. May be changed at any time. After every
    ``progress_bytes`` of that its low-water mark is raised: up to there no later session copies anything again.
    """

    def __init__(
        self,
        partition_id: int,
        roster: Roster,
        version: int,
        retained: RetainedRecords | None,
        *,
        join_grace_ms: int,
        piece_bytes: int,
        progress_bytes: int,
        trim_mark: int = 0,
    ) -> None:
        self.partition_id = partition_id
        self.session_id = roster.session_id
        self.roster = roster
        self.version = version
        self.retained = retained
        self.replicas = {replica_id: SessionReplica(replica_id) for replica_id in roster.replicas}
        self.quorum = quorum_of(len(self.replicas))
        self.voters = roster.members
        self.published_quorum = roster.published_quorum  # not ours: replicas may have come and gone since
        self.joining: frozenset[int] = frozenset()  # by the write of the roster under way; none = there is no such
        self.low_water_mark: int | None = None  # X
        self.high_water_mark = NO_TRANSACTION
        self.piece_bytes = piece_bytes
        self.trim_mark = trim_mark
        self._progress_bytes = progress_bytes
        self.published = False
        self.over = False
        self._join_grace_ms = join_grace_ms
        self._grace_over = False
        self._grace_started = False
        self._reopen_wanted = False
        self._written = roster  # what the write under way asks for
        self._effects: list[SessionEffect] = []

    # ---- the surface ------------------------------------------------------------------------------------

    def start(self) -> list[SessionEffect]:
        """Fence every assigned replica."""
        for replica_id in self.replicas:
            self._order_open(replica_id)
        return self._take()

    def step(self, event: SessionEvent) -> list[SessionEffect]:
        """Take one fact in; get the orders it leads to."""
        if self.over:
            return []
        match event:
            case ReplicaAppended(_, replica_id, last_id):
                self._on_appended(self.replicas[replica_id], last_id)
            case ReplicaOpened():
                self._on_opened(self.replicas[event.replica_id], event)
            case ReplicaLost(_, replica_id, reason) if replica_id in self.replicas:
                self._on_lost(self.replicas[replica_id], reason)
            case ReplicaAvailable(_, replica_id) if replica_id in self.replicas:
                self._on_available(self.replicas[replica_id])
            case ReplicaFenced(_, _, current):
                self._end(SessionFenced(self.session_id, current))
            case ReplicaTruncated(_, replica_id, last_id):
                replica = self.replicas[replica_id]
                if replica.phase is Phase.TRUNCATING:
                    replica.phase, replica.pruned, replica.last_id = Phase.OPENED, True, last_id
            case ReplicaMarked(_, replica_id):
                self.replicas[replica_id].marking = False
                self._mark_next()
            case RangeRead(_, _, target_id, batch):
                self._on_range_read(self.replicas[target_id], batch)
            case RangeReadFailed(_, source_id, target_id, reason):
                self._on_read_failed(self.replicas[source_id], self.replicas[target_id], reason)
            case RosterWritten(_, version):
                self._on_written(version)
            case RosterConflict():
                self._end(SessionFailed(self.session_id, "another server has written the partition's roster"))
            case TimerFired(_, name):
                self._on_timer(name)
        self._advance()
        return self._take()

    def trim(self, mark: int) -> list[SessionEffect]:
        """Records below ``mark`` may be gone from now on, on any replica."""
        self.trim_mark = max(self.trim_mark, mark)
        self._advance()
        return self._take()

    def append(self, batch: RecordBatch) -> list[SessionEffect]:
        """Send records that the retained log has just taken in. Only a published session is given any."""
        assert self.published
        assert not self.over
        receivers = self._in(Phase.MEMBER, Phase.LIVE)
        return [AppendToReplicas(self.session_id, receivers, batch)] if receivers else []

    @property
    def members(self) -> tuple[int, ...]:
        """The replicas whose acks count."""
        return self._in(Phase.MEMBER)

    def phases(self) -> dict[int, tuple[Phase, int]]:
        """Replica -> (phase, last ID it is known to have on disk); for the operator."""
        return {r.replica_id: (r.phase, r.last_id) for r in self.replicas.values()}

    # ---- facts ------------------------------------------------------------------------------------------

    def _on_opened(self, replica: SessionReplica, event: ReplicaOpened) -> None:
        if replica.phase is not Phase.OPENING:
            return
        replica.phase, replica.last_id = Phase.OPENED, event.last_id
        replica.damaged, replica.unreadable, replica.reading = event.damaged, False, False
        replica.local_low_water_mark, replica.pruned = event.local_low_water_mark, False
        replica.unmarked_bytes = 0
        replica.voted = rules.may_vote(self, replica)
        if event.damaged:
            self._effects.append(Warn(self.session_id, f"replica {replica.replica_id} is damaged: no vote, re-copied"))

    def _order_open(self, replica_id: int) -> None:
        joined = rules.joined_session(self, replica_id)
        self._effects.append(OpenReplica(self.session_id, replica_id, joined, self.roster.owner))

    def _on_lost(self, replica: SessionReplica, reason: str) -> None:
        if rules.reopens_when_lost(self, replica):
            self._want_reopen(f"replica {replica.replica_id} failed: {reason}")
        replica.phase, replica.lost_because = Phase.LOST, reason
        replica.mark_due = replica.marking = False  # of a member that is lost the next session sets all marks

    def _on_available(self, replica: SessionReplica) -> None:
        if replica.phase is Phase.LOST:
            replica.phase = Phase.OPENING
            self._order_open(replica.replica_id)

    def _on_appended(self, replica: SessionReplica, last_id: int) -> None:
        if last_id > replica.last_id:
            replica.last_id = last_id
        if replica.phase in rules.COUNTED:
            if last_id > self.high_water_mark:  # else the others were faster
                self._commit()
        elif replica.phase is Phase.COPYING and rules.has_all_that_was_sent(replica):
            replica.phase = Phase.OPENED
            self._keep_progress(replica)

    def _keep_progress(self, replica: SessionReplica) -> None:
        if replica.unmarked_bytes < self._progress_bytes:
            return
        mark = rules.progress_mark(self, replica)
        if mark > replica.local_low_water_mark:
            replica.local_low_water_mark, replica.unmarked_bytes = mark, 0
            self._effects.append(SetReplicaMark(self.session_id, replica.replica_id, mark))

    def _on_range_read(self, target: SessionReplica, batch: RecordBatch) -> None:
        wanted = target.reading and target.phase is Phase.COPYING and batch.first_id == target.last_id + 1
        if wanted:  # if not, it was ordered before the target was lost and came back
            target.reading = False
            self._send_piece(target, [batch])

    def _on_read_failed(self, source: SessionReplica, target: SessionReplica, reason: str) -> None:
        source.unreadable = True
        if target.reading and target.phase is Phase.COPYING:
            target.phase, target.reading = Phase.OPENED, False
        self._effects.append(Warn(self.session_id, f"copying from replica {source.replica_id} failed: {reason}"))
        self._effects.append(StartTimer(self.session_id, READ_TIMER, _READ_RETRY_MS))

    def _on_timer(self, name: str) -> None:
        if name == GRACE_TIMER:
            self._grace_over = True
        elif name == READ_TIMER:
            for replica in self.replicas.values():
                replica.unreadable = False

    def _on_written(self, version: int) -> None:
        assert self.joining
        joined, self.joining = self.joining, frozenset()
        self.version = version
        self.roster = self._written
        if not self.published:
            self._open(joined)
            return
        for replica_id in joined:
            self._become_member(self.replicas[replica_id])
        self._mark_next()
        self._commit()

    def _open(self, joined: frozenset[int]) -> None:
        assert self.low_water_mark is not None
        self.published = True
        self.high_water_mark = self.low_water_mark
        if self.retained is None:
            self.retained = RetainedRecords(self.low_water_mark + 1)
        for replica_id in sorted(joined):
            self._become_member(self.replicas[replica_id])
        for replica in self.replicas.values():
            if replica.phase is Phase.HOLDING:  # was ready too late for this publication: a late joiner
                replica.phase = Phase.OPENED
        self._effects.append(SessionOpen(self.session_id, self.low_water_mark))
        for batch in self.retained.since(self.low_water_mark + 1):  # in flight when the session before ended
            self._effects += self.append(batch)
        self._mark_next()  # behind these, for which somebody waits

    def _become_member(self, replica: SessionReplica) -> None:
        if replica.phase in (Phase.HOLDING, Phase.LIVE):
            replica.phase, replica.mark_due = Phase.MEMBER, True

    def _mark_next(self) -> None:
        while (replica := rules.next_to_be_marked(self)) is not None:
            assert self.low_water_mark is not None
            mark = max(self.low_water_mark, replica.local_low_water_mark)  # which its progress may have raised
            replica.mark_due, replica.marking = False, True
            self._effects.append(SetReplicaMark(self.session_id, replica.replica_id, mark))

    # ---- what follows from the state as a whole ---------------------------------------------------------

    def _advance(self) -> None:
        if self.over or (self.published and self._everybody_is_member()):
            return
        if self.low_water_mark is None:
            self.low_water_mark = rules.low_water_mark(self)
            if self.low_water_mark is None:
                return
            if not rules.reaches_the_trim_mark(self, self.low_water_mark):
                self._end(SessionFailed(self.session_id, self._ends_too_early(self.low_water_mark)))
                return
        # Longest first: who holds X now is a source for those after it, and no further event need come for them.
        for replica in sorted(self.replicas.values(), key=lambda r: -r.last_id):
            if replica.phase is Phase.OPENED:
                self._advance_replica(replica, self.low_water_mark)
        if self.published:
            self._register_late_joiners(self.low_water_mark)
        elif self._in(Phase.HOLDING, Phase.TRUNCATING) or self._memory_reaches(self.low_water_mark + 1):
            self._publish_if_ready()
        else:
            self._end(SessionFailed(self.session_id, "the replica with the log's end was lost again"))

    def _everybody_is_member(self) -> bool:
        for replica in self.replicas.values():  # noqa: SIM110 - once per acknowledgement; all() costs three times as much
            if replica.phase is not Phase.MEMBER:
                return False
        return True

    def _advance_replica(self, replica: SessionReplica, low_water_mark: int) -> None:
        if replica.damaged and not rules.may_be_repaired(self, replica):
            return
        right_id = replica.last_id
        if not replica.pruned:
            right_id = min(right_id, rules.right_up_to(self, replica, low_water_mark))
        if rules.has_been_left_behind(self, right_id):
            replica.damaged, replica.phase = False, Phase.TRUNCATING
            self._effects.append(BeginReplica(self.session_id, replica.replica_id, self.trim_mark))
            return
        if not replica.pruned:
            if replica.damaged or replica.last_id > right_id:
                replica.damaged, replica.phase = False, Phase.TRUNCATING
                self._effects.append(TruncateReplica(self.session_id, replica.replica_id, right_id))
                return
            replica.pruned = True
        if not self.published and rules.holds_the_beginning(replica, low_water_mark):
            replica.phase = Phase.HOLDING
        elif self._memory_reaches(replica.last_id + 1):
            self._send_from_memory(replica, low_water_mark)
        else:
            self._copy_from_a_peer(replica, low_water_mark)

    def _memory_reaches(self, first_id: int) -> bool:
        return self.retained is not None and self.retained.first_id <= first_id <= self.retained.end_id

    def _send_from_memory(self, replica: SessionReplica, low_water_mark: int) -> None:
        """The next piece. With the one that reaches the end of the log a late joiner is on the live stream."""
        assert self.retained is not None
        end_id = self.retained.end_id if self.published else low_water_mark + 1
        batches = self.retained.between(replica.last_id + 1, end_id, self.piece_bytes)
        reaches_end = not batches or batches[-1].end_id == end_id
        replica.phase = Phase.LIVE if self.published and reaches_end else Phase.COPYING
        self._send_piece(replica, batches)

    def _send_piece(self, replica: SessionReplica, batches: list[RecordBatch]) -> None:
        for batch in batches:
            replica.sent_to = batch.last_id
            replica.unmarked_bytes += batch.size_bytes
            self._effects.append(AppendToReplicas(self.session_id, (replica.replica_id,), batch))

    def _copy_from_a_peer(self, replica: SessionReplica, low_water_mark: int) -> None:
        source = rules.source_for(self, replica)
        if source is not None:
            end_id = low_water_mark + 1 if not self.published else min(source.last_id + 1, self._memory_begin())
            replica.phase, replica.reading = Phase.COPYING, True
            source_id, first_id = source.replica_id, replica.last_id + 1
            piece_bytes = self.piece_bytes
            self._effects.append(
                ReadRange(self.session_id, source_id, replica.replica_id, first_id, end_id, piece_bytes)
            )

    def _memory_begin(self) -> int:
        assert self.retained is not None
        return self.retained.first_id

    def _publish_if_ready(self) -> None:
        if self.writing or not rules.may_be_published(self):
            return
        if self._grace_over or not any(r.busy for r in self.replicas.values()):
            self._write(frozenset(self._in(Phase.HOLDING)))
        elif not self._grace_started:
            self._grace_started = True
            self._effects.append(StartTimer(self.session_id, GRACE_TIMER, self._join_grace_ms))

    def _register_late_joiners(self, low_water_mark: int) -> None:
        ready = {r.replica_id for r in self.replicas.values() if rules.may_become_member(r, low_water_mark)}
        if ready and not self.writing and not self._reopen_wanted:
            self._write(frozenset(ready))

    def _write(self, joined: frozenset[int]) -> None:
        self.joining, self._written = joined, rules.next_roster(self, joined)
        self._effects.append(WriteRoster(self.session_id, self._written, self.version))

    def _commit(self) -> None:
        mark = rules.committed_mark(self)
        if self.published and mark > self.high_water_mark:
            self.high_water_mark = mark
            self._effects.append(Committed(self.session_id, mark))

    @property
    def writing(self) -> bool:
        """Whether a compare-and-set of the roster is under way."""
        return bool(self.joining)

    def stop_registering(self) -> None:
        """The next session is being taken: late joiners wait for it."""
        self._reopen_wanted = True

    def _want_reopen(self, reason: str) -> None:
        if not self._reopen_wanted:
            self._reopen_wanted = True
            self._effects.append(ReopenWanted(self.session_id, reason))

    def _ends_too_early(self, low_water_mark: int) -> str:
        return (
            f"the replicas' log ends with transaction {low_water_mark}, and everything below {self.trim_mark} was "
            "committed and trimmed: records are lost; stop the cluster and run `waltz verify` on its directories"
        )

    def _end(self, effect: SessionFenced | SessionFailed) -> None:
        self.over = True
        self._effects.append(effect)

    def _in(self, *phases: Phase) -> tuple[int, ...]:
        return tuple(r.replica_id for r in self.replicas.values() if r.phase in phases)

    def _take(self) -> list[SessionEffect]:
        effects, self._effects = self._effects, []
        return effects
