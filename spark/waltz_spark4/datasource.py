"""The Python Data Source "waltz" of PySpark 4, and its batch reader.

The planner asks the servers for their high-water marks and cuts what is to be read into ranges; one Spark task reads
one range over TCP and hands Arrow batches to the JVM. Ranges of committed transactions never change, so a task that
is run again reads the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from waltz_ray.client.readers.arrow import schema_of
from waltz_ray.client.readers.ranges import Range
from waltz_ray.client.readers.reading import plan_reading
from waltz_ray.client.readers.spark_worker import spare_the_next_task
from waltz_ray.errors import InvalidInput
from waltz_spark4.filters import Values, both, narrowed, values_of
from waltz_spark4.options import Options
from waltz_spark4.streaming import WaltzStreamReader

__all__ = ["WaltzDataSource", "register"]

_PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make ``format("waltz")`` known to this session, and let Spark push filters down into it.

    The latter is a setting for all Python Data Sources of the session (PySpark 4.1 and later, off by default).
    """
    sources: Any = spark.dataSource  # type: ignore[attr-defined, unused-ignore]  # not in PySpark 3.5
    sources.register(WaltzDataSource)
    spark.conf.set(_PUSH_DOWN, "true")


class WaltzDataSource(DataSource):  # type: ignore[misc]
    """The committed transactions of a cluster's partitions; columns as those of ``waltz_spark.read_feed``."""

    @classmethod
    def name(cls) -> str:
        return "waltz"

    def schema(self) -> str:
        return schema_of(Options.parse(self.options).reading.columns)

    def reader(self, schema: Any) -> WaltzReader:
        options = Options.parse(self.options)
        if options.max_records_per_trigger is not None:
            raise InvalidInput("option maxRecordsPerTrigger is for readStream; use stop to end a batch read early")
        return WaltzPushingReader(options) if options.push_filters else WaltzReader(options)

    def streamReader(self, schema: Any) -> WaltzStreamReader:  # noqa: N802  (Spark's name)
        return WaltzStreamReader(Options.parse(self.options))


class WaltzReader(DataSourceReader):  # type: ignore[misc]
    """Reads [start, stop) of every partition. "latest" is where the log ends when Spark plans an action."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._reading = options.reading
        self._values: dict[str, Values] = {}

    def partitions(self) -> list[InputPartition]:
        options = self._options
        stop = "latest" if options.stop is None else options.stop
        ranges = plan_reading(self._reading, options.partitions, options.start, stop, options.bytes_per_task)
        return [InputPartition(each) for each in narrowed(ranges, self._values)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        # Of an empty list of partitions PySpark 4.0 and 4.1 make None, 4.2 an InputPartition(None).
        wanted: Range | None = None if partition is None else partition.value
        if wanted is not None:
            spare_the_next_task()
            yield from self._reading.batches([wanted])


class WaltzPushingReader(WaltzReader):
    """One that takes filters. A class of its own: Spark refuses such a reader in a session that does not push."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802  (Spark's name)
        """Keeps the comparisons with integers of partition_id, transaction_id and header, and hands back the others:
        what is kept here, Spark does not apply again."""
        for each in filters:
            values = values_of(each)
            if values is not None:
                column = each.attribute[0]
                self._values[column] = both(self._values[column], values) if column in self._values else values
            if values is None or (column == "transaction_id" and isinstance(values, frozenset)):
                yield each  # the gaps between the IDs of a set are Spark's to leave out
        self._reading = replace(self._reading, header=self._values.get("header"))
