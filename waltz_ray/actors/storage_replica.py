"""``replica/<n>``: the Ray shell around one storage directory (DESIGN 2).

``ReplicaHost`` is the implementation: open the directory, serve it, announce where. ``StorageReplica`` is the actor.

A replica without its disk is an impostor. It is told apart like this:

| control file | ZooKeeper's entries of this replica | start |
|---|---|---|
| there | any | opens (the cluster key must be equal) |
| missing, and no partition folders | none ever joined a session | first start: creates the storage |
| missing | one has joined a session | refused: a person decides (``waltz replace-replica``) |

A refused replica stays alive and says why in ``status()``: an actor that died of it would only be started again. It
looks again every few seconds, so mounting the right disk is enough.
What may pass by itself (ZooKeeper away, a full disk, the predecessor's lock not released yet) leaves it STARTING, with
the reason.

Crash story: killed before its first joined session, whatever it created is opened or created again. Killed while it
serves: the next start takes the lock, recovers, listens on a new port and announces that; servers follow the
announcement. An announcement of a dead replica points at a closed port and does no harm.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from waltz_ray.actors.metrics import Gauges
from waltz_ray.actors.process_tuning import quieten_garbage_collector, take_normal_priority
from waltz_ray.actors.replica_endpoint import ReplicaEndpoint
from waltz_ray.config import StorageConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import (
    ControlFileMissing,
    CoordinationError,
    DiskFull,
    ForeignStorage,
    OutOfResources,
    StorageLocked,
)
from waltz_ray.protocol.ids import NO_SESSION
from waltz_ray.storage.disk import Disk, OsDisk
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.store import ReplicaStore

__all__ = ["ReplicaHost", "StorageReplica", "open_storage", "replica_directory"]

log = logging.getLogger(__name__)

_RETRY_S = 0.2
_REFUSED_RETRY_S = 2.0
_CONNECT_TIMEOUT_S = 2.0  # how long shutdown() may have to wait for a ZooKeeper that is away
_METRICS_INTERVAL_S = 5.0

STARTING, SERVING, REFUSED, STOPPED = "STARTING", "SERVING", "REFUSED", "STOPPED"


def replica_directory(directory: str, replica_id: int) -> str:
    """Where replica n of a cluster in ``directory`` stores."""
    return os.path.join(directory, f"replica-{replica_id}")


def open_storage(
    disk: Disk, directory: str, store: ClusterStore, replica_id: int, config: StorageConfig
) -> ReplicaStore:
    """The replica's storage, created on the very first start only (the table above). Errors say what to do."""
    info = store.info()
    try:
        return ReplicaStore.open(disk, directory, info.cluster_key, config)
    except ControlFileMissing as error:
        joined = _joined_partitions(store, info.partitions, replica_id)
        if joined:
            raise ControlFileMissing(
                f"replica {replica_id}: {directory} holds no storage, but ZooKeeper says the replica has joined "
                f"sessions of partitions {_few(joined)}: mount its disk, or have the replica rebuilt from its peers "
                f"with: waltz replace-replica {replica_id}"
            ) from error
        return ReplicaStore.create(disk, directory, info.cluster_key, info.partitions, config)


def _joined_partitions(store: ClusterStore, partitions: int, replica_id: int) -> list[int]:
    records = {partition: store.partition(partition)[0] for partition in range(partitions)}
    return [
        partition
        for partition, record in records.items()
        if replica_id in record.replicas and record.replicas[replica_id].session_id != NO_SESSION
    ]


def _few(partitions: list[int]) -> str:
    return ", ".join(map(str, partitions[:5])) + (" ..." if len(partitions) > 5 else "")


