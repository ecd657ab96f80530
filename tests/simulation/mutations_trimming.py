"""Rules of trimming, broken (see ``mutations.py``). Only seeds with the bit ``TRIMS`` notice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.coordination.hold_store import HoldStore
from waltz_ray.protocol import mounting_rules, session_rules, trimming
from waltz_ray.storage.partition_log import PartitionLog

__all__ = [
    "gaps_are_delivered",
    "holds_are_made_below_the_mark",
    "holds_keep_nothing",
    "marks_rise_above_what_is_committed",
    "replicas_that_were_left_behind_wait_for_ever",
    "segments_with_the_mark_go",
    "what_was_left_behind_is_begun_too_far_on",
]

Patch = pytest.MonkeyPatch


def marks_rise_above_what_is_committed(patch: Patch) -> None:
    """What is under way may be given up, too."""
    break_rule(patch, trimming, "highest_mark", lambda committed_id: committed_id + 5)


def holds_keep_nothing(patch: Patch) -> None:
    """Whoever raises a mark asks nobody."""

    def raised_marks(
        marks: Mapping[int, int], wanted: Mapping[int, int], holds: Iterable[Mapping[int, int]]
    ) -> dict[int, int]:
        return original(marks, wanted, [])

    original = trimming.raised_marks
    break_rule(patch, trimming, "raised_marks", raised_marks)


def holds_are_made_below_the_mark(patch: Patch) -> None:
    """Whoever makes a hold does not look whether it came in time."""
    break_rule(patch, HoldStore, "check", lambda self, positions: None)


def segments_with_the_mark_go(patch: Patch) -> None:
    """Every closed segment that has something below the mark."""

    def segments_below(segments: Sequence[int], mark: int) -> int:
        return sum(1 for first_id in segments[:-1] if first_id < mark)

    break_rule(patch, trimming, "segments_below", segments_below)


def replicas_that_were_left_behind_wait_for_ever(patch: Patch) -> None:
    """They are to be copied what is nowhere any more."""
    break_rule(patch, session_rules, "has_been_left_behind", lambda session, right_id: False)


def what_was_left_behind_is_begun_too_far_on(patch: Patch) -> None:
    """The first record that is there is left out."""

    def begin_at(self: PartitionLog, session_id: int, first_id: int) -> None:
        original(self, session_id, first_id + 1)

    original = PartitionLog.begin_at
    break_rule(patch, PartitionLog, "begin_at", begin_at)


def gaps_are_delivered(patch: Patch) -> None:
    """A client goes on further on, as if it had asked for the earliest there is."""
    break_rule(patch, mounting_rules, "may_begin_further_on", lambda earliest, position, lowest_mark: True)
