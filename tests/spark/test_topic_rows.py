"""Messages of a topic as a DataFrame: types, attributes and data; what is no message is left out."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from waltz_spark import TopicRows, read_feed

import waltz_ray
from waltz_ray.bring_up import Cluster
from waltz_ray.errors import InvalidInput
from waltz_ray.topics.payload import HAS_ATTRIBUTES, check_sum, packed_payload
from waltz_ray.topics.records import (
    OWNERSHIP_HEADER,
    SlotOwn,
    TopicMessage,
    encode_topic_record,
    header_of_type,
)

AT_MS = 1_700_000_000_123


def message(data: bytes, msg_type: str = "", attributes: str | None = None, msg_time: str = "") -> bytes:
    payload, flag = packed_payload(data, attributes)
    return encode_topic_record(TopicMessage(payload, flag, check_sum(payload), 0, AT_MS, msg_type, msg_time))


def batch(*records: bytes) -> pa.RecordBatch:
    ids = [pa.array([3] * len(records), pa.int32()), pa.array(range(len(records)), pa.int64())]
    return pa.record_batch([*ids, pa.array(records, pa.binary())], names=["partition_id", "transaction_id", "data"])


def test_rows_are_messages_and_nothing_else() -> None:
    own = encode_topic_record(SlotOwn(1, 0, "i", 1))
    rows = TopicRows()(batch(message(b"a", "new", "k=v", "202611231200"), own, b"\x01\x00", b"", message(b"b")))
    at = datetime.fromtimestamp(AT_MS / 1000, timezone.utc)
    assert rows.to_pylist() == [
        {
            "partition_id": 3,
            "offset": 0,
            "type": "new",
            "attributes": "k=v",
            "time": "202611231200",
            "appended_at": at,
            "data": b"a",
        },
        {
            "partition_id": 3,
            "offset": 4,
            "type": None,
            "attributes": None,
            "time": None,
            "appended_at": at,
            "data": b"b",
        },
    ]
    assert TopicRows()(batch(own)).num_rows == 0
    with pytest.raises(InvalidInput, match="needs the column data"):
        TopicRows()(batch(own).select(["partition_id", "transaction_id"]))


def test_what_consumers_pass_over_ends_no_read() -> None:
    no_attributes = encode_topic_record(TopicMessage(b"", HAS_ATTRIBUTES, 0, 0, AT_MS))
    of_no_time = encode_topic_record(TopicMessage(b"b", 0, 0, 0, 1 << 62))
    rows = TopicRows()(batch(message(b"a"), no_attributes, of_no_time))
    assert rows["offset"].to_pylist() == [0, 2]
    assert rows["data"].to_pylist() == [b"a", b"b"]
    assert [at is None for at in rows["appended_at"].to_pylist()] == [False, True]


@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_topic_is_a_dataframe(spark: Any, bank: Cluster) -> None:
    with waltz_ray.Spaces(bank.name) as spaces:
        spaces.create("orders", 2, "topic")
    with waltz_ray.connect(bank.name, space="orders") as client:
        for partition in (0, 1):
            client.append(partition, encode_topic_record(SlotOwn(partition + 1, 0, "i", 1)), OWNERSHIP_HEADER)
            types = ["new", "paid"] * 50
            records = [message(b"%d" % n, kind, "n=1") for n, kind in enumerate(types)]
            client.append_many(partition, records, [header_of_type(kind) for kind in types]).result(30)
    rows = read_feed(spark, bank.name, space="orders", decoder=TopicRows())
    found = {(row["type"], row["count"]) for row in rows.groupBy("type").count().collect()}
    assert found == {("new", 100), ("paid", 100)}
    paid = read_feed(spark, bank.name, space="orders", decoder=TopicRows(), header=header_of_type("paid"))
    assert paid.count() == 100
    assert {row["attributes"] for row in paid.collect()} == {"n=1"}
