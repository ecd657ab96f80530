"""What cuts a connection's bytes into frames. Ours is ``wire.framing.GreetedDecoder``; other protocols bring theirs."""

from __future__ import annotations

from typing import Protocol, TypeVar

__all__ = ["Framer"]

F = TypeVar("F")


class Framer(Protocol[F]):
    """Cuts one connection's bytes into frames; after a ``WireError`` only closing the connection helps."""

    @property
    def ready(self) -> bool:
        """The peer has said what has to come first (HELLO, the first request): it is no longer waited for."""

    def feed(self, data: bytes) -> list[F]:
        """The frames that ``data``, the next piece, completes. ``WireError`` if it is not this protocol."""

    def eof(self) -> None:
        """The stream has ended: ``WireError`` if it ended inside a frame."""
