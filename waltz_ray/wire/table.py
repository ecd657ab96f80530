"""A protocol's messages in bytes: one table a protocol, one row a message."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from waltz_ray.errors import WireError
from waltz_ray.wire.primitives import BytesLike, Reader

__all__ = ["FastRead", "MessageTable", "MessageRow"]

M = TypeVar("M")

FastRead = Callable[[BytesLike], Any]
"""A message if it is of the one kind that this function knows, else None: then the table says what it is."""


class MessageRow(NamedTuple):
    """One message. ``read`` gets (version, reader behind the type byte), ``write`` (version, message) and returns the
    whole payload in parts, type byte included."""

    number: int
    name: str
    cls: type[Any]
    since: int  # version
    read: Callable[[int, Reader], Any]
    write: Callable[[int, Any], list[BytesLike]]


class MessageTable(Generic[M]):
    """The messages of ``protocol``. Of several rows of one class the first one is written."""

    def __init__(self, protocol: str, rows: Iterable[MessageRow], fast: Sequence[tuple[int, FastRead]] = ()) -> None:
        """``fast``: (version from which it exists, function) of what nearly all messages are, tried first."""
        self.rows = {row.number: row for row in rows}
        self.names = {number: row.name for number, row in self.rows.items()}
        self._protocol = protocol
        self._fast = tuple(fast)
        self._of_class: dict[type[Any], MessageRow] = {}
        for row in self.rows.values():
            self._of_class.setdefault(row.cls, row)

    def decode(self, version: int, payload: BytesLike) -> M:
        """One message. Bodies and data are views of ``payload``, columns are copies. ``WireError`` for all else."""
        for since, read in self._fast:
            if version >= since:
                message: M | None = read(payload)
                if message is not None:
                    return message
        reader = Reader(payload, self.names)
        row = self.rows.get(reader.type)
        if row is None or version < row.since:
            raise WireError(f"message {reader.label} is unknown in version {version} of the {self._protocol}")
        slow: M = row.read(version, reader)
        reader.done()
        return slow

    def encode(self, version: int, message: M) -> list[BytesLike]:
        """The payload in parts, to be joined once in the frame; bodies and data are not copied.

        ``WireError`` if this version has no such message or a number does not fit its place.
        """
        row = self._of_class.get(message.__class__)
        if row is None or version < row.since:
            name = type(message).__name__
            raise WireError(f"{name} does not exist in version {version} of the {self._protocol}")
        try:
            return row.write(version, message)
        except struct.error as error:
            raise WireError(f"{type(message).__name__} cannot be written: {error}") from None
