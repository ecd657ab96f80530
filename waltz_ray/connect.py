"""Putting a client together: the cluster is found through Ray or ZooKeeper, the rest is ``waltz_ray.client``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from waltz_ray.client.actor_transport import ActorTransport
from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.client.application import Callbacks
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.directory import Location
from waltz_ray.client.engine import FeedKind
from waltz_ray.client.ray_lookup import find_zookeeper, server_handles
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.client.transport import Transport
from waltz_ray.config import ClientConfig
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment
from waltz_ray.wire.znodes import ServerDescriptor

__all__ = ["StoreDirectory", "connect", "connect_async", "endpoint_resolver"]

TransportKind = Literal["tcp", "actor"]


def connect(
    cluster: str,
    callbacks: Callbacks | None = None,
    config: ClientConfig | None = None,
    partitions: Sequence[int] | None = None,
    zookeeper: str | None = None,
    transport: TransportKind = "tcp",
    feed: FeedKind | None = None,
) -> WaltzClient:
    """A client of ``cluster``; see WaltzClient for ``callbacks``, ``config``, ``partitions`` and ``feed``.

    ``zookeeper``: ``host:port,...``; by default it is asked from the cluster's manager through Ray, which is
    initialised with the local Ray cluster if it is not. ``transport="actor"`` sends everything through actor calls,
    for drivers that cannot reach the servers' ports; it always needs Ray.

    ClusterNotFound (says which clusters do run), ZooKeeperUnreachable, InvalidInput.
    """
    find = partial(_found, cluster, zookeeper or find_zookeeper(cluster), transport)
    directory, carrier = find()
    try:
        return WaltzClient(directory, carrier, callbacks, config, partitions, feed, find=find)
    except BaseException:
        directory.close()
        raise


async def connect_async(
    cluster: str,
    callbacks: Callbacks | None = None,
    config: ClientConfig | None = None,
    partitions: Sequence[int] | None = None,
    zookeeper: str | None = None,
    transport: TransportKind = "tcp",
    feed: FeedKind | None = None,
) -> AsyncWaltzClient:
    """A client of ``cluster`` for the loop that runs now: ``async with await connect_async("demo") as client``.

    The arguments and the errors are those of ``connect``. What blocks on the way there runs in the loop's executor.
    """
    if zookeeper is None:
        zookeeper = await asyncio.to_thread(find_zookeeper, cluster)
    find = partial(_found, cluster, zookeeper, transport)
    directory, carrier = await asyncio.to_thread(find)
    client = AsyncWaltzClient(directory, carrier, callbacks, config, partitions, feed, find)
    try:
        await client.start()
    except BaseException:
        await asyncio.to_thread(directory.close)
        raise
    return client


def _found(cluster: str, zookeeper: str, transport: TransportKind) -> tuple[StoreDirectory, Transport]:
    # Here, so that `import waltz_ray` does not load kazoo in processes that never connect (replicas, Spark workers).
    from waltz_ray.coordination.zookeeper import KazooZooKeeper

    carrier: Transport
    if transport == "actor":
        carrier = ActorTransport(server_handles(cluster))
    elif transport == "tcp":
        carrier = TcpTransport()
    else:
        raise InvalidInput(f"transport must be 'tcp' or 'actor', not {transport!r}")
    return StoreDirectory(KazooZooKeeper(zookeeper), cluster), carrier


class StoreDirectory:
    """The client's directory over a cluster's ZooKeeper nodes. Owns ``zookeeper``."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper = zookeeper
        self._store = ClusterStore(zookeeper, cluster)
        self._lock = threading.Lock()
        self._assignment = Assignment()
        self._servers: dict[int, ServerDescriptor] = {}
        try:
            self._partitions = self._store.info().partitions
        except BaseException:
            zookeeper.close()
            raise

    @property
    def partitions(self) -> int:
        """Number of partitions of the cluster."""
        return self._partitions

    def next_client_id(self) -> int:
        """A client ID nobody was ever given."""
        return self._store.next_client_id()

    def locations(self) -> dict[int, Location]:
        """The server that has each partition, read from ZooKeeper now."""
        assignment, _ = self._store.assignment()
        return _locations(assignment, self._store.servers())

    def watch(self, callback: Callable[[Mapping[int, Location]], None]) -> Callable[[], None]:
        """Tell ``callback`` where the partitions are, now and after every change; returns what ends it."""

        def tell() -> None:
            callback(_locations(self._assignment, self._servers))

        # The lock covers the call too, or an older view could be told after a newer one.
        def servers_changed(servers: dict[int, ServerDescriptor]) -> None:
            with self._lock:
                self._servers = servers
                tell()

        def assignment_changed(assignment: Assignment, version: int) -> None:
            with self._lock:
                self._assignment = assignment
                tell()

        of_servers = self._store.watch_servers(servers_changed)
        of_assignment = self._store.watch_assignment(assignment_changed)

        def cancel() -> None:
            of_servers.cancel()
            of_assignment.cancel()

        return cancel

    def close(self) -> None:
        """Close the ZooKeeper connection."""
        self._zookeeper.close()


def _locations(assignment: Assignment, servers: Mapping[int, ServerDescriptor]) -> dict[int, Location]:
    return {
        partition: Location(
            owner.server_id, owner.generation, servers[owner.server_id].endpoint if owner.server_id in servers else None
        )
        for partition, owner in assignment.owners.items()
    }


def endpoint_resolver(directory: StoreDirectory) -> Callable[[int], Endpoint | None]:
    """What tells ``client.RangeReader`` a partition's endpoint, read from ZooKeeper each time it is asked."""

    def resolve(partition_id: int) -> Endpoint | None:
        location = directory.locations().get(partition_id)
        return location.endpoint if location is not None else None

    return resolve
