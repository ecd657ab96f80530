"""Writes the live state of partitions into their logs anew, some sections at a time, and lets go of the log before that
(``kv/compaction.py``).

Who owns the unit of the partition's number does it: one at a time, and if two did, the older snapshot is abandoned.
Killed at any step it leaves a snapshot that has not ended, which changes nothing; or a whole one that nobody has
trimmed to yet, which the next one does.

Some partitions at once, for each waits for the log several times; their chunks share one bound, so that however many
they are, clients' writes find no more before them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

from waltz_ray.client.append_fates import AppendFates
from waltz_ray.errors import ProjectionFailed, WaltzError
from waltz_ray.kv import compaction
from waltz_ray.kv.model import Record, SnapshotBegin, SnapshotEnd
from waltz_ray.kv.serving.space_log import SpaceLog
from waltz_ray.kv.serving.space_node import SpaceNode
from waltz_ray.runtime.seldom import Seldom

__all__ = ["Compactor"]

log = logging.getLogger(__name__)

_LOOK_S = 0.2
_LOG_EVERY_S = 60.0
_AT_ONCE = 8  # partitions
_IN_FLIGHT = 8  # chunks of all of them


class _GivenUp(Exception):
    """Somebody else may own the partition's unit by now, or the log does not answer."""


class Compactor:
    """``trim``: raise partitions' trim marks to these IDs; from any thread's view it may take a while."""

    def __init__(
        self,
        node: SpaceNode,
        space_log: SpaceLog,
        trim: Callable[[Mapping[int, int]], Awaitable[None]],
        least_tail_bytes: int,
    ) -> None:
        self.snapshots = 0
        """Of one section or more, whole ones that were written here."""
        self._node = node
        self._log = space_log
        self._trim = trim
        self._least = least_tail_bytes
        self._trimmed: dict[int, int] = {}
        self._quiet = Seldom(_LOG_EVERY_S)
        self._room = asyncio.Semaphore(_IN_FLIGHT)
        self._writing: dict[int, asyncio.Task[None]] = {}  # by partition
        self._trimming: asyncio.Task[None] | None = None
        self._bounded: set[int] = set()  # partitions where writes may have to wait

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                self._look()
        finally:
            for task in [*self._writing.values(), *([self._trimming] if self._trimming else [])]:
                task.cancel()

    def _look(self) -> None:
        """Begin what is due: the longest tails first, and of all marks one write at a time."""
        for partition in [partition for partition, task in self._writing.items() if task.done()]:
            self._writing.pop(partition).result()
        if not self._node.caught_up:
            return
        due = self._due()
        self._bound(due)
        for partition in sorted(due, key=lambda each: -due[each])[: _AT_ONCE - len(self._writing)]:
            self._writing[partition] = asyncio.ensure_future(self._compact(partition))
        self._trim_ended()

    def _due(self) -> dict[int, int]:
        """Partitions of ours that are to be compacted, and their tails."""
        due = {}
        for partition, state in self._node.states.items():
            if partition not in self._writing and self._is_ours(partition):
                ahead = self._node.ahead_bytes(partition)
                since, tail = state.since_snapshot_bytes + ahead, state.tail_bytes + ahead
                if compaction.is_due(state.live_bytes, since, tail, self._least):
                    due[partition] = tail
        return due

    def _trim_ended(self) -> None:
        """Let go of what snapshots have replaced, unless that is going on."""
        if self._trimming is not None:
            if not self._trimming.done():
                return
            self._trimming.result()
            self._trimming = None
        states = self._node.states
        marks = {partition: state.needed_from for partition, state in states.items() if self._is_ours(partition)}
        marks = {partition: mark for partition, mark in marks.items() if mark > self._trimmed.get(partition, -1)}
        if marks:
            self._trimming = asyncio.ensure_future(self._trim_to(marks))

    def _bound(self, due: Mapping[int, int]) -> None:
        """Where a snapshot is due, or being written, no more is written than there is room for."""
        for partition in self._bounded.difference(due, self._writing):
            self._unbound(partition)
        for partition, tail in due.items():
            live = self._node.states[partition].live_bytes
            self._bounded.add(partition)
            self._node.bound_writes(partition, compaction.room_bytes(live, tail, self._least))

    def _unbound(self, partition: int) -> None:
        if partition in self._bounded:
            self._bounded.remove(partition)
            self._node.bound_writes(partition, None)

    def _is_ours(self, partition: int) -> bool:
        return self._node.unit_of(partition) is not None

    async def _compact(self, partition: int) -> None:
        try:
            await self._write(partition)
        except _GivenUp as error:
            log.info("partition %d is not compacted now: %s", partition, error)
        except ProjectionFailed as error:
            self._node.projection_failed(error)
        except WaltzError as error:
            log.warning("partition %d cannot be compacted: %s", partition, error)
        self._unbound(partition)
        self._trim_ended()

    async def _trim_to(self, marks: Mapping[int, int]) -> None:
        try:
            await self._trim(marks)
        except WaltzError as error:
            if self._quiet.due():
                log.warning("the log before snapshots is not let go of: %s", error)
        else:
            self._trimmed.update(marks)

    async def _write(self, partition: int) -> None:
        state = self._node.states[partition]
        sections = state.oldest_sections(compaction.sections_at_once(state.live_bytes, self._least))
        begin = await self._append(partition, SnapshotBegin(sections))
        await self._node.folded_to(partition, begin)
        under_way: deque[asyncio.Future[int]] = deque()
        for chunk in compaction.chunks(state.snapshot_items(sections), begin):
            if state.snapshot_begun != begin:
                raise _GivenUp("another snapshot was begun")
            await self._room.acquire()
            appended = self._append(partition, chunk)
            appended.add_done_callback(lambda _: self._room.release())
            under_way.append(appended)
            while under_way and under_way[0].done():
                under_way.popleft().result()
        await asyncio.gather(*under_way)
        end = await self._append(partition, SnapshotEnd(begin))
        await self._node.folded_to(partition, end)
        self.snapshots += 1

    def _append(self, partition: int, record: Record) -> asyncio.Future[int]:
        """The record's ID; _GivenUp. It may be left alone."""
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        told.add_done_callback(lambda _: told.cancelled() or told.exception())  # looked at, for asyncio
        unit = self._node.unit_of(partition)
        if unit is None:
            told.set_exception(_GivenUp("its unit is somebody else's"))
            return told

        def end(error: str) -> None:
            if not told.done():
                told.set_exception(_GivenUp(error))

        fates = AppendFates(
            lambda version: None if told.done() else told.set_result(version),
            lambda conflict: end(f"transaction {conflict} may have changed its owner"),
            end,
        )
        self._log.append(partition, record, self._node.states[partition].mark, fates, read=(unit,))
        return told
