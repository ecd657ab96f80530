"""Whether there is room for one more consumer."""

from __future__ import annotations

from collections.abc import Mapping

from waltz_ray.topics.groups.effects import GroupRefusal
from waltz_ray.topics.groups.events import ConsumerRegisters
from waltz_ray.topics.groups.group import ConsumerGroup
from waltz_ray.topics.groups.limits import GroupLimits, GroupTimes

__all__ = ["no_room"]


def no_room(
    event: ConsumerRegisters, groups: Mapping[str, ConsumerGroup], limits: GroupLimits, times: GroupTimes
) -> tuple[GroupRefusal, str] | None:
    """Why there is none for a newcomer, and what to do; None: there is, or it is no newcomer."""
    group = groups.get(event.group)
    if group is None:
        if len(groups) >= limits.groups:
            text = f"there are {limits.groups} groups, which is the limit: close the consumers of one"
            return GroupRefusal.TOO_MANY, text
    elif event.client_id in group.members:
        return None
    elif group.terms.bound is not None and len(group.members) >= group.terms.bound.source_count:
        text = f"group {event.group} is bound to {group.terms.bound.source_count} consumers, and all are there: "
        return GroupRefusal.GROUP_FULL, f"{text}close one, or wait until one was silent for {times.client_ms} ms"
    elif len(group.members) >= limits.members_of_group:
        text = f"group {event.group} has {limits.members_of_group} consumers, which is the limit: close one"
        return GroupRefusal.TOO_MANY, text
    if sum(len(each.members) for each in groups.values()) >= limits.members:
        return GroupRefusal.TOO_MANY, f"there are {limits.members} consumers, which is the limit: close some"
    return None
