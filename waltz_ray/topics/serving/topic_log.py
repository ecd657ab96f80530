"""The log of one topic as an actor uses it: records appended under their slot's lock, partitions followed and read.

Of each partition the slot has one lock. A record of ownership takes it as a write lock, everything else as a read lock,
both with the mark of the fold: so what a deposed owner still appends is refused by the log (``slot_partition.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache

from waltz_ray.client.append_fates import AppendFates
from waltz_ray.client.engine import Engine
from waltz_ray.client.subscription import FeedItem, Subscription
from waltz_ray.protocol.ids import LockId
from waltz_ray.protocol.messages.client import FeedMode
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.topics.records import TopicRecord, encode_topic_record, topic_header

__all__ = ["TopicLog", "slot_lock"]


@lru_cache(maxsize=4096)
def slot_lock(slot: int) -> int:
    """The hash of the lock that what a slot's owner appends rests on."""
    return LockId("topic slot", slot).hash


class TopicLog:
    """``engine``: of a client of the topic's space without callbacks, on the loop that runs now. ``next_client_id``
    gives a client ID that nobody else has."""

    def __init__(self, engine: Engine, next_client_id: Callable[[], Awaitable[int]]) -> None:
        self._engine = engine
        self._next_client_id = next_client_id

    def append(
        self, partition: int, slot: int, record: TopicRecord, mark: int, fates: AppendFates, exclusive: bool = False
    ) -> None:
        """Append under the slot's lock, ``exclusive``: and update it. ``fates`` is told how it ends, never within this
        call. InvalidInput if no server would take it."""
        lock = [slot_lock(slot)]
        hashes = (lock, [], ()) if exclusive else ([], lock, ())
        data, header = encode_topic_record(record), topic_header(record)
        self._engine.append_under(partition, data, header, hashes, mark, fates)

    async def high_water_mark(self, partition: int) -> int:
        """The last committed transaction. DataUnavailable."""
        return await self._engine.rpc.high_water_mark(partition)

    async def read(self, partition: int, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        """Transactions from ``first_id`` on, possibly fewer than asked. DataUnavailable, Trimmed."""
        return await self._engine.rpc.read(partition, first_id, end_id, max_bytes)

    async def first_id_at(self, partition: int, time_ms: int) -> int:
        """The first transaction that may have been appended then or later, or the next one. DataUnavailable."""
        return await self._engine.rpc.first_id_at(partition, time_ms)

    async def follow(self, partition: int, first_id: int, put: Callable[[FeedItem], None]) -> Subscription:
        """Have ``put`` called with every frame from there on, or with the error that ends it; ``used`` of the
        subscription for each frame that is done with."""
        client_id = await self._next_client_id()
        return self._engine.follow(client_id, {partition: first_id}, put)

    async def follow_headers(self, partition: int, first_id: int, put: Callable[[FeedItem], None]) -> Subscription:
        """The same with frames of headers (``FeedBatch``)."""
        client_id = await self._next_client_id()
        return self._engine.follow(client_id, {partition: first_id}, put, mode=FeedMode.HEADERS)

    async def unfollow(self, subscription: Subscription) -> None:
        """Nothing more comes. Idempotent."""
        await self._engine.unsubscribe(subscription)
