"""Packed feeds turned into the transactions an application sees."""

from __future__ import annotations

from collections.abc import Callable

from waltz_ray.client.application import Transaction
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.wire.batches import FeedBatch

__all__ = ["Fetch", "transactions_of"]

Fetch = Callable[[int, int], bytes]
"""Data of (partition ID, transaction ID), fetched from the server."""


class _Records:
    """Transactions whose data came with the feed."""

    def __init__(self, batch: RecordBatch) -> None:
        self._batch = batch

    def req_id(self, index: int) -> ReqId:
        row = self._batch.fields[index]
        return ReqId(
            int(row["client_id"]), int(row["generation"]), int(row["partition_id"]), int(row["sequence_number"])
        )

    def data(self, index: int) -> bytes:
        return bytes(self._batch.data(index))


class _Headers:
    """Transactions whose data is fetched when it is asked for."""

    def __init__(self, batch: FeedBatch, fetch: Fetch) -> None:
        self._batch = batch
        self._fetch = fetch

    def req_id(self, index: int) -> ReqId:
        batch = self._batch
        return ReqId(
            int(batch.client_ids[index]),
            int(batch.generations[index]),
            batch.partition_id,
            int(batch.sequence_numbers[index]),
        )

    def data(self, index: int) -> bytes:
        return self._fetch(self._batch.partition_id, self._batch.first_id + index)


def transactions_of(feed: RecordBatch | FeedBatch, after: int, fetch: Fetch) -> list[Transaction]:
    """The transactions of one frame with IDs above ``after``."""
    source: _Records | _Headers
    if isinstance(feed, RecordBatch):
        source, headers = _Records(feed), feed.fields["header"].tolist()
    else:
        source, headers = _Headers(feed, fetch), feed.headers.tolist()
    skip = max(0, after + 1 - feed.first_id)
    partition_id, first_id = feed.partition_id, feed.first_id
    return [
        Transaction(partition_id, first_id + index, header, source, index)
        for index, header in enumerate(headers[skip:], skip)
    ]
