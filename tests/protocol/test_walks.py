"""Random walks of a whole partition, and the proof that they would notice: every rule is broken once.

``WALKS=3000 pytest tests/protocol/test_walks.py`` walks further; a failure names its seed and tells its story, and
``run(seed)`` of ``tests.protocol.world`` repeats it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.protocol.checkers import Violation
from tests.protocol.world import run
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.locks import LockRequests, LockTable, OneByOne, Verdicts
from waltz_ray.protocol.partition.events import Effect
from waltz_ray.protocol.partition.feed import FeedHub, Subscriber
from waltz_ray.protocol.partition.intake import Intake
from waltz_ray.protocol.partition.machine import Partition
from waltz_ray.protocol.partition.reign import Reign, Ruling
from waltz_ray.protocol.records import AppendBatch
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.session import Phase, Session
from waltz_ray.protocol.session_types import Committed

WALKS = int(os.environ.get("WALKS", "150"))
TEETH_SEEDS = 700
CHUNKS = 5


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_walks(chunk: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(chunk, WALKS, CHUNKS):
        result = run(seed)
        seen.update(result.fates)
        seen["sessions"] += result.sessions
    # A world in which nothing happens would satisfy every checker.
    walks = WALKS // CHUNKS
    assert seen["sessions"] > 2 * walks, seen
    assert seen["committed"] > 10 * walks, seen
    assert min(seen["lock_failed"], seen["failed"], seen["rejected"]) > walks, seen


def test_without_faults_everything_commits_in_one_session_per_move() -> None:
    for seed in range(10):
        result = run(seed, faults=())
        assert result.committed > 0
        assert "failed" not in result.fates or result.sessions > 1


# ---- teeth ----------------------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def publish_before_copying(patch: Patch) -> None:
    def publish_if_ready(self: Session) -> None:
        for replica in self._replicas.values():
            if replica.phase in (Phase.OPENED, Phase.COPYING):
                replica.phase = Phase.HOLDING
        original(self)

    original = Session._publish_if_ready
    patch.setattr(Session, "_publish_if_ready", publish_if_ready)


def count_a_live_replica(patch: Patch) -> None:
    def on_appended(self: Session, replica: Any, last_id: int) -> None:
        original(self, replica, last_id)
        acked = sorted(r.last_id for r in self._replicas.values() if r.phase in (Phase.MEMBER, Phase.LIVE))
        counted = acked[-self.quorum] if len(acked) >= self.quorum else NO_TRANSACTION
        if self.published and counted > self.high_water_mark:
            self.high_water_mark = counted
            self._effects.append(Committed(self.session_id, counted))

    original = Session._on_appended
    patch.setattr(Session, "_on_appended", on_appended)


def let_non_members_vote(patch: Patch) -> None:
    def on_opened(self: Session, replica: Any, event: Any) -> None:
        original(self, replica, event)
        if self.low_water_mark is None and not replica.damaged:
            replica.voted, replica.cut = True, None

    original = Session._on_opened
    patch.setattr(Session, "_on_opened", on_opened)


def do_not_cut_non_members(patch: Patch) -> None:
    def on_opened(self: Session, replica: Any, event: Any) -> None:
        original(self, replica, event)
        replica.cut = None

    original = Session._on_opened
    patch.setattr(Session, "_on_opened", on_opened)


def take_the_shortest_vote(patch: Patch) -> None:
    def choose(self: Session) -> None:
        original(self)
        if self.low_water_mark is not None and not self.published and not chosen_before(self):
            self.low_water_mark = min(r.last_id for r in self._replicas.values() if r.voted)
            for replica in self._replicas.values():
                replica.cut = self.low_water_mark if replica.voted else replica.cut

    def chosen_before(self: Session) -> bool:
        return any(r.phase not in (Phase.OPENED, Phase.OPENING, Phase.LOST) for r in self._replicas.values())

    original = Session._choose_low_water_mark
    patch.setattr(Session, "_choose_low_water_mark", choose)


def one_vote_too_few(patch: Patch) -> None:
    def choose(self: Session) -> None:
        votes = [r.last_id for r in self._replicas.values() if r.voted]
        if self.low_water_mark is None and votes and len(votes) >= len(self._voters) - self.quorum:
            self.low_water_mark = max(votes)

    patch.setattr(Session, "_choose_low_water_mark", choose)


def ready_without_waiting_for_what_is_in_flight(patch: Patch) -> None:
    def mount(self: FeedHub, subscriber: Subscriber) -> None:
        subscriber.mount_target = NO_TRANSACTION
        original(self, subscriber)

    original = FeedHub.mount
    patch.setattr(FeedHub, "mount", mount)


def accept_superseded_connections(patch: Patch) -> None:
    def append(self: Intake, connection_id: int, batch: AppendBatch, newest: int | None) -> list[Effect]:
        return original(self, connection_id if newest is None else newest, batch, newest)

    original = Intake.append
    patch.setattr(Intake, "append", append)


def do_not_update_the_lock_table(patch: Patch) -> None:
    def admit(self: LockTable, requests: LockRequests, first_id: int) -> Verdicts:
        marks = self.marks.copy()
        verdicts = original(self, requests, first_id)
        self.marks = marks
        return verdicts

    def update(self: OneByOne, hashes: Iterable[int], transaction_id: int) -> None:
        """The table stays as it was."""

    original = LockTable.admit
    patch.setattr(OneByOne, "update", update)
    patch.setattr(LockTable, "admit", admit)


def forget_the_locks_at_a_hand_over(patch: Patch) -> None:
    def opened(self: Reign) -> list[Ruling]:
        rulings = original(self)
        if self._state.log is not None:
            self._state.log.locks = LockTable(1000, 2, NO_TRANSACTION)
        return rulings

    original = Reign._opened
    patch.setattr(Reign, "_opened", opened)


def keep_the_log_of_another_reign(patch: Patch) -> None:
    def roster_read(self: Reign, roster: Roster, version: int) -> list[Ruling]:
        if self._state.log is not None:
            self._state.log.published_session = roster.last_published_session
        return original(self, roster, version)

    original = Reign.roster_read
    patch.setattr(Reign, "roster_read", roster_read)


def enter_late_joiners_nowhere(patch: Patch) -> None:
    def record_with(self: Session, joined: frozenset[int]) -> Roster:
        return replace(self.roster) if self.published else original(self, joined)

    original = Session._record_with
    patch.setattr(Session, "_record_with", record_with)


def believe_the_session_number_alone(patch: Patch) -> None:
    def has_replaced(self: Roster, version: int, stored: Roster, stored_version: int) -> bool:
        return stored.session_id == self.session_id

    patch.setattr(Roster, "has_replaced", has_replaced)


def send_the_next_piece_before_all_of_the_last_is_there(patch: Patch) -> None:
    def on_appended(self: Session, replica: Any, last_id: int) -> None:
        replica.sent_to = min(replica.sent_to, last_id)
        original(self, replica, last_id)

    original = Session._on_appended
    patch.setattr(Session, "_on_appended", on_appended)


def react_before_what_was_ordered_has_left(patch: Patch) -> None:
    def run(self: Partition, effects: list[Any]) -> None:
        for effect in effects:  # one at a time, as they were given
            original(self, [effect])

    original = Partition._run
    patch.setattr(Partition, "_run", run)


MUTATIONS: list[Callable[[Patch], None]] = [
    publish_before_copying,
    count_a_live_replica,
    let_non_members_vote,
    do_not_cut_non_members,
    take_the_shortest_vote,
    one_vote_too_few,
    ready_without_waiting_for_what_is_in_flight,
    accept_superseded_connections,
    do_not_update_the_lock_table,
    forget_the_locks_at_a_hand_over,
    keep_the_log_of_another_reign,
    enter_late_joiners_nowhere,
    believe_the_session_number_alone,
    send_the_next_piece_before_all_of_the_last_is_there,
    react_before_what_was_ordered_has_left,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: str(mutation.__name__))
def test_a_broken_rule_is_noticed(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutation(monkeypatch)
    with pytest.raises(Violation, match="seed"):
        _walk(TEETH_SEEDS)


def _walk(seeds: int) -> None:
    for seed in range(seeds):
        run(seed)
