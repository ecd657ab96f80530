"""Replicas that check their closed segments and fetch what has rotted: in the histories of seeds with the bit
``SCRUBS``.

All others are what they were before there was any: rot is damage there, which a server cuts away and copies anew.

The thread's steps are those of ``storage.upkeep``, one after the other in threads of the simulated process. Asking a
peer would block one, so it is asked beforehand: a source that does not have the records yet says so and asks for them,
and the repair is tried again. The peer's real service answers, in a turn like any other, as long as it is up."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from greenlet import GreenletExit

from tests.simulation.disk_threads import Afterwards, DiskThreads
from tests.simulation.replica_turns import Copier, Turn
from tests.storage.faulty_disk import Crashed
from waltz_ray.config import ServerConfig, StorageConfig
from waltz_ray.errors import PeerUnavailable, SyncFailed
from waltz_ray.protocol.ids import NO_SESSION
from waltz_ray.protocol.messages.replica import Read, Records, ReplicaReply
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.storage.layout import HEADER_BYTES, scan_records
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.storage.upkeep import Upkeep

if TYPE_CHECKING:
    from tests.simulation.replica import SimReplica

__all__ = ["SCRUBS", "SimUpkeep", "storage_config", "server_config"]

SCRUBS = 1 << 27

_DAMAGED_ON_THE_WAY = 0.3  # of the pieces that a peer sends, until the world is healed


def storage_config(config: StorageConfig, seed: int) -> StorageConfig:
    """With the rates of this history, where there is a scrub at all. Nothing is drawn from anybody's chance."""
    if not seed & SCRUBS:
        return config
    rate = (0, 3_000, 100_000)[seed % 3]
    size_bytes = (300, 1_000)[seed // 3 % 2]  # most of the log is closed
    return replace(config, repair=True, scrub_bytes_per_s=rate, scrub_interval_s=1, segment_size_bytes=size_bytes)


def server_config(config: ServerConfig, seed: int) -> ServerConfig:
    """Marks rise often, and late joiners keep their progress piece by piece."""
    return replace(config, progress_bytes=1, checkpoint_interval=20) if seed & SCRUBS else config


class SimUpkeep:
    """What one life of a replica does for its files."""

    def __init__(self, replica: SimReplica, store: ReplicaStore) -> None:
        self._replica, self._store = replica, store
        self._threads: DiskThreads = replica.threads
        self._random = Random(replica.world.seed + replica.replica_id + replica.life)
        peers = [other for other in replica.world.replicas if other is not replica]
        self._sources = [_Source(replica, peer, self._random) for peer in peers]
        clock = replica.world.scheduler
        self._upkeep = Upkeep(store, replica.config, lambda: self._sources, lambda: clock.now)
        self._later(0.1)

    def end(self) -> None:
        """The life is over, and its threads with it."""
        try:
            self._upkeep.close()
        except GreenletExit:  # its disk is gone, too
            return

    def _later(self, pause_s: float) -> None:
        self._replica.loop.call_later(max(pause_s, self._random.uniform(0.002, 0.02)), self._step)

    def _step(self) -> None:
        if not self._threads.over:
            self._threads.start(self._in_thread)

    def _in_thread(self) -> Afterwards:
        replica, before, rotten = self._replica, self._upkeep.progress, self._rotten()
        flips = dict(replica.disk.rotten)
        try:
            pause_s = self._upkeep.step()
        except Crashed:
            return lambda: replica.lose_power(replica.survival())
        except SyncFailed as error:
            self._threads.point()
            return partial(replica.fatal, error)
        counts, now = replica.world.history.counts, self._upkeep.progress
        counts["rotten segments found"] += now.found - before.found
        counts["rotten segments repaired"] += now.repaired - before.repaired
        for partition, first_id in rotten - self._rotten():
            path = partition.segment_path(first_id)
            if replica.disk.rotten.get(path) == flips.get(path):
                self._look_at(partition, first_id, path)
        return partial(self._later, pause_s)

    def _rotten(self) -> set[tuple[PartitionLog, int]]:
        known = self._store._partitions.values()
        return {(partition, first_id) for partition in known for first_id in partition.rotten}

    def _look_at(self, partition: PartitionLog, first_id: int, path: str) -> None:
        """What was rotten and is not any more is whole, or gone."""
        replica, end_id = self._replica, dict(partition.closed()[1]).get(first_id)
        if end_id is None:
            return
        handle = replica.disk.open(path, "read")
        scan = scan_records(replica.disk, handle, partition.partition_id, first_id, HEADER_BYTES, end_id)
        replica.disk.close(handle)
        if scan.reason is not None:
            what = f"{replica.host} has repaired {path}, and it is damaged: {scan.reason}"
            replica.world.history.blame("no_loss", f"partition {partition.partition_id}: {what}")


class _Source:
    """A peer as ``storage.repair`` sees it: what it has told so far."""

    def __init__(self, replica: SimReplica, peer: SimReplica, random: Random) -> None:
        self.name = peer.host
        self._world, self._peer, self._random = replica.world, peer, random
        self._told: list[RecordBatch] = []

    def read(self, partition_id: int, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        for batch in self._told:
            if batch.partition_id == partition_id and batch.first_id <= first_id < batch.end_id:
                start, count = first_id - batch.first_id, self._random.randint(1, 9)
                piece = batch.slice(start, min(start + count, end_id - batch.first_id, len(batch)))
                share = 0.0 if self._peer.may_stop.calm else _DAMAGED_ON_THE_WAY
                return self._damaged(piece) if self._random.random() < share else piece
        self._ask_later(partition_id, first_id, end_id)
        raise PeerUnavailable("it is being asked")

    def _damaged(self, batch: RecordBatch) -> RecordBatch:
        raw = bytearray(batch.records)
        raw[self._random.randrange(len(raw))] ^= 1 << self._random.randrange(8)
        return RecordBatch(batch.partition_id, batch.first_id, batch.lengths, bytes(raw))

    def _ask_later(self, partition_id: int, first_id: int, end_id: int) -> None:
        delay_s = self._random.uniform(0.001, 0.1)
        self._world.scheduler.after(delay_s, self._ask, partition_id, first_id, end_id)

    def _ask(self, partition_id: int, first_id: int, end_id: int) -> None:
        peer = self._peer
        if peer.up and not peer.paused and peer.service is not None:
            turn = Turn(_Asked(self, end_id), [Read(partition_id, NO_SESSION, first_id, end_id, 1 << 20)])
            peer.loop.enter(lambda: peer.handle(turn))

    def answered(self, reply: ReplicaReply, end_id: int) -> None:
        """Records of one of its segments; the next may have more."""
        if isinstance(reply, Records) and len(reply.lengths):
            batch = reply.batch
            self._told.append(batch)
            if batch.end_id < end_id:
                self._ask_later(batch.partition_id, batch.end_id, end_id)


class _Asked(Copier):
    def __init__(self, source: _Source, end_id: int) -> None:
        self._source, self._end_id = source, end_id

    def answer(self, replies: list[ReplicaReply]) -> None:
        self._source.answered(replies[0], self._end_id)
