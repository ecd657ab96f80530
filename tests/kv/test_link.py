"""One connection of a client to an actor: when it is given up, and when it only takes its time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from tests.net.late_timeout import cancelled_as_time_is_over
from waltz_ray import compat
from waltz_ray.kv.client import link as module
from waltz_ray.kv.client.link import KvLink, KvPeer, Missed
from waltz_ray.kv.messages import Ack, Hashmask, Hashmasks, Opcode, Ping
from waltz_ray.kv.wire import MAX_FRAME_BYTES, encode_reply
from waltz_ray.net.carried import Carried
from waltz_ray.net.connector import connect

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SILENCE_S = 0.1


class _Home:
    def announced(self, server: str, message: Hashmasks | Hashmask) -> None: ...

    def listed(self, servers: tuple[str, ...]) -> None: ...

    def changed(self) -> None: ...


def linked(talk: Talk, body: Callable[[KvLink], Awaitable[None]]) -> None:
    """``body`` with a link to somebody who talks so."""

    async def run() -> None:
        talks: list[asyncio.Task[None]] = []

        async def talking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await talk(reader, writer)
            finally:
                writer.transport.abort()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            talks.append(asyncio.create_task(talking(reader, writer)))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        link = await connect(lambda: KvLink(_Home(), "an actor", MAX_FRAME_BYTES), "127.0.0.1", port, 5.0)
        try:
            async with compat.timeout(20):
                await body(link)
        finally:
            link.abort("the test is over")
            await link.closed
            server.close()
            for each in talks:
                each.cancel()
            await asyncio.gather(*talks, return_exceptions=True)
            await server.wait_closed()

    asyncio.run(run())


def test_an_actor_whose_answer_comes_slowly_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a long value over a slow line: the answer to a ping would come behind it."""
    monkeypatch.setattr(module, "_SILENCE_S", SILENCE_S)

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(12)
        for byte in encode_reply(Opcode.PING, 1, Ack()):
            writer.write(bytes([byte]))
            await asyncio.sleep(SILENCE_S / 2)  # how slow the line is

    async def body(link: KvLink) -> None:
        assert await link.ask(Ping()) == Ack()

    linked(slowly, body)


@pytest.mark.parametrize("doubted", [False, True])
def test_an_actor_that_takes_a_long_command_by_and_by_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch, doubted: bool
) -> None:
    """Nor where somebody else has what it had: the answer to a ping comes behind the command."""
    monkeypatch.setattr(module, "_DOUBTED_S" if doubted else "_SILENCE_S", SILENCE_S)
    looks = 0

    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def body(link: KvLink) -> None:
        def carried() -> Carried:
            nonlocal looks
            looks += 1
            return Carried(1, min(looks, 8), 0)

        monkeypatch.setattr(link, "carried", carried)
        answer = link.ask(Ping())
        if doubted:
            link.doubt()
        assert await answer is Missed.LOST
        assert looks >= 8, "as long as it took something"

    linked(nothing, body)


def test_a_peer_ends_that_is_stopped_in_the_turn_in_which_a_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10 then tells it of the time only (``compat.timeout``): whoever closed the client waited for ever."""

    async def run() -> None:
        listening = socket.create_server(("127.0.0.1", 0))  # who accepts, and never answers
        peer = KvPeer(_Home(), f"127.0.0.1:{listening.getsockname()[1]}", MAX_FRAME_BYTES)
        await asyncio.sleep(0)  # it waits
        await peer.stop()
        listening.close()

    told = cancelled_as_time_is_over(monkeypatch)
    asyncio.run(asyncio.wait_for(run(), 5))
    assert len(told) == 1
