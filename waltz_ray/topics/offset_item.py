"""Where a group is in a partition, as it is kept in a key/value space: names, and values. Pure."""

from __future__ import annotations

import struct

from waltz_ray.errors import BadPayload, InvalidInput
from waltz_ray.protocol.value import value

__all__ = ["OffsetItem", "decode_offset", "encode_offset", "named_offset", "offset_name", "offset_prefix"]

_FORMAT = struct.Struct(">BqqqIq")
_VERSION = 0
_MOST_NAME = 480


@value()
class OffsetItem:
    """``offset``: -1 = nothing is confirmed yet. ``epoch``: rises whenever the offset is taken. ``slot_epoch``,
    ``actor``: under which ownership of its slot it was taken last, and by whom; never by an older one again. ``lost``:
    how many transactions were trimmed before the group came to them."""

    offset: int
    epoch: int
    slot_epoch: int
    actor: int
    lost: int = 0


def offset_name(group: str, topic: str, partition: int) -> str:
    """InvalidInput if the name is too long for an item."""
    name = f"{offset_prefix(group, topic)}{partition}"
    if len(name.encode(errors="replace")) > _MOST_NAME:
        raise InvalidInput(f"group and topic have {len(name)} characters together: {_MOST_NAME} bytes are the most")
    return name


def offset_prefix(group: str, topic: str = "") -> str:
    """Of all names of a group, or of one of its topics."""
    return f"{group}\n{topic}\n" if topic else f"{group}\n"


def named_offset(name: str) -> tuple[str, str, int]:
    """(group, topic, partition). BadPayload if it is none of ours."""
    try:
        group, topic, partition = name.split("\n")
        return group, topic, int(partition)
    except ValueError:
        what = f"{name[:60]!r} is no name of a group's offset: was something else written to its space?"
        raise BadPayload(what) from None


def encode_offset(item: OffsetItem) -> bytes:
    return _FORMAT.pack(_VERSION, item.offset, item.epoch, item.slot_epoch, item.actor, item.lost)


def decode_offset(data: bytes) -> OffsetItem:
    """BadPayload if it is none of ours."""
    if not isinstance(data, bytes) or len(data) != _FORMAT.size or data[0] != _VERSION:
        raise BadPayload(f"{str(data)[:60]} is no offset of a group: was something else written to its space?")
    return OffsetItem(*_FORMAT.unpack(data)[1:])
