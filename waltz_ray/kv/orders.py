"""What a keeper orders, gathered; and what it has on its way to the log. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Protocol

from waltz_ray.kv.growth import LogGrowth
from waltz_ray.kv.keeper_types import Answer, AppendRecord, Effect, UnitDrained
from waltz_ray.kv.messages import FailCode, FailInfo
from waltz_ray.kv.model import ItemWrite, Record, Set, Several
from waltz_ray.kv.routing import Unit, partition_of

__all__ = ["Orders", "Sent", "rest_on"]

_TOGETHER_BYTES, _TOGETHER_UNITS = 64 * 1024, 64
"""Of the items that share a transaction, for who follows the log is given one whole; and of its locks."""
_ITEM_BYTES = 48  # of one in the log, besides its name and its value


class Sent(Protocol):
    """Whose record is on its way: told once how that has ended."""

    def committed(self, version: int) -> None: ...

    def refused(self, partition: int, conflict: int) -> None:
        """It is not in the log; the transaction ``conflict`` was in the way. -1: it was not sent."""

    def lost(self, reason: str) -> None:
        """It may or may not be in the log."""


def rest_on(units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Whose read locks a transaction is appended under: of all that are written in it."""
    return tuple(units)


def _share(one: Unit, other: Unit) -> bool:
    """Whether one of them is a part of the other."""
    return one.bucket & other.mask == other.bucket or other.bucket & one.mask == one.bucket


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

    Items wait here, in their order, while the log of their partition may not grow (``growth.py``).
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.effects: list[Effect] = []
        self.now_ms = 0
        self.read_bytes = 0
        """Of values in the answers of this step."""
        self._next_number = 1
        self._together: dict[int, _Together] = {}
        self._sent: dict[int, list[tuple[Sent, Unit]]] = {}
        self._under_way: Counter[Unit] = Counter()
        self._growth = LogGrowth()
        self._waiting: dict[int, list[tuple[Sent, Unit]]] = defaultdict(list)
        self._sizes: dict[int, tuple[int, int]] = {}  # of the items that are sent: (partition, bytes)
        self._stopping: set[Unit] = set()

    def taken(self) -> list[Effect]:
        """What was ordered since the last time."""
        together, self._together = self._together, {}
        for partition, each in together.items():
            self._order(partition, each)
        effects, self.effects = self.effects, []
        self.read_bytes = 0
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
        if self._growth.is_full(partition):
            self._waiting[partition].append((sent, unit))
            return
        together = self._together.get(partition)
        if together is None:
            together = self._together[partition] = _Together(self.number())
        together.sent.append((sent, unit))
        together.units[unit] = None
        together.writes.append(write)
        size = _ITEM_BYTES + len(write.key.name) + (len(write.data) if isinstance(write, Set) else 0)
        together.size_bytes += size
        self._growth.ordered(partition, size)
        if together.size_bytes >= _TOGETHER_BYTES or len(together.units) >= _TOGETHER_UNITS:
            self._order(partition, self._together.pop(partition))

    def _order(self, partition: int, together: _Together) -> None:
        self._sent[together.number] = together.sent
        self._sizes[together.number] = partition, together.size_bytes
        self.effects.append(together.effect(partition))

    def committed(self, number: int, version: int) -> None:
        if number in self._sizes:
            self._growth.committed(*self._sizes.pop(number), version)
        for sent, _ in self._landed(number):
            sent.committed(version)

    def refused(self, number: int, conflict: int) -> None:
        self._dropped(number)
        for sent, unit in self._landed(number):
            sent.refused(partition_of(unit.bucket, self.partitions), conflict)

    def lost(self, number: int, reason: str) -> None:
        self._dropped(number)
        for sent, _ in self._landed(number):
            sent.lost(reason)

    def _dropped(self, number: int) -> None:
        if number in self._sizes:
            self._growth.dropped(*self._sizes.pop(number))

    # ---- how the log grows

    def ahead_bytes(self, partition: int) -> int:
        """Of items that were ordered, and are not folded as far as is known."""
        return self._growth.ahead_bytes(partition)

    def folded(self, partition: int, mark: int) -> None:
        """The projection of the partition has its log up to there."""
        self._growth.folded(partition, mark)

    def bound(self, partition: int, room_bytes: int | None) -> None:
        """The partition's log may grow by so much from now on, None = by any amount; what finds no room waits."""
        self._growth.bound(partition, room_bytes)
        if not self._growth.is_full(partition):
            self.decide_again(partition)

    @property
    def waiting(self) -> int:
        """Items that find no room."""
        return sum(map(len, self._waiting.values()))

    def drain(self, unit: Unit) -> None:
        """UnitDrained as soon as nothing of the unit, or of one that it is a part of, is under way."""
        self.decide_again(partition_of(unit.bucket, self.partitions))
        if self._busy(unit):
            self._stopping.add(unit)
        else:
            self.effects.append(UnitDrained(unit))

    def decide_again(self, partition: int) -> None:
        """What waits for room: sent as it is, after somebody else has come to own its unit, it would pass for ours."""
        for sent, unit in self._waiting.pop(partition, ()):
            self._less_under_way(unit)
            sent.refused(partition, -1)

    def _busy(self, unit: Unit) -> bool:
        return any(_share(unit, each) for each in self._under_way)

    def _less_under_way(self, unit: Unit) -> None:
        self._under_way[unit] -= 1
        if not self._under_way[unit]:
            del self._under_way[unit]

    def _landed(self, number: int) -> list[tuple[Sent, Unit]]:
        landed = self._sent.pop(number)
        for _, unit in landed:
            self._less_under_way(unit)
        if self._stopping:
            for each in [each for each in self._stopping if not self._busy(each)]:
                self._stopping.remove(each)
                self.effects.append(UnitDrained(each))
        return landed
