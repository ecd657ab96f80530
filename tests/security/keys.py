"""A secret for tests, and the two sides that know it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.stream import GreetedStream
from waltz_ray.net.tls import replica_tls
from waltz_ray.protocol.authentication import NEVER, SECRET_BYTES, Role, Secret
from waltz_ray.security.handshakes import Doorkeeper, Keyring
from waltz_ray.security.secret_file import SecretFile
from waltz_ray.wire.authentication import AUTHENTICATION_VERSION, HandshakeInBytes
from waltz_ray.wire.framing import MAGIC_AUTHENTICATION, MAGIC_REPLICA, FrameDecoder, encode_frame
from waltz_ray.wire.replica_codec import REPLICA_VERSIONS

__all__ = ["SECRET", "SilentReplica", "Trusting", "doorkeeper", "keyring", "prove_over", "secret_in", "until"]

_BYTES = bytes(range(SECRET_BYTES))
SECRET = Secret(_BYTES)


def doorkeeper(replica_id: int = 0, secret: Secret = SECRET, tls_only: bool = False) -> Doorkeeper:
    """Of a replica."""
    return Doorkeeper(lambda: secret, replica_id, tls_only)


def keyring(role: Role = Role.SERVER, secret: Secret = SECRET, expires_ms: int = NEVER, authority: str = "") -> Keyring:
    """Of who opens connections, with TLS if it trusts somebody."""
    return Keyring(lambda: secret.credential(role, expires_ms), lambda: replica_tls(authority))


def secret_in(directory: Path) -> SecretFile:
    """A file as ``waltz up`` makes it there, with ``SECRET``."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "cluster.secret"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(f"waltz-secret-1 {_BYTES.hex()}\n")
    return SecretFile(str(path))


def prove_over(connection: socket.socket, handshake: HandshakeInBytes) -> None:
    """Until it is done, HELLOs left out. EOFError if the peer has closed; AssertionError with the failure."""
    decoder = FrameDecoder(1 << 20)

    def say(payload: bytes | None) -> None:
        if payload is not None:
            connection.sendall(encode_frame(MAGIC_AUTHENTICATION, AUTHENTICATION_VERSION, payload))
        assert not handshake.failure, handshake.failure

    say(handshake.begin())
    while not handshake.done:
        data = connection.recv(1 << 16)
        if not data:
            raise EOFError
        for frame in decoder.feed(data):
            if frame.magic == MAGIC_AUTHENTICATION:
                say(handshake.take(frame.payload))


class _Proved:
    """A handshake in which nothing is said."""

    done, failure = True, ""

    def begin(self) -> None:
        """Nothing is said."""

    def take(self, payload: memoryview) -> bytes | None:
        raise AssertionError(f"somebody proves something here: {payload!r}")


class Trusting(Keyring):
    """For simulations: both sides take each other for what they are without a word, so that the histories of seeds are
    those of the log alone. The proof is pure, and has tests of its own."""

    def __init__(self) -> None:
        super().__init__(lambda: SECRET.credential(Role.SERVER))

    def open(self, replica_id: int, channel: bytes = b"") -> Any:
        return _Proved()


class SilentReplica(GreetedStream):
    """Proves what a replica has to, and says nothing after that. ``deaf``: nor does it read."""

    def __init__(self, replica_id: int = 0, deaf: bool = False) -> None:
        prove = lambda channel: doorkeeper(replica_id).accept(channel)[1]  # noqa: E731
        super().__init__(MAGIC_REPLICA, REPLICA_VERSIONS, 1 << 24, "silent replica", Outgoing(), prove=prove)
        self._deaf = deaf

    def on_ready(self) -> None:
        super().on_ready()
        if self._deaf:
            self.hold_input("deaf")

    def on_frame(self, frame: memoryview) -> None:
        """It does not answer."""


def until(condition: Callable[[], object]) -> None:
    """Another thread brings it about, and tells nobody."""
    waiting = threading.Event()
    for _ in range(20_000):
        if condition():
            return
        waiting.wait(0.001)
    raise AssertionError("it never came")
