"""Record batches as Arrow: the shape of the feed in Spark. Runs in Spark's Python workers; no Ray there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from waltz_ray.protocol.records import RecordBatch

__all__ = ["ARROW_SCHEMA", "SPARK_SCHEMA", "to_arrow"]

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
SPARK_SCHEMA = (
    "partition_id int, transaction_id long, header int, client_id int, generation int, sequence_number int, data binary"
)
_NATIVE = {"int32": np.dtype(np.int32), "int64": np.dtype(np.int64)}


def to_arrow(batch: RecordBatch) -> Any:
    """A ``pyarrow.RecordBatch`` of ARROW_SCHEMA, a row per record."""
    fields = batch.fields
    columns = []
    for name, kind in zip(ARROW_SCHEMA.names, ARROW_SCHEMA.types, strict=True):
        if name == "data":
            columns.append(pa.array([bytes(data) for data in batch.datas()], type=pa.binary()))
        else:
            columns.append(pa.array(fields[name].astype(_NATIVE[str(kind)]), type=kind))
    return pa.record_batch(columns, schema=ARROW_SCHEMA)
