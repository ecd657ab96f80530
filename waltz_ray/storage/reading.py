"""Reading records of one segment as it was at one moment.

The files are opened anew, so nothing has to be locked or kept open for a reader.
"""

from __future__ import annotations

import numpy as np

from waltz_ray.errors import Corruption
from waltz_ray.protocol.records import RECORD_OVERHEAD_BYTES, Int64s, RecordBatch, first_bad_record
from waltz_ray.storage.disk import Disk
from waltz_ray.storage.layout import HEADER_BYTES, INDEX_ENTRY_BYTES, Scan, scan_records
from waltz_ray.storage.segment import SegmentView, read_index

__all__ = ["closed_view", "read_records", "scan_view"]

_NO_OFFSETS = np.zeros(0, dtype=np.int64)


def closed_view(disk: Disk, path: str, index_path: str, first_id: int, next_id: int) -> SegmentView:
    """A closed segment: everything is in the files. OSError if there is no such file."""
    count = next_id - first_id
    return SegmentView(path, index_path, first_id, count, disk.file_size(path), count, _NO_OFFSETS)


def _offsets(disk: Disk, view: SegmentView, start: int, stop: int) -> Int64s:
    """Where the records at positions [start, stop) begin and the last of them ends: stop - start + 1 offsets."""
    parts = []
    if start < view.flushed_count:
        handle = disk.open(view.index_path, "read")
        try:
            parts.append(read_index(disk, handle, start, min(stop + 1, view.flushed_count)))
        finally:
            disk.close(handle)
    if stop + 1 > view.flushed_count:
        parts.append(view.tail[max(0, start - view.flushed_count) : stop + 1 - view.flushed_count])
    if stop == view.count:
        parts.append(np.array([view.end], dtype=np.int64))
    offsets = np.concatenate(parts)
    if len(offsets) != stop - start + 1:
        at = HEADER_BYTES + start * INDEX_ENTRY_BYTES
        raise Corruption(view.index_path, at, "index entries are missing")
    steps = np.diff(offsets)
    if offsets[0] < HEADER_BYTES or offsets[-1] > view.end or (steps < RECORD_OVERHEAD_BYTES).any():
        raise Corruption(view.index_path, HEADER_BYTES + start * INDEX_ENTRY_BYTES, "index entries out of order")
    if int(steps.max()) > (1 << 31) - 1:
        raise Corruption(view.index_path, HEADER_BYTES + start * INDEX_ENTRY_BYTES, "index entries too far apart")
    return offsets


def _offsets_within(disk: Disk, view: SegmentView, start: int, stop: int, max_bytes: int) -> Int64s:
    """Those of [start, stop) up to ``max_bytes`` and at least one beyond, if there is one.

    How many these are is guessed from the segment's average; to look at all that could be, were they empty records,
    costs as much as to read them.
    """
    average = max(RECORD_OVERHEAD_BYTES, (view.end - HEADER_BYTES) // max(1, view.count))
    guess = 2 + max_bytes // average + max_bytes // (8 * average)
    while True:
        end = min(stop, start + guess)
        offsets = _offsets(disk, view, start, end)
        if end == stop or offsets[-1] - offsets[0] > max_bytes:
            return offsets
        guess *= 4


def read_records(
    disk: Disk, view: SegmentView, partition_id: int, first_id: int, end_id: int, max_bytes: int
) -> RecordBatch:
    """Whole records [first_id, end_id) of this segment, at least one and at most ``max_bytes`` beyond it, all checked.

    Corruption if index or records are not as they should be; OSError from the disk.
    """
    start, stop = first_id - view.first_id, min(end_id - view.first_id, view.count)
    offsets = _offsets_within(disk, view, start, stop, max(0, max_bytes))
    count = max(1, int(np.searchsorted(offsets, offsets[0] + max_bytes, side="right")) - 1)
    offsets = offsets[: count + 1]
    handle = disk.open(view.path, "read")
    try:
        body = disk.pread(handle, int(offsets[-1] - offsets[0]), int(offsets[0]))
    finally:
        disk.close(handle)
    batch = RecordBatch(partition_id, first_id, np.diff(offsets).astype(np.int32), body)
    bad = first_bad_record(batch)
    if bad >= 0:
        raise Corruption(view.path, int(offsets[bad]), f"record {first_id + bad} is damaged")
    return batch


def scan_view(disk: Disk, view: SegmentView, partition_id: int) -> Scan:
    """Every record of the segment without its index: who is to blame, index or records?"""
    handle = disk.open(view.path, "read")
    try:
        return scan_records(disk, handle, partition_id, view.first_id, HEADER_BYTES, view.first_id + view.count)
    finally:
        disk.close(handle)
