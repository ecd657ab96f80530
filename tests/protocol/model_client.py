"""A client as the server sees one: mounts, appends, learns fates by the rules of the client protocol.

It is deliberately not ``ClientMonitor``: the rules once more, one request at a time.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass, field
from random import Random

import numpy as np

from tests.protocol.checkers import Fate, Key, Sent, Violation
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import (
    FROM_NOW,
    AppendedBatch,
    FeedMode,
    LockFailureBatch,
    Mount,
    Mounted,
    NotReady,
    Rejected,
)
from waltz_ray.protocol.messages.original import FlushResponse, MountState
from waltz_ray.protocol.partition.events import (
    AppendReceived,
    CreditReceived,
    Event,
    FlushReceived,
    MountReceived,
    SendFeed,
    ServerMessage,
    UnmountReceived,
)
from waltz_ray.protocol.partition.feed import feed_frame_bytes
from waltz_ray.protocol.records import AppendBatch, LockColumns

__all__ = ["Client", "Connection", "append_batch"]

CREDIT_BYTES = 400


@dataclass(slots=True)
class Connection:
    """A socket between a client and one life of a server."""

    connection_id: int
    server: int
    life: int
    client: Client
    to_server: deque[Event] = field(default_factory=deque)
    to_client: deque[ServerMessage | SendFeed] = field(default_factory=deque)
    client_has_it: bool = True
    server_has_it: bool = True


def append_batch(client_id: int, generation: int, first_sequence_number: int, sent: list[Sent]) -> AppendBatch:
    """A batch whose data names its request."""
    numbers = range(first_sequence_number, first_sequence_number + len(sent))
    datas = [f"{client_id}:{n}".encode() for n in numbers]
    return AppendBatch(
        client_id,
        generation,
        0,
        np.array(numbers, dtype=np.int32),
        np.array([s.client_mark for s in sent], dtype=np.int64),
        np.zeros(len(sent), dtype=np.int32),
        np.array([len(d) for d in datas], dtype=np.int32),
        np.array([zlib.crc32(d) for d in datas], dtype=np.uint32),
        b"".join(datas),
        LockColumns.pack([list(s.write) for s in sent]),
        LockColumns.pack([list(s.read) for s in sent]),
        LockColumns.pack([list(s.append) for s in sent]),
    )


class Client:
    """One client; ``connection`` is its newest one, None after it was cut."""

    def __init__(self, client_id: int, mode: FeedMode, random: Random) -> None:
        self.client_id = client_id
        self.mode = mode
        self.generation = -1
        self.connection: Connection | None = None
        self.mounting = False
        self.ready = False
        self.mark = -1  # HEADERS, RECORDS: last applied; OWN: the highest server mark heard of
        self.resume_mark = -1  # OWN: every pending request has, if any, a higher ID
        self.next_number = 0
        self.pending: list[int] = []
        self.sent: dict[Key, Sent] = {}
        self.fates: dict[Key, Fate] = {}
        self.feeds: list[tuple[int, list[int]]] = []  # (mark of the mount, IDs that came)
        self.flushes: dict[int, list[Key]] = {}  # sequence number of a flush -> requests before it
        self.flushed: list[tuple[list[Key], int]] = []
        self.owed_credit = 0
        self._sent_here: list[Key] = []  # over this connection
        self._mount_id: ReqId | None = None
        self._random = random

    # ---- orders to the server -----------------------------------------------------------------------------

    def mount(self, connection: Connection, generation: int) -> None:
        if connection is not self.connection:
            self.connection, self._sent_here, self.flushes = connection, [], {}
        self.generation, self.mounting, self.ready, self.owed_credit = generation, True, False, 0
        mark = self.mark
        if self.mode is FeedMode.OWN:
            mark = self.resume_mark if self.pending else FROM_NOW
        else:
            self.feeds.append((mark, []))
        self._mount_id = self._req_id()
        connection.to_server.append(
            MountReceived(connection.connection_id, Mount(self._mount_id, mark, self.mode, CREDIT_BYTES))
        )

    def append(self, sent: list[Sent]) -> None:
        assert self.connection is not None
        assert self.ready
        if not self.pending:
            self.resume_mark = max(self.resume_mark, self.mark)
        batch = append_batch(self.client_id, self.generation, self.next_number, sent)
        for one in sent:
            key = (self.client_id, self.next_number)
            self.sent[key] = one
            self.pending.append(self.next_number)
            self._sent_here.append(key)
            self.next_number += 1
        self.connection.to_server.append(AppendReceived(self.connection.connection_id, batch))

    def flush(self) -> None:
        assert self.connection is not None
        req_id = self._req_id()
        self.flushes[req_id.sequence_number] = list(self._sent_here)
        self.connection.to_server.append(FlushReceived(self.connection.connection_id, req_id))

    def give_credit(self) -> None:
        assert self.connection is not None
        self.connection.to_server.append(CreditReceived(self.connection.connection_id, self.owed_credit))
        self.owed_credit = 0

    def unmount(self) -> None:
        """A clean leave, only with nothing pending; the next mount may use the same connection."""
        assert self.connection is not None
        assert not self.pending
        self.connection.to_server.append(UnmountReceived(self.connection.connection_id, self.client_id))
        self.cut()

    def cut(self) -> None:
        """The connection is gone: what is pending stays open."""
        self.connection, self.mounting, self.ready = None, False, False

    def _req_id(self) -> ReqId:
        number = self.next_number
        self.next_number += 1
        return ReqId(self.client_id, self.generation, 0, number)

    # ---- what the server says -----------------------------------------------------------------------------

    def receive(self, message: ServerMessage | SendFeed) -> None:
        match message:
            case SendFeed():
                self._on_feed(message)
            case AppendedBatch():
                if self.mode is not FeedMode.OWN:
                    raise Violation(f"client {self.client_id} is no OWN subscriber, yet got an AppendedBatch")
                numbers, ids = message.sequence_numbers.tolist(), message.transaction_ids.tolist()
                for number, transaction_id in zip(numbers, ids, strict=True):
                    self._own(number, transaction_id)
                self.mark = max(self.mark, message.high_water_mark)
            case LockFailureBatch():
                numbers, ids = message.sequence_numbers.tolist(), message.transaction_ids.tolist()
                for number, transaction_id in zip(numbers, ids, strict=True):
                    if transaction_id <= self.sent[self.client_id, number].client_mark:
                        raise Violation(f"request {number} failed against {transaction_id}, which it knew")
                    self._settle(number, Fate("lock_failed", transaction_id), must_be_pending=True)
            case Rejected():
                for number in message.sequence_numbers.tolist():
                    self._settle(number, Fate("rejected"), must_be_pending=True)
            case Mounted():
                self._on_mounted(message)
            case NotReady():
                self.ready = False  # a mount that is not answered yet gets its own answer
                self.flushes = {}  # the mount they were asked on has ended
            case FlushResponse(req_id, high_water_mark):
                if req_id.sequence_number in self.flushes:
                    self.flushed.append((self.flushes.pop(req_id.sequence_number), high_water_mark))

    def _on_feed(self, feed: SendFeed) -> None:
        if feed.mode is not self.mode:
            raise Violation(f"client {self.client_id} asked for {self.mode.name}, got {feed.mode.name}")
        seen = self.feeds[-1][1]
        fields = feed.batch.fields
        for transaction_id, client_id, number in zip(
            fields["transaction_id"].tolist(),
            fields["client_id"].tolist(),
            fields["sequence_number"].tolist(),
            strict=True,
        ):
            if transaction_id != self.mark + 1:
                raise Violation(f"feed: client {self.client_id} at {self.mark} was fed {transaction_id}")
            seen.append(transaction_id)
            if client_id == self.client_id:
                self._own(number, transaction_id)
            self.mark = transaction_id
        self.owed_credit += feed_frame_bytes(feed.mode, feed.batch)

    def _own(self, number: int, transaction_id: int) -> None:
        while self.pending and self.pending[0] < number:
            self._settle(self.pending[0], Fate("failed"), must_be_pending=True)
        self._settle(number, Fate("committed", transaction_id), must_be_pending=False)

    def _on_mounted(self, message: Mounted) -> None:
        if message.req_id != self._mount_id:
            return  # of an earlier attempt over this connection
        self.mounting = False
        if message.state is MountState.CLIENT_AHEAD:
            raise Violation(f"client {self.client_id} at {self.mark} is told that it is ahead of the log")
        if message.state is MountState.NOT_READY:
            return
        if message.state is MountState.TRIMMED:
            self._begin_anew(message.high_water_mark)
            return
        self.ready = True
        for number in list(self.pending):
            self._settle(number, Fate("failed"), must_be_pending=True)
        if self.mode is FeedMode.OWN:
            self.mark = max(self.mark, message.high_water_mark)

    def _begin_anew(self, mark: int) -> None:
        """What this client would have to hear is gone: it takes the state of somebody who has, and goes on there."""
        known = self.resume_mark if self.mode is FeedMode.OWN else self.mark
        if mark <= known:
            raise Violation(f"client {self.client_id} at {known} is told that what follows was trimmed, up to {mark}")
        self.mark = max(self.mark, mark)
        self.resume_mark = mark
        for number in list(self.pending):
            self._settle(number, Fate("open"), must_be_pending=True)

    def _settle(self, number: int, fate: Fate, *, must_be_pending: bool) -> None:
        """A fed entry may be told again after a new mount, with the same fate; nothing else may."""
        key = (self.client_id, number)
        if number in self.pending:
            self.pending.remove(number)
            self.fates[key] = fate
        elif self.fates[key].kind == "open" and fate.kind == "committed":
            self.fates[key] = fate
        elif must_be_pending or self.fates[key] != fate:
            raise Violation(f"request {key} had the fate {self.fates.get(key)} and is now told {fate}")

    def random_sent(self) -> Sent:
        """A proposal with, often, a few locks out of six, built at the client's mark or a little before."""
        random = self._random
        mark = self.mark - (random.randint(0, 2) if random.random() < 0.2 else 0)
        if random.random() < 0.4:
            return Sent(max(mark, -1))
        locks = [tuple(random.sample(range(6), random.choice([0, 0, 1, 1, 2]))) for _ in range(3)]
        return Sent(max(mark, -1), *locks)
