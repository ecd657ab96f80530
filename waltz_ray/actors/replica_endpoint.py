"""A replica's TCP endpoint: blocking threads at the disk, one per connection.

A *turn* is what has arrived in a connection's buffer, up to about two megabytes: it is decoded without a copy,
handed to the service in one call (writes, one sync, cumulative acks) and answered by one ``sendall``. While the disk
syncs, the socket fills: it is the queue of the group commit, and no timer is needed.

Records are views of the receive buffer. That is sound because a turn has written them to the file before the
buffer is used again; a service that kept a view beyond its call would break it.

Who connects, with TLS or without, proves that it knows the cluster's secret, and so does the replica, before anything
is asked (``replica_door.py``); a reader is answered what changes nothing, and all else is refused.

What a stranger can cost is bounded (docs/wire.md, "Limits"): connections in all, from one address, and of those that
have proved nothing yet; the time until that; a buffer grows with what arrives, never with what a header announces; the
answer to a read has been handed to the kernel before the next one is read from the disk.

What a failure leaves:

- the peer goes away or breaks the protocol: that connection ends, all others go on. Turns before have been handled
  whole, the turn in which the protocol was broken not at all, and none of it has been acknowledged;
- no connection can be accepted, or no thread be started: as ``net.listener`` says;
- a sync fails, or the service fails in a way it does not answer itself: memory and disk may disagree, nothing of
  this turn has been acknowledged, and the process ends at once. The next start recovers from the disk.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from waltz_ray.actors.replica_door import ReplicaDoor
from waltz_ray.errors import SyncFailed, WireError
from waltz_ray.net.blocking import BlockingStream
from waltz_ray.net.limit import ConnectionLimit
from waltz_ray.net.listener import BlockingListener
from waltz_ray.net.tls import ServerTls
from waltz_ray.protocol.authentication import Role, may_ask, ticket_is_valid
from waltz_ray.protocol.ids import NO_SESSION, NO_TRANSACTION, Endpoint
from waltz_ray.protocol.messages.replica import (
    REPLICA_TYPES,
    Append,
    Read,
    ReadTimes,
    RefusalCode,
    Refused,
    ReplicaReply,
    ReplicaRequest,
)
from waltz_ray.runtime.histogram import LATENCY_S, Histogram
from waltz_ray.runtime.seldom import Seldom
from waltz_ray.runtime.status import EndpointStatistics
from waltz_ray.security.handshakes import Doorkeeper
from waltz_ray.wire.framing import (
    MAGIC_REPLICA,
    frame_header,
)
from waltz_ray.wire.primitives import BytesLike
from waltz_ray.wire.replica_codec import (
    MAX_REPLICA_FRAME_BYTES,
    REPLICA_VERSIONS,
    decode_replica,
    encode_replica,
)

__all__ = ["ReplicaEndpoint", "end_process"]

log = logging.getLogger(__name__)

_SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
_TURN_BYTES = 2 * 1024 * 1024  # acknowledged by and by, however much has arrived; larger syncs are no faster

_LONG_BYTES = 128 * 1024
_LOG_EVERY_S = 10.0

Handler = Callable[[Sequence[ReplicaRequest], object], list[ReplicaReply]]
"""Takes one turn's requests and an object that names the connection they came over."""


