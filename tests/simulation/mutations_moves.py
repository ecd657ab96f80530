"""Rules of moving replica sets, and of replicas that join and leave, broken (see ``mutations.py``).

That a step needs a quorum, and that a newcomer has to be copied first, is broken in
``tests/protocol/test_set_moves.py``: here what else is looked at before a step (who is a member, which session was
published) makes up for either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.protocol import set_moves, set_plans
from waltz_ray.protocol.cluster_members import ClusterMembers
from waltz_ray.protocol.replica_sets import ReplicaPlace
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.set_moves import Moves

__all__ = [
    "cancelled_drains_leave_things_as_they_are",
    "changes_of_sets_are_not_told",
    "drained_replicas_are_given_partitions",
    "drains_do_not_ask_who_is_left",
    "drains_leave_what_is_on_its_way",
    "replicas_are_removed_with_their_partitions",
    "sets_are_changed_again_before_a_session",
    "steps_begin_with_who_leaves",
    "too_many_partitions_are_on_the_way",
    "what_is_wanted_anew_is_ignored",
]

Patch = pytest.MonkeyPatch


def cancelled_drains_leave_things_as_they_are(patch: Patch) -> None:
    """What is on its way stays where it is just then, also on others that are drained."""
    break_rule(patch, set_plans, "kept_on", lambda number, now, wanted, staying: now)


def sets_are_changed_again_before_a_session(patch: Patch) -> None:
    break_rule(patch, set_moves, "has_noticed", lambda roster, changed_in: True)


def what_is_wanted_anew_is_ignored(patch: Patch) -> None:
    """A partition that is on its way gets where it was to go, whatever is wanted by now."""

    def with_wanted(self: Moves, sets: Mapping[int, Iterable[int]]) -> Moves:
        return original(self, {p: one for p, one in sets.items() if p not in self.wanted})

    original = Moves.with_wanted
    break_rule(patch, Moves, "with_wanted", with_wanted)


def changes_of_sets_are_not_told(patch: Patch) -> None:
    """A changed set has the number of the change before: no server takes it for another one."""

    def with_change(self: Moves, partition: int, session_id: int) -> Moves:
        return Moves(self.change, self.wanted, {**self.changed, partition: (self.change, session_id)})

    break_rule(patch, Moves, "with_change", with_change)


def drained_replicas_are_given_partitions(patch: Patch) -> None:
    def staying(self: ClusterMembers) -> dict[int, ReplicaPlace]:
        return dict(self.places)

    break_rule(patch, ClusterMembers, "staying", property(staying))


def drains_leave_what_is_on_its_way(patch: Patch) -> None:
    """A drain looks only at partitions that are as they should be, and at the first of them."""

    def moved_off(sets: set_plans.Sets, staying: dict[int, ReplicaPlace]) -> dict[int, frozenset[int]]:
        return dict([*original(sets, staying).items()][:1])

    original = set_plans.moved_off
    break_rule(patch, set_plans, "moved_off", moved_off)


def drains_do_not_ask_who_is_left(patch: Patch) -> None:
    def draining_replica(self: ClusterMembers, number: int, largest_set: int) -> ClusterMembers:
        return replace(self, draining_replicas=self.draining_replicas | {number})

    break_rule(patch, ClusterMembers, "draining_replica", draining_replica)


def too_many_partitions_are_on_the_way(patch: Patch) -> None:
    break_rule(patch, set_moves, "MOST_AT_ONCE", 1000)


def replicas_are_removed_with_their_partitions(patch: Patch) -> None:
    def without_replica(self: ClusterMembers, number: int, held: int) -> ClusterMembers:
        return original(self.draining_replica(number, 0), number, 0)

    original = ClusterMembers.without_replica
    break_rule(patch, ClusterMembers, "without_replica", without_replica)


def steps_begin_with_who_leaves(patch: Patch) -> None:
    """First what is to go is taken away, then what is to come is added."""

    def next_step(
        roster: Roster, wanted: Iterable[int], changed_in: int | None = None, stuck: bool = False
    ) -> set_moves.ChangeSet | set_moves.Wait | set_moves.SetReached:
        target = frozenset(wanted)
        leaving = sorted(roster.members - target)
        if leaving and set_moves.has_noticed(roster, changed_in) and len(roster.replicas) > 1:
            rest = tuple(sorted(roster.replicas.keys() - {leaving[0]}))
            if set_moves.can_be_published(roster, frozenset(rest)):
                return set_moves.ChangeSet(rest, "it goes first")
        return original(roster, target, changed_in, stuck)

    original = set_moves.next_step
    break_rule(patch, set_moves, "next_step", next_step)
