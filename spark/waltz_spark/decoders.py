"""A decoder that is ready: transactions whose data is a JSON object, such as those of ``waltz load``."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.json
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from waltz_ray.errors import InvalidInput

__all__ = ["JsonRows"]

_IDS = "partition_id int, transaction_id long"


class JsonRows:
    """Decodes data that is one JSON object each into columns: partition_id, transaction_id, then those of ``fields``.

    ``fields``: a Spark schema, as DDL ("id long, name string") or StructType. A field that an object lacks is null;
    one that ``fields`` does not name is left out. InvalidInput if data is no JSON object or a value is of another
    type. Values are parsed by Arrow, no Python object is made per row. Make it on the driver, with Spark running.
    """

    def __init__(self, fields: str | StructType) -> None:
        spark = SparkSession.getActiveSession()
        if spark is None:
            raise InvalidInput("JsonRows needs a running Spark to read its schema; call start_spark() first")
        own = spark.createDataFrame([], fields).schema
        self.schema = StructType(list(spark.createDataFrame([], _IDS).schema) + list(own))
        self._fields = to_arrow_schema(own)
        self._wrapped = pa.schema({"r": pa.list_(pa.struct(list(self._fields)))})

    def __call__(self, rows: Any) -> Any:
        """One batch with the columns partition_id, transaction_id and data, at least."""
        lacking = [name for name in ("partition_id", "transaction_id", "data") if name not in rows.schema.names]
        if lacking:
            raise InvalidInput(f"JsonRows needs the column {lacking[0]}; name it in columns=, or leave columns= out")
        where = f"partition {rows['partition_id'][0]}, transactions from {rows['transaction_id'][0]} on"
        # Each in a list in an object of its own: wherever its data would end, that of the next does not begin there.
        text = b'{"r":[' + b']}\n{"r":['.join(data.replace(b"\n", b" ") for data in rows["data"].to_pylist()) + b"]}"
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(text),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
                parse_options=pyarrow.json.ParseOptions(
                    explicit_schema=self._wrapped, unexpected_field_behavior="ignore"
                ),
            )
            table.validate(full=True)  # the parser takes texts that are not UTF-8
        except pa.ArrowInvalid as error:
            reason = str(error).replace("/r/[]", "")  # where a field is in the object, not in what is around it
            raise InvalidInput(f"{where}: the data is not JSON of these fields: {reason}") from error
        lists = table["r"].combine_chunks()
        objects = lists.flatten()
        if table.num_rows != rows.num_rows or objects.null_count or lists.value_lengths().unique().to_pylist() != [1]:
            raise InvalidInput(f"{where}: not every transaction holds one JSON object")
        columns = [rows["partition_id"], rows["transaction_id"]]
        columns += objects.flatten()
        return pa.record_batch(columns, names=["partition_id", "transaction_id", *self._fields.names])
