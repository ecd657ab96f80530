"""A cluster of ``harness`` whose network is in the hands of the test: between any two of its parts is a proxy.

Its parts have names: "server 1", "replica 0", "manager", "zookeeper", and what clients are called.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from tests.cluster.harness import FAST, Cluster
from tests.net.cutting_proxy import CuttingProxy
from waltz_ray.actors.cut_off import CutOff
from waltz_ray.actors.manager import Manager
from waltz_ray.actors.server import Server
from waltz_ray.client import WaltzClient
from waltz_ray.client.directory import Location
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.client.transport import Opening
from waltz_ray.config import ClientConfig, ServerConfig
from waltz_ray.connecting import StoreDirectory
from waltz_ray.coordination.cluster_store import AnnouncedReplica, ClusterStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper, ZooKeeper
from waltz_ray.errors import WaltzError
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.wire.znodes import ServerDescriptor

__all__ = ["Felt", "Network", "NetworkCluster"]

_TRY_S = 20.0


class Network:
    """All links that anybody has asked for."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], CuttingProxy] = {}
        self._lock = threading.Lock()

    def through(self, who: str, whom: str, target: Endpoint) -> Endpoint:
        """Where ``who`` has to connect to reach ``whom``, who listens at ``target``."""
        with self._lock:
            link = self._links.get((who, whom))
            if link is None:
                link = self._links[who, whom] = CuttingProxy(target)
            link.target = target
            return link.endpoint

    def link(self, who: str, whom: str) -> CuttingProxy:
        """That which is used already."""
        return self._links[who, whom]

    def links(self, which: Callable[[str, str], bool]) -> list[CuttingProxy]:
        """Those of which ``which(who, whom)`` holds."""
        with self._lock:
            return [link for names, link in self._links.items() if which(*names)]

    def of(self, who: str) -> list[CuttingProxy]:
        """All that ``who`` uses, or is reached by."""
        return self.links(lambda one, other: who in (one, other))

    def heal(self) -> None:
        for link in self.links(lambda who, whom: True):
            link.heal()

    def close(self) -> None:
        for link in self.links(lambda who, whom: True):
            link.close()


class _SeenByServer(ClusterStore):
    """Whose replicas are behind proxies."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str, network: Network, who: str) -> None:
        super().__init__(zookeeper, cluster)
        self._network, self._who = network, who

    def replicas(self) -> dict[int, AnnouncedReplica]:
        return {
            number: each._replace(endpoint=self._network.through(self._who, f"replica {number}", each.endpoint))
            for number, each in super().replicas().items()
        }


class _SeenByManager(ClusterStore):
    """Which probes servers behind proxies."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str, network: Network) -> None:
        super().__init__(zookeeper, cluster)
        self._network = network

    def servers(self) -> dict[int, ServerDescriptor]:
        return {
            number: each._replace(endpoint=self._network.through("manager", f"server {number}", each.endpoint))
            for number, each in super().servers().items()
        }


class _Through(TcpTransport):
    def __init__(self, network: Network, who: str) -> None:
        super().__init__()
        self._network, self._who = network, who
        self.shared = None  # each client has links of its own

    async def connect(self, location: Location, stream: Opening) -> None:
        if location.endpoint is not None:
            whom = f"server {location.server_id}"
            location = location._replace(endpoint=self._network.through(self._who, whom, location.endpoint))
        await super().connect(location, stream)


