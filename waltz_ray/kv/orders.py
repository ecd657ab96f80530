"""What a keeper orders, gathered; and what it has on its way to the log. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from waltz_ray.kv.keeper_types import Answer, AppendRecord, Effect, UnitDrained
from waltz_ray.kv.messages import FailCode, FailInfo
from waltz_ray.kv.model import Record
from waltz_ray.kv.routing import Unit, partition_of

__all__ = ["Orders", "Sent"]


class Sent(Protocol):
    """Whose record is on its way: told once how that has ended."""

    def committed(self, version: int) -> None: ...

    def refused(self, partition: int, conflict: int) -> None:
        """It is not in the log; the transaction ``conflict`` was in the way."""

    def lost(self, reason: str) -> None:
        """It may or may not be in the log."""


class Orders:
    """``now_ms``: of the step that is being taken."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.effects: list[Effect] = []
        self.now_ms = 0
        self._next_number = 1
        self._sent: dict[int, tuple[Sent, Unit]] = {}
        self._under_way: Counter[Unit] = Counter()
        self._stopping: set[Unit] = set()

    def taken(self) -> list[Effect]:
        """What was ordered since the last time."""
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
        number = self.number()
        self._sent[number] = sent, unit
        self._under_way[unit] += 1
        self.effects.append(AppendRecord(number, partition_of(unit.bucket, self.partitions), unit, record))

    def committed(self, number: int, version: int) -> None:
        self._landed(number)[0].committed(version)

    def refused(self, number: int, conflict: int) -> None:
        sent, unit = self._landed(number)
        sent.refused(partition_of(unit.bucket, self.partitions), conflict)

    def lost(self, number: int, reason: str) -> None:
        self._landed(number)[0].lost(reason)

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

    def _landed(self, number: int) -> tuple[Sent, Unit]:
        sent, unit = self._sent.pop(number)
        self._under_way[unit] -= 1
        if not self._under_way[unit]:
            del self._under_way[unit]
            for each in [each for each in self._stopping if not self._busy(each)]:
                self._stopping.remove(each)
                self.effects.append(UnitDrained(each))
        return sent, unit
