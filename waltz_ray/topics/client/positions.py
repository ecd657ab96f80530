"""Where groups are: read, and set, without asking any topic actor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from waltz_ray.errors import DataUnavailable
from waltz_ray.kv import ABSENT, KvClient
from waltz_ray.topics.offset_item import (
    OffsetItem,
    decode_offset,
    encode_offset,
    named_offset,
    offset_name,
    offset_prefix,
)

__all__ = ["GroupPlace", "positions", "set_position"]

_ATTEMPTS = 8


class GroupPlace(NamedTuple):
    """A group in a partition of a topic."""

    group: str
    topic: str
    partition: int


def positions(items: KvClient, group: str = "", topic: str = "") -> Mapping[GroupPlace, OffsetItem]:
    """Where each is, of one group and topic or of all."""
    found: dict[GroupPlace, OffsetItem] = {}
    for each in items.scan(offset_prefix(group, topic) if group else ""):
        place = GroupPlace(*named_offset(str(each.name)))
        if not topic or place.topic == topic:
            found[place] = decode_offset(each.value)
    return dict(sorted(found.items(), key=lambda each: each[0]))


def set_position(items: KvClient, place: GroupPlace, offset: int) -> None:
    """The group goes on at ``offset``. Whoever consumes the partition is sent away (301), and goes on there when it is
    back. DataUnavailable if others change it all the time."""
    name = offset_name(*place)
    for _ in range(_ATTEMPTS):
        entry = items.get_item(name)
        before = OffsetItem(-1, 0, 0, 0) if entry is None else decode_offset(entry.value)
        after = replace(before, offset=offset, epoch=before.epoch + 1)
        if items.cas(name, encode_offset(after), ABSENT if entry is None else entry.version) is not None:
            return
    raise DataUnavailable(f"the offset of group {place.group} is being changed all the time: try again")
