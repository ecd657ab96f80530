"""Opening connections: what the sockets are told, who is named when it fails, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from waltz_ray.net.connector import Opening, connect, connect_blocking, keep_alive


class Opened(Opening):
    def __init__(self) -> None:
        self.transport: asyncio.BaseTransport | None = None
        self.aborted = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def abort(self, why: str | Exception) -> None:
        self.aborted = str(why)
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()


def told(sock: socket.socket) -> tuple[int, ...]:
    tcp = socket.IPPROTO_TCP
    return (
        sock.getsockopt(tcp, socket.TCP_NODELAY),
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        sock.getsockopt(tcp, socket.TCP_KEEPIDLE),
        sock.getsockopt(tcp, socket.TCP_KEEPINTVL),
        sock.getsockopt(tcp, socket.TCP_KEEPCNT),
        sock.getsockopt(tcp, socket.TCP_USER_TIMEOUT),
    )


def test_both_sides_are_told_the_same_but_for_how_long_nothing_may_be_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        with connect_blocking(host, port, 20) as opened:
            accepted, _ = listener.accept()
            with accepted:
                keep_alive(accepted)
                assert told(opened) == (1, 1, 5, 2, 3, 10_000)
                assert told(accepted) == (1, 1, 5, 2, 3, 0)
                assert opened.gettimeout() == 20

        async def run() -> None:
            made = await connect(Opened, host, port, 20)
            assert made.transport is not None
            assert told(made.transport.get_extra_info("socket")) == (1, 1, 5, 2, 3, 10_000)
            made.abort("")

        asyncio.run(run())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        return int(reserved.getsockname()[1])


def test_a_refused_connection_names_whom() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port}"):
        connect_blocking("127.0.0.1", port, 20)
    with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port}"):
        asyncio.run(connect(Opened, "127.0.0.1", port, 20))


def test_a_name_that_no_thread_can_look_up_is_an_os_error() -> None:
    """Who tries again after one would else end: a server's link to a replica, for good."""

    class Scarce(ThreadPoolExecutor):
        def submit(self, *call: Any, **options: Any) -> Any:
            raise RuntimeError("can't start new thread")

    async def dials() -> None:
        asyncio.get_running_loop().set_default_executor(Scarce(1))
        with pytest.raises(OSError, match="no connection to localhost:1: can't start new thread"):
            await connect(Opened, "localhost", 1, 20)

    asyncio.run(dials())


def test_what_all_addresses_of_a_host_say_is_what_the_host_says(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()

    async def run(second: str) -> None:
        async def two(*arguments: object, **options: object) -> list[object]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.1", second)]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two)
        await connect(Opened, "two.example", port, 20)

    with pytest.raises(ConnectionRefusedError, match=f"two.example:{port}"):
        asyncio.run(run("127.0.0.2"))
    with pytest.raises(OSError, match=r"no connection to two\.example") as unlike:
        asyncio.run(run("255.255.255.255"))  # no host's: another error than a refusal
    assert not isinstance(unlike.value, ConnectionRefusedError), "one address says that nobody listens, not both"


def full_backlog() -> tuple[socket.socket, list[socket.socket]]:
    """A listener that answers nobody any more."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = []
    while True:
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(listener.getsockname())
        waiting.append(one)
        if len(waiting) > 3:
            return listener, waiting


def test_a_connection_nobody_answers_takes_no_longer_than_allowed() -> None:
    listener, waiting = full_backlog()
    host, port = listener.getsockname()
    try:
        with pytest.raises(TimeoutError, match=rf"no connection to {host}:{port} within 0\.05 s"):
            connect_blocking(host, port, 0.05)
        with pytest.raises(TimeoutError, match=rf"no connection to {host}:{port} within 0\.05 s"):
            asyncio.run(connect(Opened, host, port, 0.05))
    finally:
        for one in (listener, *waiting):
            one.close()


def test_a_connection_that_is_given_up_is_aborted_whenever_that_is() -> None:
    """Cancelled after any number of turns of the loop: either it was returned, or what was made has been aborted."""

    async def run(listener: socket.socket, turns: int) -> None:
        made: list[Opened] = []

        def make() -> Opened:
            made.append(Opened())
            return made[-1]

        host, port = listener.getsockname()
        task = asyncio.ensure_future(connect(make, host, port, 20))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        (done,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(done, Opened):
            done.abort("")
        else:
            assert turns or not made
            assert all(one.aborted for one in made)

    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        for turns in range(12):
            asyncio.run(run(listener, turns))


@pytest.mark.parametrize("error", [ValueError("negative file descriptor"), OSError(9, "Bad file descriptor")])
def test_a_connection_that_is_closed_at_once_is_an_os_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica was killed in that moment: the ValueError ended the link's task, and the link was away for ever."""
    given_up: list[str] = []

    class Made(Opening):
        def abort(self, why: str | Exception) -> None:
            given_up.append(str(why))

    def closed(sock: object, untaken_ms: int) -> None:
        raise error

    async def create_connection(protocol: Callable[[], Made], *where: object, ssl: object) -> tuple[object, Made]:
        return asyncio.Transport(), protocol()

    async def run() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", create_connection)
        await connect(Made, "a", 1, timeout_s=20)

    monkeypatch.setattr("waltz_ray.net.connector._opened", closed)
    with pytest.raises(ConnectionResetError, match="a:1 closed the connection as soon as it was open"):
        asyncio.run(run())
    assert given_up == ["closed as soon as it was open"]
