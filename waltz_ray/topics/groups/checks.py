"""Whether what a client says can be: names, counts, offsets. Each answers with what is wrong, or None."""

from __future__ import annotations

import re
from collections.abc import Iterable

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.spaces import MOST_TOPIC_PARTITIONS
from waltz_ray.topics.groups.events import BoundTerms, GroupTerms
from waltz_ray.topics.groups.limits import GroupLimits
from waltz_ray.topics.groups.table import TopicTable
from waltz_ray.topics.offset_item import offset_name

__all__ = ["client_id_wrong", "names_wrong", "offsets_wrong", "places_wrong", "terms_wrong"]

_CLIENT_ID = re.compile(r"[-_A-Za-z0-9.]+", re.ASCII)


def client_id_wrong(client_id: str, limits: GroupLimits) -> str | None:
    """An ID is opaque, but its characters and its length are fixed."""
    if len(client_id) > limits.name_chars or not _CLIENT_ID.fullmatch(client_id):
        return f"client ID {client_id!r:.100}: take 1 to {limits.name_chars} of the characters A-Z a-z 0-9 _ - ."
    return None


def names_wrong(what: str, names: Iterable[str], most: int, limits: GroupLimits) -> str | None:
    """Topics, message types, a group: not empty, not too long, not too many."""
    names = list(names)
    if len(names) > most:
        return f"{len(names)} {what}: there may be {most} at the most"
    for name in names:
        if not name.strip() or len(name) > limits.name_chars:
            return f"{what} {name!r:.100}: take 1 to {limits.name_chars} characters, not only blanks"
    return None


def terms_wrong(terms: GroupTerms, limits: GroupLimits) -> str | None:
    """Of one consumer, before it is compared with its group."""
    if not terms.topics:
        return "no topic: name at least one"
    wrong = names_wrong("topics", terms.topics, limits.topics, limits)
    foreign = sorted(terms.filters.keys() - terms.topics)
    if wrong is None and foreign:
        wrong = f"a filter for topic {foreign[0]:.100}, which is not among the topics: leave it out, or add the topic"
    for topic, types in terms.filters.items() if wrong is None else ():
        wrong = wrong or names_wrong(f"message types of topic {topic:.100}", types, limits.filters, limits)
    return wrong or (None if terms.bound is None else _bound_wrong(terms.bound, terms, limits))


def places_wrong(group: str, topics: Iterable[str]) -> str | None:
    """Whether it could not be kept where the group is in them: its slots would refuse it again and again."""
    for topic in sorted(topics):
        try:
            offset_name(group, topic, MOST_TOPIC_PARTITIONS - 1)
        except InvalidInput as error:
            return f"{error}: take a shorter name for the group"
    return None


def _bound_wrong(bound: BoundTerms, terms: GroupTerms, limits: GroupLimits) -> str | None:
    wrong = names_wrong("session key", [bound.session_key], 1, limits)
    if wrong is not None:
        return wrong
    if not 1 <= bound.source_count <= limits.members_of_group:
        return f"source count {bound.source_count}: take 1 to {limits.members_of_group}, the members of the session"
    if len(bound.offsets) > limits.reported:
        return f"{len(bound.offsets)} offsets: there may be {limits.reported} at the most"
    for partition, offset in bound.offsets.items():
        if partition.topic not in terms.topics:
            return f"an offset of partition {partition!s:.100}, whose topic is not among the topics: leave it out"
        if offset < 0:
            return f"offset {offset} of partition {partition!s:.100}: take 0 or more"
    return None


def offsets_wrong(terms: GroupTerms, table: TopicTable) -> str | None:
    """Of a bound group: that it begins in a partition which its topic, if that is known, has not."""
    for partition in () if terms.bound is None else terms.bound.offsets:
        if partition.topic in table.topics and not table.has(partition):
            count = table.topics[partition.topic].partitions
            return f"an offset of partition {partition!s:.100}: the topic has {count}, of brokers 1 to {count}, each 0"
    return None
