"""Bytes of the document's commands and replies. Pure.

``docs/opencluster.md``, "Bytes". What comes in is read whatever its dialect: a serverlist of both says which it is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from waltz_ray.errors import BadPayload
from waltz_ray.kv.messages import (
    Ack,
    Capabilities,
    DataInt,
    DataLock,
    DataLong,
    DataString,
    DataType,
    Fail,
    FailInfo,
    Get,
    Goodbye,
    Hashmask,
    Hashmasks,
    KvHello,
    LockCommand,
    NewServer,
    Opcode,
    Ping,
    ServerList,
    SetCommand,
    ShuttingDown,
    TryElsewhere,
    Unknown,
    UnlockCommand,
)
from waltz_ray.kv.model import ValueType
from waltz_ray.kv.payload import HEADER, PayloadReader, packed_string

__all__ = ["COMMAND_READERS", "COMMAND_WRITERS", "REPLY_READERS", "REPLY_WRITERS"]

_SHORT = struct.Struct(">H")
_INT = struct.Struct(">i")
_UINT = struct.Struct(">I")
_LONG = struct.Struct(">q")
_SET_HEAD = struct.Struct(">IIiII")
_KEYS = struct.Struct(">II")
_MASK_HEAD = struct.Struct(">II")
_MASK_ROW = struct.Struct(">Ii")
_HASHMASK = struct.Struct(">IIi")
_LOCK_TIMES = struct.Struct(">ii")
_DATA_INT = struct.Struct(">HHIIII4s")
_DATA_LONG = struct.Struct(">HHIIII8s")
_DATA_HEAD = struct.Struct(">HHIIIII")
_DATA_TYPE = struct.Struct(">HHIIIII")
_DATA_LOCK = struct.Struct(">HHIIq")
_KEYS_AND_TYPE = struct.Struct(">III")
_TOP = 0x8000_0000

_SETS = {Opcode.SET_INT: ValueType.INT, Opcode.SET_LONG: ValueType.LONG, Opcode.SET_STRING: ValueType.STRING}
_SET_OPCODES = {int(kind): int(opcode) for opcode, kind in _SETS.items()}
_GETS = (Opcode.GET_INT, Opcode.GET_LONG, Opcode.GET_STRING, Opcode.GET_TYPE)


# ---- commands in ------------------------------------------------------------------------------------------


def _empty(kind: type[Any]) -> Callable[[bytes], Any]:
    one = kind()

    def read(payload: bytes) -> Any:
        if payload:
            raise BadPayload(f"{len(payload)} bytes too many, it has no payload")
        return one

    return read


def _exactly(layout: struct.Struct, payload: bytes) -> tuple[Any, ...]:
    if len(payload) != layout.size:
        raise BadPayload(f"a payload of {len(payload)} bytes, it has {layout.size}")
    return layout.unpack(payload)


def _read_capabilities(payload: bytes) -> Capabilities:
    return Capabilities(*_exactly(_SHORT, payload))


def _read_serverlist(payload: bytes) -> ServerList:
    """Either dialect's: a count, or the length of the only one, which is then all there is."""
    reader = PayloadReader(payload)
    if len(payload) > _UINT.size and _UINT.unpack_from(payload)[0] == len(payload) - _UINT.size:
        return ServerList((_text(payload[_UINT.size :]),))
    count = reader.count("servers", _UINT.size)
    servers = tuple([_text(reader.string()) for _ in range(count)])
    reader.end()
    return ServerList(servers)


def _read_hashmasks(payload: bytes) -> Hashmasks:
    """The rows are as many as the second number says: what the mask is does not tell."""
    reader = PayloadReader(payload)
    (mask,) = reader.unpack(_UINT)
    _check_mask(mask)
    count = reader.count("hashmasks", _MASK_ROW.size)
    rows = tuple(_MASK_ROW.iter_unpack(reader.take(count * _MASK_ROW.size)))
    reader.end()
    for bucket, instance in rows:
        _check_bucket(mask, bucket, instance, least=0)
    return Hashmasks(mask, rows)


def _read_hashmask(payload: bytes) -> Hashmask:
    mask, bucket, instance = _exactly(_HASHMASK, payload)
    _check_mask(mask)
    _check_bucket(mask, bucket, instance, least=-1)
    return Hashmask(mask, bucket, instance)


def _check_mask(mask: int) -> None:
    if not mask or mask & _TOP or mask & (mask + 1):
        raise BadPayload(f"a mask of 0x{mask:X}: masks are 0xF, 0xFF, 0xFFF")


def _check_bucket(mask: int, bucket: int, instance: int, least: int) -> None:
    if bucket > mask or instance < least:
        raise BadPayload(f"bucket 0x{bucket:X}, instance {instance}, does not exist under mask 0x{mask:X}")


