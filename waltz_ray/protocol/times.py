"""When records were appended: marks, as servers send them and replicas keep them.

A record's bytes have no time in them. Instead each append carries the server's wall clock, and from time to time a
replica notes a *mark*: (transaction ID, milliseconds since 1970). A list of marks rises in both; a record has the
time of the last mark at or below its ID. Records below the first mark have no time.

Marks are noted when the clock has come to another *second* (``begins_group``), so all records that share a mark were
appended within one second of the clock. What asks for a minute or an hour is therefore answered exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

__all__ = ["MARK_EVERY_BYTES", "NO_TIMES", "TimeMark", "TimeMarks", "begins_group", "joined_times", "times_within"]

TimeMark = tuple[int, int]
"""(transaction ID, milliseconds since 1970)."""

TimeMarks = tuple[TimeMark, ...]

NO_TIMES: TimeMarks = ()

MARK_EVERY_BYTES = 256 * 1024
"""After so many bytes of records a mark is noted within a second, too."""

_id = itemgetter(0)


def begins_group(time_ms: int, last_ms: int, bytes_since: int) -> bool:
    """Whether an append at ``time_ms`` is a mark of its own, ``bytes_since`` the one at ``last_ms``."""
    if time_ms // 1000 > last_ms // 1000:
        return True
    return bytes_since >= MARK_EVERY_BYTES and time_ms > last_ms


def times_within(times: Sequence[TimeMark], first_id: int, end_id: int) -> TimeMarks:
    """The marks that the records [first_id, end_id) need: the one in force at ``first_id``, put there, and those behind
    it."""
    if len(times) == 1 and times[0][0] == first_id:
        return tuple(times)
    start = bisect_right(times, first_id, key=_id)
    end = bisect_right(times, end_id - 1, lo=start, key=_id)
    before = ((first_id, times[start - 1][1]),) if start else NO_TIMES
    return (*before, *times[start:end])


def joined_times(parts: Sequence[TimeMarks]) -> TimeMarks:
    """The marks of consecutive batches as one list that rises in both: a clock that went back stands still instead."""
    marks: list[TimeMark] = []
    for part in parts:
        for transaction_id, time_ms in part:
            if not marks or time_ms > marks[-1][1]:
                marks.append((transaction_id, time_ms))
    return tuple(marks)
