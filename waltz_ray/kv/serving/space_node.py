"""One kv space on one actor: its keeper and its ownership machine, driven; its projections, fed. In one event loop.

Events wait in a queue and are taken one at a time, so no machine is called from within its own effects. What the
machines order ends in one more event each: an append in its fate, a question to a secondary in its answer.

Only commands are taken together: those of one turn of the event loop, from all connections that had any, in one step;
or those of one input, if no other command is without an answer. What they write leaves at the end of their step.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import secrets
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from waltz_ray.client.append_fates import AppendFates
from waltz_ray.errors import ProjectionFailed, WaltzError
from waltz_ray.kv.keeper import Keeper
from waltz_ray.kv.keeper_types import (
    Answer,
    AnswerRead,
    AppendRecord,
    Asked,
    AskSecondary,
    AskWhetherItStands,
    ConnectionLeft,
    Effect,
    Event,
    FateUnknown,
    FoldedTo,
    KeeperLimits,
    LeaseIsOver,
    Rearranged,
    RecordCommitted,
    RecordRefused,
    SecondaryAnswered,
    StandsOrNot,
    TimePassed,
    UnitDrained,
    UnitStops,
    WantFolded,
    WritesBounded,
)
from waltz_ray.kv.messages import (
    Command,
    FailCode,
    FailInfo,
    Get,
    GetMany,
    Hashmasks,
    LockCommand,
    Put,
    Reply,
    SetCommand,
    TryElsewhere,
    UnlockCommand,
)
from waltz_ray.kv.model import Own, Release
from waltz_ray.kv.placement import BucketSplitting
from waltz_ray.kv.records import decode_record
from waltz_ray.kv.routing import MASKS, Unit, partition_of, units_of
from waltz_ray.kv.serving.announcements import Announcements
from waltz_ray.kv.serving.folding import Folding
from waltz_ray.kv.serving.space_log import SpaceLog
from waltz_ray.kv.state import KvState
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.protocol.ownership import OwnershipMachine
from waltz_ray.protocol.ownership_types import (
    ConfirmMembers,
    Drained,
    FoldCaughtUp,
    LeaseConfirmed,
    MembersConfirmed,
    MembersSeen,
    OwnersFolded,
    OwnershipEffect,
    OwnershipEvent,
    RegisteredAs,
    ReleaseDone,
    ReleaseLost,
    ReleaseRefused,
    ReleaseUnit,
    Serve,
    StopServing,
    TableSeen,
    Take,
    TakeDone,
    TakeRefused,
    UnitTable,
    Unregistered,
)
from waltz_ray.runtime.boot_clock import boot_s

__all__ = ["KvMember", "SpaceNode", "Surroundings"]

log = logging.getLogger(__name__)

_TICK_S = 0.1
_TOGETHER_ITEMS = 512
"""Of commands that are taken in one step: some ten milliseconds, half of what one may take (docs/wire.md, Limits)."""
_LOST_S = 1.0
"""After an OWN or RELEASE of which nobody knows the fate: then the log is away."""


@dataclass(frozen=True)
class KvMember:
    """A registered actor."""

    incarnation: str
    server: str
    """``host:port``."""


@dataclass
class _Anew:
    """A partition's state that is folded anew: how much of its log is behind what is told, and decided, here."""

    told: int
    """So far the ownership machine knows who owns what."""
    reached: int
    """So far the state has to come: as far as it ever was, for what was fresh is forgotten up to there; and to all that
    was committed for us meanwhile."""


@dataclass(frozen=True)
class Surroundings:
    """What a node is given."""

    log: SpaceLog
    states: Mapping[int, KvState]
    """Of every partition of the space, counted from 0; they are the node's to close."""
    confirm_members: Callable[[], Awaitable[Mapping[int, str]]]
    """Read the registered actors anew, so that all is seen that was written before."""
    ask_secondary: Callable[[str, int, int], Awaitable[bool]]
    """(server, partition, ID): whether it has said that it has it."""
    failed: Callable[[ProjectionFailed], None]
    """A projection cannot be kept: nothing is served any more."""
    now_ms: Callable[[], int]
    lease_clock: Callable[[], float] = boot_s
    random16: Callable[[], int] = lambda: secrets.randbits(16)
    peer_leaves: Callable[[str], None] = lambda server: None
    """This member (``host:port``) has said that it shuts down."""


