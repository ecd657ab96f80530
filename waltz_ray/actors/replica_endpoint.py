"""A replica's TCP endpoint: blocking threads at the disk, one per connection.

A *turn* is what has arrived in a connection's buffer, up to about two megabytes: it is decoded without a copy,
handed to the service in one call (writes, one sync, cumulative acks) and answered by one ``sendall``. While the disk
syncs, the socket fills: it is the queue of the group commit, and no timer is needed.

Records are views of the receive buffer. That is sound because a turn has written them to the file before the
buffer is used again; a service that kept a view beyond its call would break it.

What a failure leaves:

- the peer goes away or breaks the protocol: that connection ends, all others go on. Turns before have been handled
  whole, the turn in which the protocol was broken not at all, and none of it has been acknowledged;
- a sync fails, or the service fails in a way it does not answer itself: memory and disk may disagree, nothing of
  this turn has been acknowledged, and the process ends at once. The next start recovers from the disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from waltz_ray.errors import SyncFailed, WireError
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.wire.framing import (
    FRAME_HEADER_BYTES,
    HELLO_VERSION,
    MAGIC_HELLO,
    MAGIC_REPLICA,
    Hello,
    decode_hello,
    encode_hello,
    frame_header,
    negotiate,
)
from waltz_ray.wire.primitives import BytesLike
from waltz_ray.wire.replica_messages import (
    REPLICA_VERSIONS,
    Append,
    ReplicaReply,
    ReplicaRequest,
    decode_replica,
    encode_replica,
)

__all__ = ["EndpointStatistics", "ReplicaEndpoint", "TurnBuffer"]

log = logging.getLogger(__name__)

_HEADER = struct.Struct(">Bhi")
_MAX_HELLO_BYTES = 64 * 1024  # what a stranger can make us allocate before it has said who it is
_SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
_TURN_BYTES = 2 * 1024 * 1024  # acknowledged by and by, however much has arrived; larger syncs are no faster (FACTS.md)

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

    ``room()`` is where the next bytes go; it grows for a frame larger than the buffer, up to ``max_frame_bytes``,
    so a long frame is never mistaken for the end of the stream. Views from ``frames`` are valid until ``room``.
    """

    def __init__(self, max_frame_bytes: int, buffer_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = memoryview(bytearray(buffer_bytes))
        self._start = self._end = 0
        self._wanted = FRAME_HEADER_BYTES  # the size of the frame at _start, as far as it is known

    def room(self) -> memoryview:
        """The free part, never empty."""
        held = self._end - self._start
        if self._wanted > len(self._buffer):
            grown = memoryview(bytearray(self._wanted))
            grown[:held] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end = grown, 0, held
        elif self._start:
            self._buffer[:held] = self._buffer[self._start : self._end]
            self._start, self._end = 0, held
        return self._buffer[self._end :]

    def received(self, count: int) -> None:
        """``count`` bytes have been put into ``room()``."""
        self._end += count

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
                f"version {found_version}; is this a waltz_ray partition server?"
            )
        most = _MAX_HELLO_BYTES if magic == MAGIC_HELLO else self._max_frame_bytes
        if not 0 <= length <= most:
            raise WireError(f"a frame of {length} bytes is impossible here, the limit is {most}")

    def eof(self) -> None:
        """The stream has ended: WireError if it ended inside a frame."""
        if self._end > self._start:
            raise WireError(f"the peer closed the connection inside a frame, {self._end - self._start} bytes into it")


class ReplicaEndpoint:
    """Listens, and lets ``handle`` answer every connection's turns, each in a thread of its own.

    ``handle`` is ``ReplicaService.handle``; it is called from several threads at once. ``on_fatal`` is called with
    a message when the process must end (the default logs it and calls ``os._exit(1)``).
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
        on_fatal: Callable[[str], None] | None = None,
    ) -> None:
        self._handle = handle
        self._name = name
        self._max_frame_bytes = max_frame_bytes
        self._buffer_bytes = buffer_bytes
        self._on_fatal = on_fatal or _end_process
        self._listener = socket.create_server((host, port), backlog=128)
        # Inherited by accepted sockets, and only before they are accepted does it set the window.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        self.endpoint = Endpoint(host, self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
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
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError as error:
                if not self._closing:
                    self._on_fatal(f"{self._name}: cannot accept connections any more: {error}")
                return
            thread = threading.Thread(
                target=self._serve,
                args=(connection, f"{peer[0]}:{peer[1]}"),
                name=f"{self._name}-{peer[1]}",
                daemon=True,
            )
            with self._lock:
                if self._closing:
                    connection.close()
                    return
                self._connections[connection] = thread
                self._statistics.connections += 1
                thread.start()

    def _serve(self, connection: socket.socket, peer: str) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
            connection.sendall(encode_hello(Hello(REPLICA_VERSIONS, self._name)))
            self._converse(connection, peer)
        except WireError as error:
            log.warning("%s: connection of %s closed: %s", self._name, peer, error)
        except OSError as error:
            log.info("%s: connection of %s lost: %s", self._name, peer, error)
        finally:
            connection.close()
            with self._lock:
                del self._connections[connection]

    def _converse(self, connection: socket.socket, peer: str) -> None:
        buffer = TurnBuffer(self._max_frame_bytes, self._buffer_bytes)
        version: int | None = None
        while True:
            count = connection.recv_into(buffer.room())
            if not count:
                buffer.eof()
                return
            buffer.received(count)
            if version is None:
                hellos = buffer.frames(MAGIC_HELLO, HELLO_VERSION, most_bytes=1)
                if not hellos:
                    continue
                hello = decode_hello(hellos[0])
                version = negotiate(REPLICA_VERSIONS, hello.versions)
                log.info("%s: %s (%s) connected, version %d", self._name, peer, hello.message, version)
            while payloads := buffer.frames(MAGIC_REPLICA, version, _TURN_BYTES):
                self._turn(connection, version, [_request(payload) for payload in payloads])

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
        if replies:
            connection.sendall(b"".join(_frames(version, replies)))

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


def _frames(version: int, replies: list[ReplicaReply]) -> list[BytesLike]:
    parts: list[BytesLike] = []
    for reply in replies:
        payload = encode_replica(reply)
        parts.append(frame_header(MAGIC_REPLICA, version, sum(map(len, payload))))
        parts.extend(payload)
    return parts


def _end_process(message: str) -> None:
    log.critical("%s", message)
    logging.shutdown()  # os._exit flushes nothing
    os._exit(1)
