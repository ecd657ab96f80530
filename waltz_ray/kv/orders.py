"""What a keeper orders, gathered; and what it has on its way to the log. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from waltz_ray.kv.keeper_types import Answer, AppendRecord, Effect, UnitDrained
from waltz_ray.kv.messages import FailCode, FailInfo
from waltz_ray.kv.model import ItemWrite, Record, Set, Several
from waltz_ray.kv.routing import Unit, partition_of

__all__ = ["Orders", "Sent", "rest_on"]

_TOGETHER_BYTES, _TOGETHER_UNITS = 64 * 1024, 64
"""Of the values that share a transaction, for who follows the log is given one whole; and of its locks."""


class Sent(Protocol):
    """Whose record is on its way: told once how that has ended."""

    def committed(self, version: int) -> None: ...

    def refused(self, partition: int, conflict: int) -> None:
        """It is not in the log; the transaction ``conflict`` was in the way."""

    def lost(self, reason: str) -> None:
        """It may or may not be in the log."""


def rest_on(units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Whose read locks a transaction is appended under: of all that are written in it."""
    return tuple(units)


class _Together:
    """Writes of one partition and one step: one transaction, once the step is over."""

    __slots__ = ("number", "sent", "size_bytes", "units", "writes")

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent: list[tuple[Sent, Unit]] = []
        self.units: dict[Unit, None] = {}
        self.writes: list[ItemWrite] = []
        self.size_bytes = 0

    def effect(self, partition: int) -> AppendRecord:
        record = self.writes[0] if len(self.writes) == 1 else Several(tuple(self.writes))
        return AppendRecord(self.number, partition, rest_on(self.units), record)


class Orders:
    """``now_ms``: of the step that is being taken.

    Items that are written in one step, as those of a ``Put`` or of commands that have come together, share a
    transaction for each partition: a record, its locks and its fate cost more than an item. If the log refuses it,
    since one of its units is somebody else's by now, each is decided again for itself.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.effects: list[Effect] = []
        self.now_ms = 0
        self._next_number = 1
        self._together: dict[int, _Together] = {}
        self._sent: dict[int, list[tuple[Sent, Unit]]] = {}
        self._under_way: Counter[Unit] = Counter()
        self._stopping: set[Unit] = set()

    def taken(self) -> list[Effect]:
        """What was ordered since the last time."""
        together, self._together = self._together, {}
        for partition, each in together.items():
            self._order(partition, each)
        effects, self.effects = self.effects, []
        return effects

    def number(self) -> int:
        """One that nothing else of this keeper has."""
        self._next_number += 1
        return self._next_number

    def fail(self, token: int, code: FailCode, text: str) -> None:
        """Answer a command that it failed."""
        self.effects.append(Answer(token, FailInfo(code, text)))

    def append(self, sent: Sent, unit: Unit, record: Record) -> None:
        """Have it appended under the read lock of ``unit``; ``sent`` is told how that has ended."""
        partition = partition_of(unit.bucket, self.partitions)
        self._under_way[unit] += 1
        if isinstance(record, ItemWrite):
            self._join(partition, sent, unit, record)
            return
        number = self.number()
        self._sent[number] = [(sent, unit)]
        self.effects.append(AppendRecord(number, partition, (unit,), record))

    def _join(self, partition: int, sent: Sent, unit: Unit, write: ItemWrite) -> None:
        together = self._together.get(partition)
        if together is None:
            together = self._together[partition] = _Together(self.number())
        together.sent.append((sent, unit))
        together.units[unit] = None
        together.writes.append(write)
        if isinstance(write, Set):
            together.size_bytes += len(write.data)
        if together.size_bytes >= _TOGETHER_BYTES or len(together.units) >= _TOGETHER_UNITS:
            self._order(partition, self._together.pop(partition))

    def _order(self, partition: int, together: _Together) -> None:
        self._sent[together.number] = together.sent
        self.effects.append(together.effect(partition))

    def committed(self, number: int, version: int) -> None:
        for sent, _ in self._landed(number):
            sent.committed(version)

    def refused(self, number: int, conflict: int) -> None:
        for sent, unit in self._landed(number):
            sent.refused(partition_of(unit.bucket, self.partitions), conflict)

    def lost(self, number: int, reason: str) -> None:
        for sent, _ in self._landed(number):
            sent.lost(reason)

    def drain(self, unit: Unit) -> None:
        """UnitDrained as soon as nothing of the unit, or of one that it is a part of, is under way."""
        if self._busy(unit):
            self._stopping.add(unit)
        else:
            self.effects.append(UnitDrained(unit))

    def _busy(self, unit: Unit) -> bool:
        return any(
            each.bucket == unit.bucket & each.mask or unit.bucket == each.bucket & unit.mask for each in self._under_way
        )

    def _landed(self, number: int) -> list[tuple[Sent, Unit]]:
        landed = self._sent.pop(number)
        for _, unit in landed:
            self._under_way[unit] -= 1
            if not self._under_way[unit]:
                del self._under_way[unit]
        if self._stopping:
            for each in [each for each in self._stopping if not self._busy(each)]:
                self._stopping.remove(each)
                self.effects.append(UnitDrained(each))
        return landed
