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

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from waltz_ray.protocol.feed import feed_batch_bytes
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.partition_types import AppendReceived, CreditReceived, MountReceived, ServerMessage
from waltz_ray.protocol.records import AppendBatch, LockColumns
from waltz_ray.wire.batches import (
    AppendedBatch,
    FeedBatch,
    FeedMode,
    LockFailureBatch,
    Mount,
    Mounted,
    Rejected,
    RejectionCode,
)
from waltz_ray.wire.client_messages import (
    AppendRequest,
    FeedRequest,
    FeedSuspended,
    FlushResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    MountState,
)

if TYPE_CHECKING:
    from waltz_ray.actors.client_connection import ClientConnection

__all__ = ["OriginalDialect"]

FEED_ENTRIES = 100
"""Entries a FEED_REQUEST is good for at the least (docs/wire.md, "Client protocol, versions 0-4")."""

_FRAME_CREDIT = 1  # any positive credit lets exactly one frame through; see feed_sent


@dataclass(slots=True)
class _Mounted:
    req_id: ReqId
    mounting: bool = True
    entries_left: int = FEED_ENTRIES
    suspended_credit: int = 0


class OriginalDialect:
    """The mounts of one connection of version 0-4."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._mounts: dict[int, _Mounted] = {}

    # ---- from the client --------------------------------------------------------------------------------

    def receive(self, message: MountRequest | AppendRequest | FeedRequest) -> None:
        connection, partition_id = self._connection, message.req_id.partition_id
        if isinstance(message, MountRequest):
            self._mounts[partition_id] = _Mounted(message.req_id)
            mount = Mount(message.req_id, message.client_mark, FeedMode.HEADERS, _FRAME_CREDIT)
            connection.tell(partition_id, MountReceived(connection.connection_id, mount))
        elif isinstance(message, AppendRequest):
            connection.tell(partition_id, AppendReceived(connection.connection_id, _batch_of(message)))
        else:
            self._feed_requested(partition_id)

    def _feed_requested(self, partition_id: int) -> None:
        mounted = self._mounts.get(partition_id)
        if mounted is None:
            return
        mounted.entries_left = FEED_ENTRIES
        credit, mounted.suspended_credit = mounted.suspended_credit, 0
        if credit:
            self._connection.tell(partition_id, CreditReceived(self._connection.connection_id, credit))

    # ---- to the client ----------------------------------------------------------------------------------

    def feed_sent(self, feed: FeedBatch) -> None:
        """A FEED_DATA for each of its transactions has been sent: the credit goes back, or the feed is suspended."""
        mounted = self._mounts.get(feed.partition_id)
        if mounted is not None:
            cost = feed_batch_bytes(len(feed))
            mounted.entries_left -= len(feed)
            if mounted.mounting or mounted.entries_left > 0:
                self._connection.tell(feed.partition_id, CreditReceived(self._connection.connection_id, cost))
            else:
                mounted.suspended_credit += cost
                self._connection.write(FeedSuspended(mounted.req_id))

    def deliver(self, message: ServerMessage) -> None:
        connection = self._connection
        if isinstance(message, Mounted):
            self._mounted(message)
        elif isinstance(message, FlushResponse):
            connection.write(message)
        elif isinstance(message, LockFailureBatch):
            for number, conflict in zip(
                message.sequence_numbers.tolist(), message.transaction_ids.tolist(), strict=True
            ):
                self._lock_failure(message.partition_id, number, conflict)
        elif isinstance(message, Rejected) and message.code is RejectionCode.QUEUE_FULL:
            for number in message.sequence_numbers.tolist():
                self._lock_failure(message.partition_id, number, connection.high_water_mark(message.partition_id))
        elif isinstance(message, Rejected):
            connection.finish(f"appends rejected ({message.code.name}), which version {connection.version} cannot say")
        elif not isinstance(message, AppendedBatch):
            connection.finish(f"partition {message.partition_id} has left this server")

    def _mounted(self, message: Mounted) -> None:
        partition_id = message.req_id.partition_id
        mounted = self._mounts.get(partition_id)
        if mounted is not None and mounted.req_id == message.req_id:
            mounted.mounting = False
            if message.state is not MountState.READY:
                del self._mounts[partition_id]
        self._connection.write(MountResponse(message.req_id, message.state))

    def _lock_failure(self, partition_id: int, sequence_number: int, transaction_id: int) -> None:
        mounted = self._mounts.get(partition_id)
        if mounted is not None:
            req_id = mounted.req_id._replace(sequence_number=sequence_number)
            self._connection.write(LockFailure(req_id, transaction_id))


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
