"""What is known of one partition of a topic: its end, its last records, and who owns it by its last record of that.

It begins at the end of the log. Who owns the partition is looked for backwards from there: owners say it again every
``SAID_AGAIN_RECORDS`` or ``SAID_AGAIN_BYTES``, so it is near; where nobody has said it, back to the log's beginning.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from waltz_ray.client.subscription import FeedItem, Subscription
from waltz_ray.errors import DataUnavailable, Trimmed, WaltzError
from waltz_ray.protocol.records import RECORD_OVERHEAD_BYTES, RecordBatch
from waltz_ray.protocol.value import value
from waltz_ray.topics.records import SlotOwn, SlotRelease
from waltz_ray.topics.serving.tail import Tail, ownership_in
from waltz_ray.topics.serving.topic_log import TopicLog

__all__ = ["SAID_AGAIN_BYTES", "SAID_AGAIN_RECORDS", "PartitionFold", "SlotClaim"]

log = logging.getLogger(__name__)

T = TypeVar("T")

SAID_AGAIN_RECORDS = 2048
SAID_AGAIN_BYTES = 4 << 20

_FIRST_LOOK = 64  # records; each further look back is twice as long
_READ_BYTES = 1 << 20
_AGAIN_S = 0.5


@value()
class SlotClaim:
    """``protocol.ownership_types.UnitClaim`` of what the log says."""

    actor: int
    incarnation: str
    epoch: int
    released: bool


def claim_of(record: SlotOwn | SlotRelease) -> SlotClaim:
    return SlotClaim(record.actor, record.incarnation, record.epoch, isinstance(record, SlotRelease))


def news_in(claims: Sequence[SlotClaim]) -> Sequence[SlotClaim]:
    """What is told of one step of a fold: the last of its claims.

    What is decided on it is appended with the mark of the whole step, so nobody may act on a claim that another one
    follows there (``protocol.ownership_types.OwnersFolded``).
    """
    return claims[-1:]


class PartitionFold:
    """``folded(claims)`` is called after each piece, with what its records say now of the owner, if they do; ``ended``
    when nothing more will come. In one event loop."""

    def __init__(
        self,
        topic_log: TopicLog,
        partition: int,
        tail_bytes: int,
        folded: Callable[[Sequence[SlotClaim]], None],
        ended: Callable[[WaltzError], None],
    ) -> None:
        self.mark = -1
        """The last transaction that is known."""
        self.tail = Tail(tail_bytes)
        self.records_since = self.bytes_since = 0
        """Since somebody has last said that he owns the partition."""
        self._log, self._partition = topic_log, partition
        self._folded, self._ended = folded, ended
        self._subscription: Subscription | None = None
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stopped = False

    async def start(self) -> None:
        """Find out who owns the partition, and follow it from then on. WaltzError if its space is gone."""
        claim = await self._last_claim()
        if claim is not None:
            self._folded([claim])
        await self._follow()

    async def stop(self) -> None:
        """Fold nothing more. Idempotent."""
        self._stopped = True
        if self._subscription is not None:
            await self._log.unfollow(self._subscription)

    def after(self, transaction_id: int, call: Callable[[], None]) -> None:
        """Call it once this transaction is known, in a later turn of the loop."""
        heapq.heappush(self._waiting, (transaction_id, next(self._order), call))
        asyncio.get_running_loop().call_soon(self._call_those_who_wait)

    def forget(self, call: Callable[[], None]) -> None:
        """Do not call it any more: the transaction may never come."""
        self._waiting = [each for each in self._waiting if each[2] != call]
        heapq.heapify(self._waiting)

    # ---- looking back

    async def _last_claim(self) -> SlotClaim | None:
        end = await self._until_read(lambda: self._log.high_water_mark(self._partition)) + 1
        self.mark = end - 1
        begin, step = end, _FIRST_LOOK
        while begin > 0:
            stop, begin, step = begin, max(0, begin - step), 2 * step
            try:
                found = await self._last_within(begin, stop)
            except Trimmed as trimmed:
                if trimmed.first_id >= stop:
                    return None
                found, begin = await self._last_within(trimmed.first_id, stop), 0
            if found is not None:
                self.records_since = end - found[0]
                return found[1]
        return None

    async def _last_within(self, begin: int, end: int) -> tuple[int, SlotClaim] | None:
        found: tuple[int, SlotClaim] | None = None
        while begin < end:
            batch = await self._until_read(partial(self._log.read, self._partition, begin, end, _READ_BYTES))
            for transaction_id, record in ownership_in(batch):
                found = transaction_id, claim_of(record)
            begin = max(begin, batch.end_id)
            if not len(batch):
                await asyncio.sleep(_AGAIN_S)  # the server is behind one that told us the end
        return found

    async def _until_read(self, read: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await read()
            except DataUnavailable as error:
                log.info("partition %d: %s", self._partition, error)
                await asyncio.sleep(_AGAIN_S)

    # ---- following

    async def _follow(self) -> None:
        early: list[FeedItem] = []
        put: Callable[[FeedItem], None] = early.append
        subscription = await self._log.follow(self._partition, self.mark + 1, lambda item: put(item))
        self._subscription = subscription

        def taken(item: FeedItem) -> None:
            if not self._stopped:
                self._taken(subscription, item)

        put = taken
        for item in early:
            taken(item)

    def _taken(self, subscription: Subscription, item: FeedItem) -> None:
        if item is None:
            return
        if isinstance(item, WaltzError):  # also Trimmed: who owns it was perhaps said in what is gone
            self._stopped = True
            self._ended(item)
            return
        batch, _ = item
        assert isinstance(batch, RecordBatch), "a follower is fed records"
        self.fold(batch.since(self.mark + 1))
        subscription.used(item)

    def fold(self, batch: RecordBatch) -> None:
        """Take in the records that follow."""
        if not len(batch):
            return
        self.tail.put(batch)
        self.mark = batch.last_id
        self.records_since += len(batch)
        self.bytes_since += batch.size_bytes - len(batch) * RECORD_OVERHEAD_BYTES
        claims = []
        for transaction_id, record in ownership_in(batch):
            claims.append(claim_of(record))
            self.records_since, self.bytes_since = batch.last_id - transaction_id, 0
        self._folded(news_in(claims))
        self._call_those_who_wait()

    def _call_those_who_wait(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.mark and not self._stopped:
            heapq.heappop(self._waiting)[2]()
