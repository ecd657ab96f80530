"""A batch read of the feed: ranges of transactions, one Spark task each, straight from the servers.

The driver only asks for the high-water marks and a sample of the record sizes; the records go over plain TCP from the
partition servers to Spark's Python workers (``RangeReader``) and enter Spark as Arrow batches. A partition that moves
meanwhile is followed when ZooKeeper is known; a task that fails is run again by Spark and reads the same range, so the
rows are exactly the transactions of the ranges, once each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from waltz_ray.client.range_reader import RangeReader
from waltz_ray.errors import InvalidInput
from waltz_spark.arrow import SPARK_SCHEMA, to_arrow
from waltz_spark.locations import Locations, Where
from waltz_spark.ranges import Bound, Range, bounds_of, split_ranges

__all__ = ["plan", "read_feed"]

_SAMPLE_BYTES = 64 * 1024
_BATCH_BYTES = 1024 * 1024


def read_feed(
    spark: SparkSession,
    zookeeper: str | None = None,
    cluster: str = "waltz",
    partitions: Sequence[int] | None = None,
    start: Bound = "earliest",
    stop: Bound = "latest",
    *,
    endpoints: Mapping[int, str] | None = None,
    bytes_per_task: int = 32 * 1024 * 1024,
) -> DataFrame:
    """The committed transactions of ``partitions`` (None: all) from ``start`` up to, not including, ``stop``.

    Columns: partition_id int, transaction_id long, header int, client_id, generation, sequence_number int, data
    binary. "latest" is fixed when this is called, so every action on the DataFrame sees the same transactions.
    Partitions are found through ``zookeeper`` (a connect string), or, where Spark cannot reach it, in ``endpoints``
    (partition ID -> "host:port"; not followed when a partition moves).

    InvalidInput for an unknown partition or a bound that makes no sense; DataUnavailable if a partition has no server.
    """
    if (zookeeper is None) == (endpoints is None):
        raise InvalidInput("read_feed needs zookeeper= or endpoints=, and not both")
    where: Where = dict(endpoints) if zookeeper is None and endpoints is not None else str(zookeeper)
    ranges = plan(where, cluster, list(partitions) if partitions is not None else None, start, stop, bytes_per_task)
    if not ranges:
        return spark.createDataFrame([], SPARK_SCHEMA)

    def read(batches: Iterable[Any]) -> Iterator[Any]:
        yield from _read(where, cluster, [ranges[i] for batch in batches for i in batch.column(0).to_pylist()])

    # Row i of spark.range(n, numPartitions=n) is the only one of task i, and stands for range i.
    return spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(read, SPARK_SCHEMA)


def plan(
    where: Where, cluster: str, partitions: list[int] | None, start: Bound, stop: Bound, bytes_per_task: int
) -> list[Range]:
    """The ranges of a read as of now."""
    with Locations(where, cluster) as locations, RangeReader(locations.resolve) as reader:
        marks = {p: reader.high_water_mark(p) for p in locations.checked(partitions)}
        wanted = bounds_of(start, stop, marks)
        sizes = {each.partition_id: _average_bytes(reader, each) for each in wanted}
    return split_ranges(wanted, sizes, bytes_per_task)


def _average_bytes(reader: RangeReader, wanted: Range) -> float:
    """Of the records at the beginning of the range."""
    for batch in reader.read_range(*wanted, max_bytes=_SAMPLE_BYTES):
        return batch.size_bytes / len(batch)
    return 1.0


def _read(where: Where, cluster: str, ranges: list[Range]) -> Iterator[Any]:
    """In a Spark Python worker: the records of the task's ranges."""
    with Locations(where, cluster) as locations, RangeReader(locations.resolve) as reader:
        for partition_id, first_id, end_id in ranges:
            next_id = first_id
            for batch in reader.read_range(partition_id, first_id, end_id, max_bytes=_BATCH_BYTES):
                yield to_arrow(batch)
                next_id = batch.end_id
            if next_id != end_id:
                raise AssertionError(
                    f"partition {partition_id} ended with {next_id - 1}: {end_id - 1} had been committed"
                )
