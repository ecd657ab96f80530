"""Everybody who uses ``waltz_ray.net``, each behind one face: its peer is a plain socket in the hands of the test.

| user | in its class |
|---|---|
| a server's side of a client's connection | ``ServersClient`` |
| a replica's endpoint | ``Replica`` |
| a server's link to a replica | ``Link`` |
| a client's stream over TCP | ``Client`` |
| the range reader | ``Ranges`` |
| Spark's readers | ``Spark`` |
"""

from __future__ import annotations

import asyncio
import socket
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest

from tests.actors.bench_server import bench_server
from tests.actors.listening import Listening
from tests.actors.replica_client import frame_of
from tests.security.keys import doorkeeper, keyring, prove_over
from waltz_ray.actors.replica_endpoint import ReplicaEndpoint
from waltz_ray.actors.replica_link import ReplicaLink
from waltz_ray.actors.server import Server
from waltz_ray.client import stream as client_stream
from waltz_ray.client.credentials import NO_CREDENTIALS
from waltz_ray.client.directory import Location
from waltz_ray.client.range_reader import _Connection
from waltz_ray.client.readers.sockets import open_stream
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.config import ServerConfig
from waltz_ray.errors import WireError
from waltz_ray.net.listener import LoopListener, listen
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.protocol.authentication import Role
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.client import PartitionStateRequest, PartitionStateResponse
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.messages.replica import (
    Appended,
    Read,
    Records,
    ReplicaReply,
    State,
    StateReply,
)
from waltz_ray.protocol.partition.events import SessionConfirmed
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.session_types import ReplicaAppended, SessionEvent
from waltz_ray.wire.codec import BATCH_VERSION, ClientMessage, encode_client
from waltz_ray.wire.framing import MAGIC_CLIENT, MAGIC_REPLICA, FrameDecoder, Hello, encode_frame, encode_hello
from waltz_ray.wire.replica_codec import MAX_REPLICA_FRAME_BYTES, REPLICA_VERSION

__all__ = ["LIMIT", "USERS", "User"]

HOST = "127.0.0.1"
PATIENCE_S = 20.0
LIMIT = 64 * 1024
"""Longest frame, where the user has a setting for it."""

T = TypeVar("T")


class User(ABC):
    """One user with its peer. ``first_s`` is how long it waits for a HELLO."""

    magic: int
    version: int
    limit = LIMIT

    def __init__(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, first_s: float) -> None:
        self.caplog, self.monkeypatch, self.first_s = caplog, monkeypatch, first_s
        self.port = 0
        """That the user knows its peer by."""
        self._closing: list[Callable[[], object]] = []

    @abstractmethod
    def connected(self) -> socket.socket:
        """The peer's end of a new connection; nothing has been said on it yet."""

    @abstractmethod
    def frame(self, number: int) -> bytes:
        """A frame that is right here."""

    def greeting(self, peer: socket.socket) -> bytes:
        """What the peer has to send before its first frame; where more than a HELLO is needed it is done, and ""."""
        hello = encode_hello(Hello((self.version,), "the test"))
        if self.magic != MAGIC_REPLICA:
            return hello
        peer.sendall(hello)
        accepts = isinstance(self, Opening)
        prove_over(peer, doorkeeper(7).accept()[1] if accepts else keyring().open(0))
        self.until(self.believes)
        return b""

    def believes(self) -> bool:
        """Whether it has taken the last thing that was proved to it."""
        return True

    @abstractmethod
    def handled(self, peer: socket.socket, count: int) -> None:
        """Wait until so many of ``frame`` have been handled."""

    @abstractmethod
    def ended(self, peer: socket.socket) -> str:
        """Wait until the user has let go of the connection; what it said about that."""

    @abstractmethod
    def sockets(self) -> list[socket.socket]:
        """The user's own end, of each connection."""

    @abstractmethod
    def unread(self, peer: socket.socket) -> None:
        """The greeted peer reads nothing any more: make the user send until it sees that, and check that it does."""

    def close(self) -> None:
        for close in reversed(self._closing):
            close()

    def until(self, condition: Callable[[], object]) -> None:
        """The condition is brought about by another thread, which tells nobody."""
        waiting = threading.Event()
        for _ in range(int(PATIENCE_S * 1000)):
            if condition():
                return
            waiting.wait(0.001)
        raise AssertionError("it never came")


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop")
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return self.do(run())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.run_until_complete(asyncio.sleep(0.0))
        self.loop.close()


