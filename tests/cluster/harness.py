"""A cluster without Ray: real files, real TCP, a real ZooKeeper; servers and replicas in threads of this process.

Servers share one event loop in one thread. ``Cluster.stop_replica`` and ``kill_server`` cut them off as a crash
would: nothing is said to anybody first.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pytest
from typing_extensions import Self

from tests.security.keys import secret_in
from waltz_ray.actors.access_guard import AccessGuard
from waltz_ray.actors.mover import Mover
from waltz_ray.actors.replica_endpoint import ReplicaEndpoint
from waltz_ray.actors.server import Server
from waltz_ray.actors.set_follower import SetFollower
from waltz_ray.cli import main
from waltz_ray.config import ServerConfig, StorageConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import VersionConflict
from waltz_ray.net.tls import ServerTls, replica_tls
from waltz_ray.protocol.placement import ServerInfo, assign
from waltz_ray.runtime.status import ServedPartition
from waltz_ray.security.handshakes import Doorkeeper, Keyring
from waltz_ray.storage.disk import Disk, OsDisk
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.store import ReplicaStore

T = TypeVar("T")

FAST = ServerConfig(join_grace_ms=20, replica_timeout_ms=2000)


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 20.0) -> None:
    """Poll until ``condition`` holds; AssertionError names ``what`` did not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s} s"
        time.sleep(0.01)  # polling interval, not synchronisation


