"""What a producer makes of what it is given: the record of a message, and the partition it goes to. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from waltz_ray.client.keys import Key, partition_for
from waltz_ray.errors import InvalidInput
from waltz_ray.topics.client.arguments import checked_messages, checked_partition, checked_text
from waltz_ray.topics.payload import check_sum, packed_payload
from waltz_ray.topics.records import TopicMessage, encode_messages, encode_topic_record, header_of_type

__all__ = ["MessageKey", "OutgoingMessage", "SentMessage", "Spread", "record_of", "records_of"]

MessageKey = Key
"""What has the same key goes to the same partition."""


class SentMessage(NamedTuple):
    """Where a message is: committed, for good. ``offset`` is its ID."""

    topic: str
    partition: int
    offset: int


class OutgoingMessage(NamedTuple):
    """The data and the header of its transaction. ``size_bytes``: how long it is for whoever limits that, attributes
    and all, as for slots."""

    record: bytes
    header: int
    size_bytes: int


def record_of(
    data: bytes, msg_type: str, attributes: str | None, msg_time: str, sent_addr: int, now_ms: int
) -> OutgoingMessage:
    """InvalidInput for what cannot be sent."""
    for what, text in (("a message type", msg_type), ("a message's time", msg_time)):
        checked_text(what, text)
    if attributes is not None:
        checked_text("attributes", attributes)
    payload, flag = packed_payload(_checked(data), attributes)
    message = TopicMessage(payload, flag, check_sum(payload), sent_addr, now_ms, msg_type, msg_time)
    return OutgoingMessage(encode_topic_record(message), header_of_type(msg_type), len(payload))


def records_of(datas: Sequence[bytes], msg_type: str, sent_addr: int, now_ms: int) -> tuple[list[bytes], int]:
    """The same of many, without attributes: the data of each, and the header of all. InvalidInput."""
    checked_text("a message type", msg_type)
    for data in checked_messages(datas):
        _checked(data)
    return encode_messages(datas, msg_type, sent_addr, now_ms), header_of_type(msg_type)


def _checked(data: bytes) -> bytes:
    if not isinstance(data, bytes):
        raise InvalidInput(f"a message's data is bytes, not {type(data).__name__}")
    if not data:
        raise InvalidInput("a message without data cannot be sent")
    return data


class Spread:
    """Which of ``count`` partitions of a topic is next."""

    def __init__(self, topic: str, count: int) -> None:
        self.hindered: Collection[int] = ()
        """Those that take nothing just now: messages without a key go elsewhere, if there is one that does."""
        self._topic = topic
        self._count = count
        self._turn = -1

    def choose(self, key: MessageKey | None, partition: int | None) -> int:
        """The one asked for, or that of the key, or each in turn. InvalidInput."""
        if partition is not None:
            return checked_partition(self._topic, partition, self._count)
        if key is not None:
            return partition_for(key, self._count)
        turns = [(self._turn + 1 + n) % self._count for n in range(self._count)]
        self._turn = next((each for each in turns if each not in self.hindered), turns[0])
        return self._turn
