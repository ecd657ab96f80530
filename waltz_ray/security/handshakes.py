"""The two sides of a connection to a replica, with the nonces and clocks that the pure machines are given."""

from __future__ import annotations

import os
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

__all__ = ["TICKET_MS", "Doorkeeper", "Keyring", "ticket_end_ms"]

TICKET_MS = 7 * 24 * 3_600_000
"""How long a ticket is good, in milliseconds: longer than a job, shorter than a person's memory."""


class Doorkeeper:
    """A replica's side: believes who knows ``secret()``, which is asked for each connection."""

    def __init__(self, secret: Callable[[], Secret], replica_id: int) -> None:
        self._secret, self._replica_id = secret, replica_id

    def accept(self, channel: bytes = b"") -> tuple[AcceptingHandshake, HandshakeInBytes]:
        """For one connection: the machine, which says who it is in the end, and the same for its socket."""
        now_ms = time.time_ns() // 1_000_000
        credential_of = self._secret().credential
        machine = AcceptingHandshake(credential_of, self._replica_id, os.urandom(NONCE_BYTES), channel, now_ms)
        return machine, HandshakeInBytes(machine)


class Keyring:
    """Of who opens connections to replicas: proves what ``credential()`` is for, which is asked for each connection.

    Pickled, that of a reader becomes one with a ticket, made at that time: so tasks that read in other processes get no
    secret, and none has to lie where they run. That of a server cannot be pickled (TypeError).
    """

    def __init__(self, credential: Callable[[], Credential]) -> None:
        self._credential = credential

    @classmethod
    def of_server(cls, file: SecretFile) -> Keyring:
        """May do everything."""
        return cls(lambda: file.secret().credential(Role.SERVER))

    @classmethod
    def of_reader(cls, file: SecretFile) -> Keyring:
        """May read. It does not end in this process."""
        return cls(lambda: file.secret().credential(Role.READER, ticket_end_ms()))

    @classmethod
    def of_ticket(cls, ticket: Credential) -> Keyring:
        """What the ticket is for, until it ends."""
        return cls(lambda: ticket)

    def open(self, replica_id: int, channel: bytes = b"") -> HandshakeInBytes:
        """For one connection to that replica. SecretUnusable."""
        return HandshakeInBytes(OpeningHandshake(self._credential(), replica_id, os.urandom(NONCE_BYTES), channel))

    def __reduce__(self) -> tuple[Any, ...]:
        return Keyring.of_ticket, (self._credential(),)


def ticket_end_ms() -> int:
    """When a ticket that is made now ends, in ms since 1970."""
    return time.time_ns() // 1_000_000 + TICKET_MS
