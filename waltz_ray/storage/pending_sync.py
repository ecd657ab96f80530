"""What one sync of a partition's log makes durable, by either way: its own file, or the journal."""

from __future__ import annotations

from waltz_ray.storage.disk import DurableDisk
from waltz_ray.storage.journal import JournalEntry
from waltz_ray.storage.segment import ActiveSegment

__all__ = ["PendingSync"]


class PendingSync:
    """Records of the active segment that are written and not durable. Between ``begin_sync`` and ``end_sync``."""

    def __init__(
        self, disk: DurableDisk, partition_id: int, segment: ActiveSegment, first_id: int, last_id: int
    ) -> None:
        """With the log's lock."""
        self.segment, self.last_id = segment, last_id
        self._disk, self._partition_id = disk, partition_id
        # Older segments were synced when they were finished.
        self._start, self._end = segment.offset_of(max(first_id, segment.first_id)), segment.end

    @property
    def size_bytes(self) -> int:
        return self._end - self._start

    def begin(self) -> None:
        """Have the records written, for a ``flush`` soon after."""
        self._disk.begin_writing(self.segment.handle, self.segment.path, self.size_bytes, self._start)

    def flush(self) -> None:
        """Sync the segment."""
        self._disk.fdatasync(self.segment.handle, self.segment.path)

    def entry(self) -> JournalEntry:
        """The same bytes for the journal."""
        data = self._disk.disk.pread(self.segment.handle, self.size_bytes, self._start)
        return JournalEntry(self._partition_id, self.segment.first_id, self._start, data)
