"""Points in time, as applications give them and get them. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from datetime import datetime, timedelta, timezone

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.times import TimeMark, TimeMarks

__all__ = ["WantedTimes", "from_milliseconds", "in_milliseconds", "parsed_time", "time_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST_MS = (datetime.max.replace(tzinfo=timezone.utc) - _EPOCH) // timedelta(milliseconds=1)


def in_milliseconds(name: str, when: datetime) -> int:
    """Milliseconds since 1970, rounded up. InvalidInput for what is no time, or names no time zone."""
    if not isinstance(when, datetime):
        raise InvalidInput(f"{name} must be a datetime, not {type(when).__name__}: {when!r:.60}")
    if when.tzinfo is None or when.utcoffset() is None:
        raise InvalidInput(
            f"{name} must say its time zone: {when!r} does not; for example datetime(..., tzinfo=timezone.utc)"
        )
    return max(0, -((_EPOCH - when) // timedelta(milliseconds=1)))


def parsed_time(text: str) -> datetime:
    """ISO 8601, with a zone or without. ValueError."""
    return datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text.strip()))  # that of Python 3.10 knows no Z


def from_milliseconds(time_ms: int) -> datetime:
    """The time in UTC."""
    return _EPOCH + timedelta(milliseconds=min(time_ms, _LAST_MS))


class WantedTimes:
    """The marks of transactions [first_id, end_id), asked for until all have come: an answer may have fewer."""

    def __init__(self, first_id: int, end_id: int) -> None:
        self.first_id = first_id
        """Of what is still to be asked for."""
        self.end_id = end_id
        self._found: list[TimeMark] = []

    @property
    def missing(self) -> bool:
        """There is something to be asked for."""
        return self.first_id < self.end_id

    def take(self, end_id: int, times: TimeMarks) -> None:
        """An answer, about the transactions up to ``end_id``; one that comes no further is the last there is."""
        self._found += times
        if end_id <= self.first_id:
            self.end_id = self.first_id
        self.first_id = max(self.first_id, end_id)

    @property
    def times(self) -> TimeMarks:
        return tuple(self._found)


def time_of(transaction_id: int, times: TimeMarks) -> datetime | None:
    """When a transaction was appended, to about a second: the mark at or below its ID. None if there is none."""
    position = bisect_right(times, transaction_id, key=lambda mark: mark[0])
    return from_milliseconds(times[position - 1][1]) if position else None
