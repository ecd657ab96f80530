"""When the records of a segment were appended: ``<first ID>.tix`` beside it (docs/formats.md, "Time index").

On-disk story
    The file is advice. No record depends on it: one that is missing, damaged or torn costs precision, and is never a
    reason to refuse anything. Entries are written as soon as they are made, without a flush, so that the death of the
    process loses none; the file is flushed when its segment is finished and at low-water marks.

    A crash of the machine may lose any of the later entries, or tear them. Each has a checksum; the next start believes
    what is in front of the first bad one. Records whose entry was lost would seem to be as old as the entry before. So
    the last entry that a start finds is written once more as *loose* before anything follows it: "from here to the next
    entry, at any time between the two". The same after a time at which no entry could be written (a full disk), and
    for records that came without a time. Until something follows it, such records are not younger than that start.

    Where the log is cut, entries of what is gone are cut off before a new one is written, and that is flushed: an old
    entry that came back would date new records too early.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from waltz_ray.errors import DiskFull, OutOfResources
from waltz_ray.protocol.checksum import crc32
from waltz_ray.protocol.times import TimeMark, TimeMarks, begins_group
from waltz_ray.storage.disk import Disk, DurableDisk, enough_resources, is_shortage
from waltz_ray.storage.layout import HEADER_BYTES, SegmentHeader, segment_ids, time_path

__all__ = ["MOST_AHEAD_MS", "TIME_ENTRY_BYTES", "TimeEntry", "TimeFile", "TimeIndex"]

_ENTRY = struct.Struct(">qqi")
_CRC = struct.Struct(">I")
TIME_ENTRY_BYTES = _ENTRY.size + _CRC.size
_LOOSE = 1

MOST_AHEAD_MS = 60_000
"""So far ahead of the replica's own clock is a server believed. Times never fall, so one whose clock has jumped ahead
would otherwise be what all later records are dated by."""


class TimeEntry(NamedTuple):
    """Records from ``first_id`` on were appended at ``time_ms`` or later: in that second, unless it is ``loose``."""

    first_id: int
    time_ms: int
    loose: bool = False

    def encode(self) -> bytes:
        raw = _ENTRY.pack(self.first_id, self.time_ms, _LOOSE if self.loose else 0)
        return raw + _CRC.pack(crc32(raw))

    @classmethod
    def decode(cls, raw: bytes) -> TimeEntry | None:
        """None if these bytes are no entry."""
        if len(raw) != TIME_ENTRY_BYTES or _CRC.unpack_from(raw, _ENTRY.size)[0] != crc32(raw[: _ENTRY.size]):
            return None
        first_id, time_ms, flags = _ENTRY.unpack_from(raw)
        return cls(first_id, time_ms, flags == _LOOSE) if flags in (0, _LOOSE) else None


class TimeFile(Sequence[TimeEntry]):
    """The entries of one file, read where they are looked at: there may be millions.

    A bad one, or one that cannot be read, counts as the one before it, loose. Where there is no such file, or another
    segment's, it is as if there were one entry: appended after the segment was made, nobody knows when. The errors of
    ``enough_resources`` pass.
    """

    def __init__(self, disk: Disk, path: str, header: SegmentHeader | None) -> None:
        """``header``: the segment's; None = whatever the file has."""
        self._disk = disk
        self._first = TimeEntry(0, 0) if header is None else TimeEntry(header.first_id, header.created_ms, loose=True)
        self._count = 0
        self._handle: int | None = None
        try:
            self._handle = disk.open(path, "read")
            if header is None or disk.pread(self._handle, HEADER_BYTES, 0) == header.encode():
                self._count = (disk.size(self._handle) - HEADER_BYTES) // TIME_ENTRY_BYTES
        except OSError as error:
            if is_shortage(error):
                self.close()
                raise

    def __enter__(self) -> TimeFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the handle back. Idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._disk.close(handle)

    def __len__(self) -> int:
        return max(1, self._count)

    def __getitem__(self, position: int) -> TimeEntry:  # type: ignore[override]
        if not 0 <= position < len(self):
            raise IndexError(position)
        for before in range(min(position, self._count - 1), -1, -1):
            found = self.read(before)
            if found is not None:
                return found if before == position else found._replace(loose=True)
        return self._first

    def read(self, position: int) -> TimeEntry | None:
        """The entry as it is in the file, None if it is bad."""
        assert self._handle is not None
        try:
            raw = self._disk.pread(self._handle, TIME_ENTRY_BYTES, HEADER_BYTES + position * TIME_ENTRY_BYTES)
        except OSError as error:
            if is_shortage(error):
                raise
            return None
        return TimeEntry.decode(raw)

    def good_count(self, end_id: int) -> int:
        """How many entries from the front on are of records below ``end_id``, with no bad one at their end."""
        count = bisect_left(range(self._count), end_id, key=lambda position: self[position].first_id)
        while count and self.read(count - 1) is None:
            count -= 1
        return count

    def at(self, transaction_id: int) -> int:
        """The position of the entry in force at a record, 0 if it is before all."""
        return max(0, bisect_right(range(len(self)), transaction_id, key=lambda position: self[position].first_id) - 1)

    def since(self, time_ms: int, next_ms: int | None, last_is_loose: bool) -> int:
        """The first record that may have been appended at ``time_ms`` or later; -1 if none of this file.

        ``next_ms``: when the records behind this file begin, or what those that are in doubt at its end are not younger
        than; None = nobody knows, this is the newest.
        """
        position = bisect_left(range(len(self)), time_ms, key=lambda position: self[position].time_ms)
        if position > 0:
            before = self[position - 1]
            loose = before.loose or (position == len(self) and last_is_loose)
            behind_ms = self[position].time_ms if position < len(self) else next_ms
            latest_ms = behind_ms if loose else before.time_ms // 1000 * 1000 + 999
            if latest_ms is None or (latest_ms >= time_ms and (behind_ms is None or behind_ms >= time_ms)):
                return before.first_id
        return self[position].first_id if position < len(self) else -1