class ReplicaEndpoint:
    """Listens, and lets ``handle`` answer every connection's turns, each in a thread of its own.

    ``handle`` is ``ReplicaService.handle``; it is called from several threads at once. ``on_fatal`` is called with
    a message when the process must end (the default logs it and calls ``os._exit(1)``). A peer has
    ``hello_timeout_s`` to say HELLO and to prove to ``doorkeeper`` who it is, and ``send_timeout_s`` to take something
    of its answers. ``half_open``: how many may be on their way there at one time. ``tls`` is spoken with who speaks it.
    """

    def __init__(
        self,
        handle: Handler,
        doorkeeper: Doorkeeper,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        name: str = "replica",
        max_frame_bytes: int = MAX_REPLICA_FRAME_BYTES,
        buffer_bytes: int = 4 * 1024 * 1024,
        connections: int = 256,
        connections_per_peer: int = 128,
        half_open: int = 64,
        hello_timeout_s: float = 5.0,
        send_timeout_s: float = 60.0,
        tls: ServerTls | None = None,
        on_fatal: Callable[[str], None] | None = None,
    ) -> None:
        self._handle = handle
        self._door = ReplicaDoor(name, doorkeeper, half_open, hello_timeout_s, tls)
        self._denied, self._not_allowed = Seldom(_LOG_EVERY_S), Seldom(_LOG_EVERY_S)
        self._name = name
        self._max_frame_bytes = max_frame_bytes
        self._buffer_bytes = buffer_bytes
        self._send_timeout_s = send_timeout_s
        self._send_timeout = struct.pack("@ll", int(send_timeout_s), int(send_timeout_s % 1 * 1e6))
        self._on_fatal = on_fatal or end_process
        limit = ConnectionLimit(name, connections, connections_per_peer)
        self._listener = BlockingListener(
            name, host, port, self._serve, limit, self._on_fatal, receive_buffer_bytes=_SOCKET_BUFFER_BYTES
        )
        self.endpoint = Endpoint(host, self._listener.port)
        self._lock = threading.Lock()
        self._statistics = EndpointStatistics()
        self._turns = Histogram(LATENCY_S)
        self._refusals: Counter[str] = Counter()

    def start(self) -> Endpoint:
        """Begin to accept; returns where."""
        self._listener.start()
        return self.endpoint

    def statistics(self) -> EndpointStatistics:
        """What has come and been answered so far."""
        with self._lock:
            refusals, turn = dict(self._refusals), self._turns.view()
            return replace(self._statistics, connections=self._listener.accepted, refusals=refusals, turn=turn)

    def stop(self) -> None:
        """Stop listening, end every connection, wait for the turns in progress."""
        self._listener.stop()

    def _serve(self, connection: socket.socket, peer: str) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, self._send_timeout)

        def stream_of(accepted: socket.socket) -> BlockingStream:
            frame, buffer = self._max_frame_bytes, self._buffer_bytes
            return BlockingStream(accepted, peer, MAGIC_REPLICA, REPLICA_VERSIONS, frame, self._name, buffer)

        try:
            admitted = self._door.admit(connection, peer, self._listener, stream_of)
        except WireError as error:
            self._deny(str(error))
            return
        if admitted is None:
            return
        stream, proved = admitted
        stream.send_timeout_s = self._send_timeout_s
        try:
            self._converse(stream, connection, proved.role, proved.expires_ms)
        except WireError as error:
            log.warning("%s: connection closed: %s", self._name, error)

    def _deny(self, why: str) -> None:
        with self._lock:
            self._refusals["unauthenticated"] += 1
            count = self._denied.due()
        if count:
            log.warning("%s: refused %d connection(s) without a right proof, the last one: %s", self._name, count, why)

    def _converse(self, stream: BlockingStream, connection: object, role: Role, expires_ms: int) -> None:
        who = f"{stream.peer} ({stream.hello.message[:200]!r}), a {role.name.lower()}"
        log.info("%s: %s connected, version %d", self._name, who, stream.version)
        while payloads := stream.turn(_TURN_BYTES):
            requests = [_request(payload) for payload in payloads]
            if not ticket_is_valid(expires_ms, time.time_ns() // 1_000_000):
                self._deny(f"{stream.peer}: its ticket has ended")  # who connects again is told what to do
                return
            if role is not Role.SERVER and not all(may_ask(role, type(request)) for request in requests):
                self._refuse_some(stream, connection, role, requests)
                continue
            for portion in _portions(requests):
                self._turn(stream, connection, portion)

    def _refuse_some(
        self, stream: BlockingStream, connection: object, role: Role, requests: list[ReplicaRequest]
    ) -> None:
        """One by one, so that the answers are in the order of the requests."""
        for request in requests:
            if may_ask(role, type(request)):
                self._turn(stream, connection, [request])
                continue
            with self._lock:
                self._refusals[RefusalCode.NOT_ALLOWED.name.lower()] += 1
                count = self._not_allowed.due()
            what = f"{type(request).__name__} is a server's to ask, and this is a {role.name.lower()}"
            if count:
                log.warning("%s: refused %d request(s), the last one of %s: %s", self._name, count, stream.peer, what)
            number, code = REPLICA_TYPES[type(request)], RefusalCode.NOT_ALLOWED
            partition_id, session_id = request.partition_id, request.session_id
            refused = Refused(partition_id, session_id, number, code, NO_SESSION, NO_TRANSACTION, what)
            for piece in _joined(_frames(stream.version, [refused])):
                stream.send_all(piece)

    def _turn(self, stream: BlockingStream, connection: object, requests: list[ReplicaRequest]) -> None:
        started = time.monotonic()
        try:
            replies = self._handle(requests, connection)
        except SyncFailed as error:
            self._on_fatal(f"{self._name}: {error}; nothing of it was acknowledged, the process ends")
            raise ConnectionAbortedError("the replica ends") from error
        except Exception as error:
            log.exception("%s: a request failed without an answer", self._name)
            self._on_fatal(f"{self._name}: {type(error).__name__}: {error}; memory and disk may disagree, process ends")
            raise ConnectionAbortedError("the replica ends") from error
        self._count(requests, replies, time.monotonic() - started)
        for piece in _joined(_frames(stream.version, replies)):
            stream.send_all(piece)

    def _count(self, requests: list[ReplicaRequest], replies: list[ReplicaReply], seconds: float) -> None:
        records = record_bytes = 0
        for request in requests:
            if type(request) is Append:
                records += len(request.lengths)
                record_bytes += len(request.records)
        refused = [reply.code.name.lower() for reply in replies if type(reply) is Refused]
        with self._lock:
            if records:
                self._turns.observe(seconds)
            self._refusals.update(refused)
            before = self._statistics
            self._statistics = EndpointStatistics(
                turns=before.turns + 1,
                requests=before.requests + len(requests),
                records=before.records + records,
                record_bytes=before.record_bytes + record_bytes,
            )


def _request(payload: memoryview) -> ReplicaRequest:
    message = decode_replica(payload)
    if not isinstance(message, ReplicaRequest):
        raise WireError(f"a replica is asked, it does not take {type(message).__name__}")
    return message


def _portions(requests: list[ReplicaRequest]) -> Iterator[list[ReplicaRequest]]:
    """One turn's requests, cut after each read, also of times: its answer may be long, however little was asked for."""
    portion: list[ReplicaRequest] = []
    for request in requests:
        portion.append(request)
        if type(request) in (Read, ReadTimes):
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


def end_process(message: str) -> None:
    """At once, with ``message`` in the log: the next start recovers from the disk."""
    log.critical("%s", message)
    logging.shutdown()  # os._exit flushes nothing
    os._exit(1)
