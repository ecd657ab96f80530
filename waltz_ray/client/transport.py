"""A transport carries a client's byte stream to one partition server and back, in order, or says that it is lost.

The bytes are the same for every transport: frames as in docs/wire.md, HELLO first. All calls happen on the IO
thread's event loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from waltz_ray.client.directory import Location
from waltz_ray.wire.primitives import BytesLike

__all__ = ["Channel", "Receiver", "Transport"]


class Receiver(Protocol):
    """The reading end of a channel."""

    def received(self, data: bytes | memoryview) -> None:
        """The next bytes of the stream, cut anywhere."""

    def lost(self, error: Exception | None) -> None:
        """The channel has ended, once and for good. None: closed by either side without trouble."""

    def writable(self) -> None:
        """What was written has left; ``Channel.busy`` has become False."""


class Channel(Protocol):
    """The writing end of a channel."""

    @property
    def busy(self) -> bool:
        """So much is waiting to be sent that it is better to gather a larger batch."""

    def write(self, parts: Iterable[BytesLike]) -> None:
        """Send the parts, one after another. Never blocks; after the channel is lost it does nothing."""

    def close(self) -> None:
        """End the channel; ``Receiver.lost(None)`` follows."""


class Transport(Protocol):
    """Opens channels."""

    async def connect(self, location: Location, receiver: Receiver) -> Channel:
        """A channel to the server at ``location``; ``OSError`` if it cannot be had."""
