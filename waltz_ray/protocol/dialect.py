"""Versions 0-4 of the client protocol, one transaction per message, spoken over the version 5 machine.

Two things differ from version 5 and are kept here, per mounted partition:

* *Feed*: the original asks with FEED_REQUEST; it gets at least 100 entries (a mount: everything up to the mark it
  mounted at), then FEED_SUSPENDED. Internally the feed has a credit: a frame's credit is given back as long as the
  client is entitled to entries, and kept from it while suspended. One frame of version 5 at a time, then: the next
  one comes with the partition's next feed turn, so a mount that has to catch up holds nobody up.
* *Refusals*: the original has no REJECTED. QUEUE_FULL becomes a LOCK_FAILURE at the server's mark (the client
  executes again); everything else closes the connection, after which the client mounts again and finds out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import (
    AppendedBatch,
    FeedBatch,
    FeedMode,
    LockFailureBatch,
    Mount,
    Mounted,
    Rejected,
    RejectionCode,
)
from waltz_ray.protocol.messages.original import (
    AppendRequest,
    FeedRequest,
    FeedSuspended,
    FlushResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    MountState,
)
from waltz_ray.protocol.partition.events import AppendReceived, CreditReceived, MountReceived, ServerMessage
from waltz_ray.protocol.partition.feed import feed_batch_bytes
from waltz_ray.protocol.records import AppendBatch, LockColumns
from waltz_ray.protocol.value import value

__all__ = ["DialectEffect", "EndConnection", "OriginalDialect", "ToClient", "ToPartition"]

FEED_ENTRIES = 100
"""Entries a FEED_REQUEST is good for at the least (docs/wire.md, "Client protocol, versions 0-4")."""

_FRAME_CREDIT = 1  # any positive credit lets exactly one frame through; see feed_sent


@dataclass(slots=True)
class _Mounted:
    req_id: ReqId
    unanswered: int = 1  # mounts of this ReqId
    mounting: bool = True
    entries_left: int = FEED_ENTRIES
    suspended_credit: int = 0


@value(eq=False)
class ToPartition:
    """An event for one of the server's partitions."""

    partition_id: int
    event: AppendReceived | CreditReceived | MountReceived


@value()
class ToClient:
    """Send it, in the connection's version."""

    message: FeedSuspended | FlushResponse | LockFailure | MountResponse


@value()
class EndConnection:
    """Close once everything has been sent: what there is to say cannot be said in this version."""

    reason: str


DialectEffect = ToPartition | ToClient | EndConnection


