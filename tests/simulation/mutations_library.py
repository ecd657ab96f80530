"""Rules of the library's key/value client, broken (see ``mutations.py``). Only seeds with ``KV | LIBRARY`` notice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.kv.client import scanning
from waltz_ray.kv.client.errands import PutErrand, PutJob
from waltz_ray.kv.messages import Scanned

__all__ = [
    "scans_count_whoever_speaks_for_what",
    "what_was_not_answered_has_not_happened",
]

Patch = pytest.MonkeyPatch


def what_was_not_answered_has_not_happened(patch: Patch) -> None:
    """Whoever gives a write up that was sent is told that he may as well write something else."""

    def missed(self: PutErrand, jobs: Iterable[PutJob], reason: str) -> None:
        for job in jobs:
            job.reason = reason

    break_rule(patch, PutErrand, "missed", missed)


def scans_count_whoever_speaks_for_what(patch: Patch) -> None:
    """A bucket that moves is in nobody's answer."""

    def covered(partition: int, partitions: int, answers: Sequence[Scanned]) -> bool:
        return bool(answers)

    break_rule(patch, scanning, "covered", covered)
