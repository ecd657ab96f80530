"""An asyncio stream of frames: HELLO first, whole frames in, whole frames out.

Used for both data-plane protocols (magic ``L`` from clients, magic ``R`` to replicas). The subclass gets
``on_ready`` after the HELLOs, ``on_payload`` per frame and ``on_closed`` exactly once.

What one peer has sent at once may be thousands of frames. They are worked off for some milliseconds a turn of the loop;
until all are done nothing more is read from that peer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import cast

from waltz_ray.actors.outgoing import Outgoing, Outlet
from waltz_ray.errors import WireError
from waltz_ray.runtime.watchdog import SLOW_S
from waltz_ray.wire.framing import Frame, FrameDecoder, Hello, decode_hello, encode_hello, negotiate

__all__ = ["FramedStream"]

log = logging.getLogger(__name__)

_TURN_S = SLOW_S / 2


class FramedStream(asyncio.Protocol):
    """One connection. All methods run in the event loop."""

    def __init__(
        self, magic: int, versions: tuple[int, ...], max_frame_bytes: int, greeting: str, outgoing: Outgoing
    ) -> None:
        self.magic = magic
        self.version = -1  # negotiated; -1 before the peer's HELLO
        self.peer = "?"
        self.closed = False
        self._versions = versions
        self._greeting = greeting
        self._decoder = FrameDecoder(max_frame_bytes, greeted=False)
        self._frames: deque[Frame] = deque()  # have come and are not worked off
        self._holds: set[str] = set()  # why nothing is read from the peer at the moment
        self._outgoing = outgoing
        self._transport: asyncio.Transport | None = None
        self._outlet: Outlet | None = None
        self._loop = asyncio.get_running_loop()
        self._reason = "closed by the peer"

    # ---- for the subclass -------------------------------------------------------------------------------

    def on_ready(self) -> None:
        """HELLOs are exchanged, ``version`` is set."""

    def on_payload(self, payload: memoryview) -> None:
        """One frame. A WireError raised here closes the connection after ``on_protocol_error``."""
        raise NotImplementedError

    def on_protocol_error(self, error: WireError) -> None:
        """The peer broke the protocol; the connection is closed right after."""

    def on_closed(self, reason: str) -> None:
        """The connection is gone."""

    def hold_input(self, why: str) -> None:
        """Read nothing from the peer until ``release_input(why)``; what has been read already is still handled."""
        if not self._holds and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._holds.add(why)

    def release_input(self, why: str) -> None:
        if why not in self._holds:
            return
        self._holds.remove(why)
        if not self._holds and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # ---- out --------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Send one whole frame: at once, or with the others of this piece of input (``outgoing``)."""
        if self._outlet is not None and not self.closed:
            self._outlet.write(frame)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer has not taken yet."""
        return 0 if self._outlet is None else self._outlet.unsent_bytes

    def abort(self, reason: str) -> None:
        """Close at once, dropping what is unsent."""
        self._reason = reason
        if self._outlet is not None and not self.closed:
            self._outlet.abort()

    def finish(self, reason: str) -> None:
        """Close after what is unsent has been sent."""
        self._reason = reason
        if self._outlet is not None and not self.closed:
            self._outlet.close()

    # ---- asyncio ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer = str(transport.get_extra_info("peername"))
        self._transport = cast(asyncio.Transport, transport)
        self._outlet = Outlet(self._outgoing, self._transport)
        self._outlet.write(encode_hello(Hello(self._versions, self._greeting)))

    def data_received(self, data: bytes) -> None:
        with self._outgoing:
            try:
                self._frames.extend(self._decoder.feed(data))
            except WireError as error:
                self._frames.clear()
                self._broken(error)
            else:
                self._work_off()

    def _work_off(self) -> None:
        frames, until = self._frames, time.monotonic() + _TURN_S
        try:
            while frames:
                if self.closed:
                    return
                self._take(frames.popleft())
                if frames and time.monotonic() > until:
                    self.hold_input("frames")
                    self._loop.call_soon(self._go_on)
                    return
        except WireError as error:
            frames.clear()
            self._broken(error)

    def _go_on(self) -> None:
        self.release_input("frames")
        with self._outgoing:
            self._work_off()

    def _take(self, frame: Frame) -> None:
        if self.version < 0:
            self._hello(frame.payload)
        elif frame.version != self.version or frame.magic != self.magic:
            # It came in one piece with the HELLO, and was cut before the decoder knew what to expect.
            wanted = f"magic {self.magic:#04x} version {self.version}"
            raise WireError(f"expected {wanted}, got {frame.magic:#04x} {frame.version}")
        else:
            self.on_payload(frame.payload)

    def _broken(self, error: WireError) -> None:
        log.warning("closing the connection with %s: %s", self.peer, error)
        self.on_protocol_error(error)
        self.finish(str(error))

    def _hello(self, payload: memoryview) -> None:
        self.version = negotiate(self._versions, decode_hello(payload).versions)
        self._decoder.expect(self.magic, self.version)
        self.on_ready()

    def eof_received(self) -> bool:
        try:
            self._decoder.eof()
        except WireError as error:
            log.warning("%s: %s", self.peer, error)
            self._reason = str(error)
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self.closed:
            self.closed = True
            self._frames.clear()
            self.on_closed(str(exc) if exc is not None else self._reason)
