"""A partition server that listens nowhere: the real one, over connections and a replica in memory, with faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from waltz_ray.actors.client_connection import ClientConnection
from waltz_ray.actors.server import Server
from waltz_ray.config import ServerConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.client import LockFailureBatch, Rejected, RejectionCode
from waltz_ray.protocol.partition.events import AppendReceived, Event, FeedPaused, FeedResumed, MountReceived
from waltz_ray.protocol.partition.intake import is_unaware
from waltz_ray.protocol.records import AppendBatch, Int32s, LockColumns
from waltz_ray.testing.faults import FaultDice
from waltz_ray.testing.replica import MemoryReplica, MemoryReplicaLink

__all__ = ["MemoryServer"]

T = TypeVar("T")

_WHY = "a fault of the in-memory cluster"


class MemoryServer(Server):
    """``endpoint`` is a name by which the cluster's transport finds it; another one for each process of a server."""

    def __init__(
        self,
        server_id: int,
        store: ClusterStore,
        config: ServerConfig,
        on_fatal: Callable[[str], None],
        endpoint: Endpoint,
        replica: MemoryReplica,
        dice: FaultDice,
        suspended: set[int],
        now_ms: Callable[[], int],
    ) -> None:
        """``suspended``: the partitions whose feeds are held back, as the cluster says."""
        super().__init__(server_id, store, config, on_fatal, now_ms)
        self.dice = dice
        self.suspended = suspended
        self._found_at = endpoint
        self._replica = replica
        self._all: list[MemoryConnection] = []

    async def listen(self) -> Endpoint:
        return self._found_at

    def new_link(self, replica_id: int) -> MemoryReplicaLink:
        return MemoryReplicaLink(replica_id, self._replica, self.drivers)

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Call it at once: the coordination is in memory, and not for several threads."""
        return call()

    def new_connection(self) -> MemoryConnection:
        connection = MemoryConnection(self.next_connection_id(), self)
        self._all = [one for one in self._all if not one.ended]
        self._all.append(connection)
        return connection

    async def end(self) -> None:
        """End as a killed process does: nothing is said to anybody, and what is left of it can do nothing."""
        self.drop_connections()
        for watch in self.watches:
            watch.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(driver.close() for driver in self.drivers.values()))
        await asyncio.gather(*(link.close() for link in self.links.values()))

    def drop_connections(self) -> None:
        """End all connections, with what is under way on them."""
        for connection in self._all:
            connection.abort(_WHY)

    def feed_held(self, partition_id: int, held: bool) -> None:
        """Tell everybody's feed of the partition to pause, or to go on."""
        for connection in self._all:
            if not connection.ended:
                connection.hold_feed(partition_id, held)


class MemoryConnection(ClientConnection):
    """What a client sends meets the faults here, before the partition's machine sees it."""

    def __init__(self, connection_id: int, server: MemoryServer) -> None:
        super().__init__(connection_id, server)
        self._memory_server = server
        self._cut = False
        self._refused_ends: dict[tuple[int, int], int] = {}  # by partition and client: ``Subscriber.refused_end``

    def hold_feed(self, partition_id: int, held: bool) -> None:
        event = FeedPaused(self.connection_id) if held or self.busy else FeedResumed(self.connection_id)
        self._memory_server.drivers[partition_id].handle(event)

    def tell(self, partition_id: int, event: Event) -> None:
        if self._cut:
            return
        if isinstance(event, MountReceived):
            self._refused_ends.pop((partition_id, event.mount.req_id.client_id), None)
            if partition_id in self._memory_server.suspended:
                self.hold_feed(partition_id, held=True)
        fault = None
        if isinstance(event, AppendReceived):
            fault = self._fault(event.batch)
        if fault in (None, "answers_lost"):
            super().tell(partition_id, event)
        elif isinstance(event, AppendReceived):
            self._refuse(event.batch, fault)
        if fault in ("connections_lost", "answers_lost"):
            self._cut = True
            self.abort(_WHY)

    def _fault(self, batch: AppendBatch) -> str | None:
        """What it meets. After a refusal also what its client sends before it knows, as at any server: or that would
        get ahead."""
        place = batch.partition_id, batch.client_id
        refused_end = self._refused_ends.pop(place, None)
        if refused_end is not None and is_unaware(refused_end, batch):
            fault: str | None = "append_failures"
        else:
            fault = self._memory_server.dice.draw(self._locks_can_fail(batch))
        if fault == "append_failures":
            self._refused_ends[place] = batch.end_number
        return fault

    def _refuse(self, batch: AppendBatch, fault: str | None) -> None:
        partition_id, numbers = batch.partition_id, batch.sequence_numbers
        if fault == "append_failures":
            self.write(Rejected(partition_id, batch.generation, RejectionCode.QUEUE_FULL, numbers, _WHY))
        elif fault == "lock_failures":
            mark = self._memory_server.drivers[partition_id].machine.high_water_mark
            self.write(LockFailureBatch(partition_id, numbers, np.full(len(batch), mark, dtype=np.int64)))

    def _locks_can_fail(self, batch: AppendBatch) -> bool:
        machine = self._memory_server.machine_of(batch.partition_id)
        checked = _counts(batch.write_locks, len(batch)) + _counts(batch.read_locks, len(batch))
        return machine is not None and machine.high_water_mark >= 0 and bool((checked > 0).all())

    def on_writable(self) -> None:
        super().on_writable()
        for partition_id in self._memory_server.suspended:
            self.hold_feed(partition_id, held=True)


def _counts(locks: LockColumns, count: int) -> Int32s:
    """How many locks each transaction of a batch has."""
    return np.diff(locks.offsets) if len(locks.hashes) else np.zeros(count, dtype=np.int32)
