"""Every message on a replica's port, by everybody who may come; and what strangers can cost it."""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.actors.replica_client import ReplicaPeer, connected, frame_of
from tests.security.keys import SECRET, doorkeeper, keyring, until
from waltz_ray.actors.replica_endpoint import ReplicaEndpoint
from waltz_ray.errors import AuthenticationFailed, SecretUnusable, WireError
from waltz_ray.net.blocking import BlockingStream
from waltz_ray.net.handshake import Prove
from waltz_ray.protocol import authentication
from waltz_ray.protocol.authentication import NEVER, AcceptingHandshake, Introduction, Role, Secret
from waltz_ray.protocol.messages.replica import (
    Append,
    Begin,
    Close,
    FindExcess,
    FindTime,
    Open,
    Read,
    ReadTimes,
    RefusalCode,
    Refused,
    ReplicaReply,
    ReplicaRequest,
    SetLowWaterMark,
    State,
    StateReply,
    Truncate,
)
from waltz_ray.security.handshakes import Doorkeeper
from waltz_ray.wire.authentication import HandshakeInBytes, encode_authentication
from waltz_ray.wire.framing import MAGIC_AUTHENTICATION, MAGIC_REPLICA, Hello, encode_frame, encode_hello
from waltz_ray.wire.replica_codec import REPLICA_VERSIONS, decode_replica, encode_replica

RECORD = bytes(40)
ONE = np.array([40], dtype=np.int32)
REQUESTS: list[ReplicaRequest] = [
    Open(1, 2, uuid.UUID(int=1)),
    Open(1, 2, uuid.UUID(int=1), owner="somebody"),
    State(1, 2),
    State(1, -1),
    Append(1, 2, 0, ONE, RECORD),
    Append(1, 2, 0, ONE, RECORD, ((0, 5),)),
    Read(1, 2, 0, 1, 1),
    ReadTimes(1, 2, 0, 1),
    FindTime(1, 2, 0),
    FindExcess(1, 2, -1, -1),
    Truncate(1, 2, 0),
    Begin(1, 2, 0),
    SetLowWaterMark(1, 2, 0, 0),
    Close(1, 2),
]
READS = (State, Read, ReadTimes, FindTime, FindExcess)
OTHER = Secret(b"\xaa" * 32)
ANY_MAC = b"any"


class Port:
    """An endpoint, and what has come through it."""

    def __init__(self, **options: Any) -> None:
        self.handled: list[ReplicaRequest] = []
        self.endpoint = ReplicaEndpoint(self._handle, doorkeeper(), name="replica/0", **options)
        self.place = self.endpoint.start()

    def _handle(self, requests: Sequence[ReplicaRequest], connection: object) -> list[ReplicaReply]:
        self.handled += requests
        return [StateReply(request.partition_id, request.session_id, 0, -1, -1, -1, False) for request in requests]

    @property
    def refusals(self) -> dict[str, int]:
        return dict(self.endpoint.statistics().refusals)

    until = staticmethod(until)


Made = Callable[..., Port]


@pytest.fixture
def made() -> Iterator[Made]:
    ports: list[Port] = []

    def make(**options: Any) -> Port:
        ports.append(Port(**options))
        return ports[-1]

    yield make
    for port in ports:
        port.endpoint.stop()


@pytest.fixture
def port(made: Made) -> Port:
    return made()


def known(request: object) -> str:
    return type(request).__name__ if isinstance(request, ReplicaRequest) else str(request)


# ---- every message, by everybody -----------------------------------------------------------------------------------


def _nobody(connection: socket.socket) -> None:
    connection.sendall(encode_hello(Hello(REPLICA_VERSIONS, "nobody")))


def _introduced(connection: socket.socket) -> None:
    """And proves nothing."""
    _nobody(connection)
    introduction = encode_authentication(Introduction(Role.SERVER, NEVER, 0, bytes(32)))
    connection.sendall(encode_frame(MAGIC_AUTHENTICATION, 1, introduction))


