"""Protocol Buffers (proto2) by tables: a ``ProtoCodec`` turns one class of values into bytes and back. Pure.

The encoding is the public one (protobuf.dev, "Encoding"). Fields are written in the order of their numbers, absent ones
(None, or no items) are not. On reading, unknown fields are skipped, the last of several values of a field counts, and
what is not in the bytes is None. Where we are stricter than others: a string must be UTF-8, a nested message that is
not repeated comes once, and a repeated field has at most ``MAX_REPEATED`` items, a message ``MOST_FIELDS`` fields.
Nothing is kept of what is skipped, and no length is believed that is not there: a message takes memory in proportion
to its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Generic, TypeVar

from waltz_ray.errors import BadPayload, InvalidInput
from waltz_ray.protocol.value import value
from waltz_ray.topics.protobuf_bytes import MOST_FIELDS, ProtoKind, add_varint, read_varint, signed, skipped

__all__ = ["MAX_REPEATED", "ProtoCodec", "ProtoField", "ProtoKind", "optional", "repeated", "required"]

T = TypeVar("T")

MAX_REPEATED = 65_536
"""Items of one repeated field, in and out."""


_FIELDS = range(MOST_FIELDS)  # a message of 28 MiB that is all fields would keep an event loop for seconds
_INT32, _INT64, _BOOL, _STRING, _BYTES, _MESSAGE, _FIXED32, _FIXED64 = map(int, ProtoKind)
_PACKED = 16  # added to the kind of a repeated number, for those that come as one run of bytes
_WIDTHS = {_FIXED32: 4, _FIXED64: 8}
_MOST_INT32 = 0x7FFF_FFFF
_WIRE_TYPES = {_STRING: 2, _BYTES: 2, _MESSAGE: 2, _FIXED32: 5, _FIXED64: 1}
_LIMITS = {
    _INT32: (-(1 << 31), 1 << 31),
    _INT64: (-(1 << 63), 1 << 63),
    _FIXED32: (0, 1 << 32),
    _FIXED64: (0, 1 << 64),
}


@value()
class ProtoField:
    """One row of a table: a field as the protocol names it. ``codec``: that of a nested message."""

    number: int
    name: str
    kind: ProtoKind
    codec: ProtoCodec[Any] | None = None
    is_required: bool = False
    is_repeated: bool = False

    @property
    def attribute(self) -> str:
        """Its name in our classes: ``errCode`` is ``err_code``."""
        return re.sub("([A-Z])", lambda found: "_" + found[1].lower(), self.name)

    @property
    def tag(self) -> int:
        """What stands before a single value of it."""
        return self.number << 3 | _WIRE_TYPES.get(self.kind, 0)


def required(number: int, name: str, kind: ProtoKind, codec: ProtoCodec[Any] | None = None) -> ProtoField:
    """A field without which there is no message."""
    return ProtoField(number, name, kind, codec, is_required=True)


def optional(number: int, name: str, kind: ProtoKind, codec: ProtoCodec[Any] | None = None) -> ProtoField:
    """A field that may be absent: None."""
    return ProtoField(number, name, kind, codec)


def repeated(number: int, name: str, kind: ProtoKind, codec: ProtoCodec[Any] | None = None) -> ProtoField:
    """A field with a tuple of values, which may be empty."""
    return ProtoField(number, name, kind, codec, is_repeated=True)


class ProtoCodec(Generic[T]):
    """Bytes of one class, whose fields are those of the table in the same order."""

    def __init__(self, kind: type[T], *table: ProtoField) -> None:
        names = tuple(row.attribute for row in table)
        if names != tuple(each.name for each in fields(kind)):  # type: ignore[arg-type]
            raise InvalidInput(f"the table of {kind.__name__} has not the fields of the class: {names}")
        self.kind = kind
        self.table = table
        self._name = kind.__name__
        self._values = attrgetter(*names) if len(names) > 1 else _only(names[0])
        self._absent: list[Any] = [() if row.is_repeated else None for row in table]
        self._repeated = [slot for slot, row in enumerate(table) if row.is_repeated]
        self._required = sum(1 << slot for slot, row in enumerate(table) if row.is_required)
        # tag -> where its value goes, what it is, the bit of its being there, repeated, codec
        self._readers: dict[int, tuple[int, int, int, bool, ProtoCodec[Any] | None]] = {}
        self._writers: list[tuple[bytes, int, ProtoField]] = []
        for slot, row in enumerate(table):
            self._readers[row.tag] = (slot, int(row.kind), 1 << slot, row.is_repeated, row.codec)
            if row.is_repeated and row.tag & 7 != 2:
                self._readers[row.number << 3 | 2] = (slot, _PACKED + row.kind, 0, True, None)
            tag = bytearray()
            add_varint(tag, row.tag)
            self._writers.append((bytes(tag), int(row.kind), row))

    # ---- in ------------------------------------------------------------------------------------------------

    def decode(self, data: bytes, start: int = 0, end: int | None = None) -> T:
        """The message in ``data[start:end]``. BadPayload if there is none."""
        try:
            return self._decode(data, start, len(data) if end is None else end)
        except IndexError:
            raise BadPayload(f"{self._name}: it ends inside a field") from None

    def _decode(self, data: bytes, position: int, end: int) -> T:
        values = self._absent.copy()
        readers = self._readers
        seen = 0
        for _ in _FIELDS:
            if position >= end:
                break
            tag = data[position]
            position += 1
            if tag > 127:
                tag, position = read_varint(data, position, tag)
            reader = readers.get(tag)
            if reader is None:
                position = skipped(data, position, end, tag)
                continue
            slot, kind, bit, many, codec = reader
            if kind > _MESSAGE:
                position = self._seldom(data, position, end, kind, slot, values)
                seen |= bit
                continue
            number = data[position]  # the value, or how long it is
            position += 1
            if number > 127:
                number, position = read_varint(data, position, number)
            found: Any
            if kind <= _INT64:
                found = number if number <= _MOST_INT32 else signed(kind, number)
            elif kind == _BOOL:
                found = number != 0
            else:
                start = position
                position += number
                if position > end or (kind == _MESSAGE and seen & bit and not many):
                    raise BadPayload(f"{self._name}.{self.table[slot].name}: {_wrong(number, end - start)}")
                found = data[start:position]
                if kind == _STRING:
                    found = self._text(found, slot)
                elif codec is not None:
                    found = codec._decode(found, 0, number)
            seen |= bit
            if many:
                self._add(values, slot, found)
            else:
                values[slot] = found
        else:
            raise BadPayload(f"{self._name}: more than {MOST_FIELDS} fields")
        return self._whole(values, seen, position == end)

    def _whole(self, values: list[Any], seen: int, at_the_end: bool) -> T:
        if not at_the_end:
            raise BadPayload(f"{self._name}: it ends inside a field")
        if seen & self._required != self._required:
            missing = [row.name for slot, row in enumerate(self.table) if row.is_required and not seen >> slot & 1]
            raise BadPayload(f"{self._name}: {' and '.join(missing)} must be there, and is not")
        for slot in self._repeated:
            if values[slot]:
                values[slot] = tuple(values[slot])
        return self.kind(*values)

    def _seldom(self, data: bytes, position: int, end: int, kind: int, slot: int, values: list[Any]) -> int:
        """A number of fixed width, or a run of numbers without tags; returns where it ends."""
        row = self.table[slot]
        stop = end
        if packed := kind >= _PACKED:
            kind -= _PACKED
            size, position = read_varint(data, position + 1, data[position])
            stop = position + size
            if stop > end:
                raise BadPayload(f"{self._name}.{row.name}: {_wrong(size, end - position)}")
        while position < stop:
            if width := _WIDTHS.get(kind):
                number = int.from_bytes(data[position : position + width], "little")
                position += width
            else:
                number, position = read_varint(data, position + 1, data[position])
            if position > stop:
                break
            found = signed(kind, number)
            if row.is_repeated:
                self._add(values, slot, found)
            else:
                values[slot] = found
            if not packed:
                return position
        if position != stop or not packed:
            raise BadPayload(f"{self._name}.{row.name}: it ends inside a number")
        return position

    def _text(self, content: bytes, slot: int) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise BadPayload(f"{self._name}.{self.table[slot].name}: it is not UTF-8") from None

    def _add(self, values: list[Any], slot: int, found: object) -> None:
        items = values[slot]
        if not items:
            values[slot] = [found]
        elif len(items) >= MAX_REPEATED:
            raise BadPayload(f"{self._name}.{self.table[slot].name}: more than {MAX_REPEATED} items")
        else:
            items.append(found)

    # ---- out -----------------------------------------------------------------------------------------------

    def encode(self, message: T) -> bytes:
        """Its bytes. InvalidInput if a value does not fit its field, or a required one is None."""
        out = bytearray()
        self.write(message, out)
        return bytes(out)

    def write(self, message: T, out: bytearray) -> None:
        """``encode``, at the end of ``out``."""
        for (tag, kind, row), found in zip(self._writers, self._values(message), strict=True):
            if row.is_repeated:
                if len(found) > MAX_REPEATED:
                    raise InvalidInput(f"{self._name}.{row.name}: {len(found)} items, {MAX_REPEATED} are the most")
                for item in found:
                    self._write_one(tag, kind, row, item, out)
            elif found is not None:
                self._write_one(tag, kind, row, found, out)
            elif row.is_required:
                raise InvalidInput(f"{self._name}.{row.name} must be given")

    def _write_one(self, tag: bytes, kind: int, row: ProtoField, found: Any, out: bytearray) -> None:
        out += tag
        if kind <= _INT64:
            if 0 <= found < 128:
                out.append(found)
            else:
                add_varint(out, self._fitting(found, row))
        elif kind == _BOOL:
            out.append(1 if found else 0)
        elif kind <= _MESSAGE:
            if kind == _STRING:
                found = self._utf8(found, row)
            elif row.codec is not None:
                inner = bytearray()
                row.codec.write(found, inner)
                found = inner
            size = len(found)
            if size < 128:
                out.append(size)
            else:
                add_varint(out, size)
            out += found
        else:
            out += self._fitting(found, row).to_bytes(_WIDTHS[kind], "little")

    def _fitting(self, number: int, row: ProtoField) -> int:
        least, end = _LIMITS[row.kind]
        if not least <= number < end:
            raise InvalidInput(f"{self._name}.{row.name}: {number} does not fit {row.kind.name.lower()}")
        return number

    def _utf8(self, text: str, row: ProtoField) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"{self._name}.{row.name}: {text[:40]!r} is not Unicode text") from None


def _wrong(size: int, left: int) -> str:
    return f"{size} bytes, where {left} are left" if size > left else "it comes twice"


def _only(name: str) -> Callable[[Any], tuple[Any, ...]]:
    get = attrgetter(name)
    return lambda message: (get(message),)
