"""What holds of every group between two events."""

from __future__ import annotations

from collections.abc import Iterable

from waltz_ray.topics.groups.group import ConsumerGroup

__all__ = ["groups_broken"]


def groups_broken(groups: Iterable[ConsumerGroup]) -> str | None:
    """Which invariant does not hold; None: all do."""
    for group in groups:
        if not group.members:
            return f"group {group.name} has no members"
        granted = group.holdings.granted
        for partition, grant in granted.items():
            holder = group.members.get(grant.client_id)
            if holder is None or (partition in holder.owned) == (partition in holder.leaving):
                return f"group {group.name}: {partition} is granted to {grant.client_id}, who does not know"
        for member in group.members.values():
            loose = [p for p in member.owned if p not in granted or granted[p].client_id != member.client_id]
            if loose or not member.connected <= member.owned or not member.moved <= member.connected:
                return f"group {group.name}: {member} does not fit its grants"
            if not member.leaving | member.foreign <= member.places.keys():
                return f"group {group.name}: nobody knows where {member.client_id} is to leave what it has"
            if any(member.client_id not in group.holdings.leaving.get(p, ()) for p in member.leaving):
                return f"group {group.name}: the book does not know what {member.client_id} is leaving"
    return None
