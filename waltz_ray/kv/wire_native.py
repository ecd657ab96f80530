"""Bytes of the commands and replies that are ours, and of what servers ask each other. Pure.

``docs/opencluster.md``, "Bytes". Names have 2 bytes of length, data have 4; counts have 4.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

from waltz_ray.errors import BadPayload
from waltz_ray.kv.messages import (
    ANY_VERSION,
    FailCode,
    GetMany,
    LockNative,
    Op,
    Opcode,
    OpKind,
    OpResult,
    Put,
    PutDone,
    Renew,
    ScanCommand,
    ScanItem,
    Scanned,
    SecondaryHas,
    Seen,
    SeenMany,
    ShowKvToken,
    SpaceMeant,
    UnlockNative,
)
from waltz_ray.kv.model import ValueType
from waltz_ray.kv.payload import PayloadReader

__all__ = ["COMMAND_READERS", "COMMAND_WRITERS", "REPLY_READERS", "REPLY_WRITERS"]

_BYTE = struct.Struct(">B")
_SHORT = struct.Struct(">H")
_UINT = struct.Struct(">I")
_LONG = struct.Struct(">q")
_SECONDARY_HAS = struct.Struct(">Iq")
_REQUEST = struct.Struct(">QQQ")
_OP_HEAD = struct.Struct(">BBHI")  # kind and flags, type, length of the name, of the data
_RESULT = struct.Struct(">Bq")
_SEEN = struct.Struct(">BqqI")  # type, version, expires, length of the data
_SCANNED_TAIL = struct.Struct(">BqI")
_SCAN_ITEM = struct.Struct(">BHIqq")
_LOCK_TIMES = struct.Struct(">qq")

_EXPIRES, _EXPECTED = 0x10, 0x20  # of an op's first byte: these fields follow
_FULLWAIT, _REPEATED = 0x01, 0x02
_KINDS = frozenset(int(kind) for kind in OpKind)
_SIZES = {int(ValueType.INT): 4, int(ValueType.LONG): 8}

Parts = list[bytes]


def _name(name: bytes) -> bytes:
    return _SHORT.pack(len(name)) + name


# ---- commands ---------------------------------------------------------------------------------------------


def _read_secondary_has(payload: bytes) -> SecondaryHas:
    reader = PayloadReader(payload)
    found = SecondaryHas(*reader.unpack(_SECONDARY_HAS))
    reader.end()
    return found


def _read_text(payload: bytes) -> str:
    reader = PayloadReader(payload)
    text = reader.short_string().decode("utf-8", "surrogateescape")  # what is no text is nobody's token, or space
    reader.end()
    return text


def _text(text: str) -> bytes:
    return _name(text.encode("utf-8", "surrogateescape"))


def _read_put(payload: bytes) -> Put:
    reader = PayloadReader(payload)
    map_name = reader.short_string()
    client, sequence, settled = reader.unpack(_REQUEST)
    (flags,) = reader.unpack(_BYTE)
    if flags & ~(_FULLWAIT | _REPEATED):
        raise BadPayload(f"flags 0x{flags:02x}, 0x01 and 0x02 are all there are")
    count = reader.count("writes", _OP_HEAD.size)
    ops = tuple([_read_op(reader) for _ in range(count)])
    reader.end()
    return Put(map_name, client, sequence, settled, flags & _FULLWAIT != 0, ops, flags & _REPEATED != 0)


def _read_op(reader: PayloadReader) -> Op:
    first, kind_of_data, name_bytes, data_bytes = reader.unpack(_OP_HEAD)
    kind = first & 0x0F
    if kind not in _KINDS or first & ~(0x0F | _EXPIRES | _EXPECTED):
        raise BadPayload(f"there is no write 0x{first:02x}")
    (expires_ms,) = reader.unpack(_LONG) if first & _EXPIRES else (0,)
    (expected,) = reader.unpack(_LONG) if first & _EXPECTED else (ANY_VERSION,)
    name = reader.take(name_bytes)
    data = reader.take(data_bytes)
    if kind == OpKind.SET and data_bytes != _SIZES.get(kind_of_data, data_bytes):
        raise BadPayload(f"a value of type {kind_of_data} has {_SIZES[kind_of_data]} bytes, not {data_bytes}")
    return Op(kind, name, kind_of_data, data, expires_ms, expected)


def _write_put(put: Put) -> tuple[int, bytes]:
    parts = [_name(put.map_name), _REQUEST.pack(put.client, put.sequence, put.settled)]
    flags = (_FULLWAIT if put.fullwait else 0) | (_REPEATED if put.repeated else 0)
    parts.append(_BYTE.pack(flags) + _UINT.pack(len(put.ops)))
    for op in put.ops:
        first = op.kind
        if op.expires_ms:
            first |= _EXPIRES
        if op.expected != ANY_VERSION:
            first |= _EXPECTED
        parts.append(_OP_HEAD.pack(first, op.type, len(op.name), len(op.data)))
        if op.expires_ms:
            parts.append(_LONG.pack(op.expires_ms))
        if op.expected != ANY_VERSION:
            parts.append(_LONG.pack(op.expected))
        parts += (op.name, op.data)
    return Opcode.PUT, b"".join(parts)


def _read_get_many(payload: bytes) -> GetMany:
    reader = PayloadReader(payload)
    map_name = reader.short_string()
    count = reader.count("names", _SHORT.size)
    names = tuple([reader.short_string() for _ in range(count)])
    reader.end()
    return GetMany(map_name, names)


def _write_get_many(command: GetMany) -> tuple[int, bytes]:
    parts = [_name(command.map_name), _UINT.pack(len(command.names)), *map(_name, command.names)]
    return Opcode.GET_MANY, b"".join(parts)


def _read_scan(payload: bytes) -> ScanCommand:
    reader = PayloadReader(payload)
    (partition,) = reader.unpack(_UINT)
    map_name, prefix, after = reader.short_string(), reader.short_string(), reader.short_string()
    (limit,) = reader.unpack(_UINT)
    reader.end()
    return ScanCommand(partition, map_name, prefix, after, limit)


def _write_scan(command: ScanCommand) -> tuple[int, bytes]:
    names = map(_name, (command.map_name, command.prefix, command.after))
    return Opcode.SCAN, b"".join([_UINT.pack(command.partition), *names, _UINT.pack(command.limit)])


def _read_lock(payload: bytes) -> LockNative:
    reader = PayloadReader(payload)
    found = LockNative(reader.short_string(), *reader.unpack(_REQUEST), *reader.unpack(_LOCK_TIMES))
    reader.end()
    return found


def _read_unlock(payload: bytes) -> UnlockNative:
    reader = PayloadReader(payload)
    found = UnlockNative(reader.short_string(), *reader.unpack(_REQUEST), *reader.unpack(_LONG))
    reader.end()
    return found


def _read_renew(payload: bytes) -> Renew:
    reader = PayloadReader(payload)
    found = Renew(reader.short_string(), *reader.unpack(_REQUEST), *reader.unpack(_LOCK_TIMES))
    reader.end()
    return found


def _lock_head(command: LockNative | UnlockNative | Renew) -> bytes:
    return _name(command.name) + _REQUEST.pack(command.client, command.sequence, command.settled)


COMMAND_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    Opcode.APPLIED: _read_secondary_has,
    Opcode.SHOW_TOKEN: lambda payload: ShowKvToken(_read_text(payload)),
    Opcode.SPACE: lambda payload: SpaceMeant(_read_text(payload)),
    Opcode.PUT: _read_put,
    Opcode.GET_MANY: _read_get_many,
    Opcode.SCAN: _read_scan,
    Opcode.LOCK_NATIVE: _read_lock,
    Opcode.UNLOCK_NATIVE: _read_unlock,
    Opcode.RENEW: _read_renew,
}
"""Of opcodes: a payload -> the command. BadPayload without the command's name."""

