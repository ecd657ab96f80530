"""Who is told what of a partition's committed transactions (docs/wire.md, "Version 5", "Limits").

A *subscriber* is a mounted client. In HEADERS and RECORDS mode it has a position (the last ID sent to it) and a
credit in bytes; subscribers at the same position and mode share one encoded frame. In OWN mode it is only told of
its own transactions: once it has caught up it is *live* and costs nothing while others append.
A mount is answered when the feed has passed ``mount_target``.

Whatever is asked, one step does a bounded piece of work. Subscribers that can be told something stand in a queue
(``_due``); a step serves those in front and, while any are left, asks for another turn (FeedAgain), so that appends
and other partitions come in between. Who waits for a commit, for credit, for a read or for its own connection stands
in no queue and costs nothing.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container, Iterator
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from waltz_ray.protocol.ids import NO_TRANSACTION, ReqId
from waltz_ray.protocol.messages.client import AppendedBatch, FeedMode, Mounted, NotReady
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.partition.events import Effect, FeedAgain, ReadFeed, SendFeed, SendMessage
from waltz_ray.protocol.records import FEW_RECORDS, Int32s, Int64s, RecordBatch
from waltz_ray.protocol.retained import RetainedRecords, joined, limited

__all__ = [
    "FEED_CREDIT_LIMIT_BYTES",
    "FEED_READ_BYTES",
    "FRAME_LIMITS",
    "FeedHub",
    "Subscriber",
    "feed_batch_bytes",
    "feed_frame_bytes",
    "own_entries",
    "receivers",
]

FEED_READ_BYTES = 1024 * 1024
"""How much a subscriber that is behind is read and sent at a time."""

FEED_CREDIT_LIMIT_BYTES = 64 * 1024 * 1024
"""More credit than this is not kept (docs/wire.md, "Limits")."""

_READS_AHEAD = 2

FRAME_LIMITS = 64 * 1024, 256
"""Bytes and batches of what is joined to one frame of the feed; a longer batch is one by itself, or is cut."""

_MOST_RECORDS = 16 * 1024  # in one frame

# The work of one step, in bytes sent. Sending, and looking at a batch or a subscriber, cost about as much as so many
# bytes. All of it together is a few milliseconds.
_STEP_BYTES = 2 * 1024 * 1024
_SEND_BYTES, _BATCH_BYTES, _LOOK_BYTES = 16 * 1024, 512, 1024
_FAN_OUT_BYTES = 12 * 1024 * 1024  # of one frame to all its receivers
_LOOK_AT_ONCE = 256

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


def own_entries(batch: RecordBatch, clients: Container[int]) -> Iterator[tuple[int, Int32s, Int64s]]:
    """(client ID, its sequence numbers, its transaction IDs) of those of ``clients`` that have records here.

    Of few records one item for each run of one client's, of many one item for each client.
    """
    if len(batch) <= FEW_RECORDS:
        transaction_id = batch.first_id
        for client_id, run in itertools.groupby(batch.origins, itemgetter(0)):
            numbers = [number for _, number in run]
            end_id = transaction_id + len(numbers)
            if client_id in clients:
                yield client_id, np.array(numbers, np.int32), np.array(range(transaction_id, end_id), np.int64)
            transaction_id = end_id
        return
    owners = batch.fields["client_id"].astype(np.int32)
    sequence_numbers = batch.fields["sequence_number"].astype(np.int32)
    ids = np.arange(batch.first_id, batch.end_id)
    if (owners == owners[0]).all():
        if int(owners[0]) in clients:
            yield int(owners[0]), sequence_numbers, ids
        return
    order = np.argsort(owners, kind="stable")
    owners = owners[order]
    starts = [0, *(np.flatnonzero(owners[1:] != owners[:-1]) + 1).tolist()]
    for client_id, start, end in zip(owners[starts].tolist(), starts, [*starts[1:], len(owners)], strict=True):
        if client_id in clients:
            own = order[start:end]
            yield client_id, sequence_numbers[own], ids[own]


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
    in_order: bool = False
    refused_end: int | None = None  # the number behind appends that were refused, while what comes may be unaware of it
    answered: bool = False
    live: bool = False
    reads: int = 0  # ordered and not yet there
    ordered_to: int = NO_TRANSACTION  # the last ID of these, while there are any
    read_records: int = 0  # how many a read brings, a little less than the last one did; 0 = not known


def receivers(group: list[Subscriber], batch: RecordBatch) -> list[Subscriber]:
    """Who of ``group`` is sent ``batch`` now: it is what comes next for them, and they have credit left."""
    return [s for s in group if s.credit_bytes > 0 and s.position + 1 == batch.first_id]


class FeedHub:
    """The subscribers of one partition. Methods that tell somebody something return the effects."""

    def __init__(self, partition_id: int, most_bytes: int = FEED_READ_BYTES) -> None:
        """``most_bytes``: of records in one frame or read, unless a single record has more."""
        self._partition_id = partition_id
        self._most_bytes = min(most_bytes, FEED_READ_BYTES)
        self._subscribers: dict[int, Subscriber] = {}  # by client ID: its newest mount
        self._by_connection: dict[int, dict[int, Subscriber]] = {}
        self._live: dict[int, Subscriber] = {}  # OWN, with all there is: told at the commit itself
        self._due: dict[int, Subscriber] = {}  # may be told something now, in this order
        self._caught_up: dict[int, Subscriber] = {}  # have all there is: due at the next commit
        self._failed: dict[int, Subscriber] = {}  # a read failed: due when the timer says so
        self._paused: set[int] = set()  # connections that take nothing at the moment
        self._turn_asked_for = False
        self.generation = -1

    def __len__(self) -> int:
        return len(self._subscribers)

    def newest(self, client_id: int) -> Subscriber | None:
        """The newest mount of a client."""
        return self._subscribers.get(client_id)

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

    def lags(self, high_water_mark: int, most: int) -> dict[int, int]:
        """By how many transactions subscribers are behind (client ID), of the ``most`` that are furthest."""
        behind = (
            (0 if client_id in self._live else max(0, high_water_mark - each.position), client_id)
            for client_id, each in self._subscribers.items()
        )
        return {client_id: lag for lag, client_id in heapq.nlargest(most, behind)}

    # ---- who is there, and what they may be sent ----------------------------------------------------------

    def mount(self, subscriber: Subscriber) -> None:
        """The newest mount of a client replaces an older one."""
        before = self._subscribers.get(subscriber.client_id)
        if before is not None:
            self._forget(before)
        subscriber.credit_bytes = min(subscriber.credit_bytes, FEED_CREDIT_LIMIT_BYTES)
        self._subscribers[subscriber.client_id] = self._due[subscriber.client_id] = subscriber
        self._by_connection.setdefault(subscriber.connection_id, {})[subscriber.client_id] = subscriber

    def unmount(self, connection_id: int, client_id: int | None = None) -> None:
        """Forget the mounts of a connection (or just one client's)."""
        for subscriber in list(self._by_connection.get(connection_id, {}).values()):
            if client_id in (None, subscriber.client_id):
                self._forget(subscriber)
        if client_id is None:
            self._paused.discard(connection_id)

    def take_all(self) -> list[Subscriber]:
        """Forget everybody; the caller tells them."""
        everybody = list(self._subscribers.values())
        for subscriber in everybody:
            self._forget(subscriber)
        return everybody

    def _queues(self) -> tuple[dict[int, Subscriber], ...]:
        return self._live, self._due, self._caught_up, self._failed

    def _forget(self, subscriber: Subscriber) -> None:
        client_id, connection_id = subscriber.client_id, subscriber.connection_id
        del self._subscribers[client_id]
        for queue in self._queues():
            queue.pop(client_id, None)
        siblings = self._by_connection[connection_id]
        del siblings[client_id]
        if not siblings:
            del self._by_connection[connection_id]

    def add_credit(self, connection_id: int, credit_bytes: int) -> None:
        for client_id, subscriber in self._by_connection.get(connection_id, {}).items():
            subscriber.credit_bytes = min(subscriber.credit_bytes + credit_bytes, FEED_CREDIT_LIMIT_BYTES)
            if client_id not in self._live and client_id not in self._caught_up:
                self._due[client_id] = subscriber

    def pause(self, connection_id: int) -> None:
        """Nothing that needs credit is sent there until ``resume``."""
        self._paused.add(connection_id)

    def resume(self, connection_id: int) -> None:
        self._paused.discard(connection_id)
        self.add_credit(connection_id, 0)

    def try_again(self) -> None:
        """Reads that have failed may be ordered again."""
        self._due |= self._failed
        self._failed = {}

    # ---- turns --------------------------------------------------------------------------------------------

    def ask_for_turn(self) -> list[Effect]:
        """FeedAgain, if somebody can be told something and it has not been ordered yet."""
        if not self._due or self._turn_asked_for:
            return []
        self._turn_asked_for = True
        return [FeedAgain()]

    def turn_has_come(self) -> None:
        """FeedDue has come; ``advance`` is next."""
        self._turn_asked_for = False

    def committed(self, first_id: int, high_water_mark: int, retained: RetainedRecords) -> list[Effect]:
        """Records [first_id, high_water_mark] have just been committed."""
        effects: list[Effect] = []
        if self._live:
            for batch in retained.between(first_id, high_water_mark + 1):
                for client_id, sequence_numbers, ids in own_entries(batch, self._live):
                    effects.append(self._own(self._live[client_id], high_water_mark, sequence_numbers, ids))
        if self._caught_up:
            self._due |= self._caught_up
            self._caught_up = {}
        if self._due:
            effects += self.advance(high_water_mark, retained)
        return effects

    def advance(self, high_water_mark: int, retained: RetainedRecords) -> list[Effect]:
        """One step's worth of what is due: send what is in memory, order reads for those further behind."""
        effects: list[Effect] = []
        work = 0
        while self._due and work < _STEP_BYTES:
            groups: dict[tuple[FeedMode, int], list[Subscriber]] = {}
            for subscriber in list(itertools.islice(self._due.values(), _LOOK_AT_ONCE)):
                work += _LOOK_BYTES
                if self._may_be_sent(subscriber, high_water_mark, retained.first_id, effects):
                    groups.setdefault((subscriber.mode, subscriber.position), []).append(subscriber)
                else:
                    del self._due[subscriber.client_id]
                    self._look_after(subscriber, high_water_mark, effects)
            for (_, position), group in groups.items():
                if work >= _STEP_BYTES:
                    break
                batches = retained.between(position + 1, high_water_mark + 1, *FRAME_LIMITS)
                batch = limited(joined(batches), self._most_bytes, _MOST_RECORDS)
                size_bytes = feed_frame_bytes(group[0].mode, batch) + _SEND_BYTES
                group = group[: max(1, _FAN_OUT_BYTES // size_bytes)]
                work += len(group) * size_bytes + len(batches) * _BATCH_BYTES
                effects += self._send(group, batch, high_water_mark)
                for subscriber in group:
                    del self._due[subscriber.client_id]
                    self._look_after(subscriber, high_water_mark, effects)
        return effects + self.ask_for_turn()

    def _may_be_sent(self, s: Subscriber, high_water_mark: int, first_held_id: int, effects: list[Effect]) -> bool:
        """Whether something in memory can be sent to it now. What is not in memory is ordered."""
        if s.mode is FeedMode.NONE:
            s.position = high_water_mark
        if s.position >= high_water_mark or s.connection_id in self._paused:
            return False
        if s.credit_bytes <= 0 and s.mode is not FeedMode.OWN and not s.reads:
            return False
        if s.reads or s.position + 1 < first_held_id:
            effects += self._read(s, min(high_water_mark + 1, first_held_id))
            return False
        return True

    def _look_after(self, s: Subscriber, high_water_mark: int, effects: list[Effect]) -> None:
        """It has been sent something, or can be sent nothing: answer its mount if that is due, find its next place."""
        if not s.answered and s.position >= s.mount_target:
            mounted = Mounted(s.req_id, MountState.READY, self.generation, high_water_mark)
            effects.append(SendMessage(s.connection_id, mounted))
            s.answered = True
        if s.position >= high_water_mark:
            if not s.answered or s.mode in (FeedMode.HEADERS, FeedMode.RECORDS):
                self._caught_up[s.client_id] = s
            elif s.mode is FeedMode.OWN:
                self._live[s.client_id] = s
        elif not s.reads and s.connection_id not in self._paused and (s.credit_bytes > 0 or s.mode is FeedMode.OWN):
            self._due[s.client_id] = s  # behind those that wait already

    # ---- reads --------------------------------------------------------------------------------------------

    def read(self, client_id: int, connection_id: int, batch: RecordBatch, high_water_mark: int) -> list[Effect]:
        """Records ordered by ReadFeed have come."""
        subscriber = self._subscribers.get(client_id)
        if subscriber is None or subscriber.connection_id != connection_id or not subscriber.reads:
            return []
        subscriber.reads -= 1
        if batch.first_id != subscriber.position + 1:
            # Of an earlier mount over the same connection, or the read before it brought less than expected; or that
            # one has failed, and is not ordered again before ``try_again``.
            if client_id not in self._failed:
                self._due[client_id] = subscriber
            return []
        self._due[client_id] = subscriber
        subscriber.read_records = max(1, self._most_bytes * 7 * len(batch) // (8 * batch.size_bytes))
        return self._send([subscriber], batch, high_water_mark)

    def read_failed(self, client_id: int, connection_id: int, trim_mark: int) -> list[Effect]:
        """The read did not work; it is ordered again after ``try_again``, unless what it was for has been trimmed away:
        then the subscriber is told so."""
        subscriber = self._subscribers.get(client_id)
        if subscriber is None or subscriber.connection_id != connection_id:
            return []
        subscriber.reads = max(0, subscriber.reads - 1)
        if subscriber.position + 1 >= trim_mark:
            self._failed[client_id] = subscriber
            return []
        self._forget(subscriber)
        if subscriber.answered:  # when it mounts again it is told why
            return [SendMessage(connection_id, NotReady(self._partition_id, self.generation))]
        mounted = Mounted(subscriber.req_id, MountState.TRIMMED, self.generation, trim_mark - 1)
        return [SendMessage(connection_id, mounted)]

    def _read(self, subscriber: Subscriber, end_id: int) -> list[ReadFeed]:
        """Order what it lacks below ``end_id``: two reads at a time, so that a replica works on one while the other is
        on its way. The second begins where the first is expected to end; if it does not end there, the second is
        dropped and ordered again."""
        if not subscriber.reads:
            subscriber.ordered_to = subscriber.position
        orders: list[ReadFeed] = []
        while subscriber.reads < _READS_AHEAD and (first_id := subscriber.ordered_to + 1) < end_id:
            if subscriber.reads and subscriber.credit_bytes < _READS_AHEAD * self._most_bytes:
                break
            end = min(end_id, first_id + subscriber.read_records) if subscriber.read_records else end_id
            subscriber.reads += 1
            subscriber.ordered_to = end - 1
            orders.append(ReadFeed(subscriber.connection_id, subscriber.client_id, first_id, end, self._most_bytes))
        return orders

    # ---- sending ------------------------------------------------------------------------------------------

    def _send(self, group: list[Subscriber], batch: RecordBatch, high_water_mark: int) -> list[Effect]:
        if group[0].mode is FeedMode.OWN:
            return self._send_own(group, batch, high_water_mark)
        cost = feed_frame_bytes(group[0].mode, batch)
        told = receivers(group, batch)
        for subscriber in told:
            subscriber.credit_bytes -= cost
            subscriber.position = batch.last_id
        if not told:
            return []
        return [SendFeed(tuple(s.connection_id for s in told), group[0].mode, batch)]

    def _send_own(self, group: list[Subscriber], batch: RecordBatch, high_water_mark: int) -> list[Effect]:
        members = {subscriber.client_id: subscriber for subscriber in group}
        for subscriber in group:
            subscriber.position = batch.last_id
        return [
            self._own(members[client_id], high_water_mark, numbers, ids)
            for client_id, numbers, ids in own_entries(batch, members)
        ]

    def _own(self, subscriber: Subscriber, high_water_mark: int, numbers: Int32s, ids: Int64s) -> SendMessage:
        message = AppendedBatch(self._partition_id, high_water_mark, numbers, ids)
        return SendMessage(subscriber.connection_id, message)
