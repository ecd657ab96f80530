"""What the master of topics shows of groups and producers (`waltz topic groups`)."""

from __future__ import annotations

from dataclasses import dataclass

from waltz_ray.topics.groups.events import OrderStatus, RebalanceOp
from waltz_ray.topics.groups.group import ConsumerGroup
from waltz_ray.topics.groups.holdings import GroupMember
from waltz_ray.topics.groups.table import TopicPartition, TopicTable

__all__ = ["GroupMemberStatus", "GroupPartitionStatus", "GroupStatus", "OrderInWork", "ProducerStatus", "status_of"]


@dataclass(frozen=True)
class OrderInWork:
    """What a consumer was told and has not answered yet. ``age_ms``: since it was told for the first time."""

    rebalance_id: int
    op: RebalanceOp
    status: OrderStatus
    partitions: tuple[TopicPartition, ...]
    age_ms: int


@dataclass(frozen=True)
class GroupMemberStatus:
    """``silent_ms``: since it was last heard of. ``leaving``: what it still has and is to give back."""

    client_id: str
    host: str
    silent_ms: int
    owned: tuple[TopicPartition, ...]
    connected: tuple[TopicPartition, ...]
    leaving: tuple[TopicPartition, ...]
    order: OrderInWork | None
    proven: bool


@dataclass(frozen=True)
class GroupPartitionStatus:
    """``owner``: None, nobody has it. ``connected``: he says so. ``leaving``: who may still have it."""

    partition: TopicPartition
    owner: str | None
    grant_id: int | None
    connected: bool
    leaving: tuple[str, ...]


@dataclass(frozen=True)
class GroupStatus:
    """One group. ``session_key``, ``source_count``: None, unless it is bound."""

    name: str
    topics: tuple[str, ...]
    started: bool
    not_allocated: bool
    held: bool
    session_key: str | None
    source_count: int | None
    members: tuple[GroupMemberStatus, ...]
    partitions: tuple[GroupPartitionStatus, ...]


@dataclass(frozen=True)
class ProducerStatus:
    """``silent_ms``: since it was last heard of."""

    client_id: str
    host: str
    topics: tuple[str, ...]
    silent_ms: int


def status_of(group: ConsumerGroup, table: TopicTable, now_ms: int) -> GroupStatus:
    """A group as it is."""
    bound = group.terms.bound
    partitions = sorted({*table.partitions(group.terms.topics), *group.holdings.granted})
    return GroupStatus(
        group.name,
        tuple(sorted(group.terms.topics)),
        group.started,
        group.not_allocated,
        group.held,
        None if bound is None else bound.session_key,
        None if bound is None else bound.source_count,
        tuple(_member(member, now_ms) for _, member in sorted(group.members.items())),
        tuple(_partition(group, partition) for partition in partitions),
    )


def _member(member: GroupMember, now_ms: int) -> GroupMemberStatus:
    order = None
    if member.order is not None:
        named = tuple(partition for partition, _ in member.order.partitions)
        told_ms = now_ms if member.told_ms is None else member.told_ms
        order = OrderInWork(member.order.rebalance_id, member.order.op, member.order.status, named, now_ms - told_ms)
    return GroupMemberStatus(
        member.client_id,
        member.host,
        now_ms - member.seen_ms,
        tuple(sorted(member.owned)),
        tuple(sorted(member.connected)),
        tuple(sorted(member.leaving)),
        order,
        member.proven,
    )


def _partition(group: ConsumerGroup, partition: TopicPartition) -> GroupPartitionStatus:
    grant = group.holdings.granted.get(partition)
    connected = grant is not None and partition in group.members[grant.client_id].connected
    leaving = tuple(sorted(group.holdings.leaving.get(partition, ())))
    owner, grant_id = (None, None) if grant is None else (grant.client_id, grant.grant_id)
    return GroupPartitionStatus(partition, owner, grant_id, connected, leaving)
