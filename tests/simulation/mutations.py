"""Every rule once broken: proof that the simulation would notice.

A mutation is a function that patches the code under test. ``KNOWN_SEEDS`` are seeds that are known to catch it, so that
CI need not search; `make simulate-mutations` finds them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.mutations_client import (
    applied_before_completion,
    callbacks_after_close,
    contexts_do_not_wait_for_who_was_in_the_way,
    fates_decided_at_a_lost_connection,
    older_pending_are_not_failed,
    own_mount_skips_what_is_pending,
    refused_transactions_are_let_go,
    rewinds_are_skipped,
    sequence_numbers_come_again,
)
from tests.simulation.mutations_sessions import (
    admissions_leave_before_what_is_in_flight,
    ambiguous_write_believed_by_session_number_alone,
    checkpoints_come_too_often,
    closing_mark_ignored_by_a_late_opener,
    closing_mark_vouches_for_unpruned_files,
    confirmation_round_is_never_begun_again,
    damaged_member_is_repaired_before_publication,
    damaged_replica_keeps_its_vote,
    late_joiner_is_registered_with_a_gap,
    late_voter_is_not_cut,
    never_joined_files_are_kept,
    owner_token_is_not_compared,
    published_by_less_than_a_quorum,
    removal_forgets_the_published_quorum,
    two_owners_of_one_session,
    votes_are_counted_with_the_new_quorum,
)
from tests.simulation.mutations_storage import (
    acknowledge_before_sync,
    cut_in_memory_only,
    damaged_records_are_served,
    empty_disk_is_taken_for_a_new_one,
    fence_is_forgotten_at_restart,
    fence_is_not_checked,
    journal_is_not_replayed,
    journal_is_used_again_too_early,
    journal_survives_a_cut,
    old_connections_may_change_the_log,
    page_cache_is_trusted_after_a_failed_sync,
    sync_errors_are_ignored,
    torn_tail_is_not_cut,
    votes_are_not_made_durable,
)
from tests.simulation.mutations_threads import (
    acknowledged_though_cut_meanwhile,
    cut_does_not_wait_for_a_running_sync,
    journal_sync_covers_what_came_during_it,
    orders_are_not_guarded,
    reads_during_a_cut_are_not_started_over,
    roll_does_not_wait_for_a_running_sync,
    segment_sync_covers_what_came_during_it,
)
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.locks import LockRequests, LockTable, OneByOne, Verdicts
from waltz_ray.protocol.messages.client import FeedMode
from waltz_ray.protocol.partition.events import Effect
from waltz_ray.protocol.partition.feed import FeedHub, Subscriber
from waltz_ray.protocol.partition.intake import Intake
from waltz_ray.protocol.partition.mounts import Mounts
from waltz_ray.protocol.partition.reign import Reign, Ruling
from waltz_ray.protocol.records import AppendBatch
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.session import Phase, Session
from waltz_ray.protocol.session_types import Committed

__all__ = ["MUTATIONS", "Mutation"]

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]


# ---- sessions -------------------------------------------------------------------------------------------------


def publish_before_copy(patch: Patch) -> None:
    def publish_if_ready(self: Session) -> None:
        for replica in self._replicas.values():
            if replica.phase in (Phase.OPENED, Phase.COPYING):
                replica.phase = Phase.HOLDING
        original(self)

    original = Session._publish_if_ready
    patch.setattr(Session, "_publish_if_ready", publish_if_ready)


def non_members_vote(patch: Patch) -> None:
    def on_opened(self: Session, replica: Any, event: Any) -> None:
        original(self, replica, event)
        if self.low_water_mark is None and not replica.damaged:
            replica.voted, replica.cut = True, None

    original = Session._on_opened
    patch.setattr(Session, "_on_opened", on_opened)


def non_members_are_not_cut(patch: Patch) -> None:
    def on_opened(self: Session, replica: Any, event: Any) -> None:
        original(self, replica, event)
        replica.cut = None

    original = Session._on_opened
    patch.setattr(Session, "_on_opened", on_opened)


def voters_are_truncated(patch: Patch) -> None:
    """A member is cut to its low-water mark before it votes, as if it were none."""

    def on_opened(self: Session, replica: Any, event: Any) -> None:
        original(self, replica, event)
        if replica.voted:
            replica.last_id = min(replica.last_id, event.local_low_water_mark)
            replica.cut = replica.last_id

    original = Session._on_opened
    patch.setattr(Session, "_on_opened", on_opened)


def shortest_vote(patch: Patch) -> None:
    def choose(self: Session) -> None:
        before = self.low_water_mark
        original(self)
        if before is None and self.low_water_mark is not None:
            self.low_water_mark = min(r.last_id for r in self._replicas.values() if r.voted)
            for replica in self._replicas.values():
                replica.cut = self.low_water_mark if replica.voted else replica.cut

    original = Session._choose_low_water_mark
    patch.setattr(Session, "_choose_low_water_mark", choose)


def one_vote_too_few(patch: Patch) -> None:
    def choose(self: Session) -> None:
        votes = [r.last_id for r in self._replicas.values() if r.voted]
        if self.low_water_mark is None and votes and len(votes) >= len(self._voters) - self._published_quorum:
            self.low_water_mark = max(votes)

    patch.setattr(Session, "_choose_low_water_mark", choose)


def unregistered_replicas_count(patch: Patch) -> None:
    def on_appended(self: Session, replica: Any, last_id: int) -> None:
        original(self, replica, last_id)
        acked = sorted(r.last_id for r in self._replicas.values() if r.phase in (Phase.MEMBER, Phase.LIVE))
        counted = acked[-self.quorum] if len(acked) >= self.quorum else NO_TRANSACTION
        if self.published and counted > self.high_water_mark:
            self.high_water_mark = counted
            self._effects.append(Committed(self.session_id, counted))

    original = Session._on_appended
    patch.setattr(Session, "_on_appended", on_appended)


def late_joiners_are_entered_nowhere(patch: Patch) -> None:
    def record_with(self: Session, joined: frozenset[int]) -> Roster:
        return replace(self.roster) if self.published else original(self, joined)

    original = Session._record_with
    patch.setattr(Session, "_record_with", record_with)


def quorum_too_small(patch: Patch) -> None:
    def commit(self: Session) -> None:
        if self.published:
            acked = sorted((r.last_id for r in self._replicas.values() if r.phase is Phase.MEMBER), reverse=True)
            if len(acked) >= self.quorum and acked[self.quorum - 2] > self.high_water_mark:
                self.high_water_mark = acked[self.quorum - 2]
                self._effects.append(Committed(self.session_id, self.high_water_mark))

    patch.setattr(Session, "_commit", commit)


def closing_mark_is_overwritten(patch: Patch) -> None:
    def record_with(self: Session, joined: frozenset[int]) -> Roster:
        record = original(self, joined)
        entries = {
            r: entry if r in joined or entry.session_id == self.session_id else replace(entry, closing_mark=mark)
            for r, entry in record.replicas.items()
            if (mark := self.low_water_mark) is not None
        }
        return replace(record, replicas=entries)

    original = Session._record_with
    patch.setattr(Session, "_record_with", record_with)


def damaged_replicas_vote(patch: Patch) -> None:
    def on_opened(self: Session, replica: Any, event: Any) -> None:
        original(self, replica, replace(event, damaged=False))

    original = Session._on_opened
    patch.setattr(Session, "_on_opened", on_opened)


def session_number_comes_again(patch: Patch) -> None:
    def roster_read(self: Reign, roster: Roster, version: int) -> list[Ruling]:
        again = roster.session_id > 1 and roster.session_id % 2 == 0
        return original(self, replace(roster, session_id=roster.session_id - 1) if again else roster, version)

    original = Reign.roster_read
    patch.setattr(Reign, "roster_read", roster_read)


def record_is_written_without_comparing(patch: Patch) -> None:
    def set_roster(self: ClusterStore, p: int, record: Roster, version: int) -> int:
        return original(self, p, record, -1)

    original = ClusterStore.set_roster
    patch.setattr(ClusterStore, "set_roster", set_roster)


# ---- partitions -----------------------------------------------------------------------------------------------


def ready_without_what_is_in_flight(patch: Patch) -> None:
    def mount(self: FeedHub, subscriber: Subscriber) -> None:
        subscriber.mount_target = NO_TRANSACTION
        original(self, subscriber)

    original = FeedHub.mount
    patch.setattr(FeedHub, "mount", mount)


def mounts_are_not_confirmed(patch: Patch) -> None:
    def confirm(self: Mounts) -> list[Effect]:
        session = self._state.session
        if session is None or not session.published:
            return []
        mounts, self._held = list(self._held.values()), {}
        return [effect for held in mounts for effect in self._attach(held)]

    patch.setattr(Mounts, "confirm", confirm)


def superseded_connections_are_accepted(patch: Patch) -> None:
    def append(self: Intake, connection_id: int, batch: AppendBatch, newest: int | None) -> list[Effect]:
        return original(self, connection_id if newest is None else newest, batch, newest)

    original = Intake.append
    patch.setattr(Intake, "append", append)


def hand_over_keeps_its_log(patch: Patch) -> None:
    def roster_read(self: Reign, roster: Roster, version: int) -> list[Ruling]:
        if self._state.log is not None:
            self._state.log.published_session = roster.last_published_session
        return original(self, roster, version)

    original = Reign.roster_read
    patch.setattr(Reign, "roster_read", roster_read)


def locks_are_not_updated(patch: Patch) -> None:
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


def locks_are_forgotten_at_a_hand_over(patch: Patch) -> None:
    def opened(self: Reign) -> list[Ruling]:
        rulings = original(self)
        if self._state.log is not None:
            self._state.log.locks = LockTable(1000, 2, NO_TRANSACTION)
        return rulings

    original = Reign._opened
    patch.setattr(Reign, "_opened", opened)


def feed_skips_a_batch(patch: Patch) -> None:
    def send(self: FeedHub, group: list[Subscriber], batch: Any, high_water_mark: int) -> Any:
        effects = original(self, group, batch, high_water_mark)
        skips = group[0].mode is not FeedMode.OWN and batch.first_id % 23 == 11 and not hasattr(self, "_skipped")
        if skips:
            self._skipped = True  # type: ignore[attr-defined]
        return [] if skips else effects

    original = FeedHub._send
    patch.setattr(FeedHub, "_send", send)


def fates_before_the_quorum(patch: Patch) -> None:
    """The feed runs ahead of the high-water mark."""

    def append(self: Session, batch: Any) -> Any:
        effects = original(self, batch)
        self.high_water_mark = max(self.high_water_mark, batch.last_id)
        return [*effects, Committed(self.session_id, batch.last_id)]

    original = Session.append
    patch.setattr(Session, "append", append)


MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        publish_before_copy,
        non_members_vote,
        non_members_are_not_cut,
        voters_are_truncated,
        shortest_vote,
        one_vote_too_few,
        unregistered_replicas_count,
        late_joiners_are_entered_nowhere,
        quorum_too_small,
        closing_mark_is_overwritten,
        damaged_replicas_vote,
        session_number_comes_again,
        record_is_written_without_comparing,
        never_joined_files_are_kept,
        closing_mark_ignored_by_a_late_opener,
        late_voter_is_not_cut,
        damaged_replica_keeps_its_vote,
        votes_are_counted_with_the_new_quorum,
        removal_forgets_the_published_quorum,
        closing_mark_vouches_for_unpruned_files,
        published_by_less_than_a_quorum,
        damaged_member_is_repaired_before_publication,
        late_joiner_is_registered_with_a_gap,
        checkpoints_come_too_often,
        admissions_leave_before_what_is_in_flight,
        confirmation_round_is_never_begun_again,
        ambiguous_write_believed_by_session_number_alone,
        owner_token_is_not_compared,
        two_owners_of_one_session,
        ready_without_what_is_in_flight,
        mounts_are_not_confirmed,
        superseded_connections_are_accepted,
        hand_over_keeps_its_log,
        locks_are_not_updated,
        locks_are_forgotten_at_a_hand_over,
        feed_skips_a_batch,
        fates_before_the_quorum,
        older_pending_are_not_failed,
        fates_decided_at_a_lost_connection,
        own_mount_skips_what_is_pending,
        sequence_numbers_come_again,
        applied_before_completion,
        callbacks_after_close,
        contexts_do_not_wait_for_who_was_in_the_way,
        refused_transactions_are_let_go,
        rewinds_are_skipped,
        acknowledge_before_sync,
        fence_is_forgotten_at_restart,
        fence_is_not_checked,
        old_connections_may_change_the_log,
        sync_errors_are_ignored,
        page_cache_is_trusted_after_a_failed_sync,
        torn_tail_is_not_cut,
        damaged_records_are_served,
        empty_disk_is_taken_for_a_new_one,
        cut_in_memory_only,
        votes_are_not_made_durable,
        journal_is_not_replayed,
        journal_survives_a_cut,
        journal_is_used_again_too_early,
        acknowledged_though_cut_meanwhile,
        journal_sync_covers_what_came_during_it,
        orders_are_not_guarded,
        roll_does_not_wait_for_a_running_sync,
        segment_sync_covers_what_came_during_it,
        reads_during_a_cut_are_not_started_over,
        cut_does_not_wait_for_a_running_sync,
    )
}