class ReplicaHost:
    """One replica: its storage, endpoint and announcement, brought up by a thread of its own.

    ``zookeeper`` is a connect string. The constructor returns at once; ``status()["state"]`` says how far it is.
    """

    def __init__(
        self, cluster: str, zookeeper: str, replica_id: int, directory: str, config: StorageConfig, host: str
    ) -> None:
        self._cluster, self._zookeeper = cluster, zookeeper
        self._replica_id = replica_id
        self._directory = replica_directory(directory, replica_id)
        self._config, self._host = config, host
        self._incarnation = uuid.uuid4().hex
        self._state, self._reason = STARTING, "has not begun"
        self._disk = OsDisk()
        self._store: ReplicaStore | None = None
        self._endpoint: ReplicaEndpoint | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"replica-{replica_id}", daemon=True)
        self._thread.start()

    def health(self) -> str:
        """SERVING, STARTING, REFUSED or STOPPED."""
        return self._state

    def status(self) -> dict[str, Any]:
        """For ``waltz status``: marks per partition, disk use, endpoint, and why it is not serving if it is not."""
        store, endpoint = self._store, self._endpoint
        return {
            "replica": self._replica_id,
            "state": self._state,
            "reason": self._reason,
            "pid": os.getpid(),
            "incarnation": self._incarnation,
            "directory": self._directory,
            "endpoint": str(endpoint.endpoint) if endpoint else None,
            "disk_use_bytes": _measured(store.disk_use_bytes) if store else None,
            "disk_free_bytes": _measured(lambda: self._disk.free_bytes(self._directory)) if store else None,
            "partitions": _partitions(store) if store else {},
            "traffic": asdict(endpoint.statistics()) if endpoint else {},
        }

    def shutdown(self) -> None:
        """Stop serving and close the storage; the process may be ended after it. Idempotent."""
        self._stopping.set()
        self._thread.join()
        if self._endpoint is not None:
            self._endpoint.stop()
            self._endpoint = None
        if self._store is not None:
            self._store.close()
            self._store = None
        self._state, self._reason = STOPPED, "shut down"

    def _run(self) -> None:
        take_normal_priority()
        if not self._start_until_it_serves():
            return
        quieten_garbage_collector()
        gauges = Gauges(self._cluster, replica=str(self._replica_id))
        while not self._stopping.wait(_METRICS_INTERVAL_S):
            gauges.replica(self.status())

    def _start_until_it_serves(self) -> bool:
        """False if there is no sense in trying again."""
        while not self._stopping.is_set():
            pause_s = _RETRY_S
            try:
                self._start()
                return True
            except (StorageLocked, DiskFull, OutOfResources, CoordinationError) as error:
                # The predecessor may still be ending, others may make room, ZooKeeper may be away: no person is needed.
                self._because(STARTING, str(error))
            except (ControlFileMissing, ForeignStorage) as error:
                self._because(REFUSED, str(error))
                pause_s = _REFUSED_RETRY_S  # looking again changes nothing, and the right disk may be mounted by then
            except Exception as error:  # above all SyncFailed, which must not be tried again by this process
                log.exception("replica %d: cannot start", self._replica_id)
                self._because(REFUSED, f"replica {self._replica_id}: {type(error).__name__}: {error}; see its log")
                return False
            self._stopping.wait(pause_s)
        return False

    def _because(self, state: str, reason: str) -> None:
        if reason != self._reason:
            log.warning("replica %d: %s: %s", self._replica_id, state, reason)
        self._state, self._reason = state, reason

    def _start(self) -> None:
        zookeeper = KazooZooKeeper(self._zookeeper, connect_timeout_s=_CONNECT_TIMEOUT_S)
        try:
            cluster_store = ClusterStore(zookeeper, self._cluster)
            if self._store is None:
                self._store = open_storage(self._disk, self._directory, cluster_store, self._replica_id, self._config)
                for partition_id in self._store.partition_ids:
                    self._store.partition(partition_id)  # recovered before the first server asks
            if self._endpoint is None:
                self._endpoint = ReplicaEndpoint(
                    ReplicaService(self._store).handle,
                    self._host,
                    name=f"replica/{self._replica_id}",
                    connections=self._config.connections,
                    connections_per_peer=self._config.connections_per_peer,
                )
                self._endpoint.start()
            cluster_store.announce_replica(self._replica_id, self._endpoint.endpoint, self._incarnation)
        finally:
            zookeeper.close()  # nothing of a running replica needs ZooKeeper
        self._because(SERVING, "")
        log.info("replica %d serves %s at %s", self._replica_id, self._directory, self._endpoint.endpoint)


def _measured(measure: Callable[[], int]) -> int | None:
    """None where the directory has been taken away under us: the status must still be told."""
    try:
        return measure()
    except OSError:
        return None


def _partitions(store: ReplicaStore) -> dict[str, dict[str, Any]]:
    logs = {partition_id: store.partition(partition_id) for partition_id in store.partition_ids}
    return {
        str(partition_id): {
            "session": partition.session_id,
            "last_id": partition.last_id,
            "synced_id": partition.synced_id,
            "low_water_mark": partition.low_water_mark,
            "local_low_water_mark": partition.local_low_water_mark,
            "damaged": str(partition.damaged) if partition.damaged else None,
        }
        for partition_id, partition in logs.items()
    }


class StorageReplica:
    """The actor; see ``ReplicaHost``. ``host`` = "": this node's Ray address."""

    def __init__(
        self, cluster: str, zookeeper: str, replica_id: int, directory: str, config: StorageConfig, host: str = ""
    ) -> None:
        import ray

        logging.basicConfig(level=logging.INFO)
        self._node_id = ray.get_runtime_context().get_node_id()
        host = host or str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._host = ReplicaHost(cluster, zookeeper, replica_id, directory, config, host)

    def health(self) -> str:
        return self._host.health()

    def status(self) -> dict[str, Any]:
        return self._host.status() | {"node": self._node_id}

    def shutdown(self) -> None:
        self._host.shutdown()
