"""Frames of a topic port: a token, a serial number, and one message in blocks. Pure.

All numbers are 32 bits, big-endian: 0xFF7FF4FE, the serial number, how many blocks, and before each block its length. A
serial number is the asker's own: it comes back as it went, replies may overtake each other. ``TopicFramer`` is a
``net.framer.Framer``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from waltz_ray.errors import InvalidInput, WireError

__all__ = [
    "BLOCK_BYTES",
    "HELD_FREELY",
    "MAX_BLOCKS",
    "MAX_REPLY_BYTES",
    "TOKEN",
    "TopicFrame",
    "TopicFramer",
    "encode_frame",
]

TOKEN = 0xFF7F_F4FE
BLOCK_BYTES = 8192
"""The most of one block."""
MAX_BLOCKS = 3584
"""The most of one frame: 28 MiB, for messages of 20."""
MAX_REPLY_BYTES = 1024 * BLOCK_BYTES
"""C++ clients take no longer reply than this."""
HELD_FREELY = 64 * 1024
"""So much of a message that has not come whole is kept without asking for room."""

TopicFrame = tuple[int, "bytes | None"]
"""Serial number, message. None: there was no room for the message, it has been dropped."""

_HEAD = struct.Struct(">III")
_LENGTH = struct.Struct(">I")
_HEAD_AND_LENGTH = struct.Struct(">IIII")
_TOKEN_BYTES = _LENGTH.pack(TOKEN)


class TopicFramer:
    """Cuts the bytes of one connection. After a wrong token, a number of blocks that is 0 or above ``most_blocks``, or
    a block above ``BLOCK_BYTES``, nothing can be cut any more: WireError.

    ``room(bytes)`` is asked whether so much of a message that is not whole may be kept, and told 0 when none is any
    more. Where it says no, the rest of the message is dropped as it comes.
    """

    def __init__(self, most_blocks: int = MAX_BLOCKS, room: Callable[[int], bool] | None = None) -> None:
        self.ready = False
        """A whole frame has come."""
        self.error: WireError | None = None
        """What follows the frames that were returned last is not of this protocol: ``feed`` raises it from now on."""
        self._most = most_blocks
        self._room = room
        self._asked = False  # room was given for what is in _blocks
        self._rest = bytearray()  # of a head or a block that is not whole
        self._wanted = 0  # its size, as far as it is known
        self._missing = 0  # blocks of the frame begun that have not come whole; 0 = none has begun
        self._serial = 0
        self._blocks: list[bytes] = []
        self._held = 0  # bytes in _blocks
        self._dropping = False

    def feed(self, data: bytes) -> list[TopicFrame]:
        """The frames that ``data`` completes. WireError as soon as no frame is before what is wrong."""
        if self.error is not None:
            raise self.error
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return []
            data = bytes(self._rest)
            self._rest = bytearray()
        frames: list[TopicFrame] = []
        try:
            position = self._cut(data, frames)
        except WireError as error:
            self.error = error
            self._release()
            if not frames:
                raise
        else:
            if position < len(data):
                self._rest += memoryview(data)[position:]
            if self._missing:
                self._keep()
        if frames:
            self.ready = True
        return frames

    def _cut(self, data: bytes, frames: list[TopicFrame]) -> int:
        """Returns where what is not whole begins, and knows then how much of it is wanted."""
        position, end = 0, len(data)
        while True:
            if not self._missing:
                # Most frames are one block, and there as a whole.
                if end - position >= 16:
                    token, serial, count, size = _HEAD_AND_LENGTH.unpack_from(data, position)
                    stop = position + 16 + size
                    if token == TOKEN and count == 1 and size <= BLOCK_BYTES and stop <= end:
                        frames.append((serial, data[position + 16 : stop]))
                        position = stop
                        continue
                if not self._begin(data, position, end):
                    self._wanted = _HEAD.size
                    return position
                position += _HEAD.size
            if end - position < _LENGTH.size:
                self._wanted = _LENGTH.size
                return position
            (size,) = _LENGTH.unpack_from(data, position)
            if size > BLOCK_BYTES:
                raise WireError(f"a block of {size} bytes is impossible here, {BLOCK_BYTES} are the most")
            stop = position + _LENGTH.size + size
            if stop > end:
                self._wanted = stop - position
                return position
            if not self._dropping:
                self._blocks.append(data[position + _LENGTH.size : stop])
                self._held += size
            position = stop
            self._missing -= 1
            if not self._missing:
                frames.append((self._serial, None if self._dropping else b"".join(self._blocks)))
                self._release()

    def _begin(self, data: bytes, position: int, end: int) -> bool:
        """Whether a frame has begun. A token is refused by its first byte."""
        if end - position < _HEAD.size:
            if not data.startswith(_TOKEN_BYTES[: end - position], position):
                raise WireError(f"this is not the protocol of topics, it begins with {data[position : position + 4]!r}")
            return False
        token, self._serial, count = _HEAD.unpack_from(data, position)
        if token != TOKEN:
            raise WireError(f"this is not the protocol of topics, it begins with {data[position : position + 4]!r}")
        if not 0 < count <= self._most:
            raise WireError(f"a frame of {count} blocks is impossible here, it has 1 to {self._most}")
        self._missing = count
        return True

    def _keep(self) -> None:
        """Only if there is room for it."""
        if self._held <= HELD_FREELY or self._room is None or self._dropping:
            return
        self._asked = self._room(self._held)
        if not self._asked:
            self._room(0)
            self._release()
            self._dropping = True

    def _release(self) -> None:
        if self._asked and self._room is not None:
            self._room(0)
        self._asked = self._dropping = False
        self._blocks = []
        self._held = 0

    def eof(self) -> None:
        """WireError if the stream ends inside a frame."""
        if (self._rest or self._missing) and self.error is None:
            raise WireError(f"the peer closed the connection inside a frame, {self._missing} blocks before its end")


def encode_frame(serial: int, message: bytes, most_blocks: int = MAX_BLOCKS) -> bytes:
    """One frame. InvalidInput if ``message`` is empty or too long for ``most_blocks``, or ``serial`` for 32 bits."""
    size = len(message)
    if not 0 <= serial <= 0xFFFF_FFFF:
        raise InvalidInput(f"a serial number has 32 bits, {serial} is none")
    if 0 < size <= BLOCK_BYTES:
        return _HEAD_AND_LENGTH.pack(TOKEN, serial, 1, size) + message
    blocks = -(-size // BLOCK_BYTES)
    if not 0 < blocks <= most_blocks:
        raise InvalidInput(f"a message of {size} bytes cannot be sent, it has 1 to {most_blocks * BLOCK_BYTES}")
    whole = memoryview(message)
    parts: list[bytes | memoryview] = [_HEAD.pack(TOKEN, serial, blocks)]
    length = _LENGTH.pack(BLOCK_BYTES)
    for start in range(0, size - BLOCK_BYTES, BLOCK_BYTES):
        parts += (length, whole[start : start + BLOCK_BYTES])
    last = whole[(blocks - 1) * BLOCK_BYTES :]
    return b"".join([*parts, _LENGTH.pack(len(last)), last])
