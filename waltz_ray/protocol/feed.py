"""Who is told what of a partition's committed transactions (DESIGN 7; docs/wire.md, "Feed").

A *subscriber* is a mounted client. In HEADERS and RECORDS mode it has a position (the last ID sent to it) and a
credit in bytes; subscribers at the same position and mode share one encoded frame. In OWN mode it is only told of
its own transactions: once it has caught up it is *live* and costs nothing while others append.
A mount is answered when the feed has passed ``mount_target``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from waltz_ray.protocol.ids import NO_TRANSACTION, ReqId
from waltz_ray.protocol.partition_types import Effect, ReadFeed, SendFeed, SendMessage
from waltz_ray.protocol.records import FEW_RECORDS, Int32s, Int64s, RecordBatch
from waltz_ray.protocol.retained import RetainedRecords
from waltz_ray.wire.batches import AppendedBatch, FeedMode, Mounted
from waltz_ray.wire.client_messages import MountState

__all__ = ["FEED_READ_BYTES", "FeedHub", "Subscriber", "feed_batch_bytes", "feed_frame_bytes", "own_entries"]

FEED_READ_BYTES = 1024 * 1024
"""How much a subscriber that is behind is read and sent at a time."""

_READS_AHEAD = 2
_EXPECTED_BYTES = FEED_READ_BYTES * 7 // 8  # of a range of IDs that one read shall bring whole

_FEED_BATCH_BYTES, _FEED_BATCH_RECORD_BYTES = 24, 16
_FEED_RECORDS_BYTES, _FEED_RECORDS_RECORD_BYTES = 24, 4


def feed_frame_bytes(mode: FeedMode, batch: RecordBatch) -> int:
    """Size of the feed frame with its header: what it costs of a subscriber's credit."""
    if mode is FeedMode.RECORDS:
        return _FEED_RECORDS_BYTES + _FEED_RECORDS_RECORD_BYTES * len(batch) + batch.size_bytes
    return feed_batch_bytes(len(batch))


def feed_batch_bytes(count: int) -> int:
    """Size of a frame of ``count`` feed entries without data."""
    return _FEED_BATCH_BYTES + _FEED_BATCH_RECORD_BYTES * count


def own_entries(batch: RecordBatch) -> Iterator[tuple[int, Int32s, Int64s]]:
    """(client ID, its sequence numbers, its transaction IDs), one item per run of one client's records."""
    if len(batch) <= FEW_RECORDS:
        transaction_id = batch.first_id
        for client_id, run in itertools.groupby(batch.origins, itemgetter(0)):
            numbers = [number for _, number in run]
            end_id = transaction_id + len(numbers)
            yield client_id, np.array(numbers, np.int32), np.array(range(transaction_id, end_id), np.int64)
            transaction_id = end_id
        return
    clients = batch.fields["client_id"].astype(np.int32)
    sequence_numbers = batch.fields["sequence_number"].astype(np.int32)
    ids = np.arange(batch.first_id, batch.end_id)
    bounds = [0, *(np.flatnonzero(clients[1:] != clients[:-1]) + 1).tolist(), len(clients)]
    for start, end in itertools.pairwise(bounds):
        yield int(clients[start]), sequence_numbers[start:end], ids[start:end]


@dataclass(slots=True)
class Subscriber:
    """One mounted client (see the module's docstring)."""

    connection_id: int
    client_id: int
    mode: FeedMode
    position: int
    credit_bytes: int
    req_id: ReqId  # of the mount
    mount_target: int
    answered: bool = False
    live: bool = False
    reads: int = 0  # ordered and not yet there
    ordered_to: int = NO_TRANSACTION  # the last ID of these, while there are any
    read_records: int = 0  # how many a read brings, a little less than the last one did; 0 = not known


