"""Putting a client together: the cluster is found through Ray or ZooKeeper, the rest is ``waltz_ray.client``."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from waltz_ray.client.actor_transport import ActorTransport
from waltz_ray.client.aio import AsyncWaltzClient, started
from waltz_ray.client.application import Callbacks
from waltz_ray.client.bounds import Partitions
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.codecs import Codec
from waltz_ray.client.credentials import Credentials, Presented
from waltz_ray.client.directory import Location, Whereabouts
from waltz_ray.client.engine import FeedKind
from waltz_ray.client.opening import opened
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.client.transport import Transport
from waltz_ray.config import ClientConfig
from waltz_ray.coordination.api import Watch, ZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore, Watches
from waltz_ray.coordination.cursor_store import CursorStore
from waltz_ray.errors import InvalidInput, SpaceGone
from waltz_ray.finding.find import FoundCluster, check_key, find_cluster, join_cluster
from waltz_ray.finding.ray_lookup import server_handles
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment
from waltz_ray.protocol.spaces import DEFAULT_SPACE, Space, SpaceTable
from waltz_ray.wire.znodes import ServerDescriptor

__all__ = ["StoreDirectory", "connect", "connect_async", "connect_member", "endpoint_resolver", "init_ray"]

TransportKind = Literal["tcp", "actor"]


def connect(
    cluster: str | None = None,
    callbacks: Callbacks | None = None,
    config: ClientConfig | None = None,
    partitions: Partitions = None,
    zookeeper: str | None = None,
    transport: TransportKind = "tcp",
    feed: FeedKind | None = None,
    *,
    directory: str | None = None,
    address: str | None = None,
    codec: Codec | None = None,
    space: str = DEFAULT_SPACE,
) -> WaltzClient:
    """A client of ``cluster``; see WaltzClient for ``callbacks``, ``config``, ``partitions``, ``feed`` and ``codec``.

    Which cluster: the one of ``directory`` (of ``waltz up --dir``), on the Ray at ``address``, or in ``zookeeper``
    (``host:port,...``, with the name); else of WALTZ_DIR or WALTZ_ZOOKEEPER (and WALTZ_CLUSTER); else, inside of Ray,
    the one on that Ray; else the only one that ``waltz up`` has started on this machine. Never one of several: then
    the error lists them. What is found must have the key that its directory or its manager says.

    ``transport="actor"`` sends everything through actor calls, for drivers that cannot reach the servers' ports; it
    always needs Ray, and joins it.

    ``space``: whose partitions it uses, numbered from 0; by default those that the cluster was made with.

    A cluster with TLS or rights (docs/security.md): ``config`` or the environment says where this client's files are.

    ClusterNotFound, ClusterMismatch, SpaceNotFound, SpaceGone, RayNotRunning, ZooKeeperUnreachable, InvalidInput.
    """
    found = find_cluster(cluster, directory, address, zookeeper)
    find = partial(_opened, found, transport, space, Credentials.of(config))
    place, carrier = find()
    try:
        return WaltzClient(place, carrier, callbacks, config, partitions, feed, find=find, codec=codec)
    except BaseException:
        place.close()
        raise


async def connect_async(
    cluster: str | None = None,
    callbacks: Callbacks | None = None,
    config: ClientConfig | None = None,
    partitions: Partitions = None,
    zookeeper: str | None = None,
    transport: TransportKind = "tcp",
    feed: FeedKind | None = None,
    *,
    directory: str | None = None,
    address: str | None = None,
    codec: Codec | None = None,
    space: str = DEFAULT_SPACE,
) -> AsyncWaltzClient:
    """A client of ``cluster`` for the loop that runs now: ``async with await connect_async("demo") as client``.

    The arguments and the errors are those of ``connect``. What blocks on the way there runs in the loop's executor.
    """
    found = await asyncio.to_thread(find_cluster, cluster, directory, address, zookeeper)
    find = partial(_opened, found, transport, space, Credentials.of(config))
    place, carrier = await opened(find, lambda found: found[0].close())
    return await started(AsyncWaltzClient(place, carrier, callbacks, config, partitions, feed, find, codec))


async def connect_member(
    zookeeper: str, cluster: str, space: str, credentials: Presented, config: ClientConfig
) -> AsyncWaltzClient:
    """A client for one of the cluster's own actors: it knows where everything is. Errors leave nothing open."""
    from waltz_ray.coordination.zookeeper import KazooZooKeeper

    place = await opened(lambda: StoreDirectory(KazooZooKeeper(zookeeper), cluster, space), lambda made: made.close())
    return await started(AsyncWaltzClient(place, TcpTransport(credentials=credentials), config=config))


def init_ray(
    cluster: str | None = None, *, directory: str | None = None, address: str | None = None, **options: Any
) -> str:
    """Connect this process to the cluster's Ray, as ``ray.init`` does (``options`` are its); Ray's address.

    The cluster is found as by ``connect``. Idempotent: a process that belongs to a Ray already stays there.
    ClusterNotFound, RayNotRunning, InvalidInput.
    """
    return join_cluster(cluster, directory, address, **options)


