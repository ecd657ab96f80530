"""Texts inside of messages: where brokers, topics and partitions are, who has which, who a client is. Pure.

| text | what |
|---|---|
| ``id:host:port`` | a broker; without a port it is the default |
| ``topic#id:partitions:stores,...#bytes`` | where a topic is; the longest message may be left out |
| ``id:host:port#topic:partition`` | a partition |
| ``consumer@group#id:host:port#topic:partition`` | who has it |
| ``code:id:host:port#topic:partition`` | why somebody has it not |
| ``topic#type,type`` | the message types wanted of a topic |
| ``id:topic:partition=offset,...`` | where a group begins |

What cannot be read is BadPayload, and the error says which part of which text; what cannot be written, InvalidInput.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from waltz_ray.errors import BadPayload, InvalidInput
from waltz_ray.protocol.value import value

__all__ = [
    "DEFAULT_BROKER_PORT",
    "MAX_CLIENT_ID",
    "MAX_CONDITIONS",
    "MAX_FILTERS",
    "MAX_FILTER_LENGTH",
    "MAX_PLACES",
    "MAX_REQUIRED",
    "BrokerAddress",
    "BrokerStores",
    "PartitionFailure",
    "PartitionPlace",
    "SubscribedPartition",
    "TopicPlacement",
    "checked_client_id",
    "checked_group",
    "condition_text",
    "consumer_id",
    "parse_broker",
    "parse_condition",
    "parse_conditions",
    "parse_failure",
    "parse_place",
    "parse_required_partitions",
    "parse_subscription",
    "parse_topic",
    "producer_id",
    "required_partitions_text",
]

DEFAULT_BROKER_PORT = 8123
"""Of a broker without TLS."""
MAX_CLIENT_ID = 1024
"""Characters."""
MAX_FILTERS = 500
"""Message types of one topic that a group may want."""
MAX_FILTER_LENGTH = 256
"""Characters of one of them."""
MAX_CONDITIONS = 256
"""Topics of one client."""
MAX_PLACES = 1024
"""Partitions that a consumer has at one slot, which has one of each topic."""
MAX_REQUIRED = 16_384
"""Partitions of which one request to a master may speak."""

# Texts come from strangers: what is more than that is counted, which is quick, and not read.
_PIECES = 4 * MAX_FILTERS  # blanks and what comes twice among them

_CLIENT_ID = re.compile(r"[_A-Za-z0-9.-]+")
_MEANT = re.compile(r"[#:,@=\s]")  # what is not in a name: it parts names from one another
_NUMBER = re.compile(r"[0-9]{1,19}")
_INT32, _INT64 = 1 << 31, 1 << 63


@value()
class BrokerAddress:
    """A broker, and where it is."""

    broker_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{_id(self.broker_id)}:{_name(self.host, 'the host')}:{_id(self.port)}"


@value()
class BrokerStores:
    """What one broker has of a topic. Partition i of store s is the partition s * 10000 + i of the protocol."""

    broker_id: int
    partitions: int
    stores: int


@value()
class TopicPlacement:
    """Where a topic is. ``most_bytes``: of one message, None = not said."""

    topic: str
    brokers: tuple[BrokerStores, ...]
    most_bytes: int | None = None

    def __str__(self) -> str:
        brokers = [f"{_id(each.broker_id)}:{_id(each.partitions)}:{_id(each.stores)}" for each in self.brokers]
        text = f"{_name(self.topic, 'the topic')}#{','.join(brokers)}"
        return text if self.most_bytes is None else f"{text}#{_id(self.most_bytes)}"


@value()
class PartitionPlace:
    """A partition, and where it is."""

    broker: BrokerAddress
    topic: str
    partition_id: int

    def __str__(self) -> str:
        return f"{self.broker}#{_name(self.topic, 'the topic')}:{_id(self.partition_id)}"


@value()
class SubscribedPartition:
    """Who has a partition."""

    consumer_id: str
    group: str
    place: PartitionPlace

    def __str__(self) -> str:
        return f"{_name(self.consumer_id, 'the consumer')}@{_name(self.group, 'the group')}#{self.place}"


@value()
class PartitionFailure:
    """Why a consumer has a partition not: ``codes.TopicCode``, or another number."""

    code: int
    place: PartitionPlace

    def __str__(self) -> str:
        return f"{_id(self.code)}:{self.place}"


def parse_broker(text: str, default_port: int = DEFAULT_BROKER_PORT) -> BrokerAddress:
    """Of ``brokerInfos``. More parts than three are of later versions, and not looked at."""
    parts = text.strip().split(":", 3)
    if len(parts) < 2:
        raise BadPayload(f"broker {_shown(text)}: it is to be id:host:port")
    port = parts[2].strip() if len(parts) > 2 else ""
    return BrokerAddress(
        _number(parts[0], "the broker's ID", text),
        _part(parts[1], "the host", text),
        _number(port, "the port", text, end=65_536) if port else default_port,
    )


def parse_topic(text: str) -> TopicPlacement:
    """Of ``topicInfos``."""
    parts = text.strip().split("#", 2)
    if len(parts) < 2:
        raise BadPayload(f"topic {_shown(text)}: it is to be topic#id:partitions:stores,...")
    brokers = []
    for each in parts[1].split(",") if parts[1] else ():
        numbers = each.split(":")
        if len(numbers) != 3:
            raise BadPayload(f"{_shown(each)} of topic {_shown(text)}: it is to be id:partitions:stores")
        broker_id = _number(numbers[0], "the broker's ID", text)
        partitions = _number(numbers[1], "the number of partitions", text)
        brokers.append(BrokerStores(broker_id, partitions, _number(numbers[2], "the number of stores", text)))
    most = parts[2].strip() if len(parts) > 2 else ""
    most_bytes = _number(most, "the longest message", text) if most else None
    return TopicPlacement(_part(parts[0], "the topic", text), tuple(brokers), most_bytes)


def parse_place(text: str) -> PartitionPlace:
    """Of ``partitionInfo``."""
    return _place(text, text)


def _place(part: str, text: str) -> PartitionPlace:
    broker, apart, partition = part.partition("#")
    topic, colon, number = partition.partition(":")
    if not apart or not colon:
        raise BadPayload(f"partition {_shown(text)}: it is to end in id:host:port#topic:partition")
    return PartitionPlace(parse_broker(broker), _part(topic, "the topic", text), _number(number, "the partition", text))


def parse_subscription(text: str) -> SubscribedPartition:
    """Of ``subscribeInfo``."""
    consumer, apart, place = text.partition("#")
    consumer_id, at, group = consumer.partition("@")
    if not apart or not at:
        raise BadPayload(f"subscription {_shown(text)}: it is to be consumer@group#id:host:port#topic:partition")
    return SubscribedPartition(
        _part(consumer_id, "the consumer", text), _part(group, "the group", text), _place(place, text)
    )


def parse_failure(text: str) -> PartitionFailure:
    """Of ``failureInfo``."""
    code, colon, place = text.partition(":")
    if not colon:
        raise BadPayload(f"failure {_shown(text)}: it is to be code:id:host:port#topic:partition")
    return PartitionFailure(_number(code, "the code", text), _place(place, text))


def parse_condition(text: str) -> tuple[str, tuple[str, ...]]:
    """Of ``topicCondition``: a topic, and the message types wanted of it, sorted; none = all. Blanks are left out."""
    topic, _, types = text.partition("#")
    if types.count(",") >= _PIECES:
        raise BadPayload(f"condition {_shown(text)}: {types.count(',') + 1} message types, {MAX_FILTERS} are the most")
    found = sorted({each.strip() for each in types.split(",") if each.strip()})
    if len(found) > MAX_FILTERS:
        raise BadPayload(f"condition {_shown(text)}: {len(found)} message types, {MAX_FILTERS} are the most")
    for each in found:
        if len(each) > MAX_FILTER_LENGTH:
            raise BadPayload(f"condition {_shown(text)}: a message type of {len(each)} characters")
    return _part(topic, "the topic", text), tuple(found)


def parse_conditions(given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Of all ``topicCondition`` of a request: topic -> message types."""
    if len(given) > MAX_CONDITIONS:
        raise BadPayload(f"{len(given)} conditions, {MAX_CONDITIONS} are the most")
    return dict(map(parse_condition, given))


