"""The endpoint's own duties: turns, frames of every size, and what a broken peer or disk may do to whom."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from tests.actors.replica_client import ReplicaPeer, connected, frame_of
from tests.security.keys import doorkeeper
from waltz_ray.actors.replica_endpoint import ReplicaEndpoint
from waltz_ray.errors import SyncFailed, WireError
from waltz_ray.net.blocking import TurnBuffer
from waltz_ray.protocol.messages.replica import (
    Append,
    Appended,
    Close,
    Closed,
    Records,
    ReplicaReply,
    ReplicaRequest,
    State,
    StateReply,
)
from waltz_ray.wire.framing import MAGIC_REPLICA, Hello, encode_frame, encode_hello, frame_header
from waltz_ray.wire.replica_codec import REPLICA_VERSIONS


class Recorder:
    """Stands for the service: remembers turns, copies what it must keep, answers each request."""

    def __init__(self) -> None:
        self.turns: list[list[ReplicaRequest]] = []
        self.bodies: list[bytes] = []
        self.failure: Exception | None = None
        self.gate: threading.Event | None = None
        self.entered = threading.Event()

    def handle(self, requests: Sequence[ReplicaRequest], connection: object) -> list[ReplicaReply]:
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(20)
        if self.failure is not None:
            raise self.failure
        self.turns.append(list(requests))
        replies: list[ReplicaReply] = []
        for request in requests:
            if isinstance(request, Append):
                self.bodies.append(bytes(request.records))
                replies.append(Appended(request.partition_id, request.session_id, request.first_id))
            elif isinstance(request, State):
                replies.append(StateReply(request.partition_id, request.session_id, 0, -1, -1, -1, False))
            else:
                replies.append(Closed(request.partition_id, request.session_id))
        return replies


class Rig:
    def __init__(self) -> None:
        self.service = Recorder()
        self.fatal: list[str] = []
        self.ended = threading.Event()
        self.endpoint = ReplicaEndpoint(
            self.service.handle,
            doorkeeper(),
            name="replica/7",
            max_frame_bytes=8 << 20,
            buffer_bytes=4096,
            on_fatal=self._fatal,
        )
        self.endpoint.start()

    def _fatal(self, message: str) -> None:
        self.fatal.append(message)
        self.ended.set()


@pytest.fixture
def rig() -> Iterator[Rig]:
    before = set(threading.enumerate())
    rig = Rig()
    yield rig
    rig.endpoint.stop()
    assert set(threading.enumerate()) == before, "stop() left threads behind"


@pytest.fixture
def peer(rig: Rig) -> Iterator[ReplicaPeer]:
    with connected(rig.endpoint.endpoint) as peer:
        yield peer


def append(first_id: int, size: int, fill: int = 1) -> Append:
    return Append(3, 9, first_id, np.array([size], dtype=np.int32), bytes([fill]) * size)


def test_a_request_is_answered(rig: Rig, peer: ReplicaPeer) -> None:
    assert peer.ask(State(3, 9)) == StateReply(3, 9, 0, -1, -1, -1, False)


def test_what_waits_in_the_socket_is_one_turn(rig: Rig, peer: ReplicaPeer) -> None:
    rig.service.gate = threading.Event()
    peer.send(State(0, 1))
    assert rig.service.entered.wait(20)
    peer.send(*[State(0, session) for session in range(2, 50)])  # all inside the kernel while turn one is handled
    rig.service.gate.set()
    assert [peer.receive() for _ in range(49)][-1] == StateReply(0, 49, 0, -1, -1, -1, False)
    assert [len(turn) for turn in rig.service.turns] == [1, 48]
    assert rig.endpoint.statistics().turns == 2


@pytest.mark.parametrize("size", [40, 4000, 4058, 4059, 4096, 4097, 100_000, 5 << 20])
def test_a_frame_larger_than_the_buffer_arrives_whole(rig: Rig, peer: ReplicaPeer, size: int) -> None:
    messages = [append(0, size, 1), append(1, 50, 2), append(2, size, 3), append(3, 43, 4)]
    peer.send(*messages)
    assert [peer.receive() for _ in messages] == [Appended(3, 9, first_id) for first_id in range(4)]
    assert rig.service.bodies == [bytes(message.records) for message in messages]


def test_frames_cut_at_every_byte() -> None:
    messages: list[ReplicaRequest] = [State(1, 2), append(0, 50), Close(1, 2)]
    stream = b"".join(map(frame_of, messages)) + frame_header(MAGIC_REPLICA, 2, 0)
    for step in (1, 2, 3, 7, 11, 64):
        buffer = TurnBuffer(1 << 20, 16)
        payloads: list[bytes] = []
        for start in range(0, len(stream), step):
            position, piece = 0, stream[start : start + step]
            while position < len(piece):
                room = buffer.room()
                taken = min(len(room), len(piece) - position)
                room[:taken] = piece[position : position + taken]
                buffer.received(taken)
                position += taken
                payloads.extend(map(bytes, buffer.frames(MAGIC_REPLICA, 2, 1 << 30)))
        buffer.eof()
        assert [payload[0] for payload in payloads] == [3, 5, 13], f"step {step}"


def test_keep_alives_are_no_requests(rig: Rig, peer: ReplicaPeer) -> None:
    peer.socket.sendall(frame_header(MAGIC_REPLICA, 2, 0) * 3)
    assert isinstance(peer.ask(State(3, 9)), StateReply)
    assert rig.endpoint.statistics().requests == 1


BROKEN: dict[str, Callable[[], bytes]] = {
    "wrong magic": lambda: encode_frame(0x4C, 5, b"x"),
    "wrong version": lambda: frame_header(MAGIC_REPLICA, 9, 4),
    "over the limit": lambda: frame_header(MAGIC_REPLICA, 2, (8 << 20) + 1),
    "negative length": lambda: bytes([MAGIC_REPLICA]) + b"\0\1\xff\xff\xff\xff",
    "unknown type": lambda: encode_frame(MAGIC_REPLICA, 2, b"\x63" + bytes(12)),
    "cut short": lambda: encode_frame(MAGIC_REPLICA, 2, b"\x05\0\0"),
    "a reply": lambda: frame_of(Closed(1, 2)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_peer_loses_only_its_own_connection(rig: Rig, peer: ReplicaPeer, name: str) -> None:
    with connected(rig.endpoint.endpoint) as vandal:
        vandal.socket.sendall(BROKEN[name]())
        assert vandal.is_closed()
    assert isinstance(peer.ask(State(3, 9)), StateReply)
    assert not rig.fatal


def test_hello_comes_first(rig: Rig) -> None:
    with connected(rig.endpoint.endpoint, hello=False) as stranger:
        stranger.send(State(3, 9))
        assert stranger.is_closed()
    assert rig.service.turns == []


def test_no_common_version_closes(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with connected(rig.endpoint.endpoint, hello=False) as stranger:
        stranger.socket.sendall(encode_hello(Hello((77,), "from the future")))
        assert stranger.is_closed()
    assert "77" in caplog.text


def test_requests_right_behind_hello_are_not_served(rig: Rig) -> None:
    with connected(rig.endpoint.endpoint, hello=False) as eager:
        eager.socket.sendall(encode_hello(Hello(REPLICA_VERSIONS, "eager")) + frame_of(State(3, 9)))
        assert eager.is_closed()
    assert rig.service.turns == []
    assert rig.endpoint.statistics().refusals == {"unauthenticated": 1}


def test_half_a_frame_at_the_end_is_not_handled(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with connected(rig.endpoint.endpoint) as peer:
        assert isinstance(peer.ask(State(3, 9)), StateReply)
        peer.socket.sendall(frame_of(append(0, 1000))[:-1])
        peer.socket.shutdown(1)
        assert peer.is_closed()
    assert rig.service.bodies == []
    assert "inside a frame" in caplog.text


def test_a_peer_that_is_gone_when_the_answer_is_ready_hurts_nobody(rig: Rig, peer: ReplicaPeer) -> None:
    gate = rig.service.gate = threading.Event()
    gone = ReplicaPeer(rig.endpoint.endpoint)
    gone.send(*[State(0, 1)] * 50)
    assert rig.service.entered.wait(20)
    gone.reset()
    gate.set()
    assert isinstance(peer.ask(State(3, 9)), StateReply)
    assert not rig.fatal


@pytest.mark.parametrize("failure", [SyncFailed("fdatasync of 3: EIO"), ZeroDivisionError("a bug")])
def test_a_failed_sync_or_an_unforeseen_failure_ends_the_process_unacknowledged(rig: Rig, failure: Exception) -> None:
    rig.service.failure = failure
    with connected(rig.endpoint.endpoint) as peer:
        peer.send(append(0, 100))
        assert peer.is_closed()  # instead of an acknowledgement
    assert rig.ended.wait(20)
    assert str(failure) in rig.fatal[0]


def test_big_answers_arrive_whole() -> None:
    body = np.random.default_rng(1).bytes(3 << 20)

    def handle(requests: Sequence[ReplicaRequest], connection: object) -> list[ReplicaReply]:
        return [Records(1, 2, 0, np.array([len(body)], dtype=np.int32), body) for _ in requests]

    endpoint = ReplicaEndpoint(handle, doorkeeper())
    try:
        with connected(endpoint.start()) as peer:
            peer.send(State(1, 2), State(1, 2))
            for _ in range(2):
                reply = peer.receive()
                assert isinstance(reply, Records)
                assert bytes(reply.records) == body
    finally:
        endpoint.stop()


def test_stop_before_start_and_with_open_connections() -> None:
    ReplicaEndpoint(Recorder().handle, doorkeeper()).stop()
    endpoint = ReplicaEndpoint(Recorder().handle, doorkeeper())
    with connected(endpoint.start()) as peer:
        peer.ask(Close(0, uuid.uuid4().int & 0xFF))
        endpoint.stop()
        assert peer.is_closed()


def test_the_limit_is_named() -> None:
    buffer = TurnBuffer(100, 64)
    header = frame_header(MAGIC_REPLICA, 2, 101)
    buffer.room()[: len(header)] = header
    buffer.received(len(header))
    with pytest.raises(WireError, match=r"101 bytes.*limit is 100"):
        buffer.frames(MAGIC_REPLICA, 2, 1 << 30)
