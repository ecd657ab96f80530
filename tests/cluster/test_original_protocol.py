"""Versions 0-4 of the client protocol on the same port: what a client of the original would send and must get."""

from __future__ import annotations

import socket
import ssl
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from tests.cluster.harness import FAST, Cluster
from waltz_ray.config import ServerConfig
from waltz_ray.connecting import connect as waltz_connect
from waltz_ray.net.tls import client_context
from waltz_ray.protocol.ids import LockId, ReqId
from waltz_ray.protocol.messages.client import ErrorMessage
from waltz_ray.protocol.messages.original import (
    AppendRequest,
    AssignmentRequest,
    AssignmentResponse,
    CheckConnectivityRequest,
    CheckConnectivityResponse,
    DataRequest,
    DataResponse,
    FeedData,
    FeedRequest,
    FeedSuspended,
    FlushRequest,
    FlushResponse,
    HealthRequest,
    HealthResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    MountState,
    OriginalMessage,
)
from waltz_ray.security.certificates import make_certificates
from waltz_ray.wire.codec import ClientMessage, decode_client, encode_client
from waltz_ray.wire.framing import (
    MAGIC_CLIENT,
    MAGIC_HELLO,
    FrameDecoder,
    Hello,
    decode_hello,
    encode_frame,
    encode_hello,
    frame_header,
)

pytestmark = pytest.mark.cluster


class OriginalClient:
    """A blocking socket that speaks one version, message by message."""

    made: ClassVar[list[OriginalClient]] = []  # closed after each test, passed or failed

    def __init__(self, cluster: Cluster, version: int, tls: ssl.SSLContext | None = None) -> None:
        endpoint = cluster.servers[1].endpoint
        assert endpoint is not None
        self.version = version
        self.socket = socket.create_connection(endpoint, timeout=20)
        self.made.append(self)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=endpoint.host)
        self._decoder = FrameDecoder(1 << 26)
        self._received: list[ClientMessage] = []
        self.socket.sendall(encode_hello(Hello((version,), "a client of the original")))

    def send(self, message: OriginalMessage) -> None:
        self.socket.sendall(encode_frame(MAGIC_CLIENT, self.version, *encode_client(self.version, message)))

    def receive(self) -> ClientMessage:
        while not self._received:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("closed by the server")
            for frame in self._decoder.feed(data):
                if frame.magic == MAGIC_HELLO:
                    assert self.version in decode_hello(frame.payload).versions
                else:
                    self._received.append(decode_client(self.version, frame.payload))
        return self._received.pop(0)

    def append(self, req_id: ReqId, data: bytes, mark: int = -1, locks: tuple[int, ...] = ()) -> None:
        self.send(AppendRequest(req_id, mark, locks, (), (), 7, data, zlib.crc32(data)))


@pytest.fixture
def cluster(tmp_path: Path, zookeeper_server: str) -> Iterator[Cluster]:
    with Cluster(tmp_path, zookeeper_server) as running:
        for partition in (0, 1):
            running.wait_members(partition, {0, 1, 2})
        try:
            yield running
        finally:
            for client in OriginalClient.made:
                client.socket.close()
            OriginalClient.made.clear()


def mounted(
    cluster: Cluster, version: int, client_id: int = 900, mark: int = -1, tls: ssl.SSLContext | None = None
) -> tuple[OriginalClient, int]:
    client, generation = OriginalClient(cluster, version, tls), cluster.served(0).generation
    client.send(MountRequest(ReqId(client_id, generation, 0, 0), mark, 1))
    return client, generation


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory, ["127.0.0.1"], ["ann"], 2)
    return directory


def with_tls(certificates: Path, mutual: bool) -> ServerConfig:
    clients = str(certificates / "authority.pem") if mutual else ""
    server = certificates / "server.pem"
    return replace(FAST, tls_certificate=str(server), tls_key=str(server.with_suffix(".key")), tls_clients=clients)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_an_original_client_needs_nothing_in_front_that_ends_tls(
    tmp_path: Path, zookeeper_server: str, certificates: Path, version: int
) -> None:
    """It always speaks TLS; others go on without on the same port. Mutual where that is asked for."""
    mutual = version % 2 == 1
    authority, own = str(certificates / "authority.pem"), certificates / "ann.pem"
    unknown = client_context(authority)
    known = client_context(authority, str(own), str(own.with_suffix(".key"))) if mutual else unknown
    with Cluster(tmp_path, zookeeper_server, config=with_tls(certificates, mutual)) as cluster:
        cluster.wait_members(0, {0, 1, 2})
        try:
            check_life(*mounted(cluster, version, tls=known))
            plain, generation = mounted(cluster, version, client_id=901, mark=1)
            assert plain.receive() == MountResponse(ReqId(901, generation, 0, 0), MountState.READY)
            if mutual:
                with pytest.raises(OSError):
                    mounted(cluster, version, client_id=902, tls=unknown)[0].receive()
        finally:
            for client in OriginalClient.made:
                client.socket.close()
            OriginalClient.made.clear()


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_the_life_of_an_original_client(cluster: Cluster, version: int) -> None:
    check_life(*mounted(cluster, version))


