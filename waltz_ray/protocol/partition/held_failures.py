"""Lock failures that are not told yet: they stand in line behind the transaction that was in their way.

A check that fails against a transaction in flight waits for that one's fate (docs/design.md, "Locks"). And when it is
committed, only one of those who failed because of it can be next. If all n of them were told at once, all n would try
again, and n - 1 be refused, in every round trip: with 64 clients that was 64 attempts for each commit. So only the
first in line is told. When a transaction passes the same lock, the line goes on standing behind that one.

Who is told need not try again. So while a line stands behind a committed transaction, twice as many as before are told
after each pause, until it is empty: nobody waits for long because of others who have given up.

A line has places for some failures of a connection, and of all together. Who finds none is told with the commit of the
transaction that was in its way: the crowd of a line never outlasts that.

It is a matter of pace only. A failure may be told at any time after its conflict is committed, but

- before its client is told of a later commit of its own: a client takes an older append that has no fate by then for
  dropped;
- before its connection is told that everything earlier has its fate (flush).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waltz_ray.protocol.records import Int32s, Int64s
from waltz_ray.protocol.value import value

__all__ = ["MOST_IN_LINE", "MOST_IN_LINE_OF_ONE", "HeldFailures", "LockFailures"]

MOST_IN_LINE_OF_ONE = 256
"""Failures of one connection that stand in the lines of a partition."""

MOST_IN_LINE = 8192
"""Of all connections together."""


@value(eq=False)
class LockFailures:
    """Transactions of one client that failed the lock check, with the conflicting transaction IDs."""

    connection_id: int
    client_id: int
    sequence_numbers: Int32s
    conflicts: Int64s

    def chosen(self, which: npt.NDArray[np.bool_]) -> LockFailures:
        """The failures at whose position ``which`` is true."""
        return LockFailures(self.connection_id, self.client_id, self.sequence_numbers[which], self.conflicts[which])


class _Waiter(NamedTuple):
    connection_id: int
    client_id: int
    sequence_number: int
    conflict: int  # what it failed because of; its line may stand behind a later one by now


@dataclass(slots=True)
class _Line:
    """Behind one transaction, first come first."""

    waiters: list[_Waiter] = field(default_factory=list)
    portion: int = 1  # how many are told next
    rested: bool = True  # a whole pause has passed since the last were told
    crowd: list[_Waiter] = field(default_factory=list)  # found no place: told when the transaction is committed

    def take(self) -> list[_Waiter]:
        told, self.waiters = self.waiters[: self.portion], self.waiters[self.portion :]
        self.portion *= 2
        self.rested = False
        return told

    def take_out(self, whose: Callable[[_Waiter], bool]) -> list[_Waiter]:
        told = [waiter for waiter in self.waiters if whose(waiter)]
        if told:
            gone = set(told)
            self.waiters = [w for w in self.waiters if w not in gone]
        return told


class HeldFailures:
    """The lines of one partition. What is returned is to be told now, one item for each client and conflict."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}  # by the transaction they stand behind
        self._mark = -1  # lines up to here stand behind committed transactions
        self._of_client: Counter[int] = Counter()  # how many have a place in a line
        self._of_connection: Counter[int] = Counter()
        self.crowded = 0
        """How many found no place, and wait for the commit."""

    def __bool__(self) -> bool:
        return bool(self._lines)

    @property
    def resting(self) -> bool:
        """Some stand behind committed transactions: call ``pause_over`` after a pause."""
        return any(transaction_id <= self._mark for transaction_id in self._lines)

    def hold(self, failures: LockFailures) -> None:
        """All of these failed because of transactions in flight."""
        connection_id, client_id = failures.connection_id, failures.client_id
        own, all_of_them = self._of_connection[connection_id], self._of_connection.total()
        places = max(0, min(len(failures.conflicts), MOST_IN_LINE_OF_ONE - own, MOST_IN_LINE - all_of_them))
        columns = zip(failures.sequence_numbers.tolist(), failures.conflicts.tolist(), strict=True)
        for index, (number, conflict) in enumerate(columns):
            line = self._lines.setdefault(conflict, _Line())
            queue = line.waiters if index < places else line.crowd
            queue.append(_Waiter(connection_id, client_id, number, conflict))
        if places:
            self._of_connection[connection_id] += places
            self._of_client[client_id] += places
        self.crowded += len(failures.conflicts) - places

    def passed(self, first_id: int, estimates: Int64s) -> None:
        """Transactions first_id, first_id + 1, ... have been admitted, each after the one its estimate names."""
        # The last one after each: who passed before it may have wanted another lock of the same transaction.
        after = {
            estimate: transaction_id
            for transaction_id, estimate in enumerate(estimates.tolist(), first_id)
            if estimate <= self._mark and estimate in self._lines
        }
        for before, behind in after.items():
            successor = self._lines.setdefault(behind, _Line())
            successor.waiters = self._lines.pop(before).waiters + successor.waiters

    def committed(self, high_water_mark: int, newest: Mapping[int, int]) -> list[LockFailures]:
        """The mark has moved; ``newest``: of each client, the last sequence number among those committed."""
        if not self._lines:  # nearly always
            self._mark = high_water_mark
            return []
        told: list[tuple[int, _Waiter]] = []
        crowd: list[tuple[int, _Waiter]] = []
        for conflict, line in self._up_to(high_water_mark):
            if conflict > self._mark:
                told += [(conflict, waiter) for waiter in line.take()]
                crowd += [(conflict, waiter) for waiter in line.crowd]
                line.crowd = []
        self._mark = high_water_mark
        self.crowded -= len(crowd)
        if not self._of_client.keys().isdisjoint(newest):
            told += self._take_out(lambda waiter: _is_older(waiter, newest))
        return self._leave(told) + _grouped(crowd)

    def settle(self, connection_ids: Collection[int]) -> list[LockFailures]:
        """All of these connections that failed because of committed transactions."""
        if self._of_connection.keys().isdisjoint(connection_ids):
            return []
        return self._leave(self._take_out(_whose(connection_ids, ())))

    def _take_out(self, whose: Callable[[_Waiter], bool]) -> list[tuple[int, _Waiter]]:
        told: list[tuple[int, _Waiter]] = []
        for behind, line in sorted(self._lines.items()):
            for waiter in line.take_out(lambda waiter: waiter.conflict <= self._mark and whose(waiter)):
                told.append((behind if behind <= self._mark else waiter.conflict, waiter))
        return told

    def pause_over(self) -> list[LockFailures]:
        """A pause has passed: who is told next in the lines that nobody has passed since the last pause."""
        told: list[tuple[int, _Waiter]] = []
        for conflict, line in self._up_to(self._mark):
            if line.rested:
                told += [(conflict, waiter) for waiter in line.take()]
            line.rested = True
        return self._leave(told)

    def forget(self, connection_ids: Iterable[int] = (), client_ids: Iterable[int] = ()) -> None:
        """A connection is gone, or a client mounts anew: what is pending then is failed by the answer to the mount."""
        whose = _whose(connection_ids, client_ids)
        gone: list[tuple[int, _Waiter]] = []
        for behind, line in self._lines.items():
            gone += [(behind, waiter) for waiter in line.take_out(whose)]
            staying = [waiter for waiter in line.crowd if not whose(waiter)]
            self.crowded -= len(line.crowd) - len(staying)
            line.crowd = staying
        self._leave(gone)

    def clear(self) -> None:
        self._lines.clear()
        self._of_client.clear()
        self._of_connection.clear()
        self.crowded = 0
        self._mark = -1

    def _up_to(self, mark: int) -> Iterator[tuple[int, _Line]]:
        return ((one, line) for one, line in sorted(self._lines.items()) if one <= mark)

    def _leave(self, taken: list[tuple[int, _Waiter]]) -> list[LockFailures]:
        """These have been taken out of the lines."""
        for key in [one for one, line in self._lines.items() if not (line.waiters or line.crowd)]:
            del self._lines[key]
        for _, waiter in taken:
            _one_less(self._of_client, waiter.client_id)
            _one_less(self._of_connection, waiter.connection_id)
        return _grouped(taken)


def _grouped(told: list[tuple[int, _Waiter]]) -> list[LockFailures]:
    grouped: dict[tuple[int, int, int], list[int]] = {}
    for conflict, (connection_id, client_id, number, _) in told:
        grouped.setdefault((conflict, connection_id, client_id), []).append(number)
    return [
        LockFailures(connection, client, np.array(numbers, np.int32), np.array([conflict] * len(numbers), np.int64))
        for (conflict, connection, client), numbers in grouped.items()
    ]


def _one_less(counter: Counter[int], key: int) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def _is_older(waiter: _Waiter, newest: Mapping[int, int]) -> bool:
    """Whether its client has proposed it before a transaction that is committed now; the numbers wrap around."""
    number = newest.get(waiter.client_id)
    return number is not None and (number - waiter.sequence_number) & 0xFFFFFFFF < 1 << 31


def _whose(connection_ids: Iterable[int], client_ids: Iterable[int]) -> Callable[[_Waiter], bool]:
    connections, clients = frozenset(connection_ids), frozenset(client_ids)
    return lambda waiter: waiter.connection_id in connections or waiter.client_id in clients
