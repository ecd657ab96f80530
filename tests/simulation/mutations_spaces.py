"""Rules of growing and of deleting spaces, broken (see ``mutations.py``). Only seeds with the bit ``GROWS`` notice."""

from __future__ import annotations

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.protocol.manager import Effect, Event, FinishFailed, ManagerMachine
from waltz_ray.protocol.placement import Assignment
from waltz_ray.protocol.spaces import SpaceTable
from waltz_ray.storage import replica_service
from waltz_ray.storage.control_file import NEVER_OPENED, ControlFile

__all__ = [
    "deleted_partitions_are_placed",
    "failed_growths_are_forgotten",
    "files_of_living_spaces_are_removed",
    "growth_forgets_the_fences",
    "partitions_that_others_have_placed_are_forgotten",
]

Patch = pytest.MonkeyPatch


def files_of_living_spaces_are_removed(patch: Patch) -> None:
    """As soon as any space was deleted."""

    def removable(table: SpaceTable, assignment: Assignment) -> frozenset[int]:
        return frozenset(range(table.partitions)) if table.gone else frozenset()

    break_rule(patch, replica_service, "removable", removable)


def deleted_partitions_are_placed(patch: Patch) -> None:
    """They stay with their servers."""
    break_rule(patch, SpaceTable, "gone", property(lambda self: frozenset()))


def failed_growths_are_forgotten(patch: Patch) -> None:
    """What a leader could not finish at once nobody finishes."""

    def step(self: ManagerMachine, event: Event) -> list[Effect]:
        return [] if isinstance(event, FinishFailed) else original(self, event)

    original = ManagerMachine.step
    break_rule(patch, ManagerMachine, "step", step)


def partitions_that_others_have_placed_are_forgotten(patch: Patch) -> None:
    """A leader believes that there are the partitions that it has made itself."""
    break_rule(patch, Assignment, "proven_partitions", lambda self: 0)


def growth_forgets_the_fences(patch: Patch) -> None:
    """The new control file has the new entries only: those of before begin anew."""

    def extend(self: ControlFile, partitions: int) -> None:
        before = len(self)
        original(self, partitions)
        if len(self) > before:
            for partition_id in range(before):
                self.make_anew(partition_id, NEVER_OPENED)

    original = ControlFile.extend
    break_rule(patch, ControlFile, "extend", extend)
