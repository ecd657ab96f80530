"""``waltz bench feed`` and ``fetch``: how fast committed transactions come back.

Live: subscribers while one client appends as fast as it can. They keep up if the slowest is given as many as are
appended. Catch-up: from the first transaction to the last, nobody appending. Fetch: headers only, and the data of each
transaction asked for one by one.

A log that was just written is in the kernel's page cache. ``FeedOptions.cold`` gives it up before each catch-up, and a
run that has nevertheless not read its log from the disks is an error.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from waltz_bench.clients import READY_S, clients_of, many_load
from waltz_bench.cluster import Waltz
from waltz_bench.filling import fill
from waltz_bench.measure import PERCENTILES, Case, Figure, Sample, alternate, measure, percentile, ratio
from waltz_bench.processes import Processes
from waltz_bench.report import report
from waltz_ray.client.application import Callbacks, Transaction
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.engine import FeedKind
from waltz_ray.errors import DataUnavailable

__all__ = ["FeedOptions", "FeedReader", "feed", "feed_ratios", "fetch"]

_LAST_S = 120.0
_ALONE = "append_many(100), no subscriber"
_FROM_DISKS = "bytes read from disks"


@dataclass(frozen=True)
class FeedOptions:
    """``catch_up_records`` of ``size_bytes`` are caught up with, if ``cold`` none of them from the page cache;
    ``subscribers`` of the live feed."""

    runs: int = 5
    seconds: float = 2.0
    size_bytes: int = 1024
    subscribers: tuple[int, ...] = (1, 8, 64)
    catch_up_records: int = 200_000
    catch_up_subscribers: tuple[int, ...] = (1, 8)
    kinds: tuple[FeedKind, ...] = ("records", "headers")
    cold: bool = False


class FeedReader(Callbacks):
    """Counts what it is given, from ``mark`` on; ``end`` is set when it has applied transaction ``until``."""

    def __init__(self, mark: int, until: int = -1, read_data: bool = False) -> None:
        self.mark = mark
        self.given = 0
        self.data_bytes = 0
        self.errors: list[BaseException] = []
        self.end = threading.Event()
        self._until = until
        self._read_data = read_data

    def client_high_water_mark(self, partition_id: int) -> int:
        return self.mark

    def apply_transaction(self, transaction: Transaction) -> None:
        self.apply_transactions(transaction.partition_id, [transaction])

    def apply_transactions(self, partition_id: int, transactions: Sequence[Transaction]) -> None:
        if transactions[0].transaction_id != self.mark + 1:
            raise DataUnavailable(f"transaction {transactions[0].transaction_id} came after {self.mark}")
        if self._read_data:
            self.data_bytes += sum(len(each.data) for each in transactions)
        self.mark = transactions[-1].transaction_id
        self.given += len(transactions)
        if 0 <= self._until <= self.mark:
            self.end.set()

    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        self.errors.append(error)
        self.end.set()


def feed(waltz: Waltz, options: FeedOptions, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """The live feed on partition 0; catch-up on partition 1, which is filled first."""
    with clients_of(waltz, 1, 2) as (writer,):
        progress(f"filling a partition with {options.catch_up_records} records")
        last = fill(writer, 1, options.catch_up_records, options.size_bytes)
        cases = _live_cases(waltz, writer, options) + _catch_up_cases(waltz, last, options)
        progress("warming up")
        cases[0].run()
        rows = alternate(cases, options.runs, progress)
    return report("feed", rows, feed_ratios(rows), Path(waltz.directory))


def _live_cases(waltz: Waltz, writer: WaltzClient, options: FeedOptions) -> list[Case]:
    processes = waltz.processes()
    load = many_load([writer], 64, 100, options.size_bytes)

    def run(subscribers: int, kind: FeedKind) -> Sample:
        mark = writer.server_high_water_mark(0)
        with _subscribed(waltz, subscribers, mark, kind) as readers:

            def slowest() -> dict[str, float]:
                return {"given to the slowest subscriber": min((reader.given for reader in readers), default=0)}

            sample = measure(load(), processes, options.seconds, 0.5, slowest)
            _raise_errors(readers)
        return sample

    cases = [Case(_ALONE, partial(run, 0, "headers"))]
    for kind in options.kinds:
        for count in options.subscribers:
            cases.append(Case(f"live, {_named(count)}, {_what(kind)}", partial(run, count, kind)))
    return cases


@contextmanager
def _subscribed(waltz: Waltz, count: int, mark: int, kind: FeedKind) -> Iterator[list[FeedReader]]:
    readers = [FeedReader(mark) for _ in range(count)]
    with ExitStack() as stack:
        for reader in readers:
            client = stack.enter_context(waltz.client(reader, partitions=(0,), feed=kind))
            client.wait_ready(READY_S)
        yield readers


def _catch_up_cases(waltz: Waltz, last: int, options: FeedOptions) -> list[Case]:
    processes = waltz.processes()
    cold_bytes = (last + 1) * options.size_bytes // 2 if options.cold else 0  # the rest may be in a server's memory
    return [
        Case(
            f"catch-up, {_named(count)}, {_what(kind)}",
            partial(_catch_up, waltz, processes, last, count, kind, cold_bytes),
        )
        for kind in options.kinds
        for count in options.catch_up_subscribers
    ]


def _catch_up(waltz: Waltz, processes: Processes, last: int, count: int, kind: FeedKind, cold_bytes: int) -> Sample:
    """The rate is of all subscribers together; the latency is the time of the slowest for everything. ``cold_bytes``:
    so much is to be read from disks. DataUnavailable if it was not."""
    readers = [FeedReader(-1, until=last) for _ in range(count)]
    if cold_bytes:
        _give_up_pages(waltz)
    cpu, disk_bytes = processes.cpu_s(), processes.disk_bytes()
    begin = perf_counter()
    with ExitStack() as stack:
        for reader in readers:
            stack.enter_context(waltz.client(reader, partitions=(1,), feed=kind))
        for reader in readers:
            if not reader.end.wait(_LAST_S):
                raise DataUnavailable(f"a subscriber had only {reader.given} of {last + 1} after {_LAST_S:g} s")
        seconds = perf_counter() - begin
        after, disk_bytes = processes.cpu_s(), processes.disk_bytes() - disk_bytes
        _raise_errors(readers)
        rss = processes.rss_bytes()
    if disk_bytes < cold_bytes:
        raise DataUnavailable(
            f"only {disk_bytes} bytes of the log were read from disks: the rest was in the memory of servers "
            "(retained_bytes; more --records do not fit into it), or of the file system"
        )
    used = {name: after[name] - cpu[name] for name in after}
    return Sample((last + 1) * count, seconds, (seconds * 1e6,) * 3, used, rss, {_FROM_DISKS: disk_bytes})


def _give_up_pages(waltz: Waltz) -> None:
    """What replicas have written, all of which is on their disks, leaves the page cache. DataUnavailable if their files
    are not on this machine."""
    for number in sorted(waltz.status().replicas):
        directory = waltz.replica(number).directory
        if directory is None or not Path(directory).is_dir():
            raise DataUnavailable(f"replica {number}'s files, in {directory}, are not on this machine")
        for path in Path(directory).rglob("*"):
            with suppress(FileNotFoundError, IsADirectoryError), path.open("rb") as file:  # some may just be dropped
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _raise_errors(readers: Sequence[FeedReader]) -> None:
    for reader in readers:
        if reader.errors:
            raise reader.errors[0]


def _named(count: int) -> str:
    return f"{count} subscriber{'s' if count > 1 else ''}"


def _what(kind: FeedKind) -> str:
    return "inline data" if kind == "records" else "headers only"


def feed_ratios(rows: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    """Does the live feed keep up, what does it cost the appends, and how fast is catch-up."""
    alone = next(row.rate for row in rows if row.case == _ALONE)
    ratios: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.case.startswith("live"):
            given = row.counts_per_million["given to the slowest subscriber"] / 1e6
            gate = 0.95 if "64 subscribers" not in row.case else None  # the edges of the window cost a few percent
            ratios[f"{row.case}: given by appended"] = ratio(given, gate)
            ratios[f"{row.case}: append rate by that without"] = ratio(row.rate / alone)
        elif row.case.startswith("catch-up"):
            single = "1 subscriber," in row.case
            ratios[f"{row.case}: rate by append rate"] = ratio(row.rate / alone, *((3.5, 8.0) if single else ()))
    return ratios


def fetch(
    waltz: Waltz,
    runs: int = 5,
    records: int = 2000,
    size_bytes: int = 1024,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Data of transactions asked for when they are looked at, in turn, and of ranges: of ``records`` new ones."""
    processes = waltz.processes()
    with clients_of(waltz, 1, 3) as (client,):
        end = fill(client, 2, records, size_bytes) + 1
        wanted = range(end - records, end)
        cases = [
            Case("data of each transaction of a headers-only feed", partial(_fetch_lazily, waltz, processes, wanted)),
            Case("read() of one transaction at a time", partial(_read, client, processes, wanted, 1, 1)),
            Case("read() of 1000 transactions at a time", partial(_read, client, processes, wanted, 1000, 20)),
        ]
        rows = alternate(cases, runs, progress)
    return report("fetch", rows, {}, Path(waltz.directory))


