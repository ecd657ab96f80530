"""Which transactions a read covers, cut into one range per Spark task. Pure: no Spark, no sockets."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from waltz_ray.client.bounds import Bound, at_time, resolved
from waltz_ray.client.times import parsed_time
from waltz_ray.errors import InvalidInput, Trimmed

__all__ = [
    "Bound",
    "Range",
    "at_time",
    "bounds_of",
    "checked_ranges",
    "first_ids",
    "parsed_time",
    "split_ranges",
]

NOTHING_TRIMMED: Mapping[int, int] = MappingProxyType({})


class Range(NamedTuple):
    """Transactions [first_id, end_id) of one partition."""

    partition_id: int
    first_id: int
    end_id: int


def bounds_of(
    start: Bound, stop: Bound, high_water_marks: Mapping[int, int], beginnings: Mapping[int, int] = NOTHING_TRIMMED
) -> list[Range]:
    """One range per partition in ``high_water_marks`` (inclusive marks), empty ones left out.

    ``stop`` is exclusive; "latest" is behind the high-water mark, and nothing beyond that mark is read. ``beginnings``:
    partition -> the first transaction there is, if that is not 0. InvalidInput for a negative ID, a partition missing
    from a mapping, or another word; Trimmed for a range that begins before its partition.
    """
    ranges = []
    for partition_id, mark in sorted(high_water_marks.items()):
        beginning = beginnings.get(partition_id, 0)
        first_id = resolved("start", start, partition_id, mark, beginning)
        end_id = min(resolved("stop", stop, partition_id, mark, beginning), mark + 1)
        if first_id < end_id:
            ranges.append(Range(partition_id, first_id, end_id))
    return checked_ranges(ranges, beginnings)


def checked_ranges(ranges: list[Range], beginnings: Mapping[int, int]) -> list[Range]:
    """The same. Trimmed if one begins before the first transaction there is of its partition."""
    for partition_id, first_id, _ in ranges:
        if first_id < beginnings.get(partition_id, 0):
            raise Trimmed(partition_id, first_id, beginnings[partition_id])
    return ranges


def first_ids(
    start: Bound, high_water_marks: Mapping[int, int], beginnings: Mapping[int, int] = NOTHING_TRIMMED
) -> dict[int, int]:
    """Partition -> the ID at which a read from ``start`` begins, also behind the log's end. InvalidInput as above."""
    return {p: resolved("start", start, p, mark, beginnings.get(p, 0)) for p, mark in sorted(high_water_marks.items())}


def checked_task_bytes(bytes_per_task: int) -> None:
    """InvalidInput if a task cannot read so much."""
    if not isinstance(bytes_per_task, int) or isinstance(bytes_per_task, bool) or bytes_per_task < 1:
        raise InvalidInput(f"bytes_per_task must be a whole number, at least 1, not {bytes_per_task!r:.60}")


def split_ranges(ranges: list[Range], record_bytes: Mapping[int, float], bytes_per_task: int) -> list[Range]:
    """The ranges cut into consecutive ones of about ``bytes_per_task``, nearly equal within a partition.

    ``record_bytes``: average size of a record of each partition.
    """
    checked_task_bytes(bytes_per_task)
    pieces = []
    for partition_id, first_id, end_id in ranges:
        total = (end_id - first_id) * max(1.0, record_bytes.get(partition_id, 1.0))
        parts = max(1, min(end_id - first_id, round(total / bytes_per_task)))
        cuts = [first_id + (end_id - first_id) * part // parts for part in range(parts + 1)]
        pieces += [Range(partition_id, low, high) for low, high in pairwise(cuts)]
    return pieces
