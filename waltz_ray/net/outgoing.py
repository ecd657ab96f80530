"""Frames that are made while one piece of input is handled leave together: one write for each connection.

A write is a system call and wakes a process, and a replica syncs what has woken it. Sixty-four small frames written one
by one are sixty-four of each, and some ten syncs; written together they are one. Nothing waits for this: what is held
leaves as soon as the input that led to it has been handled, and outside of that nothing is held.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

__all__ = ["Outgoing", "Outlet"]

_MOST_HELD_BYTES = 64 * 1024  # of one connection: large frames are worth a write of their own, and sooner


class Outgoing:
    """``with outgoing:`` holds what its outlets send, until the outermost block ends."""

    def __init__(self) -> None:
        self.depth = 0
        self.filled: dict[Outlet, None] = {}

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.depth -= 1
        if not self.depth and self.filled:
            self.flush()

    def flush(self) -> None:
        """Write what all outlets hold."""
        filled, self.filled = self.filled, {}
        for outlet in filled:
            outlet.flush()


class Outlet:
    """One connection's way out."""

    def __init__(self, outgoing: Outgoing, transport: asyncio.WriteTransport) -> None:
        self._outgoing = outgoing
        self._transport = transport
        self.held: list[bytes] = []
        self._held_bytes = 0
        self._closing = False

    def write(self, frame: bytes) -> None:
        """Nothing happens once it has been closed."""
        if self._closing:
            return
        if not self._outgoing.depth:
            self._transport.write(frame)
            return
        self.held.append(frame)
        self._held_bytes += len(frame)
        if self._held_bytes > _MOST_HELD_BYTES:
            self.flush()
        else:
            self._outgoing.filled[self] = None

    def flush(self) -> None:
        """Write what is held, in its order."""
        held, self.held, self._held_bytes = self.held, [], 0
        if held:
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._held_bytes + self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close at once, dropping what is unsent."""
        self.lost()
        self._transport.abort()

    def lost(self) -> None:
        """The connection is gone: nothing is written any more."""
        self._closing = True
        self.held, self._held_bytes = [], 0

    def close(self) -> None:
        """Close after what is unsent has been sent."""
        self._closing = True
        self.flush()
        self._transport.close()
