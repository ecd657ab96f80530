"""Offline, read-only check of a whole storage directory: every header, record, checksum and index entry.

Creation times are the only bytes without a checksum. Ours are written twice, in a segment and in its index, so a
changed one shows as a difference. Waltz 0.13 read the clock twice, and its pairs differ by milliseconds; one byte that
rotted makes exactly one pair differ, so two or more differing pairs, or a control file of Waltz 0.13 (or the copy
kept of it), mean that the original wrote here; then a difference of up to a minute is accepted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from waltz_ray.errors import Corruption
from waltz_ray.storage.compare import CopyOf, LogDigest, PartitionComparison, compare_copies
from waltz_ray.storage.control_file import CONTROL_FILE, ORIGINAL_COPY, ControlEntry, ControlImage, read_control_image
from waltz_ray.storage.disk import Disk, is_shortage
from waltz_ray.storage.journal import journal_entries
from waltz_ray.storage.layout import (
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    SegmentHeader,
    all_zero_from,
    index_path,
    is_number,
    scan_records,
    segment_ids,
    segment_path,
)
from waltz_ray.storage.recovery import read_header
from waltz_ray.storage.removal import is_removed
from waltz_ray.storage.segment import read_index
from waltz_ray.storage.store import lock_directory
from waltz_ray.storage.trimming import read_beginning

__all__ = ["PartitionReport", "VerifyReport", "compare_reports", "verify_directory"]

_DAY_MS = 24 * 3600 * 1000
_ORIGINAL_SKEW_MS = 60_000
_CREATED_AT = 4  # byte offset of the creation time in a header


@dataclass(frozen=True)
class PartitionReport:
    """What was found good: IDs [first_id, last_id] (last_id = first_id - 1: none), their number, bytes and files.

    ``first_id``: where the log begins; what was before that has been trimmed away. ``longest_bytes``: of the longest
    record, with its header and checksums.
    """

    partition_id: int
    last_id: int
    records: int
    bytes: int
    segments: int
    damage: Corruption | None = None
    first_id: int = 0
    longest_bytes: int = 0
    digest: LogDigest = field(default_factory=LogDigest, repr=False, compare=False)


@dataclass
class VerifyReport:
    """``damages``: the first of the control file and of each partition, in that order. ``notes``: what is odd and does
    no harm. ``running``: the directory was in use, so that the end of each partition may have moved while it was read.
    """

    directory: str
    cluster_key: uuid.UUID | None = None
    running: bool = False
    control: list[ControlEntry | None] = field(default_factory=list)
    partitions: dict[int, PartitionReport] = field(default_factory=dict)
    damages: list[Corruption] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.damages

    @property
    def damage(self) -> Corruption | None:
        """The first damage: file, offset, reason."""
        return self.damages[0] if self.damages else None


def verify_directory(
    disk: Disk, directory: str, allow_running: bool = False, progress: Callable[[int], None] = lambda records: None
) -> VerifyReport:
    """Check everything, change nothing. ``progress`` is told the records of each segment that has been looked at.

    StorageLocked if a replica has the directory open, unless ``allow_running``; then no lock is taken and the newest
    records and index entries are judged leniently. ControlFileMissing.
    """
    directory = directory.rstrip("/")
    report = VerifyReport(directory, running=allow_running)
    lock = None if allow_running else lock_directory(disk, directory, shared=True)
    try:
        try:
            image = read_control_image(disk, directory)
        except Corruption as damage:
            report.damages.append(damage)
            return report
        except OSError as error:
            report.damages.append(_unreadable(error, f"{directory}/{CONTROL_FILE}"))
            return report
        _verify_control(disk, image, report)
        pairs: list[_Pair] = []
        for partition_id in range(len(image.slots)):
            found = None
            while found is None and not is_removed(disk, f"{directory}/{partition_id}"):
                partition = _Partition(disk, image, directory, partition_id, allow_running, progress)
                found = partition.verify()
            if found is None:
                continue
            pairs += partition.pairs
            report.partitions[partition_id] = found
            if found.damage is not None:
                report.damages.append(found.damage)
        if not allow_running and report.ok:
            report.damages += _not_in_place(disk, directory, image.cluster_key)
        by_original = image.original or disk.exists(f"{directory}/{ORIGINAL_COPY}")
        report.damages += _wrong_pairs(pairs, by_original)
        return report
    finally:
        if lock is not None:
            disk.close(lock)


def compare_reports(
    disk: Disk, reports: list[VerifyReport], replicas: int, replication: int = 0
) -> list[PartitionComparison]:
    """The copies of every partition beside each other. There are ``replicas`` in all, ``replication`` of which (0: all)
    hold a partition; those that are not here may hold anything.

    What was found good is compared. A copy whose control file cannot be read is like one that is not here. A partition
    may be on other replicas than it was, and on more than ``replication``: on whom it is now is told from the sessions
    (``_holders``).
    """
    partitions = sorted({partition_id for report in reports for partition_id in report.partitions})
    running = any(report.running for report in reports)
    held_by = min(replication or replicas, replicas)
    compared = []
    for partition_id in partitions:
        copies = [_copy(report, partition_id) for report in reports if partition_id in report.partitions]
        elsewhere = min(held_by, replicas - len(copies))
        if held_by < replicas:
            copies = _holders([copy for copy in copies if not copy.never_used], held_by)
        size = max(held_by, len(copies))
        compared.append(compare_copies(disk, partition_id, copies, size, elsewhere, running, held_by))
    return compared


def _holders(copies: list[CopyOf], held_by: int) -> list[CopyOf]:
    """The copies that count, of those that were ever opened: what a partition has left behind where it was is none.

    Whoever is in the set, and was there, has opened the newest session. If these are fewer than a set has, others of it
    are away, and nobody can tell them from those that it was moved off; but what was moved away is given up: empty.
    """
    newest = max((copy.session_id for copy in copies), default=-1)
    now = [copy for copy in copies if copy.session_id == newest]
    if len(now) >= held_by:
        return now
    filled = [copy for copy in copies if copy.session_id == newest or copy.digest.end_id]
    return filled if len(filled) >= held_by else copies


def _copy(report: VerifyReport, partition_id: int) -> CopyOf:
    digest, entry = report.partitions[partition_id].digest, report.control[partition_id]
    return CopyOf(report.directory.rpartition("/")[2], f"{report.directory}/{partition_id}", entry, digest)


def _verify_control(disk: Disk, image: ControlImage, report: VerifyReport) -> None:
    report.cluster_key = image.cluster_key
    report.control = [image.current(partition_id) for partition_id in range(len(image.slots))]
    if image.created_ms > disk.now_ms() + _DAY_MS:
        report.damages.append(Corruption(image.path, _CREATED_AT, "the creation time is in the future"))
    for partition_id, slots in enumerate(image.slots):
        for slot, entry in enumerate(slots):
            if entry is None:
                offset = image.slot_offset(partition_id, slot)
                why = f"slot {slot} of partition {partition_id} has a wrong checksum (a torn write leaves this, too)"
                report.damages.append(Corruption(image.path, offset, why))
    if image.trailing_bytes:
        report.notes.append(
            f"{image.path}: {image.trailing_bytes} bytes behind the last entry (a tool of Waltz 0.13 lengthens the "
            "file); the replica's next start cuts them off"
        )
    directory = image.path[: -len(CONTROL_FILE) - 1]
    for name in disk.listdir(directory):
        if is_number(name) and int(name) >= len(image.slots):
            why = f"{len(image.slots)} partitions, but there is a folder {name}"
            report.damages.append(Corruption(image.path, 28, why))


def _unreadable(error: OSError, path: str) -> Corruption:
    """What the disk does not give; nothing else is any worse for it. A lack of handles or memory is raised."""
    if is_shortage(error):
        raise error
    return Corruption(path, 0, f"it cannot be read: {error.strerror}")


def _not_in_place(disk: Disk, directory: str, cluster_key: uuid.UUID) -> list[Corruption]:
    """The first record that the journal has and its segment does not: what a machine that stopped leaves."""
    for entry in journal_entries(disk, directory, cluster_key):
        if is_removed(disk, f"{directory}/{entry.partition_id}"):
            continue
        path = segment_path(f"{directory}/{entry.partition_id}", entry.first_id)
        found = b""
        if disk.exists(path):
            handle = disk.open(path, "read")
            try:
                found = disk.pread(handle, len(entry.data), entry.offset)
            finally:
                disk.close(handle)
        if found != entry.data:
            why = "records that the journal has are not here; the replica puts them in place when it starts"
            return [Corruption(path, entry.offset, why)]
    return []


@dataclass(frozen=True)
class _Pair:
    path: str
    segment_ms: int
    index_ms: int


def _wrong_pairs(pairs: list[_Pair], by_original: bool) -> list[Corruption]:
    differing = [pair for pair in pairs if pair.segment_ms != pair.index_ms]
    if by_original or len(differing) > 1:
        differing = [pair for pair in differing if abs(pair.segment_ms - pair.index_ms) > _ORIGINAL_SKEW_MS]
    why = "the creation time is not the one that the index has"
    return [Corruption(pair.path, _CREATED_AT, why) for pair in differing]


class _Partition:
    """Verifies one partition; counts what is good until the first damage."""

    def __init__(
        self,
        disk: Disk,
        image: ControlImage,
        directory: str,
        partition_id: int,
        running: bool,
        progress: Callable[[int], None],
    ) -> None:
        self.disk, self.image, self.partition_id, self.running = disk, image, partition_id, running
        self.folder = self.path = f"{directory}/{partition_id}"  # ``path``: what is being looked at
        self.pairs, self.progress = list[_Pair](), progress
        self.segment_id = 0  # of what is being looked at
        self.next_id = self.records = self.bytes = self.segments = self.longest_bytes = 0
        self.digest = LogDigest()

    def verify(self) -> PartitionReport | None:
        """None: what was looked at was trimmed away meanwhile, by the replica that runs."""
        damage = None
        try:
            self._verify()
        except (Corruption, OSError) as found:
            if self.running and self._is_gone():
                return None
            damage = found if isinstance(found, Corruption) else _unreadable(found, self.path)
        counts = self.next_id - 1, self.records, self.bytes, self.segments
        first_id, longest_bytes = self.digest.first_id, self.longest_bytes
        return PartitionReport(
            self.partition_id,
            *counts,
            damage=damage,
            first_id=first_id,
            longest_bytes=longest_bytes,
            digest=self.digest,
        )

    def _is_gone(self) -> bool:
        try:
            begin = read_beginning(self.disk, self.folder, self.image.cluster_key, self.partition_id)
        except Corruption:  # which is what was found
            return False
        return is_removed(self.disk, self.folder) or begin.first_id > self.segment_id

    def _verify(self) -> None:
        begin = read_beginning(self.disk, self.folder, self.image.cluster_key, self.partition_id)
        self.next_id, self.digest = begin.first_id, LogDigest(begin.first_id)
        self.segment_id = begin.first_id
        names = self.disk.listdir(self.folder) if self.disk.exists(self.folder) else []
        # Those below the beginning the next start removes.
        ids = [first_id for first_id in segment_ids(names) if first_id >= begin.first_id and not begin.empty]
        for first_id in ids:
            if first_id != self.next_id:
                path = segment_path(self.folder, first_id)
                raise Corruption(
                    path, 32, f"begins with record {first_id}, but the last one before is {self.next_id - 1}"
                )
            self._segment(first_id, newest=first_id == ids[-1])
        strays = sorted(first_id for first_id in {*segment_ids(names, ".idx")} - {*ids} if first_id >= begin.first_id)
        strays = [] if begin.empty else strays
        if strays:
            raise Corruption(index_path(self.folder, strays[0]), 0, "an index without a segment")
        self._marks(bool(ids) or begin.empty)

    def _marks(self, any_segment: bool) -> None:
        entry = self.image.current(self.partition_id)
        if entry is None:
            return
        if entry.session_id >= 0 and not any_segment:
            raise Corruption(self.folder, 0, f"no segment, but session {entry.session_id} was opened here")
        if self.next_id - 1 < entry.local_low_water_mark:
            why = f"the log ends with {self.next_id - 1}, below the low-water mark {entry.local_low_water_mark}"
            raise Corruption(self.folder, 0, why)

    def _segment(self, first_id: int, newest: bool) -> None:
        self.segment_id = first_id
        self.path = path = segment_path(self.folder, first_id)
        header = read_header(self.disk, path, self.image.cluster_key, self.partition_id, first_id)
        self._creation_time(header, path)
        handle = self.disk.open(path, "read")
        try:
            scan = scan_records(self.disk, handle, self.partition_id, first_id, HEADER_BYTES, data_checksums=True)
            self.segments += 1
            self.records += len(scan.offsets)
            self.bytes += scan.end - HEADER_BYTES
            self.longest_bytes = max(self.longest_bytes, int(np.diff(scan.offsets, append=scan.end).max(initial=0)))
            self.next_id += len(scan.offsets)
            self.digest.add(self.disk, handle, scan.offsets, scan.end)
            self.progress(len(scan.offsets))
            lenient = self.running and newest
            if scan.reason != "end" and not lenient:
                raise Corruption(path, scan.end, scan.reason or "not read to the end")
            garbage = all_zero_from(self.disk, handle, scan.end)
            if garbage >= 0 and not lenient:
                raise Corruption(path, garbage, "bytes that are no record behind the last record")
        finally:
            self.disk.close(handle)
        self._index(header, scan.offsets, newest)

    def _creation_time(self, header: SegmentHeader, path: str) -> None:
        if header.created_ms > self.disk.now_ms() + _DAY_MS:
            raise Corruption(path, _CREATED_AT, "the creation time is in the future")

    def _index(self, header: SegmentHeader, offsets: np.typing.NDArray[np.int64], newest: bool) -> None:
        self.path = path = index_path(self.folder, header.first_id)
        if not self.disk.exists(path):
            raise Corruption(path, 0, "the index is missing (the replica makes it again when it starts)")
        index_header = read_header(self.disk, path, self.image.cluster_key, self.partition_id, header.first_id)
        self._creation_time(index_header, path)
        segment = segment_path(self.folder, header.first_id)
        self.pairs.append(_Pair(segment, header.created_ms, index_header.created_ms))
        body_bytes = self.disk.file_size(path) - HEADER_BYTES
        count, rest = divmod(body_bytes, INDEX_ENTRY_BYTES)
        if self.running and newest:
            count, rest = min(count, len(offsets)), 0
        if rest or count > len(offsets) or (count < len(offsets) and not newest):
            why = f"{body_bytes} bytes of index entries for {len(offsets)} records"
            raise Corruption(path, HEADER_BYTES + min(count, len(offsets)) * INDEX_ENTRY_BYTES, why)
        handle = self.disk.open(path, "read")
        try:
            entries = read_index(self.disk, handle, 0, count)
        finally:
            self.disk.close(handle)
        wrong = np.flatnonzero(entries != offsets[:count])
        if len(wrong):
            at = int(wrong[0])
            why = f"entry of record {header.first_id + at} is {entries[at]}, the record is at {offsets[at]}"
            raise Corruption(path, HEADER_BYTES + at * INDEX_ENTRY_BYTES, why)
