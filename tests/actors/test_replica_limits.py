"""What strangers can cost a replica, and what a lack of handles or threads does to its endpoint."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.actors.replica_client import ReplicaPeer, connected, frame_of
from tests.security.keys import doorkeeper
from waltz_ray.actors.replica_endpoint import ReplicaEndpoint
from waltz_ray.net import listener
from waltz_ray.net.blocking import BlockingStream, TurnBuffer
from waltz_ray.protocol.authentication import NEVER, Role
from waltz_ray.protocol.messages.replica import (
    Read,
    ReadTimes,
    Records,
    ReplicaReply,
    ReplicaRequest,
    State,
    StateReply,
)
from waltz_ray.wire.framing import MAGIC_REPLICA, Hello, encode_hello, frame_header
from waltz_ray.wire.replica_codec import REPLICA_VERSIONS

MANY = 1 << 30
TLS_HELLO = bytes.fromhex("16 0301 0200 01 0001fc 0303") + bytes(32)
ANSWER = Records(1, 2, 0, np.array([1 << 20], dtype=np.int32), bytes(1 << 20))


def answer(requests: Sequence[ReplicaRequest], connection: object) -> list[ReplicaReply]:
    return [ANSWER if isinstance(r, Read | ReadTimes) else StateReply(1, 2, 0, -1, -1, -1, False) for r in requests]


class Fatal:
    def __init__(self) -> None:
        self.messages: list[str] = []
        self.called = threading.Event()

    def __call__(self, message: str) -> None:
        self.messages.append(message)
        self.called.set()


Made = Callable[..., ReplicaEndpoint]


@pytest.fixture
def fatal() -> Fatal:
    return Fatal()


@pytest.fixture
def made(fatal: Fatal) -> Iterator[Made]:
    endpoints: list[ReplicaEndpoint] = []

    def make(**options: Any) -> ReplicaEndpoint:
        endpoints.append(ReplicaEndpoint(answer, doorkeeper(), name="replica/7", on_fatal=fatal, **options))
        return endpoints[-1]

    yield make
    for endpoint in endpoints:
        endpoint.stop()


def works(endpoint: ReplicaEndpoint) -> bool:
    with connected(endpoint.endpoint) as peer:
        return isinstance(peer.ask(State(1, 2)), StateReply)


def serving(endpoint: ReplicaEndpoint) -> list[threading.Thread]:
    with endpoint._listener._lock:
        return list(endpoint._listener._connections)


# ---- memory ------------------------------------------------------------------------------------------------------


class Script:
    """Stands for a socket: what the peer sends, and what happens in which order."""

    def __init__(self, data: bytes, events: list[str]) -> None:
        self._data, self._events = data, events

    def recv_into(self, room: memoryview) -> int:
        taken = min(len(room), len(self._data))
        room[:taken], self._data = self._data[:taken], self._data[taken:]
        return taken

    def sendall(self, data: bytes) -> None:
        if len(data) > 1000:
            self._events.append(f"sent {len(data) >> 20}")

    def settimeout(self, seconds: float | None) -> None:
        """It never waits."""


@pytest.mark.parametrize("read", [Read(1, 2, 0, 9, 1), ReadTimes(1, 2, 0, 9)])
def test_an_answer_is_handed_over_before_the_next_read_is_begun(read: Read | ReadTimes) -> None:
    events: list[str] = []

    def handle(requests: Sequence[ReplicaRequest], connection: object) -> list[ReplicaReply]:
        events.append(f"read {len(requests)}")
        return answer(requests, connection)

    endpoint = ReplicaEndpoint(handle, doorkeeper())
    reads = b"".join(frame_of(read) for _ in range(200))
    script: Any = Script(encode_hello(Hello(REPLICA_VERSIONS, "reader")) + reads, events)
    stream = BlockingStream(script, "reader", MAGIC_REPLICA, REPLICA_VERSIONS, 1 << 20, "replica")
    assert stream.greet(20)
    endpoint._converse(stream, script, Role.READER, NEVER)
    endpoint.stop()
    assert events == ["read 1", "sent 1"] * 200


def test_a_buffer_is_small_until_it_is_needed_and_small_again_afterwards() -> None:
    buffer = TurnBuffer(64 << 20, 4 << 20)
    assert len(buffer.room()) < 8192, "an idle connection"
    header = frame_header(MAGIC_REPLICA, 2, 60 << 20)
    buffer.room()[: len(header)] = header
    buffer.received(len(header))
    assert buffer.frames(MAGIC_REPLICA, 2, MANY) == []
    assert len(buffer.room()) < 8192, "announced, not sent"
    missing, largest = 60 << 20, 0
    while missing:
        room = buffer.room()
        largest = max(largest, len(buffer._buffer))
        taken = min(len(room), missing)
        buffer.received(taken)
        missing -= taken
        assert largest <= max(8192, 2 * ((60 << 20) - missing))
        payloads = buffer.frames(MAGIC_REPLICA, 2, MANY)
    assert [len(payload) for payload in payloads] == [60 << 20]
    buffer.room()
    assert len(buffer._buffer) == 4 << 20


# ---- strangers ---------------------------------------------------------------------------------------------------


def test_who_says_nothing_is_closed(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    endpoint = made(hello_timeout_s=0.5)  # who ``works`` has to greet in that
    with connected(endpoint.start(), hello=False) as silent:
        assert silent.is_closed()
    assert works(endpoint)
    assert "timed out" in caplog.text


def test_who_has_greeted_may_be_silent(made: Made) -> None:
    endpoint = made(hello_timeout_s=0.5)
    with connected(endpoint.start()) as greeted, connected(endpoint.endpoint, hello=False) as silent:
        assert isinstance(greeted.ask(State(1, 2)), StateReply)
        assert silent.is_closed(), "the time is over"
        assert isinstance(greeted.ask(State(1, 2)), StateReply)


def test_who_takes_nothing_of_its_answers_is_closed(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    endpoint = made(send_timeout_s=0.1)
    with connected(endpoint.start()) as peer:
        peer.send(*[Read(1, 2, 0, 9, 1)] * 200)
        threads = serving(endpoint)
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert "lost" in caplog.text


def test_limits_in_all_and_from_one_address(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    endpoint = made(connections=3, connections_per_peer=2)
    endpoint.start()
    peers = [ReplicaPeer(endpoint.endpoint) for _ in range(2)]
    for _ in range(5):
        with socket.create_connection(endpoint.endpoint, 20) as refused:
            assert refused.recv(100) == b"", "no HELLO"
    with socket.create_connection(endpoint.endpoint, 20, ("127.0.0.2", 0)) as other:
        assert other.recv(1) == b"H"
        with socket.create_connection(endpoint.endpoint, 20, ("127.0.0.3", 0)) as refused:
            assert refused.recv(100) == b""
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 1, "not a line for each"
    assert "127.0.0.1" in lines[0]
    threads = serving(endpoint)
    for peer in peers:
        peer.socket.close()
    for thread in threads:
        thread.join(20)
    assert works(endpoint), "there is room again"


def test_a_tls_client_gets_a_line_in_the_log_and_is_closed(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    endpoint = made()
    with connected(endpoint.start(), hello=False) as peer:
        peer.socket.sendall(TLS_HELLO)
        assert peer.is_closed()
    assert "it is a TLS client, and this port speaks the plain protocol" in caplog.text


# ---- what is missing on this side --------------------------------------------------------------------------------


class Listener:
    """The real one, once it has failed with each of ``errors``."""

    def __init__(self, real: socket.socket, errors: list[OSError]) -> None:
        self._real, self._errors = real, errors

    def accept(self) -> Any:
        if self._errors:
            raise self._errors.pop(0)
        return self._real.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def failing(monkeypatch: pytest.MonkeyPatch, endpoint: ReplicaEndpoint, errors: list[OSError]) -> None:
    accepting = endpoint._listener
    monkeypatch.setattr(accepting, "_socket", Listener(accepting._socket, errors))


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_a_lack_of_resources_does_not_end_the_endpoint(
    made: Made, fatal: Fatal, code: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_PAUSE_S", 0.001)
    endpoint = made()
    failing(monkeypatch, endpoint, [OSError(code, "none left")] * 5)
    endpoint.start()
    assert works(endpoint)
    assert not fatal.messages
    assert [r.getMessage() for r in caplog.records if "cannot accept" in r.getMessage()] == [
        f"replica/7: cannot accept connections until there is room again: [Errno {code}] none left"
    ]


def test_a_connection_gone_before_it_is_accepted_is_no_news(
    made: Made, fatal: Fatal, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = made()
    aborted: list[OSError] = [ConnectionAbortedError(errno.ECONNABORTED, "gone")] * 3
    failing(monkeypatch, endpoint, aborted)
    endpoint.start()
    assert works(endpoint)
    assert not fatal.messages


def test_an_error_of_accept_that_nobody_knows_ends_the_process(
    made: Made, fatal: Fatal, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = made()
    failing(monkeypatch, endpoint, [OSError(errno.EPROTO, "strange")])
    endpoint.start()
    assert fatal.called.wait(20)
    assert "strange" in fatal.messages[0]


def test_a_thread_that_cannot_be_started_costs_one_connection(
    made: Made, fatal: Fatal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = made()
    endpoint.start()
    start, failed = threading.Thread.start, list[str]()

    def fail_once(self: threading.Thread) -> None:
        if self.name.startswith("replica/7") and not failed:
            failed.append(self.name)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    with socket.create_connection(endpoint.endpoint, 20) as refused:
        assert refused.recv(100) == b""
    assert works(endpoint)
    assert not fatal.messages
    assert "no thread for the connection of 127.0.0.1" in caplog.text
