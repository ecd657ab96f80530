"""What a fold keeps of a kv partition: ordered tables of bytes, and the layouts of their keys and values. Pure.

docs/formats.md, "Key/value records" has the tables that chunks carry (``ITEMS`` to ``CLIENTS``): their numbers, keys
and values never change. The others are made from these and may be as they like: ``FOLD_VERSION`` says how they are.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from waltz_ray.kv.fold_clients import Clients
from waltz_ray.kv.model import SECTIONS, Item, ItemKey, LockHeld, Ownership
from waltz_ray.kv.routing import Unit

__all__ = [
    "CHANGED_BYTES",
    "FOLD_VERSION",
    "FoldMarks",
    "Table",
    "Tables",
    "changed_at",
    "item_deadline",
    "item_key",
    "item_key_of",
    "item_of",
    "item_value",
    "key_in_sections",
    "lock_deadline",
    "lock_key",
    "lock_name",
    "lock_of",
    "lock_value",
    "name_key",
    "number",
    "owner_value",
    "ownership_of",
    "section_of",
    "unit_key",
]

FOLD_VERSION = 4
"""Rises with whatever makes another state of the same log: a projection of another version is folded anew."""


class Table(enum.IntEnum):
    """The first four are what a snapshot has; a value of ITEMS, LOCKS and OWNERS begins with its last change's ID."""

    ITEMS = 1
    """Map hash, hash, name -> the item."""
    LOCKS = 2
    """A zero byte, name -> the lock that is had."""
    OWNERS = 3
    """Mask, bucket -> the unit's owner."""
    CLIENTS = 4
    """Client -> settled, the minute of its last write, and sequence and version of what is not settled; as
    ``fold_clients.py`` has it in memory."""
    NAMES = 5
    """Map hash, name -> hashes of items that have them: one, but for writers who hash oddly."""
    DEADLINES = 6
    """Deadline, key in ITEMS -> nothing."""
    LOCK_DEADLINES = 7
    """Deadline, key in LOCKS -> nothing."""
    TOMBSTONES = 10
    """While a chunk may bring it back: table, key -> the transaction that has removed it."""
    DEFERRED = 11
    """Table, key -> records about what may still come in a chunk, to be done to it then."""


@dataclass
class FoldMarks:
    """How far a fold is, and what else there is one of."""

    mark: int = -1
    """The last transaction folded."""
    begun: int = -1
    """The begin of the snapshot that is open."""
    begun_sections: int = 0
    """What it is of."""
    begun_bytes: int = 0
    """``log_bytes`` at its begin."""
    live_bytes: int = 0
    """Of the state: about what a snapshot of all its sections takes in the log."""
    log_bytes: int = 0
    """Of all that was folded, but for chunks."""
    whole: bool = True
    """False after a beginning that was not the log's, until a snapshot of each section has ended: much is not known
    yet."""
    newest_ms: int = 0
    """The latest time at which anything was decided, by the clocks of who decided it."""
    ended: tuple[int, ...] = (-1,) * SECTIONS
    """Of each section the begin of its last snapshot that is whole."""
    ended_bytes: tuple[int, ...] = (0,) * SECTIONS
    """``log_bytes`` at these."""


class Tables(Protocol):
    """Ordered tables of bytes, marks, and what is known of clients, as one transaction sees and changes them."""

    marks: FoldMarks
    clients: Clients

    def get(self, table: int, key: bytes, /) -> bytes | None: ...

    def put(self, table: int, key: bytes, value: bytes, /) -> None: ...

    def delete(self, table: int, key: bytes, /) -> None:
        """Also if it is not there."""

    def seek(self, table: int, key: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """The entries from ``key`` on, in order. The table must not be changed meanwhile."""

    def under(self, table: int, prefix: bytes, limit: int, /) -> list[tuple[bytes, bytes]]:
        """The first ``limit`` entries whose keys begin so. No value of another entry is touched."""

    def clear(self, table: int, /) -> None: ...


_LONG = struct.Struct(">q")
_TWO_INTS = struct.Struct(">II")
_ITEM = struct.Struct(">qBQB")
_LOCK = struct.Struct(">qQQ")
_OWNER = struct.Struct(">qqIQB")

CHANGED_BYTES = _LONG.size


def changed_at(value: bytes) -> int:
    """The last change of what has this value, in ITEMS, LOCKS or OWNERS."""
    found: int = _LONG.unpack_from(value)[0]
    return found


def number(of: int) -> bytes:
    """A transaction ID as a value."""
    return _LONG.pack(of)


# ---- sections


def section_of(table: int, key: bytes) -> int:
    """Which part of the state an entry belongs to: an item by the first bits of its hash, all else to the first."""
    return key[4] * SECTIONS >> 8 if table == Table.ITEMS else 0


def key_in_sections(key: bytes, sections: int) -> bytes | None:
    """The least key of an item in one of these sections, a bit for each, that is not below ``key``; None: none is."""
    map_hash = int.from_bytes(key[:4].ljust(4, b"\0"), "big")
    section = section_of(Table.ITEMS, key) if len(key) > 4 else 0
    wanted = [each for each in range(SECTIONS) if sections >> each & 1]
    if section in wanted:
        return key
    later = [each for each in wanted if each > section]
    if not later:
        map_hash += 1
    if map_hash >> 32:
        return None
    return map_hash.to_bytes(4, "big") + bytes(((later or wanted)[0] * 256 // SECTIONS,))


# ---- items


def item_key(key: ItemKey) -> bytes:
    return _TWO_INTS.pack(key.map_hash, key.hash) + key.name


def item_key_of(key: bytes) -> ItemKey:
    map_hash, key_hash = _TWO_INTS.unpack_from(key)
    return ItemKey(map_hash, key_hash, key[8:])


def name_key(key: bytes) -> bytes:
    """The key in NAMES of what has ``key`` in ITEMS."""
    return key[:4] + key[8:]


def item_value(version: int, kind: int, deadline_ms: int, map_name: bytes, data: bytes) -> bytes:
    return b"".join((_ITEM.pack(version, kind, deadline_ms, len(map_name)), map_name, data))


def item_of(value: bytes) -> Item:
    version, kind, deadline_ms, length = _ITEM.unpack_from(value)
    start = _ITEM.size + length
    return Item(kind, value[start:], version, deadline_ms, value[_ITEM.size : start])


def item_deadline(value: bytes) -> bytes:
    """As the first 8 bytes of a key in DEADLINES; zeros: none."""
    return value[9:17]


# ---- locks and owners


def lock_key(name: bytes) -> bytes:
    return b"\0" + name


def lock_name(key: bytes) -> bytes:
    return key[1:]


def lock_value(changed: int, code: int, deadline_ms: int) -> bytes:
    return _LOCK.pack(changed, code, deadline_ms)


def lock_of(value: bytes) -> LockHeld:
    return LockHeld(*_LOCK.unpack(value)[1:])


def lock_deadline(value: bytes) -> bytes:
    return value[16:24]


def unit_key(unit: Unit) -> bytes:
    return _TWO_INTS.pack(*unit)


def owner_value(changed: int, owner: Ownership) -> bytes:
    numbers = _OWNER.pack(changed, owner.version, owner.actor, owner.epoch, owner.released)
    return numbers + owner.incarnation.encode()


def ownership_of(value: bytes) -> Ownership:
    _, version, actor, epoch, released = _OWNER.unpack_from(value)
    return Ownership(actor, value[_OWNER.size :].decode(), epoch, version, bool(released))
