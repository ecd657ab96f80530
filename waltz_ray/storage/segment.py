"""The newest segment of a partition, the only one that is written (`ActiveSegment`).

On-disk story
    ``<first ID>.seg`` and ``<first ID>.idx`` begin with the same 128 bytes. Creation writes and flushes both headers,
    then the folder; only then does the first record go in. So a bad header with nothing but zeros behind it is a crash
    during creation (the next start removes the file); a bad header with bytes behind it is damage.

    Records are written at ``end`` and become durable with the next ``fdatasync``. A crash before it leaves any part
    of them: the next start cuts the file at the first record that is not whole. Beyond ``end`` there may be
    zeros (space written ahead, so that ``fdatasync`` need not lengthen the file); zeros are never a record.

    The index gets the offsets of *flushed* records only, every ``index_flush_interval`` of them. It is itself flushed
    at low-water marks and when the segment is finished, for it can always be made again: after a crash any later entry
    may be missing or torn. The next start believes, from the low-water mark on, the ascending prefix whose last entry
    points at a whole record, scans on from there, and writes the rest again. Should a wrong entry have survived in
    between, the reader that meets it finds no record of that ID there, scans the segment and writes its index anew.

    ``finish`` closes a segment for good: cut to its true end, flushed, index complete, flushed. Only then is the next
    one created. So all but the newest segment are immutable and complete: whatever is wrong in them is damage.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np

from waltz_ray.errors import Corruption, DiskFull, OutOfResources
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.records import RECORD_OVERHEAD_BYTES, Int64s
from waltz_ray.storage import log_rules as rules
from waltz_ray.storage.disk import Disk, DurableDisk, is_unreadable
from waltz_ray.storage.layout import (
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    SegmentHeader,
    index_path,
    scan_records,
    segment_path,
)
from waltz_ray.storage.time_index import TimeIndex

__all__ = ["ActiveSegment", "SegmentView", "read_index"]

_FIRST_CHUNK_BYTES = 64 * 1024
_COPY_BYTES = 1 << 20
_WORTH_ZEROING = 64  # writes of this size in a chunk, at least (measured: 1 KB writes gain 35 %, 100 KB lose)
_NO_OFFSETS = np.zeros(0, dtype=np.int64)


def read_index(disk: Disk, handle: int, start: int, stop: int) -> Int64s:
    """Index entries [start, stop) by position; fewer where the file ends."""
    raw = disk.pread(handle, (stop - start) * INDEX_ENTRY_BYTES, HEADER_BYTES + start * INDEX_ENTRY_BYTES)
    whole = len(raw) - len(raw) % INDEX_ENTRY_BYTES
    return np.frombuffer(raw[:whole], dtype=">i8").astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentView:
    """A segment at one moment, for readers: its index is the file's first ``flushed_count`` entries, then ``tail``."""

    path: str
    index_path: str
    first_id: int
    count: int
    end: int
    flushed_count: int
    tail: Int64s


