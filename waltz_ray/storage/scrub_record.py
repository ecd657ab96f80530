"""Where the scrub is, across restarts: a pass over terabytes takes days, and a replica may be started anew every night.

On-disk story
    ``waltz-scrub.json`` is advice. It is written aside and renamed, without a sync: a crash leaves the old one, the new
    one, or one that cannot be read. Without it a pass begins anew, which costs reading and nothing else.
"""

from __future__ import annotations

import contextlib
import json

from waltz_ray.storage.disk import DurableDisk
from waltz_ray.storage.scrub_plan import ScrubRecord

__all__ = ["SCRUB_FILE", "read_scrub_record", "write_scrub_record"]

SCRUB_FILE = "waltz-scrub.json"


def read_scrub_record(disk: DurableDisk, directory: str) -> ScrubRecord | None:
    """What was written last, None if there is nothing that can be read."""
    try:
        handle = disk.disk.open(f"{directory}/{SCRUB_FILE}", "read")
        try:
            fields = json.loads(disk.disk.pread(handle, 16_384, 0))
        finally:
            disk.disk.close(handle)
        *names, last = ScrubRecord._fields
        numbers = [fields[name] for name in names]
        damaged = tuple((partition_id, first_id) for partition_id, first_id in fields.get(last, ()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    whole = all(number is None or isinstance(number, int) for number in numbers) and isinstance(numbers[0], int)
    if not whole or not all(isinstance(number, int) for segment in damaged for number in segment):
        return None
    began_ms, last_pass_ms, partition_id, first_id = numbers
    return ScrubRecord(began_ms, last_pass_ms, partition_id, first_id, damaged)


def write_scrub_record(disk: DurableDisk, directory: str, record: ScrubRecord) -> None:
    """For the next start. Where it cannot be written the old one is left: nothing else depends on it, so that this is
    no failure of the disk that would have to end the process."""
    path = f"{directory}/{SCRUB_FILE}"
    with contextlib.suppress(OSError):
        handle = disk.disk.open(f"{path}.new", "create")
        try:
            disk.disk.pwrite(handle, json.dumps(record._asdict()).encode(), 0)
        finally:
            disk.disk.close(handle)
        disk.disk.rename(f"{path}.new", path)
