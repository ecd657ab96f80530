"""A pull's messages from the log: what the filters let through, from memory if it is there.

A message whose header is not that of a wanted type is not looked at any further, and if it is not in memory its data is
not read; of those that have it the type itself is compared. What is no message (ownership, or what somebody else has
appended) is passed over.
"""

from __future__ import annotations

import asyncio
import logging

import numpy as np

from waltz_ray.errors import BadPayload, DataUnavailable, Trimmed, WaltzError
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.topics.delivery_types import BatchNotRead, BatchRead, BatchTrimmed, ReadBatch
from waltz_ray.topics.filtering import headers_of_types, wanted_ranges
from waltz_ray.topics.messages_consumer import TransferedMessage
from waltz_ray.topics.records import TopicMessage, decode_topic_record, is_message
from waltz_ray.topics.serving.slot_partition import SlotPartition

__all__ = ["BatchReading", "read_batch", "read_from_memory"]

log = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20
_MOST_PIECES = 8  # of the log, for one order: filters may leave nothing of them
_RANGES_AT_ONCE = 64


class BatchReading:
    """What one order has found so far."""

    def __init__(self, order: ReadBatch, end: int) -> None:
        self.order = order
        self.end = end
        self.stop = end if order.end is None else min(order.end, end)
        """The offset that it may not go beyond."""
        self.next_offset = order.offset
        self.messages: list[TransferedMessage] = []
        self.size_bytes = 0
        self.headers = headers_of_types(order.filters)
        """That messages of the wanted types have."""

    @property
    def full(self) -> bool:
        """Nothing more is to be looked at."""
        order = self.order
        return (
            self.next_offset >= self.stop
            or len(self.messages) >= order.max_messages
            or self.size_bytes >= order.max_bytes
        )

    def take(self, batch: RecordBatch) -> None:
        """What comes next in the log."""
        batch = batch.slice(0, max(0, self.stop - batch.first_id))
        wanted = np.arange(len(batch))
        if self.order.filters:
            wanted = np.isin(batch.fields["header"], self.headers).nonzero()[0]
        for index in wanted.tolist():
            data = batch.data(index)
            if self.messages and self.size_bytes + len(data) > self.order.max_bytes:
                self.next_offset = batch.first_id + index
                self.stop = self.next_offset
                return
            self._look_at(batch.first_id + index, data)
            if len(self.messages) >= self.order.max_messages:
                self.next_offset = batch.first_id + index + 1
                return
        self.next_offset = batch.end_id

    def _look_at(self, offset: int, data: memoryview) -> None:
        if not is_message(data):
            return
        try:
            message = decode_topic_record(data)
        except BadPayload as error:
            log.warning("transaction %d of a topic is passed over: %s", offset, error)
            return
        assert isinstance(message, TopicMessage)
        if self.order.filters and message.msg_type not in self.order.filters:
            return
        self.messages.append(TransferedMessage(offset, message.check_sum, message.payload, message.flag))
        self.size_bytes += len(message.payload)

    def fact(self, record_bytes: float) -> BatchRead:
        """How it ends."""
        lag = int((self.end - self.next_offset) * record_bytes)
        return BatchRead(self.order.number, tuple(self.messages), self.next_offset, self.end, self.size_bytes, lag)


def read_from_memory(partition: SlotPartition, order: ReadBatch) -> BatchRead | None:
    """The answer, if nothing but the last records is needed for it."""
    if partition.is_behind:
        return None
    reading = BatchReading(order, partition.end)
    tail = partition.fold.tail
    while not reading.full:
        batch = tail.since(reading.next_offset)
        if batch is None:
            return None
        reading.take(batch)
    return reading.fact(tail.record_bytes)


async def read_batch(partition: SlotPartition, order: ReadBatch) -> BatchRead | BatchTrimmed | BatchNotRead:
    """The answer, from memory or from the log."""
    await partition.settled()
    reading = BatchReading(order, partition.end)
    fold = partition.fold
    try:
        for _ in range(_MOST_PIECES):
            if reading.full:
                break
            batch = fold.tail.since(reading.next_offset)
            if batch is None and order.filters:
                await _take_wanted(partition, reading)
                continue
            if batch is None:
                batch = await _read(partition, reading.next_offset, reading.stop)
            reading.take(batch)
    except Trimmed as trimmed:
        if reading.messages:
            return reading.fact(fold.tail.record_bytes)
        return BatchTrimmed(order.number, trimmed.first_id)
    except (DataUnavailable, WaltzError) as error:
        return BatchNotRead(order.number, str(error))
    return reading.fact(fold.tail.record_bytes)


async def _read(partition: SlotPartition, first_id: int, end_id: int) -> RecordBatch:
    """At least one record. DataUnavailable, Trimmed."""
    batch = await partition.read(first_id, end_id, _PIECE_BYTES)
    if not len(batch):
        raise DataUnavailable("its server is behind: ask again")
    return batch


async def _take_wanted(partition: SlotPartition, reading: BatchReading) -> None:
    """Look at headers, and then at the data of what may be wanted, a few ranges at a time. DataUnavailable, Trimmed."""
    window = await partition.headers(reading.next_offset, reading.stop)
    ranges = wanted_ranges(window.first_id, window.headers, reading.headers)
    end = window.end_id if len(ranges) <= _RANGES_AT_ONCE else ranges[_RANGES_AT_ONCE][0]
    reads = [asyncio.ensure_future(_read(partition, *each)) for each in ranges[:_RANGES_AT_ONCE]]
    found = await asyncio.gather(*reads, return_exceptions=True)
    for (first_id, end_id), batch in zip(ranges, found, strict=False):
        if reading.full:
            return
        reading.next_offset = first_id
        if isinstance(batch, BaseException):
            raise batch
        reading.take(batch)
        if reading.next_offset < end_id:  # it is full, or the range is longer than a piece
            return
    if not reading.full:
        reading.next_offset = end
