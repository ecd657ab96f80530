"""One client of the smoke, an actor in a process of its own: it appends under locks, applies the whole feed, and writes
down at once what it is told."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from waltz_bench.clients import READY_S
from waltz_bench.smoke_files import (
    ABSENT,
    FATE,
    FED,
    IN_THE_LOG,
    NO_LOCK,
    UNKNOWN,
    UNLOCKED,
    RowFile,
    fates_path,
    fed_path,
    payload,
    uid_of,
)
from waltz_ray import connect
from waltz_ray.client.application import Callbacks, SubmitResult, Transaction, TransactionBuilder, TransactionContext
from waltz_ray.client.client import WaltzClient
from waltz_ray.errors import AppendFailed, DataUnavailable, LockConflict, PartitionNotReady
from waltz_ray.protocol.ids import LockId

__all__ = ["ClientPlan", "SmokeClient", "start_client"]

Locks = tuple[int, int, int]
"""The numbers of the write, the read and the append lock; NO_LOCK: none."""

_NOT_IN_THE_LOG = (AppendFailed, LockConflict, PartitionNotReady)
_STEP_S = 0.005  # between two helpings of transactions


@dataclass(frozen=True)
class ClientPlan:
    """``rate`` transactions a second are begun, as long as fewer than ``outstanding`` are under way; each takes some of
    ``locks`` locks of its partition. ``histories``: the directory of the files."""

    cluster: str
    histories: str
    partitions: int
    number: int
    life: int
    rate: float
    outstanding: int
    locks: int
    size_bytes: int


class _Feeds(Callbacks):
    """What a client was fed, row by row, is its database: the mark is the last row's."""

    def __init__(self, plan: ClientPlan) -> None:
        paths = {p: fed_path(Path(plan.histories), plan.number, p) for p in range(plan.partitions)}
        self._files = {p: RowFile(path, FED) for p, path in paths.items()}
        self.marks = {p: -1 if (last := file.last()) is None else int(last[0]) for p, file in self._files.items()}
        self.errors: list[str] = []

    def client_high_water_mark(self, partition_id: int) -> int:
        return self.marks[partition_id]

    def apply_transaction(self, transaction: Transaction) -> None:
        self.apply_transactions(transaction.partition_id, [transaction])

    def apply_transactions(self, partition_id: int, transactions: Sequence[Transaction]) -> None:
        rows = [(each.transaction_id, int.from_bytes(each.data[:8], "little")) for each in transactions]
        self._files[partition_id].add(rows)
        self.marks[partition_id] = rows[-1][0]

    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        self.errors.append(f"partition {partition_id}, transaction {transaction_id}: {error!r}")

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _LockedContext(TransactionContext):
    """A transaction that is built again at a newer mark until nobody is in its way."""

    __slots__ = ("_client", "_locks", "_partition_id", "_size", "_uid")

    def __init__(
        self, client: WaltzClient, partition_id: int, uid: int, locks: tuple[int, int, int], size: int
    ) -> None:
        self._client, self._partition_id, self._uid, self._locks, self._size = client, partition_id, uid, locks, size

    def partition_id(self, partitions: int) -> int:
        return self._partition_id

    def execute(self, builder: TransactionBuilder) -> bool:
        mark = self._client.high_water_mark(self._partition_id)
        builder.data = payload(self._uid, mark, self._locks, self._size)
        builder.write_locks, builder.read_locks, builder.append_locks = map(_lock_ids, self._locks)
        return True


def _lock_ids(lock: int) -> list[LockId]:
    return [] if lock == NO_LOCK else [LockId("smoke", lock)]


