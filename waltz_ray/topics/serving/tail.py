"""The last records of a partition, in memory: who consumes keeps up with who produces, and needs no disk for it.

What is not here is read from the log. Frames are kept whole, as they came; the oldest go first.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator

from waltz_ray.errors import BadPayload
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.topics.records import OWNERSHIP_HEADER, SlotOwn, SlotRelease, decode_topic_record, is_message

__all__ = ["Tail", "ownership_in"]

log = logging.getLogger(__name__)

_OF_A_GUESS = 256  # bytes of a record, before one has been seen


class Tail:
    """At most ``most_bytes`` of frames, but always the last one. Each begins where the one before it ends."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._batches: deque[RecordBatch] = deque()
        self._bytes = 0
        self._records = 0

    def put(self, batch: RecordBatch) -> None:
        """The next frame. What was before a gap is forgotten."""
        if self._batches and self._batches[-1].end_id != batch.first_id:
            self._batches.clear()
            self._bytes = self._records = 0
        self._batches.append(batch)
        self._bytes += batch.size_bytes
        self._records += len(batch)
        while self._bytes > self._most_bytes and len(self._batches) > 1:
            gone = self._batches.popleft()
            self._bytes -= gone.size_bytes
            self._records -= len(gone)

    @property
    def record_bytes(self) -> float:
        """Of a record, about."""
        return self._bytes / self._records if self._records else _OF_A_GUESS

    def since(self, offset: int) -> RecordBatch | None:
        """Records from ``offset`` on, those of one frame; None: they are not here."""
        for batch in reversed(self._batches):
            if batch.first_id <= offset:
                return batch.since(offset) if offset < batch.end_id else None
        return None


def ownership_in(batch: RecordBatch) -> Iterator[tuple[int, SlotOwn | SlotRelease]]:
    """(ID, record) of those that say who owns the partition."""
    for index in (batch.fields["header"] == OWNERSHIP_HEADER).nonzero()[0].tolist():
        data = batch.data(index)
        if is_message(data):  # of a type with the same hash
            continue
        try:
            record = decode_topic_record(data)
        except BadPayload as error:
            log.warning("transaction %d/%d is skipped: %s", batch.partition_id, batch.first_id + index, error)
            continue
        if isinstance(record, SlotOwn | SlotRelease):
            yield batch.first_id + index, record
