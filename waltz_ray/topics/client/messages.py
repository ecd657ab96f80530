"""What consumers are given: messages, in batches that are looked at when the application does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from waltz_ray.errors import BadPayload
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.topics.payload import unpacked_payload
from waltz_ray.topics.records import OWNERSHIP_HEADER, is_message, message_parts

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

    __slots__ = ("_types", "end", "lease", "partition", "records", "size_bytes", "topic")

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
        self.records = tuple(records)
        """What was read for it, of the log: also what is not wanted, or no message."""
        self.size_bytes = sum(each.size_bytes for each in records)
        """Of what was read for it."""
        self._types = types

    def __iter__(self) -> Iterator[Message]:
        """Of what is no message, but says who owns the partition, or was appended by somebody else, there is none."""
        topic, partition, types = self.topic, self.partition, self._types
        for records in self.records:
            for offset, record in enumerate(records.datas(), records.first_id):
                parts = message_parts(record)
                if parts is None:
                    continue
                data, flag, append_ms, msg_type, msg_time = parts
                if types and msg_type not in types:
                    continue
                attributes = None
                if flag:
                    try:
                        data, attributes = unpacked_payload(data, flag)
                    except BadPayload:
                        continue
                yield Message(topic, partition, offset, data, msg_type, attributes, msg_time, append_ms)