def parse_required_partitions(text: str) -> dict[tuple[int, str, int], int]:
    """Of ``requiredPartition``: where each (broker ID, topic, partition) begins. Empty: none is said."""
    if text.count(",") >= MAX_REQUIRED:
        raise BadPayload(f"{text.count(',') + 1} required partitions, {MAX_REQUIRED} are the most")
    found: dict[tuple[int, str, int], int] = {}
    for each in text.split(",") if text.strip() else ():
        key, equals, offset = each.partition("=")
        parts = key.split(":")
        if not equals or len(parts) != 3:
            raise BadPayload(f"required partition {_shown(each)}: it is to be id:topic:partition=offset")
        partition = (
            _number(parts[0], "the broker's ID", each),
            _part(parts[1], "the topic", each),
            _number(parts[2], "the partition", each),
        )
        if partition in found:
            raise BadPayload(f"required partition {_shown(each)}: it comes twice")
        found[partition] = _number(offset, "the offset", each, end=_INT64)
    return found


def checked_client_id(text: str) -> str:
    """The ID itself; nothing is read from it. BadPayload if it cannot be one."""
    if problem := _no_client_id(text):
        raise BadPayload(problem)
    return text


def checked_group(text: str) -> str:
    """A group's name itself, blanks around it and all: later requests have it as it is. BadPayload if it cannot be
    one."""
    if len(text) > MAX_CLIENT_ID:
        raise BadPayload(f"a group's name of {len(text)} characters, {MAX_CLIENT_ID} are the most")
    if not text or _MEANT.search(text) or not text.isprintable():  # it is in logs and tables, on people's terminals
        raise BadPayload(f"the group is {_shown(text)}: it is to be a printable name without # : , @ = or blanks")
    return text


