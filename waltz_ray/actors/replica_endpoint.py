"""A replica's TCP endpoint: blocking threads at the disk, one per connection.

A *turn* is what has arrived in a connection's buffer, up to about two megabytes: it is decoded without a copy,
handed to the service in one call (writes, one sync, cumulative acks) and answered by one ``sendall``. While the disk
syncs, the socket fills: it is the queue of the group commit, and no timer is needed.

Records are views of the receive buffer. That is sound because a turn has written them to the file before the
buffer is used again; a service that kept a view beyond its call would break it.

What a stranger can cost is bounded (docs/wire.md, "Limits"): connections in all and from one address, the time until
HELLO; a buffer grows with what arrives, never with what a header announces; the answer to a read has been handed to the
kernel before the next one is read from the disk.

What a failure leaves:

- the peer goes away or breaks the protocol: that connection ends, all others go on. Turns before have been handled
  whole, the turn in which the protocol was broken not at all, and none of it has been acknowledged;
- no connection can be accepted, or no thread be started, for lack of handles or memory: the endpoint waits a little
  and goes on, that connection at the most is closed;
- a sync fails, or the service fails in a way it does not answer itself: memory and disk may disagree, nothing of
  this turn has been acknowledged, and the process ends at once. The next start recovers from the disk.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

from waltz_ray.errors import SyncFailed, WireError
from waltz_ray.net.connector import keep_alive
from waltz_ray.net.limit import ConnectionLimit
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.wire.framing import (
    FRAME_HEADER_BYTES,
    HELLO_VERSION,
    MAGIC_HELLO,
    MAGIC_REPLICA,
    MAX_HELLO_BYTES,
    Hello,
    decode_hello,
    encode_hello,
    frame_header,
    negotiate,
    stranger,
)
from waltz_ray.wire.primitives import BytesLike
from waltz_ray.wire.replica_messages import (
    REPLICA_VERSIONS,
    Append,
    Read,
    ReplicaReply,
    ReplicaRequest,
    decode_replica,
    encode_replica,
)

__all__ = ["EndpointStatistics", "ReplicaEndpoint", "TurnBuffer"]

log = logging.getLogger(__name__)

_HEADER = struct.Struct(">Bhi")
_FIRST_BUFFER_BYTES = MAX_HELLO_BYTES + FRAME_HEADER_BYTES
_SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
_TURN_BYTES = 2 * 1024 * 1024  # acknowledged by and by, however much has arrived; larger syncs are no faster (FACTS.md)

_ACCEPT_PAUSE_S = 0.1
_LONG_BYTES = 128 * 1024
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)

Handler = Callable[[Sequence[ReplicaRequest], object], list[ReplicaReply]]
"""Takes one turn's requests and an object that names the connection they came over."""


@dataclass
class EndpointStatistics:
    """Since the endpoint was made. A turn with appends costs one sync, so records / turns is the group commit."""

    connections: int = 0
    turns: int = 0
    requests: int = 0
    records: int = 0
    record_bytes: int = 0


