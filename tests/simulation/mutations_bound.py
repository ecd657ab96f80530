"""Rules of groups that are bound, broken (see ``mutations.py``). Only seeds with ``TOPICS | BOUND`` notice."""

from __future__ import annotations

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.topics.serving import offsets

__all__ = ["masters_of_before_set_groups_back"]

Patch = pytest.MonkeyPatch


def masters_of_before_set_groups_back(patch: Patch) -> None:
    """Who led when a bound group was to begin goes on storing where, whoever leads now."""
    break_rule(patch, offsets, "has_the_word", lambda still: True)
