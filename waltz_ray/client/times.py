"""Points in time, as applications give them and get them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime, timedelta, timezone

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.times import TimeMarks

__all__ = ["in_milliseconds", "from_milliseconds", "time_of"]

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


def from_milliseconds(time_ms: int) -> datetime:
    """The time in UTC."""
    return _EPOCH + timedelta(milliseconds=min(time_ms, _LAST_MS))


def time_of(transaction_id: int, times: TimeMarks) -> datetime | None:
    """When a transaction was appended, to about a second: the mark at or below its ID. None if there is none."""
    position = bisect_right(times, transaction_id, key=lambda mark: mark[0])
    return from_milliseconds(times[position - 1][1]) if position else None
