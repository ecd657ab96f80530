"""What a fold tells of who owns a partition."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from waltz_ray.client.subscription import FeedItem, Subscription
from waltz_ray.protocol.records import RecordBatch, build_records
from waltz_ray.topics.records import OWNERSHIP_HEADER, SlotOwn, SlotRelease, TopicRecord, encode_topic_record
from waltz_ray.topics.serving.partition_fold import PartitionFold, SlotClaim
from waltz_ray.topics.serving.topic_log import TopicLog


def batch_of(first_id: int, records: Sequence[TopicRecord]) -> RecordBatch:
    datas = [encode_topic_record(record) for record in records]
    columns = (
        np.arange(len(datas), dtype=np.int32),
        np.full(len(datas), OWNERSHIP_HEADER, dtype=np.int32),
        np.array([len(data) for data in datas], dtype=np.int32),
        np.array([zlib.crc32(data) for data in datas], dtype=np.uint32),
    )
    return build_records(0, first_id, 1, 1, columns, b"".join(datas))


class _Subscription(Subscription):
    def __init__(self) -> None:
        """Of nothing."""

    def used(self, item: FeedItem) -> None:
        pass


class _Log(TopicLog):
    """An empty one, whose feed is ``put``."""

    def __init__(self) -> None:
        self.put: Callable[[FeedItem], None] = lambda item: None

    async def high_water_mark(self, partition: int) -> int:
        return -1

    async def follow(self, partition: int, first_id: int, put: Callable[[FeedItem], None]) -> Subscription:
        self.put = put
        return _Subscription()


def test_of_owners_that_come_together_only_the_last_one_is_told() -> None:
    """The mark is that of all of them: who acted on the first one would pass over the others."""
    told: list[tuple[int, list[SlotClaim]]] = []

    async def run() -> None:
        log = _Log()
        fold = PartitionFold(log, 0, 1 << 20, lambda claims: told.append((fold.mark, list(claims))), lambda error: None)
        await fold.start()
        last = SlotOwn(1, 0, "zero", 5)
        owners: list[TopicRecord] = [
            SlotOwn(1, 1, "one", 3),
            SlotOwn(1, 2, "two", 4),
            SlotRelease(1, 2, "two", 4),
            last,
        ]
        log.put((batch_of(0, owners), 100))
        log.put((batch_of(4, [SlotRelease(1, 0, "zero", 5)]), 100))

    asyncio.run(run())
    assert told == [(3, [SlotClaim(0, "zero", 5, False)]), (4, [SlotClaim(0, "zero", 5, True)])]
