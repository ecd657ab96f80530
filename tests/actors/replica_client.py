"""A blocking peer for the endpoint's tests: what a partition server would send, nothing hidden."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from tests.security.keys import keyring, prove_over
from waltz_ray.protocol.authentication import Role
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.replica import ReplicaMessage
from waltz_ray.wire.framing import MAGIC_REPLICA, Frame, FrameDecoder, Hello, encode_frame, encode_hello
from waltz_ray.wire.replica_codec import (
    REPLICA_VERSION,
    REPLICA_VERSIONS,
    decode_replica,
    encode_replica,
)

__all__ = ["ReplicaPeer", "connected"]


def frame_of(message: ReplicaMessage) -> bytes:
    return encode_frame(MAGIC_REPLICA, REPLICA_VERSION, *encode_replica(message))


class ReplicaPeer:
    """One connection to replica ``replica_id``; HELLO is exchanged and ``role`` proved unless ``hello=False``.

    ``versions``: of the protocol, that it says it speaks.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        hello: bool = True,
        replica_id: int = 0,
        role: Role = Role.SERVER,
        versions: tuple[int, ...] = REPLICA_VERSIONS,
    ) -> None:
        self.socket = socket.create_connection(endpoint, timeout=20)
        self._decoder = FrameDecoder(64 * 1024 * 1024)
        self._frames: list[Frame] = []
        if hello:
            self.socket.sendall(encode_hello(Hello(versions, "test")))
            prove_over(self.socket, keyring(role).open(replica_id))
        else:
            assert self.next_frame().magic == ord("H")

    def send(self, *messages: ReplicaMessage) -> None:
        """All of them in one piece."""
        self.socket.sendall(b"".join(map(frame_of, messages)))

    def next_frame(self) -> Frame:
        """EOFError if the replica has closed the connection."""
        while not self._frames:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError
            self._frames = self._decoder.feed(data)
        return self._frames.pop(0)

    def receive(self) -> ReplicaMessage:
        return decode_replica(self.next_frame().payload)

    def ask(self, message: ReplicaMessage) -> ReplicaMessage:
        self.send(message)
        return self.receive()

    def is_closed(self) -> bool:
        """Waits until the replica closes; False if it sends something instead."""
        try:
            self.next_frame()
        except (EOFError, ConnectionResetError):
            return True
        return False

    def reset(self) -> None:
        """Close so that the other side sees a reset, as when a process dies."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@contextmanager
def connected(
    endpoint: Endpoint, hello: bool = True, replica_id: int = 0, role: Role = Role.SERVER
) -> Iterator[ReplicaPeer]:
    peer = ReplicaPeer(endpoint, hello, replica_id, role)
    try:
        yield peer
    finally:
        peer.socket.close()
