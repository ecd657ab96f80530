"""The stream reader of the Data Source "waltz": exactly the transactions between two offsets, whenever they are asked.

Spark writes the end of a batch into its checkpoint before it reads the batch, and reads the same range again if it
did not finish. A range of committed transactions never changes, so the batch is the same one; with a sink that takes
a batch once (Spark's file sinks, or ``foreachBatch`` with the batch ID) every transaction is there exactly once.

Where a stream begins is in no checkpoint before its first batch has ended. With "earliest" or an ID it is the same
after a crash; with "latest" it would not be, and what was appended meanwhile would be missed. So the first batch of
such a stream is empty, and its end is the beginning.

| crash | the checkpoint has | the next run |
|---|---|---|
| before the first batch is planned | nothing | begins anew |
| before the end of the first batch | its end | reads the same range; with "latest" none |
| while a later batch runs | its end and the end of the one before | reads the same range |
| after it, before Spark says it has ended | the same | the same; the sink drops it by its batch ID |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from waltz_ray.client.readers.ranges import Range, at_time, bounds_of, checked_ranges, split_ranges
from waltz_ray.client.readers.reading import Marks
from waltz_ray.client.readers.spark_worker import spare_the_next_task
from waltz_ray.errors import ClientAhead, InvalidInput
from waltz_spark4.offsets import Offsets, admitted, offsets_of, partitions_of, same_partitions
from waltz_spark4.options import Options

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.0 and 4.1: no limit per trigger; Spark itself ends "available now"
    ReadAllAvailable = ReadMaxRows = None

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Nothing, in a Spark that does not ask for it."""


__all__ = ["WaltzStreamReader"]


class WaltzStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Offsets are {partition ID as a string: next transaction ID}. ``read`` runs in the executors, all else beside the
    driver, in one process for as long as the query runs, which keeps its connections.
    """

    def __init__(self, options: Options) -> None:
        if options.stop is not None:
            raise InvalidInput("option stop is for batch reads; a stream goes on until its query is stopped")
        if options.max_records_per_trigger is not None and ReadMaxRows is None:
            raise InvalidInput("option maxRecordsPerTrigger needs PySpark 4.2; leave it out, or use another trigger")
        self._options = options
        self._marks: Marks | None = None
        self._initial: Offsets | None = None
        self._last_reached: Offsets | None = None
        self._available_now: dict[int, int] | None = None
        self._began: dict[int, int] | None = None
        self._asked = False

    def initialOffset(self) -> Offsets:  # noqa: N802  (Spark's names)
        if self._initial is None:
            self._initial = offsets_of(self._reached() if self._options.start == "latest" else self._beginning())
        return self._initial

    def latestOffset(self, start: Offsets | None = None, limit: Any = None) -> Offsets:  # noqa: N802
        """PySpark 4.0 and 4.1 ask without arguments, and before they ask for the initial offset."""
        first, self._asked = not self._asked, True
        if first and self._options.start == "latest" and start in (None, self._initial):
            return self.initialOffset()
        reached = self._reached()
        self._last_reached = offsets_of(reached)
        if start is None:
            return self._last_reached
        begin = partitions_of(start)
        if self._options.reading.source == "replica":
            # A quorum that shrank proves less than it did before: no news, and no sign of another log.
            reached = {each: max(end, begin.get(each, 0)) for each, end in reached.items()}
        max_records = limit.max_rows if ReadMaxRows is not None and isinstance(limit, ReadMaxRows) else None
        return offsets_of(admitted(begin, reached, max_records))

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        limit = self._options.max_records_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available_now = self._reached()

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """How far the log reached at the last look; less the end of the batch it is the lag in the query's progress."""
        return self._last_reached

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Exactly [start, end). InvalidInput or ClientAhead if that is not of these partitions or this log, Trimmed if
        its beginning is gone."""
        first_ids, end_ids = partitions_of(start), partitions_of(end)
        same_partitions(first_ids, end_ids)
        behind = [partition_id for partition_id, first_id in first_ids.items() if first_id > end_ids[partition_id]]
        if behind and self._options.start == "latest" and start == self._initial:
            return []  # the empty first batch, run again: "latest" is now, its end is when the stream began
        if behind:
            raise ClientAhead(
                f"partition {behind[0]}: the stream is at transaction {first_ids[behind[0]]}, the batch ends before; "
                f"the checkpoint is of another log"
            )
        ranges = [
            Range(each, first_id, end_ids[each]) for each, first_id in first_ids.items() if first_id < end_ids[each]
        ]
        checked_ranges(ranges, self._open_marks().beginnings(first_ids))
        # Not cut to where the log ends now: if it has lost what the checkpoint names, the task must fail.
        pieces = split_ranges(ranges, self._open_marks().record_bytes(ranges), self._options.bytes_per_task)
        return [InputPartition(each) for each in pieces]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        spare_the_next_task()
        yield from self._options.reading.batches([partition.value])

    def commit(self, end: Offsets) -> None:
        """Nothing is kept for readers, so there is nothing to let go."""

    def stop(self) -> None:
        if self._marks is not None:
            self._marks.close()
            self._marks = None

    def _open_marks(self) -> Marks:
        if self._marks is None:
            self._marks = Marks(self._options.reading)
        return self._marks

    def _partitions(self) -> list[int]:
        return self._open_marks().locations.checked(self._options.partitions)

    def _beginning(self) -> dict[int, int]:
        """The first transaction of each partition, by the option start; it may not be there yet."""
        start, partitions = self._options.start, self._partitions()
        extra = sorted(set(start) - set(partitions)) if isinstance(start, Mapping) else []
        if extra:
            raise InvalidInput(f"start names partition {extra[0]}, which is not read; read: {partitions}")
        if self._began is None:  # asked once: of a time that is still to come the log's end would be told each time
            start = at_time("start", start, partitions, self._open_marks().first_id_at)
            endless = dict.fromkeys(partitions, _EVER)  # so that no partition is left out as empty
            begun = bounds_of(start, "latest", endless, self._open_marks().beginnings(partitions))
            self._began = {each.partition_id: each.first_id for each in begun}
        return self._began

    def _reached(self) -> dict[int, int]:
        """Behind the last transaction of each partition, but not before the beginning; fixed for "available now"."""
        if self._available_now is not None:
            return self._available_now
        ends = {each: self._open_marks().high_water_mark(each) + 1 for each in self._partitions()}
        if self._options.start == "latest":
            return ends
        beginning = self._beginning()
        return {partition_id: max(end, beginning[partition_id]) for partition_id, end in ends.items()}


_EVER = 2**63 - 1
"""A high-water mark that no log reaches: transaction IDs are signed 64-bit numbers."""
