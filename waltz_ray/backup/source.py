"""The running cluster, as a backup sees it: committed records from the replicas, and what ZooKeeper knows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from waltz_ray.client.readers.reading import Marks, Reading
from waltz_ray.client.readers.replica_reader import ReplicaReader
from waltz_ray.coordination.api import ZooKeeper, release
from waltz_ray.coordination.cluster_store import ClusterInfo, ClusterStore
from waltz_ray.coordination.hold_store import HoldStore
from waltz_ray.coordination.seeding import documents_of
from waltz_ray.coordination.trim_store import TrimStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import CoordinationError, NodeExists, NoNode, VersionConflict
from waltz_ray.finding.find import FoundCluster, check_key
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.spaces import SpaceTable
from waltz_ray.protocol.times import TimeMarks

__all__ = ["Counters", "RunningCluster", "BackupSource"]

_READ_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Counters:
    """What was given out last: client IDs, server IDs, and each partition's generation."""

    client_id: int
    server_id: int
    generations: Mapping[int, int]


def _shape(info: ClusterInfo) -> dict[str, int]:
    """What replicas and servers that came and went have made of it."""
    shape = {"replicas": len(info.replica_ids), "servers": max(1, len(info.members.servers))}
    return shape | ({"replication": info.replication} if info.replication < len(info.replica_ids) else {})


class BackupSource(Protocol):
    """What is backed up. Partitions have their numbers in the cluster."""

    @property
    def cluster(self) -> str: ...
    @property
    def cluster_key(self) -> uuid.UUID: ...
    @property
    def replica_count(self) -> int: ...
    @property
    def config(self) -> Mapping[str, Any]:
        """The fields of its ClusterConfig."""

    def documents(self) -> dict[str, str]:
        """Rights and limits, without passwords (``coordination/seeding.py``)."""

    def spaces(self) -> SpaceTable: ...
    def end(self, partition_id: int) -> int:
        """The ID behind the last committed record."""

    def trim_marks(self) -> dict[int, int]: ...
    def recovery(self) -> str:
        """Which recovery from the disks has made the cluster's nodes (``ClusterStore.recovery``)."""

    def counters(self) -> Counters:
        """As of now: what was committed before has none that is higher."""

    def read(self, partition_id: int, first_id: int, end_id: int) -> Iterator[RecordBatch]:
        """Consecutive batches of exactly these committed records, all of them checked. DataUnavailable."""

    def times(self, partition_id: int, first_id: int, end_id: int) -> TimeMarks: ...
    def locked(self, backup: uuid.UUID) -> AbstractContextManager[Callable[[], None]]:
        """One run of a backup at a time, or one that begins a backup in a place, as far as can be told.
        CoordinationError if there is another; the given function raises it if another one may have begun since."""

    def hold(self, name: str, positions: Mapping[int, int], why: str) -> None:
        """Trimmed if one of the positions is below a trim mark; what is left is held then all the same."""

    def advance(self, name: str, positions: Mapping[int, int], why: str) -> None:
        """The hold rises to these, which have been held."""

    def release(self, name: str) -> None: ...


class RunningCluster:
    """A cluster that was found (``finding.find.find_cluster``); to be closed. ClusterNotFound, ClusterMismatch."""

    def __init__(self, found: FoundCluster) -> None:
        self._zookeeper: ZooKeeper = KazooZooKeeper(found.zookeeper)
        try:
            self._store = ClusterStore(self._zookeeper, found.name)
            info = self._store.info()
            check_key(found, info)
            reading = Reading.of(found.zookeeper, found.name, "replica")
            assert reading.keyring is not None
            self._marks = Marks(reading)
        except BaseException:
            self._zookeeper.close()
            raise
        self._reader = ReplicaReader(self._marks.locations.replicas, reading.keyring)
        self._holds = HoldStore(self._zookeeper, found.name)
        self._trims = TrimStore(self._zookeeper, found.name)
        self.cluster, self.cluster_key = found.name, info.cluster_key
        self.replica_count = len(info.replica_ids)
        self.config: Mapping[str, Any] = {**info.settings.get("config", {}), **_shape(info)}

    def documents(self) -> dict[str, str]:
        return documents_of(self._zookeeper, self.cluster)

    def spaces(self) -> SpaceTable:
        return self._store.spaces.table()

    def end(self, partition_id: int) -> int:
        try:
            return self._marks.high_water_mark(partition_id) + 1
        except NoNode:
            return 0  # its space is being made

    def trim_marks(self) -> dict[int, int]:
        return self._trims.marks()

    def recovery(self) -> str:
        return self._store.recovery()

    def counters(self) -> Counters:
        assignment, _ = self._store.assignment()
        generations = {p: assignment.generation(p) for p in range(assignment.proven_partitions())}
        return Counters(*self._store.last_ids(), generations)

    def read(self, partition_id: int, first_id: int, end_id: int) -> Iterator[RecordBatch]:
        return self._reader.read_range(partition_id, first_id, end_id, _READ_BYTES)

    def times(self, partition_id: int, first_id: int, end_id: int) -> TimeMarks:
        return self._reader.times(partition_id, first_id, end_id)

    @contextmanager
    def locked(self, backup: uuid.UUID) -> Iterator[Callable[[], None]]:
        path = f"/{self.cluster}/store/backup.{backup}"

        def check() -> None:
            if self._zookeeper.owner(path) != self._zookeeper.session_id:
                raise CoordinationError(
                    "the connection to ZooKeeper was lost for so long that another run of this backup may have begun; "
                    "give the same command again: it goes on from what is there"
                )

        try:
            self._zookeeper.create(path, b"", ephemeral=True)
        except NodeExists as error:
            raise CoordinationError(
                "another run of this backup is under way (or was killed some seconds ago); wait for its end"
            ) from error
        try:
            yield check
        finally:
            release(self._zookeeper, path)

    def hold(self, name: str, positions: Mapping[int, int], why: str) -> None:
        while True:
            try:
                self._zookeeper.write_all(self._holds.writes(name, positions, why))
                break
            except (VersionConflict, NodeExists, NoNode):
                continue  # another hold was made meanwhile
        self._holds.check(positions)

    def advance(self, name: str, positions: Mapping[int, int], why: str) -> None:
        try:
            self._holds.advance(name, positions)
        except NoNode:  # somebody has released it
            self.hold(name, positions, why)

    def release(self, name: str) -> None:
        self._holds.release(name)

    def backup_holds(self) -> dict[str, tuple[str, Mapping[int, int]]]:
        """Of all backups: name -> (why, positions)."""
        found = self._holds.all()
        return {name: (hold.why, hold.positions) for name, hold in found.items() if name.startswith("backup.")}

    def close(self) -> None:
        self._reader.close()
        self._marks.close()
        self._zookeeper.close()

    def __enter__(self) -> RunningCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
