"""Half-open connections, slow ones and impossible lengths at every port of ours, by the hundred and by the thousand.

Those of topics: ``tests/topics/test_gateway_hostile.py``.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.actors.bench_server import bench_server
from tests.actors.test_replica_limits import answer, serving, works
from tests.kv.running_gateway import Peer, RunningGateway, open_files
from tests.security.keys import doorkeeper, until
from waltz_ray.actors.http_port import HttpLimits, HttpPort
from waltz_ray.actors.replica_endpoint import ReplicaEndpoint
from waltz_ray.actors.server import Server
from waltz_ray.config import ServerConfig
from waltz_ray.kv.serving.port import GatewayLimits
from waltz_ray.net.tls import ServerTls
from waltz_ray.security.certificates import make_certificates
from waltz_ray.wire.codec import CLIENT_VERSIONS
from waltz_ray.wire.framing import MAGIC_CLIENT, MAGIC_REPLICA, Hello, encode_hello, frame_header
from waltz_ray.wire.http import HttpResponse
from waltz_ray.wire.replica_codec import REPLICA_VERSIONS

MOST, OF_ONE = 60, 40
FLOODER = "127.0.0.9"
TLS_HELLO = bytes.fromhex("16 0301 0200 01 0001fc 0303") + bytes(32)


@dataclass
class Flooded:
    """``well``: somebody who means it well, from another address, is served."""

    port: int
    open: Callable[[], int]
    well: Callable[[], bool]
    begins: list[bytes]
    """What the protocol's clients may say first, as far as it is said."""
    most: int = OF_ONE
    """Connections from one address."""


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


@contextmanager
def http(certificate: str, key: str) -> Iterator[Flooded]:
    limits = HttpLimits(MOST, OF_ONE, request_ms=500, untaken_ms=500)
    port = HttpPort("127.0.0.1", 0, lambda request: HttpResponse(200, b"well"), limits, ServerTls(certificate, key))

    def well() -> bool:
        with connected(port.endpoint.port) as one:
            one.sendall(b"GET / HTTP/1.1\r\n\r\n")
            data = b""
            while piece := one.recv(4096):
                data += piece
            return data.endswith(b"well")

    try:
        yield Flooded(port.endpoint.port, lambda: port.open, well, [b"GET / HTTP/1.1\r\nHost", b"GET /" + b"a" * 9000])
    finally:
        port.close()


@contextmanager
def kv(certificate: str, key: str) -> Iterator[Flooded]:
    limits = GatewayLimits(connections=MOST, connections_per_peer=OF_ONE, first_ms=500, goodbye_ms=100)
    with RunningGateway(limits=limits) as gateway:

        def well() -> bool:
            peer = Peer(gateway.port)
            with peer.socket:
                return peer.ask(30).opcode == 1

        # What they said is no frame until it is whole: of the first, four bytes of its length are missing.
        yield Flooded(
            gateway.port,
            lambda: gateway.gateway.connections,
            well,
            [bytes(8), struct.pack(">HHII", 30, 0, 1, 2**32 - 1)],
        )