class FeedHub:
    """The subscribers of one partition. Every method returns the effects it leads to."""

    def __init__(self, partition_id: int) -> None:
        self._partition_id = partition_id
        self._subscribers: dict[int, Subscriber] = {}  # by client ID: its newest mount
        self._following: dict[int, Subscriber] = {}  # those of them that are not live: they cost work at every commit
        self.generation = -1

    def __len__(self) -> int:
        return len(self._subscribers)

    def connection_of(self, client_id: int) -> int | None:
        """The newest connection of a mounted client."""
        subscriber = self._subscribers.get(client_id)
        return None if subscriber is None else subscriber.connection_id

    def has_newer_mount(self, connection_id: int, req_id: ReqId) -> bool:
        """Whether the client of ``req_id`` has mounted over another connection with a later request."""
        subscriber = self._subscribers.get(req_id.client_id)
        if subscriber is None or subscriber.connection_id == connection_id:
            return False
        distance = (subscriber.req_id.sequence_number - req_id.sequence_number) & 0xFFFFFFFF
        return 0 < distance < 1 << 31  # sequence numbers wrap around

    def mount(self, subscriber: Subscriber) -> None:
        """The newest mount of a client replaces an older one."""
        self._subscribers[subscriber.client_id] = self._following[subscriber.client_id] = subscriber

    def unmount(self, connection_id: int, client_id: int | None = None) -> None:
        """Forget the mounts of a connection (or just one client's)."""
        for subscriber in list(self._subscribers.values()):
            if subscriber.connection_id == connection_id and client_id in (None, subscriber.client_id):
                del self._subscribers[subscriber.client_id]
                self._following.pop(subscriber.client_id, None)

    def take_all(self) -> list[Subscriber]:
        """Forget everybody; the caller tells them."""
        everybody = list(self._subscribers.values())
        self._subscribers.clear()
        self._following.clear()
        return everybody

    def add_credit(self, connection_id: int, credit_bytes: int) -> None:
        for subscriber in self._subscribers.values():
            if subscriber.connection_id == connection_id:
                subscriber.credit_bytes += credit_bytes

    def committed(self, first_id: int, high_water_mark: int, retained: RetainedRecords) -> list[Effect]:
        """Records [first_id, high_water_mark] have just been committed."""
        effects: list[Effect] = []
        if len(self._following) < len(self._subscribers):  # some are live
            for batch in retained.between(first_id, high_water_mark + 1):
                for client_id, sequence_numbers, ids in own_entries(batch):
                    subscriber = self._subscribers.get(client_id)
                    if subscriber is not None and subscriber.live:
                        effects.append(self._own(subscriber, high_water_mark, sequence_numbers, ids))
        if self._following:
            effects += self.advance(high_water_mark, retained)
        return effects

    def advance(self, high_water_mark: int, retained: RetainedRecords) -> list[Effect]:
        """Send what is committed, allowed by credit and in memory; order reads for those further behind."""
        effects: list[Effect] = []
        groups: dict[tuple[FeedMode, int], list[Subscriber]] = {}
        for subscriber in self._following.values():
            if subscriber.position < high_water_mark and subscriber.reads < _READS_AHEAD:
                if subscriber.mode is FeedMode.NONE:
                    subscriber.position = high_water_mark
                elif subscriber.reads:
                    effects += self._read(subscriber, min(high_water_mark + 1, retained.first_id))
                elif subscriber.credit_bytes > 0 or subscriber.mode is FeedMode.OWN:
                    groups.setdefault((subscriber.mode, subscriber.position), []).append(subscriber)
        for (_, position), group in groups.items():
            if position + 1 >= retained.first_id:
                for batch in retained.between(position + 1, high_water_mark + 1):
                    effects += self._send(group, batch, high_water_mark)
            else:
                for subscriber in group:
                    effects += self._read(subscriber, min(high_water_mark + 1, retained.first_id))
        effects += self._answer_mounts(high_water_mark)
        return effects

    def read(self, client_id: int, connection_id: int, batch: RecordBatch, high_water_mark: int) -> list[Effect]:
        """Records ordered by ReadFeed have come. The caller advances next."""
        subscriber = self._subscribers.get(client_id)
        if subscriber is None or subscriber.connection_id != connection_id or not subscriber.reads:
            return []
        subscriber.reads -= 1
        if batch.first_id != subscriber.position + 1:
            return []  # of an earlier mount over the same connection, or the read before it brought less than expected
        subscriber.read_records = max(1, _EXPECTED_BYTES * len(batch) // batch.size_bytes)
        return self._send([subscriber], batch, high_water_mark)

    def read_failed(self, client_id: int, connection_id: int) -> None:
        """The read did not work; ``advance`` orders it again."""
        subscriber = self._subscribers.get(client_id)
        if subscriber is not None and subscriber.connection_id == connection_id:
            subscriber.reads = max(0, subscriber.reads - 1)

    def _send(self, group: list[Subscriber], batch: RecordBatch, high_water_mark: int) -> list[Effect]:
        if group[0].mode is FeedMode.OWN:
            return self._send_own(group, batch, high_water_mark)
        cost = feed_frame_bytes(group[0].mode, batch)
        receivers = [s for s in group if s.credit_bytes > 0 and s.position + 1 == batch.first_id]
        for subscriber in receivers:
            subscriber.credit_bytes -= cost
            subscriber.position = batch.last_id
        if not receivers:
            return []
        return [SendFeed(tuple(s.connection_id for s in receivers), group[0].mode, batch)]

    def _send_own(self, group: list[Subscriber], batch: RecordBatch, high_water_mark: int) -> list[Effect]:
        members = {subscriber.client_id: subscriber for subscriber in group}
        for subscriber in group:
            subscriber.position = batch.last_id
        return [
            self._own(members[client_id], high_water_mark, numbers, ids)
            for client_id, numbers, ids in own_entries(batch)
            if client_id in members
        ]

    def _own(self, subscriber: Subscriber, high_water_mark: int, numbers: Int32s, ids: Int64s) -> SendMessage:
        message = AppendedBatch(self._partition_id, high_water_mark, numbers, ids)
        return SendMessage(subscriber.connection_id, message)

    def _read(self, subscriber: Subscriber, end_id: int) -> list[ReadFeed]:
        """Order what it lacks below ``end_id``: two reads at a time, so that a replica works on one while the other is
        on its way. The second begins where the first is expected to end; if it does not end there, the second is
        dropped and ordered again."""
        if not subscriber.reads:
            subscriber.ordered_to = subscriber.position
        orders: list[ReadFeed] = []
        while subscriber.reads < _READS_AHEAD and (first_id := subscriber.ordered_to + 1) < end_id:
            if subscriber.reads and subscriber.credit_bytes < _READS_AHEAD * FEED_READ_BYTES:
                break
            end = min(end_id, first_id + subscriber.read_records) if subscriber.read_records else end_id
            subscriber.reads += 1
            subscriber.ordered_to = end - 1
            orders.append(ReadFeed(subscriber.connection_id, subscriber.client_id, first_id, end, FEED_READ_BYTES))
        return orders

    def _answer_mounts(self, high_water_mark: int) -> list[Effect]:
        effects: list[Effect] = []
        caught_up: list[int] = []
        for s in self._following.values():
            if not s.answered and s.position >= s.mount_target:
                mounted = Mounted(s.req_id, MountState.READY, self.generation, high_water_mark)
                effects.append(SendMessage(s.connection_id, mounted))
                s.answered = True
            if s.mode is FeedMode.OWN and s.answered and s.position >= high_water_mark:
                s.live = True
                caught_up.append(s.client_id)
        for client_id in caught_up:
            del self._following[client_id]
        return effects
