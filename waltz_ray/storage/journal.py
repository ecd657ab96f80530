"""Group commit across partitions: one write and one sync for the records of many partitions.

A turn that touches k partitions would need k ``fdatasync`` calls, one per segment file. Instead the new bytes of all
of them are written a second time, one after another, into a journal that is synced once; the segments' own pages are
left to the kernel and synced a few at a time, before the journal's space is used again. The segment files hold what
docs/formats.md, "Segment", says at every moment; the journal is only needed when a machine stops with segment pages not
yet written. Its bytes: docs/formats.md, "Journal". Two files are used in turn.

===========================  ==========================================  ==========================================
step                         what a crash leaves                         what the next start does
===========================  ==========================================  ==========================================
entries written, not synced  any part of them                            writes the whole ones from the front into
                                                                         their segments: like records of an append
                                                                         that was not synced, either is right
entries synced               all of them; segment pages may be missing   writes them into their segments, syncs those
other file taken into use    the new header or the old one; what the     an old header: entries written once more, the
                             old one's entries say is in the segments    same bytes. A new one: nothing there yet
forget (before a log is cut) both headers old, one, or both new: the     as above; the cut has not begun
                             segments were synced before
===========================  ==========================================  ==========================================

An entry is physical ("these bytes, there"), so writing it again changes nothing as long as what was in the segment
since has been appended behind it. Only a cut breaks that, therefore ``forget`` comes before every cut.

After a failed sync the page cache may show entries, headers and segment pages that are not on the disk, and no later
sync would write them. So a start believes none of it: it writes what every entry says into the segments, also where
that is to be read there already, and syncs them; then both headers with numbers that were never used, and syncs those.
Until then the headers on the disk are valid still, and their entries true. Entries that were acknowledged are on the
disk, whatever became of their segments' pages; those that are in the page cache only were not acknowledged, and are
durable in their segments before anybody hears of them.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from waltz_ray.config import StorageConfig
from waltz_ray.errors import DiskFull, OutOfResources
from waltz_ray.protocol.checksum import crc32
from waltz_ray.storage import log_rules as rules
from waltz_ray.storage.disk import Disk, DurableDisk, enough_resources
from waltz_ray.storage.layout import segment_path

__all__ = ["Journal", "JournalEntry", "journal_entries", "journal_path", "replay"]

log = logging.getLogger(__name__)

_HEADER = struct.Struct(">i16sq")
_HEADER_BYTES = 64
_ENTRY = struct.Struct(">qiqqi")
_CRC = struct.Struct(">I")
_ENTRY_BYTES = _ENTRY.size + _CRC.size
_WORTH_BYTES = 32 * 1024  # per partition (measured: 1 KB gains a factor of 2, 16 KB 1.5, 64 KB nothing)


class JournalEntry(NamedTuple):
    """``data`` belongs at byte ``offset`` of the segment that begins with transaction ``first_id``."""

    partition_id: int
    first_id: int
    offset: int
    data: bytes


def journal_path(directory: str, index: int) -> str:
    """The file ``index``, 0 or 1."""
    return f"{directory}/waltz-journal.{index}"


def _encode_header(cluster_key: uuid.UUID, number: int) -> bytes:
    fields = _HEADER.pack(0, cluster_key.bytes, number)
    return (fields + _CRC.pack(crc32(fields))).ljust(_HEADER_BYTES, b"\0")


def _read_number(disk: Disk, handle: int, cluster_key: uuid.UUID) -> int:
    """The number in a file's header; -1 if the header is not valid (then no entry of it was ever relied upon)."""
    raw = disk.pread(handle, _HEADER_BYTES, 0)
    if len(raw) < _HEADER_BYTES:
        return -1
    number: int = _HEADER.unpack_from(raw)[2]
    return number if raw == _encode_header(cluster_key, number) else -1


def _read_entries(disk: Disk, handle: int, number: int) -> Iterator[JournalEntry]:
    offset, size = _HEADER_BYTES, disk.size(handle)
    while offset + _ENTRY_BYTES <= size:
        head = disk.pread(handle, _ENTRY_BYTES, offset)
        found, partition_id, first_id, at, length = _ENTRY.unpack_from(head)
        if found != number or not 0 < length <= size - offset - _ENTRY_BYTES:
            return
        data = disk.pread(handle, length, offset + _ENTRY_BYTES)
        if crc32(data, crc32(head[: _ENTRY.size])) != _CRC.unpack_from(head, _ENTRY.size)[0]:
            return
        yield JournalEntry(partition_id, first_id, at, data)
        offset += _ENTRY_BYTES + length


def journal_entries(disk: Disk, directory: str, cluster_key: uuid.UUID) -> Iterator[JournalEntry]:
    """All valid entries of a directory's journal, oldest first. No file is no entry."""
    with contextlib.ExitStack() as stack:
        files: list[tuple[int, int]] = []
        for index in (0, 1):
            path = journal_path(directory, index)
            if disk.exists(path):
                handle = disk.open(path, "read")
                stack.callback(disk.close, handle)
                files.append((_read_number(disk, handle, cluster_key), handle))
        for number, handle in sorted(files):
            if number >= 0:
                yield from _read_entries(disk, handle, number)


