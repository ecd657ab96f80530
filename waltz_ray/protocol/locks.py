"""Optimistic locks: a fixed-size table that may say "newer" wrongly, but never "older" wrongly.

The table holds, under each hash slot, the highest transaction ID that ever updated a lock hashed there.
A lock's estimate is the minimum over its slots, so it is never below the truth: there are no false
negatives, and a false positive costs its client one re-execution (docs/design.md, "Locks").

A transaction fails iff the maximum of its locks' estimates is *greater* than its client's mark.
Write locks check and update, read locks check only, append locks update only.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from waltz_ray.protocol.records import Int32s, Int64s, LockColumns
from waltz_ray.protocol.value import value

__all__ = ["NO_CONFLICT", "LockRequests", "LockTable", "OneByOne", "Verdicts"]

_MULTIPLIER, _INCREMENT, _MASK = 1103515245, 12345, 0x3FFFFFFF
NO_CONFLICT = int(np.iinfo(np.int64).min)  # estimate of a transaction that checks no lock: below every mark


@value()
class LockRequests:
    """What n transactions, in arrival order, ask of the table."""

    client_marks: Int64s
    write: LockColumns
    read: LockColumns
    append: LockColumns


@value()
class Verdicts:
    """``passed[i]``; where it is False, ``conflicts[i]`` is the transaction ID that made the check fail."""

    passed: npt.NDArray[np.bool_]
    conflicts: Int64s


class LockTable:
    """``size`` slots, ``probes`` of them per lock, all starting at ``initial_mark`` (the log's end at opening)."""

    def __init__(self, size: int, probes: int, initial_mark: int) -> None:
        self._size = size
        self._probes = probes
        self._initial_mark = initial_mark

    @cached_property
    def marks(self) -> Int64s:
        """Of each slot the last transaction ID. Made when it is first asked for: idle partitions have none."""
        return np.full(self._size, self._initial_mark, dtype=np.int64)

    def slots_of(self, hashes: Int32s) -> Int64s:
        """Slots of each hash, shape (k, probes): docs/design.md, "Locks"."""
        slots = np.empty((len(hashes), self._probes), dtype=np.int64)
        h = hashes.astype(np.int32).view(np.uint32)
        for probe in range(self._probes):
            h = h * np.uint32(_MULTIPLIER) + np.uint32(_INCREMENT)
            slots[:, probe] = (h & np.uint32(_MASK)) % np.uint32(self._size)
        return slots

    def slots_of_one(self, lock_hash: int) -> list[int]:
        """``slots_of`` with plain integers."""
        found, h = [], lock_hash
        for _ in range(self._probes):
            h = (h * _MULTIPLIER + _INCREMENT) & 0xFFFFFFFF
            found.append((h & _MASK) % self._size)
        return found

    def estimates(self, hashes: Int32s) -> Int64s:
        """Upper bound of the last transaction ID that updated each lock."""
        estimates: Int64s = self.marks[self.slots_of(hashes)].min(axis=1)
        return estimates

    def admit(self, requests: LockRequests, first_id: int) -> Verdicts:
        """Decide n transactions as if one at a time; those that pass get consecutive IDs from ``first_id``.

        Transactions that share no slot with another one, or only slots that all of them just look at, cannot
        influence each other and are decided at once; only the others go one by one.
        """
        work = _Work(self, requests, len(requests.client_marks))
        conflicts = work.estimates_of_all(self.marks)
        passed = conflicts <= requests.client_marks
        entangled = work.entangled()
        if entangled.any():
            self._admit_one_by_one(work, requests.client_marks, first_id, passed, conflicts, np.nonzero(entangled)[0])
        ids = first_id - 1 + np.cumsum(passed)
        work.update_all(self.marks, passed & ~entangled, ids)
        return Verdicts(passed, conflicts)

    def _admit_one_by_one(
        self,
        work: _Work,
        client_marks: Int64s,
        first_id: int,
        passed: npt.NDArray[np.bool_],
        conflicts: Int64s,
        indexes: npt.NDArray[np.intp],
    ) -> None:
        """Decide ``indexes`` in order, each seeing the updates of those before it."""
        passed[indexes] = False
        independent_before = np.concatenate(([0], np.cumsum(passed)))[indexes].tolist()
        passed_here = 0
        for index, before in zip(indexes.tolist(), independent_before, strict=True):
            conflicts[index] = work.estimate_of(self.marks, index)
            if conflicts[index] <= client_marks[index]:
                work.update_one(self.marks, index, first_id + before + passed_here)
                passed[index] = True
                passed_here += 1


class OneByOne:
    """A lock table for a few transactions in turn, with plain integers: ``estimate``, ``update`` if it passes."""

    def __init__(self, table: LockTable) -> None:
        self._table = table
        self._marks = table.marks
        self._slots: dict[int, list[int]] = {}
        self._estimates: dict[int, int] = {}  # those that wait for one lock ask for the same again and again

    def estimate(self, hashes: Iterable[int]) -> int:
        """The last transaction that may have updated one of these locks; NO_CONFLICT for none."""
        estimate = NO_CONFLICT
        for lock_hash in hashes:
            if lock_hash not in self._estimates:
                self._estimates[lock_hash] = min(map(self._marks.item, self._slots_of(lock_hash)))
            estimate = max(estimate, self._estimates[lock_hash])
        return estimate

    def update(self, hashes: Iterable[int], transaction_id: int) -> None:
        """Note that ``transaction_id`` has the locks of these hashes now."""
        for lock_hash in hashes:
            for slot in self._slots_of(lock_hash):
                self._marks[slot] = transaction_id
        self._estimates.clear()

    def _slots_of(self, lock_hash: int) -> list[int]:
        slots = self._slots.get(lock_hash)
        if slots is None:
            slots = self._slots[lock_hash] = self._table.slots_of_one(lock_hash)
        return slots


class _Work:
    """The slots of one batch, per lock kind, with the transaction each belongs to."""

    def __init__(self, table: LockTable, requests: LockRequests, count: int) -> None:
        self.count = count
        self.checked = [_Kind(table, columns, count) for columns in (requests.write, requests.read)]
        self.updated = [self.checked[0], _Kind(table, requests.append, count)]

    def estimates_of_all(self, marks: Int64s) -> Int64s:
        estimates = np.full(self.count, NO_CONFLICT, dtype=np.int64)
        for kind in self.checked:
            if len(kind.slots):
                np.maximum.at(estimates, kind.owners, marks[kind.slots].min(axis=1))
        return estimates

    def estimate_of(self, marks: Int64s, index: int) -> int:
        estimate = NO_CONFLICT
        for kind in self.checked:
            slots = kind.slots_of(index)
            if len(slots):
                estimate = max(estimate, int(marks[slots].min(axis=1).max()))
        return int(estimate)

    def entangled(self) -> npt.NDArray[np.bool_]:
        """Which transactions share a slot with another one of the batch, and somebody of the batch updates it."""
        kinds = [kind for kind in (*self.checked, self.updated[1]) if len(kind.slots)]
        result = np.zeros(self.count, dtype=np.bool_)
        updated = [kind.slots.ravel() for kind in self.updated if len(kind.slots)]
        if not updated:
            return result  # who only looks is in nobody's way, as all are who rest on one owner's lock
        slots = np.concatenate([kind.slots.ravel() for kind in kinds])
        owners = np.concatenate([np.repeat(kind.owners, kind.slots.shape[1]) for kind in kinds])
        order = np.lexsort((owners, slots))
        slots, owners = slots[order], owners[order]
        # Within one slot owners ascend, so a slot with two owners has two different neighbours.
        shared_slots = slots[1:][(slots[1:] == slots[:-1]) & (owners[1:] != owners[:-1])]
        shared_slots = shared_slots[np.isin(shared_slots, np.concatenate(updated))]
        result[owners[np.isin(slots, shared_slots)]] = True
        return result

    def update_all(self, marks: Int64s, chosen: npt.NDArray[np.bool_], ids: Int64s) -> None:
        for kind in self.updated:
            if len(kind.slots):
                rows = chosen[kind.owners]
                marks[kind.slots[rows]] = ids[kind.owners[rows], None]

    def update_one(self, marks: Int64s, index: int, transaction_id: int) -> None:
        for kind in self.updated:
            marks[kind.slots_of(index)] = transaction_id


class _Kind:
    """One kind of lock of a batch: ``slots`` (k, probes) and the owning transaction of each of the k."""

    def __init__(self, table: LockTable, columns: LockColumns, count: int) -> None:
        self.slots = table.slots_of(columns.hashes)
        self.offsets = columns.offsets
        self.owners = (
            np.repeat(np.arange(count), np.diff(columns.offsets)) if len(self.slots) else np.zeros(0, dtype=np.int64)
        )

    def slots_of(self, index: int) -> Int64s:
        if not len(self.slots):
            return self.slots
        return self.slots[self.offsets[index] : self.offsets[index + 1]]
