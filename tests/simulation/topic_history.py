"""What the callers of topics have seen, and whether the log and the offsets of groups allow it.

| rule | broken means |
|---|---|
| a message told as committed is in the log, there, once | lost, or doubled |
| a message told as refused is not in the log | it happened although nobody believes so |
| what a producer sends over one connection is in the log in that order | messages overtook each other |
| what was sent to an actor is in the log while its OWN is the last one | two actors append |
| what a consumer is given is what the log has there | another message, or another partition's |
| an offset passes only what a consumer of the group has done with, or what was trimmed | a message was skipped |
| an offset, and who had the slot, never goes back but by an operator | confirmed messages come again |
| a confirm that was answered is stored | it is forgotten by the next owner |
| of a partition no message is confirmed twice | two consumers had it |
| where a bound group begins is not stored once a later leader has granted something of it | it is set back |
| a leader grants a partition once at a time; IDs rise, also with the leaders | two consumers are sent to it |
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.history import Violation
from tests.topics.groups.grant_log import BrokenPromise, GrantLog
from waltz_ray.protocol.records import RECORD_HEADER_BYTES
from waltz_ray.topics.groups.effects import ConsumerAnswer, MasterEffect, PartitionGranted, StoreOffsets
from waltz_ray.topics.groups.events import ConsumerBeats, ConsumerRegisters, MasterEvent, SteppedDown, TookOver
from waltz_ray.topics.groups.machine import TopicMaster
from waltz_ray.topics.offset_item import OffsetItem, named_offset
from waltz_ray.topics.records import SlotOwn, SlotRelease, TopicMessage, TopicRecord, decode_topic_record

if TYPE_CHECKING:
    from tests.simulation.topic_actors import SimTopicActor
    from tests.simulation.topics import TopicPart

__all__ = ["NO_OFFSET_ITEM", "GroupPartition", "Sent", "TopicHistory"]

NO_OFFSET_ITEM = OffsetItem(-1, 0, 0, 0)
"""Of a group that was nowhere yet."""

GroupPartition = tuple[str, int]
"""A group, and a partition of the topic."""


@dataclass(slots=True)
class Sent:
    """A message, once. ``line``: where messages keep their order; ``actor``: whom it was sent to, None: to the log."""

    body: bytes
    partition: int
    line: str
    actor: int | None
    at: int | None = None
    """Committed there, as its producer was told."""
    refused: bool = False
    """It was told that this will never be in the log."""


@dataclass(slots=True)
class _Stored:
    """An offset was stored, not by an operator. ``since_s``: when the operator had set it last. ``trimmed``: what was
    below that could not be read any more."""

    moment_s: float
    before: int
    after: int
    since_s: float
    trimmed: int


@dataclass(slots=True)
class _Consumed:
    """Of one group and partition."""

    done: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By offset: when a consumer had done with it."""
    stored: list[_Stored] = field(default_factory=list)
    item: OffsetItem = NO_OFFSET_ITEM
    reset_s: float = -1.0
    confirmed: set[int] = field(default_factory=set)
    """Offsets whose confirm was answered, since the operator had set it last."""


