"""Clients that only append share their connections, and know nothing of each other."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack

import pytest

from tests.client.conftest import Recorder
from tests.client.fake_server import Connection, FakeDirectory, FakeServer
from tests.client.test_aio import run, until
from waltz_ray.client import AsyncWaltzClient, WaltzClient, mount_stream
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.config import ClientConfig
from waltz_ray.net.outgoing import Outlet

_ids = itertools.count(1)


def directory(server: FakeServer) -> FakeDirectory:
    """Of one client: no other one gets its ID."""
    return FakeDirectory({0: server}, next(_ids))


async def started(stack: AsyncExitStack, server: FakeServer, count: int) -> list[AsyncWaltzClient]:
    """So many, mounted one after the other."""
    clients = []
    for _ in range(count):
        client = await stack.enter_async_context(AsyncWaltzClient(directory(server), TcpTransport()))
        await client.append(0, b"first")
        clients.append(client)
    return clients


def the_connection(server: FakeServer) -> Connection:
    [connection] = server.connections
    return connection


def test_they_share_one_connection(server: FakeServer) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            clients = await started(stack, server, 5)
            ids = await asyncio.gather(*[client.append(0, b"%d" % n) for n, client in enumerate(clients)])
            assert [server.logs[0].data()[i] for i in ids] == [b"%d" % n for n in range(5)]
            assert sorted(the_connection(server).channels) == [1, 2, 3, 4]
            assert len({client_id for _, client_id in server.mounts}) == 5
        await until(lambda: not server.connections)
        assert not mount_stream._shared

    run(test)


def test_what_they_send_in_one_turn_leaves_together(server: FakeServer) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            clients = await started(stack, server, 20)
            before = the_connection(server).pieces
            await asyncio.gather(*[client.append(0, b"x") for client in clients])
            assert the_connection(server).pieces - before <= 3  # twenty, if each were sent by itself

    run(test)


def test_many_for_one_partition_leave_in_groups(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that server and replicas have something to do while the rest is made (docs/performance.md)."""
    monkeypatch.setattr(mount_stream, "_APPENDS_AT_ONCE", 5)
    written: list[int] = []
    flush = Outlet.flush

    def counted(outlet: Outlet) -> None:
        if outlet.held:
            written.append(len(outlet.held))
        flush(outlet)

    async def test() -> None:
        async with AsyncExitStack() as stack:
            clients = await started(stack, server, 12)
            monkeypatch.setattr(Outlet, "flush", counted)
            ids = await asyncio.gather(*[client.append(0, b"%d" % n) for n, client in enumerate(clients)])
            monkeypatch.undo()
            assert [server.logs[0].data()[i] for i in ids] == [b"%d" % n for n in range(12)]

    run(test)
    assert written == [5, 5, 2]


def test_frames_of_every_size_keep_their_order(server: FakeServer) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            _, client = await started(stack, server, 2)
            datas = [bytes([n]) * (100_000 if n % 3 == 0 else 10) for n in range(30)]
            ids = await asyncio.gather(*[client.append(0, data) for data in datas])
            assert ids == sorted(ids)
            assert [server.logs[0].data()[i] for i in ids] == datas

    run(test)


@pytest.mark.parametrize("leaver", [0, 1])
def test_one_goes_and_the_other_notices_nothing(server: FakeServer, leaver: int) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            clients = await started(stack, server, 2)
            await clients[leaver].close()
            await clients[1 - leaver].append(0, b"on")
            assert clients[1 - leaver].statistics()["reconnects"] == 0
            await until(lambda: len(server.mounts) == 1)
            await until(lambda: len(the_connection(server).channels) == 1 - leaver)
            [third] = await started(stack, server, 1)
            await third.append(0, b"and another one")
            assert server.mounts.keys() == {(0, c.client_id) for c in (clients[1 - leaver], third)}

    run(test)


def test_the_connection_breaks_and_all_mount_again(server: FakeServer) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            clients = await started(stack, server, 3)
            connection = the_connection(server)
            await asyncio.to_thread(server.drop_connections)
            await asyncio.gather(*[client.append(0, b"again") for client in clients])
            assert [client.statistics()["reconnects"] for client in clients] == [1, 1, 1]
            assert the_connection(server) is not connection

    run(test)


def test_who_is_fed_has_a_connection_of_its_own(server: FakeServer) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            [client] = await started(stack, server, 1)
            fed = AsyncWaltzClient(directory(server), TcpTransport(), Recorder())
            await stack.enter_async_context(fed)
            await fed.wait_ready()
            await client.append(0, b"x")
            assert len(server.connections) == 2
            assert not any(connection.channels for connection in server.connections)

    run(test)


def test_other_limits_are_another_connection(server: FakeServer) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            await started(stack, server, 1)
            config = ClientConfig(max_frame_bytes=1 << 20)
            other = AsyncWaltzClient(directory(server), TcpTransport(), config=config)
            await stack.enter_async_context(other)
            await other.append(0, b"x")
            assert len(server.connections) == 2

    run(test)


def test_who_does_not_want_to_share_does_not(server: FakeServer) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            await started(stack, server, 1)
            alone = AsyncWaltzClient(directory(server), TcpTransport(), config=ClientConfig(share_connections=False))
            await stack.enter_async_context(alone)
            await alone.append(0, b"x")
            assert len(server.connections) == 2

    run(test)


def test_a_connection_has_only_so_many(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_stream, "_MOST_SHARE", 3)

    async def test() -> None:
        async with AsyncExitStack() as stack:
            await started(stack, server, 7)
            assert sorted(len(connection.channels) for connection in server.connections) == [0, 2, 2]

    run(test)


def test_clients_that_were_never_closed_are_forgotten_with_their_loop(server: FakeServer) -> None:
    loop = asyncio.new_event_loop()
    key = loop, "a kind of transport"
    mount_stream._shared[key] = []
    loop.close()

    async def test() -> None:
        async with AsyncExitStack() as stack:
            await started(stack, server, 1)
            assert key not in mount_stream._shared

    run(test)


def test_blocking_clients_share_the_connections_of_their_thread(server: FakeServer) -> None:
    with (
        WaltzClient(directory(server), TcpTransport()) as first,
        WaltzClient(directory(server), TcpTransport()) as second,
    ):
        futures = [client.append(0, b"x") for _ in range(50) for client in (first, second)]
        assert sorted(future.result(20) for future in futures) == list(range(100))
        assert server.do(lambda: len(the_connection(server).channels)) == 1
