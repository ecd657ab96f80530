"""A batch read of the feed: ranges of transactions, one Spark task each, straight from the servers or the replicas.

The driver only asks for the high-water marks and a sample of the record sizes; the records go over plain TCP to Spark's
Python workers and enter Spark as Arrow batches. A partition that moves meanwhile is followed when ZooKeeper is known; a
task that fails is run again by Spark and reads the same range, so the rows are exactly the transactions of the ranges,
once each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from waltz_ray.client.readers.arrow import FEED_SCHEMA
from waltz_ray.client.readers.locations import where_of
from waltz_ray.client.readers.ranges import Bound, Range
from waltz_ray.client.readers.reading import (
    BYTES_PER_TASK,
    DEFAULT_SPACE,
    Decoder,
    HeaderFilter,
    Reading,
    Source,
    plan_reading,
)
from waltz_ray.client.readers.spark_worker import spare_the_next_task
from waltz_ray.errors import InvalidInput

__all__ = ["fitted", "frame_of", "read_feed", "spark_schema"]


def read_feed(
    spark: SparkSession,
    cluster: str | None = None,
    partitions: Sequence[int] | None = None,
    start: Bound = "earliest",
    stop: Bound = "latest",
    *,
    directory: str | None = None,
    address: str | None = None,
    zookeeper: str | None = None,
    endpoints: Mapping[int, str] | None = None,
    source: Source = "server",
    columns: Sequence[str] | None = None,
    header: HeaderFilter | None = None,
    decoder: Decoder | None = None,
    decoder_schema: str | StructType | None = None,
    bytes_per_task: int = BYTES_PER_TASK,
    space: str = DEFAULT_SPACE,
) -> DataFrame:
    """The committed transactions of ``partitions`` (None: all) from ``start`` up to, not including, ``stop``.

    Columns: partition_id int, transaction_id long, header int, client_id, generation, sequence_number int, data
    binary; and if ``columns`` names it, _appended_at timestamp, to about a second. "latest" is fixed when this is
    called, so every action on the DataFrame sees the same transactions: it is behind the servers' high-water marks.
    ``start`` and ``stop`` may be transaction IDs, partition -> ID, or a datetime with its time zone: what was appended
    then or later. A range is cut into tasks of about ``bytes_per_task``.

    ``space``: whose partitions they are, numbered from 0 (``docs/spaces.md``); it needs ZooKeeper.

    The cluster is found as ``waltz_ray.connect`` finds it, by ``cluster``, ``directory``, ``address`` or ``zookeeper``;
    or, where Spark cannot reach its ZooKeeper, it is in ``endpoints`` (partition ID -> "host:port" of its server; not
    followed when a partition moves).

    ``source="replica"`` reads from the storage replicas' committed ranges: the partition servers are asked for the
    marks only, and if none answers, "latest" is what a quorum of the replicas proves. A replica that is dead, damaged
    or behind is passed over.

    ``columns`` without "data" makes the servers send headers only. ``header`` (an int, a range, a set) keeps the
    transactions with these headers; rows are chosen before columns are built. ``decoder`` turns each
    ``pyarrow.RecordBatch`` of these columns into one of ``decoder_schema`` (DDL or StructType; not needed if the
    decoder has an attribute ``schema``, as ``waltz_spark.JsonRows`` has), in the same task. What is pushed to where:
    ``waltz_ray.client.readers.reading``.

    ClusterNotFound, SpaceNotFound, SpaceGone; InvalidInput for an unknown partition, column, source, or a bound that
    makes no sense; DataUnavailable if a partition can be read from nobody.
    """
    place = where_of(cluster, zookeeper, endpoints, directory, address)
    reading = Reading.of(place.where, place.cluster, source, columns, header, decoder, space)
    schema = spark_schema(spark, reading, decoder_schema)
    ranges = plan_reading(reading, partitions, start, stop, bytes_per_task)
    return frame_of(spark, reading, ranges, schema)


def spark_schema(spark: SparkSession, reading: Reading, decoder_schema: str | StructType | None) -> StructType:
    """The schema of what ``reading`` gives. InvalidInput if there is a decoder without a schema, or the reverse."""
    if reading.decoder is None:
        if decoder_schema is not None:
            raise InvalidInput("decoder_schema= is the schema of what decoder= returns; give both or neither")
        return from_arrow_schema(pa.schema([FEED_SCHEMA.field(name) for name in reading.columns]))
    wanted = decoder_schema if decoder_schema is not None else getattr(reading.decoder, "schema", None)
    if wanted is None:
        raise InvalidInput("decoder= needs decoder_schema=, the Spark schema of what it returns")
    return spark.createDataFrame([], wanted).schema if isinstance(wanted, str) else wanted


def frame_of(spark: SparkSession, reading: Reading, ranges: Sequence[Range], schema: StructType) -> DataFrame:
    """Exactly the transactions of ``ranges``, one task for each; rows are in the order of the ranges."""
    if not ranges:
        return spark.createDataFrame([], schema)
    arrow_schema = to_arrow_schema(schema) if reading.decoder is not None else None

    def read(batches: Iterable[Any]) -> Iterator[Any]:
        spare_the_next_task()
        for rows in reading.batches([ranges[i] for batch in batches for i in batch.column(0).to_pylist()]):
            yield rows if arrow_schema is None else fitted(rows, arrow_schema)

    # Row i of spark.range(n, numPartitions=n) is the only one of task i, and stands for range i.
    return spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(read, schema)


def fitted(rows: Any, schema: Any) -> Any:
    """What a decoder returned, for Spark, which takes columns by position and trusts their types: both are looked at.

    Without any column it is of a decoder that found nothing to decode, as ``block_rows`` where there are no rows of a
    Dataset.
    """
    if not rows.num_columns:
        return pa.RecordBatch.from_pylist([], schema=schema)
    if rows.schema.names != schema.names:
        raise InvalidInput(f"the decoder returned columns {rows.schema.names}, decoder_schema names {schema.names}")
    try:
        columns = [column.cast(kind) for column, kind in zip(rows.columns, schema.types, strict=True)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(f"what the decoder returned does not fit decoder_schema: {error}") from error
    return pa.record_batch(columns, schema=schema)
