"""The recent end of one partition's log, kept in a server's memory.

It serves the feed, data fetches, late joiners and the sending-again after a session change. Records above the
high-water mark are never dropped; committed ones go, oldest first, when the partitions of the server have together more
than they may: from those that have more than their share. So a busy partition has what the others do not use, and who
follows it may lag by so much before a replica is asked.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

import numpy as np

from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.records import RecordBatch, first_bad_record
from waltz_ray.protocol.times import joined_times

__all__ = ["RetainedMemory", "RetainedRecords", "joined", "limited"]


_BATCH_BYTES = 400  # the objects of one batch (a test measures them)

_first_id = attrgetter("first_id")
_GONE = RecordBatch(-1, NO_TRANSACTION, np.zeros(0, dtype=np.int32), b"")


class RetainedMemory(Pool):
    """What the partitions of one server retain, together.

    Only while what is in flight exceeds it, which is never dropped, is it more than ``limit_bytes``.
    """

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._holders: list[RetainedRecords] = []

    def join(self, records: RetainedRecords) -> None:
        """These count, and are limited, from now on until they ``leave``."""
        records.memory = self
        self._holders.append(records)
        self.used_bytes += records.size_bytes

    def leave(self, records: RetainedRecords) -> None:
        """Nobody needs these any more."""
        records.memory = None
        self._holders.remove(records)
        self.used_bytes -= records.size_bytes

    def make_room(self) -> None:
        """Until all fit, those that have more than their share give up their oldest, who has most first."""
        for holder in sorted(self._holders, key=attrgetter("size_bytes"), reverse=True):
            if self.used_bytes <= self.limit_bytes:
                return
            holder.give_up()


class RetainedRecords:
    """Consecutive batches; ``first_id`` of the oldest record held, ``end_id`` one past the newest.

    ``memory`` limits them; all are kept while there is none.
    """

    def __init__(self, end_id: int) -> None:
        self._batches: list[RecordBatch] = []  # not a deque: reaching into the middle of one walks through it
        self._forgotten = 0  # of the front of the list
        self._bare = 0  # batches before this one are only their bytes
        self.memory: RetainedMemory | None = None  # set by its ``join``
        self._committed = NO_TRANSACTION  # the high-water mark of the last trim
        self.size_bytes = 0
        """Of memory: records, and what it takes to keep them."""
        self.first_id = end_id
        self.end_id = end_id

    def append(self, batch: RecordBatch) -> None:
        assert batch.first_id == self.end_id, (batch.first_id, self.end_id)
        self._batches.append(batch)
        self.end_id = batch.end_id
        self._resize(_cost_bytes(batch))

    def _resize(self, more_bytes: int) -> None:
        self.size_bytes += more_bytes
        if self.memory is not None:
            self.memory.used_bytes += more_bytes

    def trim(self, high_water_mark: int) -> None:
        """Forget committed batches that there is no room for, and of all others what can be had from the bytes.

        That is looked at while a batch is on its way to the replicas and subscribers; kept, it would be half as much
        again as small records themselves.
        """
        batches, self._committed = self._batches, high_water_mark
        while self._bare < len(batches) and batches[self._bare].last_id <= high_water_mark:
            batches[self._bare].forget_derived()
            self._bare += 1
        self.give_up()
        if self.memory is not None and self.memory.used_bytes > self.memory.limit_bytes:
            self.memory.make_room()

    def give_up(self) -> None:
        """Forget the oldest committed batches that there is no room for."""
        batches, position, memory = self._batches, self._forgotten, self.memory
        while memory is not None and position < len(batches) and not memory.has_room(self.size_bytes, 0):
            oldest = batches[position]
            if oldest.last_id > self._committed:
                break
            self._resize(-_cost_bytes(oldest))
            self.first_id = oldest.end_id
            batches[position] = _GONE
            position += 1
        self._forgotten = position
        if 2 * position > len(batches):  # seldom enough that moving the rest costs nothing per batch
            del batches[:position]
            self._forgotten = 0
            self._bare -= position

    def first_bad_id(
        self, first_id: int | None = None, max_bytes: int | None = None, max_batches: int | None = None
    ) -> int | None:
        """The first held record that is not what its CRC says; None: all are. It takes 0.15 ms a megabyte.

        Of those from ``first_id`` on (of none, if that is not held), as ``between`` limits them.
        """
        first_id = self.first_id if first_id is None else first_id
        if not self.first_id <= first_id <= self.end_id:
            return None
        for batch in self.between(first_id, self.end_id, max_bytes, max_batches):
            bad = first_bad_record(batch)
            if bad >= 0:
                return batch.first_id + bad
        return None

    def since(self, first_id: int) -> list[RecordBatch]:
        """All held records with IDs >= ``first_id``, which must be held (or be the end)."""
        return self.between(first_id, self.end_id)

    def between(
        self, first_id: int, end_id: int, max_bytes: int | None = None, max_batches: int | None = None
    ) -> list[RecordBatch]:
        """The held records of [first_id, end_id); with ``max_bytes`` at least one batch, and none that goes beyond it.

        ``max_batches`` limits the work where the batches are small.

        The cost is that of what is returned, not of what is held: batches are found by bisection.
        """
        assert self.first_id <= first_id <= self.end_id, (self.first_id, first_id, self.end_id)
        found: list[RecordBatch] = []
        size_bytes = 0
        batches = self._batches
        if batches and first_id >= batches[-1].first_id:
            start = len(batches) - 1  # what has just been committed
        else:
            start = max(self._forgotten, bisect_right(batches, first_id, lo=self._forgotten, key=_first_id) - 1)
        for position in range(start, len(batches)):
            batch = batches[position]
            if batch.first_id >= end_id or len(found) == max_batches:
                break
            piece = batch.slice(max(0, first_id - batch.first_id), min(len(batch), end_id - batch.first_id))
            size_bytes += piece.size_bytes
            if found and max_bytes is not None and size_bytes > max_bytes:
                break
            if len(piece):
                found.append(piece)
        return found


def _cost_bytes(batch: RecordBatch) -> int:
    """What a batch takes of the memory: many small ones are more than their bytes."""
    return _BATCH_BYTES + batch.size_bytes + batch.lengths.nbytes


def joined(batches: list[RecordBatch]) -> RecordBatch:
    """Consecutive batches as one: a reader far behind must not pay a round trip for each small one."""
    if len(batches) == 1:
        return batches[0]
    lengths = np.concatenate([batch.lengths for batch in batches])
    records = b"".join(batch.records for batch in batches)
    times = joined_times([batch.times for batch in batches])
    return RecordBatch(batches[0].partition_id, batches[0].first_id, lengths, records, times=times)


def limited(batch: RecordBatch, max_bytes: int, max_records: int | None = None) -> RecordBatch:
    """The first records of ``batch`` within the limits, at least one."""
    count = len(batch) if max_records is None else min(len(batch), max_records)
    if batch.size_bytes > max_bytes:
        count = min(count, int(batch.offsets.searchsorted(max_bytes, side="right")) - 1)
    return batch.slice(0, max(1, count))
