"""A transport carries a client's byte stream to one partition server and back, in order, or says that it is lost.

The bytes are the same for every transport: frames as in docs/wire.md, HELLO first. All calls happen on the IO
thread's event loop. A stream is an asyncio protocol; what a transport gives it is an ``asyncio.Transport``.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from waltz_ray.client.directory import Location
from waltz_ray.net.connector import Opening

__all__ = ["Introducing", "Opening", "Transport"]


class Introducing(Opening):
    """A stream that can say who opens it."""

    def introduce(self, token: str) -> None:
        """Show ``token`` as soon as the peer has said HELLO."""
        raise NotImplementedError


class Transport(Protocol):
    """What opens a client's connections to servers."""

    shared: Hashable | None
    """Clients of one event loop whose transports have the same may share connections. None: none of them."""

    async def connect(self, location: Location, stream: Opening) -> None:
        """Connect ``stream`` to the server at ``location``; ``OSError`` if that cannot be had."""
