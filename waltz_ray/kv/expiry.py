"""EXPIRED: what is past its deadline is said in the log, in batches and without haste, so that feeds see it. Pure.

Unless somebody asks for it. That an item is gone is answered once the log says so, and not by the owner's clock alone:
the next owner's may be behind, and would show it again.

So are locks that nobody has had for long (UNLOCK, under the code of the last holder): they would stay in the state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from waltz_ray.kv.keeper_types import Serving
from waltz_ray.kv.lines import LOCKS, Line, LineKey, PendingRead, PendingWrite
from waltz_ray.kv.model import NOBODYS, Expired, ItemKey, Unlock
from waltz_ray.kv.orders import Orders
from waltz_ray.kv.routing import Unit, fnv1a_32, partition_of
from waltz_ray.kv.state import KvState

__all__ = ["Expiry"]

_A_TIME = 250
_UNDER_WAY = 2_000
"""So much is folded by every actor, an item in as long as a write, while it answers nobody."""
_LOOKED_AT = 10_000
_LOCK_IS_KEPT_MS = 10 * 60_000  # after its deadline: one that is taken again and again costs no record more
_LOCKS_A_TIME, _LOCKS_LOOKED_AT = 100, 1_000


class _Batch:
    """An EXPIRED on its way, and until it is folded."""

    def __init__(self, expiry: Expiry, unit: Unit, partition: int, count: int) -> None:
        self._expiry = expiry
        self.unit = unit
        self.partition = partition
        self.count = count
        """Of its items."""
        self.version: int | None = None
        """None: on its way."""
        self.waiting: list[PendingWrite | PendingRead] = []
        """Who is to be told that one of its items, or another, is gone."""

    def committed(self, version: int) -> None:
        self.version = version
        self._go_on(self.partition, version)

    def refused(self, partition: int, conflict: int) -> None:
        self._expiry.batches.pop(self.unit)
        self._go_on(partition, conflict)

    def lost(self, reason: str) -> None:
        self._expiry.batches.pop(self.unit)
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            self._expiry.not_said(one, reason)

    def _go_on(self, partition: int, version: int) -> None:
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            self._expiry.after(partition, version, one)


class _LockOver:
    """An UNLOCK on its way, and until it is folded."""

    def __init__(self, expiry: Expiry, name: bytes, partition: int) -> None:
        self._expiry = expiry
        self.name = name
        self.partition = partition
        self.version: int | None = None
        """None: on its way."""

    def committed(self, version: int) -> None:
        self.version = version

    def refused(self, partition: int, conflict: int) -> None:
        self._expiry.locks.pop(self.name)

    def lost(self, reason: str) -> None:
        self._expiry.locks.pop(self.name)


class Expiry:
    """``after``: goes on with a command once the state of the partition has a transaction; ``not_said``: ends one
    without having done anything, as the log does not answer."""

    def __init__(
        self,
        orders: Orders,
        states: Mapping[int, KvState],
        lines: Mapping[LineKey, Line],
        serving: Serving,
        after: Callable[[int, int, PendingWrite | PendingRead], None],
        not_said: Callable[[PendingWrite | PendingRead, str], None],
    ) -> None:
        self.after = after
        self.not_said = not_said
        self.batches: dict[Unit, _Batch] = {}
        self.locks: dict[bytes, _LockOver] = {}
        self._orders = orders
        self._states = states
        self._lines = lines
        self._serving = serving
        self._first = 0  # the partition that had no room the last time

    def time_passed(self) -> None:
        """Say what has expired, of the units that are served here; one batch of each unit at a time. Where that is much
        at once, as of a cache that was filled at once, each partition has its turn."""
        for batch in list(self.batches.values()):
            if batch.version is not None and batch.version <= self._states[batch.partition].mark:
                del self.batches[batch.unit]
        room = _UNDER_WAY - sum(batch.count for batch in self.batches.values())
        turn, self._first = self._first, 0
        for partition, state in sorted(self._states.items(), key=lambda entry: entry[0] < turn):
            if room > 0:
                room -= self._say_expired(partition, state, room)
            elif not self._first:
                self._first = partition
            self._free_locks(partition, state)

    def say_first(self, over: Mapping[Unit, Sequence[tuple[ItemKey, int]]], one: PendingWrite | PendingRead) -> None:
        """Have the log say that these have expired, and go on with ``one`` after that: it looks again. With others of
        their unit, so that of many who ask not each needs a record of its own."""
        batches = [self._batch_with(unit, items) for unit, items in over.items()]
        last = batches[-1]
        if last.version is None:
            last.waiting.append(one)
        else:
            self.after(last.partition, last.version, one)

    def _batch_with(self, unit: Unit, items: Sequence[tuple[ItemKey, int]]) -> _Batch:
        """The unit's batch that is on its way or not folded, whatever it has, or a new one with these."""
        partition = partition_of(unit.bucket, self._orders.partitions)
        state, batch = self._states[partition], self.batches.get(unit)
        if batch is not None and (batch.version is None or batch.version > state.mark):
            return batch
        self.batches.pop(unit, None)
        others = self._by_unit(state.expired(self._orders.now_ms, 2 * _A_TIME))
        said = tuple(dict.fromkeys((*items, *others.get(unit, ()))))[: max(_A_TIME, len(items))]
        batch = self.batches[unit] = _Batch(self, unit, partition, len(said))
        self._orders.append(batch, unit, Expired(said))
        return batch

    def _say_expired(self, partition: int, state: KvState, room: int) -> int:
        """How many items are said to have expired, ``room`` at the most."""
        if not state.expired(self._orders.now_ms, 1):
            return 0  # as nearly always: no look at thousands of buckets for it
        wanted = min(room, _A_TIME * len(self._units_without_batch(partition)))
        by_unit: dict[Unit, list[tuple[ItemKey, int]]] = {}
        for limit in (min(2 * wanted, _LOOKED_AT), _LOOKED_AT) if wanted else ():
            found = state.expired(self._orders.now_ms, limit)
            by_unit = self._by_unit(found)
            if by_unit or len(found) < limit:
                break  # else all of these are others', and there are more
        said = 0
        for unit, all_of_unit in by_unit.items():
            items = tuple(all_of_unit[: room - said])
            if items:
                batch = self.batches[unit] = _Batch(self, unit, partition, len(items))
                self._orders.append(batch, unit, Expired(items))
                said += len(items)
        return said

    def _units_without_batch(self, partition: int) -> set[Unit]:
        """That are served here."""
        buckets = range(partition, self._serving.mask + 1, self._orders.partitions)
        units = {self._serving.unit_of(bucket) for bucket in buckets} - self.batches.keys()
        return {unit for unit in units if unit is not None}

    def _by_unit(self, found: Sequence[tuple[ItemKey, int]]) -> dict[Unit, list[tuple[ItemKey, int]]]:
        """Those whose unit is served here and has no batch."""
        by_unit: dict[Unit, list[tuple[ItemKey, int]]] = defaultdict(list)
        for key, version in found:
            unit = self._serving.unit_of(key.hash)
            if unit is not None and unit not in self.batches and len(by_unit[unit]) < _A_TIME:
                by_unit[unit].append((key, version))
        return by_unit

    def _free_locks(self, partition: int, state: KvState) -> None:
        """Not those that have a line: a renewal with the same code may be on its way. Where there is none, none comes
        before the UNLOCK, for the owner renews nothing whose lease is over; and the next holder has another code."""
        for over in [over for over in self.locks.values() if over.partition == partition]:
            if over.version is not None and over.version <= state.mark:
                del self.locks[over.name]
        over_ms = max(0, self._orders.now_ms - _LOCK_IS_KEPT_MS)  # a clock may begin in 1970, until it is put right
        for name, code in state.expired_locks(over_ms, _LOCKS_LOOKED_AT):
            if len(self.locks) >= _LOCKS_A_TIME:
                return
            name_hash = fnv1a_32(name)
            unit = self._serving.unit_of(name_hash)
            if unit is not None and name not in self.locks and (LOCKS, name_hash) not in self._lines:
                over = self.locks[name] = _LockOver(self, name, partition)
                self._orders.append(over, unit, Unlock(name, code, NOBODYS, self._orders.now_ms))
