"""The feed as a ``ray.data.Dataset``, one read task per range. Neither Spark nor RayDP is needed, nor imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

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
from waltz_ray.finding import ray_lookup

__all__ = ["read_dataset"]


def read_dataset(
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
    bytes_per_task: int = BYTES_PER_TASK,
    space: str = DEFAULT_SPACE,
) -> Any:
    """A ``ray.data.Dataset`` of a cluster's transactions, with the options and errors of ``waltz_spark.read_feed``.

    A process that belongs to no Ray yet joins the cluster's, which ``zookeeper`` and ``endpoints`` do not tell.
    Ray Data executes when it is consumed; "latest" is fixed when this is called. See ``docs/client.md``,
    "Ray Data".
    """
    place = where_of(cluster, zookeeper, endpoints, directory, address)
    if place.ray and not ray_lookup.here():
        ray_lookup.join(place.ray)
    reading = Reading.of(place.where, place.cluster, source, columns, header, decoder, space)
    ranges = plan_reading(reading, partitions, start, stop, bytes_per_task)
    return ray.data.read_datasource(FeedDatasource(reading, ranges), override_num_blocks=max(1, len(ranges)))


class FeedDatasource(Datasource):
    """A read task for each of ``ranges``; they and ``reading`` travel pickled."""

    def __init__(self, reading: Reading, ranges: Sequence[Range]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reading = reading
        self._ranges = ranges

    def get_name(self) -> str:
        return f"waltz feed of {self._reading.cluster}"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int, *arguments: Any, **options: Any) -> list[ReadTask]:
        # A schema known beforehand spares Ray Data a read of its own to find out; what a decoder returns is not known.
        fields = [FEED_SCHEMA.field(name) for name in self._reading.columns]
        schema = pa.schema(fields) if self._reading.decoder is None else None
        nothing = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        tasks = [[each] for each in self._ranges] or [[]]
        return [ReadTask(partial(_blocks, self._reading, each, schema), nothing, schema) for each in tasks]


def _blocks(reading: Reading, ranges: Sequence[Range], schema: Any) -> Iterator[Any]:
    """At least one block where the schema is known, so that a dataset without rows has columns, too."""
    found = False
    for rows in reading.batches(ranges):
        if not rows.num_columns:
            continue  # a decoder that found nothing to decode
        yield pa.Table.from_batches([rows])
        found = True
    if not found and schema is not None:
        yield schema.empty_table()
