"""The feeds of a space folded into its projections, a bounded piece a turn of the loop.

Each frame of a feed and each fold, which is a transaction of its own, costs as much as some twenty records. So what
comes is gathered for a while, unless it says who owns what, somebody waits for it (``wanted``), it is much, or the
state is not yet at the end of the log; and for a moment only while units move (``hurry``): the next frame is not sent
before one is folded, and may have what somebody waits for. Nobody reads a state without what is fresh (``lines.py``),
so nobody sees that it is behind.

What a crash leaves: states with their marks; the next start goes on behind these. A state whose next transaction was
trimmed away is emptied and begins with the snapshot that the log begins with. So is one that has more than the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from waltz_ray.client.subscription import FeedItem, Subscription
from waltz_ray.errors import CoordinationError, DataUnavailable, ProjectionFailed, Trimmed, WaltzError
from waltz_ray.kv.model import Own, Release, SnapshotChunk
from waltz_ray.kv.records import encode_record
from waltz_ray.kv.routing import Unit
from waltz_ray.kv.serving.space_log import SpaceLog
from waltz_ray.kv.state import KvState
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.runtime.seldom import Seldom

__all__ = ["Folding", "forget_what_is_lost"]

log = logging.getLogger(__name__)

_A_TURN = 500  # records: some milliseconds
_PIECE_RECORDS = 20  # that cost as much as a transaction of a projection
_GATHERED_S, _HURRIED_S = 0.25, 0.01
_HURRY_S = 5.0
_GATHERED_RECORDS = 250
_GATHERED_BYTES = 256 << 10
_AGAIN_S = 0.5
_LOG_EVERY_S = 60.0
_UNIT = Unit(0xF, 0)
_OF_OWNERS = frozenset(
    encode_record(record)[0] for record in (Own(_UNIT, 0, "", 0), Release(_UNIT, 0, "", 0), SnapshotChunk(0, ()))
)
"""The first bytes of records that may say who owns what."""

Following = Callable[[Mapping[int, int], Callable[[FeedItem], None], bool], Awaitable[Subscription]]
"""``SpaceLog.follow``."""


async def forget_what_is_lost(log_of: SpaceLog, states: Mapping[int, KvState]) -> None:
    """Empty the states that have more than their partition's log, which were folded before records of it were lost
    (``waltz recover --accept-data-loss``). Waits for the log."""
    for partition, end in (await _ends_of(log_of, len(states))).items():
        state = states[partition]
        if state.mark > end:
            log.warning(
                "partition %d was folded up to %d, and its log ends at %d: it is folded anew",
                partition,
                state.mark,
                end,
            )
            state.reset()


async def _ends_of(log_of: SpaceLog, partitions: int) -> dict[int, int]:
    while True:
        try:
            return await log_of.high_water_marks(partitions)
        except DataUnavailable:
            await asyncio.sleep(_AGAIN_S)  # its servers are being found, or recover


class _Gathered:
    """What has come of one partition and is not folded."""

    __slots__ = ("frames", "owners", "records", "size_bytes", "wanted")

    def __init__(self) -> None:
        self.frames: deque[tuple[Subscription, tuple[RecordBatch, int], int]] = deque()
        """Each with the first of its records that is not folded."""
        self.records = 0
        self.size_bytes = 0
        self.owners = False
        """It may say who owns what."""
        self.wanted = -1
        """Somebody waits for this transaction."""

    @property
    def presses(self) -> bool:
        """Whether it is not to be gathered any longer."""
        frames = self.frames
        return (
            self.owners
            or self.records >= _GATHERED_RECORDS
            or self.size_bytes >= _GATHERED_BYTES
            or (bool(frames) and frames[0][1][0].first_id <= self.wanted)
        )

    def drop(self, subscription: Subscription) -> None:
        """Forget the frames of one that has ended."""
        self.frames = deque(frame for frame in self.frames if frame[0] is not subscription)
        self.records = sum(len(batch) for _, (batch, _), _ in self.frames)
        self.size_bytes = sum(batch.size_bytes for _, (batch, _), _ in self.frames)


class Folding:
    """``folded(partition, owners)`` after each piece: its records that may say who owns what; ``caught_up()`` once
    every partition has been at its end; ``emptied(partition)`` before a state is folded anew, since what it needed next
    was compacted away; ``failed`` when a state cannot be kept: then it has stopped.
    """

    def __init__(
        self,
        log: SpaceLog,
        states: Mapping[int, KvState],
        folded: Callable[[int, Sequence[bytes]], None],
        caught_up: Callable[[], None],
        emptied: Callable[[int], None],
        failed: Callable[[ProjectionFailed], None],
    ) -> None:
        self._log = log
        self._states = states
        self._folded = folded
        self._caught_up = caught_up
        self._emptied = emptied
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._subscriptions: list[Subscription] = []
        self._gathered = {partition: _Gathered() for partition in states}
        self._due: dict[int, None] = {}  # partitions that are folded in the next turns, in this order
        self._turn: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._hurry_until_s = 0.0
        self._ends: dict[int, int] | None = None  # where each partition ended when this began; None: it is caught up
        self._tasks: set[asyncio.Task[None]] = set()
        self._quiet = Seldom(_LOG_EVERY_S)
        self._stopped = False

    async def start(self) -> None:
        """Follow every partition from its state's mark on. DataUnavailable if the log does not answer."""
        self._ends = await _ends_of(self._log, len(self._states))
        await self._follow(self._states, self._log.follow)
        self._look_whether_caught_up()

    async def stop(self) -> None:
        """Fold nothing more. Idempotent."""
        self._stopped = True
        for handle in (self._turn, self._later):
            if handle is not None:
                handle.cancel()
        self._due.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for subscription in self._subscriptions:
            await self._log.unfollow(subscription)

    async def _follow(self, partitions: Iterable[int], follow: Following) -> None:
        """Those that have nothing begin with what there is; the others must not miss anything."""
        marks = {partition: self._states[partition].mark for partition in partitions}
        for earliest in (True, False):
            first_ids = {partition: mark + 1 for partition, mark in marks.items() if (mark < 0) == earliest}
            if first_ids:
                await self._follow_these(first_ids, earliest, follow)

    async def _follow_these(self, first_ids: Mapping[int, int], earliest: bool, follow: Following) -> None:
        early: list[FeedItem] = []
        put: Callable[[FeedItem], None] = early.append
        subscription = await follow(first_ids, lambda item: put(item), earliest)
        self._subscriptions.append(subscription)

        def taken(item: FeedItem) -> None:
            self._taken(subscription, tuple(first_ids), item)

        put = taken
        for item in early:
            taken(item)

    async def _follow_at_last(
        self, first_ids: Mapping[int, int], put: Callable[[FeedItem], None], earliest: bool
    ) -> Subscription:
        """A feed is a client of its own, and its ID comes from ZooKeeper: without that, what is known is served on."""
        while True:
            try:
                return await self._log.follow(first_ids, put, earliest)
            except CoordinationError as error:
                if self._quiet.due():
                    log.warning("partitions %s are not folded before ZooKeeper answers: %s", [*first_ids], error)
                await asyncio.sleep(_AGAIN_S)

    def _taken(self, subscription: Subscription, partitions: Sequence[int], item: FeedItem) -> None:
        if self._stopped or item is None or subscription not in self._subscriptions:
            return
        if isinstance(item, WaltzError):
            self._subscriptions.remove(subscription)
            for gathered in self._gathered.values():
                gathered.drop(subscription)
            self._spawn(self._begin_anew(subscription, partitions, item))
            return
        batch, size = item
        assert isinstance(batch, RecordBatch), "a follower is fed records"
        gathered = self._gathered[batch.partition_id]
        gathered.frames.append((subscription, (batch, size), 0))
        gathered.records += len(batch)
        gathered.size_bytes += batch.size_bytes
        gathered.owners = gathered.owners or any(data[0] in _OF_OWNERS for data in batch.datas() if data)
        if self._ends is not None or gathered.presses:
            self._fold_soon(batch.partition_id)
        elif self._later is None:
            hurry = self._loop.time() < self._hurry_until_s
            self._later = self._loop.call_later(_HURRIED_S if hurry else _GATHERED_S, self._fold_all)

    def hurry(self) -> None:
        """Units are about to move: nothing is to be late for some time."""
        self._hurry_until_s = self._loop.time() + _HURRY_S
        if self._later is not None:
            self._later.cancel()
            self._fold_all()

    def wanted(self, partition: int, transaction_id: int) -> None:
        """Somebody waits until the partition's state has this transaction: it is folded as soon as it comes."""
        gathered = self._gathered[partition]
        gathered.wanted = max(gathered.wanted, transaction_id)
        if gathered.presses:
            self._fold_soon(partition)

    def _fold_all(self) -> None:
        self._later = None
        for partition, gathered in self._gathered.items():
            if gathered.frames:
                self._fold_soon(partition)

    def _fold_soon(self, partition: int) -> None:
        self._due[partition] = None
        if self._turn is None:
            self._turn = self._loop.call_soon(self._fold)

    async def _begin_anew(self, subscription: Subscription, partitions: Sequence[int], error: WaltzError) -> None:
        """After a feed has ended: where it was trimmed away, with the snapshot behind that."""
        await self._log.unfollow(subscription)
        if isinstance(error, Trimmed):
            self._emptied(error.partition_id)
            self._states[error.partition_id].reset()
        else:
            raise error
        await self._follow(partitions, self._follow_at_last)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._stopped:
            self._failed(ProjectionFailed(f"a feed has ended: {task.exception()}"))

    def _fold(self) -> None:
        """Pieces of the partitions whose turn it is, as much as a turn of the loop may take."""
        self._turn = None
        left = _A_TURN
        while left > 0 and self._due and not self._stopped:
            partition = next(iter(self._due))
            del self._due[partition]
            left -= self._fold_piece(partition, left)
        if self._due and not self._stopped:
            self._turn = self._loop.call_soon(self._fold)

    def _fold_piece(self, partition: int, most: int) -> int:
        """At most so many records of a partition; how many it were, or a few more where there were none."""
        gathered, state = self._gathered[partition], self._states[partition]
        owners = gathered.owners
        records, used = self._next_piece(gathered, state.mark, most)
        if gathered.frames:
            self._due[partition] = None
        else:
            gathered.owners = False
        try:
            state.apply(records)
            for subscription, frame in used:
                subscription.used(frame)
            self._folded(partition, [data for _, data in records if data[0] in _OF_OWNERS] if owners else ())
        except ProjectionFailed as error:
            self._stopped = True
            self._failed(error)
        except BaseException as error:  # a bug of ours: the frames are gone, so nothing may be read of it any more
            self._stopped = True
            self._failed(ProjectionFailed(f"partition {partition} cannot be folded: {error!r}, a bug of this actor"))
            raise
        else:
            if self._ends is not None:
                self._look_whether_caught_up()
        return len(records) + _PIECE_RECORDS

    @staticmethod
    def _next_piece(
        gathered: _Gathered, mark: int, most: int
    ) -> tuple[list[tuple[int, bytes]], list[tuple[Subscription, tuple[RecordBatch, int]]]]:
        """Records behind ``mark``, and the frames that are done with them."""
        records: list[tuple[int, bytes]] = []
        used = []
        while gathered.frames and len(records) < most:
            subscription, frame, start = gathered.frames.popleft()
            batch = frame[0]
            begin = max(start, mark + 1 - batch.first_id) if mark >= 0 else start
            end = min(len(batch), begin + most - len(records))
            records += [(batch.first_id + index, bytes(batch.data(index))) for index in range(begin, end)]
            if end < len(batch):
                gathered.frames.appendleft((subscription, frame, end))
                break
            mark = max(mark, batch.last_id)
            gathered.records -= len(batch)
            gathered.size_bytes -= batch.size_bytes
            used.append((subscription, frame))
        return records, used

    def _look_whether_caught_up(self) -> None:
        """One that began in the midst of the log is whole only once a snapshot has ended."""
        states = self._states
        if self._ends is not None and all(states[p].whole and states[p].mark >= end for p, end in self._ends.items()):
            self._ends = None
            self._caught_up()