def _no_client_id(text: str) -> str:
    if len(text) > MAX_CLIENT_ID:
        return f"a client ID of {len(text)} characters, {MAX_CLIENT_ID} are the most"
    return "" if _CLIENT_ID.fullmatch(text) else f"client ID {_shown(text)}: it has letters, digits and _ . - alone"


def _number(part: str, what: str, text: str, end: int = _INT32) -> int:
    part = part.strip()
    if not _NUMBER.fullmatch(part) or int(part) >= end:
        raise BadPayload(f"{what} in {_shown(text)} is {_shown(part)}: it is to be a number from 0 to {end - 1}")
    return int(part)


def _part(part: str, what: str, text: str) -> str:
    part = part.strip()
    if not part or _MEANT.search(part):
        raise BadPayload(f"{what} in {_shown(text)} is {_shown(part)}: it is to be a name without # : , @ = or blanks")
    return part


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:80] + "...")


def condition_text(topic: str, types: Iterable[str]) -> str:
    """For ``topicCondition``."""
    wanted = sorted(set(types))
    return f"{_name(topic, 'the topic')}#{','.join([_name(each, 'the message type') for each in wanted])}"


def required_partitions_text(offsets: Mapping[tuple[int, str, int], int]) -> str:
    """For ``requiredPartition``, by (broker ID, topic, partition)."""
    parts = []
    for (broker_id, topic, partition_id), offset in offsets.items():
        parts.append(f"{_id(broker_id)}:{_name(topic, 'the topic')}:{_id(partition_id)}={_id(offset)}")
    return ",".join(parts)


def consumer_id(group: str, host: str, process_id: int, started_ms: int, count: int, mode: str, version: str) -> str:
    """As Java consumers make it: ``mode`` is Pull or Push, ``count`` tells apart what one process starts.
    InvalidInput."""
    if len(group) <= MAX_CLIENT_ID and not _CLIENT_ID.fullmatch(group):
        raise InvalidInput(
            f"a group of these clients has letters, digits and _ . - alone in its name, not {_shown(group)}"
        )
    return _made(f"{group}_{host}-{process_id}-{started_ms}-{count}-{mode}-{version}")


def producer_id(host: str, process_id: int, started_ms: int, count: int, version: str) -> str:
    """As Java producers make it."""
    return _made(f"{host}-{process_id}-{started_ms}-{count}-{version}")


def _made(client_id: str) -> str:
    if problem := _no_client_id(client_id):
        raise InvalidInput(problem)
    return client_id


def _name(text: str, what: str) -> str:
    if not text or _MEANT.search(text):
        raise InvalidInput(f"{what} {_shown(text)} cannot be written: it is to be a name without # : , @ = or blanks")
    return text


def _id(number: int) -> int:
    if number < 0:
        raise InvalidInput(f"{number} cannot be written, it is below 0")
    return number