def _read_newserver(payload: bytes) -> NewServer:
    return NewServer(_whole_string(payload))


def _read_set(kind: int, size: int) -> Callable[[bytes], SetCommand]:
    """``size`` of the value; 0: it says its length itself."""

    def read(payload: bytes) -> SetCommand:
        reader = PayloadReader(payload)
        map_hash, key_hash, expires_s, fullwait, name_bytes = reader.unpack(_SET_HEAD)
        name = reader.take(name_bytes)
        data = reader.take(size) if size else reader.string()
        reader.end()
        return SetCommand(kind, map_hash, key_hash, expires_s, fullwait != 0, name, data)

    return read


def _read_get(opcode: int) -> Callable[[bytes], Get]:
    def read(payload: bytes) -> Get:
        if len(payload) != 8:
            raise BadPayload(f"a payload of {len(payload)} bytes, it has 8")
        map_hash, key_hash = _KEYS.unpack(payload)
        return Get(opcode, map_hash, key_hash)

    return read


def _read_lock(payload: bytes) -> LockCommand:
    reader = PayloadReader(payload)
    name = reader.string()
    lease_s, wait_s = reader.unpack(_LOCK_TIMES)
    reader.end()
    return LockCommand(name, lease_s, wait_s)


def _read_unlock(payload: bytes) -> UnlockCommand:
    reader = PayloadReader(payload)
    name = reader.string()
    (code,) = reader.unpack(_LONG)
    reader.end()
    return UnlockCommand(name, code)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadPayload("a server's address is no UTF-8") from None


def _whole_string(payload: bytes) -> str:
    reader = PayloadReader(payload)
    found = _text(reader.string())
    reader.end()
    return found


COMMAND_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    Opcode.HELLO: _empty(KvHello),
    Opcode.CAPABILITIES: _read_capabilities,
    Opcode.SHUTTINGDOWN: _empty(ShuttingDown),
    Opcode.GOODBYE: _empty(Goodbye),
    Opcode.PING: _empty(Ping),
    Opcode.SERVERLIST: _read_serverlist,
    Opcode.HASHMASKS: _read_hashmasks,
    Opcode.HASHMASK: _read_hashmask,
    Opcode.NEWSERVER: _read_newserver,
    Opcode.LOCK: _read_lock,
    Opcode.UNLOCK: _read_unlock,
    Opcode.SET_INT: _read_set(ValueType.INT, 4),
    Opcode.SET_LONG: _read_set(ValueType.LONG, 8),
    Opcode.SET_STRING: _read_set(ValueType.STRING, 0),
    **{opcode: _read_get(int(opcode)) for opcode in _GETS},
}

"""Of opcodes: a payload -> the command. BadPayload without the command's name."""


# ---- commands out -----------------------------------------------------------------------------------------


def _write_serverlist(command: ServerList) -> tuple[int, bytes]:
    servers = [packed_string(server.encode()) for server in command.servers]
    return Opcode.SERVERLIST, _UINT.pack(len(servers)) + b"".join(servers)


def _write_hashmasks(command: Hashmasks) -> tuple[int, bytes]:
    rows = b"".join([_MASK_ROW.pack(*row) for row in command.buckets])
    return Opcode.HASHMASKS, _MASK_HEAD.pack(command.mask, len(command.buckets)) + rows


def _write_set(command: SetCommand) -> tuple[int, bytes]:
    opcode, name, data = _SET_OPCODES[command.type], command.name, command.data
    if command.type == ValueType.STRING:
        data = packed_string(data)
    elif len(data) != (4 if command.type == ValueType.INT else 8):
        raise struct.error(f"a number of {len(data)} bytes")
    head = _SET_HEAD.pack(command.map_hash, command.key_hash, command.expires_s, int(command.fullwait), len(name))
    return opcode, b"".join((head, name, data))


COMMAND_WRITERS: Final[dict[type[Any], Callable[[Any], tuple[int, bytes]]]] = {
    KvHello: lambda command: (Opcode.HELLO, b""),
    Capabilities: lambda command: (Opcode.CAPABILITIES, _SHORT.pack(command.opcode)),
    ShuttingDown: lambda command: (Opcode.SHUTTINGDOWN, b""),
    Goodbye: lambda command: (Opcode.GOODBYE, b""),
    Ping: lambda command: (Opcode.PING, b""),
    ServerList: _write_serverlist,
    Hashmasks: _write_hashmasks,
    Hashmask: lambda command: (
        Opcode.HASHMASK,
        _HASHMASK.pack(command.mask, command.bucket, command.instance),
    ),
    NewServer: lambda command: (Opcode.NEWSERVER, packed_string(command.server.encode())),
    LockCommand: lambda command: (
        Opcode.LOCK,
        packed_string(command.name) + _LOCK_TIMES.pack(command.lease_s, command.wait_s),
    ),
    UnlockCommand: lambda command: (Opcode.UNLOCK, packed_string(command.name) + _LONG.pack(command.code)),
    SetCommand: _write_set,
    Get: lambda command: (command.opcode, _KEYS.pack(command.map_hash, command.key_hash)),
}
"""A command -> its opcode and payload, in the dialect "doc". struct.error if a value does not fit."""