class NetworkCluster(Cluster):
    """A cluster with a manager, which leads."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        *,
        partitions: int = 1,
        servers: int = 1,
        config: ServerConfig = FAST,
        silent_s: float = 1.5,
    ) -> None:
        self.network = Network()
        host, _, port = zookeeper.rpartition(":")
        self._zookeeper_endpoint = Endpoint(host, int(port))
        super().__init__(directory, zookeeper, partitions=partitions, servers=servers, config=config)
        self._expected, self._silent_s = frozenset(range(1, servers + 1)), silent_s
        self._manager: Manager | None = None
        self._manager_client: KazooZooKeeper | None = None
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._look, name="cluster-watch")

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.start_manager()
            self._watch.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._closing.set()
        if self._watch.is_alive():
            self._watch.join()
        self.network.heal()
        if self._manager is not None:
            self.run(self._manager.close())
        if self._manager_client is not None:
            self._manager_client.close()
        super().close()
        self.network.close()

    def start_manager(self) -> None:
        client = self._manager_client = KazooZooKeeper(self.zookeeper_of("manager"), 3000)
        store = _SeenByManager(client, self.name, self.network)

        async def start() -> Manager:
            manager = Manager(store, self._expected, lambda: None, "test", 1.0, self._silent_s, self.ended.append)
            await manager.start()
            return manager

        self._manager = self.run(start())

    def _look(self) -> None:
        """As the manager's actor does, only more often."""
        cut_off = CutOff()
        while not self._closing.wait(0.25):
            before, now = cut_off.servers, cut_off.seen({s: self.call(server.status) for s, server in self._serving()})
            if now != before:
                self.manager.cut_off_seen(now)

    def _serving(self) -> list[tuple[int, Server]]:
        return list(self.servers.items())

    @property
    def manager(self) -> Manager:
        assert self._manager is not None
        return self._manager

    def zookeeper_of(self, who: str) -> str:
        host, port = self.network.through(who, "zookeeper", self._zookeeper_endpoint)
        return f"{host}:{port}"

    def store_of_server(self, server_id: int, client: KazooZooKeeper) -> ClusterStore:
        return _SeenByServer(client, self.name, self.network, f"server {server_id}")

    @contextmanager
    def client(self, who: str, config: ClientConfig | None = None) -> Iterator[WaltzClient]:
        """One that reaches servers and ZooKeeper through links of its own."""
        place = StoreDirectory(KazooZooKeeper(self.zookeeper_of(who)), self.name)
        client = WaltzClient(place, _Through(self.network, who), None, config)
        try:
            yield client
        finally:
            client.close()

    def between(self, who: str, *whom: str) -> list[CuttingProxy]:
        return [self.network.link(who, each) for each in whom]


class Felt:
    """A client that appends one after the other in a thread while the block lasts: which IDs it was told, and the
    longest time that one of its appends has taken since ``longest_s`` was asked last."""

    def __init__(self, client: WaltzClient, partition_id: int = 0, name: str = "x") -> None:
        self.ids: list[int] = []
        self.datas: list[bytes] = []
        self._client, self._partition_id, self._name = client, partition_id, name
        self._begun_s, self._longest_s = math.inf, 0.0
        self._failures: list[BaseException] = []
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"felt-{name}")

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                data = f"{self._name}{len(self.ids)}".encode()
                with self._lock:
                    self._begun_s = time.monotonic()
                found = self._client.append(self._partition_id, data).result(60)
                with self._lock:
                    self._longest_s = max(self._longest_s, time.monotonic() - self._begun_s)
                    self._begun_s = math.inf
                    self.ids.append(found)
                    self.datas.append(data)
        except (WaltzError, TimeoutError) as error:
            self._failures.append(error)

    def __enter__(self) -> Felt:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self._failures:
            raise self._failures[0]

    def longest_s(self) -> float:
        """Also of the one that is under way."""
        with self._lock:
            longest, self._longest_s = max(self._longest_s, time.monotonic() - self._begun_s), 0.0
            return longest

    def goes_on(self, appends: int = 50) -> None:
        """Until so many more have a fate."""
        wanted, until_s = len(self.ids) + appends, time.monotonic() + _TRY_S
        while len(self.ids) < wanted:
            assert not self._failures, self._failures[0]
            assert time.monotonic() < until_s, f"{wanted - len(self.ids)} of {appends} appends have no fate"
            time.sleep(0.005)  # polling interval, not synchronisation

    def stands(self, seconds: float) -> None:
        """Nothing goes on for so long."""
        before = len(self.ids)
        time.sleep(seconds)  # the measured interval itself
        assert len(self.ids) <= before + 1, f"{len(self.ids) - before} appends went on"

    def check(self, log: list[bytes]) -> None:
        """Each fate that was told is true, and the log has no append of it twice, or that it knows nothing of."""
        assert [log[each] for each in self.ids] == self.datas
        mine = [data for data in log if data.startswith(self._name.encode())]
        assert mine == self.datas, "lost, or twice"