class TimeIndex:
    """Notes the times of a segment's records as they are written. The partition's lock is held by every caller."""

    def __init__(self, disk: DurableDisk, folder: str, header: SegmentHeader, end_id: int, new: bool) -> None:
        """``end_id``: what the file says of records from there on is not true any more. ``new``: there is no file."""
        self.last_ms: int | None = None
        """Of the last record, of this segment or of the one before: none that follows seems older. None: see there."""
        self.path = time_path(folder, header.first_id)
        self.in_doubt = False
        """Records behind the last entry may have been appended long after it."""
        self.doubt_ends_ms = 0
        """But not after this."""
        self._disk, self._folder, self._header = disk, folder, header
        self._end_id = end_id
        self._last: TimeEntry | None = None
        self._count = 0  # entries in the file
        self._bytes = 0  # of records since the last entry
        self._known = new  # what the file has
        self._made = False  # there is a file, with a good header
        self._unflushed = False
        if not new:
            self._doubt()

    def _doubt(self) -> None:
        """What is there has just been written, or was there before; a server may have dated it so far ahead."""
        self.in_doubt, self.doubt_ends_ms = True, self._disk.disk.now_ms() + MOST_AHEAD_MS

    def note(self, times: TimeMarks, size_bytes: int) -> None:
        """``size_bytes`` of records have been written, appended at these ``times``."""
        if not times:
            return self._doubt()
        for mark in times:
            self._note(mark, size_bytes if len(times) == 1 else 0)

    def _note(self, mark: TimeMark, size_bytes: int) -> None:
        self._bytes += size_bytes
        time_ms, last_ms = min(mark[1], self._disk.disk.now_ms() + MOST_AHEAD_MS), self.last_ms
        if last_ms is None or self._last is None or self.in_doubt or begins_group(time_ms, last_ms, self._bytes):
            self._begin(mark[0], time_ms)
        else:
            self.last_ms = max(last_ms, time_ms)

    def _begin(self, transaction_id: int, time_ms: int) -> None:
        try:
            last_ms = self._look()
            if self._last is None and transaction_id > self._header.first_id:  # of those before it nothing is known
                last_ms = max(last_ms, self._header.created_ms)
            self._write(self._entries(transaction_id, max(time_ms, last_ms)))
        except (DiskFull, OutOfResources):
            self._doubt()  # advice: the records are what matters, and the next entry says what is missing
        except OSError:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """The file has gone, or cannot be opened any more: another one is made with the next entry."""
        self._last, self._count, self._known, self._made, self._unflushed = None, 0, True, False, False

    def end(self) -> None:
        """The next record goes into another segment: no entry here will say what is in doubt."""
        if not self.in_doubt:
            return
        try:
            self._look()
            if self._last is not None:
                self._write([self._last._replace(loose=True)])
        except (DiskFull, OutOfResources, OSError):
            pass  # advice: nothing but the bounds of a few records is less sharp

    def _entries(self, transaction_id: int, time_ms: int) -> list[TimeEntry]:
        """The next entry, and before it what says that others are missing."""
        entry, last = TimeEntry(transaction_id, time_ms), self._last
        if last is not None and self.in_doubt:
            return [last._replace(loose=True), entry]
        if last is None and transaction_id > self._header.first_id:
            return [TimeEntry(self._header.first_id, self._header.created_ms, loose=True), entry]
        return [entry]

    def _write(self, entries: list[TimeEntry]) -> None:
        handle = self._open()
        try:
            raw = b"".join(entry.encode() for entry in entries)
            self._disk.pwrite(handle, self.path, raw, HEADER_BYTES + self._count * TIME_ENTRY_BYTES)
        finally:
            self._disk.disk.close(handle)
        self._count += len(entries)
        self._last = entries[-1]
        self.last_ms = max(self.last_ms or 0, self._last.time_ms)
        self._bytes, self.in_doubt, self._unflushed = 0, False, True

    def _open(self) -> int:
        if self._made:
            with enough_resources(self.path):
                return self._disk.disk.open(self.path, "write")
        handle = self._disk.create(self.path)
        try:
            self._disk.pwrite(handle, self.path, self._header.encode(), 0)
        except BaseException:
            self._disk.disk.close(handle)
            raise
        self._made = True
        return handle

    def _look(self) -> int:
        """``last_ms``; what a start, or a cut, has left of the file is looked at, and what is wrong in it cut off."""
        if not self._known:
            self._look_at_file()
        if self.last_ms is None:
            last_ms = self._last.time_ms if self._last is not None else self._last_ms_before()
            self.last_ms = last_ms // 1000 * 1000 + 999 if last_ms else 0  # when in that second is forgotten
        return self.last_ms

    def _look_at_file(self) -> None:
        with enough_resources(self.path), TimeFile(self._disk.disk, self.path, self._header) as file:
            count = file.good_count(self._end_id)
            if count:
                self._last = file[count - 1]
            size = HEADER_BYTES + count * TIME_ENTRY_BYTES
            self._made = count > 0
            is_longer = self._made and self._disk.disk.file_size(self.path) > size
        if is_longer:
            handle = self._open()
            try:
                self._disk.truncate(handle, self.path, size)
                self._disk.fdatasync(handle, self.path)
            finally:
                self._disk.disk.close(handle)
        self._count, self._known = count, True

    def _last_ms_before(self) -> int:
        """The time of the last entry of the segments before, 0 if there is none."""
        disk = self._disk.disk
        for first_id in reversed(segment_ids(disk.listdir(self._folder), ".tix")):
            if first_id < self._header.first_id:
                with TimeFile(disk, time_path(self._folder, first_id), None) as file:
                    if time_ms := file[len(file) - 1].time_ms:
                        return time_ms
        return 0

    def flush(self) -> None:
        """Make the entries durable, if there are new ones. They are advice: a lack of handles is no failure."""
        if not self._unflushed:
            return
        try:
            handle = self._open()
        except (DiskFull, OutOfResources):
            return
        except OSError:
            return self._begin_anew()
        try:
            self._disk.fdatasync(handle, self.path)
        finally:
            self._disk.disk.close(handle)
        self._unflushed = False
