"""Record batches as Arrow: the shape of the feed for Spark, Ray Data and whoever else reads columns. No Ray here.

No Python object is made per record. The header columns are gathered by numpy. The data needs one pass: Arrow is shown
the record bytes as a binary array whose even values are the datas and whose odd values are what lies between two of
them (checksum and next header), and ``take`` copies the even ones, those that the filter wants, into one buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.messages.client import FeedBatch
from waltz_ray.protocol.records import RECORD_HEADER_BYTES, RecordBatch
from waltz_ray.protocol.times import NO_TIMES, TimeMarks

__all__ = [
    "APPENDED_AT",
    "ARROW_SCHEMA",
    "COLUMNS",
    "FEED_SCHEMA",
    "SPARK_SCHEMA",
    "checked_columns",
    "headers_to_arrow",
    "schema_of",
    "to_arrow",
]

ARROW_SCHEMA = pa.schema(
    [
        ("partition_id", pa.int32()),
        ("transaction_id", pa.int64()),
        ("header", pa.int32()),
        ("client_id", pa.int32()),
        ("generation", pa.int32()),
        ("sequence_number", pa.int32()),
        ("data", pa.binary()),
    ]
)
COLUMNS: tuple[str, ...] = tuple(ARROW_SCHEMA.names)
APPENDED_AT = "_appended_at"
"""When the transaction was appended, UTC, to about a second: a column that a read has if it is named in ``columns``."""
FEED_SCHEMA = ARROW_SCHEMA.append(pa.field(APPENDED_AT, pa.timestamp("us", tz="UTC")))
"""All the columns there are."""
SPARK_SCHEMA = (
    "partition_id int, transaction_id long, header int, client_id int, generation int, sequence_number int, data binary"
)
_SPARK_TYPES = {each.split()[0]: each for each in (*SPARK_SCHEMA.split(", "), f"{APPENDED_AT} timestamp")}
_NATIVE: dict[str, np.dtype[Any]] = {"int32": np.dtype(np.int32), "int64": np.dtype(np.int64)}

Positions = npt.NDArray[np.int64]


def checked_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns of a read, None = COLUMNS. InvalidInput for none, one twice, or one that the feed does not have."""
    if columns is None:
        return COLUMNS
    wanted = (columns,) if isinstance(columns, str) or not isinstance(columns, Iterable) else tuple(columns)
    unknown = [name for name in wanted if name not in FEED_SCHEMA.names]
    if unknown:
        raise InvalidInput(f"the feed has no column {unknown[0]!r}; it has {', '.join(FEED_SCHEMA.names)}")
    if not wanted or len(set(wanted)) != len(wanted):
        raise InvalidInput(f"columns must name at least one column, and none twice, not {list(wanted)}")
    return wanted


def schema_of(columns: Sequence[str]) -> str:
    """The Spark schema of these columns, in their order."""
    return ", ".join(_SPARK_TYPES[name] for name in columns)


def to_arrow(batch: RecordBatch, columns: Sequence[str] = COLUMNS, chosen: Positions | None = None) -> Any:
    """A ``pyarrow.RecordBatch`` with ``columns`` of FEED_SCHEMA, a row for each record at the positions ``chosen``
    (None: all). The times are those of the batch."""
    arrays = []
    for name in columns:
        if name == "data":
            arrays.append(_datas(batch, chosen))
        elif name == "partition_id":  # in the space: the records' bytes have the cluster's number
            arrays.append(_numbers(name, np.full(len(batch), batch.partition_id), chosen))
        elif name == APPENDED_AT:
            arrays.append(_times(batch.first_id, len(batch), batch.times, chosen))
        else:
            arrays.append(_numbers(name, batch.fields[name], chosen))
    return pa.record_batch(arrays, names=list(columns))


def headers_to_arrow(
    batch: FeedBatch, columns: Sequence[str], chosen: Positions | None = None, times: TimeMarks = NO_TIMES
) -> Any:
    """The Arrow columns of a feed without data; ``columns`` must not name "data"."""
    values: dict[str, npt.NDArray[Any]] = {
        "partition_id": np.full(len(batch), batch.partition_id, dtype=np.int32),
        "transaction_id": np.arange(batch.first_id, batch.first_id + len(batch), dtype=np.int64),
        "header": batch.headers,
        "client_id": batch.client_ids,
        "generation": batch.generations,
        "sequence_number": batch.sequence_numbers,
    }
    arrays = [
        _times(batch.first_id, len(batch), times, chosen)
        if name == APPENDED_AT
        else _numbers(name, values[name], chosen)
        for name in columns
    ]
    return pa.record_batch(arrays, names=list(columns))


def _numbers(name: str, values: npt.NDArray[Any], chosen: Positions | None) -> Any:
    kind = ARROW_SCHEMA.field(name).type
    native: npt.NDArray[Any] = values.astype(_NATIVE[str(kind)])
    return pa.array(native if chosen is None else native[chosen], type=kind)


def _times(first_id: int, count: int, times: TimeMarks, chosen: Positions | None) -> Any:
    """Of each transaction the time of the last mark at or below its ID; null below the first mark."""
    ids = np.arange(first_id, first_id + count, dtype=np.int64)
    marks = np.array(times, dtype=np.int64).reshape(-1, 2)
    which = np.searchsorted(marks[:, 0], ids if chosen is None else ids[chosen], side="right")
    values = np.concatenate((np.zeros(1, dtype=np.int64), marks[:, 1] * 1000))[which]
    return pa.array(values, type=pa.int64(), mask=which == 0).cast(FEED_SCHEMA.field(APPENDED_AT).type)


def _datas(batch: RecordBatch, chosen: Positions | None) -> Any:
    count = len(batch)
    if not count:
        return pa.array([], type=pa.binary())
    # An int32 each: a batch is one frame, which is smaller than 2 GiB.
    bounds = np.empty(2 * count, dtype=np.int32)
    bounds[0::2] = batch.offsets[:-1] + RECORD_HEADER_BYTES
    bounds[1::2] = batch.offsets[1:] - 4
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(batch.records)]
    interleaved = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    even = np.arange(0, 2 * count, 2) if chosen is None else 2 * chosen
    return interleaved.take(pa.array(even))
