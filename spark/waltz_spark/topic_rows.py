"""Messages of a topic as rows: a decoder for ``read_feed`` and ``stream_feed``.

What says who owns a partition, and what is no record of a topic, is left out. The hash of a message's type is the
header of its transaction, so ``header=`` with ``waltz_ray.topics.records.header_of_type`` leaves others out before they
are decoded (of two types with one hash both come: compare the column, too).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from waltz_ray.errors import BadPayload, InvalidInput
from waltz_ray.topics.payload import unpacked_payload
from waltz_ray.topics.records import TopicMessage, decode_topic_record, is_message

__all__ = ["TopicRows"]

_ARROW = pa.schema(
    [
        ("partition_id", pa.int32()),
        ("offset", pa.int64()),
        ("type", pa.string()),
        ("attributes", pa.string()),
        ("time", pa.string()),
        ("appended_at", pa.timestamp("us", tz="UTC")),
        ("data", pa.binary()),
    ]
)


class TopicRows:
    """Columns partition_id, offset (the message's ID), type (null: none), attributes (null: none), time (the producer's
    text, null: none), appended_at (null: no time that a timestamp can be), data."""

    schema = (
        "partition_id int, offset long, type string, attributes string, time string, appended_at timestamp, data binary"
    )

    def __call__(self, rows: Any) -> Any:
        """One batch with the columns partition_id, transaction_id and data, at least."""
        lacking = [name for name in ("partition_id", "transaction_id", "data") if name not in rows.schema.names]
        if lacking:
            raise InvalidInput(f"TopicRows needs the column {lacking[0]}; name it in columns=, or leave columns= out")
        found: list[tuple[object, ...]] = []
        columns = (rows[name].to_pylist() for name in ("partition_id", "transaction_id", "data"))
        for partition, offset, record in zip(*columns, strict=True):
            message = _message(record)
            if message is not None:
                found.append((partition, offset, *message))
        if not found:
            return pa.RecordBatch.from_pylist([], schema=_ARROW)
        arrays = [pa.array(column, kind) for column, kind in zip(zip(*found, strict=True), _ARROW.types, strict=True)]
        return pa.record_batch(arrays, schema=_ARROW)


def _message(record: bytes) -> tuple[object, ...] | None:
    """The columns behind the offset; None for what consumers pass over: somebody else has appended it to the topic's
    space."""
    if not is_message(record):
        return None
    try:
        found = decode_topic_record(record)
        assert isinstance(found, TopicMessage)
        data, attributes = unpacked_payload(found.payload, found.flag)
    except BadPayload:
        return None
    at_us = 1000 * found.append_ms
    is_time = -(1 << 63) <= at_us < 1 << 63
    return found.msg_type or None, attributes, found.msg_time or None, at_us if is_time else None, data
