"""The feed as a stream of micro-batches, for PySpark 3.5, which has no streaming source in Python.

The loop is: decide which transactions the next batch is, write that down (``offset_log``), hand the batch to the sink,
write down that the sink has returned. So every transaction is given to the sink in exactly one batch, and a batch may
be given to it twice: after a kill the last one comes again, with the same number and the same transactions in the same
order. Exactly once is therefore the sink's to finish, with the number:

- the path sink replaces the directory of its batch;
- a table is written in one transaction with the number of the last batch, and a batch that is not above it is skipped::

    def sink(batch, batch_id):
        rows = batch.collect()                       # or foreachPartition into a staging table
        with database:                               # BEGIN ... COMMIT
            if database.execute("SELECT last FROM applied").fetchone()[0] < batch_id:
                database.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
                database.execute("UPDATE applied SET last = ?", (batch_id,))

- anything that is keyed by (partition_id, transaction_id) may simply be written again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from waltz_ray.client.readers.locations import where_of
from waltz_ray.client.readers.ranges import Bound, Range
from waltz_ray.client.readers.reading import (
    BYTES_PER_TASK,
    DEFAULT_SPACE,
    Decoder,
    HeaderFilter,
    Marks,
    Reading,
    Source,
)
from waltz_ray.errors import InvalidInput
from waltz_spark.feed import frame_of, spark_schema
from waltz_spark.offset_log import StreamOf
from waltz_spark.parquet_sink import ParquetSink
from waltz_spark.progress import BatchProgress
from waltz_spark.rate_limits import Limits
from waltz_spark.stream_runner import FeedStream, RunSettings, Trigger

__all__ = ["Sink", "stream_feed"]

Sink = Callable[[DataFrame, int], None]


def stream_feed(
    spark: SparkSession,
    cluster: str | None = None,
    *,
    checkpoint: str | Path,
    sink: Sink | str | Path,
    trigger: Trigger = "available_now",
    max_records_per_trigger: int | None = None,
    max_bytes_per_trigger: int | None = None,
    partitions: Sequence[int] | None = None,
    start: Bound = "earliest",
    directory: str | None = None,
    address: str | None = None,
    zookeeper: str | None = None,
    source: Source = "server",
    columns: Sequence[str] | None = None,
    header: HeaderFilter | None = None,
    decoder: Decoder | None = None,
    decoder_schema: str | StructType | None = None,
    bytes_per_task: int = BYTES_PER_TASK,
    space: str = DEFAULT_SPACE,
    on_progress: Callable[[BatchProgress], None] | None = None,
) -> FeedStream:
    """A stream of ``cluster``'s transactions into ``sink``; nothing runs before ``run()`` or ``start()``.

    ``checkpoint``: a directory on a disk of the driver, made if it is not there, that belongs to this stream alone.
    ``sink``: a function (DataFrame of the batch, batch number), or a directory for Parquet (see ``ParquetSink``).
    ``trigger``: "available_now" = everything that is committed when ``run`` begins, then end; a number = a batch every
    so many seconds at most, until ``stop()``; a trigger with nothing new makes no batch. A batch holds at most
    ``max_records_per_trigger`` transactions and about ``max_bytes_per_trigger`` bytes of records.
    ``start``: where a new checkpoint begins, an old one goes on where it was. The other options are ``read_feed``'s;
    they may differ from run to run, but a batch that is replayed is identical only if they (and the decoder) are.
    What it has not committed is not trimmed: it keeps a hold, ``spark.<space>.<stream ID>``, until somebody releases
    that (``docs/retention.md``, "Holds"). Trimmed, when it begins, if its checkpoint or ``start`` is below the rest.

    ``on_progress`` gets a BatchProgress after each commit, in the thread that runs the stream; what it raises ends the
    stream. InvalidInput and ClusterNotFound at once; ForeignStorage, StorageLocked and Corruption for the checkpoint
    when it begins.
    """
    checkpoint = _checked_directory("checkpoint", checkpoint)
    if not callable(sink):
        sink = _checked_directory("sink", sink)
    if on_progress is not None and not callable(on_progress):
        raise InvalidInput(f"on_progress must be a function of a BatchProgress, not {on_progress!r:.60}")
    place = where_of(cluster, zookeeper, None, directory, address)
    reading = Reading.of(place.where, place.cluster, source, columns, header, decoder, space)
    schema = spark_schema(spark, reading, decoder_schema)
    with Marks(reading) as marks:
        info, count = marks.locations.store.info(), len(marks.locations.partitions())
        chosen = tuple(marks.locations.checked(list(partitions) if partitions is not None else None))
    name = place.cluster if space == DEFAULT_SPACE else f"{place.cluster}/{space}"  # no cluster has such a name
    settings = RunSettings(
        checkpoint,
        StreamOf(name, str(info.cluster_key), count, chosen),
        trigger,
        Limits(max_records_per_trigger, max_bytes_per_trigger),
        start,
        bytes_per_task,
        mark_is_final=source == "server",
        space=space,
    )

    def prepare(stream_id: str) -> Callable[[Sequence[Range], int], None]:
        write = ParquetSink(sink, stream_id) if isinstance(sink, Path) else sink

        def run_batch(ranges: Sequence[Range], batch_id: int) -> None:
            write(frame_of(spark, reading, ranges, schema), batch_id)

        return run_batch

    return FeedStream(settings, partial(Marks, reading), prepare, on_progress)


def _checked_directory(name: str, given: str | Path) -> Path:
    """Absolute. InvalidInput for what is none: "" would be wherever this runs, an address a directory of its name."""
    if not isinstance(given, str | Path) or given == "" or "\0" in str(given):
        more = " or a function" if name == "sink" else ""
        raise InvalidInput(f"{name} must be a directory{more}, not {given!r:.60}")
    if isinstance(given, str) and "://" in given:
        raise InvalidInput(f"{name} is a directory, not {given!r:.200}; to write elsewhere, give a function as sink")
    return Path(given).absolute()
