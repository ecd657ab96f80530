"""What consumers are given: messages, in batches that are looked at when the application does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from waltz_ray.errors import BadPayload
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.topics.payload import unpacked_payload
from waltz_ray.topics.records import OWNERSHIP_HEADER, TopicMessage, decode_topic_record, is_message

__all__ = ["Message", "MessageBatch", "has_messages"]


class Message(NamedTuple):
    """One message. ``offset`` is its ID; ``appended_ms``: when its producer, or its slot, took it, Unix time."""

    topic: str
    partition: int
    offset: int
    data: bytes
    type: str
    attributes: str | None
    time: str
    appended_ms: int


def has_messages(records: RecordBatch) -> bool:
    """Whether there is one among them; the others say who owns the partition."""
    others = (records.fields["header"] == OWNERSHIP_HEADER).nonzero()[0]
    return len(others) < len(records) or any(is_message(records.data(index)) for index in others.tolist())


class MessageBatch:
    """Messages of one partition, in their order: iterate over it, as often as you like. ``end``: the offset behind it,
    which it is confirmed up to."""

    __slots__ = ("_records", "_types", "end", "lease", "partition", "size_bytes", "topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        records: Sequence[RecordBatch],
        end: int,
        types: frozenset[str],
        lease: object = None,
    ) -> None:
        """``types``: all others are left out; empty: none is. ``lease``: of whoever has given it out."""
        self.topic = topic
        self.partition = partition
        self.end = end
        self.lease = lease
        """Under which it was given out: under another one it cannot be confirmed."""
        self.size_bytes = sum(each.size_bytes for each in records)
        """Of what was read for it."""
        self._records = records
        self._types = types

    def __iter__(self) -> Iterator[Message]:
        for records in self._records:
            for index in range(len(records)):
                found = self._message(records.first_id + index, records.data(index))
                if found is not None:
                    yield found

    def _message(self, offset: int, record: memoryview) -> Message | None:
        """None: it says who owns the partition, or filters leave it out. What is no record of a topic is passed over,
        as by slots."""
        if not is_message(record):
            return None
        try:
            found = decode_topic_record(record)
            assert isinstance(found, TopicMessage)
            data, attributes = unpacked_payload(found.payload, found.flag)
        except BadPayload:
            return None
        if self._types and found.msg_type not in self._types:
            return None
        return Message(
            self.topic, self.partition, offset, data, found.msg_type, attributes, found.msg_time, found.append_ms
        )
