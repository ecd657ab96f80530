"""A port of topics and what its clients may do to it; behind it is something that answers when it is told to."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.net.test_tls import made
from tests.topics.foreign_client import TOKEN, ForeignClient, ForeignFault, ForeignReply, message
from waltz_ray import compat
from waltz_ray.net.tls import client_context, server_context
from waltz_ray.topics.messages_producer import CloseRequestP2M, CloseResponseM2P
from waltz_ray.topics.rpc import FaultName, RpcCall, RpcFault
from waltz_ray.topics.serving.gateway import MASTER_METHODS, TopicGateway
from waltz_ray.topics.serving.port import TopicPortLimits
from waltz_ray.topics.wire import TopicRequest, TopicResponse

CLOSE = 3
OK = CloseResponseM2P(True, 200, "")


@dataclass
class HeldPort:
    """Answers at once, unless it is held."""

    held: bool = False
    asked: list[TopicRequest] = field(default_factory=list)
    waiting: list[Callable[[TopicResponse | RpcFault], None]] = field(default_factory=list)

    def submit(
        self,
        request: TopicRequest,
        call: RpcCall,
        connection: int,
        answer: Callable[[TopicResponse | RpcFault], None],
    ) -> None:
        self.asked.append(request)
        if self.held:
            self.waiting.append(answer)
        elif isinstance(request, CloseRequestP2M) and request.client_id == "standby":
            answer(FaultName.STANDBY.fault("ask another one", call))
        else:
            answer(OK)


@asynccontextmanager
async def a_port(
    limits: TopicPortLimits | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[TopicGateway, HeldPort, int]]:
    behind = HeldPort()
    gateway = TopicGateway("test", behind, MASTER_METHODS, limits, tls=tls)
    number = await gateway.listen("127.0.0.1", 0)
    try:
        yield gateway, behind, number
    finally:
        await gateway.close()
        assert gateway.connections == 0
        assert gateway.outstanding_bytes == 0


async def until(what: Callable[[], bool]) -> None:
    async with compat.timeout(20):
        while not what():
            await asyncio.sleep(0.002)  # polling interval, not synchronisation


async def close(client: ForeignClient, name: str = "a", **options: int) -> ForeignReply:
    return await client.ask(CLOSE, {1: name.encode()}, **options)


def test_t03_requests_are_answered_in_any_order() -> None:
    async def run() -> None:
        async with a_port() as (_, behind, port):
            client = await ForeignClient.open(port)
            behind.held = True
            first, second = [asyncio.ensure_future(close(client, name)) for name in ("a", "b")]
            await until(lambda: len(behind.waiting) == 2)
            behind.waiting[1](OK)
            assert (await second).code == 200
            assert not first.done()
            behind.waiting[0](OK)
            assert (await first).code == 200
            await client.close()

    asyncio.run(run())


def test_t10_t38_an_exception_is_named_as_clients_of_the_version_have_it() -> None:
    async def run() -> None:
        async with a_port() as (_, _behind, port):
            for version, package in ((2, "com.tencent.tubemq"), (3, "org.apache.tubemq")):
                client = await ForeignClient.open(port, version=version)
                with pytest.raises(ForeignFault) as caught:
                    await close(client, "standby")
                assert (caught.value.status, caught.value.why) == (1, "ask another one")
                assert caught.value.name == f"{package}.corerpc.exception.StandbyException"
                await client.close()

    asyncio.run(run())


def test_t09_what_nobody_waits_for_any_more_is_not_done() -> None:
    """Two requests are let in at a time; the third waits for longer than its client does."""

    async def run() -> None:
        async with a_port(TopicPortLimits(outstanding=2)) as (gateway, behind, port):
            client = await ForeignClient.open(port)
            behind.held = True
            for name in (b"a", b"b"):
                client.send(CLOSE, {1: name})
            client.send(CLOSE, {1: b"late"}, timeout_ms=1)
            client.send(CLOSE, {1: b"in time"})
            await until(lambda: len(behind.waiting) == 2)
            await asyncio.sleep(0.02)  # the time that the third one has, and more
            behind.held = False
            for answer in behind.waiting:
                answer(OK)
            await until(lambda: len(behind.asked) == 3)
            assert behind.asked[-1] == CloseRequestP2M("in time")
            assert gateway.counts.late == 1
            await client.close()

    asyncio.run(run())


def test_t02_what_is_no_frame_ends_a_ports_connection() -> None:
    async def run() -> None:
        async with a_port() as (_, behind, port):
            for wrong in (b"GET / HTTP/1.1\r\n", struct.pack(">III", TOKEN, 1, 0), struct.pack(">III", TOKEN, 1, 3585)):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(wrong)
                assert await reader.read() == b""
                writer.close()
            assert behind.asked == []

    asyncio.run(run())


def test_a_message_that_is_none_is_answered_and_the_connection_goes_on() -> None:
    async def run() -> None:
        async with a_port() as (gateway, _behind, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(struct.pack(">IIII", TOKEN, 7, 1, 3) + b"\xff\xff\xff")
            token, serial = struct.unpack(">II", await reader.readexactly(8))
            assert (token, serial) == (TOKEN, 7)
            assert gateway.counts.nonsense == 1
            writer.close()

    asyncio.run(run())


def test_long_messages_that_do_not_end_take_no_more_room_than_there_is() -> None:
    async def run() -> None:
        async with a_port(TopicPortLimits(incoming_bytes=300_000)) as (gateway, behind, port):
            block = struct.pack(">I", 8192) + bytes(8192)
            slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
            for _, writer in slow:
                writer.write(struct.pack(">III", TOKEN, 1, 100) + 20 * block)
                await writer.drain()
            await until(lambda: gateway.connections == 8 and gateway.outstanding_bytes > 100_000)
            assert gateway.outstanding_bytes <= 300_000
            for _, writer in slow:
                writer.write(80 * block)
            for reader, writer in slow:
                assert len(await reader.readexactly(12)) == 12, "each is answered: as nonsense, or that it had no room"
                writer.close()
            assert gateway.counts.no_room + gateway.counts.nonsense == 8
            assert gateway.counts.no_room > 0
            assert behind.asked == []

    asyncio.run(run())


def test_t52_who_is_quiet_is_closed_and_who_waits_is_not() -> None:
    async def run() -> None:
        async with a_port(TopicPortLimits(idle_ms=50)) as (gateway, behind, port):
            quiet = await ForeignClient.open(port)
            assert (await close(quiet)).code == 200
            behind.held = True
            waits = await ForeignClient.open(port)
            answer = asyncio.ensure_future(close(waits))
            await until(lambda: gateway.connections == 2)
            await until(lambda: gateway.connections == 1)
            behind.waiting[0](OK)
            assert (await answer).code == 200
            await waits.close()
            await quiet.close()

    asyncio.run(run())


def test_t47_the_port_speaks_tls(tmp_path: Path) -> None:
    own = made(tmp_path)

    async def run() -> None:
        async with a_port(tls=server_context(own.path, own.key)) as (_, behind, port):
            client = await ForeignClient.open(port, ssl=client_context(own.path))
            assert (await close(client)).code == 200
            await client.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(struct.pack(">IIII", TOKEN, 7, 1, 3) + bytes(3))
            assert not (await reader.read()).startswith(struct.pack(">I", TOKEN)), "who speaks plainly is not heard"
            writer.close()
            assert len(behind.asked) == 1

    asyncio.run(run())


def test_fields_by_hand_are_the_bytes_of_the_protocol() -> None:
    assert message({1: b"a", 2: -1, 3: [1, 300]}).hex() == "0a0161" + "10" + "ff" * 9 + "01" + "1801" + "18ac02"
