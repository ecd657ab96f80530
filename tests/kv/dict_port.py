"""What is behind a gateway, without a log: items in a dict, answered at once, or when a test says so."""

from __future__ import annotations

from collections.abc import Callable

from waltz_ray.kv.messages import (
    Ack,
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
    Hashmasks,
    LockCommand,
    Opcode,
    Reply,
    SecondaryHas,
    Seen,
    SeenMany,
    SetCommand,
    TryElsewhere,
    UnlockCommand,
)
from waltz_ray.kv.model import ValueType
from waltz_ray.kv.routing import fnv1a_32

__all__ = ["DictPort"]

Answer = Callable[[Reply], None]
ACK, FAIL = Ack(), Fail()
_WANTED: dict[int, tuple[int, type[DataInt] | type[DataLong] | type[DataString]]] = {
    int(Opcode.GET_INT): (ValueType.INT, DataInt),
    int(Opcode.GET_LONG): (ValueType.LONG, DataLong),
    int(Opcode.GET_STRING): (ValueType.STRING, DataString),
}


class DictPort:
    """A ``CommandPort``: one actor, which has ``masks``; buckets of ``elsewhere`` are other servers'."""

    def __init__(self, masks: Hashmasks | None = None) -> None:
        self.members = ["127.0.0.1:1"]
        self.masks = masks or Hashmasks(0xF, tuple((bucket, 0) for bucket in range(16)))
        self.refuses = ""
        self.elsewhere: dict[int, str] = {}
        self.items: dict[tuple[int, int], SetCommand] = {}
        self.submitted: list[tuple[int, Command]] = []
        self.keeps_log = True
        """Of ``submitted``."""
        self.holds = False
        """Whether commands wait for ``let_go``."""
        self.held: list[tuple[Command, Answer]] = []
        self.gone: list[int] = []
        self.shutting_down: list[str] = []

    def servers(self) -> list[str]:
        return self.members

    def hashmasks(self) -> Hashmasks:
        return self.masks

    def accepting(self) -> str:
        return self.refuses

    def input_ended(self) -> None:
        pass

    def left(self, connection_id: int, goodbye: bool = False) -> None:
        self.gone.append(connection_id)

    def peer_shutting_down(self, server: str) -> None:
        self.shutting_down.append(server)

    def submit(self, connection_id: int, command: Command, answer: Answer) -> None:
        if self.keeps_log:
            self.submitted.append((connection_id, command))
        if self.holds:
            self.held.append((command, answer))
        else:
            answer(self.do(command))

    def let_go(self, count: int | None = None, last_first: bool = False) -> None:
        """Answer so many of those that wait."""
        count = len(self.held) if count is None else count
        now, self.held = self.held[:count], self.held[count:]
        for command, answer in reversed(now) if last_first else now:
            answer(self.do(command))

    def do(self, command: Command) -> Reply:
        if isinstance(command, Get):
            return self._get(command)
        if isinstance(command, SetCommand):
            if command.expires_s < 0:
                return FailInfo(FailCode.BAD_REQUEST, "a negative expiry")
            if found := self._elsewhere(command.key_hash):
                return found
            self.items[(command.map_hash, command.key_hash)] = command
            return ACK
        if isinstance(command, GetMany):
            found_items = (self.items.get((0, fnv1a_32(name))) for name in command.names)
            return SeenMany(tuple(Seen(0, i.type, i.data, 1) if i else Seen(FailCode.MISSING) for i in found_items))
        if isinstance(command, LockCommand):
            return DataLock(0x12345) if command.lease_s > 0 else FailInfo(FailCode.BAD_REQUEST, "a lease of 0")
        if isinstance(command, UnlockCommand):
            return ACK if command.code == 0x12345 else FAIL
        if isinstance(command, SecondaryHas):
            return ACK
        return FAIL

    def _elsewhere(self, key_hash: int) -> TryElsewhere | None:
        server = self.elsewhere.get(key_hash & self.masks.mask)
        return None if server is None else TryElsewhere(server)

    def _get(self, command: Get) -> Reply:
        found = self._elsewhere(command.key_hash) if self.elsewhere else None
        if found is not None:
            return found
        item = self.items.get((command.map_hash, command.key_hash))
        if item is None:
            return FAIL
        if command.opcode == Opcode.GET_TYPE:
            return DataType(command.map_hash, command.key_hash, item.type)
        wanted, reply = _WANTED[command.opcode]
        if item.type != wanted:
            return FailInfo(FailCode.WRONG_TYPE, f"it is of type {item.type}")
        return reply(command.map_hash, command.key_hash, item.data)
