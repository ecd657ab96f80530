"""``waltz bench retention``: a log that keeps a few megabytes, under load, while everything is killed in turn.

What is looked at: the disk use of every partition on every replica, by what its space keeps; whether readers see a gap
or another record than was acknowledged; and at the end whether every record from the first one that is left on is
there. Only processes of the benchmark's own cluster are killed, by pid.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from waltz_bench.clients import READY_S, clients_of
from waltz_bench.cluster import Waltz
from waltz_bench.kills import wait_for_all
from waltz_bench.measure import ratio
from waltz_bench.recovery import figure
from waltz_bench.report import report
from waltz_ray import Spaces
from waltz_ray.client.client import WaltzClient
from waltz_ray.errors import ClientClosed, ClusterNotFound, DataUnavailable, Trimmed, WaltzError

__all__ = ["PARTITIONS", "RetentionOptions", "retention"]

PARTITIONS = 2
_SAMPLE_S = 0.25
_KILLED = ("replica-0", "server-0", "replica-1", "server-1", "replica-2")
_GATE = 1.5  # of what is kept


@dataclass(frozen=True)
class RetentionOptions:
    """Each partition keeps ``kept_bytes`` and is given ``rate_bytes`` a second, in records of ``size_bytes``."""

    minutes: float = 3.0
    kill_every_s: float = 12.0
    kept_bytes: int = 16_000_000
    rate_bytes: int = 1_500_000
    size_bytes: int = 1_000


class _Part(threading.Thread, ABC):
    """A thread of the benchmark, which ends when it is told; what it dies of is kept."""

    def __init__(self, name: str, stopping: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.stopping = stopping
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - told by who joins it
            self.error = error
            self.stopping.set()

    @abstractmethod
    def work(self) -> None:
        """Until ``stopping`` is set."""


class _Writer(_Part):
    """Appends to one partition, a batch at a time, at a steady rate; ``written``: ID -> number of the record."""

    def __init__(
        self, client: WaltzClient, partition_id: int, options: RetentionOptions, stop: threading.Event
    ) -> None:
        super().__init__(f"writer-{partition_id}", stop)
        self.client, self.partition_id, self.options = client, partition_id, options
        self.written: dict[int, int] = {}
        self.last_id = -1

    def data(self, number: int) -> bytes:
        return (b"%d:%d:" % (self.partition_id, number)).ljust(self.options.size_bytes, b".")

    def work(self) -> None:
        count = max(1, self.options.rate_bytes // self.options.size_bytes // 20)
        number = 0
        while not self.stopping.wait(count * self.options.size_bytes / self.options.rate_bytes):
            datas = [self.data(number + i) for i in range(count)]
            ids = self.client.append_many(self.partition_id, datas).result(READY_S)
            self.written.update(zip(ids.tolist(), range(number, number + count), strict=True))
            self.last_id = int(ids[-1])
            number += count


class _Follower(_Part):
    """Reads a partition from the earliest there is, without an end: every record, in order."""

    def __init__(self, client: WaltzClient, writer: _Writer, stop: threading.Event) -> None:
        super().__init__(f"follower-{writer.partition_id}", stop)
        self.client, self.writer = client, writer
        self.seen = self.gaps = self.others = 0

    def work(self) -> None:
        next_id = None
        with self.client.feed(self.writer.partition_id, "earliest", follow=True) as feed:
            while not self.stopping.is_set():
                for transaction in feed.poll(0.5):
                    self.gaps += next_id is not None and transaction.transaction_id != next_id
                    next_id = transaction.transaction_id + 1
                    number = self.writer.written.get(transaction.transaction_id)
                    self.others += number is not None and transaction.data != self.writer.data(number)
                    self.seen += 1


class _Reader(_Part):
    """Reads short ranges anywhere in what was ever written: the records, or Trimmed with the first there is."""

    def __init__(self, client: WaltzClient, writer: _Writer, stop: threading.Event) -> None:
        super().__init__(f"reader-{writer.partition_id}", stop)
        self.client, self.writer = client, writer
        self.read = self.trimmed = self.wrong = 0

    def work(self) -> None:
        chance = random.Random(self.writer.partition_id)
        while not self.stopping.wait(0.05):
            if self.writer.last_id < 100:
                continue
            first_id = chance.randrange(self.writer.last_id - 50)
            try:
                self._look(first_id, list(self.client.read(self.writer.partition_id, first_id, first_id + 50)))
            except Trimmed as gone:
                self.trimmed += 1
                self.wrong += not first_id < gone.first_id <= self.writer.last_id + 1
            except DataUnavailable:
                continue  # its server has just been killed

    def _look(self, first_id: int, found: list[Any]) -> None:
        self.read += 1
        self.wrong += [each.transaction_id for each in found] != list(range(first_id, first_id + 50))
        numbers = [self.writer.written.get(each.transaction_id) for each in found]
        expected = [each.data if n is None else self.writer.data(n) for each, n in zip(found, numbers, strict=True)]
        self.wrong += [each.data for each in found] != expected


class _Scales(_Part):
    """Weighs the files of each partition on each replica."""

    def __init__(self, waltz: Waltz, stop: threading.Event) -> None:
        super().__init__("scales", stop)
        self.directory = Path(waltz.directory)
        self.largest: dict[str, int] = {}
        self.samples = 0

    def work(self) -> None:
        while not self.stopping.wait(_SAMPLE_S):
            for replica in sorted(self.directory.glob("replica-[0-9]*")):
                for partition_id in range(PARTITIONS):
                    name = f"{replica.name}/{partition_id}"
                    self.largest[name] = max(self.largest.get(name, 0), _weight(replica / str(partition_id)))
            self.samples += 1


def _weight(folder: Path) -> int:
    total = 0
    for entry in os.scandir(folder) if folder.exists() else ():
        try:
            total += entry.stat().st_size
        except FileNotFoundError:  # dropped just now
            continue
    return total


def retention(
    waltz: Waltz, options: RetentionOptions, progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Write, read and kill for so long; then compare what is left with what was acknowledged."""
    with Spaces(waltz.name, zookeeper=waltz.zookeeper) as spaces:
        spaces.set("log", retention_bytes=options.kept_bytes)
    stop = threading.Event()
    with clients_of(waltz, 1, PARTITIONS) as (writing,), clients_of(waltz, 1, PARTITIONS) as (reading,):
        writers = [_Writer(writing, p, options, stop) for p in range(PARTITIONS)]
        followers = [_Follower(reading, writer, stop) for writer in writers]
        readers = [_Reader(reading, writer, stop) for writer in writers]
        scales = _Scales(waltz, stop)
        parts: list[_Part] = [*writers, *followers, *readers, scales]
        for part in parts:
            part.start()
        try:
            kills = _kill_in_turn(waltz, options, stop, writers, progress)
        finally:
            stop.set()
            for part in parts:
                part.join(READY_S)
        for part in parts:
            if part.error is not None and not isinstance(part.error, ClientClosed):
                raise part.error
        progress("reading what is left")
        left, missing = zip(*(_compare(reading, writer) for writer in writers), strict=True)
    by_kept = [size / options.kept_bytes for size in scales.largest.values()]
    written = sum(len(writer.written) for writer in writers) * options.size_bytes
    figures = [
        figure("killed", "processes", [kills]),
        figure("written", "MB", [written / 1e6]),
        figure("written by what is kept", "times", [written / PARTITIONS / options.kept_bytes]),
        figure("largest disk use of a partition on a replica, by what is kept", "times", by_kept),
        figure(
            "left at the end, by what is kept", "times", [n * options.size_bytes / options.kept_bytes for n in left]
        ),
        figure("records fed to followers", "records", [sum(each.seen for each in followers)]),
        figure("gaps in what they were fed", "gaps", [sum(each.gaps for each in followers)]),
        figure("ranges read", "ranges", [sum(each.read for each in readers)]),
        figure("ranges that were trimmed", "ranges", [sum(each.trimmed for each in readers)]),
        figure("wrong or missing", "records", [_wrong(followers, readers) + sum(missing)]),
    ]
    gaps = sum(each.gaps for each in followers)
    bad = gaps + _wrong(followers, readers) + sum(missing)
    ratios = {
        "largest disk use by what is kept": ratio(max(by_kept, default=0.0), _GATE, smaller_is_better=True),
        "gaps, wrong and missing records": ratio(float(bad), 0.0, smaller_is_better=True),
    }
    return report("retention", [], ratios, Path(waltz.directory), figures=figures, largest=scales.largest)


