"""A key/value space as a DataFrame: each partition's log is folded in one Spark task, which gives its live items.

Nobody who serves the space is asked, and it need not be served: the log has all of it. A task reads its partition from
where the log begins (with a space that is compacted: the oldest snapshot that is needed, or before) and folds it in the
memory of its Python worker, as the space's actors do; so rows are as of one transaction of each partition.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from waltz_ray.client.readers.locations import Locations, where_of
from waltz_ray.client.readers.ranges import Bound, Range
from waltz_ray.client.readers.reading import Marks, Reading, Source, plan_reading
from waltz_ray.client.readers.spark_worker import spare_the_next_task
from waltz_ray.errors import InvalidInput, ProjectionFailed
from waltz_ray.kv.model import MOST_DEADLINE_MS, Item, ItemKey, ValueType
from waltz_ray.kv.state import MemoryState

__all__ = ["check_told", "read_kv"]

_FIELDS = [
    ("partition_id", "int", pa.int32()),
    ("map_hash", "long", pa.int64()),
    ("map_name", "string", pa.string()),
    ("hash", "long", pa.int64()),
    ("name", "string", pa.string()),
    ("name_bytes", "binary", pa.binary()),
    ("type", "int", pa.int32()),
    ("value", "binary", pa.binary()),
    ("number", "long", pa.int64()),
    ("text", "string", pa.string()),
    ("version", "long", pa.int64()),
    ("deadline_ms", "long", pa.int64()),
]
_SPARK_SCHEMA = ", ".join(f"{name} {kind}" for name, kind, _ in _FIELDS)
_ARROW_SCHEMA = pa.schema([(name, kind) for name, _, kind in _FIELDS])

_NUMBER_BYTES: dict[int, int] = {ValueType.INT: 4, ValueType.LONG: 8}
_WHOLE_PARTITION_BYTES = 1 << 62
_BATCH_ROWS = 4096
_BATCH_BYTES = 4 << 20


def read_kv(
    spark: SparkSession,
    cluster: str | None = None,
    space: str = "kv",
    partitions: Sequence[int] | None = None,
    stop: Bound = "latest",
    *,
    now_ms: int | None = None,
    directory: str | None = None,
    address: str | None = None,
    zookeeper: str | None = None,
    source: Source = "server",
) -> DataFrame:
    """The items of ``space`` as of ``stop``, exclusive, which is fixed when this is called; one row each.

    Columns: partition_id int (in the space), map_hash long (0: no map), map_name string (null: not known), hash long,
    name string, name_bytes binary, type int (``waltz_ray.kv.model.ValueType``), value binary, number long (of INT and
    LONG), text string (of TEXT), version long (transaction ID of its last change), deadline_ms long (null: it never
    expires). A name that is not UTF-8 is null, its bytes are not. Items whose deadline is ``now_ms`` or earlier are
    left out; None: by this machine's clock, 0: none are. Locks are no rows.

    The cluster is found, and ``partitions`` and ``source`` are, as with ``read_feed``. One task folds one partition, in
    memory: the items of a partition must fit in a Python worker.

    InvalidInput if the space is of another kind; ClusterNotFound, SpaceNotFound, SpaceGone, DataUnavailable. Here or in
    a task ProjectionFailed if so much of the log was given up that the state at ``stop`` cannot be told any more; in a
    task Trimmed if what it reads goes meanwhile: read again.
    """
    if now_ms is not None and (isinstance(now_ms, bool) or not isinstance(now_ms, int)):
        raise InvalidInput(f"now_ms must be milliseconds since 1970, a whole number, not {now_ms!r:.60}")
    place = where_of(cluster, zookeeper, None, directory, address)
    with Locations(place.where, place.cluster) as locations:
        kind = locations.store.spaces.get(space).kind
    if kind != "kv":
        raise InvalidInput(f"space {space!r} of cluster {place.cluster!r} is of kind {kind}, not kv; use read_feed")
    reading = Reading.of(place.where, place.cluster, source, ["transaction_id", "data"], space=space)
    ranges = plan_reading(reading, partitions, "earliest", stop, _WHOLE_PARTITION_BYTES)
    with Marks(reading) as marks:  # later than the ranges: what has gone since is no more than what is found gone
        beginnings = marks.beginnings(marks.locations.checked(None if partitions is None else list(partitions)))
    check_told(space, ranges, beginnings)
    return _frame(spark, reading, ranges, time.time_ns() // 1_000_000 if now_ms is None else now_ms)


def check_told(space: str, ranges: Sequence[Range], beginnings: Mapping[int, int]) -> None:
    """ProjectionFailed for a partition of ``beginnings`` (partition -> first transaction there is) without a range,
    though it had transactions: its state is not known to be empty, all of it has been given up."""
    read = {each.partition_id for each in ranges}
    for partition_id, first_id in beginnings.items():
        if first_id and partition_id not in read:
            raise ProjectionFailed(
                f"space {space!r}, partition {partition_id}: its log begins with transaction {first_id}, and "
                "nothing is left of what was before `stop`: read a later state"
            )


def _frame(spark: SparkSession, reading: Reading, ranges: Sequence[Range], now_ms: int) -> DataFrame:
    if not ranges:
        return spark.createDataFrame([], _SPARK_SCHEMA)

    def fold(batches: Iterable[Any]) -> Iterator[Any]:
        spare_the_next_task()
        for batch in batches:
            for at in batch.column(0).to_pylist():
                yield from _rows(ranges[at].partition_id, _folded(reading, ranges[at]), now_ms)

    # Row i of spark.range(n, numPartitions=n) is the only one of task i, and stands for range i.
    return spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(fold, _SPARK_SCHEMA)


def _folded(reading: Reading, wanted: Range) -> MemoryState:
    state = MemoryState(f"space {reading.space!r}, partition {wanted.partition_id}")
    for rows in reading.batches([wanted]):
        state.apply(zip(rows["transaction_id"].to_pylist(), rows["data"].to_pylist(), strict=True))
    if not state.whole:
        raise ProjectionFailed(
            f"{state.label}: its log begins with transaction {wanted.first_id}, and the snapshots from there to "
            f"{wanted.end_id} do not have all of the state: read a later one"
        )
    return state


def _rows(partition_id: int, state: MemoryState, now_ms: int) -> Iterator[Any]:
    rows: list[dict[str, Any]] = []
    size = 0
    for key, item in state.items():
        if item.deadline_ms and item.deadline_ms <= now_ms:
            continue
        rows.append({"partition_id": partition_id, **_row(key, item)})
        size += len(key.name) + len(item.data)
        if len(rows) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(rows, _ARROW_SCHEMA)
            rows, size = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, _ARROW_SCHEMA)


def _row(key: ItemKey, item: Item) -> dict[str, Any]:
    is_number = len(item.data) == _NUMBER_BYTES.get(item.type)
    return {
        "map_hash": key.map_hash,
        "map_name": _text(item.map_name) if item.map_name else None,
        "hash": key.hash,
        "name": _text(key.name),
        "name_bytes": key.name,
        "type": item.type,
        "value": item.data,
        "number": int.from_bytes(item.data, "big", signed=True) if is_number else None,
        "text": _text(item.data) if item.type == ValueType.TEXT else None,
        "version": item.version,
        "deadline_ms": min(item.deadline_ms, MOST_DEADLINE_MS) or None,  # logs have later ones
    }


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