class OriginalDialect:
    """The mounts of connection ``connection_id``, which speaks version 0-4. Every method returns what follows.

    ``mark_of`` tells the server's high-water mark of a partition.
    """

    def __init__(self, connection_id: int, version: int, mark_of: Callable[[int], int]) -> None:
        self._connection_id = connection_id
        self._version = version
        self._mark_of = mark_of
        self._mounts: dict[int, _Mounted] = {}

    # ---- from the client --------------------------------------------------------------------------------

    def receive(self, message: MountRequest | AppendRequest | FeedRequest) -> list[DialectEffect]:
        partition_id = message.req_id.partition_id
        if isinstance(message, MountRequest):
            return self._mount_requested(partition_id, message)
        if isinstance(message, AppendRequest):
            return [ToPartition(partition_id, AppendReceived(self._connection_id, _batch_of(message)))]
        return self._feed_requested(partition_id)

    def _mount_requested(self, partition_id: int, message: MountRequest) -> list[DialectEffect]:
        before, req_id = self._mounts.get(partition_id), message.req_id
        if before is not None and before.req_id.client_id != req_id.client_id:
            # Fates that are not feed entries name no client: who of the two is meant could not be said.
            mine = f"client {before.req_id.client_id} has mounted partition {partition_id} over this connection"
            return [EndConnection(f"{mine}; client {req_id.client_id} needs one of its own")]
        again = before is not None and before.mounting and before.req_id == req_id
        self._mounts[partition_id] = _Mounted(req_id, before.unanswered + 1 if before is not None and again else 1)
        mount = Mount(req_id, message.client_mark, FeedMode.HEADERS, _FRAME_CREDIT)
        return [ToPartition(partition_id, MountReceived(self._connection_id, mount))]

    def _feed_requested(self, partition_id: int) -> list[DialectEffect]:
        mounted = self._mounts.get(partition_id)
        if mounted is None:
            return []
        mounted.entries_left = FEED_ENTRIES
        credit, mounted.suspended_credit = mounted.suspended_credit, 0
        return self._credit(partition_id, credit) if credit else []

    def _credit(self, partition_id: int, credit_bytes: int) -> list[DialectEffect]:
        return [ToPartition(partition_id, CreditReceived(self._connection_id, credit_bytes))]

    # ---- to the client ----------------------------------------------------------------------------------

    def feed_sent(self, feed: FeedBatch) -> list[DialectEffect]:
        """A FEED_DATA for each of its transactions has been sent: the credit goes back, or the feed is suspended."""
        mounted = self._mounts.get(feed.partition_id)
        if mounted is None:
            return []
        cost = feed_batch_bytes(len(feed))
        mounted.entries_left -= len(feed)
        if mounted.mounting or mounted.entries_left > 0:
            return self._credit(feed.partition_id, cost)
        mounted.suspended_credit += cost
        return [ToClient(FeedSuspended(mounted.req_id))]

    def deliver(self, message: ServerMessage) -> list[DialectEffect]:
        """What the partition's machine tells this client."""
        if isinstance(message, Mounted):
            return self._mounted(message)
        if isinstance(message, FlushResponse):
            return [ToClient(message)]
        if isinstance(message, LockFailureBatch):
            numbers, conflicts = message.sequence_numbers.tolist(), message.transaction_ids.tolist()
            return self._lock_failures(message.partition_id, numbers, conflicts)
        if isinstance(message, Rejected):
            if message.code is not RejectionCode.QUEUE_FULL:
                why = f"appends rejected ({message.code.name}), which version {self._version} cannot say"
                return [EndConnection(why)]
            numbers, mark = message.sequence_numbers.tolist(), self._mark_of(message.partition_id)
            return self._lock_failures(message.partition_id, numbers, [mark] * len(numbers))
        if isinstance(message, AppendedBatch):
            return []  # its FEED_DATA says it
        return [EndConnection(f"partition {message.partition_id} has left this server")]

    def _mounted(self, message: Mounted) -> list[DialectEffect]:
        partition_id = message.req_id.partition_id
        mounted = self._mounts.get(partition_id)
        if mounted is not None and mounted.req_id == message.req_id:
            mounted.unanswered -= 1
            if message.state is MountState.READY:
                mounted.mounting = False
            elif mounted.unanswered <= 0:  # else it is about an earlier mount, which this one has replaced
                del self._mounts[partition_id]
        state = MountState.NOT_READY if message.state is MountState.TRIMMED else message.state  # has no word for it
        return [ToClient(MountResponse(message.req_id, state))]

    def _lock_failures(self, partition_id: int, numbers: list[int], conflicts: list[int]) -> list[DialectEffect]:
        mounted = self._mounts.get(partition_id)
        if mounted is None:
            return []
        req_id = mounted.req_id
        return [
            ToClient(LockFailure(req_id._replace(sequence_number=number), conflict))
            for number, conflict in zip(numbers, conflicts, strict=True)
        ]


def _batch_of(request: AppendRequest) -> AppendBatch:
    client_id, generation, partition_id, sequence_number = request.req_id
    return AppendBatch(
        client_id,
        generation,
        partition_id,
        np.array([sequence_number], dtype=np.int32),
        np.array([request.client_mark], dtype=np.int64),
        np.array([request.header], dtype=np.int32),
        np.array([len(request.data)], dtype=np.int32),
        np.array([request.checksum], dtype=np.uint32),
        request.data,
        LockColumns.pack([list(request.write_locks)]),
        LockColumns.pack([list(request.read_locks)]),
        LockColumns.pack([list(request.append_locks)]),
    )