class ActiveSegment:
    """One open segment. Not thread-safe: the partition's lock is held by every caller, ``write_index`` excepted."""

    def __init__(self, disk: DurableDisk, folder: str, header: SegmentHeader, handles: tuple[int, int]) -> None:
        self.disk = disk
        self.header = header
        self.path = segment_path(folder, header.first_id)
        self.index_path = index_path(folder, header.first_id)
        self.handle, self.index_handle = handles
        self.count = 0  # records
        self.end = HEADER_BYTES  # where the next record goes
        self.flushed_count = 0  # entries the index file has
        self.unreadable = False  # the disk did not give a start the record behind the last one
        self._unproven = range(0)  # bytes that a start has found and that may be in the page cache only
        self._index_header_is_ours = True
        self._checkpointed, self._kept = 0, _NO_OFFSETS  # entries a start has found in the index: from where, which
        self._allocated = HEADER_BYTES  # length of the file
        # Of the records the index file does not have yet: where a piece begins, and their offsets from there.
        self._tail: list[tuple[int, Int64s]] = []
        self.times = TimeIndex(disk, folder, header, header.first_id, new=True)

    @property
    def first_id(self) -> int:
        return self.header.first_id

    @property
    def last_id(self) -> int:
        return self.header.first_id + self.count - 1

    @classmethod
    def create(cls, disk: DurableDisk, folder: str, header: SegmentHeader) -> ActiveSegment:
        """New files, durable. On DiskFull and OutOfResources nothing of them is left."""
        paths = (segment_path(folder, header.first_id), index_path(folder, header.first_id))
        handles: list[int] = []
        try:
            for path in paths:
                handle = disk.create(path)
                handles.append(handle)
                disk.pwrite(handle, path, header.encode(), 0)
                disk.fsync(handle, path)
            disk.fsync_directory(folder)
        except BaseException as error:
            for handle in handles:
                disk.disk.close(handle)
            if isinstance(error, DiskFull | OutOfResources):
                for path in paths:
                    disk.unlink(path)
            raise
        return cls(disk, folder, header, (handles[0], handles[1]))

    @classmethod
    def recover(
        cls,
        disk: DurableDisk,
        folder: str,
        header: SegmentHeader,
        *,
        durable_id: int = NO_TRANSACTION,
        stop_id: int | None = None,
    ) -> tuple[ActiveSegment, str | None]:
        """Open an existing segment whose header is good, keeping whole records (those below ``stop_id``, if given).

        The index was made durable up to ``durable_id``: what is before that is not read, however long the segment is.
        Changes nothing on disk; call ``settle`` to make the files agree with what was found. Also says why the record
        after the last one was not taken: None or "end" if there is nothing wrong.
        """
        path, idx_path = segment_path(folder, header.first_id), index_path(folder, header.first_id)
        handle = disk.disk.open(path, "write")
        try:
            index_handle = disk.disk.open(idx_path, "write") if disk.disk.exists(idx_path) else disk.create(idx_path)
        except BaseException:
            disk.disk.close(handle)
            raise
        segment = cls(disk, folder, header, (handle, index_handle))
        try:
            reason = segment._find_records(durable_id, stop_id)
        except BaseException:
            segment.abandon()
            raise
        segment.times = TimeIndex(disk, folder, header, segment.last_id + 1, new=False)
        return segment, reason

    def _find_records(self, durable_id: int, stop_id: int | None) -> str | None:
        disk = self.disk.disk
        self._allocated = disk.size(self.handle)
        base = max(0, durable_id - self.first_id)
        trusted = self._trusted_index(base, stop_id)
        tries = 0
        while True:
            # The last trusted entry must point at a whole record; step back until one does.
            if base and not len(trusted):  # what was durable has rotted
                base, trusted = 0, self._trusted_index(0, stop_id)
            before = max(0, len(trusted) - 1)
            start = base + before
            offset = int(trusted[before]) if len(trusted) else HEADER_BYTES
            scan = scan_records(disk, self.handle, self.header.partition_id, self.first_id + start, offset, stop_id)
            if len(scan.offsets) or start == 0:
                break
            tries += 1
            trusted = trusted[: before if tries < 8 else before // 2]
        self.flushed_count = start
        self._checkpointed, self._kept = base, trusted[:before]
        self.count = start + len(scan.offsets)
        self.end = scan.end
        self._unproven = rules.unproven(offset, self.end, self._index_header_is_ours)
        self._tail = [(0, scan.offsets)]
        self.unreadable = scan.unreadable
        return scan.reason

    def _trusted_index(self, base: int, stop_id: int | None) -> Int64s:
        """The entries from position ``base`` on that can be right: after a good header, ascending by a record."""
        try:
            return self._read_index(base, stop_id)
        except OSError as error:
            if not is_unreadable(error):
                raise
            self._index_header_is_ours = False
            return _NO_OFFSETS

    def _read_index(self, base: int, stop_id: int | None) -> Int64s:
        disk = self.disk.disk
        raw = disk.pread(self.index_handle, HEADER_BYTES, 0)
        # The same name may have been unlinked and made again, and a crash may have brought the old file back.
        self._index_header_is_ours = raw == self.header.encode()
        try:
            SegmentHeader.check(
                raw, self.index_path, self.header.cluster_key, self.header.partition_id, self.header.first_id
            )
        except Corruption:
            return _NO_OFFSETS  # rebuilt from the segment by settle()
        count = (disk.size(self.index_handle) - HEADER_BYTES) // INDEX_ENTRY_BYTES
        if stop_id is not None:
            count = min(count, stop_id - self.first_id)
        entries = read_index(disk, self.index_handle, base, max(base, count))
        # Nothing begins before the header; and no disk reads at a negative offset, which is what rot can make of one.
        if not len(entries) or entries[0] < HEADER_BYTES or (base == 0 and entries[0] != HEADER_BYTES):
            return _NO_OFFSETS
        wrong = np.flatnonzero((np.diff(entries) < RECORD_OVERHEAD_BYTES) | (entries[1:] >= self._allocated))
        return entries[: int(wrong[0]) + 1] if len(wrong) else entries

    def settle(self) -> None:
        """Cut both files to what was found and make that durable, whatever a failed sync before has left of it.

        The top of ``recovery.py`` says why just these bytes are written again, and why the index comes after the sync.
        What the index lacks waits for room where there is none: a start must not need any, for it is to make some.
        """
        disk = self.disk
        if disk.disk.size(self.handle) != self.end:
            disk.truncate(self.handle, self.path, self.end)
        disk.pwrite(self.handle, self.path, self.header.encode(), 0)
        for offset in self._unproven[::_COPY_BYTES]:
            data = disk.disk.pread(self.handle, min(_COPY_BYTES, self._unproven.stop - offset), offset)
            disk.pwrite(self.handle, self.path, data, offset)
        disk.fsync(self.handle, self.path)
        self._unproven, self._allocated = range(0), self.end
        self.cut_index()
        self._index_header_is_ours = False  # on the disk, perhaps
        try:
            self.write_index(self._checkpointed, self._kept)
            self._kept = _NO_OFFSETS
            self.flush_index()
        except DiskFull:
            if len(self._kept):  # where even what is overwritten takes room
                raise
            self.cut_index()
        disk.fsync(self.index_handle, self.index_path)

    def write(self, offsets: Int64s, body: memoryview) -> None:
        """Write records at the end. ``offsets`` are their starts relative to ``body``."""
        self.disk.pwrite(self.handle, self.path, body, self.end)
        self._tail.append((self.end, offsets))
        self.count += len(offsets)
        self.end += body.nbytes
        self._allocated = max(self._allocated, self.end)

    def allocate_ahead(self, chunk_bytes: int, limit_bytes: int, written_bytes: int) -> None:
        """Write zeros ahead of the end once less than a quarter of ``chunk_bytes`` is left.

        Not while writes (``written_bytes``: the last) are so large that writing everything twice costs more than
        lengthening the file does. A segment gets at most a quarter of what it has: a thousand partitions with a few
        records each must not be a thousand chunks of zeros to write.
        """
        if written_bytes * _WORTH_ZEROING > chunk_bytes:
            return
        chunk_bytes = min(chunk_bytes, max(_FIRST_CHUNK_BYTES, self.end // 4))
        if not chunk_bytes or self._allocated - self.end > chunk_bytes // 4 or self._allocated >= limit_bytes:
            return
        size = min(chunk_bytes, limit_bytes - self._allocated)
        try:
            self.disk.write_zeros(self.handle, self.path, size, self._allocated)
        except DiskFull:
            # Only a convenience: whether the disk is full is for the next record to find out.
            self.disk.truncate(self.handle, self.path, self._allocated)
            return
        self._allocated += size

    def give_back(self) -> bool:
        """The zeros that were written ahead, if there are any: others need the room more."""
        ahead = self._allocated > self.end
        if ahead:
            self.cut_to_end()
        return ahead

    def snapshot(self) -> SegmentView:
        """What a reader needs, to be used without the lock."""
        return SegmentView(
            self.path, self.index_path, self.first_id, self.count, self.end, self.flushed_count, self._joined_tail()
        )

    def mark(self) -> tuple[int, int]:
        """What ``undo`` goes back to: the number of records and the offset of the end."""
        return self.count, self.end

    def undo(self, before: tuple[int, int]) -> None:
        """Back to an earlier ``mark``, after a write that did not fit; the lock was held meanwhile. Needs no space.

        Durably: whole records of the write may have reached the disk. If a crash brought them back after this replica
        had voted without them, they would stand where others have committed something else.
        """
        self.count, self.end = before
        self._tail = [(0, self._joined_tail()[: self.count - self.flushed_count])]
        self.cut_to_end()
        self.disk.fdatasync(self.handle, self.path)

    def cut_index(self) -> None:
        """Drop index entries of a write that did not finish."""
        index_end = HEADER_BYTES + self.flushed_count * INDEX_ENTRY_BYTES
        if self.disk.disk.size(self.index_handle) > index_end:
            self.disk.truncate(self.index_handle, self.index_path, index_end)

    def _joined_tail(self) -> Int64s:
        if len(self._tail) != 1 or self._tail[0][0]:
            pieces: list[Int64s] = []
            alone: list[int] = []  # records that were written one by one: an array for each costs seven times as much
            for start, offsets in self._tail:
                if len(offsets) == 1:
                    alone.append(start + offsets.item())
                    continue
                if alone:
                    pieces.append(np.array(alone, dtype=np.int64))
                    alone = []
                pieces.append(offsets + start)
            self._tail = [(0, np.concatenate((*pieces, np.array(alone, dtype=np.int64))))]
        return self._tail[0][1]

    def offset_of(self, transaction_id: int) -> int:
        """The offset of a record that the index file does not have yet, or of the next one."""
        position, before = transaction_id - self.first_id, self.count
        if position == before:
            return self.end
        for start, offsets in reversed(self._tail):  # nearly always in the last piece
            before -= len(offsets)
            if before <= position:
                return start + int(offsets[position - before])
        raise AssertionError((transaction_id, self.first_id, self.count, self.flushed_count))

    def unflushed(self, durable_id: int) -> Int64s:
        """Offsets not in the index file yet, of records up to ``durable_id``."""
        return self._joined_tail()[: max(0, durable_id + 1 - self.first_id - self.flushed_count)]

    def write_index(self, start: int, entries: Int64s) -> None:
        """Write index entries from position ``start``. Needs no lock: see ``index_written``."""
        if not self._index_header_is_ours:
            self.disk.pwrite(self.index_handle, self.index_path, self.header.encode(), 0)
            self._index_header_is_ours = True
        at = HEADER_BYTES + start * INDEX_ENTRY_BYTES
        self.disk.pwrite(self.index_handle, self.index_path, entries.astype(">i8").tobytes(), at)

    def index_written(self, count: int) -> None:
        """The index file has ``count`` more entries now."""
        self._tail = [(0, self._joined_tail()[count:])]
        self.flushed_count += count

    def flush_index(self) -> None:
        """All entries into the index file, flushed. DiskFull: not those of ``_tail``."""
        entries = self._joined_tail()
        if len(entries):
            self.write_index(self.flushed_count, entries)
            self.index_written(len(entries))
        self.disk.fdatasync(self.index_handle, self.index_path)
        self.times.flush()

    def rewrite_index(self, entries: Int64s) -> None:
        """Put right the entries that the index file has; ``entries`` are all of the segment."""
        self.disk.pwrite(self.index_handle, self.index_path, self.header.encode(), 0)
        self.write_index(0, entries[: self.flushed_count])

    def finish(self) -> None:
        """Cut to the true end, flush everything, complete the index, close."""
        self.cut_to_end()
        self.disk.fdatasync(self.handle, self.path)
        self.flush_index()
        self.abandon()

    def cut_to_end(self) -> None:
        """Drop what lies behind the last record: zeros written ahead, or part of a batch that did not fit."""
        if self.disk.disk.size(self.handle) != self.end:
            self.disk.truncate(self.handle, self.path, self.end)
        self._allocated = self.end

    def abandon(self) -> None:
        """Close the files as they are."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.disk.disk.close, self.handle)
            stack.callback(self.disk.disk.close, self.index_handle)
