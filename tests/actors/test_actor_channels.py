"""The server's side of a connection by calls of its actor: who vanishes leaves nothing behind."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.actors.bench_server import bench_server, open_with
from tests.actors.test_feed_pace import in_loop, mount_5, until
from waltz_ray import compat
from waltz_ray.actors import partition_server
from waltz_ray.actors.client_connection import ClientConnection
from waltz_ray.actors.partition_server import PartitionServer
from waltz_ray.actors.server import Server
from waltz_ray.config import ServerConfig
from waltz_ray.wire.codec import encode_client
from waltz_ray.wire.framing import MAGIC_CLIENT, Hello, encode_frame, encode_hello

PLACES = 4
MOUNT = encode_frame(MAGIC_CLIENT, 5, *encode_client(5, mount_5()))


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> PartitionServer:
    monkeypatch.setattr(partition_server, "begin_log", lambda cluster, actor: None)
    monkeypatch.setattr(partition_server, "_LONG_POLL_S", 0.01)
    return PartitionServer("c", "nowhere", 1)


def serve(actor: PartitionServer, stall_ms: int) -> Server:
    config = ServerConfig(join_grace_ms=0, client_stall_ms=stall_ms, connections_per_peer=PLACES)
    server = bench_server(config, open_with(3, config=config))

    async def started() -> Server:
        return server

    actor._starting = asyncio.ensure_future(started())
    return server


async def mounted(actor: PartitionServer) -> str:
    name = await actor.channel_open()
    await actor.channel_send(name, 0, encode_hello(Hello((5,), "test")))
    await actor.channel_send(name, 1, MOUNT)
    return name


@in_loop
async def test_clients_that_vanish_give_their_places_back(
    actor: PartitionServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(actor, stall_ms=50)
    for _ in range(PLACES):
        await mounted(actor)
    assert await actor.channel_receive(await mounted(actor), 0) is None, "one too many"
    async with compat.timeout(20):
        while server.limit.open:
            await asyncio.sleep(0.001)
    assert "the client has not called for 50 ms" in caplog.text
    assert (server.connections, server.drivers[0].machine.subscribers, actor._channels) == ({}, 0, {})
    assert await actor.channel_receive(await mounted(actor), 0), "there is room again"


@in_loop
async def test_what_waits_for_a_client_that_does_not_call_costs_no_more_the_more_it_is(actor: PartitionServer) -> None:
    """A small frame with each commit: how much waits is looked at with each of them."""
    server = serve(actor, stall_ms=60_000)
    await mounted(actor)
    (connection,) = server.connections.values()
    assert isinstance(connection, ClientConnection)
    begun_s = time.process_time()
    for _ in range(10_000):
        connection.send_frame(bytes(40))
    assert time.process_time() - begun_s < 0.5
    assert connection.unsent_bytes > 400_000
    connection.abort("the test is over")
    assert connection.unsent_bytes == 0


@in_loop
async def test_a_client_that_asks_stays_though_nothing_is_said(actor: PartitionServer) -> None:
    server = serve(actor, stall_ms=50)
    name, number = await mounted(actor), 0
    for _ in range(20):  # of 10 ms each
        number += bool(await actor.channel_receive(name, number))
    assert len(server.connections) == 1


@in_loop
async def test_what_the_server_ended_is_forgotten_when_its_last_words_are_read(actor: PartitionServer) -> None:
    serve(actor, stall_ms=60_000)
    name = await mounted(actor)
    await actor.channel_send(name, 2, b"nonsense")
    chunk = await actor.channel_receive(name, 0)
    assert chunk is not None
    assert b"is not one of ours" in chunk
    assert await actor.channel_receive(name, 0) == chunk, "its answer may have been lost"
    assert await actor.channel_receive(name, 1) is None
    assert actor._channels == {}


@in_loop
async def test_last_words_that_nobody_reads_are_forgotten(actor: PartitionServer) -> None:
    serve(actor, stall_ms=50)
    name = await mounted(actor)
    await actor.channel_send(name, 2, b"nonsense")
    assert list(actor._channels) == [name]
    async with compat.timeout(20):
        while actor._channels:
            await asyncio.sleep(0.001)


@in_loop
async def test_a_client_that_closes_its_channel_is_gone_at_once(actor: PartitionServer) -> None:
    server = serve(actor, stall_ms=60_000)
    name = await mounted(actor)
    await actor.channel_close(name)
    await actor.channel_close(name)
    await until(lambda: not server.limit.open)
    assert (server.connections, actor._channels) == ({}, {})
