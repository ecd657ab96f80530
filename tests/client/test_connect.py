"""The directory over ZooKeeper's nodes, and what ``connect`` says when there is no such cluster."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import types
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import waltz_ray
from tests.client.conftest import Recorder
from tests.client.fake_server import FakeDirectory, FakeServer
from waltz_ray.client import AsyncWaltzClient, Location, ray_lookup
from waltz_ray.client.ray_lookup import find_zookeeper, server_handles
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.config import ClientConfig
from waltz_ray.connect import StoreDirectory, connect, connect_async, endpoint_resolver
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.errors import ClusterNotFound, InvalidInput, RayNotRunning
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment, Owner


def test_the_public_names() -> None:
    assert waltz_ray.connect is connect
    assert all(hasattr(waltz_ray, name) for name in waltz_ray.__all__)
    loaded = "import sys, waltz_ray; print('kazoo' in sys.modules, 'ray' in sys.modules, callable(waltz_ray.connect))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]


def test_directory_follows_assignment_and_servers() -> None:
    server = MemoryZooKeeperServer()
    store = ClusterStore(MemoryZooKeeper(server), "demo")
    store.initialize(3, [0, 1, 2])
    directory = StoreDirectory(MemoryZooKeeper(server), "demo")
    seen: list[Mapping[int, Location]] = []
    cancel = directory.watch(seen.append)
    assert directory.partitions == 3
    assert directory.next_client_id() != directory.next_client_id()
    assert seen[-1] == {}

    _, version = store.assignment()
    store.set_assignment(Assignment({0: Owner(7, 1), 1: Owner(8, 4)}), version)
    assert seen[-1] == {0: Location(7, 1, None), 1: Location(8, 4, None)}
    registration = store.register_server(7, Endpoint("127.0.0.1", 4000))
    assert seen[-1][0] == Location(7, 1, Endpoint("127.0.0.1", 4000))
    resolve = endpoint_resolver(directory)
    assert (resolve(0), resolve(1), resolve(2)) == (Endpoint("127.0.0.1", 4000), None, None)
    registration.cancel()
    assert seen[-1][0] == Location(7, 1, None)

    cancel()
    count = len(seen)
    store.register_server(8, Endpoint("127.0.0.1", 4001))
    assert len(seen) == count
    directory.close()


def test_unknown_cluster_in_zookeeper() -> None:
    with pytest.raises(ClusterNotFound, match="no cluster 'demo'"):
        StoreDirectory(MemoryZooKeeper(MemoryZooKeeperServer()), "demo")


def test_unknown_transport() -> None:
    with pytest.raises(InvalidInput, match="transport must be 'tcp' or 'actor', not 'pigeon'"):
        connect("demo", zookeeper="127.0.0.1:1", transport="pigeon")  # type: ignore[arg-type]


def test_connecting_for_coroutines(monkeypatch: pytest.MonkeyPatch) -> None:
    zookeeper = MemoryZooKeeperServer()
    monkeypatch.setattr("waltz_ray.coordination.zookeeper.KazooZooKeeper", lambda hosts: MemoryZooKeeper(zookeeper))
    store = ClusterStore(MemoryZooKeeper(zookeeper), "demo")
    store.initialize(1, [0])
    _, version = store.assignment()
    store.set_assignment(Assignment({0: Owner(1, 1)}), version)

    async def main() -> list[bytes]:
        with pytest.raises(ClusterNotFound, match="no cluster 'other'"):
            await connect_async("other", zookeeper="in memory")
        with pytest.raises(InvalidInput, match="transport must be"):
            await connect_async("demo", zookeeper="in memory", transport="pigeon")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="no partition 5"):
            await connect_async("demo", zookeeper="in memory", partitions=[5])
        async with await connect_async("demo", zookeeper="in memory") as client:
            waiting = asyncio.create_task(client.append(0, b"x"))  # until somebody serves it
            store.register_server(1, server.endpoint)
            assert await waiting == 0
            return [transaction.data async for transaction in client.feed(0)]

    with FakeServer() as server:
        assert asyncio.run(main()) == [b"x"]


def test_a_client_pickles_as_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    zookeeper, opened = MemoryZooKeeperServer(), 0

    def open_zookeeper(hosts: str) -> MemoryZooKeeper:
        nonlocal opened
        opened += 1
        return MemoryZooKeeper(zookeeper)

    monkeypatch.setattr("waltz_ray.coordination.zookeeper.KazooZooKeeper", open_zookeeper)
    store = ClusterStore(MemoryZooKeeper(zookeeper), "demo")
    store.initialize(2, [0])
    config = ClientConfig(batch_records=3)

    async def pickled_async() -> bytes:
        async with await connect_async("demo", zookeeper="in memory", config=config) as client:
            return pickle.dumps(client)

    async def use(pickled: bytes) -> int:
        client = pickle.loads(pickled)
        with pytest.raises(InvalidInput, match="has not been started"):
            await client.append(0, b"early")
        async with client:
            return int(await client.append(0, b"async"))

    with FakeServer() as server:
        _, version = store.assignment()
        store.set_assignment(Assignment({0: Owner(1, 1)}), version)
        store.register_server(1, server.endpoint)
        with connect("demo", zookeeper="in memory", config=config, partitions=[0]) as client:
            pickled = pickle.dumps(client)
            first_id = client.client_id
        before = opened
        pickle.loads(pickled).close()
        arrived = pickle.loads(pickle.dumps(pickle.loads(pickled)))
        assert opened == before  # it connects when it is first used
        with arrived:
            with ThreadPoolExecutor(4) as threads:
                ids = list(threads.map(lambda data: arrived.append(0, data).result(20), [b"x"] * 4))
            assert sorted(ids) == [0, 1, 2, 3]
            assert opened == before + 1
            assert (arrived.config, arrived.partitions) == (config, 2)
            assert arrived.client_id > first_id
            with pytest.raises(InvalidInput, match="not one of this client's"):
                arrived.append(1, b"x")
            with pytest.raises(AttributeError, match="apend"):
                arrived.apend(0, b"x")
        assert asyncio.run(use(asyncio.run(pickled_async()))) == 4
        with (
            connect("demo", Recorder(), zookeeper="in memory", partitions=[0]) as client,
            pytest.raises(InvalidInput, match="with callbacks does not pickle"),
        ):
            pickle.dumps(client)
    with pytest.raises(InvalidInput, match="only those of connect"):
        pickle.dumps(AsyncWaltzClient(FakeDirectory({}), TcpTransport()))


class FakeManagerMethod:
    def remote(self) -> str:
        return "127.0.0.1:2181"


class FakeRay(types.ModuleType):
    """As much of ray as the look-up touches."""

    def __init__(self, actors: Mapping[tuple[str, str], Any], local: bool = True) -> None:
        super().__init__("ray")
        self.actors = actors
        self.local = local
        self.addresses: list[str] = []
        self.util = self
        self.exceptions = types.SimpleNamespace(RayActorError=RuntimeError, GetTimeoutError=TimeoutError)

    def is_initialized(self) -> bool:
        return bool(self.addresses)

    def join(self, address: str) -> str:
        """In the place of ``ray_lookup.join``."""
        if not self.local:
            raise RayNotRunning("no Ray runs on this machine")
        self.addresses.append(address)
        return address

    def get_actor(self, name: str, namespace: str) -> Any:
        if (namespace, name) not in self.actors:
            raise ValueError(f"no actor {name}")
        return self.actors[(namespace, name)]

    def get(self, value: Any, timeout: float) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    def list_named_actors(self, all_namespaces: bool) -> list[dict[str, str]]:
        return [{"namespace": namespace, "name": name} for namespace, name in self.actors]


def use(monkeypatch: pytest.MonkeyPatch, ray: FakeRay) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_lookup, "join", ray.join)


def test_the_manager_knows_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = types.SimpleNamespace(zookeeper=FakeManagerMethod())
    ray = FakeRay({("waltz-demo", "cluster-manager"): manager, ("waltz-demo", "server/3"): "handle"})
    use(monkeypatch, ray)
    assert find_zookeeper("demo") == "127.0.0.1:2181"
    assert ray.addresses == ["auto"]
    handle_of = server_handles("demo")
    assert handle_of(3) == "handle"
    with pytest.raises(ConnectionError, match="no actor server/4"):
        handle_of(4)


def test_an_unknown_cluster_says_which_ones_run(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = [("waltz-b", "cluster-manager"), ("waltz-a", "cluster-manager"), ("waltz-a", "server/1"), ("x", "y")]
    use(monkeypatch, FakeRay(dict.fromkeys(actors)))
    with pytest.raises(ClusterNotFound, match=r"no cluster 'demo' runs on this Ray cluster; running: a, b$"):
        connect("demo")
    use(monkeypatch, FakeRay({}))
    with pytest.raises(ClusterNotFound, match="none does; start one with `waltz up`"):
        connect("demo")


def test_no_ray_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeRay({}, local=False))
    with pytest.raises(ClusterNotFound, match="no Ray runs on this machine"):
        connect("demo")
    with pytest.raises(ClusterNotFound, match="no Ray runs on this machine"):
        connect("demo", transport="actor")


def test_a_manager_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead:
        def remote(self) -> Exception:
            return TimeoutError("too late")

    manager = types.SimpleNamespace(zookeeper=Dead())
    use(monkeypatch, FakeRay({("waltz-demo", "cluster-manager"): manager}))
    with pytest.raises(ClusterNotFound, match="does not answer"):
        connect("demo")
