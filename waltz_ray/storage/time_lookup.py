"""Questions about the times of one partition's records, answered from the time indexes of its segments.

Nothing is locked: files that are cut or removed meanwhile answer less precisely, and never for records that are there.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

from waltz_ray.errors import Corruption
from waltz_ray.protocol.times import TimeMark, TimeMarks, times_within
from waltz_ray.storage.disk import Disk, enough_resources, is_shortage
from waltz_ray.storage.layout import SegmentHeader, segment_path, time_path
from waltz_ray.storage.recovery import read_header
from waltz_ray.storage.time_index import TimeFile

__all__ = ["MOST_MARKS", "TimeLookup"]

MOST_MARKS = 65_536
"""In one answer: a megabyte."""


class TimeLookup:
    """The segments of a partition (their first IDs) at one moment; ``end_id`` is one past the last record.

    ``in_doubt``: records behind the newest entry may be younger than it says, but not younger than ``doubt_ends_ms``
    (None = that is not known).
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        cluster_key: uuid.UUID,
        partition_id: int,
        segments: Sequence[int],
        end_id: int,
        in_doubt: bool,
        doubt_ends_ms: int | None,
    ) -> None:
        self._disk, self._folder = disk, folder
        self._place = cluster_key, partition_id
        self._segments, self._end_id = segments, end_id
        self._in_doubt, self._doubt_ends_ms = in_doubt, doubt_ends_ms

    def _file(self, position: int) -> TimeFile:
        first_id = self._segments[position]
        try:
            header = read_header(self._disk, segment_path(self._folder, first_id), *self._place, first_id)
        except (Corruption, OSError) as error:  # of a segment that is damaged or gone nothing can be told
            if isinstance(error, OSError) and is_shortage(error):
                raise
            header = SegmentHeader(0, *self._place, first_id)
        return TimeFile(self._disk, time_path(self._folder, first_id), header)

    @cached_property
    def _begins_ms(self) -> list[int]:
        """When the first record of each segment was appended. Of one that is not known to have: when it was made, but
        not after the next one, whose records may have been copied with their times."""
        begins_ms: list[int] = []
        ends_ms: list[int] = []
        next_ms: int | None = None
        for position in reversed(range(len(self._segments))):
            with self._file(position) as file:
                first = file[0]
                ends_ms.append(file[len(file) - 1].time_ms)
            if next_ms is None or not first.loose:
                next_ms = first.time_ms
            elif first.time_ms:  # 0: not even that is known
                next_ms = min(first.time_ms, next_ms)
            begins_ms.append(next_ms)
        # Nor before the end of the one before it.
        before_ms = [0, *reversed(ends_ms[1:])]
        return [*accumulate(map(max, reversed(begins_ms), before_ms), max)]

    def marks(self, first_id: int, end_id: int) -> tuple[int, TimeMarks]:
        """(end, marks) of the records [first_id, end): all up to ``end_id``, or fewer if they have too many marks.

        OutOfResources.
        """
        end_id = min(end_id, self._end_id)
        found: list[TimeMark] = []
        position = max(0, bisect_right(self._segments, first_id) - 1)
        with enough_resources(self._folder):
            while position < len(self._segments) and self._segments[position] < end_id:
                with self._file(position) as file:
                    for index in range(file.at(first_id), len(file)):
                        entry = file[index]
                        if entry.first_id >= end_id:
                            break
                        if len(found) == MOST_MARKS:
                            return entry.first_id, times_within(found, first_id, entry.first_id)
                        unknown = index == 0 and entry.loose
                        _add(found, entry.first_id, self._begins_ms[position] if unknown else entry.time_ms)
                position += 1
        return max(first_id, end_id), times_within(found, first_id, end_id)

    def first_id_at(self, time_ms: int) -> int:
        """The first record that may have been appended at ``time_ms`` or later; one past the last if there is none.

        OutOfResources.
        """
        with enough_resources(self._folder):
            begins_ms = self._begins_ms
            after = bisect_left(begins_ms, time_ms)
            newest = after == len(self._segments)
            if after > 0:
                with self._file(after - 1) as file:
                    next_ms = self._ends_ms(file) if newest else begins_ms[after]
                    first_id = file.since(time_ms, next_ms, newest and self._in_doubt)
                if first_id >= 0:
                    return min(first_id, self._end_id)
        return self._end_id if newest else min(self._segments[after], self._end_id)

    def _ends_ms(self, newest: TimeFile) -> int | None:
        """What the records in doubt at the end of the newest file are not younger than, None = nobody knows."""
        ends_ms = self._doubt_ends_ms if self._in_doubt else None
        # A clock that has been set back says nothing of records that were dated by it before.
        return ends_ms if ends_ms is not None and ends_ms >= newest[len(newest) - 1].time_ms else None


def _add(found: list[TimeMark], transaction_id: int, time_ms: int) -> None:
    """The later of two entries of one record counts; a time that falls is not told."""
    if found and found[-1][0] == transaction_id:
        found.pop()
    found.append((transaction_id, max(time_ms, found[-1][1] if found else 0)))
