"""A replica's directory as Waltz 0.13 has one: the same segments and indexes, and a control file of its entries.

What is different: the records that the journal has are put in their segments; what is behind the last whole record, a
torn tail or space written ahead, is cut, as the replica's next start would; indexes are written from the segments; time
indexes and the journal are left out; of a partition whose space was deleted there is neither a folder nor a fence.

On-disk story
    Nothing is written into the source. The target's control file comes last, whole, when all else is durable: without
    it neither we nor anybody should believe what is there. A crash before leaves a target without one, which is to be
    deleted; nothing goes on from there.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from waltz_ray.errors import Corruption, DiskFull, InvalidInput
from waltz_ray.storage.control_file import (
    NEVER_OPENED,
    ControlEntry,
    ControlImage,
    read_control_image,
    write_original_control_file,
)
from waltz_ray.storage.disk import Disk, DurableDisk
from waltz_ray.storage.journal import JournalEntry, journal_entries
from waltz_ray.storage.layout import (
    HEADER_BYTES,
    Scan,
    SegmentHeader,
    all_zero_from,
    index_path,
    scan_records,
    segment_ids,
    segment_path,
)
from waltz_ray.storage.recovery import write_index_file
from waltz_ray.storage.removal import is_removed
from waltz_ray.storage.store import lock_directory
from waltz_ray.storage.trimming import FROM_THE_START, read_beginning

__all__ = ["Exported", "export_original"]

_COPY_BYTES = 1 << 20


@dataclass
class Exported:
    """What is in the target: records of each partition (None: its space was deleted), segments, bytes in all.

    ``notes``: torn tails, which are not in it.
    """

    records: dict[int, int | None]
    segments: int = 0
    bytes: int = 0
    notes: list[str] = field(default_factory=list)


def export_original(
    disk: Disk, directory: str, target: str, progress: Callable[[int, int], None] = lambda done, total: None
) -> Exported:
    """Make ``target``, which is not there or empty, of a replica's ``directory``, whose replica does not run.

    ``progress`` is told the segments copied and their number. InvalidInput: it is none of ours, or what 0.13 cannot
    read (a log without its beginning). Corruption: damage that the replica's next start would not mend either.
    StorageLocked, ControlFileMissing, DiskFull.
    """
    directory, target = directory.rstrip("/"), target.rstrip("/")
    if not disk.is_directory(directory):
        raise InvalidInput(f"{directory} is not a directory; give that of a replica")
    lock = lock_directory(disk, directory, shared=True)
    try:
        image = read_control_image(disk, directory)
        if image.original:
            raise InvalidInput(f"{directory} is a directory of Waltz 0.13 already; copy it")
        with _new_directory(disk, directory, target):
            return _Export(DurableDisk(disk), image, directory, target, progress).run()
    finally:
        disk.close(lock)


@contextmanager
def _new_directory(disk: Disk, directory: str, target: str) -> Iterator[None]:
    """The target is there, empty, and nobody else's."""
    if f"{target}/".startswith(f"{directory}/"):
        raise InvalidInput(f"{target} is within {directory}, which is not written to; take another place")
    if not disk.exists(target):
        DurableDisk(disk).mkdir(target)
    elif not disk.is_directory(target):
        raise InvalidInput(f"{target} is no directory; give one that is not there, or empty")
    lock = lock_directory(disk, target)
    try:
        if disk.listdir(target):
            raise InvalidInput(
                f"{target} is not empty; give one that is not there (one without a waltz-storage.ctl may be what "
                "an interrupted export has left: delete it then)"
            )
        yield
    finally:
        disk.close(lock)


