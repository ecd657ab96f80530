"""Who has which partition of one group: the book of grants.

A partition is *granted* to one member until it is freed. A member is *leaving* it from when it has to let go until it
has said that it did, or is gone; so is a member that has it without a grant. Nothing is granted that anybody has, or is
leaving.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from waltz_ray.topics.groups import rules
from waltz_ray.topics.groups.effects import (
    Freeing,
    MasterEffect,
    PartitionFreed,
    PartitionGranted,
    RebalanceOrder,
)
from waltz_ray.topics.groups.events import RebalanceOp
from waltz_ray.topics.groups.table import SlotPlace, TopicPartition

__all__ = ["Grant", "GroupMember", "Holdings", "RebalanceIds"]


class RebalanceIds:
    """The IDs of one leader: of orders and of grants, in one row."""

    def __init__(self, epoch: int) -> None:
        self.last = rules.first_id(epoch)

    def take(self) -> int:
        self.last += 1
        return self.last


@dataclass
class Grant:
    """``client_id`` has a partition since ``grant_id``."""

    client_id: str
    grant_id: int


@dataclass
class GroupMember:
    """One consumer, as the master knows it."""

    client_id: str
    host: str
    seen_ms: int
    proven: bool = True
    """False: it was sent away because it did nothing, and has not yet answered its first order, which is empty."""
    owned: set[TopicPartition] = field(default_factory=set)
    """Granted to it, and not to be left."""
    connected: set[TopicPartition] = field(default_factory=set)
    """Of those, what it says that it has."""
    leaving: set[TopicPartition] = field(default_factory=set)
    foreign: set[TopicPartition] = field(default_factory=set)
    """What it has, by its last list, of which the group knows nothing."""
    places: dict[TopicPartition, SlotPlace] = field(default_factory=dict)
    """At which address it knows a partition: of all that it was told to connect, or has said that it has."""
    moved: set[TopicPartition] = field(default_factory=set)
    """Of what is connected: at an old address."""
    deferred: set[TopicPartition] = field(default_factory=set)
    """With what its last order ended badly; tried again after the next balance."""
    order: RebalanceOrder | None = None
    order_beats: int = 0
    """How often it has beaten since the order was made, or it has registered."""
    busy: bool = False
    """With this heartbeat it has said something of an order that is not the last, or not done yet."""
    told_ms: int | None = None
    """When it was told to do something, and has done nothing since."""
    asked: RebalanceOp | None = None
    """REPORT or STOPREBALANCE, to be sent once."""


class Holdings:
    """The book of one group. Members are the caller's; effects go to ``out``."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.granted: dict[TopicPartition, Grant] = {}
        self.leaving: dict[TopicPartition, set[str]] = {}

    def grantable(self, partition: TopicPartition) -> bool:
        """Whether it may be given to somebody."""
        grant = self.granted.get(partition)
        return rules.may_be_granted(None if grant is None else grant.client_id, self.leaving.get(partition, ()))

    def grant(
        self, member: GroupMember, partition: TopicPartition, ids: RebalanceIds, out: list[MasterEffect], reported: bool
    ) -> None:
        """Give it to a member, or note that it has it (``reported``)."""
        grant = self.granted[partition] = Grant(member.client_id, ids.take())
        member.owned.add(partition)
        out.append(PartitionGranted(self.group, partition, member.client_id, grant.grant_id, reported))

    def let_go(self, member: GroupMember, partition: TopicPartition, out: list[MasterEffect]) -> None:
        """A member is not to have it any more. Of what it was never told it need not be asked."""
        member.owned.discard(partition)
        member.connected.discard(partition)
        member.moved.discard(partition)
        if partition in member.places:
            self.stray(member, partition)
        else:
            self._free(member, partition, Freeing.WITHDRAWN, out)

    def stray(self, member: GroupMember, partition: TopicPartition) -> None:
        """A member has it, and is to leave it."""
        member.leaving.add(partition)
        self.leaving.setdefault(partition, set()).add(member.client_id)

    def left(self, member: GroupMember, partition: TopicPartition, how: Freeing, out: list[MasterEffect]) -> None:
        """A member has it no more."""
        member.leaving.discard(partition)
        member.owned.discard(partition)
        member.connected.discard(partition)
        member.places.pop(partition, None)
        others = self.leaving.get(partition, set())
        others.discard(member.client_id)
        if not others:
            self.leaving.pop(partition, None)
        self._free(member, partition, how, out)

    def gone(self, member: GroupMember, how: Freeing, out: list[MasterEffect]) -> None:
        """A member is gone, with all it had."""
        for partition in sorted(member.owned | member.leaving):
            self.left(member, partition, how, out)

    def share_out(
        self,
        members: Iterable[GroupMember],
        partitions: Iterable[TopicPartition],
        ids: RebalanceIds,
        out: list[MasterEffect],
    ) -> None:
        """Grant what is free to the ``members`` that have less than their share; the first of those with fewest."""
        partitions, by_id = list(partitions), {member.client_id: member for member in members}
        targets = rules.shares({client: len(member.owned) for client, member in by_id.items()}, len(partitions))
        poor = [(len(by_id[client].owned), client) for client in targets if len(by_id[client].owned) < targets[client]]
        heapify(poor)
        for partition in partitions:
            if poor and self.grantable(partition):
                count, client = poor[0]
                self.grant(by_id[client], partition, ids, out, reported=False)
                if count + 1 < targets[client]:
                    heapreplace(poor, (count + 1, client))
                else:
                    heappop(poor)

    def _free(self, member: GroupMember, partition: TopicPartition, how: Freeing, out: list[MasterEffect]) -> None:
        grant = self.granted.get(partition)
        if grant is not None and grant.client_id == member.client_id:
            del self.granted[partition]
            out.append(PartitionFreed(self.group, partition, member.client_id, how))
