"""Rules of sessions and of the partition that runs them, broken (see ``mutations.py``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.history import History
from waltz_ray.protocol.partition.events import Effect
from waltz_ray.protocol.partition.machine import Partition
from waltz_ray.protocol.partition.mounts import Mounts
from waltz_ray.protocol.partition.state import Stage
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.roster_write import RosterWrite
from waltz_ray.protocol.session import Phase, Session
from waltz_ray.protocol.session_types import RosterWritten, TruncateReplica
from waltz_ray.storage.replica_service import ReplicaService

__all__ = [
    "owner_token_is_not_compared",
    "two_owners_of_one_session",
    "admissions_leave_before_what_is_in_flight",
    "ambiguous_write_believed_by_session_number_alone",
    "closing_mark_ignored_by_a_late_opener",
    "closing_mark_vouches_for_unpruned_files",
    "confirmation_round_is_never_begun_again",
    "damaged_member_is_repaired_before_publication",
    "damaged_replica_keeps_its_vote",
    "checkpoints_come_too_often",
    "late_joiner_is_registered_with_a_gap",
    "late_voter_is_not_cut",
    "never_joined_files_are_kept",
    "published_by_less_than_a_quorum",
    "removal_forgets_the_published_quorum",
    "votes_are_counted_with_the_new_quorum",
]

Patch = pytest.MonkeyPatch


# ---- opening --------------------------------------------------------------------------------------------------


def never_joined_files_are_kept(patch: Patch) -> None:
    """What a replica has that was taken away and added again is believed."""

    def on_opened(self: Session, replica: Any, event: Any) -> None:
        original(self, replica, event)
        entry = self.roster.replicas[replica.replica_id]
        if entry.session_id < 0 and entry.closing_mark is None and replica.replica_id not in self._voters:
            replica.cut = None

    original = Session._on_opened
    patch.setattr(Session, "_on_opened", on_opened)


def closing_mark_ignored_by_a_late_opener(patch: Patch) -> None:
    def on_opened(self: Session, replica: Any, event: Any) -> None:
        original(self, replica, event)
        if self.published and self.roster.replicas[replica.replica_id].closing_mark is not None:
            replica.cut = None

    original = Session._on_opened
    patch.setattr(Session, "_on_opened", on_opened)


def late_voter_is_not_cut(patch: Patch) -> None:
    """A member that answers after X has been chosen may have more than X."""

    def on_opened(self: Session, replica: Any, event: Any) -> None:
        original(self, replica, event)
        if self.roster.replicas[replica.replica_id].closing_mark is None and replica.replica_id in self._voters:
            replica.cut = None

    original = Session._on_opened
    patch.setattr(Session, "_on_opened", on_opened)


def damaged_replica_keeps_its_vote(patch: Patch) -> None:
    """It voted, was lost, and comes back with less than it voted for."""

    def on_opened(self: Session, replica: Any, event: Any) -> None:
        voted = replica.voted
        original(self, replica, event)
        replica.voted |= voted

    original = Session._on_opened
    patch.setattr(Session, "_on_opened", on_opened)


def votes_are_counted_with_the_new_quorum(patch: Patch) -> None:
    def choose(self: Session) -> None:
        self._published_quorum = self.quorum
        original(self)

    original = Session._choose_low_water_mark
    patch.setattr(Session, "_choose_low_water_mark", choose)


def removal_forgets_the_published_quorum(patch: Patch) -> None:
    def with_replicas(self: Roster, replica_ids: Iterable[int]) -> Roster:
        kept = original(self, replica_ids)
        return Roster(kept.session_id, kept.generation, kept.replicas)

    original = Roster.with_replicas
    patch.setattr(Roster, "with_replicas", with_replicas)


# ---- publication ----------------------------------------------------------------------------------------------


def closing_mark_vouches_for_unpruned_files(patch: Patch) -> None:
    patch.setattr(Session, "_vouched_for", lambda self, replica_id: True)


def published_by_less_than_a_quorum(patch: Patch) -> None:
    def publish_if_ready(self: Session) -> None:
        quorum, self.quorum = self.quorum, 1
        original(self)
        self.quorum = quorum

    original = Session._publish_if_ready
    patch.setattr(Session, "_publish_if_ready", publish_if_ready)


def damaged_member_is_repaired_before_publication(patch: Patch) -> None:
    def repair(self: Session, replica: Any) -> None:
        closing_mark = self.roster.replicas[replica.replica_id].closing_mark
        right = replica.local_low_water_mark if closing_mark is None else closing_mark
        replica.damaged, replica.phase = False, Phase.TRUNCATING
        self._effects.append(TruncateReplica(self.session_id, replica.replica_id, min(right, replica.last_id)))

    patch.setattr(Session, "_repair", repair)


def late_joiner_is_registered_with_a_gap(patch: Patch) -> None:
    """Before it has what the session began with."""

    def register(self: Session, low_water_mark: int) -> None:
        ready = frozenset(self._in(Phase.LIVE))
        if ready and self._writing is None and not self._reopen_wanted:
            self._write(ready)

    patch.setattr(Session, "_register_late_joiners", register)


# ---- what a fault costs ---------------------------------------------------------------------------------------


def checkpoints_come_too_often(patch: Patch) -> None:
    patch.setattr(Partition, "_beyond_checkpoint", lambda self, high_water_mark: high_water_mark % 8 == 0)


def admissions_leave_before_what_is_in_flight(patch: Patch) -> None:
    """What a session tells leads to admissions before the rest of what it orders has been handed on."""

    def run(self: Partition, effects: list[Any]) -> None:
        for effect in effects:
            if self.stage is not Stage.IDLE:
                original(self, [effect])

    original = Partition._run
    patch.setattr(Partition, "_run", run)


def confirmation_round_is_never_begun_again(patch: Patch) -> None:
    """A round whose mounts have gone stays open, and every later mount waits for it."""

    def confirm(self: Mounts) -> list[Effect]:
        under_way = self._confirmed
        effects = original(self)
        if self._confirmed is None:
            self._confirmed = under_way
        return effects

    original = Mounts.confirm
    patch.setattr(Mounts, "confirm", confirm)


# ---- ZooKeeper ------------------------------------------------------------------------------------------------


def ambiguous_write_believed_by_session_number_alone(patch: Patch) -> None:
    def found(self: RosterWrite, stored: Roster, stored_version: int) -> RosterWritten | None:
        if stored.session_id == self.roster.session_id and stored_version > self.version:
            return self.written(stored_version)
        return original(self, stored, stored_version)

    original = RosterWrite.found
    patch.setattr(RosterWrite, "found", found)


def owner_token_is_not_compared(patch: Patch) -> None:
    """After a lost answer another process's record is taken for one's own."""

    def has_replaced(self: Roster, version: int, stored: Roster, stored_version: int) -> bool:
        return original(self, version, replace(stored, owner=self.owner), stored_version)

    original = Roster.has_replaced
    patch.setattr(Roster, "has_replaced", has_replaced)


def two_owners_of_one_session(patch: Patch) -> None:
    """The same, and replicas refuse nobody: either rule alone keeps one of the two from writing.

    That both believe to have the session is told at once otherwise; here the log itself must show it.
    """
    owner_token_is_not_compared(patch)
    patch.setattr(ReplicaService, "_check_owner", lambda self, log, request: None)
    patch.setattr(History, "taken", lambda self, who, partition_id, session_id: None)
