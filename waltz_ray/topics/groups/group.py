"""One consumer group: its members, what each was told and has done, its balance. Part of ``TopicMaster``.

One order is under way with a member at a time. It is sent again until the member says how it ended (``rules.is_sent``);
a client may do it twice, which changes nothing. What a member has to leave comes before what it is to connect.

A list of what a member has is believed, with two exceptions. What it does not have is not free for that: a list may be
late, and a CONNECT on its way; only the word on a DISCONNECT frees. And of two that report the same partition the first
keeps it (lists have no number by which one would be newer; so what is consumed goes on); the other leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping

from waltz_ray.topics.groups import rules
from waltz_ray.topics.groups.effects import Freeing, MasterEffect, RebalanceOrder, StoreOffsets
from waltz_ray.topics.groups.events import GroupTerms, OrderReport, OrderStatus, RebalanceOp
from waltz_ray.topics.groups.holdings import GroupMember, Holdings, RebalanceIds
from waltz_ray.topics.groups.table import SlotPlace, TopicPartition, TopicTable

__all__ = ["ConsumerGroup"]

UNPROVEN = 1_024


class ConsumerGroup:
    """``name``, which begins with the ``terms`` of its first member at ``now_ms``."""

    def __init__(self, name: str, terms: GroupTerms, ids: RebalanceIds, now_ms: int) -> None:
        self.name, self.terms = name, terms
        self.members: dict[str, GroupMember] = {}
        self.holdings = Holdings(name)
        self.not_allocated = True
        """Whether none of its members has had a partition yet."""
        self.started = terms.bound is None
        """A bound group starts when all its members are there, and their offsets are stored."""
        self.held = False
        self.unproven: dict[str, None] = {}
        """Who was sent away for having done nothing, the last ``UNPROVEN`` of them."""
        self.incomplete_since_ms: int | None = None if terms.bound is None else now_ms
        self._ids = ids
        self._storing = False
        self._offsets: dict[str, Mapping[TopicPartition, int]] = {}

    # ---- members

    def joins(self, client_id: str, host: str, terms: GroupTerms, now_ms: int) -> GroupMember:
        """A consumer that has agreed to the group's terms; it may be known, and keeps what it has."""
        member = self.members.get(client_id)
        if member is None:
            member = self.members[client_id] = GroupMember(client_id, host, now_ms, client_id not in self.unproven)
        member.seen_ms, member.host, member.order_beats = now_ms, host, 0
        if terms.bound is not None:
            self._offsets[client_id] = terms.bound.offsets
            if len(self.members) == terms.bound.source_count:
                self.incomplete_since_ms = None
        return member

    def leaves(self, client_id: str, how: Freeing, now_ms: int, out: list[MasterEffect]) -> None:
        """A member is gone, or is taken for gone."""
        member = self.members.pop(client_id)
        self.holdings.gone(member, how, out)
        self._offsets.pop(client_id, None)
        self.unproven.pop(client_id, None)
        if how is Freeing.OVERDUE:
            self.unproven[client_id] = None
            if len(self.unproven) > UNPROVEN:
                del self.unproven[next(iter(self.unproven))]
        if self.terms.bound is not None and self.incomplete_since_ms is None:
            self.incomplete_since_ms = now_ms

    def was_allocated(self) -> None:
        """A member says that the group has partitions: so it does not start anew."""
        self.not_allocated, self.started = False, True

    # ---- what members say

    def takes_list(
        self,
        member: GroupMember,
        reported: Mapping[TopicPartition, SlotPlace],
        table: TopicTable,
        out: list[MasterEffect],
    ) -> None:
        """All that a member has, by its own word."""
        if reported:
            self.was_allocated()
        topics = self.terms.topics
        member.foreign = {
            partition for partition in reported if partition.topic not in topics or not table.has(partition)
        }
        for partition, place in sorted(reported.items()):
            member.places[partition] = place
            if partition in member.foreign or partition in member.leaving:
                continue
            if partition not in member.owned and self.holdings.grantable(partition):
                self.holdings.grant(member, partition, self._ids, out, reported=True)
            if partition in member.owned:
                member.connected.add(partition)
            else:
                self.holdings.stray(member, partition)
        member.connected &= reported.keys()
        member.moved &= member.connected
        order = member.order
        if order is not None and rules.is_fulfilled(order, reported):
            member.order = member.told_ms = None  # the word on it was lost

    def takes_word(
        self,
        member: GroupMember,
        word: OrderReport,
        reported: Mapping[TopicPartition, SlotPlace] | None,
        out: list[MasterEffect],
    ) -> None:
        """How an order ended. ``reported``: all that the member has, said with it."""
        order = member.order
        if order is None or not rules.is_word_on(order.rebalance_id, word):
            member.busy = True
            return
        member.order = None
        if word.status is OrderStatus.DONE:
            member.told_ms = None
            self.unproven.pop(member.client_id, None)
            member.proven = True
        named = [partition for partition, _ in order.partitions]
        if order.op is RebalanceOp.DISCONNECT:
            left = rules.left_by(named, word, reported)
            member.foreign -= left
            for partition in left - member.owned:
                self.holdings.left(member, partition, Freeing.REPORTED, out)
            for partition in left & member.owned:  # it is to connect at another address
                member.connected.discard(partition)
                member.moved.discard(partition)
                del member.places[partition]
            member.deferred.update(set(named) - left)
            return
        if word.status is OrderStatus.DONE:
            self.was_allocated()
            has = named if reported is None else reported
            member.connected.update(member.owned.intersection(named).intersection(has))
        member.deferred.update(set(named) - member.connected)

    def knows(self, table: TopicTable) -> None:
        """Partitions have come: what a member has of them, from when they were there before, it is to leave first."""
        for member in self.members.values():
            for partition in sorted(member.foreign):
                if partition.topic in self.terms.topics and table.has(partition):
                    member.foreign.discard(partition)
                    if partition not in member.owned:  # back so soon that nobody has been told
                        self.holdings.stray(member, partition)

    # ---- what members are told

    def tells(self, member: GroupMember, table: TopicTable, now_ms: int) -> RebalanceOrder | None:
        """What a member is to do, with the answer to its heartbeat."""
        busy, member.busy = member.busy, False
        if member.order is None:
            member.order, member.order_beats = self._next_order(member, table), 0
            if member.order is not None and member.told_ms is None:
                member.told_ms = now_ms
        if member.order is None and member.asked is not None:
            asked, member.asked = member.asked, None
            return RebalanceOrder(self._ids.take(), asked, OrderStatus.PROCESSING, ())
        if busy and member.order_beats > 0:
            return None  # it comes to this one yet; if it has not got it, it is told when it is no longer busy
        member.order_beats += 1
        return member.order if rules.is_sent(member.order_beats - 1) else None

    def _next_order(self, member: GroupMember, table: TopicTable) -> RebalanceOrder | None:
        away = {
            partition: member.places[partition]
            for partition in member.leaving | member.foreign | member.moved
            if partition not in member.deferred and partition in member.places
        }
        if away or not member.proven:
            return self._order(RebalanceOp.DISCONNECT, away)
        here = {
            partition: table.slots[partition.slot]
            for partition in member.owned - member.connected - member.deferred
            if partition.slot in table.slots
        }
        member.places.update(here)
        return self._order(RebalanceOp.CONNECT, here) if here else None

    def _order(self, op: RebalanceOp, places: Mapping[TopicPartition, SlotPlace]) -> RebalanceOrder:
        return RebalanceOrder(self._ids.take(), op, OrderStatus.PROCESSING, tuple(sorted(places.items())))

    # ---- balance

    def balance(self, table: TopicTable, settled: bool, out: list[MasterEffect]) -> None:
        """A balance period is over: who has too much lets go, who has too little is given what is free."""
        partitions = table.partitions(self.terms.topics)
        there = set(partitions)
        for member in self.members.values():
            member.deferred.clear()
            member.places = {p: place for p, place in member.places.items() if p in there or self._matters(member, p)}
            member.moved = {p for p in member.connected if rules.has_moved(member.places[p], table.slots.get(p.slot))}
            for partition in sorted(member.owned - there):
                self.holdings.let_go(member, partition, out)
        self._start(settled, out)
        if not self._moves(settled):
            return
        proven = [member for member in self.members.values() if member.proven]
        targets = rules.shares({member.client_id: len(member.owned) for member in proven}, len(partitions))
        for member in proven:
            for partition in rules.surplus(member.owned, member.connected, targets[member.client_id]):
                self.holdings.let_go(member, partition, out)
        self.holdings.share_out(proven, partitions, self._ids, out)

    def share_out(self, table: TopicTable, settled: bool, out: list[MasterEffect]) -> None:
        """Something has become free: who has too little need not wait for the next balance."""
        if self._moves(settled):
            proven = [member for member in self.members.values() if member.proven]
            self.holdings.share_out(proven, table.partitions(self.terms.topics), self._ids, out)

    def hold(self, held: bool) -> None:
        """Nothing moves from now on; or it does again."""
        self.held = held
        if held:
            self.ask(RebalanceOp.STOPREBALANCE)

    def ask(self, op: RebalanceOp) -> None:
        """Every member is told ``op`` once, to which it need not answer."""
        for member in self.members.values():
            member.asked = op

    def _moves(self, settled: bool) -> bool:
        return settled and self.started and not self.held

    def _matters(self, member: GroupMember, partition: TopicPartition) -> bool:
        return partition in member.owned or partition in member.leaving or partition in member.foreign

    # ---- bound groups

    def _start(self, settled: bool, out: list[MasterEffect]) -> None:
        """A bound group that has all its members, and was never allocated, has its offsets stored once."""
        bound = self.terms.bound
        if bound is None or self.started or self._storing or not settled or self.incomplete_since_ms is not None:
            return
        named: dict[TopicPartition, list[int]] = {}
        for offsets in self._offsets.values():
            for partition, offset in offsets.items():
                named.setdefault(partition, []).append(offset)
        merged = {each: rules.merged_offset(named[each], bound.select_big) for each in sorted(named)}
        if merged:
            self._storing = True
            out.append(StoreOffsets(self.name, bound.session_key, merged))
        else:
            self.started = True

    def is_storing(self, session_key: str) -> bool:
        """Whether the offsets of that session are on their way."""
        return self._storing and self.terms.bound is not None and self.terms.bound.session_key == session_key

    def stored(self, session_key: str, done: bool) -> None:
        """The offsets of a session are stored, or could not be."""
        if self.is_storing(session_key):
            self._storing, self.started = False, self.started or done