def _wrong(followers: list[_Follower], readers: list[_Reader]) -> int:
    return sum(each.others for each in followers) + sum(each.wrong for each in readers)


def _kill_in_turn(
    waltz: Waltz,
    options: RetentionOptions,
    stop: threading.Event,
    writers: list[_Writer],
    progress: Callable[[str], None],
) -> int:
    begin, kills = perf_counter(), 0
    while perf_counter() - begin < 60 * options.minutes:
        if stop.wait(options.kill_every_s):
            break  # a part has failed
        victim = _KILLED[kills % len(_KILLED)]
        kills += 1
        progress(f"kill {kills}: {victim}; {sum(len(writer.written) for writer in writers)} acknowledged")
        os.kill(_pid_of(waltz, victim), signal.SIGKILL)
        wait_for_all(waltz)
    return kills


def _pid_of(waltz: Waltz, name: str) -> int:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            return waltz.pids()[name]
        except ClusterNotFound:
            if time.monotonic() > deadline:
                raise
            threading.Event().wait(0.1)


def _compare(client: WaltzClient, writer: _Writer) -> tuple[int, int]:
    """(records that are left, how many of those acknowledged from the first one on are not there as they were sent)."""
    found: dict[int, bytes] = {}
    for transaction in client.feed(writer.partition_id, "earliest"):
        found[transaction.transaction_id] = transaction.data
    if not found:
        raise WaltzError(f"partition {writer.partition_id} is empty")
    first_id = min(found)
    kept = {transaction_id: n for transaction_id, n in writer.written.items() if transaction_id >= first_id}
    return len(found), sum(found.get(transaction_id) != writer.data(n) for transaction_id, n in kept.items())
