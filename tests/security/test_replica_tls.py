"""TLS on a replica's port: who speaks it, who does not, who begins and says nothing more, and files that change."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.actors.listening import Listening
from tests.security.keys import doorkeeper, keyring, until
from tests.storage.helpers import KEY, records
from waltz_ray.actors.peers import PeerReplica
from waltz_ray.actors.replica_endpoint import ReplicaEndpoint
from waltz_ray.actors.replica_link import ReplicaLink
from waltz_ray.client.readers.locations import ReplicaView
from waltz_ray.client.readers.replica_reader import ReplicaReader
from waltz_ray.config import ServerConfig, StorageConfig
from waltz_ray.errors import AuthenticationFailed, ConfigError, DataUnavailable, PeerUnavailable
from waltz_ray.net.blocking import BlockingStream
from waltz_ray.net.handshake import Prove
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.tls import ServerTls
from waltz_ray.protocol.authentication import Role
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.replica import Read, Records, ReplicaMessage, ReplicaReply, ReplicaRequest, State
from waltz_ray.protocol.messages.replica import StateReply as Answer
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.session_types import ReplicaAvailable
from waltz_ray.security.certificates import make_certificates
from waltz_ray.security.handshakes import Keyring
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.wire.framing import MAGIC_REPLICA
from waltz_ray.wire.replica_codec import REPLICA_VERSIONS, decode_replica, encode_replica

LONG = 9_000_001
CLIENT_HELLO = bytes.fromhex("16030102000100")  # the beginning of one, of 512 bytes


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory, ["127.0.0.1"], [], 2)
    make_certificates(directory / "strange", ["127.0.0.1"], [], 2)
    return directory


def tls_of(files: Path) -> ServerTls:
    return ServerTls(str(files / "server.pem"), str(files / "server.key"))


def trusting(files: Path, role: Role = Role.SERVER) -> Keyring:
    return keyring(role, authority=str(files / "authority.pem"))


class Port:
    """An endpoint; what has come through it, turn by turn. A Read is answered with ``LONG`` bytes."""

    def __init__(self, tls: ServerTls | None, tls_only: bool = False, **options: Any) -> None:
        self.turns: list[int] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        gate = doorkeeper(tls_only=tls_only)
        self.endpoint = ReplicaEndpoint(self._handle, gate, name="replica/0", tls=tls, **options)
        self.place = self.endpoint.start()

    def _handle(self, requests: Sequence[ReplicaRequest], connection: object) -> list[ReplicaReply]:
        self.turns.append(len(requests))
        assert self.may_answer.wait(20)
        return [self._answer(request) for request in requests]

    def _answer(self, request: ReplicaRequest) -> ReplicaReply:
        if isinstance(request, Read):
            return Records(1, 2, 0, np.array([LONG], dtype=np.int32), np.arange(LONG).astype(np.uint8).tobytes())
        return Answer(request.partition_id, request.session_id, 0, -1, -1, -1, False)

    @property
    def connections(self) -> int:
        return len(self.endpoint._listener._connections)

    def refused(self, count: int) -> None:
        self.until(lambda: self.endpoint.statistics().refusals == {"unauthenticated": count})

    until = staticmethod(until)


Made = Callable[..., Port]


@pytest.fixture
def made(files: Path) -> Iterator[Made]:
    ports: list[Port] = []

    def make(**options: Any) -> Port:
        ports.append(Port(options.pop("tls", None) or tls_of(files), **options))
        return ports[-1]

    yield make
    for port in ports:
        port.endpoint.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("replica/0-")]


def opened(port: Port, keys: Keyring, prove: Prove | None = None) -> BlockingStream:
    prove = prove or partial(keys.open, 0)
    place = *port.place, MAGIC_REPLICA, REPLICA_VERSIONS, 1 << 26
    return BlockingStream.open(*place, "test", 20, keys.context(), prove)


def ask(stream: BlockingStream, request: ReplicaRequest) -> ReplicaMessage:
    stream.send(*encode_replica(request))
    return decode_replica(stream.receive())


# ---- who speaks it --------------------------------------------------------------------------------------------------


def test_long_answers_come_whole(made: Made, files: Path) -> None:
    with opened(made(), trusting(files)) as stream:
        for _ in range(2):
            answer = ask(stream, Read(1, 2, 0, 1, 1))
            assert isinstance(answer, Records)
            assert bytes(answer.records) == np.arange(LONG).astype(np.uint8).tobytes()


def test_a_turn_is_what_has_come_and_not_one_record_of_tls(made: Made, files: Path) -> None:
    """Each is a sync: sixteen KiB of appends a sync would be slow."""
    port = made()
    with opened(port, trusting(files)) as stream:
        port.may_answer.clear()
        stream.send(*encode_replica(State(1, 2)))
        port.until(lambda: port.turns)
        for _ in range(300):  # each a record
            stream.send(*encode_replica(State(1, 2)))
        port.may_answer.set()
        for _ in range(301):
            assert isinstance(decode_replica(stream.receive()), Answer)
    assert sum(port.turns) == 301
    assert len(port.turns) <= 6, port.turns  # the buffer is small at first, and grows


def test_plain_beside_it_and_not_where_it_takes_tls_only(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    with opened(made(), keyring()) as stream:
        assert isinstance(ask(stream, State(1, 2)), Answer)
    port = made(tls_only=True)
    with pytest.raises(AuthenticationFailed, match=r"it takes TLS only, .* StorageConfig\.tls_authority"):
        opened(port, keyring())
    port.refused(1)
    assert not port.turns
    assert "it takes TLS only" in caplog.text


def test_inside_of_tls_the_secret_is_proved_and_tls_only_takes_it(made: Made, files: Path) -> None:
    port = made(tls_only=True)
    with opened(port, trusting(files)) as stream:
        assert isinstance(ask(stream, State(1, 2)), Answer)
    with pytest.raises(AuthenticationFailed, match="another replica listens there"):
        opened(port, trusting(files), partial(trusting(files).open, 3))
    port.refused(1)


@pytest.mark.parametrize("channel", [b"", bytes(32)])
def test_who_has_another_certificate_at_his_end_proves_nothing(made: Made, files: Path, channel: bytes) -> None:
    """As somebody between the two would have, whom the same authority has given one."""
    port = made()
    with pytest.raises(AuthenticationFailed, match="compare their secret files"):
        opened(port, trusting(files), lambda _: keyring().open(0, channel))
    port.refused(1)


def test_a_replica_of_another_authority_is_told_nothing(made: Made, files: Path) -> None:
    port = made()
    with pytest.raises(ConnectionError, match=rf"{port.place}: .*certificate verify failed"):
        opened(port, trusting(files / "strange"))
    port.refused(1)


def test_a_replica_without_a_certificate_is_not_spoken_to_plainly(files: Path) -> None:
    port = Port(None)
    try:
        with pytest.raises(ConnectionError, match="what listens there speaks no TLS"):
            opened(port, trusting(files))
        with opened(port, keyring()) as stream:
            assert isinstance(ask(stream, State(1, 2)), Answer)
    finally:
        port.endpoint.stop()


def test_an_authority_that_is_not_there_is_named(made: Made, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"StorageConfig\.tls_authority, {tmp_path}/authority.pem, cannot be used"):
        opened(made(), trusting(tmp_path))


# ---- strangers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", CLIENT_HELLO, CLIENT_HELLO[:1]], ids=["nothing", "half a hello", "a byte"])
def test_who_says_nothing_more_is_closed_in_time(made: Made, said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    port = made(hello_timeout_s=0.2)
    with socket.create_connection(port.place, 20) as stranger:
        begun = time.monotonic()
        stranger.sendall(said)
        stranger.settimeout(20)
        assert stranger.recv(1 << 16) == b"", "nothing is said to it"
        assert time.monotonic() - begun < 10
    port.until(lambda: not port.connections)
    assert "timed out" in caplog.text


def test_a_hello_byte_by_byte_has_no_more_time(made: Made) -> None:
    port = made(hello_timeout_s=0.3)
    with socket.create_connection(port.place, 20) as stranger:
        begun = time.monotonic()

        def drip() -> None:
            for byte in CLIENT_HELLO + bytes(1000):
                stranger.sendall(bytes([byte]))
                threading.Event().wait(0.01)

        with pytest.raises(OSError, match=r"reset|pipe"):
            drip()
        assert time.monotonic() - begun < 5
    port.until(lambda: not port.connections)


@pytest.mark.parametrize("said", [b"\x16" + bytes(100_000), CLIENT_HELLO + b"\xff" * 600, b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_ends_the_connection_and_is_counted(made: Made, files: Path, said: bytes) -> None:
    port = made()
    with socket.create_connection(port.place, 20) as stranger:
        stranger.sendall(said)
        port.refused(1)
    with opened(port, trusting(files)) as stream:
        assert isinstance(ask(stream, State(1, 2)), Answer)


@pytest.mark.parametrize("said", [b"", CLIENT_HELLO], ids=["nothing", "half a hello"])
def test_strangers_that_fill_all_places_keep_nobody_out(made: Made, files: Path, said: bytes) -> None:
    port = made(half_open=4, hello_timeout_s=20)
    strangers = [socket.create_connection(port.place, 20) for _ in range(30)]
    for stranger in strangers:
        stranger.sendall(said)
    port.until(lambda: port.endpoint._door._half_open.closed == 26)  # all are in: who comes later takes their places
    port.until(lambda: port.connections == 4)
    with opened(port, trusting(files)) as stream:
        assert isinstance(ask(stream, State(1, 2)), Answer)
    for stranger in strangers:
        stranger.close()


def test_who_is_believed_may_be_silent_but_has_to_take_its_answers(made: Made, files: Path) -> None:
    port = made(send_timeout_s=0.3)
    with opened(port, trusting(files)) as idle, opened(port, trusting(files)) as deaf:
        for _ in range(8):
            deaf.send(*encode_replica(Read(1, 2, 0, 1, 1)))
        port.until(lambda: port.connections == 1)
        assert len(port.turns) < 8
        assert isinstance(ask(idle, State(1, 2)), Answer)


def test_it_stops_while_connections_are_open(made: Made, files: Path) -> None:
    port = made()
    with opened(port, trusting(files)) as stream, socket.create_connection(port.place, 20) as half:
        half.sendall(CLIENT_HELLO)
        port.until(lambda: port.connections == 2)
        port.endpoint.stop()
        with pytest.raises(OSError, match="closed the connection"):
            stream.receive()


# ---- files that change ----------------------------------------------------------------------------------------------


def test_a_certificate_that_is_exchanged_while_it_runs(made: Made, files: Path, tmp_path: Path) -> None:
    used = Path(shutil.copytree(files, tmp_path / "used"))
    port, keys = made(tls=tls_of(used)), trusting(used)
    with opened(port, keys) as before:
        for name in ("server.pem", "server.key", "authority.pem"):
            (used / name).unlink()
            if name == "server.pem":
                with opened(port, keys) as between:  # one is gone, the others are still to be written
                    assert isinstance(ask(between, State(1, 2)), Answer)
            shutil.copy(files / "strange" / name, used / name)
        with opened(port, keys) as after:  # by the authority as it is now, and bound to the new certificate
            assert isinstance(ask(after, State(1, 2)), Answer)
        with pytest.raises(ConnectionError, match="certificate verify failed"):
            opened(port, trusting(files))
        assert isinstance(ask(before, State(1, 2)), Answer)


# ---- who opens connections ------------------------------------------------------------------------------------------


@pytest.fixture
def replica(files: Path, tmp_path: Path) -> Iterator[Endpoint]:
    """Number 0, with twenty committed records, and with TLS only."""
    store = ReplicaStore.create(OsDisk(), str(tmp_path / "r"), KEY, 1, StorageConfig(preallocate_bytes=0))
    log = store.partition(0)
    log.open_session(1)
    log.append(1, records(0, 20))
    log.set_low_water_mark(1, 19, 19)
    gate, tls = doorkeeper(tls_only=True), tls_of(files)
    endpoint = ReplicaEndpoint(ReplicaService(store).handle, gate, name="replica/0", tls=tls)
    yield endpoint.start()
    endpoint.stop()
    store.close()


def test_a_peer_that_repairs(replica: Endpoint, files: Path) -> None:
    peer = PeerReplica(0, replica, "test", trusting(files, Role.READER))
    assert len(peer.read(0, 0, 20, 1 << 20)) == 20
    peer.close()
    with pytest.raises(PeerUnavailable, match="it takes TLS only"):
        PeerReplica(0, replica, "test", keyring(Role.READER)).read(0, 0, 20, 1 << 20)
    with pytest.raises(PeerUnavailable, match="cannot be used"):
        PeerReplica(0, replica, "test", trusting(files / "nowhere")).read(0, 0, 20, 1 << 20)


def test_a_reader(replica: Endpoint, files: Path) -> None:
    view = ReplicaView(1, frozenset({0}), 1, {0: replica})
    with ReplicaReader(lambda partition: view, trusting(files, Role.READER), 5) as reader:
        assert sum(map(len, reader.read_range(0, 0, 20, 1 << 20))) == 20
    with (
        ReplicaReader(lambda partition: view, keyring(Role.READER), 0.2) as plain,
        pytest.raises(DataUnavailable, match="it takes TLS only"),
    ):
        next(plain.read_range(0, 0, 20, 1 << 20))


# Python 3.10's asyncio: a transport whose peer has ended the connection warns that it was not closed.
@pytest.mark.filterwarnings("ignore:unclosed transport <asyncio.sslproto:ResourceWarning")
def test_a_servers_link(replica: Endpoint, files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It says whom it does not trust, seldom, and works when it may."""
    authority = tmp_path / "authority.pem"
    shutil.copy(files / "strange" / "authority.pem", authority)

    async def run() -> bytes:
        heard: asyncio.Queue[object] = asyncio.Queue()
        drivers = Listening(lambda _, event: heard.put_nowait(event), 0)
        keys = keyring(authority=str(authority))
        link = ReplicaLink(0, uuid.uuid4(), ServerConfig(), drivers, Outgoing(), Pool(1 << 40), keys)
        link.move_to(replica)
        while "certificate verify failed" not in caplog.text:
            await asyncio.sleep(0.01)
        assert not link.up
        shutil.copy(files / "authority.pem", authority)
        while not isinstance(await heard.get(), ReplicaAvailable):
            pass
        batch = await link.read(Read(0, -1, 0, 20, 1 << 20))
        await link.close()
        return bytes(batch.records)

    assert asyncio.run(asyncio.wait_for(run(), 20)) == bytes(records(0, 20).records)
    lines = [record for record in caplog.records if record.name == "waltz_ray.actors.replica_link"]
    assert len([line for line in lines if "certificate verify failed" in line.getMessage()]) == 1