class SmokeClient:
    """A third are contexts with locks, a third appends with locks, the rest without any."""

    def __init__(self, plan: ClientPlan) -> None:
        self._plan = plan
        self._feeds = _Feeds(plan)
        self._fates = RowFile(fates_path(Path(plan.histories), plan.number), FATE)
        self._client = connect(plan.cluster, self._feeds)
        self._chance = random.Random(plan.number << 24 | plan.life)
        self._room = threading.Semaphore(plan.outstanding)
        self._lock = threading.Lock()
        self._proposed = 0
        self._committed = [0] * plan.partitions
        self._last_s = [perf_counter()] * plan.partitions
        self._longest_s = 0.0
        self._stopping = threading.Event()
        self._errors: list[str] = []
        self._thread = threading.Thread(target=self._work, name="smoke-work", daemon=True)

    def pid(self) -> int:
        """Once every partition is mounted."""
        self._client.wait_ready(READY_S)
        return os.getpid()

    def start(self) -> None:
        """Begin."""
        with self._lock:
            self._last_s = [perf_counter()] * self._plan.partitions
        self._thread.start()

    def felt_s(self) -> float:
        """The longest time without a commit in some partition since this was asked last."""
        now = perf_counter()
        with self._lock:
            longest = max(self._longest_s, *(now - last for last in self._last_s))
            self._longest_s = 0.0
            return longest

    def committed(self) -> list[int]:
        """So many of its own in each partition."""
        return list(self._committed)

    def stop(self) -> int:
        """Nothing more is begun. How many were, once each has its fate. DataUnavailable if they do not get it."""
        self._stopping.set()
        self._thread.join()
        until_s = perf_counter() + READY_S
        for done in range(self._plan.outstanding):
            if not self._room.acquire(timeout=max(0.001, until_s - perf_counter())):
                raise DataUnavailable(f"{self._plan.outstanding - done} transactions have no fate after {READY_S:g} s")
        return self._proposed

    def end(self, marks: list[int]) -> list[str]:
        """Close, when all up to these has been fed. What went wrong, one line each."""
        until_s = perf_counter() + READY_S
        while any(self._feeds.marks[p] < mark for p, mark in enumerate(marks)) and perf_counter() < until_s:
            time.sleep(0.02)
        self._client.close()
        self._feeds.close()
        self._fates.close()
        return self._errors + self._feeds.errors

    # ---- work ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        begin_s = perf_counter()
        try:
            while not self._stopping.wait(_STEP_S):
                due = int((perf_counter() - begin_s) * self._plan.rate) - self._proposed
                if due > self._plan.outstanding:  # it has hung: nothing is made up for
                    begin_s, due = perf_counter() - self._proposed / self._plan.rate, 1
                for _ in range(due):
                    while not self._room.acquire(timeout=0.1):
                        if self._stopping.is_set():
                            return
                    self._propose()
        except Exception as error:  # noqa: BLE001 - nobody waits for this thread: ``end`` tells of it
            self._errors.append(f"the work stopped: {error!r}")

    def _propose(self) -> None:
        plan, chance = self._plan, self._chance
        p, roll = chance.randrange(plan.partitions), chance.random()
        self._proposed += 1
        uid = uid_of(plan.number, plan.life, self._proposed)
        locks = self._some_lock(), self._some_lock(), self._some_lock()
        done = _Done(self, p, uid)
        future: Future[Any]
        if roll < 0.33:
            future = self._client.submit(_LockedContext(self._client, p, uid, locks, plan.size_bytes))
        elif roll < 0.66:
            mark = self._client.high_water_mark(p)
            data = payload(uid, mark, locks, plan.size_bytes)
            write, read, append = map(_lock_ids, locks)
            future = self._client.append(p, data, 0, write, read, append, client_mark=mark)
        else:
            future = self._client.append(p, payload(uid, UNLOCKED, (NO_LOCK,) * 3, plan.size_bytes))
        future.add_done_callback(done)

    def _some_lock(self) -> int:
        return self._chance.randrange(self._plan.locks) if self._chance.random() < 0.5 else NO_LOCK

    def told(self, partition_id: int, uid: int, fate: int) -> None:
        """What became of one."""
        now = perf_counter()
        with self._lock:
            self._fates.add([(uid, fate, partition_id)])
            if fate >= IN_THE_LOG:
                self._committed[partition_id] += 1
                self._longest_s = max(self._longest_s, now - self._last_s[partition_id])
                self._last_s[partition_id] = now
        self._room.release()


class _Done:
    """Of one future."""

    __slots__ = ("_client", "_partition_id", "_uid")

    def __init__(self, client: SmokeClient, partition_id: int, uid: int) -> None:
        self._client, self._partition_id, self._uid = client, partition_id, uid

    def __call__(self, future: Future[Any]) -> None:
        self._client.told(self._partition_id, self._uid, _fate_of(future))


def _fate_of(future: Future[Any]) -> int:
    error = future.exception()
    if error is None:
        result = future.result()
        found = result.transaction_id if isinstance(result, SubmitResult) else result
        return ABSENT if found is None else int(found)
    return ABSENT if isinstance(error, _NOT_IN_THE_LOG) else UNKNOWN


def start_client(plan: ClientPlan) -> Any:
    """A ``SmokeClient`` as a Ray actor that nobody starts again; the handle."""
    import ray

    return ray.remote(SmokeClient).options(num_cpus=0, max_concurrency=3, max_restarts=0).remote(plan)
