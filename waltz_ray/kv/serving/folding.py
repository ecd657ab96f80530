"""The feeds of a space folded into its projections, a bounded piece a turn of the loop.

What a crash leaves: states with their marks; the next start goes on behind these. A state whose next transaction was
trimmed away is emptied and begins with the snapshot that the log begins with.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from waltz_ray.client.subscription import FeedItem, Subscription
from waltz_ray.errors import DataUnavailable, ProjectionFailed, Trimmed, WaltzError
from waltz_ray.kv.model import Own, Release, SnapshotChunk
from waltz_ray.kv.records import encode_record
from waltz_ray.kv.routing import Unit
from waltz_ray.kv.serving.space_log import SpaceLog
from waltz_ray.kv.state import KvState
from waltz_ray.protocol.records import RecordBatch

__all__ = ["Folding"]

_A_TURN = 500  # records: some milliseconds
_AGAIN_S = 0.5
_UNIT = Unit(0xF, 0)
_OF_OWNERS = frozenset(
    encode_record(record)[0] for record in (Own(_UNIT, 0, "", 0), Release(_UNIT, 0, "", 0), SnapshotChunk(0, ()))
)
"""The first bytes of records that may say who owns what."""


class Folding:
    """``folded(partition, owners)`` after each piece: whether it had records of owners; ``caught_up()`` once every
    partition has been at its end; ``failed`` when a state cannot be kept: then it has stopped.
    """

    def __init__(
        self,
        log: SpaceLog,
        states: Mapping[int, KvState],
        folded: Callable[[int, bool], None],
        caught_up: Callable[[], None],
        failed: Callable[[ProjectionFailed], None],
    ) -> None:
        self._log = log
        self._states = states
        self._folded = folded
        self._caught_up = caught_up
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._subscriptions: list[Subscription] = []
        self._frames: deque[tuple[Subscription, tuple[RecordBatch, int], int]] = deque()
        self._turn: asyncio.Handle | None = None
        self._ends: dict[int, int] | None = None  # where each partition ended when this began; None: it is caught up
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    async def start(self) -> None:
        """Follow every partition from its state's mark on. DataUnavailable if the log does not answer."""
        self._ends = await self._marks()
        await self._follow(self._states)
        self._look_whether_caught_up()

    async def stop(self) -> None:
        """Fold nothing more. Idempotent."""
        self._stopped = True
        if self._turn is not None:
            self._turn.cancel()
        self._frames.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for subscription in self._subscriptions:
            await self._log.unfollow(subscription)

    async def _marks(self) -> dict[int, int]:
        while True:
            try:
                return await self._log.high_water_marks(len(self._states))
            except DataUnavailable:
                await asyncio.sleep(_AGAIN_S)  # its servers are being found, or recover

    async def _follow(self, partitions: Iterable[int]) -> None:
        """Those that have nothing begin with what there is; the others must not miss anything."""
        marks = {partition: self._states[partition].mark for partition in partitions}
        for earliest in (True, False):
            first_ids = {partition: mark + 1 for partition, mark in marks.items() if (mark < 0) == earliest}
            if first_ids:
                await self._follow_these(first_ids, earliest)

    async def _follow_these(self, first_ids: Mapping[int, int], earliest: bool) -> None:
        early: list[FeedItem] = []
        put: Callable[[FeedItem], None] = early.append
        subscription = await self._log.follow(first_ids, lambda item: put(item), earliest)
        self._subscriptions.append(subscription)

        def taken(item: FeedItem) -> None:
            self._taken(subscription, tuple(first_ids), item)

        put = taken
        for item in early:
            taken(item)

    def _taken(self, subscription: Subscription, partitions: Sequence[int], item: FeedItem) -> None:
        if self._stopped or item is None or subscription not in self._subscriptions:
            return
        if isinstance(item, WaltzError):
            self._subscriptions.remove(subscription)
            self._frames = deque(frame for frame in self._frames if frame[0] is not subscription)
            self._spawn(self._begin_anew(subscription, partitions, item))
            return
        batch, size = item
        assert isinstance(batch, RecordBatch), "a follower is fed records"
        self._frames.append((subscription, (batch, size), 0))
        if self._turn is None:
            self._turn = self._loop.call_soon(self._fold)

    async def _begin_anew(self, subscription: Subscription, partitions: Sequence[int], error: WaltzError) -> None:
        """After a feed has ended: where it was trimmed away, with the snapshot behind that."""
        await self._log.unfollow(subscription)
        if isinstance(error, Trimmed):
            self._states[error.partition_id].reset()
        else:
            raise error
        await self._follow(partitions)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._stopped:
            self._failed(ProjectionFailed(f"a feed has ended: {task.exception()}"))

    def _fold(self) -> None:
        self._turn = None
        if self._stopped or not self._frames:
            return
        subscription, frame, start = self._frames.popleft()
        batch = frame[0]
        state = self._states[batch.partition_id]
        begin = max(start, state.mark + 1 - batch.first_id) if state.mark >= 0 else start
        end = min(len(batch), begin + _A_TURN)
        records = [(batch.first_id + index, bytes(batch.data(index))) for index in range(begin, end)]
        if end < len(batch):
            self._frames.appendleft((subscription, frame, end))
        if self._frames:
            self._turn = self._loop.call_soon(self._fold)
        try:
            state.apply(records)
        except ProjectionFailed as error:
            self._stopped = True
            self._failed(error)
            return
        if end == len(batch):
            subscription.used(frame)
        self._folded(batch.partition_id, any(data[0] in _OF_OWNERS for _, data in records))
        if self._ends is not None:
            self._look_whether_caught_up()

    def _look_whether_caught_up(self) -> None:
        """One that began in the midst of the log is whole only once a snapshot has ended."""
        states = self._states
        if self._ends is not None and all(states[p].whole and states[p].mark >= end for p, end in self._ends.items()):
            self._ends = None
            self._caught_up()