# ---- replies in -------------------------------------------------------------------------------------------


def _read_failinfo(payload: bytes) -> FailInfo:
    reader = PayloadReader(payload)
    (code,) = reader.unpack(_INT)
    text = reader.string().decode(errors="replace")
    reader.end()
    return FailInfo(code, text)


def _read_data(kind: type[Any], size: int) -> Callable[[bytes], Any]:
    """``size`` of the value; 0: it says its length itself."""

    def read(payload: bytes) -> Any:
        reader = PayloadReader(payload)
        map_hash, key_hash = reader.unpack(_KEYS)
        data = reader.take(size) if size else reader.string()
        reader.end()
        return kind(map_hash, key_hash, data)

    return read


REPLY_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    Opcode.ACK: _empty(Ack),
    Opcode.FAIL: _empty(Fail),
    Opcode.FAILINFO: _read_failinfo,
    Opcode.TRYELSEWHERE: lambda payload: TryElsewhere(_whole_string(payload)),
    Opcode.UNKNOWN: lambda payload: Unknown(*_exactly(_SHORT, payload)),
    Opcode.DATA_INT: _read_data(DataInt, 4),
    Opcode.DATA_LONG: _read_data(DataLong, 8),
    Opcode.DATA_STRING: _read_data(DataString, 0),
    Opcode.DATA_TYPE: lambda payload: DataType(*_exactly(_KEYS_AND_TYPE, payload)),
    Opcode.DATA_LOCK: lambda payload: DataLock(*_exactly(_LONG, payload)),
}
"""Of opcodes: a payload -> the reply."""


# ---- replies out ------------------------------------------------------------------------------------------


def _framed(opcode: int, replied_to: int, message_id: int, payload: bytes) -> bytes:
    return HEADER.pack(opcode, replied_to, message_id, len(payload)) + payload


def _write_data_int(to: int, message_id: int, reply: DataInt) -> bytes:
    if len(reply.data) != 4:
        raise struct.error(f"an int of {len(reply.data)} bytes")
    return _DATA_INT.pack(Opcode.DATA_INT, to, message_id, 12, reply.map_hash, reply.key_hash, reply.data)


def _write_data_long(to: int, message_id: int, reply: DataLong) -> bytes:
    if len(reply.data) != 8:
        raise struct.error(f"a long of {len(reply.data)} bytes")
    return _DATA_LONG.pack(Opcode.DATA_LONG, to, message_id, 16, reply.map_hash, reply.key_hash, reply.data)


def _write_data_string(to: int, message_id: int, reply: DataString) -> bytes:
    data = reply.data
    size = len(data)
    head = _DATA_HEAD.pack(Opcode.DATA_STRING, to, message_id, 12 + size, reply.map_hash, reply.key_hash, size)
    return head + data


def _write_data_type(to: int, message_id: int, reply: DataType) -> bytes:
    return _DATA_TYPE.pack(Opcode.DATA_TYPE, to, message_id, 12, reply.map_hash, reply.key_hash, reply.type)


def _write_failinfo(to: int, message_id: int, reply: FailInfo) -> bytes:
    return _framed(Opcode.FAILINFO, to, message_id, _INT.pack(reply.code) + packed_string(reply.text.encode()))


REPLY_WRITERS: Final[dict[type[Any], Callable[[int, int, Any], bytes]]] = {
    Ack: lambda to, message_id, reply: HEADER.pack(Opcode.ACK, to, message_id, 0),
    Fail: lambda to, message_id, reply: HEADER.pack(Opcode.FAIL, to, message_id, 0),
    FailInfo: _write_failinfo,
    TryElsewhere: lambda to, message_id, reply: _framed(
        Opcode.TRYELSEWHERE, to, message_id, packed_string(reply.server.encode())
    ),
    Unknown: lambda to, message_id, reply: _framed(Opcode.UNKNOWN, to, message_id, _SHORT.pack(reply.opcode)),
    DataInt: _write_data_int,
    DataLong: _write_data_long,
    DataString: _write_data_string,
    DataType: _write_data_type,
    DataLock: lambda to, message_id, reply: _DATA_LOCK.pack(Opcode.DATA_LOCK, to, message_id, 8, reply.code),
}
"""(opcode replied to, message ID, reply) -> the whole frame: what is answered most is packed at once."""
