"""How the end of a command is said: outcomes of writes and what reads have found, as replies. Pure."""

from __future__ import annotations

from waltz_ray.kv.lines import Call
from waltz_ray.kv.messages import (
    Ack,
    DataInt,
    DataLock,
    DataLong,
    DataString,
    DataType,
    Fail,
    FailCode,
    FailInfo,
    Get,
    LockCommand,
    LockNative,
    Opcode,
    OpResult,
    Put,
    PutDone,
    Renew,
    Reply,
    Seen,
    UnlockCommand,
    UnlockNative,
)
from waltz_ray.kv.model import Item, ValueType

__all__ = ["elsewhere_text", "of_call", "of_get", "seen"]

_BY_GET: dict[int, tuple[ValueType, type[DataInt] | type[DataLong] | type[DataString]]] = {
    Opcode.GET_INT: (ValueType.INT, DataInt),
    Opcode.GET_LONG: (ValueType.LONG, DataLong),
    Opcode.GET_STRING: (ValueType.STRING, DataString),
}


def of_call(call: Call) -> Reply:
    """The reply to a command whose writes have all ended."""
    outcomes = [one for one in call.outcomes if one is not None]
    if isinstance(call.command, Put):
        return PutDone(tuple(OpResult(one.code, one.version) for one in outcomes))
    (outcome,) = outcomes
    if outcome.code == FailCode.OK:
        return DataLock(outcome.lock_code) if isinstance(call.command, LockCommand | LockNative | Renew) else Ack()
    is_lock = isinstance(call.command, LockCommand | LockNative | UnlockCommand | UnlockNative | Renew)
    if is_lock and outcome.code == FailCode.CONFLICT:
        return Fail()
    return FailInfo(outcome.code, outcome.text or FailCode(outcome.code).name.lower().replace("_", " "))


def of_get(get: Get, items: list[Item]) -> Reply:
    """The reply to one of the document's gets, who knows only the hash. ``items``: all that it has, visible ones."""
    if not items:
        return Fail()
    if len(items) > 1:
        return FailInfo(FailCode.COLLISION, "several names have this hash: ask for one by its name")
    (item,) = items
    if get.opcode == Opcode.GET_TYPE:
        kind = item.type if item.type in (ValueType.INT, ValueType.LONG) else ValueType.STRING
        return DataType(get.map_hash, get.key_hash, kind)
    wanted, reply = _BY_GET[get.opcode]
    found = item.type if item.type in (ValueType.INT, ValueType.LONG) else ValueType.STRING
    if found != wanted:
        text = f"the value is of type {ValueType(found).name.lower()}, not {wanted.name.lower()}"
        return FailInfo(FailCode.WRONG_TYPE, text)
    return reply(get.map_hash, get.key_hash, item.data)


def seen(item: Item | None, map_name: bytes, now_ms: int) -> Seen:
    """An entry of a batch of reads; ``item`` is visible, or None."""
    if item is None or (item.map_name and item.map_name != map_name):
        return Seen(FailCode.MISSING)
    return Seen(
        FailCode.OK, item.type, item.data, item.version, max(1, item.deadline_ms - now_ms) if item.deadline_ms else 0
    )


def elsewhere_text() -> str:
    """What is said when nobody serves a bucket in time."""
    return "nobody serves this bucket just now; nothing was changed: try again"