def replay(disk: DurableDisk, directory: str, cluster_key: uuid.UUID) -> int:
    """Bring the segments to where the journal says they are, durably; returns the number of entries.

    To be called before any partition is opened. A segment that is not there is left to the partition's own recovery,
    which knows whether it was lost.
    """
    count = 0
    with contextlib.ExitStack() as stack:
        handles: dict[str, int] = {}
        for entry in journal_entries(disk.disk, directory, cluster_key):
            path = segment_path(f"{directory}/{entry.partition_id}", entry.first_id)
            if path not in handles:
                if not disk.disk.exists(path):
                    continue
                handles[path] = disk.disk.open(path, "write")
                stack.callback(disk.disk.close, handles[path])
            # Written also where it is to be read: a failed sync may have left it in the page cache only.
            disk.pwrite(handles[path], path, entry.data, entry.offset)
            count += 1
        for path, handle in handles.items():
            disk.fdatasync(handle, path)
    return count


class _File:
    """One of the two files. ``dirty``: paths of the segments whose pages its entries stand in for."""

    def __init__(self, path: str, handle: int) -> None:
        self.path, self.handle = path, handle
        self.number = -1
        self.end = _HEADER_BYTES
        self.dirty: dict[str, None] = {}


class Journal:
    """One storage directory's journal: one sync for many partitions. Any thread may call; takes no lock but its own.

    The files, of ``config.journal_bytes`` each, are made when first needed.
    """

    def __init__(self, disk: DurableDisk, directory: str, cluster_key: uuid.UUID, config: StorageConfig) -> None:
        """Forgets what the files hold: call ``replay`` first."""
        size_bytes = config.journal_bytes
        self._disk, self._directory, self._cluster_key = disk, directory, cluster_key
        self._size_bytes = size_bytes
        self._fewest_partitions = config.journal_partitions
        self._usable = size_bytes > 0
        self._changed = threading.Condition()
        self._syncing = False
        self._flushing = 0
        self._partitions: set[int] = set()  # that have entries
        self._files = self._old_files()  # the current one first
        last_known = max([_read_number(disk.disk, file.handle, cluster_key) for file in self._files] or [-1])
        # A file taken into use may have got entries, and lost its header in a crash: that number never comes again.
        self._next_number = last_known + 2
        self._durable = (-1, 0)  # (number of a file, end of what is durable in it)
        if self._files:
            self._renew(self._files)
        if len(self._files) < 2 or any(disk.disk.size(file.handle) != size_bytes for file in self._files):
            self._remove()

    def takes(self, size_bytes: int, partitions: int) -> bool:
        """Whether ``size_bytes`` of ``partitions`` partitions are better written here than synced one by one."""
        worth_it = partitions >= self._fewest_partitions and size_bytes <= partitions * _WORTH_BYTES
        return self._usable and worth_it and size_bytes <= self._size_bytes // 4

    def write(self, entries: Sequence[JournalEntry]) -> bool:
        """Make ``entries`` durable, in one sync with what other threads are writing; SyncFailed.

        False: there is no room on the disk for a journal or these entries, or no handle for its files or for segments
        that must be synced first; nothing is durable by it.
        """
        size_bytes = sum(_ENTRY_BYTES + len(entry.data) for entry in entries)
        with self._changed:
            try:
                if not self._made():
                    return False
                file = self._room_for(size_bytes)
                # Before they are written: of a write that finds no room some may be whole, and a start believes those.
                self._partitions.update(entry.partition_id for entry in entries)
                self._disk.pwrite(file.handle, file.path, _encode(file.number, entries), file.end)
            except (DiskFull, OutOfResources):  # DiskFull: where even what is overwritten takes room
                return False
            file.end += size_bytes
            for entry in entries:
                file.dirty[segment_path(f"{self._directory}/{entry.partition_id}", entry.first_id)] = None
            self._sync(file)
            self._flush_some(size_bytes)
        return True

    def holds(self, partition_id: int) -> bool:
        """Whether there may be entries of this partition."""
        with self._changed:
            return partition_id in self._partitions

    def forget(self, partition_id: int) -> None:
        """To be called before a partition's log is cut: no entry must bring back what is cut.

        SyncFailed; DiskFull, OutOfResources: it must not be cut yet.
        """
        with self._changed:
            if partition_id in self._partitions:
                self._settle()

    def close(self) -> None:
        """The segments have been closed cleanly: nothing of the journal is needed any more."""
        with self._changed:
            if self._partitions and not self._disk.failed:
                self._settle()
            for file in self._files:
                self._disk.disk.close(file.handle)
            self._files = []
            self._usable = False

    # ---- with the lock ------------------------------------------------------------------------------------

    def _old_files(self) -> list[_File]:
        disk, files = self._disk.disk, list[_File]()
        try:
            for path in (journal_path(self._directory, index) for index in (0, 1)):
                if disk.exists(path):
                    files.append(_File(path, disk.open(path, "write")))
        except OSError:
            for file in files:
                disk.close(file.handle)
            raise
        return files

    def _made(self) -> bool:
        """Make the files unless they are there. False if the disk has no room; that is not tried again.

        OutOfResources: not made, this time.
        """
        if self._usable and not self._files:
            try:
                for index in (0, 1):
                    path = journal_path(self._directory, index)
                    file = _File(path, self._disk.create(path))
                    self._files.append(file)
                    self._disk.write_zeros(file.handle, path, self._size_bytes, 0)
                    self._disk.fsync(file.handle, path)
                self._renew(self._files)
                self._disk.fsync_directory(self._directory)
            except (DiskFull, OutOfResources) as error:
                self._remove()
                if isinstance(error, OutOfResources):
                    raise
                self._usable = False
        return self._usable

    def _remove(self) -> None:
        files, self._files = self._files, []
        for file in files:
            self._disk.disk.close(file.handle)
            self._disk.unlink(file.path)

    def _room_for(self, size_bytes: int) -> _File:
        while (file := self._files[0]).end + size_bytes > self._size_bytes:
            # Each wait gives the lock up, and another thread may write here: all of it must hold at one moment.
            if self._durable < (file.number, file.end):
                self._sync(file)  # so that "durable" moves through the files in order
            elif self._flushing:
                self._changed.wait()
            else:
                return self._turn_over()
        return file

    def _turn_over(self) -> _File:
        file = self._files[1]
        self._flush(file)
        self._files.reverse()
        self._write_header(file)  # durable with the first entry behind it
        return file

    def _sync(self, file: _File) -> None:
        """Until all that is written in ``file`` so far is durable; the lock is given up meanwhile."""
        wanted = (file.number, file.end)
        while self._durable < wanted:
            if self._syncing:
                self._changed.wait()
                self._disk.check()
                continue
            self._syncing = True
            begun = (file.number, file.end)
            self._changed.release()
            try:
                self._disk.fdatasync(file.handle, file.path)
            finally:
                self._changed.acquire()
                self._syncing = False
                self._changed.notify_all()
            self._durable = max(self._durable, rules.proven_by_sync(begun, (file.number, file.end)))

    def _flush_some(self, size_bytes: int) -> None:
        """Sync as many segments of the other file as are due, so that none is left when its space is needed.

        One that cannot be opened for lack of handles stays due: its entries are in the journal until it is synced.
        """
        file, other = self._files
        room = max(size_bytes, self._size_bytes - file.end)
        due = -(-len(other.dirty) * size_bytes // room)
        paths = list(other.dirty)[:due]
        if not paths:
            return
        for path in paths:
            del other.dirty[path]
        self._flushing += 1
        self._changed.release()
        done = 0
        try:
            for path in paths:
                self.flush_segment(path)
                done += 1
        except OutOfResources as error:
            log.warning("the journal's segments are synced later: %s", error)
        finally:
            self._changed.acquire()
            other.dirty.update(dict.fromkeys(paths[done:]))
            self._flushing -= 1
            self._changed.notify_all()

    def _flush(self, file: _File) -> None:
        for path in file.dirty:
            self.flush_segment(path)
        file.dirty.clear()

    def flush_segment(self, path: str) -> None:
        """Make a segment durable that entries stand in for: only then may their space be used again."""
        with enough_resources(path):
            handle = self._disk.disk.open(path, "write")
        try:
            self._disk.fdatasync(handle, path)
        finally:
            self._disk.disk.close(handle)

    def _settle(self) -> None:
        """All segments durable, then no entry valid."""
        while self._syncing or self._flushing:
            self._changed.wait()
        for file in self._files:
            self._flush(file)
        self._renew(self._files)
        self._partitions.clear()

    def _renew(self, files: Sequence[_File]) -> None:
        """No entry of these is valid any more, durably. The current file gets the highest number."""
        for file in reversed(files):
            self._write_header(file)
            self._disk.fdatasync(file.handle, file.path)
            self._durable = (file.number, file.end)

    def _write_header(self, file: _File) -> None:
        """DiskFull: the file counts as full. Behind a header that is not there entries would not be found again."""
        number, self._next_number = self._next_number, self._next_number + 1
        file.end = self._size_bytes
        self._disk.pwrite(file.handle, file.path, _encode_header(self._cluster_key, number), 0)
        file.number, file.end = number, _HEADER_BYTES


def _encode(number: int, entries: Sequence[JournalEntry]) -> bytes:
    parts: list[bytes] = []
    for entry in entries:
        head = _ENTRY.pack(number, entry.partition_id, entry.first_id, entry.offset, len(entry.data))
        parts += [head, _CRC.pack(crc32(entry.data, crc32(head))), entry.data]
    return b"".join(parts)
