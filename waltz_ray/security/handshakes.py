"""The two sides of a connection to a replica, with the nonces and clocks that the pure machines are given."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from typing import Any

from waltz_ray.protocol.authentication import (
    NONCE_BYTES,
    AcceptingHandshake,
    Credential,
    OpeningHandshake,
    Role,
    Secret,
)
from waltz_ray.security.secret_file import SecretFile
from waltz_ray.wire.authentication import HandshakeInBytes

__all__ = ["TICKET_MS", "Doorkeeper", "Keyring", "OpenersTls", "ticket_end_ms"]

TICKET_MS = 7 * 24 * 3_600_000
"""How long a ticket is good, in milliseconds: longer than a job, shorter than a person's memory."""

OpenersTls = Callable[[], ssl.SSLContext]
"""Is asked for each connection (``net.tls.ClientTls``); that of a reader can be pickled."""


class Doorkeeper:
    """A replica's side: believes who knows ``secret()``, which is asked for each connection."""

    def __init__(self, secret: Callable[[], Secret], replica_id: int, tls_only: bool = False) -> None:
        """``tls_only``: nobody is believed without TLS."""
        self._secret, self._replica_id, self._tls_only = secret, replica_id, tls_only

    def accept(self, channel: bytes = b"") -> tuple[AcceptingHandshake, HandshakeInBytes]:
        """For one connection: the machine, which says who it is in the end, and the same for its socket."""
        now_ms = time.time_ns() // 1_000_000
        credential_of = self._secret().credential
        nonce = os.urandom(NONCE_BYTES)
        machine = AcceptingHandshake(credential_of, self._replica_id, nonce, channel, now_ms, self._tls_only)
        return machine, HandshakeInBytes(machine)


def _plain() -> None:
    """Connections to replicas are not encrypted."""


class Keyring:
    """Of who opens connections to replicas: proves what ``credential()`` is for, which is asked for each connection.
    ``tls()`` says how they are encrypted.

    Pickled, that of a reader becomes one with a ticket, made at that time: so tasks that read in other processes get no
    secret, and none has to lie where they run. That of a server cannot be pickled (TypeError).
    """

    def __init__(self, credential: Callable[[], Credential], tls: Callable[[], OpenersTls | None] = _plain) -> None:
        self._credential, self._tls = credential, tls

    @classmethod
    def of_server(cls, file: SecretFile, tls: OpenersTls | None = None) -> Keyring:
        """May do everything."""
        return cls(lambda: file.secret().credential(Role.SERVER), lambda: tls)

    @classmethod
    def of_reader(cls, file: SecretFile, tls: OpenersTls | None = None) -> Keyring:
        """May read. It does not end in this process."""
        return cls(lambda: file.secret().credential(Role.READER, ticket_end_ms()), lambda: tls)

    @classmethod
    def of_ticket(cls, ticket: Credential, tls: OpenersTls | None = None) -> Keyring:
        """What the ticket is for, until it ends."""
        return cls(lambda: ticket, lambda: tls)

    def context(self) -> ssl.SSLContext | None:
        """Of the next connection; None: it is plain. ConfigError if the file of authorities cannot be used."""
        tls = self._tls()
        return None if tls is None else tls()

    def open(self, replica_id: int, channel: bytes = b"") -> HandshakeInBytes:
        """For one connection to that replica. SecretUnusable."""
        return HandshakeInBytes(OpeningHandshake(self._credential(), replica_id, os.urandom(NONCE_BYTES), channel))

    def __reduce__(self) -> tuple[Any, ...]:
        return Keyring.of_ticket, (self._credential(), self._tls())


def ticket_end_ms() -> int:
    """When a ticket that is made now ends, in ms since 1970."""
    return time.time_ns() // 1_000_000 + TICKET_MS
