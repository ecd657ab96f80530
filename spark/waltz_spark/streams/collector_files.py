"""From a cluster's log to files: one Spark task for each range, which reads it as ``read_feed`` does and writes it.

Nothing passes through the driver but names and counts. Under a directory the task itself writes and syncs the file, so
every executor must see the root; under a ``scheme://`` root Spark's JVMs write, and the files are then copied durably
into the run's directory (the JVM's writers do not sync, and they make missing directories, even one that was taken
away from a run that has been replaced).

``parquet``: the columns of ``read_feed``, zstd. ``jsonl``: gzip, one JSON object a line with the same columns, but the
data is under "data" as text if it is UTF-8, and otherwise under "data_base64".
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from waltz_ray.client.readers.arrow import ARROW_SCHEMA, COLUMNS, SPARK_SCHEMA
from waltz_ray.client.readers.locations import Where
from waltz_ray.client.readers.ranges import Range, bounds_of, split_ranges
from waltz_ray.client.readers.reading import Marks, Reading
from waltz_ray.client.readers.spark_worker import spare_the_next_task
from waltz_ray.errors import DataUnavailable, StorageError, Trimmed
from waltz_spark.streams.collector import CollectorSettings, Written
from waltz_spark.streams.collector_states import Format, next_minute
from waltz_spark.streams.files import FilesOf, directory_of, local_files
from waltz_spark.streams.layout import join

__all__ = ["ClusterFeed", "collector_hold", "json_lines", "write_file"]

_ROW_GROUP_BYTES = 32 * 1024 * 1024
_RESULT = "range_index long, path string, records long, size_bytes long, error string"
_NUMBERS = COLUMNS[:-1]


def collector_hold(name: str) -> str:
    """The hold in its cluster of the collector of that name."""
    return f"collector.{name}"


class ClusterFeed:
    """``collector.Feed`` of a cluster.

    ``spark``: any SparkSession, None: nothing can be written; ``where``: a ZooKeeper connect string.
    """

    def __init__(self, spark: Any, settings: CollectorSettings, where: Where, files_of: FilesOf = local_files) -> None:
        self._spark, self._settings, self._files_of = spark, settings, files_of
        self._reading = Reading.of(where, settings.cluster)

    def high_water_marks(self) -> dict[int, int]:
        """Partition -> the server's high-water mark, now. ClusterNotFound, InvalidInput, DataUnavailable."""
        with Marks(self._reading) as marks:
            return self._ends(marks)

    def cluster_key(self) -> str:
        with Marks(self._reading) as marks:
            return marks.locations.cluster_key

    def hold(self, position: Mapping[int, int]) -> dict[int, int]:
        settings = self._settings
        with Marks(self._reading) as marks:
            partitions = marks.locations.checked(list(settings.partitions) or None)
            while True:
                wanted = {**marks.beginnings(partitions), **position}
                try:
                    marks.hold(collector_hold(settings.name), wanted, f"collector {settings.name} of {settings.root}")
                except Trimmed as gone:
                    if gone.partition_id in position:
                        raise
                    continue  # it was trimmed between the two: look again
                return wanted

    def plan(self, position: Mapping[int, int]) -> list[Range]:
        with Marks(self._reading) as marks:
            return self._split(marks, self._new(marks, position))

    def plan_minute(self, position: Mapping[int, int], first: datetime, last: datetime) -> tuple[datetime, list[Range]]:
        with Marks(self._reading) as marks:
            minute, ranges = next_minute(self._new(marks, position), first, last, marks)
            return minute, self._split(marks, ranges)

    def _new(self, marks: Marks, position: Mapping[int, int]) -> list[Range]:
        """What is committed from ``position`` on. DataUnavailable if the log ends before."""
        ends = self._ends(marks)
        for partition_id, end in ends.items():
            if position.get(partition_id, 0) > end + 1:
                raise DataUnavailable(
                    f"partition {partition_id} of cluster {self._settings.cluster} ends with {end}, and collector "
                    f"{self._settings.name} has collected up to {position[partition_id] - 1}; is it the same log?"
                )
        return bounds_of({p: position.get(p, 0) for p in ends}, "latest", ends)

    def _split(self, marks: Marks, wanted: list[Range]) -> list[Range]:
        return split_ranges(wanted, marks.record_bytes(wanted), self._settings.bytes_per_task)

    def _ends(self, marks: Marks) -> dict[int, int]:
        partitions = marks.locations.checked(list(self._settings.partitions) or None)
        return {partition_id: marks.high_water_mark(partition_id) for partition_id in partitions}

    def write(self, ranges: Sequence[Range], kind: Format, directory: str) -> list[Written]:
        if self._spark is None:
            raise DataUnavailable(f"collector {self._settings.name} has files to write and was given no Spark")
        # Where there is a Spark there are these; no other module of streams needs them.
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        try:
            if "://" in directory:
                return self._write_in_jvm(ranges, kind, directory)
            return self._write_in_tasks(ranges, kind, directory)
        except (PySparkException, Py4JError, ConnectionError) as error:  # the last two: its JVM has gone
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[-1] if lines else type(error).__name__
            raise DataUnavailable(f"collector {self._settings.name}: Spark could not write: {reason}") from error

    def _write_in_tasks(self, ranges: Sequence[Range], kind: Format, directory: str) -> list[Written]:
        reading = self._reading

        def write(batches: Iterable[Any]) -> Iterator[Any]:
            spare_the_next_task()
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    # A name of the attempt's own: Spark may run a task twice at the same time.
                    path = f"{directory}/{index}.{uuid.uuid4().hex}"
                    yield _written_row(index, path, reading, ranges[index], kind)

        rows = self._tasks(len(ranges), write, _RESULT).collect()
        for row in rows:
            if row.error:
                raise StorageError(
                    f"collector {self._settings.name}: {row.error}; every Spark executor must see {directory}"
                )
        return [Written(row.path, row.records, row.size_bytes) for row in sorted(rows)]

    def _write_in_jvm(self, ranges: Sequence[Range], kind: Format, directory: str) -> list[Written]:
        files = self._files_of(directory)
        # Beside the thread's directory: what a replaced run makes there is in nobody's way.
        aside = directory_of(directory_of(directory)) + ".spark"
        files.delete(aside)
        output = join(aside, uuid.uuid4().hex)
        reading = self._reading

        def read(batches: Iterable[Any]) -> Iterator[Any]:
            spare_the_next_task()
            for rows in reading.batches([ranges[i] for batch in batches for i in batch.column(0).to_pylist()]):
                lines = [line.decode() for line in json_lines(rows)] if kind == "jsonl" else []
                yield pa.record_batch([lines], names=["value"]) if kind == "jsonl" else rows

        if kind == "jsonl":
            self._whole(ranges, read, "value string").text(output, compression="gzip")
        else:
            self._whole(ranges, read, SPARK_SCHEMA).parquet(output, compression="zstd")
        parts = {int(name.split("-")[1]): name for name in files.list(output) if name.startswith("part-")}
        written = []
        for index, wanted in enumerate(ranges):
            target = join(directory, str(index))
            files.copy(join(output, parts[index]), target)
            # The task would have failed if its range had been shorter.
            written.append(Written(target, wanted.end_id - wanted.first_id, 0))
        files.delete(aside)
        return written

    def _whole(self, ranges: Sequence[Range], read: Any, schema: str) -> Any:
        """A writer of one file for each range, whatever the session says: of a second file a name would be missed."""
        return self._tasks(len(ranges), read, schema).write.option("maxRecordsPerFile", 0)

    def _tasks(self, count: int, work: Any, schema: str) -> Any:
        # Row i of spark.range(n, numPartitions=n) is the only one of task i, and stands for range i.
        return self._spark.range(0, count, 1, count).mapInArrow(work, schema)


