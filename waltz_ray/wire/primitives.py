"""The small change of every message: bounds-checked reading and plain writing of big-endian values.

A message begins with its type byte. string and bytes are ``int length`` (-1 = null) and content, a bool is one
byte (0 = false, anything else = true, as Java reads it), an int array is ``int n`` and n ints. Packed columns have
no count of their own: one count, read once, stands before all columns of a message.

Whatever a ``Reader`` meets, it answers with a value or with ``WireError``; it never reads past the payload, and a
count is compared with the bytes that are really there before anything of that size is made.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NoReturn

import numpy as np

from waltz_ray.errors import WireError
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.records import RECORD_OVERHEAD_BYTES, Int32s, Int64s

__all__ = ["MAX_LONG", "BytesLike", "Reader", "Writer", "column_bytes", "record_parts"]

BytesLike = bytes | bytearray | memoryview

MAX_LONG = (1 << 63) - 1

_BOOL = struct.Struct(">?")
_INT = struct.Struct(">i")
_UINT = struct.Struct(">I")
_LONG = struct.Struct(">q")
_REQ_ID = struct.Struct(">iiii")
_RECORDS_HEAD = struct.Struct(">qi")
_ONE_RECORD_HEAD = struct.Struct(">qii")
_WIRE_INT = np.dtype(">i4")
_WIRE_LONG = np.dtype(">i8")


class Reader:
    """Reads one message from the front. ``names`` gives the message types their names, for errors only."""

    __slots__ = ("_names", "payload", "position", "type")

    def __init__(self, payload: BytesLike, names: Mapping[int, str]) -> None:
        if not len(payload):
            raise WireError("an empty message: every message begins with its type")
        self.payload = memoryview(payload)
        self.type: int = self.payload[0]
        self.position = 1
        self._names = names

    @property
    def label(self) -> str:
        """``type 5 (APPEND)``: how errors call this message."""
        name = self._names.get(self.type)
        return f"type {self.type} ({name})" if name else f"type {self.type}"

    @property
    def left(self) -> int:
        """Bytes not yet read."""
        return len(self.payload) - self.position

    def fail(self, what: str) -> NoReturn:
        """Raise ``WireError`` about this message."""
        raise WireError(f"message {self.label}: {what}")

    def need(self, size: int) -> int:
        """The current position, after making sure that ``size`` bytes are there; moves past them."""
        start = self.position
        if size > len(self.payload) - start:
            raise WireError(
                f"message {self.label} is cut short at byte {start}: {size} bytes are needed, {self.left} are left"
            )
        self.position = start + size
        return start

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The values of a fixed layout."""
        return layout.unpack_from(self.payload, self.need(layout.size))

    def read_boolean(self) -> bool:
        return bool(self.payload[self.need(1)])

    def read_int(self) -> int:
        value: int = _INT.unpack_from(self.payload, self.need(4))[0]
        return value

    def read_uint(self) -> int:
        """An int read as its 32 bits: a checksum."""
        value: int = _UINT.unpack_from(self.payload, self.need(4))[0]
        return value

    def read_long(self) -> int:
        value: int = _LONG.unpack_from(self.payload, self.need(8))[0]
        return value

    def read_req_id(self) -> ReqId:
        return ReqId(*_REQ_ID.unpack_from(self.payload, self.need(16)))

    def read_count(self, what: str, size_each: int) -> int:
        """An int that says how many ``what`` follow, each of at least ``size_each`` bytes."""
        value = self.read_int()
        self.check_count(value, what, size_each)
        return value

    def check_count(self, count: int, what: str, size_each: int) -> None:
        """Refuse a count that is negative or needs more than the bytes that are left."""
        if count < 0 or count * size_each > self.left:
            self.fail(f"{count} {what} do not fit in the {self.left} bytes that are left")

    def read_bytes_or_null(self) -> memoryview | None:
        """The next bytes, not copied but a view of the payload; None for a null."""
        length = self.read_int()
        if length == -1:
            return None
        if length < 0:
            self.fail(f"a length of {length} at byte {self.position - 4}")
        start = self.need(length)
        return self.payload[start : start + length]

    def read_bytes(self) -> memoryview:
        value = self.read_bytes_or_null()
        return value if value is not None else self.fail("bytes are null where they must not be")

    def read_string_or_null(self) -> str | None:
        raw = self.read_bytes_or_null()
        if raw is None:
            return None
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"message {self.label}: a string is not UTF-8: {error.reason}") from None

    def read_string(self) -> str:
        value = self.read_string_or_null()
        return value if value is not None else self.fail("a string is null where it must not be")

    def read_ints(self, most: int) -> tuple[int, ...]:
        """The next array of at most ``most`` ints, with its count before it."""
        count = self.read_count("ints", 4)
        if count > most:  # each becomes an object, which of the millions in a long frame takes a second
            self.fail(f"{count} ints, where {most} are the most")
        return struct.unpack_from(f">{count}i", self.payload, self.need(4 * count))

    def int_column(self, count: int) -> Int32s:
        """``count`` ints, native-endian. ``count`` must have been checked not to be negative."""
        if count == 1:
            return np.array(_INT.unpack_from(self.payload, self.need(4)), np.int32)
        return np.frombuffer(self.payload, _WIRE_INT, count, self.need(4 * count)).astype(np.int32)

    def int_columns(self, rows: int, count: int) -> Int32s:
        """``rows`` int columns of ``count`` each, with one copy: shape (rows, count), native-endian."""
        return self.int_column(rows * count).reshape(rows, count)

    def long_column(self, count: int) -> Int64s:
        """The next ``count`` longs as a column in the machine's byte order."""
        if count == 1:
            return np.array(_LONG.unpack_from(self.payload, self.need(8)), np.int64)
        return np.frombuffer(self.payload, _WIRE_LONG, count, self.need(8 * count)).astype(np.int64)

    def read_body(self, lengths: Int32s) -> memoryview:
        """The rest of the message, which must be exactly the parts that ``lengths`` tells of. Not copied."""
        rest = self.payload[self.position :]
        if len(lengths) == 1 and lengths[0] == len(rest):
            self.position = len(self.payload)
            return rest
        # Read as unsigned, a negative length is larger than any body, so one sum checks sign and size.
        total = int(np.add.reduce(lengths.view(np.uint32), dtype=np.uint64))
        if total != len(rest):
            self.fail(f"the lengths of {len(lengths)} parts do not add up to the {len(rest)} bytes of the body")
        self.position = len(self.payload)
        return rest

    def read_records(self) -> tuple[int, Int32s, memoryview]:
        """``long first ID | int n | int lengths[n] | record bytes``: what ``record_parts`` wrote."""
        first_id, count = _RECORDS_HEAD.unpack_from(self.payload, self.need(12))
        self.check_count(count, "records", 4 + RECORD_OVERHEAD_BYTES)
        self.check_ids(first_id, count)
        lengths = self.int_column(count)
        records = self.read_body(lengths)
        if count and int(lengths[0] if count == 1 else np.minimum.reduce(lengths)) < RECORD_OVERHEAD_BYTES:
            self.fail(f"a record is shorter than {RECORD_OVERHEAD_BYTES} bytes")
        return first_id, lengths, records

    def check_ids(self, first_id: int, count: int) -> None:
        """Refuse a run of transaction IDs that begins below 0 or ends above the last long."""
        if first_id < 0 or first_id > MAX_LONG - count:
            self.fail(f"{count} transactions cannot begin at transaction {first_id}")

    def check_enum(self, kind: type[IntEnum], value: int, what: str) -> None:
        """Refuse a number that is no member of ``kind``."""
        if value not in kind._value2member_map_:
            self.fail(f"{what} {value} is unknown")

    def done(self) -> None:
        """Refuse bytes after the end of the message."""
        if self.position != len(self.payload):
            self.fail(f"{self.left} bytes are left over after byte {self.position}")