class TurnBuffer:
    """A receive buffer that hands out whole payloads as views of itself.

    ``room()`` is where the next bytes go. It is small at first and doubles whenever it has been filled: up to
    ``buffer_bytes``, and for a frame that is longer up to that, so a long frame is never mistaken for the end of the
    stream. When a long frame is done its room is given up. Views from ``frames`` are valid until ``room``.
    """

    def __init__(self, max_frame_bytes: int, buffer_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._most_bytes = buffer_bytes
        self._buffer = memoryview(bytearray(min(buffer_bytes, _FIRST_BUFFER_BYTES)))
        self._filled = False  # to the end, by what came last
        self._start = self._end = 0
        self._wanted = FRAME_HEADER_BYTES  # the size of the frame at _start, as far as it is known

    def room(self) -> memoryview:
        """The free part, never empty."""
        held, size = self._end - self._start, len(self._buffer)
        if self._filled and size < max(self._most_bytes, self._wanted):
            size = min(2 * size, max(self._most_bytes, self._wanted))
        elif size > self._most_bytes >= self._wanted and held < self._most_bytes:
            size = self._most_bytes
        if size != len(self._buffer):
            other = memoryview(bytearray(size))
            other[:held] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end = other, 0, held
        elif self._start:
            self._buffer[:held] = self._buffer[self._start : self._end]
            self._start, self._end = 0, held
        return self._buffer[self._end :]

    def received(self, count: int) -> None:
        """``count`` bytes have been put into ``room()``."""
        self._end += count
        self._filled = self._end == len(self._buffer)

    def frames(self, magic: int, version: int, most_bytes: int) -> list[memoryview]:
        """Complete payloads, keep-alives left out, up to the one that reaches ``most_bytes``.

        WireError if a header is not of this protocol.
        """
        payloads: list[memoryview] = []
        stop = self._start + most_bytes
        while not payloads or self._start < stop:
            self._wanted = FRAME_HEADER_BYTES
            if self._end - self._start < FRAME_HEADER_BYTES:
                break
            found_magic, found_version, length = _HEADER.unpack_from(self._buffer, self._start)
            self._check(found_magic, found_version, length, magic, version)
            self._wanted = FRAME_HEADER_BYTES + length
            if self._end - self._start < self._wanted:
                break
            if length:
                payloads.append(self._buffer[self._start + FRAME_HEADER_BYTES : self._start + self._wanted])
            self._start += self._wanted
        return payloads

    def _check(self, found_magic: int, found_version: int, length: int, magic: int, version: int) -> None:
        if found_magic != magic or found_version != version:
            raise WireError(
                f"expected a frame {chr(magic)!r} version {version}, got magic 0x{found_magic:02x} "
                f"version {found_version}; {stranger(found_magic)}"
            )
        most = MAX_HELLO_BYTES if magic == MAGIC_HELLO else self._max_frame_bytes
        if not 0 <= length <= most:
            raise WireError(f"a frame of {length} bytes is impossible here, the limit is {most}")

    def eof(self) -> None:
        """The stream has ended: WireError if it ended inside a frame."""
        if self._end > self._start:
            raise WireError(f"the peer closed the connection inside a frame, {self._end - self._start} bytes into it")


class ReplicaEndpoint:
    """Listens, and lets ``handle`` answer every connection's turns, each in a thread of its own.

    ``handle`` is ``ReplicaService.handle``; it is called from several threads at once. ``on_fatal`` is called with
    a message when the process must end (the default logs it and calls ``os._exit(1)``). A peer has
    ``hello_timeout_s`` to say HELLO and ``send_timeout_s`` to take something of its answers.
    """

    def __init__(
        self,
        handle: Handler,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        name: str = "replica",
        max_frame_bytes: int = 64 * 1024 * 1024,
        buffer_bytes: int = 4 * 1024 * 1024,
        connections: int = 256,
        connections_per_peer: int = 128,
        hello_timeout_s: float = 5.0,
        send_timeout_s: float = 60.0,
        on_fatal: Callable[[str], None] | None = None,
    ) -> None:
        self._handle = handle
        self._name = name
        self._max_frame_bytes = max_frame_bytes
        self._buffer_bytes = buffer_bytes
        self._hello_timeout_s = hello_timeout_s
        self._send_timeout = struct.pack("@ll", int(send_timeout_s), int(send_timeout_s % 1 * 1e6))
        self._on_fatal = on_fatal or _end_process
        self._listener = socket.create_server((host, port), backlog=128)
        # Inherited by accepted sockets, and only before they are accepted does it set the window.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        self.endpoint = Endpoint(host, self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._limit = ConnectionLimit(name, connections, connections_per_peer)
        self._stopped = threading.Event()
        self._statistics = EndpointStatistics()
        self._closing = False
        self._acceptor = threading.Thread(target=self._accept, name=f"{name}-accept", daemon=True)

    def start(self) -> Endpoint:
        """Begin to accept; returns where."""
        self._acceptor.start()
        return self.endpoint

    def statistics(self) -> EndpointStatistics:
        with self._lock:
            values = [getattr(self._statistics, f.name) for f in fields(EndpointStatistics)]
        return EndpointStatistics(*values)

    def stop(self) -> None:
        """Stop listening, end every connection, wait for the turns in progress."""
        self._stopped.set()
        with self._lock:
            self._closing = True
            open_connections = dict(self._connections)
        with contextlib.suppress(OSError):  # not connected: some systems refuse what wakes accept() on Linux
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in open_connections:
            with contextlib.suppress(OSError):  # the peer may have gone already
                connection.shutdown(socket.SHUT_RDWR)
        for thread in [self._acceptor, *open_connections.values()]:
            if thread.ident is not None:
                thread.join()

    def _accept(self) -> None:
        lacking = False
        while True:
            try:
                connection, peer = self._listener.accept()
            except ConnectionAbortedError:
                continue  # it had gone before we came to it
            except OSError as error:
                if self._closing:
                    return
                if error.errno not in _NO_RESOURCES:
                    self._on_fatal(f"{self._name}: cannot accept connections any more: {error}")
                    return
                if not lacking:
                    log.error("%s: cannot accept connections until there is room again: %s", self._name, error)
                lacking = True
                self._stopped.wait(_ACCEPT_PAUSE_S)
                continue
            if lacking:
                log.warning("%s: accepts connections again", self._name)
            lacking = False
            self._begin(connection, str(peer[0]), int(peer[1]))

    def _begin(self, connection: socket.socket, address: str, port: int) -> None:
        """Serve it in a thread of its own, or close it."""
        thread = threading.Thread(
            target=self._serve, args=(connection, address, port), name=f"{self._name}-{port}", daemon=True
        )
        with self._lock:
            if self._closing or not self._limit.admits(address):
                connection.close()
            else:
                self._connections[connection] = thread
                self._statistics.connections += 1
                try:
                    thread.start()
                except (RuntimeError, MemoryError) as error:
                    log.error("%s: no thread for the connection of %s, it is closed: %s", self._name, address, error)
                    self._end(connection, address)

    def _end(self, connection: socket.socket, address: str) -> None:
        """Under the lock."""
        connection.close()
        del self._connections[connection]
        self._limit.left(address)

    def _serve(self, connection: socket.socket, address: str, port: int) -> None:
        peer = f"{address}:{port}"
        try:
            keep_alive(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, self._send_timeout)
            connection.sendall(encode_hello(Hello(REPLICA_VERSIONS, self._name)))
            self._converse(connection, peer)
        except WireError as error:
            log.warning("%s: connection of %s closed: %s", self._name, peer, error)
        except (OSError, MemoryError) as error:
            log.info("%s: connection of %s lost: %s", self._name, peer, error)
        finally:
            with self._lock:
                self._end(connection, address)

    def _converse(self, connection: socket.socket, peer: str) -> None:
        buffer = TurnBuffer(self._max_frame_bytes, self._buffer_bytes)
        version = self._greeted(connection, buffer, peer)
        while version is not None:
            while payloads := buffer.frames(MAGIC_REPLICA, version, _TURN_BYTES):
                for portion in _portions([_request(payload) for payload in payloads]):
                    self._turn(connection, version, portion)
            count = connection.recv_into(buffer.room())
            if not count:
                buffer.eof()
                return
            buffer.received(count)

    def _greeted(self, connection: socket.socket, buffer: TurnBuffer, peer: str) -> int | None:
        """The version to speak, once HELLO has come; None if the peer has gone. TimeoutError if it takes too long."""
        deadline = time.monotonic() + self._hello_timeout_s
        while not (hellos := buffer.frames(MAGIC_HELLO, HELLO_VERSION, most_bytes=1)):
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            count = connection.recv_into(buffer.room())
            if not count:
                buffer.eof()
                return None
            buffer.received(count)
        connection.settimeout(None)
        hello = decode_hello(hellos[0])
        version = negotiate(REPLICA_VERSIONS, hello.versions)
        log.info("%s: %s (%.200r) connected, version %d", self._name, peer, hello.message, version)
        return version

    def _turn(self, connection: socket.socket, version: int, requests: list[ReplicaRequest]) -> None:
        try:
            replies = self._handle(requests, connection)
        except SyncFailed as error:
            self._on_fatal(f"{self._name}: {error}; nothing of it was acknowledged, the process ends")
            raise ConnectionAbortedError("the replica ends") from error
        except Exception as error:
            log.exception("%s: a request failed without an answer", self._name)
            self._on_fatal(f"{self._name}: {type(error).__name__}: {error}; memory and disk may disagree, process ends")
            raise ConnectionAbortedError("the replica ends") from error
        self._count(requests)
        for piece in _joined(_frames(version, replies)):
            connection.sendall(piece)

    def _count(self, requests: list[ReplicaRequest]) -> None:
        records = record_bytes = 0
        for request in requests:
            if type(request) is Append:
                records += len(request.lengths)
                record_bytes += len(request.records)
        statistics = self._statistics
        with self._lock:
            statistics.turns += 1
            statistics.requests += len(requests)
            statistics.records += records
            statistics.record_bytes += record_bytes


def _request(payload: memoryview) -> ReplicaRequest:
    message = decode_replica(payload)
    if not isinstance(message, ReplicaRequest):
        raise WireError(f"a replica is asked, it does not take {type(message).__name__}")
    return message


def _portions(requests: list[ReplicaRequest]) -> Iterator[list[ReplicaRequest]]:
    """One turn's requests, cut after each read: its answer may be long, however little was asked for."""
    portion: list[ReplicaRequest] = []
    for request in requests:
        portion.append(request)
        if type(request) is Read:
            yield portion
            portion = []
    if portion:
        yield portion


def _frames(version: int, replies: list[ReplicaReply]) -> list[BytesLike]:
    parts: list[BytesLike] = []
    for reply in replies:
        payload = encode_replica(reply)
        parts.append(frame_header(MAGIC_REPLICA, version, sum(map(len, payload))))
        parts.extend(payload)
    return parts


def _joined(parts: list[BytesLike]) -> Iterator[BytesLike]:
    """Small parts joined. A long one, the records of a read, goes as it is: a copy costs more than a system call."""
    small: list[BytesLike] = []
    for part in parts:
        if len(part) < _LONG_BYTES:
            small.append(part)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield part
    if small:
        yield b"".join(small)


def _end_process(message: str) -> None:
    log.critical("%s", message)
    logging.shutdown()  # os._exit flushes nothing
    os._exit(1)