COMMAND_WRITERS: Final[dict[type[Any], Callable[[Any], tuple[int, bytes]]]] = {
    SecondaryHas: lambda command: (
        Opcode.APPLIED,
        _SECONDARY_HAS.pack(command.partition, command.transaction_id),
    ),
    ShowKvToken: lambda command: (
        Opcode.SHOW_TOKEN,
        _text(command.token),
    ),
    SpaceMeant: lambda command: (
        Opcode.SPACE,
        _text(command.identity),
    ),
    Put: _write_put,
    GetMany: _write_get_many,
    ScanCommand: _write_scan,
    LockNative: lambda command: (
        Opcode.LOCK_NATIVE,
        _lock_head(command) + _LOCK_TIMES.pack(command.lease_ms, command.wait_ms),
    ),
    UnlockNative: lambda command: (Opcode.UNLOCK_NATIVE, _lock_head(command) + _LONG.pack(command.code)),
    Renew: lambda command: (Opcode.RENEW, _lock_head(command) + _LOCK_TIMES.pack(command.code, command.lease_ms)),
}
"""A command -> its opcode and payload. struct.error if a value does not fit."""


# ---- replies ----------------------------------------------------------------------------------------------


def _read_put_done(payload: bytes) -> PutDone:
    reader = PayloadReader(payload)
    rows = reader.take(reader.count("results", _RESULT.size) * _RESULT.size)
    reader.end()
    return PutDone(tuple([OpResult(code, version) for code, version in _RESULT.iter_unpack(rows)]))