@contextmanager
def server(certificate: str, key: str) -> Iterator[Flooded]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    config = ServerConfig(
        connections=MOST, connections_per_peer=OF_ONE, hello_timeout_ms=500, tls_certificate=certificate, tls_key=key
    )

    async def start() -> tuple[Server, int]:
        made = bench_server(config)
        return made, (await made.listen()).port

    async def stop() -> None:
        assert made._listener is not None
        made._listener.close()
        await asyncio.sleep(0)

    made, port = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    hello = encode_hello(Hello(tuple(CLIENT_VERSIONS), "one who means it well"))

    def well() -> bool:
        with connected(port) as one:
            one.sendall(hello)
            return len(one.recv(1)) == 1

    try:
        lengths = [frame_header(0x48, 0, 60_000), frame_header(MAGIC_CLIENT, 5, 2**31 - 1)]
        yield Flooded(port, lambda: made.limit.open, well, [hello[:-1], *lengths])
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def replica(certificate: str, key: str) -> Iterator[Flooded]:
    """Of those that have proved nothing the oldest go for newer ones. With TLS: ``test_replica_tls.py``."""
    failed: list[str] = []
    endpoint = ReplicaEndpoint(
        answer,
        doorkeeper(),
        connections=4 * OF_ONE,
        connections_per_peer=2 * OF_ONE,
        half_open=OF_ONE,
        hello_timeout_s=0.5,
        on_fatal=failed.append,
    )
    endpoint.start()
    hello = encode_hello(Hello(tuple(REPLICA_VERSIONS), "stranger"))
    try:
        begins = [hello[:-1], hello, frame_header(MAGIC_REPLICA, 1, 2**31 - 1)]
        yield Flooded(
            endpoint.endpoint.port, lambda: len(serving(endpoint)), lambda: works(endpoint), begins, 2 * OF_ONE
        )
        assert failed == []
    finally:
        endpoint.stop()


PORTS = {"http": http, "kv": kv, "replica": replica, "server": server}


def flood(place: Flooded, count: int) -> None:
    """So many at one time, each with the beginning of something, some with nothing, and every fifth gone at once."""
    said = [b"", TLS_HELLO[:1], TLS_HELLO, *place.begins, *(each[:3] for each in place.begins)]
    with ExitStack() as stack:
        for number in range(count):
            one = socket.socket()
            stack.callback(one.close)
            one.bind((FLOODER, 0))
            one.settimeout(20)
            one.connect(("127.0.0.1", place.port))
            with suppress(ConnectionError):  # it was refused
                one.sendall(said[number % len(said)])
            if number % 5 == 0:
                one.close()
            if number % 50 == 0:
                assert place.open() <= place.most + 2
                assert place.well(), f"somebody else was not served after {number}"
        assert place.well()
        until(lambda: place.open() <= 1)  # none of them ever said what had to come first
    assert place.well()


@pytest.mark.parametrize("name", PORTS)
@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.long)])
def test_a_flood_is_bounded_and_harms_nobody(name: str, count: int, tmp_path: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * count + 500:
        pytest.skip(f"a process may have {soft} files open here")
    make_certificates(tmp_path, ["127.0.0.1"], [], 2)
    files = open_files()
    with PORTS[name](str(tmp_path / "server.pem"), str(tmp_path / "server.key")) as place:
        assert place.well()
        # A TLS handshake of asyncio's has 256 KiB, in a circle that only the garbage collector finds; and the allocator
        # keeps what many had at one time. A second flood takes what the first one left.
        flood(place, count)
        gc.collect()
        memory = psutil.Process().memory_info().rss
        flood(place, count)
        until(lambda: place.open() == 0)
        gc.collect()
        assert psutil.Process().memory_info().rss - memory < 256 << 20, "each flood costs more"
    assert open_files() <= files


@pytest.mark.parametrize("name", PORTS)
def test_strangers_do_not_fill_the_log(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each of them is worth a line, and a thousand in a second are not worth a thousand."""
    caplog.set_level(logging.INFO)
    make_certificates(tmp_path, ["127.0.0.1"], [], 2)
    with PORTS[name](str(tmp_path / "server.pem"), str(tmp_path / "server.key")) as place:
        for number in range(100):
            with connected(place.port) as one, suppress(ConnectionError):
                one.sendall(b"\xff" * 64 + b"\r\n\r\n" if number % 2 else place.begins[0][:1])
                if number % 2:
                    while one.recv(4096):
                        pass
                else:  # it is gone without a goodbye
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: place.open() == 0)
        assert place.well()
    lines = [record for record in caplog.records if record.name.startswith("waltz_ray")]
    assert 1 <= len(lines) <= 45, "of a listener, and of its streams"
