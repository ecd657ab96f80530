"""Comparisons that Spark pushes down: partitions and transactions that need not be read, rows that need not leave.

By the names of Spark's filter classes, which PySpark 4.0 does not have. A filter that is taken is kept exactly, so
Spark need not look again; every other is Spark's to apply.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from waltz_spark.ranges import Range

__all__ = ["Comparison", "comparison_of", "narrowed", "rows"]

_COLUMNS = ("partition_id", "transaction_id", "header")
_NO_END = 2**63  # transaction IDs are signed 64-bit numbers
_HOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": np.isin,
}


class Comparison(NamedTuple):
    """``column`` <kind> ``value``; ``kind`` is the name of a Spark filter, ``value`` a list for In."""

    column: str
    kind: str
    value: Any


def comparison_of(pushed: Any) -> Comparison | None:
    """What a Spark filter says, None for one that is left to Spark. IsNotNull is not: no column of ours has nulls."""
    kind = type(pushed).__name__
    if kind not in _HOLDS or len(pushed.attribute) != 1 or pushed.attribute[0] not in _COLUMNS:
        return None
    value = list(pushed.value) if kind == "In" else pushed.value
    if not all(type(each) is int for each in (value if kind == "In" else [value])):
        return None
    return Comparison(pushed.attribute[0], kind, value)


def narrowed(ranges: Iterable[Range], comparisons: Iterable[Comparison]) -> list[Range]:
    """The ranges without partitions, and without transactions at either end, that no row may come from."""
    by_column = {column: [each for each in comparisons if each.column == column] for column in _COLUMNS}
    kept = []
    for partition_id, first_id, end_id in ranges:
        if all(_HOLDS[each.kind](partition_id, each.value) for each in by_column["partition_id"]):
            for each in by_column["transaction_id"]:
                low, high = _span(each)
                first_id, end_id = max(first_id, low), min(end_id, high)
            if first_id < end_id:
                kept.append(Range(partition_id, first_id, end_id))
    return kept


def _span(comparison: Comparison) -> tuple[int, int]:
    """[low, high) outside which the comparison holds for no transaction ID."""
    _, kind, value = comparison
    if kind == "In":
        return (min(value), max(value) + 1) if value else (0, 0)
    low = {"EqualTo": value, "EqualNullSafe": value, "GreaterThan": value + 1, "GreaterThanOrEqual": value}
    high = {"EqualTo": value + 1, "EqualNullSafe": value + 1, "LessThan": value, "LessThanOrEqual": value + 1}
    return low.get(kind, 0), high.get(kind, _NO_END)


def rows(batch: pa.RecordBatch, comparisons: Iterable[Comparison]) -> pa.RecordBatch:
    """The rows of an Arrow batch of the feed for which all comparisons hold."""
    keep = np.ones(batch.num_rows, dtype=bool)
    for column, kind, value in comparisons:
        keep &= _HOLDS[kind](batch.column(column).to_numpy(), value)
    return batch if keep.all() else batch.filter(pa.array(keep))
