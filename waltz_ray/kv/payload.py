"""The header of a frame, and reading a payload from the front: every length is compared with what is there. Pure."""

from __future__ import annotations

import struct
from typing import Any

from waltz_ray.errors import BadPayload

__all__ = ["HEADER", "PayloadReader", "packed_string"]

HEADER = struct.Struct(">HHII")
"""Opcode, opcode that is replied to (0 in a command), message ID, bytes of the payload."""

_UINT = struct.Struct(">I")
_SHORT = struct.Struct(">H")
_MOST = 65_536  # of a batch's writes or names 4096 are done, and there are 4096 buckets


def packed_string(content: bytes) -> bytes:
    """A string of the document: 4 bytes of length, then the bytes; no NUL ends it."""
    return _UINT.pack(len(content)) + content


class PayloadReader:
    """What it meets is a value or ``BadPayload``; it never reads past the payload."""

    __slots__ = ("_payload", "_position")

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._position = 0

    @property
    def left(self) -> int:
        """Bytes not yet read."""
        return len(self._payload) - self._position

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The values of a fixed layout."""
        start = self._position
        try:
            values = layout.unpack_from(self._payload, start)
        except struct.error:
            raise BadPayload(f"{layout.size} bytes are needed at byte {start}, {self.left} are left") from None
        self._position = start + layout.size
        return values

    def take(self, size: int) -> bytes:
        """So many bytes."""
        start = self._position
        end = self._position = start + size
        if end > len(self._payload):
            raise BadPayload(f"a length of {size} at byte {start}, where {len(self._payload) - start} bytes are left")
        return self._payload[start:end]

    def string(self) -> bytes:
        """A string of the document. A negative length is one of 2 GiB and more, which is not there either."""
        return self.take(self.unpack(_UINT)[0])

    def short_string(self) -> bytes:
        """A name in what is ours: 2 bytes of length, then the bytes."""
        return self.take(self.unpack(_SHORT)[0])

    def count(self, what: str, least_bytes_each: int) -> int:
        """How many ``what`` follow; BadPayload if they cannot all be there, or are more than anybody needs: each
        becomes an object, and the millions in a long frame would hold up an actor for seconds."""
        found: int = self.unpack(_UINT)[0]
        if found * least_bytes_each > self.left:
            raise BadPayload(f"{found} {what} do not fit in the {self.left} bytes that are left")
        if found > _MOST:
            raise BadPayload(f"{found} {what}, {_MOST} are the most")
        return found

    def end(self) -> None:
        """BadPayload if something is left."""
        if self.left:
            raise BadPayload(f"{self.left} bytes too many")
