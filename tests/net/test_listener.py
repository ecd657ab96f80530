"""A listener without handles refuses, and goes on when there are some again."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

_SERVER = """
import asyncio, resource, sys
import uvloop
from waltz_ray.net.listener import listen

class Greets(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"x")

async def main():
    server = await listen(Greets, "127.0.0.1", 0)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()

asyncio.run(main()) if sys.argv[1] == "asyncio" else uvloop.run(main())
"""


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
        peers[-1].settimeout(0.2)  # asyncio leaves it waiting, uvloop closes it
        with pytest.raises((TimeoutError, ConnectionError, AssertionError)):
            assert peers[-1].recv(1) == b"x", "there is no handle for it"
        for peer in peers:
            peer.close()
        assert any(_served(address) for _ in range(1000)), "as soon as it has seen that they are gone"
        server.stdin.close()
        assert server.wait(20) == 0