def _opened(
    found: FoundCluster, transport: TransportKind, space: str, credentials: Credentials
) -> tuple[StoreDirectory, Transport]:
    """What a client is made of; also in another process, to which the client has travelled."""
    # Here, so that `import waltz_ray` does not load kazoo in processes that never connect (replicas, Spark workers).
    from waltz_ray.coordination.zookeeper import KazooZooKeeper

    if transport not in ("tcp", "actor"):
        raise InvalidInput(f"transport must be 'tcp' or 'actor', not {transport!r}")
    place = StoreDirectory(KazooZooKeeper(found.zookeeper), found.name, space)
    try:
        check_key(found, place.info)
        if transport == "actor":
            join_cluster(found.name, address=found.ray)
            carrier: Transport = ActorTransport(server_handles(found.name))
        else:
            shown = credentials.where_tls_is_asked_for(place.tls_only())
            shown.context(), shown.token()  # what cannot be used is told at once
            carrier = TcpTransport(credentials=shown)
    except BaseException:
        place.close()
        raise
    return place, carrier


class StoreDirectory:
    """The client's directory of a space, over its cluster's ZooKeeper nodes. Owns ``zookeeper``.

    Here the numbers of partitions change: its callers', from 0, are those that a client uses; the nodes have those in
    the cluster, and so does each ``Location``. SpaceNotFound, SpaceGone.
    """

    def __init__(self, zookeeper: ZooKeeper, cluster: str, space: str = DEFAULT_SPACE) -> None:
        self._zookeeper = zookeeper
        self._store = ClusterStore(zookeeper, cluster)
        self._lock = threading.Lock()
        self._assignment = Assignment()
        self._servers: dict[int, ServerDescriptor] = {}
        try:
            self.info = self._store.info()
            self.space = self._store.spaces.get(space)
        except BaseException:
            zookeeper.close()
            raise
        identity = f"pid {os.getpid()} on {socket.gethostname()}"
        self.cursors = CursorStore(zookeeper, cluster, self.space, identity)

    @property
    def partitions(self) -> int:
        """Number of partitions of the space."""
        return self.space.count

    @property
    def cluster_key(self) -> str:
        """Made once, with the cluster: no other one has it, whatever its name."""
        return str(self.info.cluster_key)

    def tls_only(self) -> bool:
        """Whether the cluster says that clients have to speak TLS."""
        return self._store.access.tls_only()

    def next_client_id(self) -> int:
        """A client ID nobody was ever given."""
        return self._store.next_client_id()

    def locations(self) -> dict[int, Location]:
        """The server that has each partition, read from ZooKeeper now."""
        assignment, _ = self._store.assignment()
        return _locations(self.space, assignment, self._store.servers())

    def watch(self, callback: Callable[[Whereabouts], None]) -> Callable[[], None]:
        """Tell ``callback`` where the partitions are, now and after every change; returns what ends it.

        The last thing that it is told of a space that was deleted is SpaceGone.
        """
        gone = False

        def tell() -> None:
            if not gone:
                callback(_locations(self.space, self._assignment, self._servers))

        # The lock covers the call too, or an older view could be told after a newer one.
        def servers_changed(servers: dict[int, ServerDescriptor]) -> None:
            with self._lock:
                self._servers = servers
                tell()

        def assignment_changed(assignment: Assignment, version: int) -> None:
            with self._lock:
                self._assignment = assignment
                tell()

        def spaces_changed(table: SpaceTable) -> None:
            nonlocal gone
            with self._lock:
                try:
                    table.named(self.space.name, self.info.name)
                except SpaceGone as error:
                    gone = True
                    callback(error)

        watches: list[Watch | Watches] = [
            self._store.watch_servers(servers_changed),
            self._store.watch_assignment(assignment_changed),
        ]
        if self.space.name != DEFAULT_SPACE:  # which cannot be deleted
            watches.append(self._store.spaces.watch(spaces_changed))

        def cancel() -> None:
            for watch in watches:
                watch.cancel()

        return cancel

    def close(self) -> None:
        """Close the ZooKeeper connection."""
        self._zookeeper.close()


def _locations(space: Space, assignment: Assignment, servers: Mapping[int, ServerDescriptor]) -> dict[int, Location]:
    found = {}
    for partition_id, number in enumerate(space.partitions):
        if (owner := assignment.owner(number)) is not None:
            server = servers.get(owner.server_id)
            endpoint = None if server is None else server.endpoint
            found[partition_id] = Location(owner.server_id, owner.generation, endpoint, number if space.first else None)
    return found


def endpoint_resolver(directory: StoreDirectory) -> Callable[[int], Endpoint | None]:
    """What tells ``client.RangeReader`` a partition's endpoint, read from ZooKeeper each time it is asked."""

    def resolve(partition_id: int) -> Endpoint | None:
        location = directory.locations().get(partition_id)
        return location.endpoint if location is not None else None

    return resolve
