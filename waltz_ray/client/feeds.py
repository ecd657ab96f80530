"""Packed feeds turned into the transactions an application sees."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import overload

from waltz_ray.client.application import Transaction, TransactionSource
from waltz_ray.client.codecs import Codec
from waltz_ray.client.times import time_of
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import FeedBatch
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.times import TimeMarks

__all__ = ["Fetch", "FeedFrame", "FetchTimes", "Origin", "Transactions", "transactions_of"]

Fetch = Callable[[int, int], bytes]
"""Data of (partition ID, transaction ID), fetched from the server."""


FetchTimes = Callable[[int, int, int], TimeMarks]
"""When the transactions [first ID, end ID) of (partition ID, first ID, end ID) were appended, asked of the server."""


@dataclass(frozen=True)
class Origin:
    """What transactions need of the client they come from, when somebody asks."""

    fetch: Fetch
    times: FetchTimes
    codec: Codec | None = None


class _Times:
    """When the transactions of a frame were appended, asked once for all of them."""

    def __init__(self, feed: RecordBatch | FeedBatch, fetch: FetchTimes) -> None:
        self._feed, self._fetch = feed, fetch
        self._times: TimeMarks | None = None

    def of(self, index: int) -> datetime | None:
        feed = self._feed
        if self._times is None:
            self._times = self._fetch(feed.partition_id, feed.first_id, feed.first_id + len(feed))
        return time_of(feed.first_id + index, self._times)


class _Records:
    """Transactions whose data came with the feed."""

    def __init__(self, batch: RecordBatch, times: FetchTimes) -> None:
        self._batch = batch
        self._times = _Times(batch, times)

    def req_id(self, index: int) -> ReqId:
        row = self._batch.fields[index]
        return ReqId(
            int(row["client_id"]), int(row["generation"]), self._batch.partition_id, int(row["sequence_number"])
        )

    def data(self, index: int) -> bytes:
        return bytes(self._batch.data(index))

    def appended_at(self, index: int) -> datetime | None:
        return self._times.of(index)


class _Headers:
    """Transactions whose data is fetched when it is asked for, once."""

    def __init__(self, batch: FeedBatch, origin: Origin) -> None:
        self._batch = batch
        self._fetch = origin.fetch
        self._times = _Times(batch, origin.times)
        self._fetched: dict[int, bytes] = {}

    def req_id(self, index: int) -> ReqId:
        batch = self._batch
        return ReqId(
            int(batch.client_ids[index]),
            int(batch.generations[index]),
            batch.partition_id,
            int(batch.sequence_numbers[index]),
        )

    def data(self, index: int) -> bytes:
        data = self._fetched.get(index)
        if data is None:
            data = self._fetched[index] = self._fetch(self._batch.partition_id, self._batch.first_id + index)
        return data

    def appended_at(self, index: int) -> datetime | None:
        return self._times.of(index)


class FeedFrame:
    """The transactions of one frame with IDs above ``after``."""

    def __init__(self, feed: RecordBatch | FeedBatch, after: int, origin: Origin) -> None:
        self._source: TransactionSource
        if isinstance(feed, RecordBatch):
            self._source, self._headers = _Records(feed, origin.times), feed.fields["header"]
        else:
            self._source, self._headers = _Headers(feed, origin), feed.headers
        self._codec = origin.codec
        self._partition_id, self._base = feed.partition_id, feed.first_id
        self.first_id = max(feed.first_id, after + 1)
        self.end_id = feed.first_id + len(feed)

    def transaction(self, transaction_id: int) -> Transaction:
        """The frame's transaction of that ID."""
        index = transaction_id - self._base
        return Transaction(
            self._partition_id, transaction_id, int(self._headers[index]), self._source, index, self._codec
        )

    def __iter__(self) -> Iterator[Transaction]:
        partition_id, base, source, codec = self._partition_id, self._base, self._source, self._codec
        start = self.first_id - base
        for index, header in enumerate(self._headers[start:].tolist(), start):
            yield Transaction(partition_id, base + index, header, source, index, codec)


class Transactions(Sequence[Transaction]):
    """Consecutive transactions of one partition, each made when it is looked at.

    An application that only counts, or looks at some, does not pay for all; and what is made one by one and let go
    is not walked through by the garbage collector again and again, as a list of thousands is.
    """

    def __init__(self, frames: Sequence[FeedFrame]) -> None:
        self._frames = [frame for frame in frames if frame.first_id < frame.end_id]
        self._firsts = [frame.first_id for frame in self._frames]

    @property
    def last_id(self) -> int:
        """Of the last one; there must be one."""
        return self._frames[-1].end_id - 1

    def after(self, transaction_id: int) -> Transactions:
        """The transactions with IDs above ``transaction_id``."""
        return Transactions([_rest(frame, transaction_id) for frame in self._frames])

    @property
    def frames(self) -> Sequence[FeedFrame]:
        return self._frames

    def __len__(self) -> int:
        return self._frames[-1].end_id - self._firsts[0] if self._frames else 0

    def __iter__(self) -> Iterator[Transaction]:
        for frame in self._frames:
            yield from frame

    @overload
    def __getitem__(self, index: int) -> Transaction: ...
    @overload
    def __getitem__(self, index: slice) -> list[Transaction]: ...
    def __getitem__(self, index: int | slice) -> Transaction | list[Transaction]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"transaction {index} of {len(self)}")
        transaction_id = self._firsts[0] + position
        return self._frames[bisect_right(self._firsts, transaction_id) - 1].transaction(transaction_id)


def _rest(frame: FeedFrame, after: int) -> FeedFrame:
    rest = copy(frame)
    rest.first_id = max(frame.first_id, after + 1)
    return rest


def transactions_of(feed: RecordBatch | FeedBatch, after: int, origin: Origin) -> Transactions:
    """The transactions of one frame with IDs above ``after``."""
    return Transactions([FeedFrame(feed, after, origin)])
