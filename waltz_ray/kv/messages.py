"""What is said on a kv port, as values: the document's commands and replies, and ours. Bytes: ``kv/wire.py``. Pure."""

from __future__ import annotations

import enum
from dataclasses import field

from waltz_ray.protocol.value import value

__all__ = [
    "ABSENT",
    "ANY_VERSION",
    "Ack",
    "SecondaryHas",
    "Capabilities",
    "Command",
    "DataInt",
    "DataLock",
    "DataLong",
    "DataString",
    "DataType",
    "Fail",
    "FailInfo",
    "FailCode",
    "Get",
    "GetMany",
    "Goodbye",
    "Hashmask",
    "Hashmasks",
    "KvHello",
    "LockCommand",
    "LockNative",
    "NewServer",
    "Op",
    "OpKind",
    "OpResult",
    "Opcode",
    "Ping",
    "Put",
    "PutDone",
    "Reply",
    "ScanCommand",
    "ScanItem",
    "Scanned",
    "Seen",
    "SeenMany",
    "ServerList",
    "SetCommand",
    "ShowKvToken",
    "ShuttingDown",
    "SpaceMeant",
    "TryElsewhere",
    "Unknown",
    "UnlockCommand",
    "UnlockNative",
    "Renew",
]


class Opcode(enum.IntEnum):
    """Published numbers are frozen. From 3000 on, 500 to 599, 1005, 2115 and 2205 are ours."""

    ACK = 1
    FAIL = 2
    FAILINFO = 3
    TRYELSEWHERE = 4
    UNKNOWN = 9
    HELLO = 10
    CAPABILITIES = 11
    SHUTTINGDOWN = 15
    GOODBYE = 20
    PING = 30
    SERVERLIST = 100
    HASHMASKS = 110
    HASHMASK = 120
    NEWSERVER = 130
    APPLIED = 500
    SHOW_TOKEN = 510
    SPACE = 520
    LOCK = 1000
    DATA_LOCK = 1005
    UNLOCK = 1010
    SET_INT = 2000
    SET_LONG = 2010
    SET_STRING = 2020
    GET_INT = 2100
    DATA_INT = 2105
    GET_LONG = 2110
    DATA_LONG = 2115
    GET_STRING = 2120
    DATA_STRING = 2125
    GET_TYPE = 2200
    DATA_TYPE = 2205
    PUT = 3000
    PUT_DONE = 3005
    GET_MANY = 3010
    SEEN_MANY = 3015
    SCAN = 3020
    SCANNED = 3025
    LOCK_NATIVE = 3030
    UNLOCK_NATIVE = 3040
    RENEW = 3050


class FailCode(enum.IntEnum):
    """Codes of failinfo(3), and of a ``PutDone``'s and a ``SeenMany``'s entries."""

    OK = 0
    BAD_REQUEST = 1
    """It makes no sense: a negative expiry, a lease of 0, a wrong length."""
    MISSING = 2
    """There is no such item (of a get or a touch in a batch)."""
    ELSEWHERE = 4
    """Its bucket is another actor's (of an entry in a batch)."""
    WRONG_TYPE = 5
    CONFLICT = 6
    """The item is not at the expected version; nothing was changed."""
    COLLISION = 17
    """Another name, or map, has the same hash; nothing was changed."""
    TOO_LONG = 18
    """A name, value or batch over its limit."""
    NOT_REPLICATED = 19
    """It IS committed, but no secondary has said in time that it has it (fullwait)."""
    NO_ROOM = 20
    """The actor cannot keep its projection: its disk is full or broken."""
    TOO_MANY = 21
    """Too much is outstanding; nothing was changed."""
    NOT_READY = 22
    """Nobody serves the bucket just now; nothing was changed."""
    UNKNOWN_FATE = 23
    """It may or may not be committed: nobody can say in time."""
    NOT_ALLOWED = 24
    """Who asks has not the right to, or nobody knows who it is; nothing was changed."""


# ---- replies that carry little


@value()
class Ack:
    pass


@value()
class Fail:
    pass


@value()
class FailInfo:
    code: int
    text: str


@value()
class TryElsewhere:
    server: str
    """``host:port``."""


@value()
class Unknown:
    opcode: int


# ---- commands below 1000


@value()
class KvHello:
    pass


@value()
class Capabilities:
    opcode: int


@value()
class ShuttingDown:
    pass


@value()
class Goodbye:
    pass


@value()
class Ping:
    pass


@value()
class ServerList:
    servers: tuple[str, ...]


@value()
class Hashmasks:
    """What one server has: (bucket, instance), instance 0 = primary, 1 = backup."""

    mask: int
    buckets: tuple[tuple[int, int], ...]


@value()
class Hashmask:
    """One bucket; instance -1: no longer here."""

    mask: int
    bucket: int
    instance: int


@value()
class NewServer:
    server: str


@value()
class SecondaryHas:
    """To a secondary: answer Ack once the projection of ``partition`` (of the space, from 0) has ``transaction_id``."""

    partition: int
    transaction_id: int


