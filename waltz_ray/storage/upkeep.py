"""What a replica does for its own files while it serves: repairs what has rotted, then looks for more.

A repair goes before the scrub: until it is done there is a copy less. One that fails is tried again, ever later, and
the others go on: a segment that no peer can give must not keep the next one from being repaired."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from waltz_ray.config import StorageConfig
from waltz_ray.errors import (
    CopiesDisagree,
    Corruption,
    DiskFull,
    InvalidInput,
    OutOfResources,
    PeerUnavailable,
    StorageError,
)
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.repair import RepairSource, repair_segment
from waltz_ray.storage.scrub import Scrub
from waltz_ray.storage.scrub_plan import ScrubPlan, ScrubProgress
from waltz_ray.storage.scrub_record import read_scrub_record, write_scrub_record
from waltz_ray.storage.store import ReplicaStore

__all__ = ["LOOK_S", "Unrepaired", "Upkeep"]

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often it is looked whether a reader has met rot: at all partitions, which may be thousands."""

_KEEP_S = 60.0  # between two records of how far the scrub is
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 300.0  # after a repair that failed


@dataclass(frozen=True)
class Unrepaired:
    """Damage that is there now. ``why_not``: what came of the last attempt to repair it, "" before one has failed."""

    partition_id: int
    damage: Corruption
    why_not: str


@dataclass
class _Failure:
    why: str
    pause_s: float
    until_s: float


class Upkeep:
    """One store's. ``step`` does a piece of what is to be done and says how long to pause: a thread calls it, or a
    simulator. ``sources`` gives the peers of the moment; ``now_s`` is any clock that does not jump."""

    def __init__(
        self,
        store: ReplicaStore,
        config: StorageConfig,
        sources: Callable[[], Sequence[RepairSource]],
        now_s: Callable[[], float],
    ) -> None:
        self._store, self._config, self._sources, self._now_s = store, config, sources, now_s
        self._plan = ScrubPlan(config.scrub_bytes_per_s, config.scrub_interval_s)
        self._scrub = Scrub(store, self._plan, now_s)
        self._kept = read_scrub_record(store.disk, store.directory)
        self._kept_s = now_s()
        if self._kept is not None:
            self._plan.go_on(now_s(), store.now_ms(), self._kept)
        self._failures: dict[tuple[int, int], _Failure] = {}
        self._look_s = now_s()  # when it is looked for rot next
        self._repairing: tuple[int, int] | None = None
        self._pieces: Iterator[int] = iter(())

    @property
    def progress(self) -> ScrubProgress:
        """Of the scrub, and what it has found."""
        return self._plan.progress

    def unrepaired(self) -> list[Unrepaired]:
        """The damages that are known now, of closed segments."""
        found = []
        for partition_id, first_id, damage in self._rotten():
            failure = self._failures.get((partition_id, first_id))
            found.append(Unrepaired(partition_id, damage, failure.why if failure else ""))
        return found

    def step(self) -> float:
        """Repair a piece, or check one; the seconds until the next step. SyncFailed: end the process."""
        now_s = self._now_s()
        if self._repairing is None and now_s >= self._look_s:
            self._look_s = now_s + LOOK_S / 2  # not at every piece that the scrub reads
            self._begin_a_repair()
        if self._repairing is not None:
            return self._repair(*self._repairing)
        if not self._config.scrub_bytes_per_s:
            return LOOK_S
        found = self._plan.progress.found
        pause_s = self._scrub.step()
        if self._plan.progress.found > found:
            self._look_s = now_s
        self._keep()
        return min(LOOK_S, pause_s)

    def close(self) -> None:
        """Give back what is open."""
        self._scrub.close()
        self._end_repair()

    def _keep(self) -> None:
        """For the next start: at the end of a pass, and every minute or so in between."""
        now_s, is_over = self._now_s(), self._plan.current is None
        if is_over or now_s - self._kept_s >= _KEEP_S:
            record, self._kept_s = self._plan.record(), now_s
            if record is not None and record != self._kept:
                self._kept = record
                write_scrub_record(self._store.disk, self._store.directory, record)

    def _rotten(self) -> Iterator[tuple[int, int, Corruption]]:
        for partition_id in self._store.served_ids:
            partition = self._partition(partition_id)
            if partition is not None:
                for first_id, damage in partition.rotten.items():
                    yield partition_id, first_id, damage

    def _partition(self, partition_id: int) -> PartitionLog | None:
        with contextlib.suppress(InvalidInput, OutOfResources, OSError):  # removed, or not to be opened now
            return self._store.partition(partition_id)
        return None

    def _begin_a_repair(self) -> None:
        now_s = self._now_s()
        for partition_id, first_id, damage in self._rotten():
            self._plan.found(partition_id, first_id)
            failure = self._failures.get((partition_id, first_id))
            partition = self._partition(partition_id)
            if partition is None or (failure is not None and now_s < failure.until_s):
                continue
            if failure is None:
                log.warning("partition %d is repaired: %s", partition_id, damage)
            self._repairing = partition_id, first_id
            place = self._store.disk, self._store.cluster_key, partition, first_id
            self._pieces = repair_segment(*place, self._sources())
            return

    def _repair(self, partition_id: int, first_id: int) -> float:
        try:
            size_bytes = next(self._pieces, 0)
        except (PeerUnavailable, CopiesDisagree, DiskFull, OutOfResources) as error:
            self._failed(partition_id, first_id, error)
            size_bytes = 0
        else:
            if not size_bytes:
                self._ended(partition_id, first_id)
        if not size_bytes:
            self._end_repair()
        return self._plan.has_read(self._now_s(), size_bytes)

    def _ended(self, partition_id: int, first_id: int) -> None:
        partition = self._partition(partition_id)
        if partition is None:
            return
        if partition.damaged is not None:
            why = "the partition is damaged elsewhere, too: it waits to be cut and copied anew"
            self._failed(partition_id, first_id, PeerUnavailable(why))
        elif first_id in partition.rotten:
            self._failed(partition_id, first_id, PeerUnavailable("its files were changed meanwhile"))
        else:
            self._failures.pop((partition_id, first_id), None)
            self._plan.repaired(partition_id, first_id)
            log.info("partition %d: the segment of transaction %d is whole again", partition_id, first_id)

    def _failed(self, partition_id: int, first_id: int, error: StorageError) -> None:
        before = self._failures.get((partition_id, first_id))
        pause_s = _FIRST_PAUSE_S if before is None else min(_LONGEST_PAUSE_S, 2 * before.pause_s)
        if before is None or before.why != str(error):
            log.warning("partition %d, segment of %d: not repaired: %s", partition_id, first_id, error)
        self._failures[partition_id, first_id] = _Failure(str(error), pause_s, self._now_s() + pause_s)

    def _end_repair(self) -> None:
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()  # its files go
        self._repairing, self._pieces, self._look_s = None, iter(()), self._now_s()
