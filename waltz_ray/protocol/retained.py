"""The recent end of one partition's log, kept in a server's memory.

It serves the feed, data fetches, late joiners and the sending-again after a session change. Records above the
high-water mark are never dropped; committed ones go, oldest first, once the whole exceeds its byte budget.
"""

from __future__ import annotations

from collections import deque

from waltz_ray.protocol.records import RecordBatch

__all__ = ["RetainedRecords"]


class RetainedRecords:
    """Consecutive batches; ``first_id`` of the oldest record held, ``end_id`` one past the newest."""

    def __init__(self, end_id: int, budget_bytes: int) -> None:
        self._batches: deque[RecordBatch] = deque()
        self._budget_bytes = budget_bytes
        self.first_id = end_id
        self.end_id = end_id
        self.size_bytes = 0

    def append(self, batch: RecordBatch) -> None:
        assert batch.first_id == self.end_id, (batch.first_id, self.end_id)
        self._batches.append(batch)
        self.end_id = batch.end_id
        self.size_bytes += batch.size_bytes

    def trim(self, high_water_mark: int) -> None:
        """Forget the oldest committed batches that exceed the budget."""
        while self._batches and self.size_bytes > self._budget_bytes and self._batches[0].last_id <= high_water_mark:
            oldest = self._batches.popleft()
            self.size_bytes -= oldest.size_bytes
            self.first_id = oldest.end_id

    def since(self, first_id: int) -> list[RecordBatch]:
        """All held records with IDs >= ``first_id``, which must be held (or be the end)."""
        assert self.first_id <= first_id <= self.end_id, (self.first_id, first_id, self.end_id)
        found: list[RecordBatch] = []
        for batch in reversed(self._batches):
            if batch.end_id <= first_id:
                break
            found.append(batch.since(first_id))
        found.reverse()
        return found

    def between(self, first_id: int, end_id: int) -> list[RecordBatch]:
        """The held records of [first_id, end_id)."""
        return [batch.slice(0, end_id - batch.first_id) for batch in self.since(first_id) if batch.first_id < end_id]
