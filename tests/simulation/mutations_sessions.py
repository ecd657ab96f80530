"""Rules of sessions and of the roster, broken (see ``mutations.py``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.break_rule import break_rule
from tests.simulation.history import History
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.protocol import session_rules as rules
from waltz_ray.protocol.partition.reign import Reign, Ruling
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.roster_write import RosterWrite
from waltz_ray.protocol.session import Session
from waltz_ray.protocol.session_replica import Phase, SessionReplica
from waltz_ray.protocol.session_rules import SessionView
from waltz_ray.protocol.session_types import Committed, RosterWritten
from waltz_ray.storage import order_rules

__all__ = [
    "publish_before_copy",
    "non_members_vote",
    "non_members_are_not_cut",
    "voters_are_truncated",
    "shortest_vote",
    "one_vote_too_few",
    "unregistered_replicas_count",
    "late_joiners_are_entered_nowhere",
    "quorum_too_small",
    "closing_mark_is_overwritten",
    "damaged_replicas_vote",
    "never_joined_files_are_kept",
    "closing_mark_ignored_by_a_late_opener",
    "late_voter_is_not_cut",
    "damaged_replica_keeps_its_vote",
    "votes_are_counted_with_the_new_quorum",
    "removal_forgets_the_published_quorum",
    "closing_mark_vouches_for_unpruned_files",
    "published_by_less_than_a_quorum",
    "damaged_member_is_repaired_before_publication",
    "late_joiner_is_registered_with_a_gap",
    "next_piece_before_the_last_is_there",
    "fates_before_the_quorum",
    "session_number_comes_again",
    "record_is_written_without_comparing",
    "ambiguous_write_believed_by_session_number_alone",
    "any_write_of_this_session_is_taken_for_ones_own",
    "owner_token_is_not_compared",
    "two_owners_of_one_session",
]

Patch = pytest.MonkeyPatch


# ---- votes ------------------------------------------------------------------------------------------------------


def non_members_vote(patch: Patch) -> None:
    break_rule(patch, rules, "may_vote", lambda session, replica: not replica.damaged)


def damaged_replicas_vote(patch: Patch) -> None:
    break_rule(patch, rules, "may_vote", lambda session, replica: replica.replica_id in session.voters)


def damaged_replica_keeps_its_vote(patch: Patch) -> None:
    """It voted, was lost, and comes back with less than it voted for."""

    def may_vote(session: SessionView, replica: SessionReplica) -> bool:
        return replica.voted or original(session, replica)

    original = rules.may_vote
    break_rule(patch, rules, "may_vote", may_vote)


def one_vote_too_few(patch: Patch) -> None:
    original = rules.votes_needed
    break_rule(patch, rules, "votes_needed", lambda session: max(1, original(session) - 1))


def votes_are_counted_with_the_new_quorum(patch: Patch) -> None:
    break_rule(patch, rules, "votes_needed", lambda session: max(1, len(session.voters) - session.quorum + 1))


def removal_forgets_the_published_quorum(patch: Patch) -> None:
    def with_replicas(self: Roster, replica_ids: Iterable[int]) -> Roster:
        kept = original(self, replica_ids)
        return Roster(kept.session_id, kept.generation, kept.replicas)

    original = Roster.with_replicas
    break_rule(patch, Roster, "with_replicas", with_replicas)


def shortest_vote(patch: Patch) -> None:
    def low_water_mark(session: SessionView) -> int | None:
        votes = [replica.last_id for replica in session.replicas.values() if replica.voted]
        return min(votes) if len(votes) >= rules.votes_needed(session) else None

    break_rule(patch, rules, "low_water_mark", low_water_mark)


def voters_are_truncated(patch: Patch) -> None:
    """A member is cut to its low-water mark before it votes, as if it were none."""

    def low_water_mark(session: SessionView) -> int | None:
        votes = [min(r.last_id, r.local_low_water_mark) for r in session.replicas.values() if r.voted]
        return max(votes) if len(votes) >= rules.votes_needed(session) else None

    def right_up_to(session: SessionView, replica: SessionReplica, x: int) -> int:
        right_id = original(session, replica, x)
        return min(right_id, replica.local_low_water_mark) if replica.voted else right_id

    original = rules.right_up_to
    break_rule(patch, rules, "low_water_mark", low_water_mark)
    break_rule(patch, rules, "right_up_to", right_up_to)


# ---- what is cut ------------------------------------------------------------------------------------------------


def _never_joined(session: SessionView, replica: SessionReplica) -> bool:
    entry = session.roster.replicas[replica.replica_id]
    return entry.session_id < 0 and entry.closing_mark is None and replica.replica_id not in session.voters


def non_members_are_not_cut(patch: Patch) -> None:
    break_rule(patch, rules, "right_up_to", lambda session, replica, x: replica.last_id)


def never_joined_files_are_kept(patch: Patch) -> None:
    """What a replica has that was taken away and added again is believed."""

    def right_up_to(session: SessionView, replica: SessionReplica, x: int) -> int:
        return replica.last_id if _never_joined(session, replica) else original(session, replica, x)

    original = rules.right_up_to
    break_rule(patch, rules, "right_up_to", right_up_to)


def closing_mark_ignored_by_a_late_opener(patch: Patch) -> None:
    def right_up_to(session: SessionView, replica: SessionReplica, x: int) -> int:
        closed = session.roster.replicas[replica.replica_id].closing_mark is not None
        return replica.last_id if session.published and closed else original(session, replica, x)

    original = rules.right_up_to
    break_rule(patch, rules, "right_up_to", right_up_to)


def late_voter_is_not_cut(patch: Patch) -> None:
    """A member that answers after X has been chosen may have more than X."""

    def right_up_to(session: SessionView, replica: SessionReplica, x: int) -> int:
        open_entry = session.roster.replicas[replica.replica_id].closing_mark is None
        late = open_entry and replica.replica_id in session.voters
        return replica.last_id if late else original(session, replica, x)

    original = rules.right_up_to
    break_rule(patch, rules, "right_up_to", right_up_to)


def damaged_member_is_repaired_before_publication(patch: Patch) -> None:
    break_rule(patch, rules, "may_be_repaired", lambda session, replica: True)


# ---- copies and publication -------------------------------------------------------------------------------------


def publish_before_copy(patch: Patch) -> None:
    break_rule(patch, rules, "holds_the_beginning", lambda replica, x: True)


def published_by_less_than_a_quorum(patch: Patch) -> None:
    def may_be_published(session: SessionView) -> bool:
        return any(replica.phase is Phase.HOLDING for replica in session.replicas.values())

    break_rule(patch, rules, "may_be_published", may_be_published)


def closing_mark_vouches_for_unpruned_files(patch: Patch) -> None:
    break_rule(patch, rules, "vouched_for", lambda session, replica: True)


def closing_mark_is_overwritten(patch: Patch) -> None:
    def next_roster(session: SessionView, joined: frozenset[int]) -> Roster:
        roster = original(session, joined)
        entries = {
            r: entry if r in joined or entry.session_id == session.session_id else replace(entry, closing_mark=mark)
            for r, entry in roster.replicas.items()
            if (mark := session.low_water_mark) is not None
        }
        return replace(roster, replicas=entries)

    original = rules.next_roster
    break_rule(patch, rules, "next_roster", next_roster)


def late_joiners_are_entered_nowhere(patch: Patch) -> None:
    def next_roster(session: SessionView, joined: frozenset[int]) -> Roster:
        return session.roster if session.published else original(session, joined)

    original = rules.next_roster
    break_rule(patch, rules, "next_roster", next_roster)


def late_joiner_is_registered_with_a_gap(patch: Patch) -> None:
    """Before it has what the session began with."""
    break_rule(patch, rules, "may_become_member", lambda replica, x: replica.phase is Phase.LIVE)


def next_piece_before_the_last_is_there(patch: Patch) -> None:
    break_rule(patch, rules, "has_all_that_was_sent", lambda replica: not replica.reading)


# ---- commits ----------------------------------------------------------------------------------------------------


def unregistered_replicas_count(patch: Patch) -> None:
    break_rule(patch, rules, "COUNTED", (Phase.MEMBER, Phase.LIVE))


def quorum_too_small(patch: Patch) -> None:
    def committed_mark(session: SessionView) -> int:
        acked = sorted((r.last_id for r in session.replicas.values() if r.phase is Phase.MEMBER), reverse=True)
        return acked[session.quorum - 2] if len(acked) >= session.quorum else -1

    break_rule(patch, rules, "committed_mark", committed_mark)


def fates_before_the_quorum(patch: Patch) -> None:
    """The feed runs ahead of the high-water mark."""

    def append(self: Session, batch: Any) -> Any:
        effects = original(self, batch)
        self.high_water_mark = max(self.high_water_mark, batch.last_id)
        return [*effects, Committed(self.session_id, batch.last_id)]

    original = Session.append
    break_rule(patch, Session, "append", append)


# ---- the roster in ZooKeeper ------------------------------------------------------------------------------------


def session_number_comes_again(patch: Patch) -> None:
    def roster_read(self: Reign, roster: Roster, version: int) -> list[Ruling]:
        again = roster.session_id > 1 and roster.session_id % 2 == 0
        return original(self, replace(roster, session_id=roster.session_id - 1) if again else roster, version)

    original = Reign.roster_read
    break_rule(patch, Reign, "roster_read", roster_read)


def record_is_written_without_comparing(patch: Patch) -> None:
    def set_roster(self: ClusterStore, p: int, record: Roster, version: int) -> int:
        return original(self, p, record, -1)

    original = ClusterStore.set_roster
    break_rule(patch, ClusterStore, "set_roster", set_roster)


def ambiguous_write_believed_by_session_number_alone(patch: Patch) -> None:
    def found(self: RosterWrite, stored: Roster, stored_version: int) -> RosterWritten | None:
        if stored.session_id == self.roster.session_id and stored_version > self.version:
            return self.written(stored_version)
        return original(self, stored, stored_version)

    original = RosterWrite.found
    break_rule(patch, RosterWrite, "found", found)


def any_write_of_this_session_is_taken_for_ones_own(patch: Patch) -> None:
    """After a lost answer, also of an older version than the one that was to be replaced."""

    def has_replaced(self: Roster, version: int, stored: Roster, stored_version: int) -> bool:
        return stored.session_id == self.session_id

    break_rule(patch, Roster, "has_replaced", has_replaced)


def owner_token_is_not_compared(patch: Patch) -> None:
    """After a lost answer another process's record is taken for one's own."""

    def has_replaced(self: Roster, version: int, stored: Roster, stored_version: int) -> bool:
        return original(self, version, replace(stored, owner=self.owner), stored_version)

    original = Roster.has_replaced
    break_rule(patch, Roster, "has_replaced", has_replaced)


def two_owners_of_one_session(patch: Patch) -> None:
    """The same, and replicas refuse nobody: either rule alone keeps one of the two from writing.

    That both believe to have the session is told at once otherwise; here the log itself must show it.
    """
    owner_token_is_not_compared(patch)
    break_rule(patch, order_rules, "check_owner", lambda log, request, owner: None)
    break_rule(patch, History, "taken", lambda self, who, partition_id, session_id: None)
