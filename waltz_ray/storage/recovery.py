"""Opening a partition: find the end of its log, cut what a crash left, tell damage from crash.

``ActiveSegment`` has the story of the files. What follows from it:

* every segment but the newest must be complete; a fault there is damage. Of one that lies wholly at or below the local
  low-water mark the log goes on behind it, and it is fetched from a peer (``log_rules.may_be_fetched``, ``repair.py``);
* a newest segment with a bad header and only zeros behind it was never used and is removed;
* the newest segment is scanned from its last index entry, looked for from the low-water mark on; behind the last
  whole record everything is cut, unless the log would then end below the local low-water mark, which no crash can
  do: that is damage;
* segments below the log's beginning (``trimming.py``) are left over from a trim and are removed;
* no segment at all where a session was once opened is damage: the first segment is made before the first fence.

Damage changes nothing on disk, so that a person can look at it; truncating below it makes the partition whole again.

After a failed sync
    The kernel has marked the pages clean that it could not write. They read as they should, the next sync succeeds and
    writes nothing of them, and when the power goes they are not there. So what a start reads proves nothing: not as a
    vote, not below what is appended behind it. It writes what is not proven once more, syncs, and only then takes it
    for durable (``ActiveSegment.settle``). Proven are

    * closed segments: ``finish`` syncs a segment before its successor is made, also where the journal had made its
      records durable; names and lengths are kept by the file system's journal, late perhaps, but not lost;
    * of the newest segment what its index has, for an entry is only written for a record that is durable. That holds
      whether or not the entry itself is on the disk. Entries of another segment that once had the name do not count:
      they are told by the header, which must be ours to the creation time. An entry of a record that only the journal
      had made durable counts, too: ``replay`` has written it into the segment before, and synced;
    * everything, if the local low-water mark is where the log ends: records are synced before a mark is written.

    What follows the last index entry is at most ``index_flush_interval`` records and what was appended after the last
    sync, so a start stays cheap; it is all of the segment only where the index is lost or is not ours. The header is
    written again, too: a segment may have been made by a process that failed in just that. Bytes that were durable are
    the same on the disk, so a crash while they are written again changes nothing; the others nobody was told of.
    The index is written after the sync of the records that it speaks for, from the last checkpoint on (where it was
    synced itself): entries in the page cache only would be missing in the middle of a segment that is closed later.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from waltz_ray.errors import Corruption, DiskFull
from waltz_ray.protocol.records import RECORD_HEADER_BYTES, RECORD_OVERHEAD_BYTES, Int64s
from waltz_ray.storage import log_rules as rules
from waltz_ray.storage.control_file import ControlEntry
from waltz_ray.storage.disk import Disk, DurableDisk, is_unreadable
from waltz_ray.storage.layout import (
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    SegmentHeader,
    all_zero_from,
    index_path,
    scan_records,
    segment_ids,
    segment_path,
    time_path,
)
from waltz_ray.storage.segment import ActiveSegment, read_index
from waltz_ray.storage.trimming import Beginning, read_beginning, remove_beginning, write_beginning

__all__ = [
    "Recovered",
    "begin_anew",
    "cut_files",
    "open_files",
    "read_header",
    "remove_below",
    "write_index_file",
]


class Recovered(NamedTuple):
    """A partition as found: ``segments`` are the first IDs of all good ones, the active one last.

    ``rotten``: those of the closed ones that are to be fetched from a peer, and why."""

    segments: list[int]
    active: ActiveSegment | None
    last_id: int
    damaged: Corruption | None
    first_id: int = 0  # where the log begins
    rotten: Mapping[int, Corruption] = MappingProxyType({})


class _Folder(NamedTuple):
    disk: DurableDisk
    path: str
    cluster_key: uuid.UUID
    partition_id: int


def read_header(disk: Disk, path: str, cluster_key: uuid.UUID, partition_id: int, first_id: int) -> SegmentHeader:
    """The header of a segment or index file; Corruption if it is not that of this place."""
    handle = disk.open(path, "read")
    try:
        return SegmentHeader.check(disk.pread(handle, HEADER_BYTES, 0), path, cluster_key, partition_id, first_id)
    except OSError as error:
        if not is_unreadable(error):
            raise
        raise Corruption(path, 0, f"the header cannot be read: {error.strerror}", unreadable=True) from error
    finally:
        disk.close(handle)


def open_files(
    disk: DurableDisk, path: str, cluster_key: uuid.UUID, partition_id: int, entry: ControlEntry, repair: bool = False
) -> Recovered:
    """Recover the partition in folder ``path``. ``entry`` is its control entry; ``repair``: there is somebody who
    fetches rotten segments."""
    folder = _Folder(disk, path, cluster_key, partition_id)
    try:
        beginning = read_beginning(disk.disk, path, cluster_key, partition_id)
    except Corruption as lost:
        return Recovered([], None, -1, lost)
    if beginning.empty:
        return begin_anew(disk, path, cluster_key, partition_id, beginning.first_id)
    remove_below(disk, path, beginning.first_id)
    return _open_segments(folder, beginning.first_id, entry, repair)._replace(first_id=beginning.first_id)


def _open_segments(folder: _Folder, begin_id: int, entry: ControlEntry, repair: bool) -> Recovered:
    """The log that begins with ``begin_id``."""
    disk, path = folder.disk, folder.path
    names = disk.disk.listdir(path) if disk.disk.exists(path) else []
    ids = segment_ids(names)
    if ids and _never_used(folder, ids[-1]) and (len(ids) > 1 or entry.session_id < 0):
        _remove_segment(folder, ids.pop())
    if not ids:
        lost = Corruption(path, 0, f"no segment, but session {entry.session_id} was opened here")
        if entry.session_id < 0:  # of the first segment's creation a crash may have left the index alone
            _remove_strays(folder, names, ids)
        return Recovered([], None, begin_id - 1, lost if entry.session_id >= 0 else None)
    if ids[0] != begin_id:
        lost = Corruption(segment_path(path, begin_id), 0, f"transactions {begin_id} to {ids[0] - 1} are missing")
        return Recovered([], None, begin_id - 1, lost)
    rotten: dict[int, Corruption] = {}
    for position, first_id in enumerate(ids[:-1]):
        end_id = ids[position + 1]
        last_id, damage = _check_closed(folder, first_id, end_id)
        if damage is not None and not (repair and rules.may_be_fetched(entry.local_low_water_mark, end_id)):
            return Recovered(ids[: position + 1], None, last_id, damage, rotten=rotten)
        if damage is not None:
            rotten[first_id] = damage
    found = _open_newest(folder, ids, entry)._replace(rotten=rotten)
    if found.damaged is None:
        _remove_strays(folder, names, ids)
    return found


def _remove_strays(folder: _Folder, names: list[str], ids: list[int]) -> None:
    """Indexes without a segment, and temporary ones: what a crash leaves of a cut, a creation or a rebuild."""
    for stray in set(segment_ids(names, ".idx")) - set(ids):
        folder.disk.unlink(index_path(folder.path, stray))
    for stray in set(segment_ids(names, ".tix")) - set(ids):
        folder.disk.unlink(time_path(folder.path, stray))
    for suffix in (".idx", ".seg"):
        for stray in segment_ids(names, f"{suffix}.new"):
            folder.disk.unlink(f"{folder.path}/{stray:019d}{suffix}.new")


def _open_newest(folder: _Folder, ids: list[int], entry: ControlEntry) -> Recovered:
    first_id = ids[-1]
    path = segment_path(folder.path, first_id)
    try:
        header = read_header(folder.disk.disk, path, folder.cluster_key, folder.partition_id, first_id)
    except Corruption as damage:
        return Recovered(ids, None, first_id - 1, damage)
    active, reason = ActiveSegment.recover(folder.disk, folder.path, header, durable_id=entry.local_low_water_mark)
    if active.unreadable:  # no torn tail: it may have been acknowledged, and be a vote
        active.abandon()
        return Recovered(ids, None, active.last_id, Corruption(path, active.end, str(reason), unreadable=True))
    if active.last_id < entry.local_low_water_mark:
        active.abandon()
        why = "the records end" if reason in (None, "end") else reason
        short = Corruption(path, active.end, f"{why}, below the local low-water mark {entry.local_low_water_mark}")
        return Recovered(ids, None, active.last_id, short)
    _settle(active, folder)
    return Recovered(ids, active, active.last_id, None)


def _settle(active: ActiveSegment, folder: _Folder) -> None:
    try:
        active.settle()
        folder.disk.fsync_directory(folder.path)  # a process killed while making the segment left a name that is not
    except BaseException:  # a full disk above all: whoever opens the partition tries again
        active.abandon()
        raise


def _never_used(folder: _Folder, first_id: int) -> bool:
    """Whether a crash interrupted the creation of this segment: no good header and nothing behind it."""
    disk, path = folder.disk.disk, segment_path(folder.path, first_id)
    try:
        read_header(disk, path, folder.cluster_key, folder.partition_id, first_id)
    except Corruption as damage:
        if damage.unreadable:
            return False
        handle = disk.open(path, "read")
        try:
            return all_zero_from(disk, handle, HEADER_BYTES) < 0
        finally:
            disk.close(handle)
    return False


def _remove_segment(folder: _Folder, first_id: int) -> None:
    """Unlink durably before anything else: unlinks that reach the disk out of order would leave a gap."""
    folder.disk.unlink(segment_path(folder.path, first_id))
    folder.disk.fsync_directory(folder.path)
    folder.disk.unlink(index_path(folder.path, first_id))
    folder.disk.unlink(time_path(folder.path, first_id))


def _check_closed(folder: _Folder, first_id: int, next_id: int) -> tuple[int, Corruption | None]:
    """(last good ID, damage) of a closed segment. Reads its ends only, and all of it if those look wrong."""
    path = segment_path(folder.path, first_id)
    try:
        return _look_at_closed(folder, path, first_id, next_id)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return first_id - 1, Corruption(path, 0, f"cannot be read: {error.strerror}", unreadable=True)


def _look_at_closed(folder: _Folder, path: str, first_id: int, next_id: int) -> tuple[int, Corruption | None]:
    disk = folder.disk.disk
    try:
        header = read_header(disk, path, folder.cluster_key, folder.partition_id, first_id)
    except Corruption as damage:
        return first_id - 1, damage
    handle = disk.open(path, "read")
    try:
        size = disk.size(handle)
        if _ends_agree(folder, handle, size, first_id, next_id):
            return next_id - 1, None
        scan = scan_records(disk, handle, folder.partition_id, first_id, HEADER_BYTES, next_id)
        garbage = all_zero_from(disk, handle, scan.end) if scan.reason is None else -1
    finally:
        disk.close(handle)
    last_id = first_id + len(scan.offsets) - 1
    if scan.reason is not None:
        why = "the records end" if scan.reason == "end" else scan.reason
        why = f"{why}, but the next segment begins with record {next_id}"
        return last_id, Corruption(path, scan.end, why, scan.unreadable)
    if garbage >= 0:
        return last_id, Corruption(path, garbage, "bytes that are no record behind the last record")
    if scan.end != size:  # space written ahead that was never given back
        _cut_file(folder.disk, path, scan.end)
    with contextlib.suppress(DiskFull):  # who reads it makes it: a start must not need room, for it is to make some
        write_index_file(folder.disk, folder.path, header, scan.offsets)
    return last_id, None


def _ends_agree(folder: _Folder, handle: int, size: int, first_id: int, next_id: int) -> bool:
    """Whether the index has exactly the entries it should, and the last one points at the record that ends the file."""
    try:
        return _ends_as_indexed(folder, handle, size, first_id, next_id)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return False


def _ends_as_indexed(folder: _Folder, handle: int, size: int, first_id: int, next_id: int) -> bool:
    disk, path = folder.disk.disk, index_path(folder.path, first_id)
    count = next_id - first_id
    if not disk.exists(path) or disk.file_size(path) != HEADER_BYTES + count * INDEX_ENTRY_BYTES:
        return False
    index = disk.open(path, "read")
    try:
        raw = disk.pread(index, HEADER_BYTES, 0)
        SegmentHeader.check(raw, path, folder.cluster_key, folder.partition_id, first_id)
        last = int(read_index(disk, index, count - 1, count)[0])
    except Corruption:
        return False
    finally:
        disk.close(index)
    if not HEADER_BYTES <= last <= size - RECORD_OVERHEAD_BYTES:
        return False
    head = disk.pread(handle, RECORD_HEADER_BYTES, last)
    transaction_id, data_length = int.from_bytes(head[:8], "big"), int.from_bytes(head[28:32], "big")
    return transaction_id == next_id - 1 and last + data_length + RECORD_OVERHEAD_BYTES == size


def _cut_file(disk: DurableDisk, path: str, size: int) -> None:
    handle = disk.disk.open(path, "write")
    try:
        disk.truncate(handle, path, size)
        disk.fsync(handle, path)
    finally:
        disk.disk.close(handle)


def write_index_file(disk: DurableDisk, folder: str, header: SegmentHeader, offsets: Int64s) -> None:
    """Replace the index of a closed segment, atomically: readers may have the old one open. DiskFull: it is as it was,
    and nothing of another one is left."""
    content = header.encode() + np.asarray(offsets, dtype=">i8").tobytes()
    disk.replace_file(index_path(folder, header.first_id), content)


def cut_files(
    disk: DurableDisk, path: str, cluster_key: uuid.UUID, partition_id: int, last_id: int, begin_id: int = 0
) -> Recovered:
    """Keep records up to ``last_id`` only, durably. The newest segment left becomes the active one.

    Newest files go first, each durably, so a crash in between leaves a shorter log and never a gap.
    ``damaged`` if the records from ``begin_id``, where the log begins, up to ``last_id`` are not all there.
    """
    folder = _Folder(disk, path, cluster_key, partition_id)
    disk.have_folder(path)
    ids = segment_ids(disk.disk.listdir(path))
    while ids and ids[-1] > max(last_id, begin_id):
        _remove_segment(folder, ids.pop())
    if begin_id == 0:
        remove_beginning(disk, path)
    if not ids or (last_id < begin_id and _header_is_bad(folder, begin_id)):
        if last_id >= begin_id:
            lost = Corruption(segment_path(path, begin_id), 0, f"transactions {begin_id} to {last_id} are missing")
            return Recovered([], None, begin_id - 1, lost, begin_id)
        header = SegmentHeader(disk.disk.now_ms(), cluster_key, partition_id, begin_id)
        return Recovered([begin_id], ActiveSegment.create(disk, path, header), begin_id - 1, None, begin_id)
    newest = segment_path(path, ids[-1])
    try:
        header = read_header(disk.disk, newest, cluster_key, partition_id, ids[-1])
    except Corruption as damage:
        return Recovered(ids, None, ids[-1] - 1, damage, begin_id)
    active, reason = ActiveSegment.recover(disk, path, header, stop_id=last_id + 1)
    if active.last_id != last_id:
        active.abandon()
        short = Corruption(newest, active.end, f"{reason}, so the log cannot be cut to transaction {last_id}")
        return Recovered(ids, None, active.last_id, short, begin_id)
    _settle(active, folder)
    return Recovered(ids, active, last_id, None, begin_id)


def remove_below(disk: DurableDisk, path: str, begin_id: int) -> None:
    """Remove the segments below the log's beginning, which has been made known durably before. Idempotent."""
    names = disk.disk.listdir(path) if begin_id and disk.disk.exists(path) else []
    below = [segment_id for segment_id in segment_ids(names) if segment_id < begin_id]
    if below:
        disk.fsync_directory(path)  # a process killed meanwhile left a beginning that may not stay
    for segment_id in below:
        disk.unlink(segment_path(path, segment_id))
        disk.unlink(index_path(path, segment_id))
        disk.unlink(time_path(path, segment_id))
    if below:
        disk.fsync_directory(path)


