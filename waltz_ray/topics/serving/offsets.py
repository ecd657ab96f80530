"""Where groups are: items of a key/value space, changed by who has taken them last and by nobody else.

Taking raises the item's epoch, and each change names the version that it is made on. So of two owners of a slot the one
that took the offset last can store it, and the other one is refused; and a write whose fate nobody knows does not land
after the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from waltz_ray.errors import KvNotReady, KvUnknownFate, WaltzError
from waltz_ray.kv import ABSENT, AsyncKvMap
from waltz_ray.topics.offset_item import OffsetItem, decode_offset, encode_offset, offset_name

__all__ = [
    "KvOffsets",
    "OffsetPlace",
    "OffsetResets",
    "Offsets",
    "OffsetsAway",
    "TakenOffset",
    "always",
    "has_the_word",
    "is_older_owner",
    "is_taken_last",
]

_ATTEMPTS = 8
_TROUBLE_S = 30.0  # who was refused has come again by then


@dataclass(frozen=True)
class OffsetsAway:
    """Nobody can say whether it is stored, or taken."""

    reason: str


@dataclass(frozen=True)
class OffsetPlace:
    """Whose offset, and under which ownership of the slot it is asked for."""

    group: str
    topic: str
    partition: int
    actor: int
    slot_epoch: int


@dataclass(frozen=True)
class TakenOffset:
    """``offset``: None = nothing is confirmed yet. ``lost``: as ``OffsetItem`` has it."""

    offset: int | None
    epoch: int
    lost: int = 0


def always() -> bool:
    """Nobody else has a say in it."""
    return True


def has_the_word(still: Callable[[], bool]) -> bool:
    """Whether an offset is to be put, now that it is known what is there."""
    return still()


def is_taken_last(epoch: int, found: int) -> bool:
    """Whether nobody has taken the offset since it was taken with ``epoch``; ``found``: the last one."""
    return epoch == found


def is_older_owner(slot_epoch: int, found: int) -> bool:
    """Whether somebody has taken the offset under a newer ownership of its slot, ``found``, than ours."""
    return slot_epoch < found


class Offsets(Protocol):
    """What a slot needs of it."""

    @property
    def trouble(self) -> str:
        """Why no group could begin or confirm when one last tried to, a short while ago; "" = it could."""
        ...

    async def take(self, place: OffsetPlace) -> TakenOffset | OffsetsAway:
        """Read the offset and raise its epoch, in one step."""
        ...

    async def store(self, place: OffsetPlace, offset: int, epoch: int, lost: int) -> bool | OffsetsAway:
        """Store it, and what is ``lost`` by now, if it was taken last with ``epoch``; whether it is stored."""
        ...


class OffsetResets(Protocol):
    """What a master needs of it."""

    async def put(self, group: str, topic: str, partition: int, offset: int, still: Callable[[], bool] = always) -> str:
        """The group goes on there; whoever has taken the offset is refused from then on. "", or why it is not so.

        ``still``: whether that is to be done, asked between what is read and the change that is made on it. So who has
        the word no more when he is asked changes nothing, and neither does he who loses it after that, once who has it
        now, or a slot, has changed the offset.
        """
        ...


class KvOffsets:
    """In ``items``: a client of a key/value space, or a map of one."""

    def __init__(self, items: AsyncKvMap, timeout_s: float = 5.0) -> None:
        self._items = items
        self._timeout_s = timeout_s
        self._taken: dict[str, tuple[int, int]] = {}  # name -> the epoch it was taken with, and the version it is at
        self._failed: tuple[str, float] | None = None  # why, and when by the loop's clock

    @property
    def trouble(self) -> str:
        if self._failed is None or asyncio.get_running_loop().time() > self._failed[1] + _TROUBLE_S:
            return ""
        return f"no group can begin or confirm: {self._failed[0]}"

    async def take(self, place: OffsetPlace) -> TakenOffset | OffsetsAway:
        try:
            taken = await self._take(place, offset_name(place.group, place.topic, place.partition))
        except WaltzError as error:
            return self._away(error)
        self._failed = None
        return taken

    async def store(self, place: OffsetPlace, offset: int, epoch: int, lost: int) -> bool | OffsetsAway:
        item = OffsetItem(offset, epoch, place.slot_epoch, place.actor, lost)
        try:
            stored = await self._store(offset_name(place.group, place.topic, place.partition), item)
        except WaltzError as error:  # KvUnknownFate among them: the next write is made on what is there
            return self._away(error)
        self._failed = None
        return stored

    def _away(self, error: WaltzError) -> OffsetsAway:
        if isinstance(error, KvNotReady | KvUnknownFate):  # not what is wrong with one offset alone
            self._failed = str(error), asyncio.get_running_loop().time()
        return OffsetsAway(str(error))

    async def put(self, group: str, topic: str, partition: int, offset: int, still: Callable[[], bool] = always) -> str:
        try:
            name = offset_name(group, topic, partition)
            for _ in range(_ATTEMPTS):
                before, version = await self._read(name)
                if not has_the_word(still):
                    return "that is for others to do by now"
                after = replace(before, offset=offset, epoch=before.epoch + 1)
                if await self._write(name, after, version) is not None:
                    return ""
        except WaltzError as error:
            return str(error)
        return "others change it all the time"

    async def _take(self, place: OffsetPlace, name: str) -> TakenOffset | OffsetsAway:
        for _ in range(_ATTEMPTS):
            before, version = await self._read(name)
            if is_older_owner(place.slot_epoch, before.slot_epoch):
                return OffsetsAway(f"actor {before.actor} has the slot by a newer epoch")
            after = OffsetItem(before.offset, before.epoch + 1, place.slot_epoch, place.actor, before.lost)
            at = await self._write(name, after, version)
            if at is not None:
                if after.epoch > self._taken.get(name, (0, ABSENT))[0]:
                    self._taken[name] = after.epoch, at
                return TakenOffset(None if after.offset < 0 else after.offset, after.epoch, after.lost)
        return OffsetsAway("others take it all the time")

    async def _store(self, name: str, item: OffsetItem) -> bool:
        known_epoch, version = self._taken.get(name, (0, ABSENT))
        if not is_taken_last(item.epoch, known_epoch):
            return False
        for _ in range(_ATTEMPTS):
            at = await self._write(name, item, version)
            if at is not None:
                if self._is_last(name, item.epoch):
                    self._taken[name] = item.epoch, at
                return True
            found, version = await self._read(name)  # of us, perhaps: a write of which nothing was heard
            if not is_taken_last(item.epoch, found.epoch):
                break
        if self._is_last(name, item.epoch):
            del self._taken[name]
        return False

    def _is_last(self, name: str, epoch: int) -> bool:
        """Whether we have not taken it again meanwhile: the slot may have gone, and come back."""
        return self._taken.get(name, (0, ABSENT))[0] == epoch

    async def _read(self, name: str) -> tuple[OffsetItem, int]:
        entry = await self._items.get_item(name, timeout=self._timeout_s)
        return (OffsetItem(-1, 0, 0, 0), ABSENT) if entry is None else (decode_offset(entry.value), entry.version)

    async def _write(self, name: str, item: OffsetItem, version: int) -> int | None:
        """The new version; None: it is at another one than ``version``."""
        return await self._items.cas(name, encode_offset(item), version, timeout=self._timeout_s)
