"""One actor's space from its files on: a log in memory, ZooKeeper's twin, projections on the disk."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from waltz_ray import compat
from waltz_ray.config import KvConfig
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.unit_store import UnitRegistration
from waltz_ray.errors import ProjectionFailed
from waltz_ray.kv.messages import SpaceMeant
from waltz_ray.kv.model import BARRIER, ItemKey, Record, Set, ValueType
from waltz_ray.kv.records import encode_record, header_of
from waltz_ray.kv.routing import fnv1a_32, space_identity
from waltz_ray.kv.serving.space_server import SpaceServer
from waltz_ray.kv.wire import encode_command
from waltz_ray.projections.kv_state import LmdbState
from waltz_ray.protocol.spaces import Space, SpaceState
from waltz_ray.testing import InMemoryCluster

A_SPACE = Space("kv", "kv", 0, 4, SpaceState.READY)


def test_a_projection_that_has_more_than_the_log_is_begun_anew(tmp_path: Path) -> None:
    """Records of the log were lost with disks: the actor would be refused by it again and again."""

    async def run() -> None:
        async with InMemoryCluster(partitions=4) as cluster:
            client = await cluster.connect_async()
            left = LmdbState(tmp_path, client.cluster_key, "kv", 1, 1)
            left.apply((number, encode_record(BARRIER)) for number in range(3))
            left.close()
            failures: list[ProjectionFailed] = []
            zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
            server = SpaceServer(0, "waltz", A_SPACE, client, zookeeper, KvConfig(), tmp_path, failures.append)
            try:
                await server.start(0)
                assert server.status().marks == dict.fromkeys(range(4), -1)
                assert failures == []
            finally:
                await server.close()
                zookeeper.close()

    asyncio.run(run())


def test_a_projection_of_before_a_recovery_is_begun_anew_also_where_the_log_is_as_long_again(tmp_path: Path) -> None:
    """Its actor was away while records were given up that it has, and others came in their place."""
    key = ItemKey(0, fnv1a_32(b"a"), b"a")
    given_up: list[Record] = [Set(key, ValueType.TEXT, b"given up"), BARRIER]
    there: list[Record] = [BARRIER, Set(key, ValueType.TEXT, b"of now"), BARRIER]
    partition = key.hash & 3

    async def found(recovery: str) -> bytes | None:
        async with InMemoryCluster(partitions=4) as cluster:
            client = await cluster.connect_async()
            left = LmdbState(tmp_path, client.cluster_key, "kv", partition, partition, recovery="the first")
            left.apply(enumerate(map(encode_record, given_up)))
            left.close()
            for record in there:
                await client.append(partition, encode_record(record), header_of(record))
            zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
            server = SpaceServer(
                0, "waltz", A_SPACE, client, zookeeper, KvConfig(), tmp_path, lambda error: None, recovery=recovery
            )
            try:
                await server.start(0)
                assert server.node is not None
                item = server.node.states[partition].item(key)
                return None if item is None else item.data
            finally:
                await server.close()
                zookeeper.close()

    assert asyncio.run(found("the second")) == b"of now"
    assert asyncio.run(found("the first")) == b"given up", "it is gone on with, as long as it may be"


def test_a_space_one_of_whose_tasks_has_ended_is_left_and_not_said_to_be_served(tmp_path: Path) -> None:
    """Without what renews its lease it would serve nothing, and nobody else would."""

    async def run() -> None:
        async with InMemoryCluster(partitions=4) as cluster:
            client = await cluster.connect_async()
            failed: asyncio.Future[ProjectionFailed] = asyncio.get_running_loop().create_future()
            zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
            server = SpaceServer(0, "waltz", A_SPACE, client, zookeeper, KvConfig(), tmp_path, failed.set_result)
            try:
                await server.start(0)
                server._registration = cast(UnitRegistration, object())  # the lease cannot be renewed with it
                assert "has no attribute 'contact'" in str(await asyncio.wait_for(failed, 20))
                assert server.failure
            finally:
                server._registration = None
                await server.close()
                zookeeper.close()

    asyncio.run(run())


def test_a_start_that_is_cancelled_while_it_registers_leaves_no_member_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread went on, and who was registered served nothing: the space's units were given to nobody."""

    async def run() -> None:
        async with InMemoryCluster(partitions=4) as cluster:
            client = await cluster.connect_async()
            zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
            server = SpaceServer(0, "waltz", A_SPACE, client, zookeeper, KvConfig(), tmp_path, lambda error: None)
            watch, registers, goes_on = server._store.watch_table, threading.Event(), threading.Event()

            def slow(*arguments: Any) -> Any:
                registers.set()
                assert goes_on.wait(20)
                return watch(*arguments)

            monkeypatch.setattr(server._store, "watch_table", slow)
            starting = asyncio.create_task(server.start(0))
            await asyncio.to_thread(registers.wait, 20)
            starting.cancel()
            await asyncio.wait([starting])
            closing = asyncio.create_task(server.close())
            await asyncio.to_thread(lambda: None)  # another thread has had its turn
            goes_on.set()
            await closing
            server._threads.shutdown(wait=True)
            assert server._store.confirmed_members() == {}
            assert (server._registration, server._watches) == (None, [])
            zookeeper.close()

    asyncio.run(run())


def test_whoever_means_another_space_is_told(tmp_path: Path) -> None:
    """By its name and the cluster's key, as a client finds both in ZooKeeper."""

    async def run() -> None:
        async with InMemoryCluster(partitions=4) as cluster:
            client = await cluster.connect_async()
            zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
            server = SpaceServer(0, "waltz", A_SPACE, client, zookeeper, KvConfig(), tmp_path, lambda error: None)
            try:
                await server.start(0)
                assert server.endpoint is not None
                reader, writer = await asyncio.open_connection(*server.endpoint)
                said = []
                for space in ("kv", "carts"):
                    meant = SpaceMeant(space_identity(client.cluster_key, space))
                    writer.write(encode_command(1, meant))
                    said.append((await reader.readexactly(12))[:2])
                assert said == [b"\0\1", b"\0\2"]
                writer.close()
            finally:
                await server.close()
                zookeeper.close()

    asyncio.run(run())


def test_o26_a_member_that_shuts_down_is_not_dialled_for_a_while(tmp_path: Path) -> None:
    """It has said so; ZooKeeper, which may be away, need not have."""

    async def run() -> None:
        async with InMemoryCluster(partitions=4) as cluster, AsyncExitStack() as stack:
            dialled = asyncio.Event()

            def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                dialled.set()
                writer.close()

            other = await asyncio.start_server(hang_up, "127.0.0.1", 0)
            stack.callback(other.close)
            address = f"127.0.0.1:{other.sockets[0].getsockname()[1]}"
            client = await cluster.connect_async()
            zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
            stack.callback(zookeeper.close)
            server = SpaceServer(0, "waltz", A_SPACE, client, zookeeper, KvConfig(), tmp_path, lambda error: None)
            stack.push_async_callback(server.close)
            await server.start(0)
            assert server.node is not None
            assert server._peers is not None
            asking = asyncio.ensure_future(server._peers.has(address, 0, 0))
            async with compat.timeout(10):
                await dialled.wait()
            server.node.peer_shutting_down(address)
            link = server._peers._links[address]
            assert link._not_before > asyncio.get_running_loop().time() + 1
            asking.cancel()
            await asyncio.wait([asking])

    asyncio.run(run())
