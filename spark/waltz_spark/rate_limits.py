"""How much of what is there one batch takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from waltz_ray.client.readers.ranges import Range
from waltz_ray.errors import InvalidInput

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """At most so many records, or bytes of records, in a batch; None = no limit. At least one record is taken.

    Partitions share a limit equally; what one does not need, the others get.
    """

    max_records: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_records", "max_bytes"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidInput(f"{name}_per_trigger must be at least 1 or None, not {value!r}")

    def of(self, ranges: Sequence[Range], record_bytes: Mapping[int, float]) -> list[Range]:
        """The beginnings of the ranges (one for each partition) that fit. ``record_bytes``: average of a record."""
        taken = list(ranges)
        if self.max_records is not None:
            taken = _shared(taken, dict.fromkeys((each.partition_id for each in taken), 1.0), self.max_records)
        if self.max_bytes is not None:
            costs = {each.partition_id: max(1.0, record_bytes.get(each.partition_id, 1.0)) for each in taken}
            taken = _shared(taken, costs, self.max_bytes)
        return taken


def _shared(ranges: list[Range], costs: Mapping[int, float], budget: float) -> list[Range]:
    """Smallest first, each gets an equal share of what is left or all it needs."""
    needs = {each: (each.end_id - each.first_id) * costs[each.partition_id] for each in ranges}
    counts: dict[Range, int] = {}
    left = float(budget)
    for position, each in enumerate(sorted(ranges, key=lambda r: (needs[r], r))):
        share = left / (len(ranges) - position)
        counts[each] = min(each.end_id - each.first_id, int(share / costs[each.partition_id]))
        left -= counts[each] * costs[each.partition_id]
    if ranges and not any(counts.values()):
        # Less than one record for each: the one with most to read gets it all, and goes to the end of the queue.
        largest = max(ranges, key=lambda r: (needs[r], -r.partition_id))
        wanted = largest.end_id - largest.first_id
        counts[largest] = max(1, min(wanted, int(budget / costs[largest.partition_id])))
    return [each._replace(end_id=each.first_id + counts[each]) for each in ranges if counts[each]]
