"""A storage replica and ZooKeeper as the machines see them: small, in memory, crashing as the real ones do.

What a crash of a replica leaves: its fence (persisted before an Open is answered), its low-water mark, every record
up to ``durable`` and perhaps some that were written and not synced. What it forgets: which session was open.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import numpy as np

from tests.protocol.checkers import Violation
from waltz_ray.protocol.ids import NO_SESSION, NO_TRANSACTION
from waltz_ray.protocol.partition.events import (
    NO_SUCH_SESSION,
    ConfirmSession,
    Event,
    ReadRoster,
    RosterRead,
    SessionConfirmed,
)
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.session_types import (
    AppendToReplicas,
    BeginReplica,
    OpenReplica,
    RangeRead,
    RangeReadFailed,
    ReadRange,
    ReplicaAppended,
    ReplicaAvailable,
    ReplicaFenced,
    ReplicaLost,
    ReplicaMarked,
    ReplicaOpened,
    ReplicaTruncated,
    RosterConflict,
    RosterWritten,
    SetReplicaMark,
    TruncateReplica,
    WriteRoster,
)

__all__ = ["Link", "Order", "Replica", "ZooKeeper", "records_of"]

Order = OpenReplica | TruncateReplica | BeginReplica | ReadRange | AppendToReplicas | SetReplicaMark | ConfirmSession


def records_of(batch: RecordBatch) -> list[bytes]:
    """The bytes of every record of a batch."""
    bounds = batch.offsets.tolist()
    return [bytes(batch.records[a:b]) for a, b in pairwise(bounds)]


def batch_of(first_id: int, records: list[bytes]) -> RecordBatch:
    return RecordBatch(0, first_id, np.array([len(r) for r in records], dtype=np.int32), b"".join(records))


@dataclass(slots=True, eq=False)
class Link:
    """One server's connection to one replica. Orders and answers are each first in, first out; reads go beside them.

    ``ghosts`` are orders of a connection that is over: the network may still bring them, much later.
    """

    to_replica: deque[Order] = field(default_factory=deque)
    reads: deque[ReadRange] = field(default_factory=deque)
    to_server: deque[Event] = field(default_factory=deque)
    up: bool = True
    refused: bool = False  # the replica is to be announced again, without a new connection
    refused_session: int = NO_SESSION  # of the last refusal: what is under way behind it is refused, too
    unacknowledged: tuple[int, int] | None = None  # (session, last ID) written and not answered yet
    ghosts: deque[tuple[int, Order]] = field(default_factory=deque)  # with the epoch of their connection
    epoch: int = 0  # which connection this is

    def order(self, order: Order, replica_id: int) -> None:
        """Send; over a dead link everything that waits for an answer is answered with a loss."""
        if isinstance(order, ReadRange):
            if self.up:
                self.reads.append(order)
            else:
                self._fail_read(order)
        elif self.up:
            self.to_replica.append(order)
        else:
            self.to_server.append(ReplicaLost(order.session_id, replica_id, "no connection"))

    def cut(self, replica_id: int) -> None:
        """What is under way is lost; the server notices. The replica may still get what was sent to it."""
        self.up, self.refused, self.unacknowledged = False, False, None
        self.refused_session = NO_SESSION
        self.ghosts += [(self.epoch, order) for order in self.to_replica if not isinstance(order, ConfirmSession)]
        self.epoch += 1
        self.to_replica.clear()
        self.to_server.clear()
        self.to_server.append(ReplicaLost(NO_SUCH_SESSION, replica_id, "connection lost"))
        for read in self.reads:
            self._fail_read(read)
        self.reads.clear()

    def restore(self, replica_id: int) -> None:
        self.up = True
        self.to_server.append(ReplicaAvailable(NO_SUCH_SESSION, replica_id))

    def _fail_read(self, read: ReadRange) -> None:
        failed = RangeReadFailed(read.session_id, read.source_id, read.target_id, "no connection")
        self.to_server.append(failed)


class Replica:
    """One storage actor's copy of the partition. ``committed``: what the world has seen committed.

    What is trimmed stays in ``log`` for the checkers; nobody is served anything before ``begin``.
    """

    def __init__(self, replica_id: int, committed: list[bytes] | None = None) -> None:
        self.replica_id = replica_id
        self.committed = [] if committed is None else committed
        self.log: list[bytes] = []
        self.begin = 0  # what is before it has been trimmed
        self.durable = 0  # records that survive a crash
        self.fence = NO_SESSION
        self.low_water_mark = NO_TRANSACTION
        self.opened: int | None = None
        self.owner = ""  # of the session that is open
        self.opened_by: tuple[Link, int] | None = None  # the connection that opened the session last
        self.damaged_from: int | None = None  # records from here on are unreadable
        self.up = True

    @property
    def readable(self) -> int:
        """Number of records before the damage."""
        return len(self.log) if self.damaged_from is None else self.damaged_from

    def crash(self, random: Random) -> None:
        del self.log[random.randint(self.durable, len(self.log)) :]
        self.up, self.opened = False, None

    def restart(self) -> None:
        self.durable = len(self.log)
        self.up = True

    def sync(self, link: Link) -> None:
        """One fdatasync, one cumulative answer to ``link``."""
        self.durable = len(self.log)
        if link.unacknowledged is not None:
            session_id, last_id = link.unacknowledged
            link.unacknowledged = None
            link.to_server.append(ReplicaAppended(session_id, self.replica_id, last_id))

    def handle(self, order: Order, link: Link, random: Random) -> None:
        """Do one order and answer it."""
        if isinstance(order, OpenReplica):
            self._open(order, link)
        elif order.session_id < self.fence:
            self.sync(link)
            link.to_server.append(ReplicaFenced(order.session_id, self.replica_id, self.fence))
        elif order.session_id != self.opened or not self._opened_over(link, link.epoch):
            self._refuse(order, link)
        elif isinstance(order, AppendToReplicas):
            self._append(order, link, random)
        else:
            self.sync(link)
            if isinstance(order, TruncateReplica) and order.last_id < self.begin - 1:
                self._refuse(order, link)
            elif isinstance(order, TruncateReplica):
                self._truncate(order.last_id)
                link.to_server.append(ReplicaTruncated(order.session_id, self.replica_id, self.readable - 1))
            elif isinstance(order, BeginReplica):
                self._begin(order.first_id)
                link.to_server.append(ReplicaTruncated(order.session_id, self.replica_id, order.first_id - 1))
            elif isinstance(order, SetReplicaMark):
                assert order.low_water_mark < len(self.log), "a low-water mark above the replica's log"
                self.low_water_mark = order.low_water_mark
                link.to_server.append(ReplicaMarked(order.session_id, self.replica_id))
            elif isinstance(order, ConfirmSession):
                link.to_server.append(SessionConfirmed(order.session_id, self.replica_id, order.number))

    def _opened_over(self, link: Link, epoch: int) -> bool:
        return self.opened_by is not None and self.opened_by[0] is link and self.opened_by[1] == epoch

    def haunt(self, link: Link, random: Random) -> None:
        """An order of a connection that is over arrives after all. Nobody hears the answer."""
        epoch, order = link.ghosts.popleft()
        if not order.session_id == self.opened == self.fence or not self._opened_over(link, epoch):
            return
        if isinstance(order, TruncateReplica) and order.last_id >= self.begin - 1:
            self._truncate(order.last_id)
        elif isinstance(order, BeginReplica):
            self._begin(order.first_id)
        elif isinstance(order, AppendToReplicas):
            self._append(order, Link(), random)

    def _refuse(self, order: Order, link: Link) -> None:
        self.sync(link)
        link.refused, link.refused_session = True, order.session_id
        link.to_server.append(ReplicaLost(order.session_id, self.replica_id, "refused"))

    def _open(self, order: OpenReplica, link: Link) -> None:
        self.sync(link)
        assert self.fence >= order.joined_session_id, "the replica has joined a session that it does not remember"
        if order.session_id < self.fence or self.has_another_owner(order):
            link.to_server.append(ReplicaFenced(order.session_id, self.replica_id, self.fence))
            return
        self.fence = self.opened = order.session_id
        self.owner = order.owner
        self.opened_by = (link, link.epoch)
        damaged = self.damaged_from is not None
        mark = min(self.low_water_mark, self.readable - 1)
        link.to_server.append(
            ReplicaOpened(order.session_id, self.replica_id, mark, self.readable - 1, damaged),
        )

    def has_another_owner(self, order: OpenReplica) -> bool:
        """Whether somebody else has opened this very session here."""
        return self.opened == order.session_id and self.owner != order.owner

    def _append(self, order: AppendToReplicas, link: Link, random: Random) -> None:
        contiguous = order.batch.first_id == len(self.log)
        if self.damaged_from is not None or not contiguous:
            if self.damaged_from is None and link.refused_session != order.session_id:
                wanted = f"session {order.session_id} sent {order.batch.first_id} on"
                raise Violation(f"{wanted} to replica {self.replica_id}, which ends at {len(self.log) - 1}")
            self._refuse(order, link)
            return
        self.log += records_of(order.batch)
        link.unacknowledged = (order.session_id, len(self.log) - 1)
        if random.random() < 0.5:
            self.sync(link)

    def _truncate(self, last_id: int) -> None:
        del self.log[last_id + 1 :]
        self.durable = min(self.durable, len(self.log))
        self.low_water_mark = min(self.low_water_mark, len(self.log) - 1)
        if self.damaged_from is not None and self.damaged_from >= len(self.log):
            self.damaged_from = None

    def _begin(self, first_id: int) -> None:
        if first_id > len(self.committed):
            raise Violation(f"replica {self.replica_id} is begun at {first_id}, {len(self.committed)} are committed")
        self.log = self.committed[:first_id]
        self.begin = self.durable = first_id
        self.low_water_mark = min(self.low_water_mark, first_id - 1)
        self.damaged_from = None

    def trim(self, first_id: int) -> None:
        """Segments before ``first_id`` are dropped."""
        self.begin = max(self.begin, first_id)

    def read(self, read: ReadRange, link: Link, random: Random) -> None:
        """For a late or lagging replica; what is answered is on this one's disk."""
        end = min(read.end_id, self.readable, read.first_id + random.randint(1, 6))
        if not read.session_id == self.opened == self.fence or end <= read.first_id or read.first_id < self.begin:
            failed = RangeReadFailed(read.session_id, self.replica_id, read.target_id, "not served")
            link.to_server.append(failed)
            return
        self.sync(link)
        batch = batch_of(read.first_id, self.log[read.first_id : end])
        link.to_server.append(RangeRead(read.session_id, self.replica_id, read.target_id, batch))


class ZooKeeper:
    """The partition's roster under compare-and-set. Each server's requests are done in order."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.version = 0
        self.away = False

    def do(self, request: ReadRoster | WriteRoster) -> Event:
        if isinstance(request, ReadRoster):
            return RosterRead(self.roster, self.version)
        if request.version != self.version:
            return RosterConflict(request.session_id)
        self.roster, self.version = request.roster, self.version + 1
        return RosterWritten(request.session_id, self.version)
