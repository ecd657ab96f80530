"""Frames of which only a part has come: how much of them a port keeps, and of whom.

A long frame over a thin line takes its time, so there is no limit for the whole of one: it has to get on. Who leaves it
where it is is closed. And of all connections together only so much is kept: above that the frame that began first goes.
So strangers that fill all the room, and get on as slowly as they may, keep nobody else out.

A frame that comes whole costs nothing here. The clock of a connection goes on behind a frame that was long in coming,
until it finds none.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from waltz_ray.net.stream import Stream, least_bytes

__all__ = ["HalfFrame", "HalfFrames"]


class Gathers(Protocol):
    """A framer that says what has come of a frame that is not whole."""

    unfinished: bytearray | None


class HalfFrames:
    """Those of all connections of a port: ``most_bytes`` of them."""

    def __init__(self, most_bytes: int, stall_ms: int) -> None:
        """``stall_ms``: how long one is waited for of which too little comes."""
        self.used_bytes = 0
        self.stall_ms = stall_ms
        self.least_bytes = least_bytes(stall_ms)
        """Of one frame in ``stall_ms``: enough."""
        self._most_bytes = most_bytes
        self._held: dict[HalfFrame, int] = {}  # the one that began first is the first

    def keep(self, frame: HalfFrame, size: int) -> None:
        """So much has come of it; 0: it is whole, or gone."""
        self.used_bytes += size - self._held.get(frame, 0)
        if size:
            self._held[frame] = size
        else:
            self._held.pop(frame, None)
        while self.used_bytes > self._most_bytes:
            next(iter(self._held)).give_up(
                f"no room for its frame: {self.used_bytes} bytes of unfinished ones are kept"
            )


class HalfFrame:
    """That of one connection, if it has one now. Call ``look`` after each turn, ``gone`` at the end."""

    def __init__(self, shared: HalfFrames, framer: Gathers, stream: Stream[Any]) -> None:
        self._shared = shared
        self._framer = framer
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._payload: bytearray | None = None  # as the framer had it when it was looked at last
        self._size = 0
        self._number = 0  # of the frame, to know it again
        self._seen = (0, 0)  # number and size, when the clock was set
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """What has come has been cut into frames."""
        payload = self._framer.unfinished
        if payload is not self._payload:
            self._shared.keep(self, 0)
            self._payload, self._number = payload, self._number + 1
        if payload is not None:
            self._size = len(payload)
            if self._timer is None:
                self._set_clock()
            self._shared.keep(self, self._size)

    def read_again(self) -> None:
        """Nothing was read from the peer for a while, which is not its fault."""
        self._seen = (-1, 0)

    def give_up(self, reason: str) -> None:
        """Close the connection."""
        self._stop()
        self._stream.give_up(reason)

    def gone(self) -> None:
        """The connection is."""
        self._stop()
        self._payload = self._framer.unfinished = None

    def _stop(self) -> None:
        self._shared.keep(self, 0)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_clock(self) -> None:
        self._seen = self._number, self._size
        self._timer = self._loop.call_later(self._shared.stall_ms / 1000, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._payload is None:
            return
        number, size = self._seen
        came = self._size - size
        if number != self._number or came >= self._shared.least_bytes or not self._stream.reads:
            self._set_clock()
        else:
            self.give_up(f"its frame is not whole, and {came} bytes of it have come in {self._shared.stall_ms} ms")
