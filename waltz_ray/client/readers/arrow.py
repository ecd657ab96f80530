"""Record batches as Arrow: the shape of the feed for Spark, Ray Data and whoever else reads columns. No Ray here.

No Python object is made per record. The header columns are gathered by numpy. The data needs one pass: Arrow is shown
the record bytes as a binary array whose even values are the datas and whose odd values are what lies between two of
them (checksum and next header), and ``take`` copies the even ones, those that the filter wants, into one buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.messages.client import FeedBatch
from waltz_ray.protocol.records import RECORD_HEADER_BYTES, RecordBatch

__all__ = ["ARROW_SCHEMA", "COLUMNS", "SPARK_SCHEMA", "checked_columns", "headers_to_arrow", "schema_of", "to_arrow"]

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
SPARK_SCHEMA = (
    "partition_id int, transaction_id long, header int, client_id int, generation int, sequence_number int, data binary"
)
_SPARK_TYPES = {each.split()[0]: each for each in SPARK_SCHEMA.split(", ")}
_NATIVE: dict[str, np.dtype[Any]] = {"int32": np.dtype(np.int32), "int64": np.dtype(np.int64)}

Positions = npt.NDArray[np.int64]


def checked_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns of a read, None = all. InvalidInput for none, one twice, or one that the feed does not have."""
    if columns is None:
        return COLUMNS
    wanted = (columns,) if isinstance(columns, str) else tuple(columns)
    unknown = [name for name in wanted if name not in COLUMNS]
    if unknown:
        raise InvalidInput(f"the feed has no column {unknown[0]!r}; it has {', '.join(COLUMNS)}")
    if not wanted or len(set(wanted)) != len(wanted):
        raise InvalidInput(f"columns must name at least one column, and none twice, not {list(wanted)}")
    return wanted


def schema_of(columns: Sequence[str]) -> str:
    """The Spark schema of these columns, in their order."""
    return ", ".join(_SPARK_TYPES[name] for name in columns)


def to_arrow(batch: RecordBatch, columns: Sequence[str] = COLUMNS, chosen: Positions | None = None) -> Any:
    """A ``pyarrow.RecordBatch`` with ``columns`` of ARROW_SCHEMA, a row for each record at the positions ``chosen``
    (None: all)."""
    arrays = []
    for name in columns:
        if name == "data":
            arrays.append(_datas(batch, chosen))
        elif name == "partition_id":  # in the space: the records' bytes have the cluster's number
            arrays.append(_numbers(name, np.full(len(batch), batch.partition_id), chosen))
        else:
            arrays.append(_numbers(name, batch.fields[name], chosen))
    return pa.record_batch(arrays, names=list(columns))


def headers_to_arrow(batch: FeedBatch, columns: Sequence[str], chosen: Positions | None = None) -> Any:
    """The Arrow columns of a feed without data; ``columns`` must not name "data"."""
    values: dict[str, npt.NDArray[Any]] = {
        "partition_id": np.full(len(batch), batch.partition_id, dtype=np.int32),
        "transaction_id": np.arange(batch.first_id, batch.first_id + len(batch), dtype=np.int64),
        "header": batch.headers,
        "client_id": batch.client_ids,
        "generation": batch.generations,
        "sequence_number": batch.sequence_numbers,
    }
    return pa.record_batch([_numbers(name, values[name], chosen) for name in columns], names=list(columns))


def _numbers(name: str, values: npt.NDArray[Any], chosen: Positions | None) -> Any:
    kind = ARROW_SCHEMA.field(name).type
    native: npt.NDArray[Any] = values.astype(_NATIVE[str(kind)])
    return pa.array(native if chosen is None else native[chosen], type=kind)


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
