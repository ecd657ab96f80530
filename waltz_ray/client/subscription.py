"""``client.feed(..., follow=True)``: a feed for one iterator, beside the callbacks and independent of them.

It is a client of its own (own client ID, own connection), because the feed of a mount names only its partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from waltz_ray.client.core import Mounter, PartitionShell
from waltz_ray.client.fates import Completion
from waltz_ray.client.feeds import Fetch, Transactions, transactions_of
from waltz_ray.client.requests import AppendCall
from waltz_ray.errors import WaltzError
from waltz_ray.protocol.messages.client import FeedBatch
from waltz_ray.protocol.records import RecordBatch

__all__ = ["FeedItem", "Subscription"]

FeedItem = tuple[RecordBatch | FeedBatch, int] | WaltzError
"""A frame and its bytes, or why there is no further one."""


class Subscription:
    """Feeds one iterator: ``put`` gets what it is to take, and ``taken`` makes transactions of it.

    On the client's loop, but for ``taken`` and ``end``.
    """

    def __init__(self, mounter: Mounter, partition_id: int, after: int, put: Callable[[FeedItem], None]) -> None:
        self._after = after
        self._mounter = mounter
        self._put = put
        self.stopped = False
        self.partition = PartitionShell(mounter, partition_id, after, self)

    async def stop(self) -> None:
        """Leave, and close the connection. Idempotent."""
        self.stopped = True
        await self.partition.stop()
        await self._mounter.streams.close()

    def end(self, error: WaltzError) -> None:
        """The iterator raises when it has taken what was before."""
        self._put(error)

    def taken(self, item: FeedItem, fetch: Fetch) -> Transactions:
        """The transactions of the next item; raises if it is the end."""
        if isinstance(item, WaltzError):
            raise item
        feed, _ = item
        after, self._after = self._after, max(self._after, feed.first_id + len(feed) - 1)
        return transactions_of(feed, after, fetch)

    def used(self, item: FeedItem) -> None:
        """The iterator has done with it: as much may come."""
        if not isinstance(item, WaltzError):
            self._mounter.shell.post(self.partition.applied, item[1])

    # ---- Sink

    def deliver(
        self, feed: RecordBatch | FeedBatch | None, completions: Sequence[Completion], frame_bytes: int, epoch: int
    ) -> None:
        if feed is not None:
            self._put((feed, frame_bytes))

    def ready_changed(self) -> None:
        """Nobody waits for it."""

    def never_ready(self, error: WaltzError) -> None:
        self.end(error)

    def lock_failed(self, append: AppendCall, transaction_id: int) -> None:
        raise AssertionError("a subscription appends nothing")

    def failed(self, append: AppendCall) -> None:
        raise AssertionError("a subscription appends nothing")