def begin_anew(disk: DurableDisk, path: str, cluster_key: uuid.UUID, partition_id: int, begin_id: int) -> Recovered:
    """Give up all there is: an empty log, durably, of which ``begin_id`` is the next record. See ``trimming.py``."""
    folder = _Folder(disk, path, cluster_key, partition_id)
    disk.have_folder(path)
    try:
        write_beginning(disk, path, cluster_key, partition_id, Beginning(begin_id, empty=True))
    except DiskFull:
        # What makes room needs a little of it: that of the oldest index, which could be made again.
        for segment_id in segment_ids(disk.disk.listdir(path), ".idx")[:1]:
            disk.unlink(index_path(path, segment_id))
        write_beginning(disk, path, cluster_key, partition_id, Beginning(begin_id, empty=True))
    for segment_id in segment_ids(disk.disk.listdir(path)):
        _remove_segment(folder, segment_id)
    header = SegmentHeader(disk.disk.now_ms(), cluster_key, partition_id, begin_id)
    active = ActiveSegment.create(disk, path, header)
    try:
        write_beginning(disk, path, cluster_key, partition_id, Beginning(begin_id))
    except BaseException:
        active.abandon()
        raise
    return Recovered([begin_id], active, begin_id - 1, None, begin_id)


def _header_is_bad(folder: _Folder, first_id: int) -> bool:
    try:
        path = segment_path(folder.path, first_id)
        read_header(folder.disk.disk, path, folder.cluster_key, folder.partition_id, first_id)
    except Corruption:
        return True
    return False
