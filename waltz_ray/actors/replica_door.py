"""Who gets in at a replica's port: TLS, if it is spoken, and the proof of the cluster's secret inside of it.

Where the replica has a certificate the first byte tells TLS from plain connections, so there it says nothing before its
peer has. All of this takes no longer than the first HELLO may, and one of the places of connections without a proof.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable

from waltz_ray.errors import WireError
from waltz_ray.net.blocking import BlockingStream
from waltz_ray.net.half_open import HalfOpen
from waltz_ray.net.handshake import Handshake
from waltz_ray.net.listener import BlockingListener, shut
from waltz_ray.net.tls import TLS_HANDSHAKE, ServerTls
from waltz_ray.protocol.authentication import AcceptingHandshake
from waltz_ray.security.handshakes import Doorkeeper

__all__ = ["ReplicaDoor"]

Streams = Callable[[socket.socket], BlockingStream]
"""Makes that of a connection."""


class ReplicaDoor:
    """``half_open`` may be on their way in at one time; each has ``timeout_s`` for it. ``tls`` None: without."""

    def __init__(
        self, name: str, doorkeeper: Doorkeeper, half_open: int, timeout_s: float, tls: ServerTls | None
    ) -> None:
        self._doorkeeper, self._tls, self._timeout_s = doorkeeper, tls, timeout_s
        self._half_open = HalfOpen(name, half_open)

    def admit(
        self, connection: socket.socket, peer: str, listener: BlockingListener, stream_of: Streams
    ) -> tuple[BlockingStream, AcceptingHandshake] | None:
        """The greeted stream, and what its peer has proved to be; None: it has gone without a word.

        WireError if it is not let in; OSError if the connection fails or takes too long.
        """
        comer = _Comer(connection)
        with self._half_open.waiting(comer.close):
            timeout_s, channel = self._timeout_s, b""
            if self._tls is not None:
                deadline = time.monotonic() + timeout_s
                first = self._first_byte(connection, peer)
                if not first:
                    return None
                if first[0] == TLS_HANDSHAKE:
                    channel = self._encrypt(comer, peer, self._tls, listener)
                timeout_s = max(0.01, round(deadline - time.monotonic(), 2))
            stream = stream_of(comer.connection)
            machines: list[AcceptingHandshake] = []

            def prove(_: bytes) -> Handshake:
                machine, in_bytes = self._doorkeeper.accept(channel)
                machines.append(machine)
                return in_bytes

            if not stream.greet(timeout_s, prove):
                return None
        return stream, machines[0]

    def _first_byte(self, connection: socket.socket, peer: str) -> bytes:
        """It stays where it is. b"": the peer has closed."""
        connection.settimeout(self._timeout_s)
        try:
            return connection.recv(1, socket.MSG_PEEK)
        except TimeoutError as error:
            raise TimeoutError(f"{peer}: timed out, no HELLO for {self._timeout_s:g} s") from error

    def _encrypt(self, comer: _Comer, peer: str, tls: ServerTls, listener: BlockingListener) -> bytes:
        """What both sides know of the encryption."""
        context, channel = tls.with_channel()
        encrypted = listener.encrypted(comer.connection, context)
        comer.becomes(encrypted)
        encrypted.settimeout(self._timeout_s)
        try:
            encrypted.do_handshake()
        except ssl.SSLError as error:
            raise WireError(f"{peer}: no TLS with it: {error.reason or error}") from None
        return channel


class _Comer:
    """A connection on its way in, which may become another one: ``close`` ends it as it is then. For two threads."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._closed = False

    def close(self) -> None:
        self._closed = True  # before the connection is looked at: becomes() does it the other way round
        with contextlib.suppress(OSError):  # it may have gone already
            shut(self.connection)

    def becomes(self, connection: socket.socket) -> None:
        self.connection = connection
        if self._closed:
            raise ConnectionAbortedError("it had to go for another one")
