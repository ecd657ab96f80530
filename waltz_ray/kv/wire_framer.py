"""Cuts the bytes of a kv connection into frames, as a ``net.framer.Framer``. Pure."""

from __future__ import annotations

from collections.abc import Callable

from waltz_ray.errors import WireError
from waltz_ray.kv.wire import HEADER, MAX_FRAME_BYTES

__all__ = ["HELD_FREELY", "KvFrame", "KvFramer"]

KvFrame = tuple[int, int, int, bytes | None]
"""Opcode, opcode that is replied to (0: it is a command), message ID, payload. None: there was no room for the payload,
it has been dropped."""

HELD_FREELY = 64 * 1024
"""So much of a frame that has not come whole is kept without asking for room."""

_HEADER_BYTES = HEADER.size


class KvFramer:
    """One connection's. A header that names more than ``max_frame_bytes`` is a WireError, before any of it is kept.

    ``room(bytes)`` is asked whether so much of a frame that is not whole may be kept, and told 0 when none is any
    more. Where it says no, the rest of the frame is dropped as it comes, and its payload is None.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES, room: Callable[[int], bool] | None = None) -> None:
        self.ready = False
        """A whole frame has come."""
        self.error: WireError | None = None
        """What follows the frames that were returned last is not of this protocol: ``feed`` raises it from now on."""
        self._most = max_frame_bytes
        self._room = room
        self._asked = False  # room was given for what is in _rest
        self._rest = bytearray()  # of a frame that is not whole
        self._wanted = _HEADER_BYTES  # its size, as far as it is known
        self._dropping = 0  # bytes that are to come and go

    def feed(self, data: bytes) -> list[KvFrame]:
        """The frames that ``data`` completes. WireError as soon as no frame is before what is wrong."""
        if self.error is not None:
            raise self.error
        frames: list[KvFrame] = []
        if self._rest:
            data = self._completed(data, frames)
        position, end = 0, len(data)
        while end - position >= _HEADER_BYTES:
            opcode, replied_to, message_id, size = HEADER.unpack_from(data, position)
            stop = position + _HEADER_BYTES + size
            if stop - position > self._most:
                self._fail(stop - position, bool(frames))
                position = end
            elif stop > end:
                self._wanted = stop - position
                break
            else:
                frames.append((opcode, replied_to, message_id, data[position + _HEADER_BYTES : stop]))
                position = stop
        if position < end:
            self._rest += memoryview(data)[position:]
            self._keep()
        if frames:
            self.ready = True
        return frames

    def _completed(self, data: bytes, frames: list[KvFrame]) -> bytes:
        """What is to be cut now: nothing while the frame begun is not whole."""
        if self._dropping:
            gone = min(self._dropping, len(data))
            self._dropping -= gone
            if self._dropping:
                return b""
            opcode, replied_to, message_id, _ = HEADER.unpack(self._rest)
            frames.append((opcode, replied_to, message_id, None))
            data = data[gone:]
        else:
            self._rest += data
            if len(self._rest) < self._wanted:
                self._keep()
                return b""
            data = bytes(self._rest)
            if self._asked and self._room is not None:
                self._room(0)
                self._asked = False
        self._rest = bytearray()
        self._wanted = _HEADER_BYTES
        return data

    def _keep(self) -> None:
        """Only if there is room for it."""
        held = len(self._rest)
        if held <= HELD_FREELY or self._room is None:
            return
        self._asked = self._room(held)
        if not self._asked:
            self._room(0)
            self._dropping = self._wanted - held
            del self._rest[_HEADER_BYTES:]

    def _fail(self, size: int, later: bool) -> None:
        self.error = WireError(f"a frame of {size} bytes is impossible here, the limit is {self._most}")
        if not later:
            raise self.error

    def eof(self) -> None:
        """WireError if the stream ends inside a frame."""
        if self._rest and self.error is None:
            raise WireError(f"the peer closed the connection inside a frame, {len(self._rest)} bytes into it")
