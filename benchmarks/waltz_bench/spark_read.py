"""``waltz bench spark``: how fast the log becomes a DataFrame, where the time goes, and the same rows from Parquet.

Every case aggregates all rows to one (count, sum of IDs, sum of the lengths of the data), so that each value has been
in Spark's hands. The stages without Spark run in this process, over the same ranges, one after the other: they are what
the tasks do, less what Spark adds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from waltz_spark.feed import read_feed
from waltz_spark.session import start_spark, stop_spark, use_java

from waltz_bench.clients import clients_of
from waltz_bench.cluster import Waltz
from waltz_bench.filling import fill
from waltz_bench.measure import median, ratio
from waltz_bench.recovery import figure
from waltz_bench.report import report
from waltz_ray.client.range_reader import RangeReader
from waltz_ray.client.readers.arrow import to_arrow
from waltz_ray.client.readers.locations import Locations
from waltz_ray.client.readers.ranges import Range
from waltz_ray.client.readers.reading import Reading, plan_reading
from waltz_ray.errors import DataUnavailable
from waltz_ray.protocol.records import RECORD_OVERHEAD_BYTES, build_records

__all__ = ["SparkOptions", "prepare", "spark_read", "stdout_is_stderr"]

_PARTITIONS = 4
_BATCH_BYTES = 1024 * 1024
_HEADERS = ("partition_id", "transaction_id", "header")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class SparkOptions:
    """``records`` of ``size_bytes``, in 4 partitions; ``executors`` of one core each."""

    records: int = 500_000
    size_bytes: int = 1024
    runs: int = 3
    executors: int = 2


def prepare() -> None:
    """Before the cluster's Ray is started: its workers start Spark's JVMs, which listen on the loopback only."""
    use_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def spark_read(waltz: Waltz, options: SparkOptions, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Fill, start Spark, every case once for nothing, then ``runs`` times in turn."""
    progress(f"filling {_PARTITIONS} partitions with {options.records} records")
    with clients_of(waltz, 1, _PARTITIONS) as (client,):
        ends = {p: fill(client, p, options.records // _PARTITIONS, options.size_bytes) + 1 for p in range(_PARTITIONS)}
    records = sum(ends.values())
    progress("RayDP starts Spark")
    with _spark(options.executors) as spark:
        cases = _cases(waltz, spark, ends)
        taken: dict[str, list[float]] = {name: [] for name in cases}
        for run in range(options.runs + 1):
            for name, case in cases.items():
                progress(f"{'warming up' if run == 0 else f'run {run} of {options.runs}'}: {name}")
                begin = perf_counter()
                found = case()
                seconds = perf_counter() - begin
                if found != records:
                    raise DataUnavailable(f"{name} gave {found} of {records} records")
                if run:
                    taken[name].append(seconds)
    return _found(waltz, options, records, taken)


@contextmanager
def _spark(executors: int) -> Iterator[Any]:
    try:
        with stdout_is_stderr():
            spark = start_spark("waltz-bench", executors=executors, executor_cores=1)
        yield spark
    finally:
        stop_spark()


@contextmanager
def stdout_is_stderr() -> Iterator[None]:
    """For processes that are started here: Spark's Java inherits it, and says things that are no JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _cases(waltz: Waltz, spark: Any, ends: dict[int, int]) -> dict[str, Callable[[], int]]:
    ranges = plan_reading(Reading.of(waltz.zookeeper, waltz.name), list(ends))
    parquet = str(Path(waltz.directory, "bench.parquet"))

    def feed(**options: Any) -> Any:
        return read_feed(spark, waltz.name, list(ends), zookeeper=waltz.zookeeper, **options)

    # No dictionary: the benchmark's records repeat after a thousand, an application's do not.
    feed().write.option("parquet.enable.dictionary", "false").parquet(f"file://{parquet}")
    return {
        "TCP only, from servers": partial(_tcp, waltz, ranges),
        "TCP and Arrow, from servers": partial(_arrow, Reading.of(waltz.zookeeper, waltz.name), ranges),
        "TCP and Arrow, from replicas": partial(_arrow, Reading.of(waltz.zookeeper, waltz.name, "replica"), ranges),
        "TCP and Arrow, headers only": partial(
            _arrow, Reading.of(waltz.zookeeper, waltz.name, columns=_HEADERS), ranges
        ),
        "DataFrame, from servers": lambda: _with_data(feed()),
        "DataFrame, from replicas": lambda: _with_data(feed(source="replica")),
        "DataFrame, headers only, from servers": lambda: _without_data(feed(columns=_HEADERS)),
        "DataFrame, headers only, from replicas": lambda: _without_data(feed(columns=_HEADERS, source="replica")),
        "Parquet": lambda: _with_data(spark.read.parquet(parquet)),
        "Parquet, headers only": lambda: _without_data(spark.read.parquet(parquet).select(*_HEADERS)),
    }


def _with_data(frame: Any) -> int:
    [row] = frame.selectExpr("COUNT(*)", "SUM(transaction_id)", "SUM(LENGTH(data))").collect()
    return int(row[0])


def _without_data(frame: Any) -> int:
    [row] = frame.selectExpr("COUNT(*)", "SUM(transaction_id)", "SUM(header)").collect()
    return int(row[0])


def _tcp(waltz: Waltz, ranges: list[Range]) -> int:
    with Locations(waltz.zookeeper, waltz.name) as locations, RangeReader(locations.resolve) as reader:
        return sum(len(batch) for each in ranges for batch in reader.read_range(*each, max_bytes=_BATCH_BYTES))


def _arrow(reading: Reading, ranges: list[Range]) -> int:
    return sum(rows.num_rows for rows in reading.batches(ranges))


def _found(waltz: Waltz, options: SparkOptions, records: int, taken: dict[str, list[float]]) -> dict[str, Any]:
    mb = records * (options.size_bytes + RECORD_OVERHEAD_BYTES) / 1e6
    figures = []
    for name, seconds in taken.items():
        figures.append(figure(name, "records/s", [records / each for each in seconds]))
        if "headers" not in name:
            figures.append(figure(name, "MB/s", [mb / each for each in seconds]))
    figures.append(figure("Arrow from a batch of a megabyte", "ms", _arrow_alone_ms(options.size_bytes)))
    times = {name: median(seconds) for name, seconds in taken.items()}
    ratios = {
        "from servers: time by Parquet's": ratio(
            times["DataFrame, from servers"] / times["Parquet"], 1.7, 1.2, smaller_is_better=True
        ),
        "from replicas: time by Parquet's": ratio(
            times["DataFrame, from replicas"] / times["Parquet"], 1.7, 1.2, smaller_is_better=True
        ),
        "headers only: time by that with data": ratio(
            times["DataFrame, headers only, from servers"] / times["DataFrame, from servers"], smaller_is_better=True
        ),
    }
    where = (
        f"Of one reader's {times['TCP and Arrow, from servers']:.2f} s without Spark, TCP, decoding and CRC take "
        f"{times['TCP only, from servers']:.2f} s, the Arrow batches the rest; {options.executors} Spark tasks at a "
        f"time take {times['DataFrame, from servers']:.2f} s for the same, to the aggregate."
    )
    return report("spark", [], ratios, Path(waltz.directory), figures=figures, notes=[where], records=records)


def _arrow_alone_ms(size_bytes: int) -> list[float]:
    count = max(1, _BATCH_BYTES // (size_bytes + RECORD_OVERHEAD_BYTES))
    zeros = np.zeros(count, dtype=np.int32)
    columns = (zeros, zeros, np.full(count, size_bytes, dtype=np.int32), zeros.astype(np.uint32))
    batch = build_records(0, 0, 1, 1, columns, os.urandom(size_bytes) * count)
    taken = []
    for _ in range(20):
        begin = perf_counter()
        to_arrow(batch)
        taken.append((perf_counter() - begin) * 1000)
    return taken
