"""Rules of repair, broken (see ``mutations.py``)."""

from __future__ import annotations

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.storage import repair

__all__ = ["fetched_records_are_not_checked"]

Patch = pytest.MonkeyPatch


def fetched_records_are_not_checked(patch: Patch) -> None:
    """What a peer sends is written as it comes."""
    break_rule(patch, repair, "check_fetched", lambda *arguments: None)
