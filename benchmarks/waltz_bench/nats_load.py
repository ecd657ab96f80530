"""Load on NATS JetStream through raw sockets: as little client as there can be.

Frames are made once, sent as slices of one prepared block, and acknowledgements are counted, not parsed. One uvloop
thread has all connections, so that nothing but the peer itself decides how fast it is.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol, cast

import uvloop

from waltz_bench.loads import payloads
from waltz_bench.nats_cluster import HOST, SUBJECT
from waltz_bench.nats_wire import CONNECT, AckCounter, atomic_batch, publish, subscribe
from waltz_ray.errors import AppendFailed, AppendTimeout

__all__ = ["Acks", "NatsConnection", "NatsLoad", "Shape", "publish_in_turn"]

_CONNECT_S, _LAST_ACKS_S = 10.0, 30.0
_BLOCK_RECORDS = 256


@dataclass(frozen=True)
class Shape:
    """What is outstanding. ``outstanding`` records of each of ``clients`` connections, sent ``chunk`` at a time
    (1: as many as the last acknowledgements allow). ``atomic``: the chunks are atomic batches, acknowledged once.
    """

    clients: int = 1
    outstanding: int = 1
    chunk: int = 1
    size_bytes: int = 1024
    atomic: bool = False


class NatsLoad:
    """See ``measure.Load``. One call is one chunk. Use it once."""

    def __init__(self, port: int, shape: Shape) -> None:
        self.records_per_call = shape.chunk
        self.latencies_s: list[float] = []
        self.failed = threading.Event()
        self.errors: list[BaseException] = []
        self.stopped = False
        self.acknowledged = 0
        self.ended = threading.Semaphore(0)
        self.shape = shape
        self._port = port
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nats-load", daemon=True)
        self._connections: list[NatsConnection] = []

    def start(self) -> None:
        """See ``measure.Load``."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._connect(), self._loop).result(_CONNECT_S)

    def stop(self) -> None:
        """See ``measure.Load``. AppendTimeout if an acknowledgement does not come: it is lost."""
        self.stopped = True
        try:
            for number in range(len(self._connections)):
                if not self.ended.acquire(timeout=_LAST_ACKS_S):
                    raise AppendTimeout(
                        f"{len(self._connections) - number} connections still missed acknowledgements "
                        f"{_LAST_ACKS_S:g} s after the end of the load; see the servers' logs"
                    )
            if self.errors:
                raise self.errors[0]
        finally:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_CONNECT_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def fail(self, error: BaseException) -> None:
        """On the loop: the load has failed."""
        self.errors.append(error)
        self.failed.set()

    def _connection(self, number: int) -> NatsConnection:
        return NatsConnection(self, f"_R.{number}")

    async def _connect(self) -> None:
        for number in range(self.shape.clients):
            connection = self._connection(number)
            await self._loop.create_connection(lambda made=connection: made, HOST, self._port)  # type: ignore[misc]
            await connection.ready
            self._connections.append(connection)
        for connection in self._connections:
            connection.begin()

    async def _close(self) -> None:
        for connection in self._connections:
            connection.close()


class Acks(Protocol):
    """Counts acknowledgements in a stream of bytes."""

    pings: int

    def feed(self, data: bytes) -> int: ...


