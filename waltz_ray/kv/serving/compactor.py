"""Writes the live state of a partition into its log anew, and lets go of the log before that (``kv/compaction.py``).

Who owns the unit of the partition's number does it: one at a time, and if two did, the older snapshot is abandoned.
Killed at any step it leaves a snapshot that has not ended, which changes nothing; or a whole one that nobody has
trimmed to yet, which the next one does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from waltz_ray.errors import WaltzError
from waltz_ray.kv import compaction
from waltz_ray.kv.model import Record, SnapshotBegin, SnapshotEnd
from waltz_ray.kv.serving.space_log import AppendFates, SpaceLog
from waltz_ray.kv.serving.space_node import SpaceNode

__all__ = ["Compactor"]

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_IN_FLIGHT = 4  # chunks


class _GivenUp(Exception):
    """Somebody else may own the partition's unit by now, or the log does not answer."""


class Compactor:
    """``trim``: raise a partition's trim mark to an ID; from any thread's view it may take a while."""

    def __init__(
        self,
        node: SpaceNode,
        space_log: SpaceLog,
        trim: Callable[[Mapping[int, int]], Awaitable[None]],
        least_tail_bytes: int,
    ) -> None:
        self.snapshots = 0
        """Whole ones that were written here."""
        self._node = node
        self._log = space_log
        self._trim = trim
        self._least = least_tail_bytes
        self._trimmed: dict[int, int] = {}

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for partition in self._node.states:
                try:
                    await self._look(partition)
                except _GivenUp as error:
                    log.info("partition %d is not compacted now: %s", partition, error)
                except WaltzError as error:
                    log.warning("partition %d cannot be compacted: %s", partition, error)

    async def _look(self, partition: int) -> None:
        state = self._node.states[partition]
        if not self._node.caught_up or self._node.unit_of(partition) is None:
            return
        if compaction.is_due(state.live_bytes, state.tail_bytes, self._least):
            await self._write(partition)
        if state.last_snapshot > self._trimmed.get(partition, -1):
            await self._trim({partition: state.last_snapshot})
            self._trimmed[partition] = state.last_snapshot

    async def _write(self, partition: int) -> None:
        state = self._node.states[partition]
        begin = await self._append(partition, SnapshotBegin())
        await self._node.folded_to(partition, begin)
        under_way: set[asyncio.Future[int]] = set()
        for chunk in compaction.chunks(state.snapshot_items(), begin):
            if state.snapshot_begun != begin:
                raise _GivenUp("another snapshot was begun")
            under_way.add(asyncio.ensure_future(self._append(partition, chunk)))
            if len(under_way) >= _IN_FLIGHT:
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()
        await asyncio.gather(*under_way)
        end = await self._append(partition, SnapshotEnd(begin))
        await self._node.folded_to(partition, end)
        self.snapshots += 1

    def _append(self, partition: int, record: Record) -> asyncio.Future[int]:
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
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