# ---- who accepts -------------------------------------------------------------------------------------------------


class Accepting(User):
    """It answers each frame with one; that is how the peer sees what was handled. Its log says the rest."""

    endpoint: Endpoint
    answer: type[object]

    def connected(self) -> socket.socket:
        peer = socket.create_connection(self.endpoint, PATIENCE_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = peer.getsockname()[1]
        self._decoder = FrameDecoder(1 << 26)
        self._answers = 0
        self._closing.append(peer.close)
        return peer

    def handled(self, peer: socket.socket, count: int) -> None:
        while self._answers < count:
            data = peer.recv(1 << 16)
            assert data, f"closed after {self._answers} answers: {self.caplog.text}"
            self._answers += sum(self._is_answer(frame.payload[0]) for frame in self._decoder.feed(data))

    @abstractmethod
    def _is_answer(self, kind: int) -> bool: ...

    def ended(self, peer: socket.socket) -> str:
        try:
            while peer.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return self.caplog.text


class ServersClient(Accepting):
    magic, version = MAGIC_CLIENT, BATCH_VERSION

    def __init__(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, first_s: float) -> None:
        super().__init__(caplog, monkeypatch, first_s)
        self._loop = _Loop()
        hello_ms = max(10, int(first_s * 1000))
        config = ServerConfig(
            hello_timeout_ms=hello_ms, max_frame_bytes=LIMIT, client_stall_ms=200, client_unsent_bytes=1 << 20
        )
        self._server, listener = self._loop.do(self._start(config))
        self.endpoint = Endpoint(HOST, listener.port)
        self._made: list[Any] = []
        self._closing += [self._loop.close, lambda: self._loop.do(self._stop(listener))]

    async def _start(self, config: ServerConfig) -> tuple[Server, LoopListener]:
        server = bench_server(config)

        def make() -> asyncio.Protocol:
            self._made.append(server.new_connection())
            return self._made[-1]  # type: ignore[no-any-return]

        return server, await listen("test", make, HOST, 0)

    async def _stop(self, listener: LoopListener) -> None:
        listener.close()
        for made in self._made:
            made.abort("the test is over")
        while self._server.limit.open:
            await asyncio.sleep(0)

    def frame(self, number: int) -> bytes:
        return encode_frame(self.magic, 5, *encode_client(5, PartitionStateRequest(number, 0)))

    def _is_answer(self, kind: int) -> bool:
        return kind == 47

    def sockets(self) -> list[socket.socket]:
        return [made._transport.get_extra_info("socket") for made in self._made]

    def unread(self, peer: socket.socket) -> None:
        made = self._made[-1]
        requests = b"".join(map(self.frame, range(500)))
        peer.settimeout(0.05)
        sent = 0
        while not made.ended:  # its answers fill what the kernel takes, then it takes no more requests
            try:
                sent = (sent + peer.send(requests[sent:])) % len(requests)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            assert made.unsent_bytes < 2 << 20
        self.until(lambda: made.ended)
        assert "it has taken nothing of" in self.caplog.text


class Replica(Accepting):
    magic, version = MAGIC_REPLICA, REPLICA_VERSION

    def __init__(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, first_s: float) -> None:
        super().__init__(caplog, monkeypatch, first_s)

        def answer(requests: Any, connection: object) -> list[ReplicaReply]:
            return [self._records if isinstance(r, Read) else StateReply(1, 2, 0, -1, -1, -1, False) for r in requests]

        self._records = Records(1, 2, 0, np.array([1 << 20], dtype=np.int32), bytes(1 << 20))
        self._endpoint = ReplicaEndpoint(
            answer, doorkeeper(), hello_timeout_s=first_s, max_frame_bytes=LIMIT, send_timeout_s=0.1
        )
        self.endpoint = self._endpoint.start()
        self._closing.append(self._endpoint.stop)

    def frame(self, number: int) -> bytes:
        return frame_of(State(1, number))

    def _is_answer(self, kind: int) -> bool:
        return kind == 2

    def sockets(self) -> list[socket.socket]:
        with self._endpoint._listener._lock:
            return list(self._endpoint._listener._connections.values())

    def unread(self, peer: socket.socket) -> None:
        peer.sendall(frame_of(Read(1, 2, 0, 9, 1)) * 200)
        self.until(lambda: not self.sockets())
        assert f"{HOST}:{self.port}: timed out, it does not take what it is sent" in self.caplog.text


# ---- who opens ---------------------------------------------------------------------------------------------------


class Opening(User):
    """Its peer listens."""

    def __init__(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, first_s: float) -> None:
        super().__init__(caplog, monkeypatch, first_s)
        self._listener = socket.create_server((HOST, 0))
        self._listener.settimeout(PATIENCE_S)
        self.port = self._listener.getsockname()[1]
        self.endpoint = Endpoint(HOST, self.port)
        self.count = 0
        self.told: str | None = None
        self._closing.append(self._listener.close)

    def accepted(self) -> socket.socket:
        peer, _ = self._listener.accept()
        peer.settimeout(PATIENCE_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._closing.append(peer.close)
        return peer

    def handled(self, peer: socket.socket, count: int) -> None:
        self.until(lambda: self.count == count or self.told is not None)
        assert self.count == count, self.told

    def ended(self, peer: socket.socket) -> str:
        self.until(lambda: self.told is not None)
        return self.told or ""


class Link(Opening):
    magic, version = MAGIC_REPLICA, REPLICA_VERSION
    limit = MAX_REPLICA_FRAME_BYTES

    def connected(self) -> socket.socket:
        self._loop = _Loop()
        config = ServerConfig(replica_timeout_ms=max(10, int(self.first_s * 1000)))
        drivers = Listening(self._deliver, 0)
        self._link = self._loop.call(
            lambda: ReplicaLink(7, uuid.uuid4(), config, drivers, Outgoing(), Pool(1 << 40), keyring())
        )
        self._closing += [self._loop.close, lambda: self._loop.do(self._link.close())]
        self._loop.call(lambda: self._link.move_to(self.endpoint))
        live, _ = self.accepted(), self.accepted()
        return live

    def believes(self) -> bool:
        return False in self._link._ready

    def _deliver(self, partition_id: int, event: SessionEvent | SessionConfirmed) -> None:
        self.count += isinstance(event, ReplicaAppended)

    def frame(self, number: int) -> bytes:
        return frame_of(Appended(0, 1, number))

    def ended(self, peer: socket.socket) -> str:
        try:
            while peer.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return self.caplog.text

    def sockets(self) -> list[socket.socket]:
        self.until(lambda: self._link._bulk is not None)  # the kernel has accepted it a moment earlier
        both: list[Any] = [self._link._live, self._link._bulk]
        return [stream._transport.get_extra_info("socket") for stream in both]

    def unread(self, peer: socket.socket) -> None:
        piece = bytes(1 << 20)

        def send() -> bool:
            live = self._link._live
            assert live is not None
            live.send_bytes(piece)
            return live.busy and live.unsent_bytes > 4 << 20

        while not self._loop.call(send):
            pass


class _ClientStream(client_stream.ClientStream):
    def __init__(self, user: Client) -> None:
        super().__init__(LIMIT, 0)
        self._user = user
        self.free = asyncio.Event()

    @property
    def expects(self) -> bool:
        return False

    def on_frame(self, frame: memoryview) -> None:
        self._user.count += 1

    def on_writable(self) -> None:
        self.free.set()

    def stream_lost(self, error: Exception) -> None:
        self._user.told = str(error)


class Client(Opening):
    magic, version = MAGIC_CLIENT, BATCH_VERSION

    def connected(self) -> socket.socket:
        self.monkeypatch.setattr(client_stream, "_HELLO_TIMEOUT_MS", max(1, int(self.first_s * 1000)))
        self._loop = _Loop()
        self._stream = self._loop.call(lambda: _ClientStream(self))
        opening = asyncio.run_coroutine_threadsafe(self._open(), self._loop.loop)
        self._closing += [self._loop.close, lambda: opening.result(PATIENCE_S), lambda: self._loop.do(self._end())]
        return self.accepted()

    async def _open(self) -> None:
        try:
            await self._stream.open(TcpTransport(), Location(1, 1, self.endpoint))
        except (OSError, WireError) as error:
            self.told = str(error)

    async def _end(self) -> None:
        self._stream.close()
        await self._stream.over.wait()

    def frame(self, number: int) -> bytes:
        return _state_response(number)

    def sockets(self) -> list[socket.socket]:
        assert self._stream._transport is not None
        return [self._stream._transport.get_extra_info("socket")]

    def unread(self, peer: socket.socket) -> None:
        def send() -> bool:
            self._stream.send_parts([bytes(1 << 20)])
            return self._stream.busy

        self.until(lambda: not self._stream.busy)  # connected
        while not self._loop.call(send):
            pass
        unsent = self._loop.call(lambda: self._stream.unsent_bytes)
        assert 0 < unsent < 8 << 20
        while not self._loop.call(self._stream.free.is_set):  # and it sees that the peer reads again
            assert peer.recv(1 << 20)


class Reading(Opening):
    """It blocks in a thread of its own."""

    def connected(self) -> socket.socket:
        self._thread = threading.Thread(target=self._run, name="test-reader")
        self._thread.start()
        self._closing.append(self._thread.join)
        return self.accepted()

    def _run(self) -> None:
        try:
            self._read()
        except (OSError, WireError) as error:
            self.told = str(error)

    @abstractmethod
    def _read(self) -> None:
        """Until it fails."""

    stream: Any = None

    def sockets(self) -> list[socket.socket]:
        self.until(lambda: self.stream is not None)
        return [self.stream._socket]

    def unread(self, peer: socket.socket) -> None:
        self.until(lambda: self.stream is not None)
        self.stream.settimeout(0.05)
        with pytest.raises(TimeoutError, match=f"{HOST}:{self.port}: timed out, it does not take what it is sent"):
            self.stream.send(bytes(64 << 20))


class Ranges(Reading):
    magic, version = MAGIC_CLIENT, BATCH_VERSION

    def frame(self, number: int) -> bytes:
        return _state_response(number)

    def _read(self) -> None:
        connection = _Connection(self.endpoint, self.first_s, LIMIT, NO_CREDENTIALS, "")
        self.stream = connection._stream
        self._closing.insert(0, connection.close)
        while True:
            connection.ask(lambda number: PartitionStateRequest(number, 0), PATIENCE_S)
            self.count += 1


class Spark(Reading):
    magic, version = MAGIC_REPLICA, REPLICA_VERSION
    limit = 64 << 20

    def frame(self, number: int) -> bytes:
        return frame_of(StateReply(1, number, 0, -1, -1, -1, False))

    def _read(self) -> None:
        stream = open_stream(
            self.endpoint, self.magic, self.version, self.first_s, partial(keyring(Role.READER).open, 7)
        )
        self.stream = stream
        self._closing.insert(0, stream.close)
        stream.settimeout(PATIENCE_S)
        while True:
            stream.receive()
            self.count += 1


def _state_response(number: int) -> bytes:
    message: ClientMessage = PartitionStateResponse(number, 0, 1, 1, -1, MountState.READY)
    return encode_frame(MAGIC_CLIENT, 5, *encode_client(5, message))


USERS = [ServersClient, Replica, Link, Client, Ranges, Spark]
