"""What an application gives to a producer or a consumer, checked before anything is done with it. Pure.

Everything here raises InvalidInput, which quotes at most 60 characters of what it was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from waltz_ray.client.application import checked_int
from waltz_ray.client.times import in_milliseconds
from waltz_ray.errors import InvalidInput

__all__ = [
    "SeekTo",
    "TopicNames",
    "checked_messages",
    "checked_most",
    "checked_offset",
    "checked_partition",
    "checked_seek",
    "checked_text",
    "checked_topics",
]

SeekTo = int | datetime | Literal["earliest", "latest"]
"""An offset, the first message appended at a time or later, or an end of the log."""

TopicNames = str | Iterable[str] | Mapping[str, Iterable[str]]
"""One topic, several, or the message types wanted of each."""


def checked_text(what: str, value: object) -> str:
    """``value`` if it is a text."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is a text, not {type(value).__name__}: {value!r:.60}")
    return value


def checked_messages(datas: object) -> Sequence[Any]:
    """``datas`` if it is a list of messages, whatever they are."""
    if isinstance(datas, str | bytes | bytearray) or not isinstance(datas, Sequence):
        raise InvalidInput(f"many messages are given as a list of them, not {type(datas).__name__}: {datas!r:.60}")
    return datas


def checked_partition(topic: str, partition: int, count: int) -> int:
    """``partition`` if ``topic``, which has ``count`` of them, has that one."""
    partition = checked_int("a partition", partition)
    if not 0 <= partition < count:
        raise InvalidInput(f"topic {topic} has partitions 0 to {count - 1}, not {partition}")
    return partition


def checked_most(most: int) -> None:
    """It is a number of messages that can be asked for."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InvalidInput(f"most is a number of messages, at least 1, not {most!r:.60}")


def checked_offset(offset: int) -> int:
    """``offset`` if a message can have it."""
    offset = checked_int("an offset", offset)
    if offset < 0:
        raise InvalidInput(f"an offset is at least 0, not {offset}")
    return offset


def checked_seek(to: SeekTo) -> SeekTo:
    """``to`` if somebody can go there."""
    if isinstance(to, str):
        if to not in ("earliest", "latest"):
            raise InvalidInput(f'a consumer seeks "earliest", "latest", an offset or a datetime, not {to!r:.60}')
    elif isinstance(to, datetime):
        in_milliseconds("to", to)
    else:
        return checked_offset(to)
    return to


def checked_topics(topics: TopicNames) -> dict[str, frozenset[str]]:
    """By topic the message types wanted of it; none: all."""
    if isinstance(topics, str):
        topics = [topics]
    if not isinstance(topics, Iterable):
        raise InvalidInput(f"topics are a name, several, or a dict with types, not {type(topics).__name__}")
    if not isinstance(topics, Mapping):
        topics = {checked_text("a topic's name", topic): () for topic in topics}
    return {checked_text("a topic's name", topic): _types(types) for topic, types in topics.items()}


def _types(types: Iterable[str]) -> frozenset[str]:
    if isinstance(types, str) or not isinstance(types, Iterable):
        raise InvalidInput(f"message types are a list of texts, not {type(types).__name__}: {types!r:.60}")
    return frozenset(checked_text("a message type", each) for each in types)
