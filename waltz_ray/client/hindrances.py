"""Why appends and mounts wait: the server is asked, the application's log is told, and so is whoever gets an error.

A partition waits when something of it has neither a fate nor a server that takes it, and no fate has come between two
looks. Looking changes nothing: what waits goes on waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from waltz_ray.client.core import PartitionShell
from waltz_ray.client.rpc import Rpc

__all__ = ["Hindrances"]

logger = logging.getLogger(__name__)

_ANSWER_WITHIN_S = 2.0


class Hindrances:
    """Looks every ``interval_s`` seconds; 0: never. On the client's loop."""

    def __init__(self, partitions: Callable[[], Iterable[PartitionShell]], rpc: Rpc, interval_s: float) -> None:
        self._partitions = partitions
        self._rpc = rpc
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None
        self._seen: dict[PartitionShell, object] = {}  # those that wait, and how far they had come
        self._told: dict[int, set[str]] = {}  # by partition, until it goes on
        self._asking: dict[PartitionShell, asyncio.Task[None]] = {}

    def begin(self) -> None:
        """Look from now on, if that has not begun."""
        if self._interval_s and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    async def end(self) -> None:
        """Look no more."""
        self._interval_s = 0
        if self._timer is not None:
            self._timer.cancel()
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_s, self._look)
        before, self._seen = self._seen, {}
        stands = set()
        for partition in self._partitions():
            if partition.waits:
                come = self._seen[partition] = partition.progress
                if before.get(partition) == come:
                    stands.add(partition.partition_id)
                    self._begin_to_ask(partition)
                    continue
            partition.hindered("")
        for partition_id in self._told.keys() - stands:
            del self._told[partition_id]
            logger.info("partition %d goes on", partition_id)

    def _begin_to_ask(self, partition: PartitionShell) -> None:
        if partition not in self._asking:
            task = self._asking[partition] = asyncio.get_running_loop().create_task(self._ask(partition))
            task.add_done_callback(lambda _: self._asking.pop(partition, None))

    async def _ask(self, partition: PartitionShell) -> None:
        reason = await self._rpc.hindrance(partition.partition_id, _ANSWER_WITHIN_S)
        if partition not in self._seen:
            return  # it has gone on meanwhile
        if reason:
            partition.hindered(reason)
            told = self._told.setdefault(partition.partition_id, set())
            if reason not in told:
                told.add(reason)
                logger.warning("partition %d takes no appends just now: %s", partition.partition_id, reason)
