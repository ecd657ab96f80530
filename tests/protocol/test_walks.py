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
from waltz_ray.protocol.feed import FeedHub, Subscriber
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.locks import LockRequests, LockTable, OneByOne, Verdicts
from waltz_ray.protocol.partition import Partition
from waltz_ray.protocol.partition_record import PartitionRecord
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
    def on_append(self: Partition, connection_id: int, batch: Any) -> None:
        newest = self._feed.connection_of(batch.client_id)
        original(self, connection_id if newest is None else newest, batch)

    original = Partition._on_append
    patch.setattr(Partition, "_on_append", on_append)


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
    def on_open(self: Partition) -> None:
        original(self)
        if self._log is not None:
            self._log.locks = LockTable(1000, 2, NO_TRANSACTION)

    original = Partition._on_open
    patch.setattr(Partition, "_on_open", on_open)


def keep_the_log_of_another_reign(patch: Patch) -> None:
    def on_record(self: Partition, record: PartitionRecord, version: int) -> None:
        if self._log is not None:
            self._log.published_session = record.last_published_session
        original(self, record, version)

    original = Partition._on_record
    patch.setattr(Partition, "_on_record", on_record)


def enter_late_joiners_nowhere(patch: Patch) -> None:
    def record_with(self: Session, joined: frozenset[int]) -> PartitionRecord:
        return replace(self.record) if self.published else original(self, joined)

    original = Session._record_with
    patch.setattr(Session, "_record_with", record_with)


def believe_the_session_number_alone(patch: Patch) -> None:
    def has_replaced(self: PartitionRecord, version: int, stored: PartitionRecord, stored_version: int) -> bool:
        return stored.session_id == self.session_id

    patch.setattr(PartitionRecord, "has_replaced", has_replaced)


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