def _write_put_done(reply: PutDone) -> tuple[int, Parts]:
    rows = [_RESULT.pack(result.code, result.version) for result in reply.results]
    return Opcode.PUT_DONE, [_UINT.pack(len(rows)), *rows]


def _read_seen_many(payload: bytes) -> SeenMany:
    reader = PayloadReader(payload)
    count = reader.count("items", _BYTE.size)
    items = tuple([_read_seen(reader) for _ in range(count)])
    reader.end()
    return SeenMany(items)


def _read_seen(reader: PayloadReader) -> Seen:
    (code,) = reader.unpack(_BYTE)
    if code != FailCode.OK:
        return Seen(code)
    kind, version, expires_ms, size = reader.unpack(_SEEN)
    return Seen(code, kind, reader.take(size), version, expires_ms)


def _write_seen_many(reply: SeenMany) -> tuple[int, Parts]:
    """Of an item that is not there only the code travels."""
    parts = [_UINT.pack(len(reply.items))]
    for item in reply.items:
        parts.append(_BYTE.pack(item.code))
        if item.code == FailCode.OK:
            parts.append(_SEEN.pack(item.type, item.version, item.expires_ms, len(item.data)))
            parts.append(item.data)
    return Opcode.SEEN_MANY, parts


def _read_scanned(payload: bytes) -> Scanned:
    reader = PayloadReader(payload)
    (mask,) = reader.unpack(_UINT)
    rows = reader.take(reader.count("buckets", _SHORT.size) * _SHORT.size)
    more, mark, count = reader.unpack(_SCANNED_TAIL)
    if count * _SCAN_ITEM.size > reader.left:
        raise BadPayload(f"{count} items do not fit in the {reader.left} bytes that are left")
    items = tuple([_read_item(reader) for _ in range(count)])
    reader.end()
    return Scanned(mask, tuple([bucket for (bucket,) in _SHORT.iter_unpack(rows)]), more != 0, mark, items)


def _read_item(reader: PayloadReader) -> ScanItem:
    kind, name_bytes, data_bytes, version, expires_ms = reader.unpack(_SCAN_ITEM)
    return ScanItem(reader.take(name_bytes), kind, reader.take(data_bytes), version, expires_ms)


def _write_scanned(reply: Scanned) -> tuple[int, Parts]:
    parts = [_UINT.pack(reply.mask), _UINT.pack(len(reply.buckets)), *_shorts(reply.buckets)]
    parts.append(_SCANNED_TAIL.pack(reply.more, reply.mark, len(reply.items)))
    for item in reply.items:
        parts.append(_SCAN_ITEM.pack(item.type, len(item.name), len(item.data), item.version, item.expires_ms))
        parts += (item.name, item.data)
    return Opcode.SCANNED, parts


def _shorts(numbers: Iterable[int]) -> Parts:
    return [_SHORT.pack(number) for number in numbers]


REPLY_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    Opcode.PUT_DONE: _read_put_done,
    Opcode.SEEN_MANY: _read_seen_many,
    Opcode.SCANNED: _read_scanned,
}
"""Of opcodes: a payload -> the reply."""

REPLY_WRITERS: Final[dict[type[Any], Callable[[Any], tuple[int, Parts]]]] = {
    PutDone: _write_put_done,
    SeenMany: _write_seen_many,
    Scanned: _write_scanned,
}
"""A reply -> its opcode and the pieces of its payload. struct.error if a value does not fit."""