def _old(connection: socket.socket) -> None:
    """A server of before there was a proof."""
    connection.sendall(encode_hello(Hello((1,), "server")))


@pytest.mark.parametrize("begin", [_nobody, _introduced, _old], ids=["nobody", "introduced only", "version 1"])
@pytest.mark.parametrize("request_", REQUESTS, ids=known)
def test_nothing_is_done_for_who_proves_nothing(
    port: Port, begin: Callable[[socket.socket], None], request_: ReplicaRequest
) -> None:
    with connected(port.place, hello=False) as stranger:
        begin(stranger.socket)
        stranger.socket.sendall(frame_of(request_))
        ended_by_us(stranger)
    port.until(lambda: port.refusals == {"unauthenticated": 1})
    assert port.handled == []


def ended_by_us(stranger: ReplicaPeer) -> None:
    """Whatever is said before it is closed, none of it is of the replica protocol."""
    try:
        while True:
            assert stranger.next_frame().magic == MAGIC_AUTHENTICATION
    except (EOFError, ConnectionResetError):
        pass


@pytest.mark.parametrize("role", Role, ids=lambda role: role.name)
@pytest.mark.parametrize("request_", REQUESTS, ids=known)
def test_who_has_another_secret_is_refused(port: Port, role: Role, request_: ReplicaRequest) -> None:
    with pytest.raises(AuthenticationFailed, match="the proof is wrong"):
        opened(port, keyring(role, OTHER).open)
    assert port.handled == []
    port.until(lambda: port.refusals == {"unauthenticated": 1})


@pytest.mark.parametrize("request_", REQUESTS, ids=known)
def test_a_reader_is_answered_what_changes_nothing(port: Port, request_: ReplicaRequest) -> None:
    with connected(port.place, role=Role.READER) as reader:
        answer = reader.ask(request_)
        if isinstance(request_, READS):
            assert isinstance(answer, StateReply)
            assert len(port.handled) == 1
        else:
            assert isinstance(answer, Refused)
            assert (answer.code, answer.partition_id, answer.session_id) == (RefusalCode.NOT_ALLOWED, 1, 2)
            assert port.handled == []
            assert port.refusals == {"not_allowed": 1}
        assert isinstance(reader.ask(State(1, 2)), StateReply), "the connection goes on"


def test_answers_to_a_reader_are_in_the_order_of_its_requests(port: Port) -> None:
    with connected(port.place, role=Role.READER) as reader:
        reader.send(State(1, 1), Truncate(1, 2, 0), State(1, 3), Close(1, 4))
        answers = [reader.receive() for _ in range(4)]
    assert [(type(answer).__name__, answer.session_id) for answer in answers] == [
        ("StateReply", 1),
        ("Refused", 2),
        ("StateReply", 3),
        ("Refused", 4),
    ]


@pytest.mark.parametrize("request_", REQUESTS, ids=known)
def test_a_server_may_ask_everything(port: Port, request_: ReplicaRequest) -> None:
    with connected(port.place) as server:
        assert isinstance(server.ask(request_), StateReply)
    assert len(port.handled) == 1


# ---- both sides ----------------------------------------------------------------------------------------------------


def opened(port: Port, prove: Callable[[int], Any], replica_id: int = 0) -> BlockingStream:
    by_id: Prove = partial(prove, replica_id)
    return BlockingStream.open(*port.place, MAGIC_REPLICA, REPLICA_VERSIONS, 1 << 20, "test", 20, prove=by_id)


def test_a_ticket_that_has_ended_and_another_replica_are_told_so(port: Port) -> None:
    with pytest.raises(AuthenticationFailed, match="the ticket has ended: plan the read again"):
        opened(port, keyring(Role.READER, expires_ms=1).open)
    with pytest.raises(AuthenticationFailed, match="another replica listens there"):
        opened(port, keyring().open, 3)


