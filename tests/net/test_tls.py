"""Streams through TLS, in a loop and in threads: the same bytes, and errors that say who could not be believed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from waltz_ray.client.credentials import Credentials
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.coordination.zookeeper_access import ZooKeeperAccess
from waltz_ray.errors import ConfigError, ZooKeeperUnreachable
from waltz_ray.net import listener
from waltz_ray.net.blocking import BlockingStream
from waltz_ray.net.connector import connect
from waltz_ray.net.limit import ConnectionLimit
from waltz_ray.net.listener import BlockingListener, listen
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.stream import GreetedStream
from waltz_ray.net.tls import ServerTls, client_context, server_context
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
    directory.mkdir(exist_ok=True)
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


def test_strangers_cannot_renegotiate_for_ever(certificate: Certificate) -> None:
    assert server_context(certificate.path, certificate.key).options & ssl.OP_NO_RENEGOTIATION


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
    with pytest.raises(ConnectionError, match=f"{HOST}:{port}"):  # not what its number is among the system's
        opened(port, client_context(certificate.path))


def test_a_plain_client_is_refused(port: int, certificate: Certificate) -> None:
    with (
        pytest.raises(OSError, match=f"{HOST}:{port}"),
        BlockingStream.open(HOST, port, MAGIC_REPLICA, (2,), 1 << 24, "test", 20) as stream,
    ):
        stream.receive()


# ---- one port for both ---------------------------------------------------------------------------------------------


class Hears(asyncio.Protocol):
    """Says what it has heard, and whether it was encrypted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        encrypted = self._transport.get_extra_info("ssl_object") is not None
        self._transport.write((b"tls " if encrypted else b"plain ") + data)


async def said(port: int, data: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port, ssl=tls)
    writer.write(data)
    answer = await reader.read(100)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return answer


@pytest.mark.filterwarnings("ignore:unclosed transport <asyncio.sslproto:ResourceWarning")
def test_the_first_byte_tells_tls_from_plain(certificate: Certificate) -> None:
    async def run() -> None:
        tls = server_context(certificate.path, certificate.key)
        server = await listen("test", Hears, HOST, 0, tls, plain=True)
        assert await said(server.port, b"H") == b"plain H"
        assert await said(server.port, b"H", client_context(certificate.path)) == b"tls H"
        assert await said(server.port, b"\x15") == b"plain \x15"
        server.close()
        only = await listen("test", Hears, HOST, 0, tls)
        assert not (await said(only.port, b"Hello, who is there?")).startswith((b"plain", b"tls"))
        only.close()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_who_says_nothing_is_closed_and_who_waits_longest_goes_first(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def run() -> None:
        server = await listen("test", Hears, HOST, 0, server_context(certificate.path, certificate.key), plain=True)
        monkeypatch.setattr(listener, "_HANDSHAKE_S", 0.05)
        reader, writer = await asyncio.open_connection(HOST, server.port)
        assert await reader.read(1) == b""
        writer.close()
        assert "its first byte has not come for 0.05 s" in caplog.text
        monkeypatch.setattr(listener, "_HANDSHAKE_S", 20.0)
        monkeypatch.setattr(listener, "_BEGINNING", 3)
        silent = [await asyncio.open_connection(HOST, server.port) for _ in range(10)]
        assert await silent[0][0].read(1) == b""
        assert await said(server.port, b"H") == b"plain H", "there is room for who speaks"
        assert len(server._beginning) <= 3
        for _, each in silent:
            each.close()
        server.close()
        for task in list(server._beginning):
            task.cancel()
        await asyncio.gather(*list(server._beginning), return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_files_that_have_changed_are_read_again(
    certificate: Certificate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    for source, target in ((certificate.path, path), (certificate.key, key)):
        shutil.copy(source, target)
    tls = ServerTls(str(path), str(key))
    first = tls()
    assert tls() is first
    (tmp_path / "other").mkdir()
    other = made(tmp_path / "other")
    shutil.copy(other.path, path)
    assert tls() is first, "the key is still the old one's"
    assert tls() is first
    assert len([r for r in caplog.records if "what was read before stays in use" in r.getMessage()]) == 1
    shutil.copy(other.key, key)
    second = tls()
    assert second is not first
    assert tls() is second
    for content in ("abc", "MII\xe9"):  # no base64, not even ASCII
        path.write_text(f"-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n", encoding="latin-1")
        assert tls() is second
        with pytest.raises(OSError, match="where a certificate should be"):
            ServerTls(str(path), str(key))
    path.unlink()
    assert tls() is second
    with pytest.raises(OSError):
        ServerTls(str(path), str(key))


def test_nobody_is_asked_for_the_password_of_a_key(certificate: Certificate, tmp_path: Path) -> None:
    """OpenSSL would ask the terminal, and the process would wait for it."""
    key = str(tmp_path / "encrypted.key")
    command = ["openssl", "pkey", "-in", certificate.key, "-aes128", "-passout", "pass:secret", "-out", key]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(OSError, match="the key is encrypted"):
        ServerTls(certificate.path, key)
    with pytest.raises(ConfigError, match="the key is encrypted"):
        Credentials(certificate.path, certificate.path, key).context()
    known_by = ZooKeeperAccess(authority=certificate.path, certificate=certificate.path, key=key)
    with pytest.raises(ZooKeeperUnreachable, match="the key is encrypted"):
        KazooZooKeeper("127.0.0.1:1", connect_timeout_s=0.5, access=known_by)