class SpaceNode:
    """See the module's docstring. Give its ``announcements`` a gateway, then ``start``."""

    def __init__(
        self, actor: int, session_s: float, margin_s: float, limits: KeeperLimits, around: Surroundings
    ) -> None:
        self.partitions = len(around.states)
        self.states = around.states
        self.ownership: OwnershipMachine[Unit] = OwnershipMachine(
            actor, BucketSplitting(len(around.states)), session_s, margin_s
        )
        self.keeper = Keeper(self.partitions, self.states, self, limits, around.random16)
        self.outgoing = Outgoing()
        """Answers that leave together."""
        self.announcements = Announcements(actor, self.hashmasks)
        self.members: Mapping[int, KvMember] = {}
        self.actor = actor
        self.caught_up = False
        self.leaving = False
        self._closed = False
        self._around = around
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event | OwnershipEvent[Unit]] = deque()
        self._busy = False
        self._items_queued = 0  # of the commands that were not taken at once
        self._turn_ends = False  # they will be, as soon as the loop has read what else there is
        self._held: dict[int, Unit | None] = {}  # by bucket under the finest mask: what ``ownership.held`` has said
        self._hosted: Hashmasks | None = None  # None: to be found out
        self._tokens = itertools.count(1)
        self._answers: dict[int, Callable[[Reply], None]] = {}
        self._after_fold: dict[int, list[tuple[int, int, OwnershipEvent[Unit]]]] = defaultdict(list)
        self._order = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._failure = ""
        self._fold_waiters: list[asyncio.Future[None]] = []
        self._anew: dict[int, _Anew] = {}  # by partition
        self._folding = Folding(
            around.log, self.states, self._folded, self._has_caught_up, self._emptied, self.projection_failed
        )

    async def start(self) -> None:
        """Say what the states know, and go on from there."""
        self._tell_claims(unit for mask in MASKS for unit in units_of(mask))
        self._run()
        self._tick()
        await self._folding.start()

    async def close(self) -> None:
        """Serve nothing any more; what waits is told so."""
        self.leave()
        self.announcements.close()
        if self._ticker is not None:
            self._ticker.cancel()
        await self._folding.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._closed = True  # of what is on its way to the log the fate may still come: everybody has been told by now
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer(FailInfo(FailCode.UNKNOWN_FATE, "the actor is closing: ask another one"))
        for state in self.states.values():
            state.close()

    def leave(self) -> None:
        """Take what has come, and nothing more."""
        self._run()
        self.leaving = True
        self.announcements.stop()

    # ---- what the coordination says

    def table_seen(self, table: UnitTable[Unit]) -> None:
        self._folding.hurry()
        self._put(TableSeen(table), Rearranged())

    def members_seen(self, members: Mapping[int, KvMember]) -> None:
        """The registered actors."""
        self._folding.hurry()
        before, self.members = self.servers(), members
        self._put(MembersSeen({actor: each.incarnation for actor, each in members.items()}), Rearranged())
        if self.servers() != before:
            self.announcements.servers_changed()

    def registered(self, incarnation: str) -> None:
        self._put(RegisteredAs(incarnation))

    def unregistered(self) -> None:
        self._put(Unregistered())

    def lease_confirmed(self, incarnation: str, sent_at_s: float) -> None:
        self._put(LeaseConfirmed(incarnation, sent_at_s))

    def actors_wanted(self, count: int) -> None:
        """So many are to be there by now, with one there can be no second copies; 0: nobody has said."""
        if count:
            self.keeper.expect_backups(count > 1)

    # ---- what the compactor says

    def bound_writes(self, partition: int, room_bytes: int | None) -> None:
        """See ``WritesBounded``."""
        self._put(WritesBounded(partition, room_bytes))

    def ahead_bytes(self, partition: int) -> int:
        """Of the partition's log what its state has not folded, as far as it is known here."""
        return self.keeper.ahead_bytes(partition)

    # ---- CommandPort: what the gateway asks

    def servers(self) -> Sequence[str]:
        return tuple(each.server for _, each in sorted(self.members.items()))

    def hashmasks(self) -> Hashmasks:
        if self._hosted is None:
            hosted = self.ownership.hosted()
            self._hosted = Hashmasks(self.mask, tuple([(unit.bucket, instance) for unit, instance in hosted]))
        return self._hosted

    def accepting(self) -> str:
        if not self.leaving:
            return ""
        return next((each.server for actor, each in sorted(self.members.items()) if actor != self.actor), "")

    def submit(self, connection_id: int, command: Command, answer: Callable[[Reply], None]) -> None:
        if self._failure or self.leaving:
            answer(self._turned_away(command))
            return
        token = next(self._tokens)
        self._answers[token] = answer
        self._events.append(Asked(token, connection_id, command))
        self._items_queued += _items(command)
        if self._busy:
            return
        if self._items_queued >= _TOGETHER_ITEMS:
            self._run()
        elif not self._turn_ends:
            self._turn_ends = True
            self._loop.call_soon(self._turn_end)

    def _turned_away(self, command: Command) -> Reply:
        if self._failure:
            return FailInfo(FailCode.NO_ROOM, self._failure)
        other = self.accepting()
        if other and isinstance(command, _OF_DOCUMENT):
            return TryElsewhere(other)
        return FailInfo(FailCode.NOT_READY, "the actor is closing: ask another one")

    def input_ended(self) -> None:
        if self._turn_ends and not self._busy and len(self._events) == len(self._answers):
            self._run()  # whoever waits is in the queue: nobody's answer brings a command that would share its step

    def _turn_end(self) -> None:
        self._turn_ends = False
        self._run()

    def left(self, connection_id: int, goodbye: bool = False) -> None:
        self._put(ConnectionLeft(connection_id, goodbye))

    def peer_shutting_down(self, server: str) -> None:
        """The table will say so, too, and who is registered."""
        log.info("%s says that it shuts down", server)
        self._around.peer_leaves(server)

    # ---- Serving: what the keeper asks

    @property
    def mask(self) -> int:
        return self.ownership.level

    def unit_of(self, key_hash: int) -> Unit | None:
        bucket = key_hash & MASKS[-1]
        try:
            return self._held[bucket]
        except KeyError:
            known = self.knows(partition_of(key_hash, self.partitions))
            found = self._held[bucket] = self.ownership.held(Unit(self.mask, key_hash & self.mask)) if known else None
            return found

    def knows(self, partition: int) -> bool:
        """Whether the partition's state may be asked: not while it is folded anew, however much of it is ours."""
        return partition not in self._anew

    def elsewhere(self, key_hash: int) -> str:
        unit = Unit(self.ownership.level, key_hash & self.ownership.level)
        place = self.ownership.place(unit)
        claim = self.ownership.claims.get(unit)
        newer = claim is not None and place is not None and claim.epoch > place.epoch
        if place is not None and place.primary == self.actor and not newer:
            return ""  # who had it lets go of it, or has gone: it will soon be ours
        holder = self.ownership.holder(unit)
        member = None if holder is None else self.members.get(holder)
        return "" if member is None else member.server

    def secondary(self, key_hash: int) -> int | None:
        level = self.ownership.level
        return self.ownership.secondary(Unit(level, key_hash & level))

    # ---- the queue

    def _put(self, *events: Event | OwnershipEvent[Unit]) -> None:
        if self._closed:
            return
        self._events.extend(events)
        if not self._busy:
            self._run()

    def _run(self) -> None:
        self._busy = True
        try:
            with self.outgoing:
                while self._events and not self._failure:
                    event = self._events[0]
                    if isinstance(event, Asked):
                        self._step_asked()
                        continue
                    self._events.popleft()
                    if isinstance(event, _OF_KEEPER):
                        self._keep_all(self.keeper.step(event, self._around.now_ms()))
                    else:
                        self._step_ownership(event)
        except ProjectionFailed as error:
            self.projection_failed(error)
        except Exception as error:
            self._has_a_bug(error)
            raise
        finally:
            self._busy = False

    def _step_asked(self) -> None:
        """All commands at the head of the queue. They stay there until the step is over: see ``projection_failed``."""
        asked: list[Asked] = []
        for event in self._events:
            if not isinstance(event, Asked):
                break
            asked.append(event)
        effects = self.keeper.asked(asked, self._around.now_ms())
        for _ in asked:
            self._events.popleft()
        self._items_queued = 0
        with self._around.log.together():
            self._keep_all(effects)

    def _step_ownership(self, event: OwnershipEvent[Unit]) -> None:
        orders = self.ownership.step(event)
        if not isinstance(event, LeaseConfirmed):  # it comes all the time, and says nothing of units
            self._held.clear()
            self._hosted = None
            self.announcements.soon()
        for order in orders:
            self._own(order)
        if any(isinstance(order, Serve) for order in orders):
            self._events.append(Rearranged())

    def _keep_all(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._keep(effect)

    def _keep(self, effect: Effect) -> None:
        match effect:
            case Answer(token, reply):
                self._answers.pop(token)(reply)
            case AnswerRead(token, reply, units, read):
                now_s = self._around.lease_clock()  # now, after it was read: see kv/reading.py
                if all(self.ownership.may_read(unit, now_s) for unit in units):
                    self._answers.pop(token)(reply)
                else:
                    self._events.append(LeaseIsOver(read))
            case AskWhetherItStands(unit, refusal):
                held = self.ownership.may_read(unit, self._around.lease_clock())
                self._events.append(StandsOrNot(refusal, held))
            case AppendRecord(number, partition, units, record):
                fates = AppendFates(
                    lambda transaction_id: self._committed(partition, number, transaction_id),
                    lambda conflict: self._put(RecordRefused(number, conflict)),
                    lambda reason: self._put(FateUnknown(number, reason)),
                )
                self._around.log.append(partition, record, self.owners_known_to(partition), fates, read=units)
            case AskSecondary(number, actor, partition, transaction_id):
                self._spawn(self._ask_secondary(number, actor, partition, transaction_id))
            case UnitDrained(unit):
                self._events.append(Drained(unit))
            case WantFolded(partition, transaction_id):
                self._folding.wanted(partition, transaction_id)

    def _committed(self, partition: int, number: int, transaction_id: int) -> None:
        anew = self._anew.get(partition)
        if anew is not None:
            anew.reached = max(anew.reached, transaction_id)  # what a TOUCH makes of its item only the fold can say now
        self._put(RecordCommitted(number, transaction_id))

    def _own(self, order: OwnershipEffect[Unit]) -> None:
        match order:
            case Take(unit, incarnation, epoch, coarser):
                record = Own(unit, self.actor, incarnation, epoch)
                done, refused = (lambda t: TakeDone(unit, t)), TakeRefused(unit)
                self._append_owners(unit, record, done, refused, refused, write=(unit, *coarser))
            case ReleaseUnit(unit, incarnation, epoch, held):
                released = Release(unit, self.actor, incarnation, epoch)
                fates = (lambda t: ReleaseDone(unit)), ReleaseRefused(unit), ReleaseLost(unit)
                self._append_owners(unit, released, *fates, read=(held,))
            case Serve(unit):
                self.announcements.changed(unit, "served")
            case StopServing(unit, reason):
                self.announcements.changed(unit, f"served no more: {reason}")
                self._events.append(UnitStops(unit))
            case ConfirmMembers():
                self._spawn(self._confirm_members())

    def _append_owners(
        self,
        unit: Unit,
        record: Own | Release,
        done: Callable[[int], OwnershipEvent[Unit]],
        refused: OwnershipEvent[Unit],
        unknown: OwnershipEvent[Unit],
        read: Sequence[Unit] = (),
        write: Sequence[Unit] = (),
    ) -> None:
        """OWN or RELEASE. A refusal is told once the fold has what was in the way."""
        partition = partition_of(unit.bucket, self.partitions)

        def lost(reason: str) -> None:
            log.warning("kv/%d: nobody can say whether its %s is in the log: %s", self.actor, record, reason)
            self._loop.call_later(_LOST_S, tell)

        def tell() -> None:
            if not self.leaving:
                self._put(unknown)

        fates = AppendFates(
            lambda transaction_id: self._put(done(transaction_id)),
            lambda conflict: self._after(partition, conflict, refused),
            lost,
        )
        self._around.log.append(partition, record, self.owners_known_to(partition), fates, read, write)

    def owners_known_to(self, partition: int) -> int:
        """So far it is known who owns what: the log refuses what somebody has done against that since. While the state
        is folded anew that is less than the state has."""
        anew = self._anew.get(partition)
        return self.states[partition].mark if anew is None else anew.told

    def _after(self, partition: int, transaction_id: int, event: OwnershipEvent[Unit]) -> None:
        if self.owners_known_to(partition) >= transaction_id:
            self._put(event)
        else:
            heapq.heappush(self._after_fold[partition], (transaction_id, next(self._order), event))
            self._folding.wanted(partition, transaction_id)

    # ---- folding

    def _folded(self, partition: int, owners: Sequence[bytes]) -> None:
        then: list[Event] = [FoldedTo(partition)]
        if partition not in self._anew:
            if owners:
                self._tell_claims(self._named(partition, owners))
        elif self._is_known_again(partition):
            del self._anew[partition]
            self._held.clear()
            self._tell_claims(self._units_of(partition))
            then.append(Rearranged())  # what waits is begun when what is fresh no longer is forgotten
        mark, waiting = self.owners_known_to(partition), self._after_fold[partition]
        while waiting and waiting[0][0] <= mark:
            self._events.append(heapq.heappop(waiting)[2])
        self._put(*then)
        waiters, self._fold_waiters = self._fold_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _emptied(self, partition: int) -> None:
        """Its log was compacted faster than it was folded here. What is asked about it waits: its state would say that
        there is nothing, or what was there before."""
        mark = self.states[partition].mark
        anew = self._anew.setdefault(partition, _Anew(mark, mark))
        anew.reached = max(anew.reached, mark)
        self._held.clear()
        log.warning(
            "kv/%d: partition %d was folded up to %d, and what follows is compacted away: it is folded anew, and waits",
            self.actor,
            partition,
            mark,
        )

    def _is_known_again(self, partition: int) -> bool:
        """All that was known, and the rest of it."""
        state = self.states[partition]
        return state.whole and state.mark >= self._anew[partition].reached

    def _units_of(self, partition: int) -> list[Unit]:
        return [Unit(mask, bucket) for mask in MASKS for bucket in range(partition, mask + 1, self.partitions)]

    async def folded_to(self, partition: int, transaction_id: int) -> None:
        """Return once the partition's state has it."""
        self._folding.wanted(partition, transaction_id)
        while self.states[partition].mark < transaction_id:
            await self.next_fold()

    def _named(self, partition: int, owners: Sequence[bytes]) -> Iterable[Unit]:
        """The units that such records name; a snapshot's are not looked for: all of the partition."""
        units: dict[Unit, None] = {}
        for data in owners:
            record = decode_record(data)
            if not isinstance(record, Own | Release):
                return self._units_of(partition)
            units[record.unit] = None
        return units

    def next_fold(self) -> asyncio.Future[None]:
        """Done once something more has been folded. ProjectionFailed if nothing more will be."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        if self._failure:
            waiter.set_exception(ProjectionFailed(self._failure))
            return waiter
        self._fold_waiters.append(waiter)
        return waiter

    def _tell_claims(self, units: Iterable[Unit]) -> None:
        """What is new, at once: what is decided on it is appended with the mark of all of it."""
        found = []
        for unit in units:
            claim = self.states[partition_of(unit.bucket, self.partitions)].ownership(unit)
            if claim is not None and claim != self.ownership.claims.get(unit):
                found.append((unit, claim))
        if found:
            self._events.appendleft(OwnersFolded(tuple(found)))  # before commands that have come, and are not decided

    def _has_caught_up(self) -> None:
        self.caught_up = True
        self._put(FoldCaughtUp(), Rearranged())

    def _has_a_bug(self, error: BaseException) -> None:
        """Half a step is done: what it said from here on could be wrong. So it is opened anew, as where its projection
        cannot be kept."""
        log.critical("kv/%d: a step has failed, nothing more is served", self.actor, exc_info=error)
        self.projection_failed(
            ProjectionFailed(f"a step of it has failed: {error!r}, a bug of this actor; see its log")
        )

    def projection_failed(self, error: ProjectionFailed) -> None:
        """Nothing more can be read or folded: everybody is refused until this is closed. Only the first is told.

        Of commands that are in the queue, or in the step that has failed, nothing has been ordered.
        """
        if self._failure:
            return
        self._failure = str(error)
        events, self._events = self._events, deque()
        with self.outgoing:
            for event in events:
                if isinstance(event, Asked):
                    self._answers.pop(event.token)(FailInfo(FailCode.NO_ROOM, self._failure))
        waiters, self._fold_waiters = self._fold_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._around.failed(error)

    # ---- others

    async def _confirm_members(self) -> None:
        self._put(MembersConfirmed(await self._around.confirm_members()))

    async def _ask_secondary(self, number: int, actor: int, partition: int, transaction_id: int) -> None:
        member = self.members.get(actor)
        has = False
        if member is not None:
            try:
                has = await self._around.ask_secondary(member.server, partition, transaction_id)
            except (WaltzError, OSError) as error:
                log.info("kv/%d: %s cannot be asked for its copy: %s", self.actor, member.server, error)
        self._put(SecondaryAnswered(number, has))

    def _tick(self) -> None:
        self._put(TimePassed())
        self._ticker = self._loop.call_later(_TICK_S, self._tick)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._has_a_bug(error)


def _items(command: Command) -> int:
    if isinstance(command, Put):
        return len(command.ops)
    return len(command.names) if isinstance(command, GetMany) else 1


_OF_DOCUMENT = (Get, SetCommand, LockCommand, UnlockCommand)
"""Who sends these does not come again after a failinfo, but goes where he is told (O46)."""

_OF_KEEPER = (
    RecordCommitted,
    RecordRefused,
    FateUnknown,
    FoldedTo,
    UnitStops,
    WritesBounded,
    Rearranged,
    LeaseIsOver,
    StandsOrNot,
    SecondaryAnswered,
    ConnectionLeft,
    TimePassed,
)
