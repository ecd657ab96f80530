"""Recovery, one case at a time: what was there, what the session orders, what it publishes.

The rules: docs/design.md, "Sessions and recovery".

``Bench`` plays the replicas and ZooKeeper by hand. Its replicas are log *lengths* in IDs: the last ID of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from tests.protocol.checkers import Sent
from tests.protocol.model_client import append_batch
from tests.simulation.break_rule import break_rule
from waltz_ray.protocol import session_rules
from waltz_ray.protocol.locks import LockTable
from waltz_ray.protocol.partition.admission import Arrival, admit
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.retained import RetainedRecords
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster
from waltz_ray.protocol.session import GRACE_TIMER, READ_TIMER, Session
from waltz_ray.protocol.session_replica import Phase, SessionReplica
from waltz_ray.protocol.session_types import (
    AppendToReplicas,
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
    WriteRoster,
)

Wanted = TypeVar("Wanted", bound=SessionEffect)

S = 7  # the session that opens
P = 4  # the last published one; 5 and 6 were taken and never published
MEMBER = ReplicaEntry(P, UNRESOLVED)


def closed(mark: int, session_id: int = 3) -> ReplicaEntry:
    return ReplicaEntry(session_id, mark)


def records(first_id: int, end_id: int) -> RecordBatch:
    batch = append_batch(1, 1, first_id, [Sent(-1)] * (end_id - first_id))
    admitted = admit([Arrival(1, batch)], 0, first_id, LockTable(8, 1, -1))
    assert admitted.records is not None
    return admitted.records


class Bench:
    """A session and everything it has ordered, in order; ``written`` is what ZooKeeper was asked to hold."""

    def __init__(
        self,
        entries: Mapping[int, ReplicaEntry] | Roster,
        retained: RetainedRecords | None = None,
        grace_ms: int = 50,
        piece_bytes: int = 1 << 20,
        trim_mark: int = 0,
        progress_bytes: int = 1 << 40,
    ) -> None:
        roster = entries if isinstance(entries, Roster) else Roster(S, 2, dict(entries))
        self.session = Session(
            0,
            roster,
            10,
            retained,
            join_grace_ms=grace_ms,
            piece_bytes=piece_bytes,
            trim_mark=trim_mark,
            progress_bytes=progress_bytes,
        )
        self.version = 10
        self.orders: list[SessionEffect] = self.session.start()

    def step(self, event: SessionEvent) -> list[SessionEffect]:
        effects = self.session.step(event)
        self.orders += effects
        return effects

    def opened(self, replica_id: int, last_id: int, low: int = -1, damaged: bool = False) -> list[SessionEffect]:
        return self.step(ReplicaOpened(S, replica_id, low, last_id, damaged))

    def lost(self, replica_id: int) -> list[SessionEffect]:
        return self.step(ReplicaLost(S, replica_id, "unplugged"))

    def back(self, replica_id: int) -> list[SessionEffect]:
        return self.step(ReplicaAvailable(S, replica_id))

    def truncated(self, replica_id: int, last_id: int) -> list[SessionEffect]:
        return self.step(ReplicaTruncated(S, replica_id, last_id))

    def marked(self, effects: list[SessionEffect]) -> list[int]:
        """Each mark that is ordered is set, and so is what is ordered then: of which replicas, in their order."""
        done = []
        while orders := [effect for effect in effects if isinstance(effect, SetReplicaMark)]:
            (order,) = orders  # one at a time
            done.append(order.replica_id)
            effects = self.step(ReplicaMarked(S, order.replica_id))
        return done

    def appended(self, replica_id: int, last_id: int) -> list[SessionEffect]:
        return self.step(ReplicaAppended(S, replica_id, last_id))

    def copied(self, read: ReadRange) -> list[SessionEffect]:
        """The range comes, and the target has it on its disk."""
        effects = self.step(RangeRead(S, read.source_id, read.target_id, records(read.first_id, read.end_id)))
        assert [e.replica_ids for e in effects if isinstance(e, AppendToReplicas)] == [(read.target_id,)]
        return self.appended(read.target_id, read.end_id - 1)

    def grace(self) -> list[SessionEffect]:
        return self.step(TimerFired(S, GRACE_TIMER))

    def written(self) -> list[SessionEffect]:
        self.version += 1
        return self.step(RosterWritten(S, self.version))

    def append(self, first_id: int, end_id: int) -> list[SessionEffect]:
        """The partition takes records in and hands them over."""
        assert self.session.retained is not None
        batch = records(first_id, end_id)
        self.session.retained.append(batch)
        effects = self.session.append(batch)
        self.orders += effects
        return effects

    def phase(self, replica_id: int) -> Phase:
        return self.session.phases()[replica_id][0]

    def last_read(self) -> ReadRange:
        return [e for e in self.orders if isinstance(e, ReadRange)][-1]

    def written_record(self) -> Roster:
        """What the newest write asks ZooKeeper to hold."""
        write = [e for e in self.orders if isinstance(e, WriteRoster)][-1]
        assert write.version == self.version
        return write.roster

    def roster(self) -> dict[int, tuple[int, int | None]]:
        """Its entries, to be compared."""
        return {r: (entry.session_id, entry.closing_mark) for r, entry in self.written_record().replicas.items()}


def only(effects: list[SessionEffect], kind: type[Wanted]) -> Wanted:
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, effects
    return found[0]


def kinds(effects: list[SessionEffect]) -> set[type[SessionEffect]]:
    return {type(effect) for effect in effects}


def open_bench(entries: Mapping[int, ReplicaEntry], lasts: Mapping[int, int]) -> Bench:
    """Published with everybody at the same end."""
    bench = Bench(entries)
    for replica_id, last_id in lasts.items():
        bench.opened(replica_id, last_id)
    if len(lasts) < len(entries):
        bench.grace()
    assert S in {session for session, _ in bench.roster().values()}
    bench.written()
    return bench


# ---- a table of openings --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """``answers``: replica -> (last ID, own low-water mark), in the order they answer; missing ones never do."""

    name: str
    entries: dict[int, ReplicaEntry]
    answers: dict[int, tuple[int, int]]
    x: int
    cuts: dict[int, int] = field(default_factory=dict)  # replica -> kept up to
    copies: dict[int, tuple[int, int]] = field(default_factory=dict)  # replica -> [first, end)
    roster: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    damaged: frozenset[int] = frozenset()  # among the answers: their last ID is the one before the damage
    published_quorum: int = 0  # where the set of replicas was another one then (see test_replica_sets)


ALL = {0: MEMBER, 1: MEMBER, 2: MEMBER}
FIVE = dict.fromkeys(range(5), MEMBER)
JOINED = (S, None)

CASES = [
    Case("all equal", ALL, {0: (9, 5), 1: (9, 5), 2: (9, 5)}, 9, roster={0: JOINED, 1: JOINED, 2: JOINED}),
    Case(
        "a first-ever partition",
        dict.fromkeys(range(3), ReplicaEntry(-1, UNRESOLVED)),
        {0: (-1, -1), 1: (-1, -1), 2: (-1, -1)},
        -1,
        roster={0: JOINED, 1: JOINED, 2: JOINED},
    ),
    Case(
        "a first session died unpublished: a number is burnt, nothing else",
        dict.fromkeys(range(3), ReplicaEntry(-1, UNRESOLVED)),
        {0: (-1, -1), 1: (-1, -1)},
        -1,
        roster={0: JOINED, 1: JOINED, 2: (-1, -1)},
    ),
    Case(
        "one ahead: its tail is adopted, it may have been committed",
        ALL,
        {0: (12, 5), 1: (9, 5)},
        12,
        copies={1: (10, 13)},
        roster={0: JOINED, 1: JOINED, 2: (P, 12)},
    ),
    Case(
        "one behind",
        ALL,
        {0: (9, 5), 1: (9, 5), 2: (4, 4)},
        9,
        copies={2: (5, 10)},
        roster={0: JOINED, 1: JOINED, 2: JOINED},
    ),
    Case(
        "the one ahead answers after X is chosen: cut to X",
        ALL,
        {0: (9, 5), 1: (9, 5), 2: (12, 5)},
        9,
        cuts={2: 9},
        roster={0: JOINED, 1: JOINED, 2: JOINED},
    ),
    Case(
        "a dirty tail on a non-member is cut at its closing mark, not counted",
        {0: MEMBER, 1: MEMBER, 2: closed(5)},
        {2: (20, 3), 0: (9, 6), 1: (9, 6)},
        9,
        cuts={2: 5},
        copies={2: (6, 10)},
        roster={0: JOINED, 1: JOINED, 2: JOINED},
    ),
    Case(
        "members equal the quorum and one is lost: the other has everything",
        {0: MEMBER, 1: MEMBER, 2: closed(5)},
        {0: (9, 6), 2: (5, 3)},
        9,
        copies={2: (6, 10)},
        roster={0: JOINED, 1: (P, 9), 2: JOINED},
    ),
    Case(
        "the previous opener died after copying: prefixes of the same line",
        ALL,
        {0: (12, 5), 1: (12, 5), 2: (9, 5)},
        12,
        copies={2: (10, 13)},
        roster={0: JOINED, 1: JOINED, 2: JOINED},
    ),
    Case(
        "closing marks that are recorded stay",
        {0: MEMBER, 1: MEMBER, 2: MEMBER, 3: closed(5, 2), 4: closed(7, 3)},
        {0: (9, 6), 1: (9, 6), 2: (9, 6)},
        9,
        roster={0: JOINED, 1: JOINED, 2: JOINED, 3: (2, 5), 4: (3, 7)},
    ),
    Case(
        "two absent of five",
        FIVE,
        {1: (9, 5), 2: (11, 5), 4: (10, 5)},
        11,
        copies={1: (10, 12), 4: (11, 12)},
        roster={0: (P, 11), 1: JOINED, 2: JOINED, 3: (P, 11), 4: JOINED},
    ),
    Case(
        "a replaced replica has no vote and gets everything",
        {0: MEMBER, 1: MEMBER, 2: closed(-1, -1)},
        {2: (-1, -1), 0: (9, 5), 1: (9, 5)},
        9,
        copies={2: (0, 10)},
        roster={0: JOINED, 1: JOINED, 2: JOINED},
    ),
    Case(
        "a non-member without a closing mark is cut to its own low-water mark",
        {0: MEMBER, 1: MEMBER, 2: ReplicaEntry(3, UNRESOLVED)},
        {0: (9, 5), 1: (9, 5), 2: (20, 4)},
        9,
        cuts={2: 4},
        copies={2: (5, 10)},
        roster={0: JOINED, 1: JOINED, 2: JOINED},
    ),
    Case(
        "the opener before died unpublished after filling a non-member: that copy is cut off again",
        {0: MEMBER, 1: MEMBER, 2: closed(5)},
        {0: (9, 6), 1: (9, 6), 2: (9, 3)},
        9,
        cuts={2: 5},
        copies={2: (6, 10)},
        roster={0: JOINED, 1: JOINED, 2: JOINED},
    ),
    Case(
        "the opener before died after publishing: its members are these, low-water marks not told yet",
        {0: MEMBER, 1: MEMBER, 2: closed(9, 3)},
        {0: (9, 2), 1: (9, 2), 2: (7, 2)},
        9,
        copies={2: (8, 10)},
        roster={0: JOINED, 1: JOINED, 2: JOINED},
    ),
    Case(
        "a bad record at the tail was cut at the start: it votes with what is left, nothing more was acknowledged",
        ALL,
        {0: (7, 5), 1: (9, 5)},
        9,
        copies={0: (8, 10)},
        roster={0: JOINED, 1: JOINED, 2: (P, 9)},
    ),
    Case(
        "a bad record below the low-water mark: no vote, no copy before the session is published without it",
        ALL,
        {0: (2, 2), 1: (9, 5), 2: (11, 5)},
        11,
        copies={1: (10, 12)},
        roster={0: (P, 11), 1: JOINED, 2: JOINED},
        damaged=frozenset({0}),
    ),
    Case(
        "two replicas were added to three: two votes of the three old ones decide",
        {**ALL, 3: ReplicaEntry(-1, UNRESOLVED), 4: ReplicaEntry(-1, UNRESOLVED)},
        {3: (-1, -1), 4: (-1, -1), 0: (9, 5), 2: (12, 5)},
        12,
        copies={0: (10, 13), 3: (0, 13), 4: (0, 13)},
        roster={0: JOINED, 1: (P, 12), 2: JOINED, 3: JOINED, 4: JOINED},
        published_quorum=2,
    ),
    Case(
        "two replicas were removed from five: the three that stay must all vote",
        ALL,
        {0: (9, 5), 1: (9, 5), 2: (12, 5)},
        12,
        copies={0: (10, 13), 1: (10, 13)},
        roster={0: JOINED, 1: JOINED, 2: JOINED},
        published_quorum=1,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.name))
def test_opening(case: Case) -> None:
    bench = Bench(Roster(S, 2, case.entries, case.published_quorum))
    for replica_id, (last_id, low) in case.answers.items():
        bench.opened(replica_id, last_id, low, replica_id in case.damaged)
    done: list[SessionEffect] = []
    while waiting := [e for e in bench.orders if isinstance(e, TruncateReplica | ReadRange) and e not in done]:
        for order in waiting:
            done.append(order)
            if isinstance(order, TruncateReplica):
                bench.truncated(order.replica_id, order.last_id)
            else:
                bench.copied(order)
    if len(case.answers) < len(case.entries):
        assert WriteRoster not in kinds(bench.orders), "the absent may still come"
        bench.grace()
    cuts = {e.replica_id: e.last_id for e in bench.orders if isinstance(e, TruncateReplica)}
    copies = {e.target_id: (e.first_id, e.end_id) for e in bench.orders if isinstance(e, ReadRange)}
    assert (cuts, copies, bench.roster()) == (case.cuts, case.copies, case.roster)
    effects = bench.written()
    assert only(effects, SessionOpen).low_water_mark == case.x
    joined = {r for r, entry in case.roster.items() if entry == JOINED}
    assert bench.marked(effects) == sorted(joined) == sorted(bench.session.members)
    assert bench.session.high_water_mark == case.x


# ---- before publication ---------------------------------------------------------------------------------------


def test_an_empty_replica_that_had_joined_is_refused_and_counts_as_absent() -> None:
    """Its own check against the session that ``OpenReplica`` names is in the storage tests."""
    bench = Bench(ALL)
    bench.step(ReplicaLost(S, 0, "it has no files", lost_files=True))
    bench.opened(1, 9)
    assert bench.session.low_water_mark is None
    bench.opened(2, 7)
    bench.copied(bench.last_read())
    assert bench.roster() == {0: (P, 9), 1: JOINED, 2: JOINED}


def test_every_open_names_the_session_the_replica_had_joined() -> None:
    bench = Bench({0: MEMBER, 1: closed(5, 3), 2: ReplicaEntry(-1, UNRESOLVED)})
    assert [e.joined_session_id for e in bench.orders if isinstance(e, OpenReplica)] == [P, 3, -1]


def test_a_replica_that_is_joining_must_remember_this_session() -> None:
    """Its entry may be written already: come back without files, it is no replica that never joined."""
    bench = open_bench({0: MEMBER, 1: MEMBER, 2: ReplicaEntry(-1, UNRESOLVED)}, {0: 9, 1: 9})
    bench.opened(2, -1)
    bench.copied(bench.last_read())
    assert isinstance(bench.orders[-1], WriteRoster), "it is being registered"
    bench.lost(2)
    assert only(bench.back(2), OpenReplica).joined_session_id == S


@pytest.mark.parametrize(("members", "votes"), [(3, 2), (2, 1), (5, 3), (4, 2), (3, 1)])
def test_votes_must_meet_every_committing_quorum(members: int, votes: int) -> None:
    replicas = 3 if (members, votes) in [(3, 2), (2, 1)] else 5
    entries = {r: MEMBER if r < members else closed(1) for r in range(replicas)}
    bench = Bench(entries)
    for voter in range(votes):
        assert bench.session.low_water_mark is None
        bench.opened(voter, 9)
    assert bench.session.low_water_mark == 9


def test_nothing_is_ordered_of_replicas_before_x_is_known() -> None:
    bench = Bench({0: MEMBER, 1: MEMBER, 2: MEMBER})
    assert bench.opened(0, 12) == []
    bench = Bench({0: MEMBER, 1: MEMBER, 2: closed(5)})
    assert bench.opened(2, 20) == []


def test_the_source_may_come_after_those_that_need_it() -> None:
    # Copying once waited for an event that never came when the target stood before the source.
    bench = Bench(ALL)
    bench.opened(0, 4)
    read = only(bench.opened(1, 9), ReadRange)
    assert (read.source_id, read.target_id, read.first_id, read.end_id) == (1, 0, 5, 10)


def test_copying_in_pieces_and_again_after_a_failed_read() -> None:
    bench = Bench(ALL)
    bench.opened(0, 9)
    only(bench.opened(1, 3), ReadRange)
    bench.step(RangeRead(S, 0, 1, records(4, 6)))
    read = only(bench.appended(1, 5), ReadRange)
    assert (read.first_id, read.end_id) == (6, 10)
    effects = bench.step(RangeReadFailed(S, 0, 1, "disk"))
    assert ReadRange not in kinds(effects)
    assert only(effects, StartTimer).name == READ_TIMER
    assert only(bench.step(TimerFired(S, READ_TIMER)), ReadRange) == read


def test_a_range_that_was_ordered_before_its_target_was_lost_is_not_sent_twice() -> None:
    bench = Bench(ALL)
    bench.opened(0, 9)
    bench.opened(1, 3)
    bench.lost(1)
    bench.back(1)
    bench.opened(1, 3)
    assert AppendToReplicas in kinds(bench.step(RangeRead(S, 0, 1, records(4, 10))))
    assert AppendToReplicas not in kinds(bench.step(RangeRead(S, 0, 1, records(4, 10))))
    bench.step(RangeReadFailed(S, 0, 1, "late"))
    assert bench.phase(1) is Phase.COPYING


def test_no_publication_before_a_quorum_holds_x() -> None:
    bench = Bench(ALL)
    bench.opened(0, 9)
    read = only(bench.opened(1, 3), ReadRange)
    assert WriteRoster not in kinds(bench.grace())
    assert WriteRoster in kinds(bench.copied(read))


def test_the_grace_period_waits_for_those_on_their_way_and_no_longer() -> None:
    bench = Bench(ALL)
    bench.opened(0, 9)
    assert only(bench.opened(1, 9), StartTimer).name == GRACE_TIMER
    assert WriteRoster in kinds(bench.grace())
    bench = Bench(ALL)
    bench.opened(0, 9)
    bench.opened(1, 9)
    assert WriteRoster in kinds(bench.lost(2))


def test_the_replica_with_the_end_is_lost_again() -> None:
    bench = Bench(ALL)
    bench.opened(0, 12)
    bench.opened(1, 9)
    assert "end was lost" in only(bench.lost(0), SessionFailed).reason
    assert bench.session.over
    assert bench.opened(2, 9) == []


def test_memory_stands_in_for_the_replica_with_the_end() -> None:
    retained = RetainedRecords(5)
    retained.append(records(5, 13))
    bench = Bench(ALL, retained)
    bench.opened(0, 12)
    sent = only(bench.opened(1, 9), AppendToReplicas)
    assert (sent.replica_ids, sent.batch.first_id, sent.batch.last_id) == ((1,), 10, 12)
    assert SessionFailed not in kinds(bench.lost(0))
    bench.appended(1, 12)
    sent = only(bench.opened(2, 4), AppendToReplicas)
    assert (sent.batch.first_id, sent.batch.last_id) == (5, 12)
    bench.appended(2, 12)
    assert bench.roster() == {0: (P, 12), 1: JOINED, 2: JOINED}


def test_a_higher_session_ends_this_one_at_any_time() -> None:
    for bench in (Bench(ALL), open_bench(ALL, {0: 9, 1: 9, 2: 9})):
        assert only(bench.step(ReplicaFenced(S, 1, 8)), SessionFenced).current_session_id == 8
        assert bench.session.over
        assert bench.lost(0) == []


def test_a_conflict_or_a_lost_acknowledgement_of_the_write_ends_the_attempt() -> None:
    bench = Bench(ALL)
    for replica_id in ALL:
        bench.opened(replica_id, 9)
    assert isinstance(bench.step(RosterConflict(S))[0], SessionFailed)
    assert not bench.session.published


# ---- a replica that joins by the write under way --------------------------------------------------------------


def joining() -> Bench:
    """0 has X = 9 and 2, whose own log ends at its closing mark 5, has been copied up to it; the write is under way."""
    bench = Bench({0: MEMBER, 1: MEMBER, 2: closed(5)})
    bench.opened(0, 9)
    bench.copied(only(bench.opened(2, 5), ReadRange))
    bench.grace()
    assert bench.roster() == {0: JOINED, 1: (P, 9), 2: JOINED}
    return bench


def test_a_replica_that_is_joining_is_never_cut_below_x() -> None:
    # ZooKeeper may already call 2 a member: with {0, 2} as members its vote alone would decide the next opening.
    bench = joining()
    assert kinds(bench.lost(2)) == {ReopenWanted}
    bench.back(2)
    assert TruncateReplica not in kinds(bench.opened(2, 9))
    bench.written()
    assert set(bench.session.members) == {0, 2}


def test_a_replica_that_is_joining_and_comes_back_damaged_is_left_alone() -> None:
    bench = joining()
    bench.lost(2)
    bench.back(2)
    assert TruncateReplica not in kinds(bench.opened(2, 3, damaged=True))
    assert TruncateReplica not in kinds(bench.written())
    assert bench.session.members == (0,)


def test_a_replica_that_is_joining_late_is_never_cut_below_x() -> None:
    bench = open_bench(ALL, {0: 9, 1: 9})
    bench.append(10, 15)
    bench.opened(2, 4)
    bench.copied(bench.last_read())
    bench.appended(2, 14)
    assert bench.roster()[2] == JOINED
    assert ReopenWanted in kinds(bench.lost(2))
    bench.back(2)
    assert TruncateReplica not in kinds(bench.opened(2, 14))


# ---- damage ---------------------------------------------------------------------------------------------------


def test_a_damaged_replica_has_no_vote() -> None:
    bench = Bench(ALL)
    bench.opened(0, 3, damaged=True)
    bench.opened(1, 9)
    assert bench.session.low_water_mark is None
    bench.opened(2, 10)
    assert bench.session.low_water_mark == 10


def test_a_vote_is_withdrawn_when_the_voter_comes_back_damaged() -> None:
    bench = Bench(ALL)
    bench.opened(0, 12)
    bench.lost(0)
    bench.back(0)
    bench.opened(0, 3, damaged=True)
    bench.opened(1, 9)
    assert bench.session.low_water_mark is None


def test_a_damaged_member_is_cut_only_after_a_session_without_it_is_published() -> None:
    bench = Bench(ALL)
    bench.opened(0, 3, damaged=True)
    bench.opened(1, 9)
    bench.opened(2, 9)
    assert TruncateReplica not in kinds(bench.orders)
    assert bench.roster() == {0: (P, 9), 1: JOINED, 2: JOINED}
    assert only(bench.written(), TruncateReplica) == TruncateReplica(S, 0, 3)
    bench.copied(only(bench.truncated(0, 3), ReadRange))
    assert bench.phase(0) is Phase.LIVE
    assert bench.roster()[0] == JOINED


def test_a_damaged_member_of_this_session_waits_for_the_next_one() -> None:
    bench = open_bench(ALL, {0: 9, 1: 9, 2: 9})
    assert kinds(bench.lost(2)) == {ReopenWanted}
    bench.back(2)
    assert TruncateReplica not in kinds(bench.opened(2, 3, damaged=True))


# ---- after publication ----------------------------------------------------------------------------------------


def test_a_quorum_of_members_commits() -> None:
    bench = open_bench(ALL, {0: 9, 1: 9, 2: 9})
    assert only(bench.append(10, 13), AppendToReplicas).replica_ids == (0, 1, 2)
    assert bench.appended(0, 12) == []
    assert bench.appended(1, 11) == [Committed(S, 11)]
    assert bench.appended(2, 12) == [Committed(S, 12)]
    assert bench.appended(1, 12) == []


def opened_with(first_id: int) -> Bench:
    """All replicas have 9, and the session before had records up to 12 in flight, retained from ``first_id`` on."""
    retained = RetainedRecords(first_id)
    retained.append(records(first_id, 13))
    bench = Bench(ALL, retained)
    for replica_id in ALL:
        bench.opened(replica_id, 9)
    return bench


def test_what_was_in_flight_is_sent_again_when_the_next_session_opens() -> None:
    bench = opened_with(8)
    sent = only(bench.written(), AppendToReplicas)
    assert (sent.replica_ids, sent.batch.first_id, sent.batch.last_id) == ((0, 1, 2), 10, 12)


def shows_that_marks_hold_nobody_up() -> None:
    bench = opened_with(5)
    effects = [effect for effect in bench.written() if isinstance(effect, AppendToReplicas | SetReplicaMark)]
    assert [type(effect) for effect in effects] == [AppendToReplicas, SetReplicaMark], "what waited goes first"
    assert effects[-1] == SetReplicaMark(S, 0, 9)
    bench.append(13, 15)
    assert [bench.appended(r, 14) for r in (1, 2)] == [[], [Committed(S, 14)]], "without the one that syncs its mark"
    assert bench.step(ReplicaMarked(S, 0)) == [SetReplicaMark(S, 1, 9)]
    assert bench.step(ReplicaMarked(S, 1)) == [SetReplicaMark(S, 2, 9)]
    assert bench.step(ReplicaMarked(S, 2)) == []


def test_a_new_session_sets_marks_behind_what_waited_and_one_replica_after_the_other() -> None:
    shows_that_marks_hold_nobody_up()


def test_marks_of_all_replicas_at_once_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(session: Session) -> SessionReplica | None:
        return next((replica for replica in session.replicas.values() if replica.mark_due), None)

    break_rule(monkeypatch, session_rules, "next_to_be_marked", at_once)
    with pytest.raises(AssertionError):
        shows_that_marks_hold_nobody_up()


def test_a_member_that_is_lost_is_not_waited_for() -> None:
    bench = open_bench(ALL, {0: 9, 1: 9, 2: 9})
    bench.lost(1)
    assert bench.step(ReplicaMarked(S, 0)) == [SetReplicaMark(S, 2, 9)], "the next session sets the lost one's"
    bench = open_bench(ALL, {0: 9, 1: 9})
    bench.opened(2, 9)
    bench.append(10, 12)
    bench.appended(2, 11)
    assert SetReplicaMark not in kinds(bench.written()), "replica 0 has not said that it is done"
    assert bench.marked(bench.step(ReplicaMarked(S, 0))) == [1, 2]


def test_a_late_joiner_counts_only_after_its_entry_is_written() -> None:
    bench = open_bench(ALL, {0: 9, 1: 9})
    bench.append(10, 15)
    bench.copied(only(bench.opened(2, 4), ReadRange))
    sent = [e for e in bench.orders if isinstance(e, AppendToReplicas) and e.replica_ids == (2,)]
    assert sent[-1].batch.last_id == 14
    assert bench.appended(0, 14) == []
    effects = bench.appended(2, 14)
    assert Committed not in kinds(effects)
    assert bench.roster() == {0: JOINED, 1: JOINED, 2: JOINED}
    assert Committed(S, 14) in bench.written()
    assert set(bench.session.members) == {0, 1, 2}


def test_a_late_joiner_gets_the_live_stream_while_it_catches_up() -> None:
    bench = open_bench(ALL, {0: 9, 1: 9})
    bench.opened(2, 9)
    assert bench.phase(2) is Phase.LIVE
    assert only(bench.append(10, 12), AppendToReplicas).replica_ids == (0, 1, 2)


def test_a_late_joiner_is_brought_up_in_pieces() -> None:
    one = records(0, 1).size_bytes
    bench = open_bench(ALL, {0: 9, 1: 9})
    bench.session.piece_bytes = 3 * one + 20
    for first_id in range(10, 20):
        bench.append(first_id, first_id + 1)
    effects = bench.opened(2, 9)
    sent = [9]
    while effects:
        batches = [e.batch for e in effects if isinstance(e, AppendToReplicas)]
        assert [batch.first_id for batch in batches] == list(range(sent[-1] + 1, sent[-1] + 1 + len(batches)))
        assert sum(batch.size_bytes for batch in batches) <= bench.session.piece_bytes
        sent.append(batches[-1].last_id)
        if bench.phase(2) is Phase.LIVE:
            break
        for last_id in range(sent[-2] + 1, sent[-1]):
            assert bench.appended(2, last_id) == [], "a part of a piece is not yet the turn of the next one"
        effects = bench.appended(2, sent[-1])
    assert sent == [9, 12, 15, 18, 19]
    assert only(bench.append(20, 21), AppendToReplicas).replica_ids == (0, 1, 2)


def test_what_a_peer_is_asked_for_is_a_piece() -> None:
    bench = Bench({0: MEMBER, 1: MEMBER, 2: closed(3)}, piece_bytes=77)
    for replica_id in range(3):
        bench.opened(replica_id, 9 if replica_id < 2 else 3)
    assert bench.last_read().max_bytes == 77


def test_a_member_that_fails_leaves_for_good_and_a_new_session_is_wanted_once() -> None:
    bench = open_bench(ALL, {0: 9, 1: 9, 2: 9})
    assert kinds(bench.lost(0)) == {ReopenWanted}
    bench.append(10, 12)
    bench.back(0)
    bench.opened(0, 9)
    assert bench.phase(0) is Phase.LIVE
    writes = len([e for e in bench.orders if isinstance(e, WriteRoster)])
    bench.appended(0, 11)
    bench.appended(1, 11)
    assert bench.session.high_water_mark == 9, "its acknowledgement does not count"
    assert len([e for e in bench.orders if isinstance(e, WriteRoster)]) == writes
    assert ReopenWanted not in kinds(bench.lost(1)), "one new session is enough"


def test_late_joiners_wait_while_the_next_session_is_being_taken() -> None:
    bench = open_bench(ALL, {0: 9, 1: 9})
    bench.session.stop_registering()
    assert WriteRoster not in kinds(bench.opened(2, 9))


def test_a_replica_that_was_ready_too_late_for_the_publication_joins_late() -> None:
    bench = Bench(ALL)
    bench.opened(0, 9)
    bench.opened(1, 9)
    bench.grace()
    bench.opened(2, 9)
    assert bench.phase(2) is Phase.HOLDING
    bench.written()
    assert bench.session.members == (0, 1)
    assert bench.phase(2) is Phase.LIVE
    assert bench.roster() == {0: JOINED, 1: JOINED, 2: JOINED}


def test_an_event_of_a_replica_that_is_not_assigned_is_no_concern_of_this_session() -> None:
    bench = Bench(ALL)
    assert bench.step(ReplicaAvailable(0, 9)) == []
    assert bench.step(ReplicaLost(0, 9, "link")) == []


def test_the_record_keeps_its_generation_and_session() -> None:
    bench = Bench(ALL)
    for replica_id in ALL:
        bench.opened(replica_id, 9)
    write = only(bench.orders, WriteRoster)
    assert write.roster == replace(write.roster, session_id=S, generation=2)
