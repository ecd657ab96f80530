"""A storage directory of Waltz 0.13, to be read record by record; nothing of it is ever changed.

What counts as committed: every whole record that is there. The original's recovery takes the longest log of a quorum,
so what one replica has may be committed whether or not its control file says so; what it does *not* have may be, too,
and only the other replicas know. That a copy ends below the low-water mark in its own control file proves that it lacks
committed records, and such a one is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from waltz_ray.errors import Corruption, InvalidInput
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.storage.control_file import read_control_image
from waltz_ray.storage.disk import Disk
from waltz_ray.storage.layout import HEADER_BYTES, scan_records, segment_ids, segment_path
from waltz_ray.storage.store import lock_directory
from waltz_ray.storage.verify import VerifyReport, verify_directory

__all__ = ["OriginalDirectory", "open_original", "partitions_of_original"]

_MOST_RECORDS = 1000
_MOST_BYTES = 512 * 1024


class OriginalDirectory:
    """Found good, and locked against a replica of ours that would open it. Made by ``open_original``."""

    def __init__(self, disk: Disk, directory: str, report: VerifyReport) -> None:
        self.directory = directory
        self._disk = disk
        self._reports = report.partitions
        self.counts = {p: found.records for p, found in sorted(self._reports.items())}
        """Records of each partition; their IDs begin with 0."""
        self.longest_bytes = max(found.longest_bytes for found in self._reports.values())
        """Of the longest record, with its header and checksums."""

    def records(self, partition_id: int) -> Iterator[RecordBatch]:
        """All records of a partition, a few at a time: at most 1,000, and half a megabyte or one record.

        Corruption if they are not any more what they were when the directory was opened.
        """
        folder, end_id = f"{self.directory}/{partition_id}", self.counts[partition_id]
        ids = segment_ids(self._disk.listdir(folder)) if end_id else []
        for first_id, next_id in zip(ids, [*ids[1:], end_id], strict=False):
            yield from self._of_segment(segment_path(folder, first_id), partition_id, first_id, next_id)

    def _of_segment(self, path: str, partition_id: int, first_id: int, end_id: int) -> Iterator[RecordBatch]:
        handle, offset = self._disk.open(path, "read"), HEADER_BYTES
        try:
            while first_id < end_id:
                stop_id = min(end_id, first_id + _MOST_RECORDS)
                scan = scan_records(self._disk, handle, partition_id, first_id, offset, stop_id)
                if scan.reason is not None:
                    raise Corruption(path, scan.end, f"it has changed since it was verified: {scan.reason}")
                bounds = np.append(scan.offsets, scan.end)
                for start, stop in _pieces(bounds):
                    data = self._disk.pread(handle, int(bounds[stop] - bounds[start]), int(bounds[start]))
                    lengths = np.diff(bounds[start : stop + 1]).astype(np.int32)
                    yield RecordBatch(partition_id, first_id + start, lengths, data)
                first_id, offset = stop_id, scan.end
        finally:
            self._disk.close(handle)


def _pieces(bounds: np.typing.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Runs [start, stop) of records that begin at ``bounds`` and end at the last of them."""
    start, count = 0, len(bounds) - 1
    while start < count:
        stop = int(np.searchsorted(bounds, bounds[start] + _MOST_BYTES, side="right")) - 1
        stop = min(count, max(stop, start + 1))
        yield start, stop
        start = stop


def partitions_of_original(disk: Disk, directory: str) -> int:
    """Number of partitions of a directory of Waltz 0.13, at one glance.

    InvalidInput for one of ours, or none; ControlFileMissing, Corruption (of the control file).
    """
    if not disk.is_directory(directory):
        raise InvalidInput(f"{directory} is not a directory; give the storage directory of a replica of Waltz 0.13")
    image = read_control_image(disk, directory)
    if not image.original:
        raise InvalidInput(
            f"{directory} was written by waltz_ray, not by Waltz 0.13; what can be imported is made of it by: "
            f"waltz export-original {directory} --into NEW"
        )
    return len(image.slots)


@contextlib.contextmanager
def open_original(
    disk: Disk, directory: str, progress: Callable[[int], None] = lambda records: None
) -> Iterator[OriginalDirectory]:
    """Look at every byte of the directory first; ``progress`` is told the records of each segment.

    Corruption, with file, offset and reason, for the first damage, and where committed records are missing; what
    ``partitions_of_original`` raises; StorageLocked.
    """
    directory = directory.rstrip("/")
    partitions_of_original(disk, directory)
    lock = lock_directory(disk, directory, shared=True)
    try:
        report = verify_directory(disk, directory, progress=progress)
        damage = report.damage or _missing(report)
        if damage is not None:
            raise damage
        yield OriginalDirectory(disk, directory, report)
    finally:
        disk.close(lock)


def _missing(report: VerifyReport) -> Corruption | None:
    for partition_id, found in report.partitions.items():
        entry = report.control[partition_id]
        if entry is not None and found.last_id < entry.low_water_mark:
            why = (
                f"the log ends with {found.last_id}, and its control file says that {entry.low_water_mark} was "
                "committed: take the directory of another replica"
            )
            return Corruption(f"{report.directory}/{partition_id}", 0, why)
    return None
