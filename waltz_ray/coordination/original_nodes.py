"""The ZooKeeper nodes below ``<root>/store`` that the original's operator tools read, kept up for them.

::

    /<cluster>/store                   cluster key, number of partitions
        /assignment                    "host:port" of each replica -> its partitions
        /group                         "host:port" of each replica -> its number: every replica is a group of its own
        /connection                    "host:port" of each replica -> its admin port: empty, ours have none
        /partition/<p>                 session, generation, and each replica's session and closing mark

They are a copy, never the truth, and nothing of ours reads them. The truth is written by servers, in the middle of
opening a session, and must not wait for a second write: so the manager follows it with watches, about a second behind,
and for as long as the manager or ZooKeeper is away the copy stays what it was. Several managers may write: what they
write comes from the same nodes, and whoever wrote something old is told of the new state and writes again.

A replica that has never said where it listens is in none of them: the original knows replicas only by that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from waltz_ray.coordination.api import Watch, ZooKeeper
from waltz_ray.coordination.cluster_nodes import partition_path
from waltz_ray.coordination.cluster_store import ClusterStore, Watches
from waltz_ray.errors import CoordinationError, NodeExists, NoNode
from waltz_ray.protocol.spaces import SpaceTable
from waltz_ray.wire import znodes
from waltz_ray.wire.znodes import PartitionMetadata, ReplicaState, StoreParams

__all__ = ["OriginalNodes"]

log = logging.getLogger(__name__)

_PAUSE_S = 1.0  # a server that takes over many partitions changes all of them: they are written once


class OriginalNodes:
    """Follows the cluster from a thread of its own, until ``close()``; ``write_changed`` is one step of it."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper, self._store = zookeeper, ClusterStore(zookeeper, cluster)
        self._root = f"/{cluster}/store"
        self._lock = threading.Lock()
        self._changed: set[int] = set(self._store.spaces.table().kept)
        self._watched: set[int] = set()
        self._watched_replicas: set[int] = set()
        self._gone: frozenset[int] = frozenset()
        self._assigned: dict[int, frozenset[int]] = {}
        self._wake, self._closing = threading.Event(), threading.Event()
        self._watches: list[Watch | Watches] = []

    def start(self) -> None:
        """Returns at once; what ZooKeeper answers when is of no importance to the caller."""
        threading.Thread(target=self._run, name="original-nodes", daemon=True).start()

    def close(self) -> None:
        """Keep the nodes up to date no more. Idempotent."""
        self._closing.set()
        self._wake.set()
        for watch in self._watches:
            watch.cancel()

    def watch(self) -> None:
        """Be told of every change from now on."""
        self._watch_partitions(self._store.spaces.table())
        self._watches.append(self._store.members.watch_announced(self._watch_replicas))
        self._watches.append(self._store.spaces.watch(self._watch_partitions))

    def _watch_partitions(self, table: SpaceTable) -> None:
        """Those that are new are watched, and written when they have their node; deleted ones stay as they are."""
        with self._lock:
            self._gone = table.gone
            new = [p for p in table.kept if p not in self._watched]
            self._watched.update(new)
        for p in new:
            path = partition_path(self._root.removesuffix("/store"), p)
            self._watches.append(self._zookeeper.watch_data(path, self._marker(p)))
        self._wake.set()

    def _watch_replicas(self, announced: list[int]) -> None:
        """Those that are new are watched; those that were removed are written no more."""
        for r in announced:
            if r not in self._watched_replicas:
                self._watched_replicas.add(r)
                self._watches.append(self._store.watch_replica(r, lambda replicas: self._mark(self._watched)))
        self._wake.set()

    def _marker(self, p: int) -> Callable[[bytes | None, int], None]:
        return lambda data, version: self._mark(() if data is None else (p,))

    def _mark(self, partitions: Iterable[int]) -> None:
        with self._lock:
            self._changed.update(partitions)
        self._wake.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.watch()
                break
            except CoordinationError as error:  # what was watched already is not watched twice
                log.info("the nodes for the original's tools are late: %s", error)
            self._closing.wait(_PAUSE_S)
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            try:
                self.write_changed()
            except CoordinationError as error:
                log.info("the nodes for the original's tools are late: %s", error)
                self._wake.set()
            self._closing.wait(_PAUSE_S)

    def write_changed(self) -> None:
        """Write what has changed since the last time. CoordinationError; what was not written is tried again then."""
        with self._lock:
            changed, self._changed = self._changed - self._gone, set()
            for p in self._gone:
                self._assigned.pop(p, None)
        try:
            names = {r: str(replica.endpoint) for r, replica in self._store.replicas().items()}
            self._write(self._root + "/partition", b"")
            for p in sorted(changed):
                self._write_partition(p, names)
            self._write_replicas(names)
        except CoordinationError:
            self._mark(changed)
            raise

    def _write_replicas(self, names: dict[int, str]) -> None:
        info = self._store.info()
        assignments = {
            name: [p for p, replica_ids in self._assigned.items() if r in replica_ids] for r, name in names.items()
        }
        partitions = self._store.partitions()
        self._write(self._root, znodes.encode_store_params(StoreParams(info.cluster_key, partitions)))
        self._write(self._root + "/assignment", znodes.encode_replica_assignments(assignments))
        self._write(self._root + "/group", znodes.encode_numbers({name: r for r, name in names.items()}))
        self._write(self._root + "/connection", znodes.encode_numbers({}))

    def _write_partition(self, p: int, names: dict[int, str]) -> None:
        record, _ = self._store.roster(p)
        replicas = {
            names[r]: ReplicaState(entry.session_id, entry.closing_mark)
            for r, entry in record.replicas.items()
            if r in names
        }
        metadata = PartitionMetadata(record.generation, record.session_id, replicas)
        self._write(f"{self._root}/partition/{p}", znodes.encode_partition_metadata(p, metadata))
        self._assigned[p] = frozenset(record.replicas)

    def _write(self, path: str, data: bytes) -> None:
        try:
            if self._zookeeper.get(path)[0] != data:
                self._zookeeper.set(path, data, -1)
        except NoNode:
            try:
                self._zookeeper.create(path, data)
            except NodeExists:
                self._zookeeper.set(path, data, -1)  # another manager made it in between