class _Leader:
    """What one leader has done, by group."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.grants: dict[str, GrantLog] = defaultdict(GrantLog)


class TopicHistory:
    """It only listens."""

    def __init__(self, part: TopicPart) -> None:
        self.part = part
        self.sent: dict[bytes, Sent] = {}
        self.consumed: dict[GroupPartition, _Consumed] = defaultdict(_Consumed)
        self._given: dict[tuple[int, int], bytes] = {}  # by partition and offset
        self._leaders: dict[TopicMaster, _Leader] = {}
        self._ids: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)  # group -> epoch -> lowest, highest
        self._storing: dict[tuple[str, str], int] = {}  # group, host -> epoch of the leader that was to store there
        self._granting: dict[str, int] = {}  # group -> epoch of the last leader that has granted something
        self.on_storing: Callable[[SimTopicActor], None] | None = None
        """Called once, when a leader is about to store where a bound group begins."""

    @property
    def _now_s(self) -> float:
        return self.part.world.scheduler.now

    @property
    def counts(self) -> Counter[str]:
        return self.part.world.history.counts

    def _blame(self, rule: str, message: str) -> None:
        self.part.world.history.blame(rule, message)

    # ---- producers

    def sends(self, body: bytes, partition: int, line: str, actor: int | None) -> Sent:
        """A producer is about to."""
        sent = self.sent[body] = Sent(body, partition, line, actor)
        self.counts["topic messages sent"] += 1
        return sent

    def committed(self, sent: Sent, offset: int) -> None:
        """Its producer is told so."""
        sent.at = offset
        self.counts["topic messages acknowledged"] += 1

    def refused(self, sent: Sent) -> None:
        """Its producer is told that it will never be in the log."""
        sent.refused = True
        self.counts["topic messages refused"] += 1

    # ---- consumers

    def given(self, group: str, partition: int, messages: Iterable[tuple[int, bytes]]) -> None:
        """A consumer has got these, (offset, body)."""
        for offset, body in messages:
            self.counts["topic messages delivered"] += 1
            known = self._given.setdefault((partition, offset), body)
            if known != body:
                text = f"group {group} was given {body!r} as {offset} of partition {partition}, and somebody {known!r}"
                self._blame("topic_delivery", text)

    def done(self, group: str, partition: int, offsets: Iterable[int]) -> None:
        """A consumer is about to say so."""
        for offset in offsets:
            self.consumed[group, partition].done[offset].append(self._now_s)

    def confirmed(self, group: str, partition: int, offsets: Sequence[int], given_s: float) -> None:
        """A consumer was answered that these are confirmed; they were given to it at ``given_s``."""
        known = self.consumed[group, partition]
        if given_s <= known.reset_s or not offsets:
            return
        self.counts["topic batches confirmed"] += 1
        where = f"group {group}, partition {partition}"
        if known.item.offset <= offsets[-1]:
            text = f"{where}: {offsets[-1]} is confirmed, and what is stored is {known.item.offset}"
            self._blame("topic_confirm", text)
        twice = known.confirmed.intersection(offsets)
        if twice:
            self._blame("topic_confirm", f"{where}: {sorted(twice)} were confirmed twice")
        known.confirmed.update(offsets)

    # ---- offsets

    def stored(self, name: str, before: OffsetItem, after: OffsetItem, host: str) -> None:
        """The store has another item now; ``host`` had asked for it."""
        group, _, partition = named_offset(name)
        known = self.consumed[group, partition]
        known.item = after
        where = f"group {group}, partition {partition}: {before} became {after}"
        taken = after.epoch == before.epoch + 1
        if taken and after.offset != before.offset:
            known.reset_s = self._now_s
            known.confirmed.clear()
            self.counts["topic offsets reset"] += 1
            if self._storing.get((group, host), math.inf) < self._granting.get(group, -1):
                self._blame("topic_bound", f"{where}, by {host}, when a later leader had granted partitions")
            return
        if after.slot_epoch < before.slot_epoch:
            self._blame("topic_offset", f"{where}, by an older owner of the slot")
        if taken:
            return
        if after.epoch != before.epoch:
            self._blame("topic_offset", f"{where}, which nobody has taken so")
        if after.offset < before.offset:
            self._blame("topic_offset", f"{where}: it went back")
        trimmed = self._trimmed(partition)
        known.stored.append(_Stored(self._now_s, max(0, before.offset), after.offset, known.reset_s, trimmed))
        self.counts["topic offsets stored"] += 1

    def _trimmed(self, partition: int) -> int:
        trimming = self.part.world.trimming
        return 0 if trimming is None else trimming.store.trims.marks().get(self.part.partitions[partition], 0)

    def were_reset(self) -> list[GroupPartition]:
        """Where an operator has set a group elsewhere."""
        return [where for where, known in self.consumed.items() if known.reset_s >= 0]

    # ---- masters

    def master_steps(self, master: TopicMaster, event: MasterEvent, effects: Sequence[MasterEffect]) -> None:
        """One step of the machine of an actor that leads, or believes so."""
        if isinstance(event, TookOver):
            self._leaders[master] = _Leader(event.epoch)
            self.counts["topic leaders"] += 1
        elif isinstance(event, SteppedDown):
            self._leaders.pop(master, None)
        leader = self._leaders.get(master)
        if leader is None:
            return
        asking = (event.group, event.client_id) if isinstance(event, ConsumerBeats | ConsumerRegisters) else ("", None)
        self._note_bound(master, leader.epoch, effects)
        for group in {getattr(effect, "group", asking[0]) for effect in effects} - {""}:
            grants = leader.grants[group]
            mine = [each for each in effects if getattr(each, "group", asking[0]) == group]
            consumer = asking[1] if asking[0] == group else None
            before = grants.last_id
            try:
                grants.takes([e for e in mine if consumer or not isinstance(e, ConsumerAnswer)], consumer)
            except BrokenPromise as error:
                self._blame("topic_grants", f"group {group}, epoch {leader.epoch}: {error}")
            if grants.last_id > before:
                self.counts["topic orders and grants"] += 1
                lowest = self._ids[group].get(leader.epoch, (grants.last_id, 0))[0]
                self._ids[group][leader.epoch] = lowest, grants.last_id

    def _note_bound(self, master: TopicMaster, epoch: int, effects: Sequence[MasterEffect]) -> None:
        for effect in effects:
            if isinstance(effect, StoreOffsets):
                [actor] = [each for each in self.part.actors if each.server and each.server.master.machine is master]
                self._storing[effect.group, actor.host] = epoch
                self.counts["topic bound groups begun"] += 1
                told, self.on_storing = self.on_storing, None
                if told is not None:
                    told(actor)
            elif isinstance(effect, PartitionGranted):
                self._granting[effect.group] = max(epoch, self._granting.get(effect.group, 0))

    # ---- the end

    def is_consumed(self, group: str, partition: int, types: frozenset[str]) -> bool:
        """Whether the group has confirmed all that it wants, as far as servers have told of it."""
        committed = self.part.world.history.committed[self.part.partitions[partition]]
        offset = self.consumed[group, partition].item.offset
        return not any(_is_wanted(_decoded(record), types) for at, record in committed.items() if at >= offset)

    def check(self, bytes_of: Sequence[Sequence[bytes]]) -> None:
        """``bytes_of``: the records of each partition of the cluster. Violation."""
        logs = [[_decoded(record) for record in bytes_of[partition]] for partition in self.part.partitions]
        self._check_messages(logs)
        self._check_given(logs)
        for partition, records in enumerate(logs):
            self._check_owners(partition, records)
            for group in self.part.groups:
                self._check_passed(group.name, partition, records, group.types)
        self._check_ids()

    def _check_messages(self, logs: list[list[TopicRecord]]) -> None:
        places: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
        for partition, records in enumerate(logs):
            for at, record in enumerate(records):
                if isinstance(record, TopicMessage):
                    places[record.payload].append((partition, at))
        last: dict[tuple[str, int], int] = {}
        for sent in self.sent.values():
            found = places.pop(sent.body, [])
            if len(found) > 1 or (sent.at is not None and found != [(sent.partition, sent.at)]):
                text = f"{sent.body!r} was acknowledged as {sent.at} of partition {sent.partition}, and is at {found}"
                raise Violation("topic_messages", text)
            if sent.refused and found:
                raise Violation("topic_messages", f"{sent.body!r} was refused, and is at {found}")
            for _, at in found:
                if at < last.get((sent.line, sent.partition), -1):
                    text = f"{sent.body!r} at {found} overtook what was sent before it over {sent.line}"
                    raise Violation("topic_messages", text)
                last[sent.line, sent.partition] = at
        if places:
            raise Violation("topic_messages", f"nobody has sent {next(iter(places.items()))}")

    def _check_given(self, logs: list[list[TopicRecord]]) -> None:
        for (partition, offset), body in self._given.items():
            found = logs[partition][offset] if offset < len(logs[partition]) else None
            if not isinstance(found, TopicMessage) or found.payload != body:
                text = f"{body!r} was given as {offset} of partition {partition}, which has {found}"
                raise Violation("topic_delivery", text)

    def _check_owners(self, partition: int, records: list[TopicRecord]) -> None:
        owner: SlotOwn | None = None
        epoch = 0
        for at, record in enumerate(records):
            where = f"partition {partition}, offset {at}"
            match record:
                case SlotOwn():
                    again = record == owner
                    if record.epoch < epoch or (record.epoch == epoch and not again and record.actor != _of(owner)):
                        raise Violation("topic_owners", f"{where}: {record} after {owner}, epoch {epoch}")
                    owner, epoch = record, record.epoch
                case SlotRelease():
                    if owner is None or (record.actor, record.incarnation) != (owner.actor, owner.incarnation):
                        raise Violation("topic_owners", f"{where}: {record}, and {owner} has it")
                    owner = None
                case TopicMessage():
                    sent = self.sent[record.payload]
                    if sent.actor is not None and sent.actor != _of(owner):
                        text = f"{where}: {sent.body!r} was appended by actor {sent.actor}, and {owner} has the slot"
                        raise Violation("topic_owners", text)

    def _check_passed(self, group: str, partition: int, records: list[TopicRecord], types: frozenset[str]) -> None:
        known = self.consumed[group, partition]
        for stored in known.stored:
            for at in range(max(stored.before, stored.trimmed), min(stored.after, len(records))):
                if not _is_wanted(records[at], types):
                    continue
                if not any(stored.since_s <= done <= stored.moment_s for done in known.done.get(at, ())):
                    text = f"group {group}, partition {partition}: {stored} passes {at}, which nobody has done with"
                    raise Violation("topic_passed", f"{text}: {records[at]}")

    def _check_ids(self) -> None:
        for group, epochs in self._ids.items():
            highest = 0
            for epoch, (lowest, last) in sorted(epochs.items()):
                if lowest <= highest:
                    raise Violation("topic_grants", f"group {group}: {lowest} of epoch {epoch} is not above {highest}")
                highest = last


def _decoded(record: bytes) -> TopicRecord:
    return decode_topic_record(record[RECORD_HEADER_BYTES:-4])


def _of(owner: SlotOwn | None) -> int | None:
    return None if owner is None else owner.actor


def _is_wanted(record: TopicRecord, types: frozenset[str]) -> bool:
    return isinstance(record, TopicMessage) and (not types or record.msg_type in types)