@value()
class ShowKvToken:
    """Who the client is, before anything else, over TLS: Ack, or FailInfo if the token is nobody's."""

    token: str = field(repr=False)


@value()
class SpaceMeant:
    """Which space the client means (``space_identity``), before hello: Ack, or Fail if it is another one that is served
    here. Addresses are used again: who only knows an address may come to somebody else's actor."""

    identity: str


# ---- data, the document's


@value()
class SetCommand:
    """set_int, set_long, set_string: by ``type``. ``data`` is as in an ``Item``. ``expires_s`` may be negative: bad."""

    type: int
    map_hash: int
    key_hash: int
    expires_s: int
    fullwait: bool
    name: bytes
    data: bytes


@value()
class Get:
    """get_int, get_long, get_string, get_type: ``opcode`` says which."""

    opcode: int
    map_hash: int
    key_hash: int


@value()
class DataInt:
    map_hash: int
    key_hash: int
    data: bytes
    """4 bytes, big-endian."""


@value()
class DataLong:
    map_hash: int
    key_hash: int
    data: bytes
    """8 bytes, big-endian."""


@value()
class DataString:
    map_hash: int
    key_hash: int
    data: bytes


@value()
class DataType:
    map_hash: int
    key_hash: int
    type: int


@value()
class LockCommand:
    name: bytes
    lease_s: int
    wait_s: int


@value()
class DataLock:
    code: int


@value()
class UnlockCommand:
    name: bytes
    code: int


# ---- data, ours


class OpKind(enum.IntEnum):
    """What an ``Op`` does."""

    SET = 0
    DELETE = 1
    TOUCH = 2
    """Change when it expires, nothing else."""


ANY_VERSION = -2
"""Of ``Op.expected``: whatever is there. -1 or any other ID: this version; ABSENT: no item."""
ABSENT = -3
"""Of ``Op.expected``: that there is no item."""


@value()
class Op:
    """One write. Its hash is FNV-1a-32 of ``name``."""

    kind: int
    name: bytes
    type: int = 4
    data: bytes = b""
    expires_ms: int = 0
    """From now; 0 = never."""
    expected: int = ANY_VERSION


@value()
class Put:
    """Writes, each on its own: there is no order among them and no atomicity. The n-th has the sequence number
    ``sequence + n``; see ``model.RequestId``."""

    map_name: bytes
    client: int
    sequence: int
    settled: int
    fullwait: bool
    ops: tuple[Op, ...]
    repeated: bool = False
    """Some of it was sent before, and nobody has said what became of that: a copy may still be on its way, or waiting
    somewhere."""


@value()
class OpResult:
    """``code`` of FailCode; ``version``: the item's now if OK, at a CONFLICT that which is there (-1: none)."""

    code: int
    version: int = -1


@value()
class PutDone:
    results: tuple[OpResult, ...]


@value()
class GetMany:
    map_name: bytes
    names: tuple[bytes, ...]


@value()
class Seen:
    """An item as a reader has seen it; ``code`` OK, MISSING or ELSEWHERE."""

    code: int
    type: int = 0
    data: bytes = b""
    version: int = -1
    expires_ms: int = 0
    """From now; 0 = never."""


@value()
class SeenMany:
    items: tuple[Seen, ...]


@value()
class ScanCommand:
    """Items of one partition of the space, of the buckets that this actor serves, in the order of their names."""

    partition: int
    map_name: bytes
    prefix: bytes
    after: bytes
    """Names above this one; empty = from the first."""
    limit: int


@value()
class ScanItem:
    name: bytes
    type: int
    data: bytes
    version: int
    expires_ms: int


@value()
class Scanned:
    """``buckets`` under ``mask``: whose items these are. ``more``: the limit was met before the end."""

    mask: int
    buckets: tuple[int, ...]
    more: bool
    mark: int
    """ID of the last transaction of the partition that is in it."""
    items: tuple[ScanItem, ...]


@value()
class LockNative:
    name: bytes
    client: int
    sequence: int
    settled: int
    lease_ms: int
    wait_ms: int


@value()
class UnlockNative:
    name: bytes
    client: int
    sequence: int
    settled: int
    code: int


@value()
class Renew:
    """The lease begins anew, for so long: DataLock with the same code, or Fail if it is not had any more."""

    name: bytes
    client: int
    sequence: int
    settled: int
    code: int
    lease_ms: int


Command = (
    KvHello
    | Capabilities
    | ShuttingDown
    | Goodbye
    | Ping
    | ServerList
    | Hashmasks
    | Hashmask
    | NewServer
    | SecondaryHas
    | ShowKvToken
    | SpaceMeant
    | SetCommand
    | Get
    | LockCommand
    | UnlockCommand
    | Put
    | GetMany
    | ScanCommand
    | LockNative
    | UnlockNative
    | Renew
)

Reply = (
    Ack
    | Fail
    | FailInfo
    | TryElsewhere
    | Unknown
    | DataInt
    | DataLong
    | DataString
    | DataType
    | DataLock
    | PutDone
    | SeenMany
    | Scanned
)