class Writer:
    """Collects the parts of one message; ``parts`` is what goes into the frame. Large bytes are not copied."""

    __slots__ = ("parts",)

    def __init__(self, *parts: BytesLike) -> None:
        self.parts: list[BytesLike] = list(parts)

    def write_boolean(self, value: bool) -> None:
        self.parts.append(_BOOL.pack(value))

    def write_int(self, value: int) -> None:
        self.parts.append(_INT.pack(value))

    def write_uint(self, value: int) -> None:
        self.parts.append(_UINT.pack(value))

    def write_long(self, value: int) -> None:
        self.parts.append(_LONG.pack(value))

    def write_req_id(self, value: ReqId) -> None:
        self.parts.append(_REQ_ID.pack(*value))

    def write_bytes(self, value: BytesLike | None) -> None:
        if value is None:
            self.parts.append(_INT.pack(-1))
        else:
            self.parts += (_INT.pack(len(value)), value)

    def write_string(self, value: str | None) -> None:
        self.write_bytes(None if value is None else value.encode())

    def write_ints(self, values: tuple[int, ...]) -> None:
        self.parts.append(struct.pack(f">i{len(values)}i", len(values), *values))

    def to_bytes(self) -> bytes:
        return b"".join(self.parts)


def column_bytes(column: Int32s | Int64s, wire_type: str, count: int) -> bytes:
    """One column of ``count`` values as big-endian bytes; ``wire_type`` is a numpy type such as ``>i4``.

    A column of a wider type would be cut silently, one of another length would shift all that follows: both are
    refused, as ``TypeError`` by numpy and as ``WireError``.
    """
    if len(column) != count:
        raise WireError(f"a column of {len(column)} values in a message of {count}")
    return column.astype(wire_type, casting="safe").tobytes()


def record_parts(first_id: int, lengths: Int32s, records: BytesLike) -> list[BytesLike]:
    """``long first ID | int n | int lengths[n] | record bytes``; the record bytes are not copied."""
    count = len(lengths)
    if count == 1 and lengths.dtype == np.int32:
        return [_ONE_RECORD_HEAD.pack(first_id, 1, lengths[0]), records]
    head = _RECORDS_HEAD.pack(first_id, count) + lengths.astype(">i4", casting="safe").tobytes()
    return [head, records] if len(records) else [head]
