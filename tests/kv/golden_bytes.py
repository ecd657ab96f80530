"""Reads ``golden/bytes.txt``, and says what each of its messages is as a value."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from waltz_ray.kv.messages import (
    ABSENT,
    Ack,
    Capabilities,
    Command,
    DataInt,
    DataLock,
    DataLong,
    DataString,
    DataType,
    Fail,
    FailCode,
    FailInfo,
    Get,
    GetMany,
    Goodbye,
    Hashmask,
    Hashmasks,
    KvHello,
    LockCommand,
    LockNative,
    NewServer,
    Op,
    Opcode,
    OpKind,
    OpResult,
    Ping,
    Put,
    PutDone,
    Renew,
    Reply,
    ScanCommand,
    ScanItem,
    Scanned,
    SecondaryHas,
    Seen,
    SeenMany,
    ServerList,
    SetCommand,
    ShowKvToken,
    ShuttingDown,
    SpaceMeant,
    TryElsewhere,
    Unknown,
    UnlockCommand,
    UnlockNative,
)
from waltz_ray.kv.model import ValueType
from waltz_ray.kv.routing import fnv1a_32

__all__ = ["COMMANDS", "REPLIES", "Golden", "golden"]

KEY, MAP = fnv1a_32(b"something"), fnv1a_32(b"")
CLIENT, CODE = (1 << 63) + 1, 0x7ABCD
MINUS_ONE = bytes([255] * 8)

COMMANDS: dict[str, Command] = {
    "hello": KvHello(),
    "capabilities": Capabilities(2000),
    "shuttingdown": ShuttingDown(),
    "goodbye": Goodbye(),
    "ping": Ping(),
    "serverlist": ServerList(("a:1", "bbb:2")),
    "serverlist_none": ServerList(()),
    "serverlist_one": ServerList(("a:1",)),
    "hashmasks": Hashmasks(0xF, ((0xB, 0), (3, 1))),
    "hashmask": Hashmask(0xFF, 0x6B, 0),
    "hashmask_gone": Hashmask(0xF, 0xB, -1),
    "newserver": NewServer("a:1"),
    "secondary_has": SecondaryHas(3, 65),
    "show_token": ShowKvToken("t1"),
    "space": SpaceMeant("k/kv"),
    "lock": LockCommand(b"l1", 30, 5),
    "unlock": UnlockCommand(b"l1", CODE),
    "set_int": SetCommand(ValueType.INT, 0, KEY, 0, False, b"something", bytes([0, 0, 0, 45])),
    "set_long": SetCommand(ValueType.LONG, 0, KEY, 60, True, b"something", MINUS_ONE),
    "set_string": SetCommand(ValueType.STRING, MAP, KEY, -1, False, b"something", b"a\0b\0"),
    "get_int": Get(Opcode.GET_INT, 0, KEY),
    "get_long": Get(Opcode.GET_LONG, 0, KEY),
    "get_string": Get(Opcode.GET_STRING, MAP, KEY),
    "get_type": Get(Opcode.GET_TYPE, 0, KEY),
    "put": Put(
        b"m",
        CLIENT,
        5,
        4,
        True,
        (
            Op(OpKind.SET, b"a", ValueType.STRING, b"xx", 1000, ABSENT),
            Op(OpKind.DELETE, b"b"),
            Op(OpKind.TOUCH, b"c", expires_ms=1),
        ),
    ),
    "put_again": Put(b"", CLIENT, 5, 4, False, (Op(OpKind.DELETE, b"b"),), True),
    "get_many": GetMany(b"", (b"a", b"")),
    "scan": ScanCommand(3, b"m", b"us", b"", 100),
    "lock_native": LockNative(b"l1", CLIENT, 6, 4, 10_000, 30_000),
    "unlock_native": UnlockNative(b"l1", CLIENT, 7, 4, CODE),
    "renew": Renew(b"l1", CLIENT, 8, 4, CODE, 10_000),
}

REPLIES: dict[str, Reply] = {
    "ack": Ack(),
    "fail": Fail(),
    "failinfo": FailInfo(FailCode.WRONG_TYPE, "wrong type"),
    "tryelsewhere": TryElsewhere("10.0.0.2:70000"),
    "unknown": Unknown(2999),
    "data_lock": DataLock(CODE),
    "data_int": DataInt(0, KEY, bytes([0, 0, 0, 45])),
    "data_long": DataLong(0, KEY, MINUS_ONE),
    "data_string": DataString(MAP, KEY, b"a\0b\0"),
    "data_type": DataType(0, KEY, ValueType.STRING),
    "put_done": PutDone((OpResult(FailCode.OK, 65), OpResult(FailCode.CONFLICT))),
    "seen_many": SeenMany((Seen(FailCode.OK, ValueType.TEXT, b"xx", 65, 0), Seen(FailCode.MISSING))),
    "scanned": Scanned(0xFF, (3, 0xF3), True, 65, (ScanItem(b"a", ValueType.STRING, b"x", 64, 1000),)),
}


class Golden(NamedTuple):
    """One line of the file."""

    name: str
    dialect: str
    is_reply: bool
    frame: bytes

    @property
    def payload(self) -> bytes:
        return self.frame[12:]

    @property
    def head(self) -> tuple[int, int, int]:
        """Opcode, replied-to, message ID."""
        frame = self.frame
        return int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big"), int.from_bytes(frame[4:8], "big")


@cache
def golden() -> dict[str, Golden]:
    """By name."""
    found: dict[str, Golden] = {}
    for line in (Path(__file__).parent / "golden/bytes.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, dialect, kind, frame = (field.strip() for field in line.split("|"))
            assert name not in found
            found[name] = Golden(name, dialect, kind == "reply", bytes.fromhex(frame))
    return found
