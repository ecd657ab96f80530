"""What the two sides of a connection prove to each other before its first frame: as much of it as sockets have to know.

``wire.authentication`` has one. ``Prove`` makes one for a connection, of what is known of the encryption below ("" =
none): who has another certificate at its end of the connection proves something else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from waltz_ray.errors import AuthenticationFailed, SecretUnusable

__all__ = ["Handshake", "Prove", "handshake_of"]


class Handshake(Protocol):
    """One side of it. Payloads of frames go in and out; ``WireError`` for what is none."""

    @property
    def done(self) -> bool:
        """The other side has proved what it has to."""
        ...

    @property
    def failure(self) -> str:
        """Why the connection ends, once what was to be said has been sent; "" = it goes on."""
        ...

    def begin(self) -> bytes | None: ...

    def take(self, payload: memoryview) -> bytes | None: ...


Prove = Callable[[bytes], Handshake]


def handshake_of(prove: Prove, channel: bytes) -> Handshake:
    """AuthenticationFailed, saying why, if there is nothing here to prove it with."""
    try:
        return prove(channel)
    except SecretUnusable as error:
        raise AuthenticationFailed(str(error)) from error
