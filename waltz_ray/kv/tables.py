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

from waltz_ray.kv.model import Item, ItemKey, LockHeld, Ownership
from waltz_ray.kv.routing import Unit

__all__ = [
    "CHANGED_BYTES",
    "FOLD_VERSION",
    "FoldMarks",
    "Table",
    "Tables",
    "changed_at",
    "client_key",
    "item_deadline",
    "item_key",
    "item_key_of",
    "item_of",
    "item_value",
    "lock_deadline",
    "lock_key",
    "lock_name",
    "lock_of",
    "lock_value",
    "minutes_key",
    "name_key",
    "number",
    "owner_value",
    "ownership_of",
    "request_key",
    "seen_of",
    "seen_value",
    "unit_key",
    "unit_of_key",
]

FOLD_VERSION = 1
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
    """Client -> settled, the minute of its last write. In a chunk what is of it in REQUESTS follows."""
    NAMES = 5
    """Map hash, name -> hashes of items that have them: one, but for writers who hash oddly."""
    DEADLINES = 6
    """Deadline, key in ITEMS -> nothing."""
    LOCK_DEADLINES = 7
    """Deadline, key in LOCKS -> nothing."""
    REQUESTS = 8
    """Client, sequence -> the ID of its write."""
    IDLE = 9
    """The minute of its last write, client -> nothing."""
    TOMBSTONES = 10
    """While a snapshot is open: table, key -> the transaction that has removed it."""
    DEFERRED = 11
    """While a snapshot is open: table, key -> records about what may still come in a chunk, to be done to it then."""


@dataclass
class FoldMarks:
    """How far a fold is, and what else there is one of."""

    mark: int = -1
    """The last transaction folded."""
    begun: int = -1
    """The begin of the snapshot that is open."""
    ended: int = -1
    """The begin of the last one that is whole."""
    live_bytes: int = 0
    """Of the state: about what a snapshot of it takes in the log."""
    tail_bytes: int = 0
    """Of the log: all but chunks, from the begin of the last whole snapshot on."""
    begun_tail_bytes: int = 0
    """The same from the begin of the open one on."""
    whole: bool = True
    """False after a beginning that was not the log's, until a snapshot has ended: much is not known yet."""


class Tables(Protocol):
    """Ordered tables of bytes, and marks, as one transaction sees and changes them."""

    marks: FoldMarks

    def get(self, table: int, key: bytes, /) -> bytes | None: ...

    def put(self, table: int, key: bytes, value: bytes, /) -> None: ...

    def delete(self, table: int, key: bytes, /) -> None:
        """Also if it is not there."""

    def seek(self, table: int, key: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """The entries from ``key`` on, in order. The table must not be changed meanwhile."""

    def under(self, table: int, prefix: bytes, limit: int, /) -> list[tuple[bytes, bytes]]:
        """The first ``limit`` entries whose keys begin so. No value of another entry is touched."""

    def clear(self, table: int, /) -> None: ...


_ULONG = struct.Struct(">Q")
_LONG = struct.Struct(">q")
_TWO_INTS = struct.Struct(">II")
_TWO_ULONGS = struct.Struct(">QQ")
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


def unit_of_key(key: bytes) -> Unit:
    return Unit(*_TWO_INTS.unpack(key))


def owner_value(changed: int, owner: Ownership) -> bytes:
    numbers = _OWNER.pack(changed, owner.version, owner.actor, owner.epoch, owner.released)
    return numbers + owner.incarnation.encode()


def ownership_of(value: bytes) -> Ownership:
    _, version, actor, epoch, released = _OWNER.unpack_from(value)
    return Ownership(actor, value[_OWNER.size :].decode(), epoch, version, bool(released))


# ---- clients


def client_key(client: int) -> bytes:
    return _ULONG.pack(client)


def request_key(client: int, sequence: int) -> bytes:
    return _TWO_ULONGS.pack(client, sequence)


def minutes_key(minute: int, client: bytes) -> bytes:
    """Of IDLE."""
    return _ULONG.pack(minute) + client


def seen_value(settled: int, minute: int) -> bytes:
    """Of CLIENTS."""
    return _TWO_ULONGS.pack(settled, minute)


def seen_of(value: bytes) -> tuple[int, int]:
    """Settled, minute; without what a chunk has behind them."""
    settled, minute = _TWO_ULONGS.unpack_from(value)
    return settled, minute