class NatsConnection(asyncio.Protocol):
    """One client: keeps its window full until the load is stopped. PostgreSQL's speaks another language."""

    system = "NATS"

    def __init__(self, load: NatsLoad, inbox: str) -> None:
        shape = load.shape
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._load = load
        self._inbox = inbox
        self._hello = b""
        self._acks: Acks = AckCounter()
        self._over = self._closing = False
        self._unanswered: deque[tuple[float, int]] = deque()  # (sent at, calls), oldest first
        self._open = 0  # acknowledgements to come
        self._partial = 0  # of the oldest call, already here
        self._per_call = 1 if shape.atomic else shape.chunk
        self._window = shape.outstanding // shape.chunk if shape.atomic else shape.outstanding
        self._batches: deque[bytes] = deque()
        self._prepare(payloads(shape.size_bytes, _BLOCK_RECORDS))

    def _prepare(self, datas: list[bytes]) -> None:
        """What is going to be sent, made once."""
        shape, inbox = self._load.shape, self._inbox
        if shape.atomic:
            self._batches.extend(
                atomic_batch(SUBJECT, inbox, f"{inbox}-{n}", [datas[i % len(datas)] for i in range(shape.chunk)])
                for n in range(self._window)
            )
        else:
            self._repeat([publish(SUBJECT, inbox, data) for data in datas])

    def _repeat(self, frames: list[bytes]) -> None:
        """A block that a full window is a slice of."""
        self._frame_bytes = len(frames[0])
        self._block = memoryview(b"".join(frames) * -(-self._window // len(frames)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(1 << 26)
        raw: socket.socket = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.write(self._opening())

    def _opening(self) -> bytes:
        return CONNECT + subscribe(self._inbox) + b"PING\r\n"

    def data_received(self, data: bytes) -> None:
        if not self.ready.done():
            self._greet(data)
            return
        try:
            acks = self._acks.feed(data)
        except Exception as error:  # noqa: BLE001 - raised by stop(); uvloop would only log it
            self._give_up(error)
            return
        if self._acks.pings:
            self._acks.pings = 0
            self._transport.write(b"PONG\r\n")
        if acks:
            self._acknowledged(acks)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._closing:
            self._give_up(AppendFailed(f"{self.system} closed the connection: {error or 'no reason given'}"))

    def begin(self) -> None:
        self._send(self._window)

    def close(self) -> None:
        self._closing = True
        self._transport.close()

    def _greet(self, data: bytes) -> None:
        self._hello += data
        if b"-ERR" in self._hello:
            self.ready.set_exception(AppendFailed(f"NATS refused the connection: {self._hello[-200:]!r}"))
        elif b"PONG\r\n" in self._hello:
            self._acks.feed(self._hello.partition(b"PONG\r\n")[2])
            self.ready.set_result(None)

    def _acknowledged(self, acks: int) -> None:
        now = perf_counter()
        if acks > self._open:
            self._give_up(AppendFailed(f"{self.system} acknowledged {acks - self._open} messages nobody sent"))
            return
        self._open -= acks
        self._load.acknowledged += acks * (self._load.shape.chunk if self._load.shape.atomic else 1)
        calls, self._partial = divmod(self._partial + acks, self._per_call)
        while calls:
            began, sent = self._unanswered[0]
            some = min(calls, sent)
            self._load.latencies_s.extend([now - began] * some)
            calls -= some
            if some == sent:
                self._unanswered.popleft()
            else:
                self._unanswered[0] = (began, sent - some)
        if not self._load.stopped:
            room = self._window - self._open
            self._send(room - room % self._per_call)
        elif self._open == 0 and not self._over:
            self._over = True
            self._load.ended.release()

    def _send(self, count: int) -> None:
        """``count`` messages, or atomic batches."""
        if not count:
            return
        self._open += count
        self._unanswered.append((perf_counter(), count // self._per_call))
        if self._load.shape.atomic:
            for _ in range(count):  # acknowledged in order: the batch whose turn it is has been committed
                self._transport.write(self._batches[0])
                self._batches.rotate(-1)
        else:
            self._transport.write(self._block[: count * self._frame_bytes])

    def _give_up(self, error: BaseException) -> None:
        self._load.fail(error)
        if not self._over:
            self._over = True
            self._load.ended.release()


def publish_in_turn(port: int, count: int, size_bytes: int = 1024) -> None:
    """``count`` messages, each after the acknowledgement of the one before."""
    frames = [publish(SUBJECT, "_R.turn", data) for data in payloads(size_bytes, 16)]
    with socket.create_connection((HOST, port), timeout=_LAST_ACKS_S) as raw:
        raw.sendall(CONNECT + subscribe("_R.turn") + b"PING\r\n")
        hello = b""
        while b"PONG\r\n" not in hello:
            hello += _received(raw)
        acks = AckCounter()
        acks.feed(hello.partition(b"PONG\r\n")[2])
        for number in range(count):
            raw.sendall(frames[number % len(frames)])
            while not acks.feed(_received(raw)):
                if acks.pings:
                    acks.pings = 0
                    raw.sendall(b"PONG\r\n")


def _received(raw: socket.socket) -> bytes:
    data = raw.recv(1 << 16)
    if not data:
        raise AppendFailed("NATS closed the connection")
    return data
