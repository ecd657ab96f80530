"""A listener without handles refuses, and goes on when there are some again."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import subprocess
import sys
from typing import Any, cast

import pytest
import uvloop

from waltz_ray.net import listener

_SERVER = """
import asyncio, resource, sys
import uvloop
from waltz_ray.net.listener import listen

class Greets(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"x")

async def main():
    server = await listen("test", Greets, "127.0.0.1", 0)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    print(server.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()

asyncio.run(main()) if sys.argv[1] == "asyncio" else uvloop.run(main())
"""


class Greets(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(b"x")


def _served(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, 20) as peer:
            return peer.recv(1) == b"x"
    except ConnectionError:
        return False


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_loop_that_lacks_handles_accepts_again_afterwards(loop: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _SERVER, loop], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        address = "127.0.0.1", int(server.stdout.readline())
        peers = [socket.create_connection(address, 20) for _ in range(60)]
        assert peers[0].recv(1) == b"x"
        peers[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            peers[-1].recv(1)  # it waits: there is no handle for it
        for peer in peers:
            peer.close()
        assert any(_served(address) for _ in range(1000)), "as soon as it has seen that they are gone"
        server.stdin.close()
        assert server.wait(20) == 0


class Lacking(socket.socket):
    """Has no resources for the first ``fails`` connections that it is asked for."""

    fails = 3
    error = errno.ENOMEM

    def accept(self) -> tuple[socket.socket, Any]:
        if self.fails:
            self.fails -= 1
            raise OSError(self.error, os.strerror(self.error))
        return super().accept()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS], ids=errno.errorcode.get)
def test_what_cannot_be_accepted_waits_until_there_is_room(
    run: Any, error: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "_PAUSE_S", 0.001)
    monkeypatch.setattr(Lacking, "error", error)
    handled: list[Any] = []

    async def test() -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: handled.append(context))
        lacking = Lacking()
        lacking.bind(("127.0.0.1", 0))
        lacking.listen()
        lacking.setblocking(False)
        accepting = listener.LoopListener("server 3", Greets, lacking, None)
        reader, writer = await asyncio.open_connection("127.0.0.1", accepting.port)
        greeting = await asyncio.wait_for(reader.read(1), 20)
        writer.close()
        accepting.close()
        accepting.close()
        return greeting

    with caplog.at_level(logging.WARNING):
        assert run(test()) == b"x"
    assert handled == []
    assert [record.getMessage() for record in caplog.records] == [
        f"server 3: cannot accept connections until there is room again: [Errno {error}] {os.strerror(error)}",
        "server 3: accepts connections again",
    ]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_nothing_is_accepted_after_the_close(run: Any) -> None:
    async def test() -> None:
        accepting = await listener.listen("server 3", Greets, "127.0.0.1", 0)
        accepting.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", accepting.port)

    run(test())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_what_has_been_accepted_and_not_begun_is_closed_with_the_listener(run: Any) -> None:
    """It was accepted in this very turn of the loop: nothing of the task that begins it has run."""

    async def test() -> bytes:
        accepting = await listener.listen("server 3", Greets, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", accepting.port)
        await asyncio.wait_for(reader.read(1), 20)
        peer = socket.create_connection(("127.0.0.1", accepting.port))
        accepting._accept()
        (connection,) = accepting._beginning.values()
        accepting.close()
        await asyncio.gather(*accepting._beginning, return_exceptions=True)
        await asyncio.sleep(0)
        assert connection.fileno() < 0
        peer.settimeout(5)
        with peer:
            answer = peer.recv(1)
        writer.close()
        return answer

    assert run(test()) == b""
