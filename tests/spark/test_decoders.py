"""Decoders without Spark: what of a transaction's bytes is no JSON, and what fits a schema."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType
from waltz_spark.decoders import JsonRows
from waltz_spark.feed import fitted

from waltz_ray.client.ray import block_rows
from waltz_ray.errors import InvalidInput

IDS = StructType([StructField("partition_id", IntegerType()), StructField("transaction_id", LongType())])
NAME = StructType([StructField("name", StringType())])


def rows(data: bytes) -> pa.RecordBatch:
    ids = [pa.array([4], type=pa.int32()), pa.array([7], type=pa.int64())]
    return pa.record_batch([*ids, pa.array([data])], names=["partition_id", "transaction_id", "data"])


def test_text_that_is_not_utf8_is_no_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's parser takes it, and Spark showed another text."""
    session = SimpleNamespace(
        createDataFrame=lambda rows, fields: SimpleNamespace(schema=fields if isinstance(fields, StructType) else IDS)
    )
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: session)
    decoder = JsonRows(NAME)
    assert decoder(rows('{"name":"\u65e5"}'.encode())).to_pylist() == [
        {"partition_id": 4, "transaction_id": 7, "name": "\u65e5"}
    ]
    with pytest.raises(InvalidInput, match="partition 4, transactions from 7 on: the data is not JSON of these fields"):
        decoder(rows(b'{"name":"\xe9"}'))


def test_a_decoder_that_finds_nothing_gives_no_rows() -> None:
    schema = pa.schema([("name", pa.string()), ("number", pa.int64())])
    nothing = fitted(block_rows(rows(b"of somebody else")), schema)
    assert (nothing.schema, nothing.num_rows) == (schema, 0)
    some = fitted(pa.record_batch([["a"], pa.nulls(1)], names=schema.names), schema)
    assert (some.schema, some.to_pylist()) == (schema, [{"name": "a", "number": None}])
    with pytest.raises(InvalidInput, match=r"returned columns \['name'\], decoder_schema names \['name', 'number'\]"):
        fitted(some.select(["name"]), schema)