def test_a_ticket_ends_also_on_a_connection_that_is_there(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns()
    with opened(port, keyring(Role.READER, expires_ms=now_ns // 1_000_000 + 60_000).open) as reader:
        question = encode_replica(State(1, 2))
        reader.send(*question)
        assert isinstance(decode_replica(reader.receive()), StateReply)
        monkeypatch.setattr(time, "time_ns", lambda: now_ns + 60_000_000_000)
        reader.send(*question)
        with pytest.raises(ConnectionError):
            reader.receive()
    assert len(port.handled) == 1
    assert port.refusals == {"unauthenticated": 1}


class _TakesAny(Doorkeeper):
    """Somebody who listens where a replica did, and takes any proof."""

    def accept(self, channel: bytes = b"") -> tuple[AcceptingHandshake, HandshakeInBytes]:
        machine, in_bytes = super().accept(channel)

        class Credential:
            def mac(self, label: bytes, said: bytes) -> bytes:
                return ANY_MAC if label.startswith(b"waltz opener") else bytes(32)

        machine._credential_of = lambda role, expires_ms: Credential()  # type: ignore[assignment, return-value]
        return machine, in_bytes


def test_an_impostor_of_a_replica_is_told_nothing(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    real = authentication.is_proof
    monkeypatch.setattr(
        authentication, "is_proof", lambda expected, given: expected is ANY_MAC or real(expected, given)
    )
    port.endpoint._door._doorkeeper = _TakesAny(lambda: SECRET, 0)
    with pytest.raises(AuthenticationFailed, match="none of its replicas"):
        opened(port, keyring().open)
    assert port.handled == []


# ---- what strangers can cost ---------------------------------------------------------------------------------------


def test_the_time_for_a_proof_is_limited(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    port = made(hello_timeout_s=0.1)
    begun = time.monotonic()
    for begin in (_nobody, _introduced):
        with connected(port.place, hello=False) as slow:
            begin(slow.socket)
            ended_by_us(slow)
    assert time.monotonic() - begun < 10
    assert "it has not proved who it is for 0.1 s" in caplog.text


def test_strangers_that_fill_all_places_keep_nobody_out(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    port = made(half_open=4)
    with ExitStack() as strangers:
        for _ in range(40):
            strangers.enter_context(closing(socket.create_connection(port.place, 20)))
        port.until(lambda: port.endpoint._door._half_open.closed >= 36)  # all are in before the server comes
        with connected(port.place) as server:
            assert isinstance(server.ask(State(1, 2)), StateReply)
            port.until(lambda: len(port.endpoint._listener._connections) <= 5)
    lines = [record.getMessage() for record in caplog.records if "did not say who they are" in record.getMessage()]
    assert len(lines) == 1, "not a line for each"
    assert port.endpoint._door._half_open.closed >= 36


def test_a_long_frame_before_the_proof_is_refused_at_its_header(port: Port) -> None:
    with connected(port.place, hello=False) as stranger:
        _nobody(stranger.socket)
        stranger.socket.sendall(encode_frame(MAGIC_AUTHENTICATION, 1, bytes(5000))[:7])
        assert stranger.is_closed()
    port.until(lambda: port.refusals == {"unauthenticated": 1})


def test_refusals_are_counted_and_seldom_logged(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        with pytest.raises(AuthenticationFailed):
            opened(port, keyring(Role.SERVER, OTHER).open)
    port.until(lambda: port.refusals == {"unauthenticated": 20})
    lines = [record.getMessage() for record in caplog.records if "without a right proof" in record.getMessage()]
    assert len(lines) == 1
    assert "compare their secret files" in lines[0]
    assert bytes(range(32)).hex() not in caplog.text


def test_a_replica_whose_secret_is_gone_refuses_and_serves_whom_it_knows(port: Port) -> None:
    def gone() -> Secret:
        raise SecretUnusable("it is gone")

    with connected(port.place) as server:
        port.endpoint._door._doorkeeper._secret = gone
        with pytest.raises((WireError, OSError)):
            opened(port, keyring().open)
        assert isinstance(server.ask(State(1, 2)), StateReply)
    port.endpoint._door._doorkeeper._secret = lambda: SECRET
    with connected(port.place) as server:
        assert isinstance(server.ask(State(1, 2)), StateReply)
