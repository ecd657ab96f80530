"""Rules of the cluster manager, broken (see ``mutations.py``)."""

from __future__ import annotations

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.protocol.manager import Effect, Event, ManagerMachine, WriteFailed

__all__ = ["failed_writes_of_the_assignment_are_forgotten"]


def failed_writes_of_the_assignment_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    def step(self: ManagerMachine, event: Event) -> list[Effect]:
        return [] if isinstance(event, WriteFailed) else original(self, event)

    original = ManagerMachine.step
    break_rule(patch, ManagerMachine, "step", step)
