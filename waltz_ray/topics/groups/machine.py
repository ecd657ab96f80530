"""The master of topics: who produces, who consumes, who has which partition. A pure machine, in the leading actor.

What it knows is soft: after a change of leader clients are refused with NO_NODE, register again and say what they have.
Until the time of everybody who has not come is over (``TookOver.settle_ms``) nothing is granted that nobody reports.

What keeps two consumers of a group from one partition:

- a partition is granted only after its former consumer has answered the order to leave it, or has closed, or is gone:
  silent for ``GroupTimes.client_ms``, or at fault for ``GroupTimes.order_ms``;
- its slot admits one at a time. It is told of grants (or asks ``grant_of``), and ends the lease of whoever was taken
  for gone and is not. Who comes too early is refused there, and tries again in a later round.
"""

from __future__ import annotations

from waltz_ray.topics.groups import rules
from waltz_ray.topics.groups.checks import client_id_wrong, names_wrong, offsets_wrong, places_wrong, terms_wrong
from waltz_ray.topics.groups.effects import (
    ConsumerAnswer,
    Freeing,
    GroupRefusal,
    MasterEffect,
    PartitionFreed,
    RefuseClient,
    TellClosed,
)
from waltz_ray.topics.groups.events import (
    BalanceDue,
    ConsumerBeats,
    ConsumerCloses,
    ConsumerRegisters,
    GroupTerms,
    HoldBalance,
    MasterEvent,
    OffsetsNotStored,
    OffsetsStored,
    ProducerBeats,
    ProducerCloses,
    ProducerRegisters,
    RebalanceOp,
    SteppedDown,
    TableKnown,
    TookOver,
    WantReports,
)
from waltz_ray.topics.groups.group import ConsumerGroup
from waltz_ray.topics.groups.holdings import Grant, GroupMember, RebalanceIds
from waltz_ray.topics.groups.invariants import groups_broken
from waltz_ray.topics.groups.limits import GroupLimits, GroupTimes
from waltz_ray.topics.groups.producers import Producers
from waltz_ray.topics.groups.room import no_room
from waltz_ray.topics.groups.status import GroupStatus, ProducerStatus, status_of
from waltz_ray.topics.groups.table import TopicPartition, TopicTable

__all__ = ["STANDBY", "TopicMaster"]

STANDBY = "this actor does not lead: StandbyException, ask the next master"
"""What clients are told who are not answered."""

_LAST_EPOCH = (1 << 31) - 1  # IDs are signed 64-bit numbers for clients


