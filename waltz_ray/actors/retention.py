"""Raises the trim marks of a server's partitions as the settings of their spaces say (docs/retention.md, "Policies").

The server of a partition does it, for only there is known what is committed. It asks every member replica from which
record on to keep, each by its own clock and disk, and takes the lowest answer: one clock that is ahead gives up
nothing. Nor does its own that is behind, by which records are dated: of what it has committed itself it knows how old
that is. Marks of all partitions are raised with one write. Nothing depends on when that happens, or on it happening:
what fails is done with a later look. A partition is asked about only where the answer may be another one: by size if
something was committed since, by age every fiftieth part of what is kept; and if the policy is another one, or what was
found the last time could not be given up, because of a hold or for whatever reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol, TypeVar

from waltz_ray.actors.partition_driver import PartitionDriver
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import CoordinationError, ReplicaRefused
from waltz_ray.protocol.spaces import SpaceTable
from waltz_ray.protocol.trimming import policy_of
from waltz_ray.runtime.seldom import Seldom

__all__ = ["Retention", "RetentionHost"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_LOG_EVERY_S = 60.0
_LOOKS_AT_AN_AGE = 50


class RetentionHost(Protocol):
    """What it needs of its server."""

    server_id: int
    store: ClusterStore
    assigned: dict[int, int]

    @property
    def drivers(self) -> Mapping[int, PartitionDriver]: ...

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]: ...


class _Committed:
    """How far a partition was when, as its server saw it by the loop's clock. What came since then is younger, whatever
    a wall clock has dated it."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        """Of the assignment: between two of them others may have committed."""
        self._seen: deque[tuple[float, int]] = deque()

    def saw(self, now_s: float, high_water_mark: int, every_s: float) -> None:
        """Of looks that are closer together than ``every_s`` the first is remembered."""
        if not self._seen or now_s >= self._seen[-1][0] + every_s:
            self._seen.append((now_s, high_water_mark))

    def since(self, at_s: float) -> int:
        """The first ID that may have been committed later than then; earlier times are not asked for any more. What was
        there at the first look is not known to be so."""
        while len(self._seen) > 1 and self._seen[1][0] <= at_s:
            self._seen.popleft()
        return self._seen[0][1] + 1


class Retention:
    """One server's. ``follow`` tells it of the spaces; ``keep_looking`` runs until it is cancelled."""

    def __init__(self, host: RetentionHost, interval_s: float) -> None:
        self._host = host
        self._interval_s = interval_s
        self._table: SpaceTable | None = None
        self._quiet = Seldom(_LOG_EVERY_S)
        # partition -> its high-water mark then, when, and by which policy (age, bytes)
        self._asked: dict[int, tuple[int, float, tuple[int, int]]] = {}
        self._committed: dict[int, _Committed] = {}

    def follow(self, table: SpaceTable) -> None:
        """The spaces, and their settings, are these now."""
        self._table = table

    async def keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.look()
            # It is away, or a node is to be put right by a person, or no thread can be started: it goes on then.
            except (CoordinationError, RuntimeError) as error:
                if self._quiet.due():
                    log.warning("server %d: trims nothing for now: %s", self._host.server_id, error)

    async def look(self) -> None:
        """Raise every mark that may be raised now. CoordinationError."""
        wanted: dict[int, int] = {}
        for space in [] if self._table is None else self._table.present():
            policy = policy_of(space.settings)
            if policy is None:
                continue
            for partition_id in [p for p in space.partitions if p in self._host.assigned]:
                machine = self._host.drivers[partition_id].machine
                if not machine.ready or not self._may_have_changed(partition_id, machine.high_water_mark, *policy):
                    continue
                first_id = await self._first_to_keep(partition_id, *policy)
                if first_id > machine.trim_mark:
                    wanted[partition_id] = first_id
        if wanted:
            await self._raise(wanted)

    async def _raise(self, wanted: Mapping[int, int]) -> None:
        raised: Mapping[int, int] = {}
        try:
            raised = await self._host.in_thread(partial(self._host.store.trims.raise_marks, wanted))
        finally:
            for partition_id in [p for p, first_id in wanted.items() if raised.get(p, 0) < first_id]:
                self._asked.pop(partition_id, None)

    def _may_have_changed(self, partition_id: int, high_water_mark: int, age_ms: int, most_bytes: int) -> bool:
        if partition_id not in self._asked:
            return True
        mark, asked_s, policy = self._asked[partition_id]
        older = age_ms >= 0 and _now_s() >= asked_s + age_ms / _LOOKS_AT_AN_AGE / 1000
        return older or (most_bytes >= 0 and high_water_mark != mark) or policy != (age_ms, most_bytes)

    async def _first_to_keep(self, partition_id: int, age_ms: int, most_bytes: int) -> int:
        driver = self._host.drivers[partition_id]
        now_s = _now_s()
        self._asked[partition_id] = driver.machine.high_water_mark, now_s, (age_ms, most_bytes)
        younger = self._younger(partition_id, age_ms, now_s)
        try:
            by_size = await driver.excess(-1, most_bytes) if most_bytes >= 0 else 0
            by_age = min(await driver.excess(age_ms, -1), younger) if age_ms >= 0 else 0
        except (ReplicaRefused, ConnectionError) as error:  # a member that does not answer soon is none any more
            log.debug("partition %d: %s", partition_id, error)
            del self._asked[partition_id]
            return 0
        return max(by_size, by_age)

    def _younger(self, partition_id: int, age_ms: int, now_s: float) -> int:
        """The first ID that is known to be younger than ``age_ms``, or that may be."""
        generation, committed = self._host.assigned[partition_id], self._committed.get(partition_id)
        if committed is None or committed.generation != generation:
            committed = self._committed[partition_id] = _Committed(generation)
        age_s = max(0, age_ms) / 1000
        committed.saw(now_s, self._host.drivers[partition_id].machine.high_water_mark, age_s / _LOOKS_AT_AN_AGE)
        return committed.since(now_s - age_s)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
