"""Feed credit over several mounts of one stream: what an earlier mount sent is not paid for by the newest one."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import numpy as np

from waltz_ray.client.directory import Location
from waltz_ray.client.outbox import Outbox
from waltz_ray.client.partition import Partition
from waltz_ray.config import ClientConfig
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.client import FeedBatch, FeedCredit, FeedMode, Mount, Mounted
from waltz_ray.protocol.messages.original import MountState

FRAME_BYTES = 4096
CONFIG = ClientConfig(feed_credit_bytes=4 * FRAME_BYTES)


class Stream:
    """Takes what is sent; ``partition`` hears what the test says."""

    ended = busy = False

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.mounted = asyncio.Event()

    def attach(self, partition_id: int, partition: Partition) -> None: ...

    def detach(self, partition_id: int, partition: Partition) -> None: ...

    def send(self, message: Any) -> None:
        self.sent.append(message)
        if isinstance(message, Mount):
            self.mounted.set()

    async def mount(self) -> Mount:
        await asyncio.wait_for(self.mounted.wait(), 10)
        self.mounted.clear()
        return next(message for message in reversed(self.sent) if isinstance(message, Mount))


class Sink:
    """Applies at once: all that comes is given back."""

    partition: Partition

    def deliver(self, feed: Any, completions: Any, frame_bytes: int, epoch: int) -> None:
        self.partition.give_credit(frame_bytes)

    def ready_changed(self) -> None: ...


def _frame(first_id: int) -> FeedBatch:
    column = np.zeros(1, np.int32)
    return FeedBatch(0, first_id, column, column, column, column)


def test_frames_of_an_earlier_mount_do_not_enlarge_the_credit() -> None:
    async def run() -> None:
        stream, sink = Stream(), Sink()

        class Streams:
            async def get(self, location: Location) -> Stream:
                return stream

        outbox = Outbox(0, CONFIG, lambda: None, lambda: False)
        partition = Partition(0, 7, FeedMode.HEADERS, -1, CONFIG, cast(Any, Streams()), outbox, cast(Any, sink))
        sink.partition = partition

        def comes(message: Any) -> None:
            partition.stream_message(cast(Any, stream), message, FRAME_BYTES)

        partition.start(Location(1, 1, Endpoint("127.0.0.1", 1)))
        first = await stream.mount()
        assert first.credit_bytes == CONFIG.feed_credit_bytes
        for transaction_id in range(3):
            comes(_frame(transaction_id))
        comes(Mounted(first.req_id, MountState.READY, 1, 2))
        partition.location_changed(Location(1, 2, Endpoint("127.0.0.1", 1)))  # the same server has it again
        second = await stream.mount()
        stream.sent.clear()
        assert (second.client_mark, second.credit_bytes) == (2, CONFIG.feed_credit_bytes)
        for transaction_id in (3, 4):  # had left before the server heard of the second mount
            comes(_frame(transaction_id))
        for transaction_id in (3, 4, 5):  # what it sends for that
            comes(_frame(transaction_id))
        comes(Mounted(second.req_id, MountState.READY, 2, 5))
        given = sum(message.credit_bytes for message in stream.sent if isinstance(message, FeedCredit))
        assert given + partition._credit_bytes == 3 * FRAME_BYTES
        assert partition.position == 5
        await partition.stop()

    asyncio.run(run())
