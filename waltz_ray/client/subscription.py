"""What a follower (``client.feed(..., follow=True)``) rests on: a feed beside the callbacks and independent of them.

It is a client of its own (own client ID, own connections), because the feed of a mount names only its partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from waltz_ray.client.core import Mounter, PartitionShell
from waltz_ray.client.fates import Completion
from waltz_ray.client.feeds import Origin, Transactions, transactions_of
from waltz_ray.client.requests import AppendCall
from waltz_ray.errors import WaltzError
from waltz_ray.protocol.messages.client import FeedBatch
from waltz_ray.protocol.records import RecordBatch

__all__ = ["FeedItem", "Subscription"]

FeedItem = tuple[RecordBatch | FeedBatch, int] | WaltzError | None
"""A frame and its bytes, why there is no further one, or None to make who waits look whether he is to stop."""


class Subscription:
    """Feeds one follower: ``put`` gets what it is to take, and ``taken`` makes transactions of it.

    On the client's loop, but for ``taken``, ``used``, ``used_once``, ``abandon`` and ``end``.
    """

    def __init__(
        self,
        mounter: Mounter,
        first_ids: Mapping[int, int],
        put: Callable[[FeedItem], None],
        abandoned: Callable[[Subscription], None],
        ready_changed: Callable[[], None] = lambda: None,
        earliest: bool = False,
    ) -> None:
        """``first_ids``: of each partition; with ``earliest`` it begins at what there is, if those were trimmed away.
        ``abandoned`` is called on the loop after ``abandon``."""
        self._marks = {partition_id: first_id - 1 for partition_id, first_id in first_ids.items()}
        self._mounter = mounter
        self._put = put
        self._abandoned = abandoned
        self._ready_changed = ready_changed
        self.stopped = False
        self.partitions = {p: PartitionShell(mounter, p, mark, self, earliest) for p, mark in self._marks.items()}

    async def stop(self) -> None:
        """Leave, and close the connections. Idempotent."""
        self.stopped = True
        for partition in self.partitions.values():
            await partition.stop()
        await self._mounter.streams.close()

    def abandon(self) -> None:
        """Nobody takes from it any more: it is stopped soon."""
        self._mounter.shell.post(self._abandoned, self)

    def end(self, error: WaltzError) -> None:
        """The follower raises when it has taken what was before."""
        self._put(error)

    def taken(self, item: FeedItem, origin: Origin) -> Transactions:
        """The transactions of the next frame; the same until it is used."""
        if not isinstance(item, tuple):
            return Transactions([])
        feed, _ = item
        return transactions_of(feed, self._marks[feed.partition_id], origin)

    def used(self, item: FeedItem) -> None:
        """The follower has done with it: as much may come."""
        self.used_once(item, [])

    def used_once(self, item: FeedItem, told: list[FeedItem]) -> None:
        """``used``, for who may be interrupted in it: he says it again with the same list, which was empty first."""
        if isinstance(item, tuple):
            feed, _ = item
            self._marks[feed.partition_id] = max(self._marks[feed.partition_id], feed.first_id + len(feed) - 1)
            self._mounter.shell.post(self._used, item, told)

    def _used(self, item: tuple[RecordBatch | FeedBatch, int], told: list[FeedItem]) -> None:
        if not told:
            told.append(item)
            feed, frame_bytes = item
            self.partitions[feed.partition_id].applied(frame_bytes)

    # ---- Sink

    def deliver(
        self, feed: RecordBatch | FeedBatch | None, completions: Sequence[Completion], frame_bytes: int, epoch: int
    ) -> None:
        if feed is not None:
            self._put((feed, frame_bytes))

    def ready_changed(self) -> None:
        self._ready_changed()

    def never_ready(self, error: WaltzError) -> None:
        self.end(error)

    def lock_failed(self, append: AppendCall, transaction_id: int) -> None:
        raise AssertionError("a subscription appends nothing")

    def failed(self, append: AppendCall) -> None:
        raise AssertionError("a subscription appends nothing")
