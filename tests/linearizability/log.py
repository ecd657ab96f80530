"""What one copy of a partition's log could show to its callers: the model of appends, locks and reads, and who records.

Appends are put in the order of their IDs, which leave none out; one under a lock is in the log only if nothing was
appended under that lock behind the mark that it named. (A refusal may be wrong: other locks may share the entry, and a
server that has just begun knows only that everything may have been locked. Then the append is refused needlessly, which
the model allows as long as the refusal names a transaction behind the mark that is there.) A read shows all there is.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from concurrent.futures import TimeoutError as FuturesTimeout  # in Python 3.10 it is not the builtin one
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from tests.linearizability.search import Model
from waltz_ray.client import WaltzClient
from waltz_ray.errors import AppendFailed, ClientClosed, DataUnavailable, LockConflict, PartitionNotReady

__all__ = [
    "Append",
    "Appended",
    "Caller",
    "Conflict",
    "HighWater",
    "LogCall",
    "LogState",
    "Mark",
    "ReadFrom",
    "Records",
    "log_model",
    "resolved",
]


class Append(NamedTuple):
    """``data`` differs from that of all others. ``mark`` counts where there are ``locks``. Result: Appended or
    Conflict."""

    data: str
    locks: tuple[int, ...] = ()
    mark: int = -1


class ReadFrom(NamedTuple):
    """All transactions from ``first`` on. Result: Records."""

    first: int


class HighWater(NamedTuple):
    """Result: Mark."""


class Appended(NamedTuple):
    transaction_id: int


class Conflict(NamedTuple):
    """Refused by a lock; it was last used by that transaction."""

    transaction_id: int


class Records(NamedTuple):
    datas: tuple[str, ...]


class Mark(NamedTuple):
    """The ID of the last transaction, -1 = none."""

    transaction_id: int


Asked = Append | ReadFrom | HighWater
Result = Appended | Conflict | Records | Mark


@dataclass(frozen=True)
class LogCall:
    """One call on partition ``key``: ``search.SeenCall``."""

    key: int
    asked: Asked
    result: Result | None
    invoked: float
    returned: float = math.inf
    who: str = ""


class LogState(NamedTuple):
    """``used``: (lock, ID of the last transaction under it), in order of the locks."""

    datas: tuple[str, ...] = ()
    used: tuple[tuple[int, int], ...] = ()


def log_model() -> Model:
    """Begins with an empty log."""
    return Model(LogState(), _step)


def _step(state: LogState, call: LogCall) -> LogState | None:
    asked, result, end = call.asked, call.result, len(state.datas)
    match asked:
        case ReadFrom(first):
            return state if result in (None, Records(state.datas[first:])) else None
        case HighWater():
            return state if result in (None, Mark(end - 1)) else None
        case Append(data, locks, mark):
            if isinstance(result, Conflict):
                return state if mark < result.transaction_id < end else None
            used = dict(state.used)
            if result not in (None, Appended(end)) or any(used.get(lock, -1) > mark for lock in locks):
                return None
            used |= dict.fromkeys(locks, end)
            return LogState((*state.datas, data), tuple(sorted(used.items())))


def resolved(calls: Iterable[LogCall]) -> list[LogCall]:
    """The same history, in which appends without a result have that which a read has shown."""
    calls = list(calls)
    shown: dict[tuple[int, str], int] = {}
    for call in calls:
        if isinstance(call.asked, ReadFrom) and isinstance(call.result, Records):
            shown |= {(call.key, data): at for at, data in enumerate(call.result.datas, call.asked.first)}
    found = []
    for call in calls:
        if call.result is None and isinstance(call.asked, Append) and (call.key, call.asked.data) in shown:
            call = replace(call, result=Appended(shown[call.key, call.asked.data]), returned=math.inf)
        found.append(call)
    return found


class Caller:
    """A thread that appends to some partitions and reads them, one call after the other; ``calls``: what it saw."""

    def __init__(self, name: str, client: WaltzClient, partitions: int, seed: int, locks: int = 3) -> None:
        self.calls: list[LogCall] = []
        self.errors: list[BaseException] = []
        self._name, self._client, self._partitions, self._locks = name, client, partitions, locks
        self._chance = Random(seed)
        self._ends = dict.fromkeys(range(partitions), 0)  # what it has seen of the log
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def stop(self) -> None:
        """After the call that is under way. Raises what has failed and should not."""
        self._stopping.set()
        self._thread.join()
        if self.errors:
            raise self.errors[0]

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._one()
        except BaseException as error:  # noqa: BLE001 - raised by stop()
            self.errors.append(error)

    def _one(self) -> None:
        partition, what = self._chance.randrange(self._partitions), self._chance.random()
        if what < 0.7:
            self._append(partition)
        elif what < 0.85:
            self.read(partition, max(0, self._ends[partition] - self._chance.randrange(4)))
        else:
            invoked = time.monotonic()
            try:
                mark = self._client.server_high_water_mark(partition)
            except (PartitionNotReady, DataUnavailable):
                return
            self._saw(partition, HighWater(), Mark(mark), invoked, mark + 1)

    def _append(self, partition: int) -> None:
        locks = (self._chance.randrange(self._locks),) if self._chance.random() < 0.5 else ()
        mark = self._ends[partition] - 1
        asked = Append(f"{self._name}/{len(self.calls)}", locks, mark if locks else -1)
        names = [("lock", lock) for lock in locks]
        invoked = time.monotonic()
        try:
            future = self._client.append(partition, asked.data.encode(), write_locks=names, client_mark=mark)
            found = future.result(self._chance.choice((0.05, 10.0)))
        except LockConflict as conflict:
            self._saw(partition, asked, Conflict(conflict.transaction_id), invoked, conflict.transaction_id + 1)
        except (FuturesTimeout, PartitionNotReady, ClientClosed):
            self._saw(partition, asked, None, invoked, 0)
        except AppendFailed:
            return  # it is certainly not in the log
        else:
            self._saw(partition, asked, Appended(found), invoked, found + 1)

    def read(self, partition: int, first: int) -> None:
        """From there to the end."""
        invoked = time.monotonic()
        try:
            found = tuple(bytes(each.data).decode() for each in self._client.read(partition, first, 1 << 40))
        except (PartitionNotReady, DataUnavailable):
            return
        self._saw(partition, ReadFrom(first), Records(found), invoked, first + len(found))

    def _saw(self, partition: int, asked: Asked, result: Result | None, invoked: float, end: int) -> None:
        self._ends[partition] = max(self._ends[partition], end)
        self.calls.append(LogCall(partition, asked, result, invoked, time.monotonic(), self._name))
