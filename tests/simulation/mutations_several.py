"""Rules of items that are written together, broken (see ``mutations.py``). Only seeds with ``KV | TOGETHER`` notice.

That they rest on all their units is what ``tests/kv/test_space_node.py`` asks.
"""

from __future__ import annotations

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.kv import fold, state
from waltz_ray.kv.model import Record, Several
from waltz_ray.kv.tables import Tables

__all__ = ["several_writes_are_folded_in_part"]

Patch = pytest.MonkeyPatch


def several_writes_are_folded_in_part(patch: Patch) -> None:
    """What is written together is half applied."""

    def part(tables: Tables, transaction_id: int, record: Record) -> None:
        original(tables, transaction_id, record.writes[0] if isinstance(record, Several) else record)

    original = fold.fold
    for module in (fold, state):
        break_rule(patch, module, "fold", part)