def _written_row(index: int, path: str, reading: Reading, wanted: Range, kind: Format) -> Any:
    """An OSError is an answer, not a failure: doing it again at once would not help, and the driver says it better."""
    records = size_bytes = 0
    trouble = ""
    try:
        with open(path, "xb") as file:
            records = write_file(file, reading.batches([wanted]), kind)
            file.flush()
            os.fsync(file.fileno())
            size_bytes = file.tell()
    except OSError as error:
        trouble = str(error) or repr(error)
    return pa.record_batch(
        [[index], [path], [records], [size_bytes], [trouble]],
        names=["range_index", "path", "records", "size_bytes", "error"],
    )


def write_file(file: IO[bytes], batches: Iterable[Any], kind: Format) -> int:
    """Record batches of ``read_feed``'s columns into an open file; how many records there were."""
    return _write_jsonl(file, batches) if kind == "jsonl" else _write_parquet(file, batches)


def _write_parquet(file: IO[bytes], batches: Iterable[Any]) -> int:
    records = waiting_bytes = 0
    waiting: list[Any] = []
    with pq.ParquetWriter(file, ARROW_SCHEMA, compression="zstd") as writer:
        for batch in batches:
            waiting.append(batch)
            records += batch.num_rows
            waiting_bytes += batch.nbytes
            if waiting_bytes >= _ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting, waiting_bytes = [], 0
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
    return records


def _write_jsonl(file: IO[bytes], batches: Iterable[Any]) -> int:
    records = 0
    # Neither a name nor a time in the header: a repeated attempt writes the same bytes.
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=3, mtime=0) as lines:
        for batch in batches:
            for line in json_lines(batch):
                lines.write(line + b"\n")
            records += batch.num_rows
    return records


def json_lines(batch: Any) -> Iterator[bytes]:
    """A record batch of ``read_feed``'s columns as JSON objects, one for each record."""
    numbers = zip(*(batch.column(name).to_pylist() for name in _NUMBERS), strict=True)
    for values, data in zip(numbers, batch.column("data").to_pylist(), strict=True):
        yield json.dumps(dict(zip(_NUMBERS, values, strict=True)) | _as_json(data)).encode()


def _as_json(data: bytes) -> dict[str, str]:
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(data).decode()}
