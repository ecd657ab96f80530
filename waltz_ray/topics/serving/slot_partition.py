"""One partition of one topic on one actor: whether it is its slot's to serve, what is appended, what is read.

Why no two actors append to a partition at a time, whatever they believe: its OWN and RELEASE records are in the
partition itself, under its slot's write lock, and each message is appended under the read lock with the mark of the
fold. So an OWN that the fold has not come to has every message and every OWN of this actor refused; and one that it has
come to has told the machine that somebody else owns the partition, which then begins nothing any more. A zombie that
wakes up cannot write. It can read, which does no harm: what is committed is committed. What consumers have confirmed is
fenced where that is kept.

RELEASE takes the write lock, too: whatever of this actor might still be on its way is refused from then on.

A refusal may also be a false one (after a move of the partition's server locks are as new as its log): the message is
appended again when the fold has come so far, if the partition is ours then, and in its place (``message_line.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from waltz_ray import compat
from waltz_ray.client.append_fates import AppendFates
from waltz_ray.errors import WaltzError
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
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.topics.records import SlotOwn, SlotRelease, TopicMessage
from waltz_ray.topics.serving.fates import AppendedMessage, MessageFate, NotServed
from waltz_ray.topics.serving.header_window import HeaderWindow, HeaderWindows
from waltz_ray.topics.serving.message_line import MessageLine
from waltz_ray.topics.serving.partition_fold import (
    SAID_AGAIN_BYTES,
    SAID_AGAIN_RECORDS,
    PartitionFold,
    SlotClaim,
)
from waltz_ray.topics.serving.topic_log import TopicLog
from waltz_ray.topics.slots import THE_UNIT, OneUnit, of_slot, slot_of

__all__ = ["PartitionPlaces", "SlotPartition"]

log = logging.getLogger(__name__)

_SETTLED_S = 1.0
_LOST_S = 1.0
"""After an OWN or RELEASE of which nobody knows the fate: then the log is away."""


@dataclass(frozen=True)
class PartitionPlaces:
    """What a partition is given. ``changed``: it is served now, or not any more, or it has grown."""

    actor: int
    topic: str
    topic_log: TopicLog
    confirm_members: Callable[[], Awaitable[Mapping[int, str]]]
    changed: Callable[[int], None]
    tail_bytes: int = 4 << 20
    session_s: float = 1.5
    margin_s: float = 0.3


class SlotPartition:
    """See the module's docstring. In one event loop."""

    def __init__(self, places: PartitionPlaces, partition: int) -> None:
        self.partition = partition
        self.slot = slot_of(partition)
        self.failure = ""
        """Why nothing more can be known of it: it is to be closed."""
        self.appended = 0
        """Messages."""
        self._places = places
        self._log = places.topic_log
        self._machine: OwnershipMachine[int] = OwnershipMachine(
            places.actor, OneUnit(), places.session_s, places.margin_s
        )
        self.fold = PartitionFold(self._log, partition, places.tail_bytes, self._folded, self._ended)
        self._headers = HeaderWindows(self._log, partition)
        self._line = MessageLine(self._ask_log, self.fold, lambda: self.serving)
        self._loop = asyncio.get_running_loop()
        self._events: deque[OwnershipEvent[int]] = deque()
        self._busy = False
        self._in_flight = 0
        self._committed = -1
        self._stopping = False
        self._known = False  # who has it, by the log
        self._unsure = False  # an OWN of ours may be in the log one day, or not
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def run(self) -> None:
        """Begin: find out who has it. It goes on until ``close``."""
        await self.fold.start()
        self._known = True
        self._put(FoldCaughtUp())

    async def close(self) -> None:
        """Begin nothing more, hear nothing more. Who should have it later says the table. Idempotent."""
        self._closed = True
        self._line.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.fold.stop()

    # ---- what is known

    @property
    def serving(self) -> bool:
        """Whether it is ours: messages may be appended."""
        return not self._closed and not self.failure and self._machine.serving(THE_UNIT)

    @property
    def outrun(self) -> str:
        """Why it cannot be ours although the table says so (``OwnershipMachine.outrun``), "" else."""
        found = self._machine.outrun()
        return "" if found is None else found[1]

    @property
    def end(self) -> int:
        """The offset behind the last transaction that is known."""
        return self.fold.mark + 1

    @property
    def is_behind(self) -> bool:
        """Something is committed that the fold has not come to."""
        return self._committed > self.fold.mark

    async def settled(self, end: int = 0) -> None:
        """Return when it has, and knows what is below ``end``, or after a while: who was told that a message is
        committed can consume it, and who has read it can confirm it."""
        wanted = max(self._committed, end - 1)
        if wanted > self.fold.mark:
            folded = asyncio.Event()
            self.fold.after(wanted, folded.set)
            try:
                with contextlib.suppress(TimeoutError):
                    async with compat.timeout(_SETTLED_S):
                        await folded.wait()
            finally:
                if not folded.is_set():
                    self.fold.forget(folded.set)

    @property
    def epoch(self) -> int:
        """Of its last OWN; 0: there is none."""
        claim = self._machine.claims.get(THE_UNIT)
        return 0 if claim is None else claim.epoch

    async def log_end(self) -> int:
        """``end`` as the log has it, which may be further. DataUnavailable."""
        return await self._log.high_water_mark(self.partition) + 1

    async def first(self) -> int:
        """The first offset that there is. DataUnavailable."""
        return await self._log.first_id_at(self.partition, 0)

    async def read(self, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        """Transactions from ``first_id`` on, possibly fewer than asked. DataUnavailable, Trimmed."""
        return await self._log.read(self.partition, first_id, end_id, max_bytes)

    async def headers(self, offset: int, end: int) -> HeaderWindow:
        """Headers from ``offset`` on, of transactions that are known to be committed. DataUnavailable, Trimmed."""
        return await self._headers.since(offset, end)

    @property
    def idle(self) -> bool:
        """It is not ours, is not to be, and nothing of it is under way: the log will not say either that it is ours.
        Nobody else could release it."""
        place = self._machine.place(THE_UNIT)
        wanted = place is not None and place.primary == self._places.actor
        under_way = self._in_flight or self._stopping or self._unsure or self._machine.engaged(THE_UNIT)
        return self._known and not wanted and not under_way

    # ---- what the coordination says

    def table_seen(self, table: UnitTable[int]) -> None:
        """Of all slots."""
        self._put(TableSeen(of_slot(table, self.slot)))

    def members_seen(self, incarnations: Mapping[int, str]) -> None:
        self._put(MembersSeen(incarnations))

    def told(self, event: RegisteredAs | Unregistered | LeaseConfirmed) -> None:
        """About our own registration."""
        self._put(event)

    # ---- messages

    def append(self, message: TopicMessage, told: Callable[[MessageFate], None]) -> None:
        """Append; ``told`` is called once. Messages get into the log in the order of the calls."""
        if not self.serving:
            told(NotServed())
            return

        def ended(fate: MessageFate) -> None:
            self._landed()
            if isinstance(fate, AppendedMessage):
                self.appended += 1
                self._committed = max(self._committed, fate.transaction_id)
            told(fate)

        self._in_flight += 1
        self._line.put(message, ended)

    def _ask_log(self, message: TopicMessage, mark: int, fates: AppendFates) -> None:
        self._log.append(self.partition, self.slot, message, mark, fates)

    def _landed(self) -> None:
        self._in_flight -= 1
        if self._stopping and not self._in_flight:
            self._stopping = False
            self._put(Drained(THE_UNIT))

    def _say_again(self) -> None:
        """Who owns the partition, so that whoever looks back finds it soon."""
        fold, claim = self.fold, self._machine.claims.get(THE_UNIT)
        if claim is None or (fold.records_since < SAID_AGAIN_RECORDS and fold.bytes_since < SAID_AGAIN_BYTES):
            return
        fold.records_since = fold.bytes_since = 0
        self._in_flight += 1
        own = SlotOwn(self.slot, claim.actor, claim.incarnation, claim.epoch)
        fates = AppendFates(lambda _: self._landed(), lambda _: self._landed(), lambda _: self._landed())
        self._log.append(self.partition, self.slot, own, fold.mark, fates)

    # ---- ownership

    def _folded(self, claims: Sequence[SlotClaim]) -> None:
        for claim in claims:
            if claim != self._machine.claims.get(THE_UNIT):
                self._put(OwnersFolded(((THE_UNIT, claim),)))
        if self.serving:  # native producers append without us
            self._say_again()
        self._places.changed(self.partition)

    def _ended(self, error: WaltzError) -> None:
        self.failure = f"its feed has ended: {error}"
        self._places.changed(self.partition)

    def _put(self, *events: OwnershipEvent[int]) -> None:
        self._events.extend(events)
        if self._busy or self._closed:
            return
        self._busy = True
        try:
            while self._events:
                event = self._events.popleft()
                before = self._machine.serving(THE_UNIT)
                for order in self._machine.step(event):
                    self._carry_out(order)
                if self._machine.serving(THE_UNIT) != before:
                    self._places.changed(self.partition)
        finally:
            self._busy = False
        if self.idle:
            self._places.changed(self.partition)

    def _carry_out(self, order: OwnershipEffect[int]) -> None:
        match order:
            case Take(unit, incarnation, epoch, _):
                own = SlotOwn(self.slot, self._places.actor, incarnation, epoch)
                refused = TakeRefused(unit)
                self._append_owner(own, lambda transaction_id: TakeDone(unit, transaction_id), refused, refused)
            case ReleaseUnit(unit, incarnation, epoch, _):
                release = SlotRelease(self.slot, self._places.actor, incarnation, epoch)
                self._append_owner(release, lambda _: ReleaseDone(unit), ReleaseRefused(unit), ReleaseLost(unit))
            case Serve():
                log.info("topic/%d: slot %d of topic %s is served", self._places.actor, self.slot, self._places.topic)
            case StopServing(unit, reason):
                text = "topic/%d: slot %d of topic %s is served no more: %s"
                log.info(text, self._places.actor, self.slot, self._places.topic, reason)
                if self._in_flight:
                    self._stopping = True
                else:
                    self._events.append(Drained(unit))
            case ConfirmMembers():
                self._spawn(self._confirm_members())

    def _append_owner(
        self,
        record: SlotOwn | SlotRelease,
        done: Callable[[int], OwnershipEvent[int]],
        refused: OwnershipEvent[int],
        unknown: OwnershipEvent[int],
    ) -> None:
        """A refusal is told once the fold has what was in the way."""

        def lost(reason: str) -> None:
            log.warning("topic/%d: nobody can say whether its %s is in the log: %s", self._places.actor, record, reason)
            self._unsure = self._unsure or isinstance(record, SlotOwn)
            self._loop.call_later(_LOST_S, self._put, unknown)

        fates = AppendFates(
            lambda transaction_id: self._put(done(transaction_id)),
            lambda conflict: self.fold.after(conflict, lambda: self._put(refused)),
            lost,
        )
        self._log.append(self.partition, self.slot, record, self.fold.mark, fates, exclusive=True)

    async def _confirm_members(self) -> None:
        self._put(MembersConfirmed(await self._places.confirm_members()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # its order would wait for ever
            log.critical("topic/%d: slot %d has failed", self._places.actor, self.slot, exc_info=error)
            self.failure = f"a task of it has failed: {error!r}, a bug of this actor; see its log"
            self._places.changed(self.partition)