class TopicMaster:
    """Leads from TookOver to SteppedDown; else it refuses everybody with ``GroupRefusal.STANDBY``."""

    def __init__(self, times: GroupTimes | None = None, limits: GroupLimits | None = None) -> None:
        self._times, self._limits = times or GroupTimes(), limits or GroupLimits()
        self._table = TopicTable({}, {})
        self._now_ms = 0
        self._forget()

    def _forget(self) -> None:
        self._ids: RebalanceIds | None = None
        self._settled_at_ms = 0
        self._groups: dict[str, ConsumerGroup] = {}
        self._held: dict[str, None] = {}
        self._producers = Producers(self._limits, self._times.client_ms)

    # ---- questions

    @property
    def leads(self) -> bool:
        """Whether this actor is the master."""
        return self._ids is not None

    def group_names(self) -> list[str]:
        """Of all groups with members."""
        return sorted(self._groups)

    def group_status(self, name: str) -> GroupStatus | None:
        """Of one group, as of the last event; None: it has no members."""
        group = self._groups.get(name)
        return None if group is None else status_of(group, self._table, self._now_ms)

    def terms_of(self, name: str) -> GroupTerms | None:
        """What a group consumes; None: it has no members."""
        group = self._groups.get(name)
        return None if group is None else group.terms

    def grant_of(self, group: str, partition: TopicPartition) -> Grant | None:
        """Who of a group has a partition; None: nobody, or this actor does not lead."""
        found = self._groups.get(group)
        return None if found is None else found.holdings.granted.get(partition)

    def is_storing(self, group: str, session_key: str) -> bool:
        """Whether this actor leads, and waits until where that session of the group begins is stored."""
        found = self._groups.get(group)
        return found is not None and found.is_storing(session_key)

    def client_ids(self) -> set[str]:
        """Of all producers and of all members of groups."""
        return self._producers.known.keys() | {each for group in self._groups.values() for each in group.members}

    def knows(self, client_id: str) -> bool:
        """Whether it is one of them."""
        return client_id in self._producers.known or any(client_id in g.members for g in self._groups.values())

    def producer_status(self) -> list[ProducerStatus]:
        """Of all producers."""
        known = sorted(self._producers.known.items())
        return [ProducerStatus(k, p.host, tuple(sorted(p.topics)), self._now_ms - p.seen_ms) for k, p in known]

    def broken(self) -> str | None:
        """Which invariant does not hold."""
        return groups_broken(self._groups.values())

    # ---- events

    def step(self, event: MasterEvent, now_ms: int) -> list[MasterEffect]:
        """Take in one fact; what follows. ``now_ms``: of a clock that does not go back."""
        self._now_ms = max(self._now_ms, now_ms)
        out: list[MasterEffect] = []
        match event:
            case TookOver(epoch, settle_ms):
                if not 0 <= epoch <= _LAST_EPOCH:
                    raise ValueError(f"epoch {epoch}: rebalance IDs have room for 0 to {_LAST_EPOCH}")
                self._forget()
                self._ids, self._settled_at_ms = RebalanceIds(epoch), self._now_ms + settle_ms
            case SteppedDown():
                self._forget()
            case TableKnown(table):
                self._table = table
                for group in self._groups.values():
                    group.knows(table)
            case BalanceDue():
                self._balance(out)
            case HoldBalance(name, held):
                self._hold(name, held)
            case WantReports(name):
                if name in self._groups:
                    self._groups[name].ask(RebalanceOp.REPORT)
            case OffsetsStored(name, session_key):
                self._stored(name, session_key, True, out)
            case OffsetsNotStored(name, session_key, _):
                self._stored(name, session_key, False, out)
            case _:
                self._asked(event, out)
        return out

    def _asked(
        self,
        event: ProducerRegisters | ProducerBeats | ProducerCloses | ConsumerRegisters | ConsumerBeats | ConsumerCloses,
        out: list[MasterEffect],
    ) -> None:
        """What ends in an answer."""
        if self._ids is None:
            out.append(RefuseClient(event.call, GroupRefusal.STANDBY, STANDBY))
            return
        match event:
            case ProducerRegisters():
                out.append(self._producers.registers(event, self._table, self._now_ms))
            case ProducerBeats():
                out.append(self._producers.beats(event, self._table, self._now_ms))
            case ProducerCloses(call, client_id):
                self._producers.closes(client_id)
                out.append(TellClosed(call))
            case ConsumerRegisters():
                self._registers(event, self._ids, out)
            case ConsumerBeats():
                self._beats(event, out)
            case ConsumerCloses(call, client_id, name):
                group = self._groups.get(name)
                if group is not None and client_id in group.members:
                    self._leaves(group, client_id, Freeing.CLOSED, out)
                out.append(TellClosed(call))

    # ---- consumers

    def _registers(self, event: ConsumerRegisters, ids: RebalanceIds, out: list[MasterEffect]) -> None:
        self._expire_with(event.group, event.client_id, out)
        refusal = (
            self._wrong(event) or self._disagrees(event, out) or no_room(event, self._groups, self._limits, self._times)
        )
        if refusal is not None:
            out.append(RefuseClient(event.call, *refusal))
            return
        group = self._groups.get(event.group)
        if group is None:
            group = self._groups[event.group] = ConsumerGroup(event.group, event.terms, ids, self._now_ms)
            group.held = event.group in self._held
        member = group.joins(event.client_id, event.host, event.terms, self._now_ms)
        if event.not_allocated is False:
            group.was_allocated()
        group.takes_list(member, event.reported, self._table, out)
        self._answer(event.call, group, member, out, with_order=False)

    def _beats(self, event: ConsumerBeats, out: list[MasterEffect]) -> None:
        self._expire_with(event.group, event.client_id, out)
        group = self._groups.get(event.group)
        member = None if group is None else group.members.get(event.client_id)
        if group is None or member is None:
            text = f"consumer {event.client_id:.100} is not registered in group {event.group:.100}, or not any more: "
            out.append(RefuseClient(event.call, GroupRefusal.NO_NODE, text + "register again"))
            return
        if event.reported is not None and len(event.reported) > self._limits.reported:
            text = f"{len(event.reported)} partitions reported: there may be {self._limits.reported} at the most"
            out.append(RefuseClient(event.call, GroupRefusal.BAD_REQUEST, text))
            return
        member.seen_ms = self._now_ms
        if event.order is not None:
            group.takes_word(member, event.order, event.reported, out)
        if event.reported is not None:
            group.takes_list(member, event.reported, self._table, out)
        if any(isinstance(each, PartitionFreed) for each in out):
            group.share_out(self._table, self._settled(), out)
        self._answer(event.call, group, member, out, with_order=True)

    def _answer(
        self, call: int, group: ConsumerGroup, member: GroupMember, out: list[MasterEffect], with_order: bool
    ) -> None:
        topics = {each: self._table.topics[each] for each in sorted(group.terms.topics) if each in self._table.topics}
        order = group.tells(member, self._table, self._now_ms) if with_order else None
        out.append(ConsumerAnswer(call, group.not_allocated, order, topics))

    def _wrong(self, event: ConsumerRegisters) -> tuple[GroupRefusal, str] | None:
        wrong = (
            client_id_wrong(event.client_id, self._limits)
            or names_wrong("group", [event.group], 1, self._limits)
            or terms_wrong(event.terms, self._limits)
            or places_wrong(event.group, event.terms.topics)
        )
        if wrong is None and len(event.reported) > self._limits.reported:
            wrong = f"{len(event.reported)} partitions reported: there may be {self._limits.reported} at the most"
        wrong = wrong or offsets_wrong(event.terms, self._table)
        return None if wrong is None else (GroupRefusal.BAD_REQUEST, wrong)

    def _disagrees(self, event: ConsumerRegisters, out: list[MasterEffect]) -> tuple[GroupRefusal, str] | None:
        """With its group. Who is alone in it may change its mind, and a session that is over makes place."""
        group = self._groups.get(event.group)
        found = None if group is None else rules.difference(event.group, group.terms, event.terms)
        if group is None or found is None:
            return None
        if group.members.keys() == {event.client_id}:
            self._leaves(group, event.client_id, Freeing.REPLACED, out)
            return None
        if found[0] is not GroupRefusal.SESSION_DIFFERS:
            return found
        if not rules.session_ends(group.incomplete_since_ms, self._now_ms, self._times.session_ms):
            text = f"{found[1]}; a session that lacks members gives way after {self._times.session_ms} ms"
            return GroupRefusal.SESSION_DIFFERS, text
        for client_id in sorted(group.members):
            self._leaves(group, client_id, Freeing.REPLACED, out)
        return None

    # ---- time

    def _settled(self) -> bool:
        return rules.is_settled(self._now_ms, self._settled_at_ms)

    def _balance(self, out: list[MasterEffect]) -> None:
        if self._ids is None:
            return
        self._producers.expire(self._now_ms)
        for group in list(self._groups.values()):
            self._expire(group, out)
            if group.members:
                group.balance(self._table, self._settled(), out)

    def _expire_with(self, name: str, client_id: str, out: list[MasterEffect]) -> None:
        """A consumer whose time is over is gone, though it has just come; then so are others of whom nobody knows yet.

        What was theirs waits for the next balance: it is what they report now, if they come back.
        """
        group = self._groups.get(name)
        member = None if group is None else group.members.get(client_id)
        if group is not None and member is not None and self._time_is_over(member) is not None:
            self._expire(group, out)

    def _expire(self, group: ConsumerGroup, out: list[MasterEffect]) -> None:
        for client_id, member in list(group.members.items()):
            how = self._time_is_over(member)
            if how is not None:
                self._leaves(group, client_id, how, out)

    def _time_is_over(self, member: GroupMember) -> Freeing | None:
        if rules.is_gone(member.seen_ms, self._now_ms, self._times.client_ms):
            return Freeing.GONE
        return Freeing.OVERDUE if rules.is_overdue(member.told_ms, self._now_ms, self._times.order_ms) else None

    def _leaves(self, group: ConsumerGroup, client_id: str, how: Freeing, out: list[MasterEffect]) -> None:
        group.leaves(client_id, how, self._now_ms, out)
        if not group.members:
            del self._groups[group.name]
        elif how is Freeing.CLOSED:
            group.share_out(self._table, self._settled(), out)

    # ---- operators and offsets

    def _hold(self, name: str, held: bool) -> None:
        if not held:
            self._held.pop(name, None)
        elif self._ids is not None:
            self._held[name] = None
        if name in self._groups:
            self._groups[name].hold(held)

    def _stored(self, name: str, session_key: str, done: bool, out: list[MasterEffect]) -> None:
        group = self._groups.get(name)
        if group is not None:
            group.stored(session_key, done)
            group.share_out(self._table, self._settled(), out)
