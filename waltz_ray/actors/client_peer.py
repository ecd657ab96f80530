"""One client as the partitions of a server know it, whatever carries its messages."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Protocol

from waltz_ray.actors.partition_driver import Drivers
from waltz_ray.errors import WireError
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import FeedCredit, Mount, Unmount
from waltz_ray.protocol.partition.events import (
    AppendReceived,
    ConnectionClosed,
    CreditReceived,
    Event,
    FeedPaused,
    FeedResumed,
    MountReceived,
    UnmountReceived,
)
from waltz_ray.protocol.records import AppendBatch
from waltz_ray.wire.codec import ClientMessage

__all__ = ["CLIENTS_OF_A_CONNECTION", "ClientPeer"]

CLIENTS_OF_A_CONNECTION = 256
"""Client IDs that may mount over one connection, and channels of one (docs/wire.md, "Limits")."""


class ServedPartitions(Protocol):
    """What a client needs of the server."""

    drivers: Drivers

    @property
    def partitions(self) -> int:
        """How many the cluster has."""

    @property
    def connections(self) -> MutableMapping[int, Any]:
        """Who is told what partitions have to say, by number."""


class ClientPeer:
    """Who mounts and appends; what it is told about partitions and clients. All methods run in the event loop."""

    def __init__(self, connection_id: int, server: ServedPartitions) -> None:
        self.connection_id = connection_id
        self._peers = server.connections
        self._host = server
        self._drivers = server.drivers
        self._partitions: set[int] = set()
        self._clients: set[int] = set()

    @property
    def takes_nothing(self) -> bool:
        """So much waits for it that it is sent no more feed."""
        raise NotImplementedError

    def take(self, message: ClientMessage) -> bool:
        """Hand a message about a mount to its partition. False: it is none."""
        if isinstance(message, AppendBatch):
            self.tell(message.partition_id, AppendReceived(self.connection_id, message))
        elif isinstance(message, FeedCredit):
            _check_credit(message.credit_bytes)
            self.tell(message.partition_id, CreditReceived(self.connection_id, message.credit_bytes))
        elif isinstance(message, Mount):
            _check_credit(message.credit_bytes)
            self.check_client(message.req_id)
            self.tell(message.req_id.partition_id, MountReceived(self.connection_id, message))
        elif isinstance(message, Unmount):
            self.tell(message.partition_id, UnmountReceived(self.connection_id, message.client_id))
        else:
            return False
        return True

    def check_client(self, req_id: ReqId) -> None:
        """WireError: too many mount over this connection."""
        self._clients.add(req_id.client_id)
        if len(self._clients) > CLIENTS_OF_A_CONNECTION:
            raise WireError(f"more than {CLIENTS_OF_A_CONNECTION} clients mount over one connection; open another one")

    def tell(self, partition_id: int, event: Event) -> None:
        """Hand an event to a partition of this server."""
        if not 0 <= partition_id < self._host.partitions:
            raise WireError(f"partition {partition_id} does not exist: there are {self._host.partitions} partitions")
        driver = self._drivers[partition_id]
        if partition_id not in self._partitions:
            self._partitions.add(partition_id)
            if self.takes_nothing:
                driver.handle(FeedPaused(self.connection_id))
        driver.handle(event)

    def pause_feed(self) -> None:
        """It takes nothing at the moment."""
        for partition_id in self._partitions:
            self._drivers[partition_id].handle(FeedPaused(self.connection_id))

    def resume_feed(self) -> None:
        """It takes what it is sent."""
        for partition_id in self._partitions:
            self._drivers[partition_id].handle(FeedResumed(self.connection_id))

    def gone(self) -> None:
        """It has ended; it is told nothing any more."""
        self._peers.pop(self.connection_id, None)
        for partition_id in self._partitions:
            self._drivers[partition_id].handle(ConnectionClosed(self.connection_id))


def _check_credit(credit_bytes: int) -> None:
    if credit_bytes < 0:
        raise WireError(f"a feed credit of {credit_bytes} bytes is impossible")