class Cluster:
    """``with Cluster(tmp_path, zookeeper) as cluster``: everything is stopped at the end, also after a failure."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        *,
        partitions: int = 2,
        replicas: int = 3,
        servers: int = 1,
        config: ServerConfig = FAST,
        storage: StorageConfig | None = None,
        name: str | None = None,
        disk: Callable[[int], Disk] = lambda replica_id: OsDisk(),
        replication: int = 0,
    ) -> None:
        self.name = name or f"c{uuid.uuid4().hex[:12]}"
        self.zookeeper = zookeeper
        self.directory = directory
        self.config = config
        self._storage = storage or StorageConfig(preallocate_bytes=0)
        self._disk = disk
        self._client = KazooZooKeeper(zookeeper)
        self.store = ClusterStore(self._client, self.name)
        self.secret = secret_in(directory)
        tls = {each: getattr(config, each) for each in ("tls_certificate", "tls_key", "tls_clients", "tls_authority")}
        of_replicas = {each: getattr(self._storage, each) for each in ("tls_certificate", "tls_key", "tls_authority")}
        config_ = {"directory": str(directory), "server": tls, "storage": of_replicas}
        settings = {"config": config_, "placement": {}}
        self.info = self.store.initialize(partitions, list(range(replicas)), settings, replication)
        self.endpoints: dict[int, ReplicaEndpoint] = {}
        self.stores: dict[int, ReplicaStore] = {}
        self.servers: dict[int, Server] = {}
        self.ended: list[str] = []  # why a server's process would have ended
        self._clients: dict[int, KazooZooKeeper] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="servers")
        self._thread.start()
        self._mover: Mover | None = None
        self._wanted_servers = range(1, servers + 1)

    def __enter__(self) -> Self:
        try:
            for replica_id in self.info.replica_ids:
                self.start_replica(replica_id)
            for server_id in self._wanted_servers:
                self.start_server(server_id)
            self.place()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.stop_mover()
        for server_id in list(self.servers):
            self.stop_server(server_id)
        for replica_id in list(self.endpoints):
            self.stop_replica(replica_id)
        self._client.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """In the servers' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def call(self, function: Callable[[], T]) -> T:
        """In the servers' loop."""

        async def calling() -> T:
            return function()

        return self.run(calling())

    # ---- replicas ---------------------------------------------------------------------------------------

    def replica_directory(self, replica_id: int) -> Path:
        return self.directory / f"replica-{replica_id}"

    def start_replica(self, replica_id: int) -> None:
        path, disk = str(self.replica_directory(replica_id)), self._disk(replica_id)
        if not self.replica_directory(replica_id).exists():
            store = ReplicaStore.create(disk, path, self.info.cluster_key, self.info.partitions, self._storage)
        else:
            store = ReplicaStore.open(disk, path, self.info.cluster_key, self._storage)
        doorkeeper, storage = Doorkeeper(self.secret.secret, replica_id, self._storage.tls_only), self._storage
        tls = ServerTls(storage.tls_certificate, storage.tls_key) if storage.tls_certificate else None
        endpoint = ReplicaEndpoint(ReplicaService(store).handle, doorkeeper, name=f"replica-{replica_id}", tls=tls)
        self.stores[replica_id], self.endpoints[replica_id] = store, endpoint
        self.store.announce_replica(replica_id, endpoint.start(), uuid.uuid4().hex)

    def stop_replica(self, replica_id: int) -> None:
        self.endpoints.pop(replica_id).stop()
        self.stores.pop(replica_id).close()

    # ---- servers ----------------------------------------------------------------------------------------

    def start_server(self, server_id: int) -> Server:
        client = KazooZooKeeper(self.zookeeper_of(f"server {server_id}"))
        store = self.store_of_server(server_id, client)

        async def start() -> Server:
            keyring = Keyring.of_server(self.secret, replica_tls(self._storage.tls_authority))
            guard = AccessGuard(f"server {server_id}", store, self.secret.secret)
            server = Server(server_id, store, self.config, self.ended.append, keyring=keyring, guard=guard)
            await server.start()
            await SetFollower(server).start()
            return server

        self._clients[server_id] = client
        self.servers[server_id] = self.run(start())
        return self.servers[server_id]

    def zookeeper_of(self, who: str) -> str:
        """Where it is found by those named so."""
        return self.zookeeper

    def store_of_server(self, server_id: int, client: KazooZooKeeper) -> ClusterStore:
        """What a server knows of the cluster."""
        return ClusterStore(client, self.name)

    def stop_server(self, server_id: int) -> None:
        self.run(self.servers.pop(server_id).close())
        self._clients.pop(server_id).close()

    # ---- the manager's part in moving partitions to other replicas ----------------------------------------------

    def start_mover(self) -> None:
        """It leads until it is stopped."""

        async def start() -> Mover:
            mover = Mover(self.store, lambda: True)
            await mover.start()
            return mover

        self._mover = self.run(start())

    def stop_mover(self) -> None:
        """As far as it has come."""
        mover, self._mover = self._mover, None
        if mover is not None:
            self.run(mover.close())

    def place(self, servers: list[int] | None = None) -> None:
        """What the cluster manager does: assign every partition to the servers (default: all that run)."""
        infos = {server_id: ServerInfo() for server_id in (servers or list(self.servers))}
        while True:
            current, version = self.store.assignment()
            try:
                self.store.set_assignment(assign(self.info.partitions, infos, current), version)
            except VersionConflict:
                continue
            return

    def status(self, partition_id: int) -> ServedPartition | None:
        """Of the server that has the partition, by the highest generation; None if none says so."""
        found = [self.call(s.status).partitions.get(partition_id) for s in list(self.servers.values())]
        return max((each for each in found if each is not None), key=lambda each: each.generation, default=None)

    def served(self, partition_id: int) -> ServedPartition:
        """The same of a partition that some server has."""
        found = self.status(partition_id)
        assert found is not None, f"no server has partition {partition_id}"
        return found

    def wait_members(self, partition_id: int, members: set[int], timeout_s: float = 20.0) -> None:
        wait_until(
            lambda: (now := self.status(partition_id)) is not None and set(now.members) == members,
            f"partition {partition_id} with members {members}",
            timeout_s,
        )


def waltz(cluster: Cluster, *arguments: str, code: int = 0) -> None:
    """Run a command of the command line, in this process, on ``cluster``; it ends with ``code``."""
    with pytest.raises(SystemExit) as leaving:
        main([*arguments, "--zookeeper", cluster.zookeeper, "--cluster", cluster.name])
    assert leaving.value.code == code