def check_life(client: OriginalClient, generation: int) -> None:
    assert client.receive() == MountResponse(ReqId(900, generation, 0, 0), MountState.READY)
    lock = LockId("account", 5).hash
    requests = [ReqId(900, generation, 0, n) for n in range(1, 4)]
    client.append(requests[0], b"one", locks=(lock,))
    assert client.receive() == FeedData(requests[0], 0, 7)
    client.append(requests[1], b"two", locks=(lock,))
    assert client.receive() == LockFailure(requests[1], 0)
    client.append(requests[2], b"three", mark=0, locks=(lock,))
    assert client.receive() == FeedData(requests[2], 1, 7)
    client.send(FlushRequest(ReqId(900, generation, 0, 4)))
    assert client.receive() == FlushResponse(ReqId(900, generation, 0, 4), 1)
    client.send(DataRequest(ReqId(900, generation, 0, 5), 1))
    data = client.receive()
    assert isinstance(data, DataResponse)
    assert (bytes(data.data or b""), data.checksum, data.error) == (b"three", zlib.crc32(b"three"), None)
    client.send(DataRequest(ReqId(900, generation, 0, 6), 99))
    missing = client.receive()
    assert isinstance(missing, DataResponse)
    assert missing.data is None
    assert missing.error is not None
    client.send(HighWaterMarkRequest(ReqId(900, generation, 0, 7)))
    assert client.receive() == HighWaterMarkResponse(ReqId(900, generation, 0, 7), 1)


def test_the_feed_is_suspended_after_a_hundred_entries_and_goes_on_when_asked(cluster: Cluster) -> None:
    client, _generation = mounted(cluster, 4)
    assert isinstance(client.receive(), MountResponse)
    with waltz_connect(cluster.name, zookeeper=cluster.zookeeper) as writer:
        for n in range(250):
            writer.append(0, b"%d" % n).result(20)
    seen: list[int] = []
    suspended = 0
    while len(seen) < 250 or suspended < 2:
        message = client.receive()
        if isinstance(message, FeedSuspended):
            suspended += 1
            assert len(seen) >= 100 * suspended
            if suspended == 1:
                assert len(seen) < 250, "it waits to be asked"
            client.send(FeedRequest(message.req_id, seen[-1]))
        else:
            assert isinstance(message, FeedData)
            seen.append(message.transaction_id)
    assert seen == list(range(250))


def test_a_mount_gets_everything_before_it_is_ready(cluster: Cluster) -> None:
    with waltz_connect(cluster.name, zookeeper=cluster.zookeeper) as writer:
        writer.append_many(0, [b"x"] * 777).result(20)
    client, _generation = mounted(cluster, 3, mark=99)
    messages = [client.receive()]
    while not isinstance(messages[-1], MountResponse):
        messages.append(client.receive())
    assert [m.transaction_id for m in messages[:-1] if isinstance(m, FeedData)] == list(range(100, 777))


def test_a_client_ahead_and_a_wrong_generation_are_told(cluster: Cluster) -> None:
    client, generation = mounted(cluster, 4, mark=5)
    assert client.receive() == MountResponse(ReqId(900, generation, 0, 0), MountState.CLIENT_AHEAD)
    client.send(MountRequest(ReqId(900, generation + 1, 0, 1), -1, 1))
    assert client.receive() == MountResponse(ReqId(900, generation + 1, 0, 1), MountState.NOT_READY)


def test_operators_requests(cluster: Cluster) -> None:
    client = OriginalClient(cluster, 4)
    nobody = ReqId(-1, -1, -1, 1)
    client.send(AssignmentRequest(nobody))
    assert client.receive() == AssignmentResponse(nobody, (0, 1))
    client.send(HealthRequest(nobody))
    health = client.receive()
    assert isinstance(health, HealthResponse)
    assert health.partitions == {0: True, 1: True}
    client.send(CheckConnectivityRequest(nobody))
    connectivity = client.receive()
    assert isinstance(connectivity, CheckConnectivityResponse)
    assert list(connectivity.replicas.values()) == [True, True, True]


@pytest.mark.parametrize(
    ("garbage", "named"),
    [
        (b"\x99\x00\x05\x00\x00\x00\x01\x00", "magic"),
        (frame_header(MAGIC_CLIENT, 5, 0)[:3] + b"\xff\xff\xff\xff", "length"),
        (encode_frame(MAGIC_CLIENT, 5, b"\x63"), "unknown"),
        (encode_frame(MAGIC_CLIENT, 5, b"\x20\x00"), "short"),
    ],
)
def test_bytes_that_are_not_our_protocol_are_answered_and_closed(cluster: Cluster, garbage: bytes, named: str) -> None:
    client = OriginalClient(cluster, 5)
    client.send(AssignmentRequest(ReqId(-1, -1, -1, 1)))
    assert isinstance(client.receive(), AssignmentResponse)
    client.socket.sendall(garbage)
    answer = client.receive()
    assert isinstance(answer, ErrorMessage)
    assert named in answer.message
    with pytest.raises((ConnectionError, OSError)):
        client.receive()
    with waltz_connect(cluster.name, zookeeper=cluster.zookeeper) as writer:
        assert writer.append(1, b"the server lives").result(20) == 0


def test_no_common_version_closes_the_connection(cluster: Cluster) -> None:
    client = OriginalClient(cluster, 17)
    with pytest.raises((ConnectionError, AssertionError)):
        client.receive()
