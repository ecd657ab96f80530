"""Time marks in bytes: ``int m | m times { long transaction ID, long milliseconds since 1970 }``."""

from __future__ import annotations

import struct

from waltz_ray.protocol.times import TimeMarks
from waltz_ray.wire.primitives import Reader

__all__ = ["TIME_MARK_BYTES", "read_times", "time_bytes"]

TIME_MARK_BYTES = 16

_ONE = struct.Struct(">iqq")


def read_times(reader: Reader) -> TimeMarks:
    """The next marks, with their count before them: at least 0, IDs that rise, times that do not fall."""
    count = reader.read_count("time marks", TIME_MARK_BYTES)
    numbers = struct.unpack_from(f">{2 * count}q", reader.payload, reader.need(TIME_MARK_BYTES * count))
    times = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    before_id = before_ms = -1
    for transaction_id, time_ms in times:
        if transaction_id <= before_id or time_ms < max(0, before_ms):
            reader.fail("time marks are negative, or out of order")
        before_id, before_ms = transaction_id, time_ms
    return times


def time_bytes(times: TimeMarks) -> bytes:
    """What ``read_times`` reads."""
    if len(times) == 1:
        return _ONE.pack(1, *times[0])
    numbers = [number for mark in times for number in mark]
    return struct.pack(f">i{len(numbers)}q", len(times), *numbers)
