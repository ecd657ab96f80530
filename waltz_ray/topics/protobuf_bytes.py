"""Numbers of Protocol Buffers, and what is passed over. Pure.

Positions are checked by who calls: an index past the data is an IndexError, and a position past the end of a message is
seen there.
"""

from __future__ import annotations

import enum

from waltz_ray.errors import BadPayload

__all__ = ["MOST_FIELDS", "ProtoKind", "add_varint", "read_varint", "signed", "skipped"]

MOST_FIELDS = 131_072
"""Of one message, or of one group that is skipped, whatever they are."""


class ProtoKind(enum.IntEnum):
    """What a field holds. The numbers are ours; up to BOOL they are varints."""

    INT32 = 1
    INT64 = 2
    BOOL = 3
    STRING = 4
    BYTES = 5
    MESSAGE = 6
    FIXED32 = 7
    FIXED64 = 8


_UINT64 = (1 << 64) - 1
_MOST_GROUPS = 32  # one in the other


def read_varint(data: bytes, position: int, first: int) -> tuple[int, int]:
    """A number of 64 bits whose first byte was ``first``, the next is at ``position``; and where it ends."""
    if first < 128:
        return first, position
    number = first & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        if byte < 128:
            return (number | byte << shift) & _UINT64, position
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 63:
            raise BadPayload("a number of more than ten bytes")


def add_varint(out: bytearray, number: int) -> None:
    """A number of 64 bits at the end of ``out``; a negative one takes ten bytes."""
    number &= _UINT64
    while number > 127:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def skipped(data: bytes, position: int, end: int, tag: int) -> int:
    """Where the value after an unknown ``tag`` ends. BadPayload if there cannot be one."""
    open_groups: list[int] = []
    for _ in range(MOST_FIELDS):
        number, wire_type = tag >> 3, tag & 7
        if not number or tag > 0xFFFF_FFFF:
            raise BadPayload(f"there is no field number {number}")
        if wire_type == 0:
            _, position = read_varint(data, position + 1, data[position])
        elif wire_type == 1:
            position += 8
        elif wire_type == 5:
            position += 4
        elif wire_type == 2:
            size, position = read_varint(data, position + 1, data[position])
            position += size
        elif wire_type == 3:
            if len(open_groups) >= _MOST_GROUPS:
                raise BadPayload(f"more than {_MOST_GROUPS} groups in one another")
            open_groups.append(number)
        elif wire_type == 4:
            if not open_groups or open_groups.pop() != number:
                raise BadPayload(f"the end of a group {number} that has not begun")
        else:
            raise BadPayload(f"field {number} has the wire type {wire_type}, which there is not")
        if position > end:
            raise BadPayload(f"field {number} goes on past the end of its message")
        if not open_groups:
            return position
        tag, position = read_varint(data, position + 1, data[position])
    raise BadPayload(f"a group of more than {MOST_FIELDS} fields")


def signed(kind: int, number: int) -> int:
    """What the bits of a number mean: int32 has the lower half of them."""
    if kind == ProtoKind.INT32:
        return ((number & 0xFFFF_FFFF) ^ 0x8000_0000) - 0x8000_0000
    if kind == ProtoKind.INT64 and number >> 63:
        return number - (1 << 64)
    return number != 0 if kind == ProtoKind.BOOL else number
