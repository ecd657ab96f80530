"""Rules of items that are written together, broken (see ``mutations.py``). Only seeds with ``KV | TOGETHER`` notice.

That they rest on all their units is what ``tests/kv/test_space_node.py`` asks.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.kv import fold, state
from waltz_ray.kv.model import Record, Several
from waltz_ray.kv.records import SetRow
from waltz_ray.kv.tables import Tables

__all__ = ["several_writes_are_folded_in_part"]

Patch = pytest.MonkeyPatch


def several_writes_are_folded_in_part(patch: Patch) -> None:
    """What is written together is half applied."""

    def part(tables: Tables, transaction_id: int, record: Record) -> None:
        original(tables, transaction_id, record.writes[0] if isinstance(record, Several) else record)

    def one_set(tables: Tables, transaction_id: int, rows: Sequence[SetRow]) -> None:
        all_sets(tables, transaction_id, rows[:1])

    original, all_sets = fold.fold, fold.fold_sets
    for module in (fold, state):
        break_rule(patch, module, "fold", part)
    break_rule(patch, state, "fold_sets", one_set)
