"""``waltz bench context``: transaction contexts from many threads, applied to SQLite by the same client.

Everything an application does: ``submit`` from its threads, ``execute`` under a lock, the append, ``on_completion``,
and ``apply_transactions`` into a database that keeps the client's mark in the same transaction.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from waltz_bench.clients import READY_S
from waltz_bench.cluster import Waltz
from waltz_bench.measure import Case, Figure, Sample, alternate, measure, ratio, warm_up
from waltz_bench.report import report
from waltz_ray.client.application import Callbacks, SubmitResult, Transaction, TransactionBuilder, TransactionContext
from waltz_ray.client.client import WaltzClient
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendTimeout, DataUnavailable

__all__ = ["Books", "ContextLoad", "ContextOptions", "contexts"]

_ACCOUNTS = 1_000_000
_LAST_S = 30.0


@dataclass(frozen=True)
class ContextOptions:
    """``threads`` call ``submit``, as long as fewer than ``outstanding`` contexts are open."""

    runs: int = 5
    seconds: float = 2.0
    threads: int = 8
    outstanding: int = 1024
    size_bytes: int = 100
    partitions: tuple[int, ...] = (1, 8)


class Books(Callbacks):
    """The application: every transaction is a row, every partition has its mark. Begins where the log ends."""

    def __init__(self, path: Path, marks: dict[int, int]) -> None:
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
            "CREATE TABLE entries (partition INTEGER, id INTEGER, account INTEGER, data BLOB,"
            " PRIMARY KEY (partition, id)) WITHOUT ROWID;"
            "CREATE TABLE marks (partition INTEGER PRIMARY KEY, mark INTEGER);"
        )
        self._database.executemany("INSERT INTO marks VALUES (?, ?)", marks.items())
        self.errors: list[BaseException] = []
        self.applied = 0

    def client_high_water_mark(self, partition_id: int) -> int:
        (mark,) = self._database.execute("SELECT mark FROM marks WHERE partition = ?", (partition_id,)).fetchone()
        return int(mark)

    def apply_transaction(self, transaction: Transaction) -> None:
        self.apply_transactions(transaction.partition_id, [transaction])

    def apply_transactions(self, partition_id: int, transactions: Sequence[Transaction]) -> None:
        rows = [(partition_id, each.transaction_id, each.header, each.data) for each in transactions]
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
        last = (transactions[-1].transaction_id, partition_id)
        self._database.execute("UPDATE marks SET mark = ? WHERE partition = ?", last)
        self._database.execute("COMMIT")
        self.applied += len(rows)

    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        self.errors.append(error)

    def close(self) -> None:
        """After the client."""
        self._database.close()


class _Entry(TransactionContext):
    """One transaction under the lock of its account, on one of the first ``spread`` partitions."""

    __slots__ = ("_data", "_number", "_spread")

    def __init__(self, number: int, data: bytes, spread: int) -> None:
        self._number = number
        self._data = data
        self._spread = spread

    def partition_id(self, partitions: int) -> int:
        return self._number % self._spread

    def execute(self, builder: TransactionBuilder) -> bool:
        account = self._number * 7919 % _ACCOUNTS
        builder.header = account
        builder.data = self._data
        builder.write_lock("account", account)
        return True


class ContextLoad:
    """See ``measure.Load``. A call ends when the context has committed."""

    records_per_call = 1

    def __init__(self, client: WaltzClient, options: ContextOptions, partitions: int) -> None:
        self.latencies_s: list[float] = []
        self.failed = threading.Event()
        self.errors: list[BaseException] = []
        self._client = client
        self._partitions = partitions
        self._room = threading.Semaphore(options.outstanding)
        self._outstanding = options.outstanding
        self._numbers = itertools.count()
        self._data = os.urandom(options.size_bytes)
        self._stopped = False
        self._threads = [threading.Thread(target=self._submit, name=f"submit-{n}") for n in range(options.threads)]

    def start(self) -> None:
        """See ``measure.Load``."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """See ``measure.Load``."""
        self._stopped = True
        for thread in self._threads:
            thread.join()
        deadline = time.monotonic() + _LAST_S
        for done in range(self._outstanding):
            if not self._room.acquire(timeout=max(0.001, deadline - time.monotonic())):
                raise AppendTimeout(f"{self._outstanding - done} contexts did not end within {_LAST_S:g} s")
        if self.errors:
            raise self.errors[0]

    def _submit(self) -> None:
        while not self._stopped:
            if not self._room.acquire(timeout=0.1):
                continue
            context = _Entry(next(self._numbers), self._data, self._partitions)
            began = time.perf_counter()
            self._client.submit(context).add_done_callback(partial(self._done, began))

    def _done(self, began: float, future: Future[SubmitResult]) -> None:
        error = future.exception()
        if error is not None:
            self.errors.append(error)
            self.failed.set()
        else:
            self.latencies_s.append(time.perf_counter() - began)
        self._room.release()


def contexts(
    waltz: Waltz, options: ContextOptions, progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Contexts on 1 and on several partitions; the gate is 10 000 a second."""
    processes = waltz.processes()
    numbers = itertools.count()

    def run(partitions: int) -> Sample:
        database = Path(waltz.directory) / f"context-{next(numbers)}.sqlite"
        with _application(waltz, database, partitions) as (client, books):
            load = ContextLoad(client, options, partitions)
            sample = measure(load, processes, options.seconds)
            _check_applied(client, books, len(load.latencies_s), partitions)
        return sample

    cases = [
        Case(
            f"{options.threads} threads, {options.size_bytes} B, {n} partition{'s' if n > 1 else ''}",
            partial(run, n),
        )
        for n in options.partitions
    ]
    warm_up(cases, progress)
    rows = alternate(cases, options.runs, progress)
    return report("context", rows, context_ratios(rows), Path(waltz.directory))


def context_ratios(rows: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    """In thousands a second."""
    return {f"{row.case}: thousands a second": ratio(row.rate / 1000, 10.0) for row in rows}


@contextmanager
def _application(waltz: Waltz, database: Path, partitions: int) -> Iterator[tuple[WaltzClient, Books]]:
    with waltz.client(partitions=tuple(range(partitions))) as reader:
        marks = {partition: reader.server_high_water_mark(partition) for partition in range(partitions)}
    with closing(Books(database, marks)) as books:
        config = ClientConfig()
        with waltz.client(books, config, tuple(range(partitions)), feed="records") as client:
            client.wait_ready(READY_S)
            yield client, books
    for path in database.parent.glob(database.name + "*"):
        path.unlink()


def _check_applied(client: WaltzClient, books: Books, committed: int, partitions: int) -> None:
    """What has committed is applied, in full and without an error."""
    deadline = time.monotonic() + _LAST_S
    marks = {partition: client.server_high_water_mark(partition) for partition in range(partitions)}
    while any(client.high_water_mark(partition) < mark for partition, mark in marks.items()):
        if time.monotonic() > deadline:
            raise DataUnavailable(f"the transactions up to {marks} were not applied within {_LAST_S:g} s")
        time.sleep(0.01)
    if books.errors:
        raise books.errors[0]
    if books.applied != committed:
        raise DataUnavailable(f"{committed} contexts committed and {books.applied} transactions were applied")
