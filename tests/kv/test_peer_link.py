"""A member's link to another member's gateway: asked and answered, lost and found again."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.kv.dict_port import DictPort
from tests.net.cutting_proxy import CuttingProxy
from tests.net.test_tls import made
from waltz_ray.client.credentials import NO_CREDENTIALS, Credentials
from waltz_ray.errors import BadPayload
from waltz_ray.kv.messages import Ack, Fail, Get, Opcode, Ping, SecondaryHas, ShuttingDown
from waltz_ray.kv.serving.gateway import Gateway
from waltz_ray.kv.serving.peer_link import PeerLink
from waltz_ray.kv.serving.peers import Peers
from waltz_ray.kv.serving.port import GatewayLimits
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.tls import ServerTls, server_context
from waltz_ray.protocol.ids import Endpoint


def run(work: Coroutine[Any, Any, None]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(work, 20)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(whole())


async def gateway_of(
    port: DictPort, number: int = 0, tls: ssl.SSLContext | None = None, identity: str = ""
) -> tuple[Gateway, str]:
    gateway = Gateway("test", port, limits=GatewayLimits(goodbye_ms=200), tls=tls, identity=identity)
    return gateway, f"127.0.0.1:{await gateway.listen('127.0.0.1', number)}"


async def until_held(port: DictPort) -> None:
    while not port.held:
        await asyncio.sleep(0.001)


def test_asked_and_answered() -> None:
    async def body() -> None:
        port = DictPort()
        gateway, server = await gateway_of(port)
        link = PeerLink(server, "me:1")
        assert await link.ask(Ping(), 5) == Ack()
        assert link.up
        port.holds = True
        asked = [asyncio.create_task(link.ask(SecondaryHas(0, number), 5)) for number in range(3)]
        while len(port.held) < 3:
            await asyncio.sleep(0.001)
        port.let_go(last_first=True)
        assert await asyncio.gather(*asked) == [Ack()] * 3
        await link.close()
        assert gateway.connections == 0, "it has said goodbye"
        with pytest.raises(ConnectionError, match="closed"):
            await link.ask(Ping(), 5)
        await gateway.close()

    run(body())


def test_an_actor_of_another_space_has_no_second_copy() -> None:
    """Its port was that of an actor of ours: a transaction of this ID it may have, in a partition of this number."""

    async def body() -> None:
        port = DictPort()
        gateway, server = await gateway_of(port, identity="key/others")
        peers = Peers("me:1", Outgoing(), 0.5, space="key/ours")
        with contextlib.suppress(ConnectionError):
            assert not await peers.has(server, 0, 1)
        await gateway.close()
        again, _ = await gateway_of(DictPort(), int(server.rpartition(":")[2]), identity="key/ours")
        await until_has(peers, server)
        await peers.close()
        await again.close()

    run(body())


async def until_has(peers: Peers, server: str) -> None:
    has = False
    while not has:
        with contextlib.suppress(ConnectionError):
            has = await peers.has(server, 0, 1)


def test_o26_who_leaves_says_so_to_whom_it_is_connected_with() -> None:
    """And does not wait for those that do not answer."""

    async def body() -> None:
        port = DictPort()
        port.members = ["me:1"]
        gateway, server = await gateway_of(port)
        peers = Peers("me:1", Outgoing(), 0.5)
        await until_has(peers, server)
        assert not await peers.has("127.0.0.1:1", 0, 1)
        await peers.leave()
        assert port.shutting_down == ["me:1"]
        await peers.close()
        await gateway.close()

    run(body())


def test_o26_it_says_who_it_is() -> None:
    """O26, O32: newserver comes first, so shuttingdown is known to be ours."""

    async def body() -> None:
        port = DictPort()
        port.members = ["me:1"]
        gateway, server = await gateway_of(port)
        link = PeerLink(server, "me:1")
        assert await link.ask(ShuttingDown(), 5) == Ack()
        assert port.shutting_down == ["me:1"]
        await link.close()
        await gateway.close()

    run(body())


def test_lost_and_found_again() -> None:
    """What was asked fails, its outcome open; what is asked meanwhile waits for the new connection."""

    async def body() -> None:
        port = DictPort()
        gateway, server = await gateway_of(port)
        link = PeerLink(server, "me:1", longest_pause_ms=50)
        assert await link.ask(Ping(), 5) == Ack()
        port.holds = True
        lost = asyncio.create_task(link.ask(SecondaryHas(0, 1), 5))
        await until_held(port)
        await gateway.close()
        with pytest.raises(ConnectionError, match=server):
            await lost
        port.let_go()
        with pytest.raises(TimeoutError):
            await link.ask(Ping(), 0.05)
        waiting = asyncio.create_task(link.ask(Ping(), 10))
        again, _ = await gateway_of(DictPort(), int(server.rpartition(":")[2]))
        assert await waiting == Ack()
        await link.close()
        await again.close()

    run(body())


def test_nobody_is_there() -> None:
    async def body() -> None:
        link = PeerLink("127.0.0.1:1", "me:1")
        with pytest.raises(TimeoutError):
            await link.ask(Ping(), 0.05)
        assert not link.up
        await link.close()

    run(body())


def test_a_late_reply_is_nothing() -> None:
    async def body() -> None:
        port = DictPort()
        gateway, server = await gateway_of(port)
        link = PeerLink(server, "me:1")
        await link.ask(Ping(), 5)
        port.holds = True
        with pytest.raises(TimeoutError):
            await link.ask(SecondaryHas(0, 1), 0.05)
        port.let_go()
        assert await link.ask(Ping(), 5) == Ack()
        await link.close()
        await gateway.close()

    run(body())


def test_a_connection_that_was_forgotten_in_between_is_made_anew() -> None:
    """As by a proxy, which goes on to take what it is sent: TCP never says so."""

    async def body() -> None:
        gateway, server = await gateway_of(DictPort(), identity="key/ours")
        with CuttingProxy(Endpoint.parse(server)) as between:
            through = str(between.endpoint)
            peers = Peers("me:1", Outgoing(), 0.1, space="key/ours")
            await until_has(peers, through)
            between.forget()
            assert not await peers.has(through, 0, 1)
            await until_has(peers, through)
            assert between.accepted == 2
            await peers.close()
        await gateway.close()

    run(body())


def test_who_only_holds_an_answer_back_keeps_its_connection() -> None:
    async def body() -> None:
        port = DictPort()
        gateway, server = await gateway_of(port)
        with CuttingProxy(Endpoint.parse(server)) as between:
            link = PeerLink(str(between.endpoint), "me:1", timeout_ms=100)
            await link.ask(Ping(), 5)
            port.holds = True
            with pytest.raises(TimeoutError):
                await link.ask(SecondaryHas(0, 1), 0.05)
            with pytest.raises(TimeoutError):
                await link.ask(SecondaryHas(0, 2), 0.3)  # longer than the time for a sign of life
            port.let_go()
            assert await link.ask(Ping(), 5) == Ack()
            assert between.accepted == 1
            await link.close()
        await gateway.close()

    run(body())


def test_a_reply_that_makes_no_sense() -> None:
    async def body() -> None:
        over = asyncio.Event()

        async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while header := await reader.read(12 + 8):  # newserver, or ping
                opcode, message_id = header[:2], header[4:8]
                writer.write(b"\0\x02" + opcode + message_id + b"\0\0\0\1x")  # a fail with a payload
            writer.close()
            over.set()

        server = await asyncio.start_server(odd, "127.0.0.1", 0)
        link = PeerLink(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "me:1")
        with pytest.raises(BadPayload, match="fail"):
            await link.ask(Ping(), 5)
        await link.close()
        server.close()
        await server.wait_closed()
        await over.wait()

    run(body())


def test_rested_it_does_not_dial() -> None:
    """O26: who has said that it is shutting down is not dialled for a while."""

    async def body() -> None:
        port = DictPort()
        gateway, server = await gateway_of(port)
        link = PeerLink(server, "me:1", longest_pause_ms=10)
        await link.ask(Ping(), 5)
        began = asyncio.get_running_loop().time()
        link.rest(0.3)
        number = int(server.rpartition(":")[2])
        await gateway.close()
        gateway, _ = await gateway_of(port, number)
        await link.ask(Ping(), 5)
        assert asyncio.get_running_loop().time() - began > 0.29
        await link.close()
        await gateway.close()

    run(body())


def test_over_tls(tmp_path: Path) -> None:
    """Both sides take a context; who speaks plainly is not heard."""
    own = made(tmp_path)

    async def body() -> None:
        gateway, server = await gateway_of(DictPort(), tls=server_context(own.path, own.key))
        link = PeerLink(server, "me:1", shown=Credentials(own.path))
        plain = PeerLink(server, "me:2", longest_pause_ms=50)
        assert await link.ask(Get(Opcode.GET_INT, 0, 1), 5) == Fail()
        with pytest.raises(TimeoutError):
            await plain.ask(Ping(), 0.1)
        await plain.close()
        await link.close()
        await gateway.close()

    run(body())


def test_tls_and_plain_on_one_port(tmp_path: Path) -> None:
    own = made(tmp_path)

    async def body() -> None:
        gateway = Gateway("test", DictPort(), tls=ServerTls(own.path, own.key), plain=True)
        server = f"127.0.0.1:{await gateway.listen('127.0.0.1', 0)}"
        for shown in (NO_CREDENTIALS, Credentials(own.path)):
            link = PeerLink(server, "me:1", shown=shown)
            assert await link.ask(Get(Opcode.GET_INT, 0, 1), 5) == Fail()
            await link.close()
        await gateway.close()

    run(body())


def test_answers_of_the_node_are_handed_through() -> None:
    async def body() -> None:
        gateway, server = await gateway_of(DictPort())
        link = PeerLink(server, "me:1")
        assert await link.ask(Get(Opcode.GET_INT, 0, 1), 5) == Fail()
        await link.close()
        await gateway.close()

    run(body())
