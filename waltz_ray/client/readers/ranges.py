"""Which transactions a read covers, cut into one range per Spark task. Pure: no Spark, no sockets."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from waltz_ray.client.bounds import Bound, at_time, resolved
from waltz_ray.client.times import parsed_time
from waltz_ray.errors import InvalidInput

__all__ = ["Bound", "Range", "at_time", "bounds_of", "first_ids", "parsed_time", "split_ranges"]


class Range(NamedTuple):
    """Transactions [first_id, end_id) of one partition."""

    partition_id: int
    first_id: int
    end_id: int


def bounds_of(start: Bound, stop: Bound, high_water_marks: Mapping[int, int]) -> list[Range]:
    """One range per partition in ``high_water_marks`` (inclusive marks), empty ones left out.

    ``stop`` is exclusive; "latest" is behind the high-water mark, and nothing beyond that mark is read. InvalidInput
    for a negative ID, a partition missing from a mapping, or another word.
    """
    ranges = []
    for partition_id, mark in sorted(high_water_marks.items()):
        first_id = resolved("start", start, partition_id, mark)
        end_id = min(resolved("stop", stop, partition_id, mark), mark + 1)
        if first_id < end_id:
            ranges.append(Range(partition_id, first_id, end_id))
    return ranges


def first_ids(start: Bound, high_water_marks: Mapping[int, int]) -> dict[int, int]:
    """Partition -> the ID at which a read from ``start`` begins, also behind the log's end. InvalidInput as above."""
    return {p: resolved("start", start, p, mark) for p, mark in sorted(high_water_marks.items())}


def split_ranges(ranges: list[Range], record_bytes: Mapping[int, float], bytes_per_task: int) -> list[Range]:
    """The ranges cut into consecutive ones of about ``bytes_per_task``, nearly equal within a partition.

    ``record_bytes``: average size of a record of each partition.
    """
    if bytes_per_task < 1:
        raise InvalidInput(f"bytes_per_task must be at least 1, not {bytes_per_task}")
    pieces = []
    for partition_id, first_id, end_id in ranges:
        total = (end_id - first_id) * max(1.0, record_bytes.get(partition_id, 1.0))
        parts = max(1, min(end_id - first_id, round(total / bytes_per_task)))
        cuts = [first_id + (end_id - first_id) * part // parts for part in range(parts + 1)]
        pieces += [Range(partition_id, low, high) for low, high in pairwise(cuts)]
    return pieces
