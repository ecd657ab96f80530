"""``client.feed(..., follow=True)``: a feed for one iterator, beside the callbacks and independent of them.

It is a client of its own (own client ID, own connection), because the feed of a mount names only its partition.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence

from waltz_ray.client.application import Transaction
from waltz_ray.client.fates import Completion
from waltz_ray.client.feeds import Fetch, transactions_of
from waltz_ray.client.io_thread import IoThread
from waltz_ray.client.mount_stream import MountStream
from waltz_ray.client.outbox import Outbox
from waltz_ray.client.partition import Partition
from waltz_ray.client.requests import Append
from waltz_ray.client.stream import StreamPool
from waltz_ray.client.transport import Transport
from waltz_ray.config import ClientConfig
from waltz_ray.errors import ClientAhead, WaltzError
from waltz_ray.protocol.messages.client import FeedBatch, FeedMode
from waltz_ray.protocol.records import RecordBatch

__all__ = ["Subscription"]

_Item = tuple[RecordBatch | FeedBatch, int] | WaltzError


class Subscription:
    """Iterate over it once; ``end`` from any thread makes the iterator raise."""

    def __init__(
        self, partition_id: int, client_id: int, start: int, config: ClientConfig, io: IoThread, transport: Transport
    ) -> None:
        self._io = io
        self._after = start - 1
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._streams = StreamPool(transport, lambda: MountStream(config.max_frame_bytes))
        outbox = Outbox(partition_id, config, lambda: None, lambda: False)
        self.partition = Partition(
            partition_id, client_id, FeedMode.RECORDS, start - 1, config, self._streams, outbox, self
        )

    async def stop(self) -> None:
        """On the IO thread."""
        await self.partition.stop()
        await self._streams.close()

    def end(self, error: WaltzError) -> None:
        self._items.put(error)

    def transactions(self, fetch: Fetch) -> Iterator[Transaction]:
        """Every transaction from the start on, for ever."""
        while True:
            item = self._items.get()
            if isinstance(item, WaltzError):
                raise item
            feed, frame_bytes = item
            yield from transactions_of(feed, self._after, fetch)
            self._after = max(self._after, feed.first_id + len(feed) - 1)
            self._io.post(self.partition.give_credit, frame_bytes)

    # ---- Sink, on the IO thread

    def deliver(
        self, feed: RecordBatch | FeedBatch | None, completions: Sequence[Completion], frame_bytes: int, epoch: int
    ) -> None:
        if feed is not None:
            self._items.put((feed, frame_bytes))

    def ready_changed(self) -> None:
        """Nobody waits for it."""

    def client_ahead(self, error: ClientAhead) -> None:
        self.end(error)

    def lock_failed(self, append: Append, transaction_id: int) -> None:
        raise AssertionError("a subscription appends nothing")

    def failed(self, append: Append) -> None:
        raise AssertionError("a subscription appends nothing")