class _Export:
    def __init__(
        self, disk: DurableDisk, image: ControlImage, directory: str, target: str, progress: Callable[[int, int], None]
    ) -> None:
        self._disk, self._image, self._directory, self._target = disk, image, directory, target
        self._progress = progress
        self._key: uuid.UUID = image.cluster_key
        self._journal: dict[tuple[int, int], list[JournalEntry]] = {}
        self._done = Exported({})

    def run(self) -> Exported:
        disk, partitions = self._disk.disk, range(len(self._image.slots))
        entries = [self._entry(p) for p in partitions]
        segments = {p: self._segments(p, entry) for p, entry in enumerate(entries) if entry is not None}
        total = sum(map(len, segments.values()))
        sizes = [disk.file_size(segment_path(f"{self._directory}/{p}", i)) for p, ids in segments.items() for i in ids]
        if (missing := sum(sizes) - disk.free_bytes(self._target)) > 0:
            raise DiskFull(f"{self._target}: {missing:,} bytes too few are free for {sum(sizes):,}; make room")
        for one in journal_entries(disk, self._directory, self._key):
            self._journal.setdefault((one.partition_id, one.first_id), []).append(one)
        for p, first_id in self._journal:
            if p in segments and first_id not in segments[p]:
                path = segment_path(f"{self._directory}/{p}", first_id)
                raise Corruption(path, 0, "the journal has records of it, and it is not there")
        for p, entry in enumerate(entries):
            self._done.records[p] = None if entry is None else 0
            if entry is not None and segments[p]:
                self._copy_partition(p, entry, segments[p], total)
        self._disk.fsync_directory(self._target)
        write_original_control_file(self._disk, self._target, self._image, entries)
        self._disk.fsync_directory(self._target.rpartition("/")[0] or "/")
        return self._done

    def _entry(self, partition_id: int) -> ControlEntry | None:
        """None: there is nothing of it, for its space was deleted."""
        if is_removed(self._disk.disk, f"{self._directory}/{partition_id}"):
            return None
        entry = self._image.current(partition_id)
        if entry is None:
            offset = self._image.slot_offset(partition_id, 0)
            raise Corruption(self._image.path, offset, f"both slots of partition {partition_id} have wrong checksums")
        return entry

    def _segments(self, partition_id: int, entry: ControlEntry) -> list[int]:
        disk, folder = self._disk.disk, f"{self._directory}/{partition_id}"
        begin = read_beginning(disk, folder, self._key, partition_id)
        if begin != FROM_THE_START:
            raise InvalidInput(
                f"{folder}: the log begins with transaction {begin.first_id}, what was before has been trimmed away; "
                "Waltz 0.13 reads a log from transaction 0 on, or not at all"
            )
        ids = segment_ids(disk.listdir(folder)) if disk.exists(folder) else []
        if not ids and entry != NEVER_OPENED:
            raise Corruption(folder, 0, f"no segment, but session {entry.session_id} was opened here")
        if ids and ids[0]:
            raise Corruption(segment_path(folder, 0), 0, f"transactions 0 to {ids[0] - 1} are missing")
        return ids

    def _copy_partition(self, partition_id: int, entry: ControlEntry, ids: list[int], total: int) -> None:
        folder = f"{self._target}/{partition_id}"
        self._disk.mkdir(folder)
        end_id = 0
        for first_id, next_id in zip(ids, [*ids[1:], None], strict=True):
            end_id = self._copy_segment(partition_id, first_id, next_id, end_id, entry)
            self._done.segments += 1
            self._progress(self._done.segments, total)
        self._disk.fsync_directory(folder)
        self._done.records[partition_id] = end_id

    def _copy_segment(
        self, partition_id: int, first_id: int, next_id: int | None, end_id: int, entry: ControlEntry
    ) -> int:
        """The ID behind its last record. ``next_id``: what the next segment begins with, None for the newest."""
        disk, source = self._disk.disk, segment_path(f"{self._directory}/{partition_id}", first_id)
        path = segment_path(f"{self._target}/{partition_id}", first_id)
        handle = self._disk.create(path)
        try:
            self._copy_bytes(source, handle, path)
            for late in self._journal.get((partition_id, first_id), []):
                self._disk.pwrite(handle, path, late.data, late.offset)
            try:
                raw = disk.pread(handle, HEADER_BYTES, 0)
                header = SegmentHeader.check(raw, source, self._key, partition_id, first_id)
            except Corruption:
                used = all_zero_from(disk, handle, HEADER_BYTES) >= 0
                needed = end_id <= entry.local_low_water_mark or (not first_id and entry.session_id >= 0)
                if next_id is not None or used or needed:
                    raise
                self._disk.unlink(path)  # a crash has interrupted its creation
                return end_id
            scan = scan_records(disk, handle, partition_id, first_id, HEADER_BYTES, next_id)
            end_id = first_id + len(scan.offsets)
            if next_id is not None:
                self._check_closed(source, handle, scan, next_id)
            else:
                self._check_newest(source, scan, end_id, entry)
            self._disk.truncate(handle, path, scan.end)
            self._disk.fsync(handle, path)
        finally:
            disk.close(handle)
        write_index_file(self._disk, f"{self._target}/{partition_id}", header, scan.offsets)
        self._done.bytes += scan.end + disk.file_size(index_path(f"{self._target}/{partition_id}", first_id))
        return end_id

    def _copy_bytes(self, source: str, handle: int, path: str) -> None:
        disk, offset = self._disk.disk, 0
        reading = disk.open(source, "read")
        try:
            while chunk := disk.pread(reading, _COPY_BYTES, offset):
                self._disk.pwrite(handle, path, chunk, offset)
                offset += len(chunk)
        finally:
            disk.close(reading)

    def _check_closed(self, source: str, handle: int, scan: Scan, next_id: int) -> None:
        if scan.reason is not None:
            why = "the records end" if scan.reason == "end" else scan.reason
            raise Corruption(source, scan.end, f"{why}, but the next segment begins with record {next_id}")
        garbage = all_zero_from(self._disk.disk, handle, scan.end)
        if garbage >= 0:
            raise Corruption(source, garbage, "bytes that are no record behind the last record")

    def _check_newest(self, source: str, scan: Scan, end_id: int, entry: ControlEntry) -> None:
        why = "the records end" if scan.reason == "end" else str(scan.reason)
        if end_id <= entry.local_low_water_mark:
            raise Corruption(source, scan.end, f"{why}, below the local low-water mark {entry.local_low_water_mark}")
        if scan.reason != "end":
            self._done.notes.append(f"{source}: {why}; it is cut there, at byte {scan.end}, as by the replica's start")
