"""Comparisons that Spark pushes down, as the values that a column may have. Pure; Spark's filters go by their names,
because PySpark 4.0 has none of these classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from waltz_ray.client.readers.ranges import Range

__all__ = ["PUSHED_COLUMNS", "Values", "both", "narrowed", "values_of"]

PUSHED_COLUMNS = ("partition_id", "transaction_id", "header")

Values = range | frozenset[int]
_LOWEST, _END = -(2**63), 2**63  # of what a column of Spark's can hold


def values_of(pushed: Any) -> Values | None:
    """The values of its column that a Spark filter holds for; None for a filter or a column that is left to Spark."""
    kind = type(pushed).__name__
    if kind not in _VALUES or len(pushed.attribute) != 1 or pushed.attribute[0] not in PUSHED_COLUMNS:
        return None
    numbers = list(pushed.value) if kind == "In" else [pushed.value]
    if not all(type(each) is int for each in numbers):
        return None
    return frozenset(numbers) if kind == "In" else _VALUES[kind](numbers[0])


_VALUES: Mapping[str, Any] = {
    "EqualTo": lambda value: range(value, value + 1),
    "EqualNullSafe": lambda value: range(value, value + 1),
    "GreaterThan": lambda value: range(value + 1, _END),
    "GreaterThanOrEqual": lambda value: range(value, _END),
    "LessThan": lambda value: range(_LOWEST, value),
    "LessThanOrEqual": lambda value: range(_LOWEST, value + 1),
    "In": frozenset,
}


def both(one: Values, other: Values) -> Values:
    """The values that are in both."""
    if isinstance(one, range) and isinstance(other, range):
        return range(max(one.start, other.start), min(one.stop, other.stop))
    few, others = (one, other) if isinstance(one, frozenset) else (other, one)
    return frozenset(each for each in few if each in others)


def narrowed(ranges: Iterable[Range], values: Mapping[str, Values]) -> list[Range]:
    """The ranges without the partitions, and without the transactions at either end, of which no row is wanted.

    ``values``: column -> what it may have. Exact, but for the gaps between the transaction IDs of a set.
    """
    ids = values.get("transaction_id", range(_END))
    span = ids if isinstance(ids, range) else range(min(ids, default=0), max(ids, default=-1) + 1)
    kept = []
    for partition_id, first_id, end_id in ranges:
        low, high = max(first_id, span.start), min(end_id, span.stop)
        if low < high and partition_id in values.get("partition_id", range(_END)):
            kept.append(Range(partition_id, low, high))
    return kept