def _fetch_lazily(waltz: Waltz, processes: Processes, wanted: range) -> Sample:
    reader = FeedReader(wanted.start - 1, until=wanted.stop - 1, read_data=True)
    cpu, begin = processes.cpu_s(), perf_counter()
    with waltz.client(reader, partitions=(2,), feed="headers"):
        if not reader.end.wait(_LAST_S):
            raise DataUnavailable(f"{reader.given} of {len(wanted)} transactions were fetched after {_LAST_S:g} s")
        seconds = perf_counter() - begin
        after = processes.cpu_s()
        _raise_errors([reader])
        rss = processes.rss_bytes()
    used = {name: after[name] - cpu[name] for name in after}
    return Sample(len(wanted), seconds, (seconds / len(wanted) * 1e6,) * 3, used, rss)


def _read(client: WaltzClient, processes: Processes, wanted: range, at_once: int, rounds: int) -> Sample:
    """Them all, ``rounds`` times."""
    latencies: list[float] = []
    size = 0
    cpu, begin = processes.cpu_s(), perf_counter()
    for first in [*wanted[::at_once]] * rounds:
        began = perf_counter()
        size += sum(len(each.data) for each in client.read(2, first, min(first + at_once, wanted.stop)))
        latencies.append(perf_counter() - began)
    seconds, after = perf_counter() - begin, processes.cpu_s()
    if not size:
        raise DataUnavailable("the transactions that were read hold no data")
    used = {name: after[name] - cpu[name] for name in after}
    times = tuple(percentile(latencies, each) * 1e6 for each in PERCENTILES)
    return Sample(len(wanted) * rounds, seconds, times, used, processes.rss_bytes())
