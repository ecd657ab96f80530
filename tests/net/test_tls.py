"""Streams through TLS, in a loop and in threads: the same bytes, and errors that say who could not be believed."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from waltz_ray.net.blocking import BlockingStream
from waltz_ray.net.connector import connect
from waltz_ray.net.limit import ConnectionLimit
from waltz_ray.net.listener import BlockingListener, listen
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.stream import GreetedStream
from waltz_ray.net.tls import client_context, server_context
from waltz_ray.wire.framing import MAGIC_REPLICA, encode_frame

HOST = "127.0.0.1"
PAYLOAD = bytes(range(256)) * 4096  # of many TLS records


@dataclass(frozen=True)
class Certificate:
    path: str
    key: str


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return made(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return made(tmp_path_factory.mktemp("stranger"))


def made(directory: Path) -> Certificate:
    """It vouches for itself, for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    path, key = str(directory / "certificate.pem"), str(directory / "key.pem")
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=test", "-addext", f"subjectAltName=IP:{HOST}"]
    command = ["openssl", "req", "-x509", *kind, *names, "-keyout", key, "-out", path]
    subprocess.run(command, check=True, capture_output=True)
    return Certificate(path, key)


class Side(GreetedStream):
    """Sends what it gets back, if it is to; keeps it."""

    def __init__(self, echoes: bool) -> None:
        super().__init__(MAGIC_REPLICA, (2,), 1 << 24, "test", Outgoing())
        self.got: asyncio.Future[bytes] = self._loop.create_future()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._echoes = echoes

    def on_ready(self) -> None:
        super().on_ready()
        self.ready.set_result(None)

    def on_frame(self, frame: memoryview) -> None:
        if self._echoes:
            self.send_bytes(encode_frame(MAGIC_REPLICA, self.version, frame))
        else:
            self.got.set_result(bytes(frame))

    def on_closed(self, error: Exception) -> None:
        for future in (self.ready, self.got):
            future.cancel()


# Python 3.10's asyncio: a transport whose peer has ended the connection warns that it was not closed.
@pytest.mark.filterwarnings("ignore:unclosed transport <asyncio.sslproto:ResourceWarning")
def test_a_stream_through_tls(certificate: Certificate) -> None:
    async def run() -> None:
        server = await listen("test", lambda: Side(True), HOST, 0, server_context(certificate.path, certificate.key))
        port = server.port
        side = await connect(lambda: Side(False), HOST, port, 20, client_context(certificate.path))
        await side.ready
        side.send_bytes(encode_frame(MAGIC_REPLICA, 2, PAYLOAD))
        assert await side.got == PAYLOAD
        side.abort("done")
        server.close()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_server_that_cannot_be_believed_is_named(certificate: Certificate, stranger: Certificate) -> None:
    async def run() -> None:
        server = await listen("test", lambda: Side(True), HOST, 0, server_context(certificate.path, certificate.key))
        port = server.port
        with pytest.raises(ConnectionError, match=rf"no connection to {HOST}:{port}: .*certificate verify failed"):
            await connect(lambda: Side(False), HOST, port, 20, client_context(stranger.path))
        server.close()

    asyncio.run(asyncio.wait_for(run(), 20))


@pytest.fixture
def port(certificate: Certificate) -> Iterator[int]:
    """Of a blocking listener that echoes and takes only clients it can believe."""

    def serve(connection: socket.socket, peer: str) -> None:
        stream = BlockingStream(connection, peer, MAGIC_REPLICA, (2,), 1 << 24, "test")
        assert stream.greet(20)
        while payloads := stream.turn(1 << 24):
            for payload in payloads:
                stream.send(payload)

    tls = server_context(certificate.path, certificate.key, clients=certificate.path)
    listener = BlockingListener("tls", HOST, 0, serve, ConnectionLimit("tls", 10, 10), pytest.fail, tls=tls)
    listener.start()
    yield listener.port
    listener.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tls-")]


def opened(port: int, tls: ssl.SSLContext) -> BlockingStream:
    return BlockingStream.open(HOST, port, MAGIC_REPLICA, (2,), 1 << 24, "test", 20, tls)


def test_blocking_through_tls(port: int, certificate: Certificate) -> None:
    tls = client_context(certificate.path, certificate.path, certificate.key)
    with opened(port, tls) as stream:
        for size in (1, len(PAYLOAD)):
            stream.send(PAYLOAD[:size])
            assert stream.receive() == PAYLOAD[:size]


def test_a_client_that_cannot_be_believed_is_refused(port: int, certificate: Certificate) -> None:
    with pytest.raises(OSError, match=f"{HOST}:{port}"):
        opened(port, client_context(certificate.path))


def test_a_plain_client_is_refused(port: int, certificate: Certificate) -> None:
    with (
        pytest.raises(OSError, match=f"{HOST}:{port}"),
        BlockingStream.open(HOST, port, MAGIC_REPLICA, (2,), 1 << 24, "test", 20) as stream,
    ):
        stream.receive()
