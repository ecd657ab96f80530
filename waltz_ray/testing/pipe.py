"""A connection in memory: two ends, each an asyncio transport in the event loop of its own side.

Bytes keep their order and are handed over in the receiver's loop, which may be that of another thread. An end that is
aborted drops what is under way to the other, as a broken connection may. A writer is told to pause while more than its
high-water mark has not been taken.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["PipeEnd", "connected_ends"]

_HIGH_BYTES = 64 * 1024


def connected_ends(
    here: asyncio.AbstractEventLoop, there: asyncio.AbstractEventLoop, delay_s: Callable[[], float]
) -> tuple[PipeEnd, PipeEnd]:
    """The two ends of a new connection, in these loops. ``delay_s``: how long the next bytes are under way."""
    ours, theirs = PipeEnd(here, delay_s), PipeEnd(there, delay_s)
    ours.peer, theirs.peer = theirs, ours
    return ours, theirs


class PipeEnd(asyncio.Transport):
    """One end. Nothing is handed over before ``begin``. Methods are for its own loop, if they do not say otherwise."""

    peer: PipeEnd

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: Callable[[], float]) -> None:
        super().__init__({"peername": "memory"})
        self._loop = loop
        self._delay_s = delay_s
        self._protocol: asyncio.Protocol | None = None
        self._lock = threading.Lock()  # of what both sides touch
        self._inbox: deque[tuple[float, bytes | None]] = deque()  # (from when it may be taken, what); None: the end
        self._inbox_bytes = 0
        self._due_s = 0.0
        self._awake = False  # ``_take`` is going to be called
        self._reading = True
        self._closing = self._lost = False
        self._high = _HIGH_BYTES
        self._full = False  # the protocol has been told to pause

    def begin(self, protocol: asyncio.Protocol) -> None:
        """Connect ``protocol`` to this end, and hand over what has come."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._wake()

    # ---- out

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._lost:
            return
        self.peer.put(bytes(data))
        if not self._full and self.get_write_buffer_size() > self._high:
            self._full = True
            assert self._protocol is not None
            self._protocol.pause_writing()
            self.peer.tell_when_taken()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = self._high if high is None else high

    def get_write_buffer_size(self) -> int:
        return self.peer._inbox_bytes

    def _taken(self) -> None:
        """The other side has taken most of what was sent."""
        if self._full and not self._lost:
            self._full = False
            assert self._protocol is not None
            self._protocol.resume_writing()

    # ---- in

    def put(self, data: bytes | None) -> None:
        """Take bytes for this end, from the other side's loop; None: there are no more."""
        with self._lock:
            self._due_s = max(self._due_s, time.monotonic() + self._delay_s())
            self._inbox.append((self._due_s, data))
            self._inbox_bytes += len(data or b"")
        self._wake()

    def cut(self) -> None:
        """Lose what is under way to this end, from the other side's loop; nothing follows."""
        with self._lock:
            self._inbox.clear()
            self._inbox.append((0.0, None))
            self._inbox_bytes = 0
        self._wake()

    def tell_when_taken(self) -> None:
        """Tell the other side, whose loop this is, when most has been taken: it may have been already."""
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self._awake or self._lost:
                return
            self._awake = True
        self._soon(self._take)

    def _soon(self, call: Callable[[], None]) -> None:
        try:
            if _running_loop() is self._loop:
                self._loop.call_soon(call)
            else:
                self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # its loop is closed: whoever was there has left without a word
            self._lost = True

    def _take(self) -> None:
        pieces: list[bytes] = []
        ended, wait_s = False, None
        with self._lock:
            now = time.monotonic()
            while self._inbox and self._reading and self._protocol is not None and not ended:
                due_s, data = self._inbox[0]
                if due_s > now:
                    wait_s = due_s - now
                    break
                self._inbox.popleft()
                ended = data is None
                pieces.append(data or b"")
            self._inbox_bytes -= sum(map(len, pieces))
            self._awake = wait_s is not None
        if wait_s is not None:
            self._loop.call_later(wait_s, self._take)
        if self._inbox_bytes <= self.peer._high // 2 and self.peer._full:
            self.peer._soon(self.peer._taken)
        if pieces and self._protocol is not None and not self._lost and not self._closing:
            self._protocol.data_received(b"".join(pieces))
        if ended:
            self._lose()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._wake()

    def is_reading(self) -> bool:
        return self._reading

    # ---- the end

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Close when what has been written has arrived."""
        if not self._closing:
            self._closing = True
            self.peer.put(None)
            self._soon(self._lose)

    def abort(self) -> None:
        """Close at once; what has not been taken is lost."""
        if not self._closing:
            self._closing = True
            self.peer.cut()
            self._soon(self._lose)

    def _lose(self) -> None:
        if not self._lost:
            self._lost = self._closing = True
            if self._protocol is not None:
                self._protocol.connection_lost(None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
