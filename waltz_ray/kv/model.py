"""What there is in a kv space: items, locks, ownership, and the records of the log they are folded from. Pure."""

from __future__ import annotations

import enum
from typing import NamedTuple

from waltz_ray.kv.routing import Unit
from waltz_ray.protocol.value import value

__all__ = [
    "ALL_SECTIONS",
    "BARRIER",
    "Barrier",
    "Delete",
    "Expired",
    "Item",
    "ItemKey",
    "ItemWrite",
    "Lock",
    "LockHeld",
    "MAX_MAP_NAME_BYTES",
    "MAX_NAME_BYTES",
    "MOST_DEADLINE_MS",
    "NOBODYS",
    "Own",
    "Ownership",
    "Record",
    "Release",
    "RequestId",
    "SECTIONS",
    "Set",
    "Several",
    "SnapshotBegin",
    "SnapshotChunk",
    "SnapshotEnd",
    "SnapshotItem",
    "Touch",
    "Unlock",
    "ValueType",
    "WriteRefused",
]


MAX_NAME_BYTES = 480
"""Of an item or a lock: with hashes and a deadline before it, it is a key of LMDB, which takes 511 bytes."""

MAX_MAP_NAME_BYTES = 255

MOST_DEADLINE_MS = (1 << 63) - 1
"""No item's deadline is later: whoever reads it has signed numbers of 64 bits."""


class ValueType(enum.IntEnum):
    """Of a value; the first three are the document's, get_type answers STRING for all others."""

    INT = 2
    """4 bytes, big-endian, signed."""
    LONG = 3
    """8 bytes, big-endian, signed."""
    STRING = 4
    """Bytes."""
    TEXT = 16
    """A str, as UTF-8."""
    CODED = 17
    """What a client's codec has made of an object."""


class ItemKey(NamedTuple):
    """What names an item. ``hash`` is what its writer said: FNV-1a-32 of the name, unless he was odd."""

    map_hash: int
    """0 = no map."""
    hash: int
    name: bytes


class RequestId(NamedTuple):
    """A native client's write: repeated after an unknown outcome it is recognised. ``client`` 0: nobody's."""

    client: int
    """64 random bits of this client."""
    sequence: int
    """Of this write among the client's, from 1."""
    settled: int
    """All the client's writes below this one have their answers: nothing has to be remembered of them."""


NOBODYS = RequestId(0, 0, 0)


@value()
class Item:
    """One item. ``version``: the transaction ID of its last change, also that of a touch."""

    type: int
    data: bytes
    version: int
    deadline_ms: int = 0
    """When it expires, milliseconds since 1970; 0 = never."""
    map_name: bytes = b""
    """The full name of its map, where a native client has written it."""


@value()
class LockHeld:
    """A lock that somebody has. The code is ``(version << 16) | random``."""

    code: int
    deadline_ms: int


@value()
class Ownership:
    """Who has a unit, as the log says. ``released``: has let go of it; the next owner may begin at once."""

    actor: int
    incarnation: str
    epoch: int
    version: int
    """Transaction ID of the OWN."""
    released: bool = False


# ---- records: what one transaction of a kv space says. ``at_ms`` is the writer's clock, for the life of requests.


@value()
class Set:
    """The item has this value now. Also every conditional write: its owner has decided before it was appended."""

    key: ItemKey
    type: int
    data: bytes
    deadline_ms: int = 0
    map_name: bytes = b""
    request: RequestId = NOBODYS
    at_ms: int = 0


@value()
class Delete:
    """There is no such item any more."""

    key: ItemKey
    request: RequestId = NOBODYS
    at_ms: int = 0


@value()
class Touch:
    """The item, if it is there, expires then; 0 = never."""

    key: ItemKey
    deadline_ms: int
    request: RequestId = NOBODYS
    at_ms: int = 0


ItemWrite = Set | Delete | Touch


@value()
class Several:
    """These writes of one partition, in one transaction: all of them, or none, in this order and of one version."""

    writes: tuple[ItemWrite, ...]


@value()
class Expired:
    """These items have expired: each is removed if it still has that version."""

    items: tuple[tuple[ItemKey, int], ...]


@value()
class Lock:
    """The lock ``name`` is had under the code ``(transaction ID << 16) | random`` until the deadline.

    ``renewed``: it goes on under this code, which it has had before; else 0.
    """

    name: bytes
    random: int
    deadline_ms: int
    renewed: int = 0
    request: RequestId = NOBODYS
    at_ms: int = 0


@value()
class Unlock:
    """The lock is free, if it is still had under ``code``."""

    name: bytes
    code: int
    request: RequestId = NOBODYS
    at_ms: int = 0


@value()
class WriteRefused:
    """A native write that was sent more than once was refused: a copy of it that comes later is not done any more,
    though it could be by then. ``code``, ``version``: its answer (``messages.OpResult``)."""

    code: int
    version: int
    request: RequestId
    at_ms: int = 0


@value()
class Own:
    """From here on ``unit`` is this actor's: appended under the write lock of the unit and the append lock of the unit
    it was a part of."""

    unit: Unit
    actor: int
    incarnation: str
    epoch: int


@value()
class Release:
    """The owner of ``epoch`` serves ``unit`` no more, and has nothing of it under way. Also for a finer unit of one
    that it has: then ``epoch`` is that of the coarser."""

    unit: Unit
    actor: int
    incarnation: str
    epoch: int


@value()
class Barrier:
    """Nothing. That it was committed under the owner's read locks proves that it was the owner."""


BARRIER = Barrier()


SECTIONS = 4
"""A state is written into snapshots in so many parts, each as often as the others (``tables.section_of``)."""

ALL_SECTIONS = (1 << SECTIONS) - 1


@value()
class SnapshotBegin:
    """Some sections of the live state, a bit for each, follow in chunks; the snapshot's number is this transaction's
    ID. One that has not ended is abandoned."""

    sections: int = ALL_SECTIONS


class SnapshotItem(NamedTuple):
    """One entry of a chunk: an item, a lock, an ownership, or what is remembered of a client's requests, as the fold's
    own key and value bytes, with the version it had. ``table`` says which (``kv/state.py``)."""

    table: int
    key: bytes
    data: bytes
    version: int


@value()
class SnapshotChunk:
    """Some of these sections. Ignored unless ``snapshot`` is the one that was begun last and has not ended."""

    snapshot: int
    items: tuple[SnapshotItem, ...]


@value()
class SnapshotEnd:
    """The snapshot is whole: what is before its begin is not needed any more for its sections."""

    snapshot: int


Record = (
    Set
    | Delete
    | Touch
    | Several
    | Expired
    | Lock
    | Unlock
    | WriteRefused
    | Own
    | Release
    | Barrier
    | SnapshotBegin
    | SnapshotChunk
    | SnapshotEnd
)
