"""What strangers can cost a port of topics: floods, half-open connections, slow ones, impossible lengths."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import ExitStack, suppress

import pytest

from tests.kv.running_gateway import open_files
from tests.topics.foreign_client import TOKEN, ForeignClient
from tests.topics.test_gateway import a_port, close, until
from waltz_ray.topics.messages_producer import CloseResponseM2P
from waltz_ray.topics.serving.port import TopicPortLimits

HALF_A_HEAD = struct.pack(">III", TOKEN, 7, 1)[:7]


async def connected(port: int) -> socket.socket:
    """Without anything said; the loop goes on meanwhile, for the port is in it."""
    found = socket.socket()
    found.setblocking(False)
    await asyncio.get_running_loop().sock_connect(found, ("127.0.0.1", port))
    return found


async def ended(connection: socket.socket) -> bool:
    """Whether the port has closed it, within 20 s."""
    with suppress(ConnectionError):
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connection, 1), 20) == b""
    return True


def test_a_flood_of_half_open_connections_is_bounded_and_over_when_it_ends() -> None:
    """More than there may be, a third of them gone at once: who was there is served, and no handle is left."""

    async def run() -> None:
        limits = TopicPortLimits(connections=200, connections_per_peer=100)
        async with a_port(limits) as (gateway, _, port):
            other = await ForeignClient.open(port)
            assert (await close(other)).code == 200
            with ExitStack() as flood:
                for number in range(1000):
                    each = flood.enter_context(await connected(port))
                    if number % 3 == 0:
                        each.close()
                    else:
                        with suppress(ConnectionError):  # it was refused
                            await asyncio.get_running_loop().sock_sendall(each, HALF_A_HEAD[: number % 8])
                    if number % 100 == 0:
                        assert (await close(other)).code == 200
                    assert gateway.connections <= 100
                await until(lambda: gateway.connections > 1)
                assert (await close(other)).code == 200
            await until(lambda: gateway.connections == 1)
            await other.close()

    before = open_files()
    asyncio.run(run())
    assert open_files() <= before


@pytest.mark.parametrize("said", [b"", HALF_A_HEAD], ids=["nothing", "half a head"])
def test_who_does_not_begin_in_time_is_closed_and_others_are_not(said: bytes) -> None:
    async def run() -> None:
        async with a_port(TopicPortLimits(first_ms=100)) as (gateway, _, port):
            other = await ForeignClient.open(port)
            assert (await close(other)).code == 200
            with await connected(port) as slow:
                await asyncio.get_running_loop().sock_sendall(slow, said)
                assert await ended(slow)
            assert (await close(other)).code == 200
            assert gateway.connections == 1
            await other.close()

    asyncio.run(run())


def test_who_takes_none_of_his_long_replies_is_closed_and_others_are_not() -> None:
    """What he asks for at once is many times what is kept for him: a gigabyte, with the limits that there are."""

    async def run() -> None:
        async with a_port(TopicPortLimits(unsent_bytes=8 << 20)) as (gateway, behind, port):
            other = await ForeignClient.open(port)
            behind.held = True
            slow = await ForeignClient.open(port)
            assert isinstance(slow.writer.transport, asyncio.Transport)
            slow.writer.transport.pause_reading()
            for _ in range(64):
                slow.send(3, {1: b"a"})
            await until(lambda: len(behind.waiting) == 64)
            most = 0
            for answer in behind.waiting:
                answer(CloseResponseM2P(True, 200, "x" * (1 << 20)))
                most = max(most, *(each.unsent_bytes for each in gateway._shared.connections))
            assert most < 10 << 20
            await until(lambda: gateway.connections == 1)
            behind.held = False
            assert (await close(other)).code == 200
            await slow.close()
            await other.close()

    asyncio.run(run())


def test_what_all_who_take_nothing_have_together_is_bounded_and_who_reads_goes_on() -> None:
    """Each alone may have 128 MiB; of one address there may be 2,048."""

    async def run() -> None:
        async with a_port(TopicPortLimits(untaken_bytes=8 << 20)) as (gateway, behind, port):
            other = await ForeignClient.open(port)
            behind.held = True
            slow = [await ForeignClient.open(port) for _ in range(8)]
            for each in slow:
                assert isinstance(each.writer.transport, asyncio.Transport)
                each.writer.transport.pause_reading()
                for _ in range(32):
                    each.send(3, {1: b"a"})
            await until(lambda: len(behind.waiting) == 8 * 32)
            most = 0
            for answer in behind.waiting:
                answer(CloseResponseM2P(True, 200, "x" * (1 << 20)))
                most = max(most, sum(each.unsent_bytes for each in gateway._shared.connections))
            assert 4 << 20 < most < 18 << 20
            behind.held = False
            assert (await close(other)).code == 200
            for each in (*slow, other):
                await each.close()

    asyncio.run(run())


def test_one_byte_at_a_time_is_a_frame_like_another() -> None:
    async def run() -> None:
        async with a_port() as (_, behind, port):
            frame = struct.pack(">IIII", TOKEN, 7, 1, 3) + b"abc"  # no request: it is answered as what cannot be read
            with await connected(port) as slow:
                for byte in frame:
                    await asyncio.get_running_loop().sock_sendall(slow, bytes([byte]))
                    await asyncio.sleep(0)
                answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(slow, 1 << 16), 20)
                assert struct.unpack_from(">II", answer) == (TOKEN, 7)
            assert behind.asked == []

    asyncio.run(run())


@pytest.mark.parametrize(
    "head",
    [
        struct.pack(">III", TOKEN, 7, 0),
        struct.pack(">III", TOKEN, 7, 0xFFFF_FFFF),
        struct.pack(">IIII", TOKEN, 7, 1, 0xFFFF_FFFF),
        struct.pack(">IIII", TOKEN, 7, 1, 0x8000_0000),
    ],
    ids=["no blocks", "4 billion blocks", "a block of 4 GiB", "a block of 2 GiB"],
)
def test_an_impossible_length_ends_the_connection_at_its_head(head: bytes) -> None:
    async def run() -> None:
        async with a_port() as (gateway, behind, port):
            other = await ForeignClient.open(port)
            with await connected(port) as stranger:
                await asyncio.get_running_loop().sock_sendall(stranger, head)
                assert await ended(stranger)
            assert (await close(other)).code == 200
            assert gateway.outstanding_bytes == 0
            assert len(behind.asked) == 1
            await other.close()

    asyncio.run(run())
