"""The directory over ZooKeeper's nodes, and what ``connect`` says when there is no such cluster."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import waltz_ray
from tests.client.conftest import Recorder
from tests.client.fake_server import FakeDirectory, FakeServer
from waltz_ray.client import AsyncWaltzClient, Location
from waltz_ray.client.directory import Whereabouts
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.config import ClientConfig
from waltz_ray.connecting import StoreDirectory, connect, connect_async, endpoint_resolver
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.errors import ClusterMismatch, ClusterNotFound, InvalidInput, WaltzError, ZooKeeperUnreachable
from waltz_ray.finding import cluster_file
from waltz_ray.finding.cluster_file import ClusterFile
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment, Owner


def test_the_public_names() -> None:
    assert waltz_ray.connect is connect
    assert all(hasattr(waltz_ray, name) for name in waltz_ray.__all__)
    loaded = "import sys, waltz_ray; print('numpy' in sys.modules, waltz_ray.errors.__name__); "
    loaded += "print('kazoo' in sys.modules, 'ray' in sys.modules, callable(waltz_ray.connect))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "waltz_ray.errors", "False", "False", "True"]


def test_directory_follows_assignment_and_servers() -> None:
    server = MemoryZooKeeperServer()
    store = ClusterStore(MemoryZooKeeper(server), "demo")
    store.initialize(3, [0, 1, 2])
    directory = StoreDirectory(MemoryZooKeeper(server), "demo")
    seen: list[Mapping[int, Location]] = []

    def see(locations: Whereabouts) -> None:
        assert not isinstance(locations, WaltzError)
        seen.append(locations)

    cancel = directory.watch(see)
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


def test_a_client_that_came_pickled_and_could_not_connect_tries_again_with_the_next_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It took what had ended then for connected: all that followed was refused, the client being closed."""
    zookeeper = MemoryZooKeeperServer()
    monkeypatch.setattr("waltz_ray.coordination.zookeeper.KazooZooKeeper", lambda hosts: MemoryZooKeeper(zookeeper))
    store = ClusterStore(MemoryZooKeeper(zookeeper), "demo")
    store.initialize(1, [0])
    failures: list[BaseException] = []

    def watch(directory: StoreDirectory, callback: Any) -> Any:
        if failures:
            raise failures.pop()
        return watch_as_ever(directory, callback)

    watch_as_ever = StoreDirectory.watch
    monkeypatch.setattr(StoreDirectory, "watch", watch)

    async def use(pickled: bytes) -> list[int]:
        client = pickle.loads(pickled)
        failures.append(ZooKeeperUnreachable("away"))
        with pytest.raises(ZooKeeperUnreachable):
            await client.start()
        async with client:
            return [await client.append(0, b"async")]

    async def pickled_async() -> bytes:
        async with await connect_async("demo", zookeeper="in memory") as client:
            return pickle.dumps(client)

    with FakeServer() as server:
        _, version = store.assignment()
        store.set_assignment(Assignment({0: Owner(1, 1)}), version)
        store.register_server(1, server.endpoint)
        with connect("demo", zookeeper="in memory") as client:
            arrived = pickle.loads(pickle.dumps(client))
        failures.append(MemoryError())
        with pytest.raises(MemoryError):
            arrived.append(0, b"x")
        with arrived:
            assert arrived.append(0, b"x").result(20) == 0
        assert asyncio.run(use(asyncio.run(pickled_async()))) == [1]


def test_the_cluster_that_is_found_must_have_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zookeeper = MemoryZooKeeperServer()
    monkeypatch.setattr("waltz_ray.coordination.zookeeper.KazooZooKeeper", lambda hosts: MemoryZooKeeper(zookeeper))
    key = ClusterStore(MemoryZooKeeper(zookeeper), "demo").initialize(1, [0]).cluster_key
    mine = ClusterFile("demo", str(tmp_path), 1, 1, 1, address="h:1", zookeeper="in memory", key=str(key))
    cluster_file.write(mine)
    with connect(directory=str(tmp_path)) as client:
        pickled = pickle.dumps(client)
    cluster_file.write(replace(mine, key=str(uuid.UUID(int=7))))
    with pytest.raises(ClusterMismatch, match=r"has another cluster 'demo' than the one that .* holds .their"):
        connect(directory=str(tmp_path))
    with pickle.loads(pickled) as client:  # it knows which cluster it was of
        assert client.partitions == 1
