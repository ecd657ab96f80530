"""``replica/<n>``: the Ray shell around one storage directory (docs/design.md, "Actors").

``ReplicaHost`` is the implementation: open the directory, serve it, announce where. ``StorageReplica`` is the actor.

A replica without its disk is an impostor. It is told apart like this:

| control file | ZooKeeper's entries of this replica | start |
|---|---|---|
| there | any | opens (the cluster key must be equal) |
| missing, and no partition folders | none ever joined a session | first start: creates the storage |
| missing | one has joined a session | refused: a person decides (``waltz replace-replica``) |

A replica that cannot start stays alive, says why and since when in ``status()``, and looks again: an actor that died
of it would only be started again. No reason is final, so mounting the right disk, or a disk that heals, is enough.

| reason | state | looks again after |
|---|---|---|
| ZooKeeper away, disk full, the predecessor's lock not released yet | STARTING | 0.2 s |
| no storage, another cluster's, a damaged control file, no secret of the cluster, no certificate | REFUSED | 2 s |
| the disk fails (EIO, EROFS, EACCES, a failed sync ...), or the unforeseen | REFUSED | 0.2 s, doubled up to 5 s |

A store whose sync has failed is never used again, but another start of the same process may be made. What a failed sync
leaves in doubt is the kernel's page cache, which outlives the process: ending it would prove nothing. It is recovery
that must not take what it can read for what is on the disk, and every attempt begins with a wholly new store (new
handles, nothing remembered) and the whole of recovery. Once the replica serves, a failed sync ends the process. So does
a directory that is not there any more, which is looked for every few seconds: what is acknowledged would be in files
without names. The next start is refused.

The replica follows the cluster's spaces (``ReplicaService.follow``): it grows, and removes the files of deleted ones.
What it needs ZooKeeper for ends there: while that is away it serves what it has. Where the disk is full or handles are
short it goes on serving without, and tries again.

One damaged partition is refused and shown in ``status()``, the others are served. Closed segments are checked, and
repaired from peers, by a thread of its own (``upkeep_thread.py``), which takes no part in serving. A disk that fills
up later is a ``problem`` of a SERVING replica: appends are refused, reads go on.

Crash story: killed before its first joined session, whatever it created is opened or created again. Killed while it
serves: the next start takes the lock, recovers, listens on a new port and announces that; servers follow the
announcement. An announcement of a dead replica points at a closed port and does no harm. Killed while files are set
aside: one rename has happened or not.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from waltz_ray.actors.actor_log import begin_log
from waltz_ray.actors.full_disk import FullDisk, few
from waltz_ray.actors.lost_files import LostFiles
from waltz_ray.actors.measured_disk import MeasuredDisk
from waltz_ray.actors.metrics import Gauges
from waltz_ray.actors.own_sets import OwnSets
from waltz_ray.actors.own_storage import joined_partitions, open_storage, replica_directory
from waltz_ray.actors.process_tuning import quieten_garbage_collector, take_normal_priority
from waltz_ray.actors.replica_endpoint import ReplicaEndpoint, end_process
from waltz_ray.actors.settings import own_host, settings_in
from waltz_ray.actors.upkeep_thread import UpkeepThread
from waltz_ray.config import StorageConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.snapshot import snapshot_nodes
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import (
    ConfigError,
    ControlFileMissing,
    CoordinationError,
    Corruption,
    DiskFull,
    ForeignStorage,
    InvalidInput,
    OutOfResources,
    StorageError,
    StorageLocked,
    SyncFailed,
    WaltzError,
)
from waltz_ray.net.backoff import Backoff
from waltz_ray.net.tls import ServerTls, replica_tls
from waltz_ray.protocol.ids import NO_SESSION, Endpoint
from waltz_ray.protocol.messages.replica import (
    ReplicaReply,
    ReplicaRequest,
)
from waltz_ray.protocol.spaces import SpaceTable
from waltz_ray.runtime.process import about_process
from waltz_ray.runtime.seldom import Seldom
from waltz_ray.runtime.status import ActorState, ReplicaStatus, StoredPartition
from waltz_ray.security.handshakes import Doorkeeper, Keyring
from waltz_ray.security.secret_file import SecretFile
from waltz_ray.storage.cluster_memory import write_memory
from waltz_ray.storage.disk import Disk, OsDisk
from waltz_ray.storage.handles import OwnHandles
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.store import ReplicaStore, lock_directory

__all__ = ["ReplicaHost", "StorageReplica"]

log = logging.getLogger(__name__)

_RETRY_S = 0.2
_REFUSED_RETRY_S = 2.0
_CONNECT_TIMEOUT_S = 2.0  # how long shutdown() may have to wait for a ZooKeeper that is away
_METRICS_INTERVAL_S = 5.0
_LOG_EVERY_S = 60.0


class ReplicaHost:
    """One replica: its storage, endpoint and announcement, brought up by a thread of its own.

    ``zookeeper`` is a connect string. The constructor returns at once; ``status().state`` says how far it is.
    """

    def __init__(
        self,
        cluster: str,
        zookeeper: str,
        replica_id: int,
        directory: str,
        configured: Callable[[ClusterStore], StorageConfig],
        host: str,
        secret_path: str,
        disk: Disk | None = None,
        on_fatal: Callable[[str], None] = end_process,
    ) -> None:
        """``configured``: asked whenever the storage is opened. ``disk``: the gate to it, None = the operating
        system's. ``on_fatal`` is called when the process must end."""
        self._secret = SecretFile(secret_path)
        self._fatal = on_fatal
        self._cluster, self._zookeeper = cluster, zookeeper
        self._replica_id = replica_id
        self._directory = replica_directory(directory, replica_id)
        self._configured, self._config, self._host = configured, StorageConfig(), host
        self._incarnation = uuid.uuid4().hex
        self._state, self._reason, self._since_ms = ActorState.STARTING, "has not begun", _now_ms()
        self._measured = MeasuredDisk(disk or OsDisk())
        self._disk = self._measured.disk
        self._handles: OwnHandles | None = None
        self._store: ReplicaStore | None = None
        self._service: ReplicaService | None = None
        self._endpoint: ReplicaEndpoint | None = None
        self._upkeep: UpkeepThread | None = None
        self._client: KazooZooKeeper | None = None
        self._cluster_store: ClusterStore | None = None
        self._spaces_changed = threading.Event()  # since ``_follow`` has looked
        self._table: SpaceTable | None = None  # as it was then
        self._remembered: Mapping[str, object] = {}  # of the cluster, on the disk
        self._sets = OwnSets(replica_id, True, self._look_at_spaces)
        self._trim_marks: dict[int, int] = {}
        self._full, self._lost = FullDisk(), LostFiles()
        self._pauses = Backoff(_RETRY_S, 5.0)  # after what no rule foresees
        self._problem = ""  # what that was, while it serves
        self._unfollowed = Seldom(_LOG_EVERY_S)
        self._untold = ""  # why its figures were not told the last time
        self._changing = threading.Lock()  # held while store and endpoint are made or closed
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"replica-{replica_id}", daemon=True)
        self._thread.start()

    def health(self) -> ActorState:
        """SERVING, STARTING, REFUSED or STOPPED."""
        return self._state

    def status(self) -> ReplicaStatus:
        """Marks per partition, disk use, endpoint, and why it is not serving if it is not; for ``waltz status``."""
        store, endpoint, upkeep, table = self._store, self._endpoint, self._upkeep, self._table
        gone = tuple(self._sets.left | (frozenset() if table is None else table.gone))
        return ReplicaStatus(
            replica=self._replica_id,
            state=self._state,
            reason=self._reason,
            since_ms=self._since_ms,
            problem=self._full.problem(gone) or self._problem,
            slow=self._measured.slow(),
            lost=self._lost.problem(gone),
            pid=os.getpid(),
            incarnation=self._incarnation,
            directory=self._directory,
            endpoint=endpoint.endpoint if endpoint else None,
            disk_use_bytes=_measured(store.disk_use_bytes) if store else None,
            disk_free_bytes=_measured(lambda: self._disk.free_bytes(self._directory)) if store else None,
            partitions=_held(store, self._sets) if store else {},
            traffic=endpoint.statistics() if endpoint else None,
            scrub=upkeep.status() if upkeep else None,
            sync=self._measured.syncs(),
        )

    def shutdown(self) -> None:
        """Stop serving and close the storage; the process may be ended after it. Idempotent."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        with self._changing:
            self._close()
            self._because(ActorState.STOPPED, "shut down")

    def set_files_aside(self) -> str:
        """Rename the directory, so that the replica begins anew and is copied from its peers; the new name.

        Only while it is REFUSED, so that no server can make it a member meanwhile, and only if ZooKeeper says that it
        has joined no session: then nobody counts on these files. StorageError, and nothing is changed, else.
        """
        with self._changing:
            if self._state is not ActorState.REFUSED:
                raise StorageError(
                    f"replica {self._replica_id} is {self._state}, not REFUSED: its files stay where they are"
                )
            self._check_never_joined()
            aside = self._rename_directory()
            self._because(ActorState.STARTING, f"its files were set aside: {aside}")
        self._wake.set()
        return aside

    def _check_never_joined(self) -> None:
        zookeeper = KazooZooKeeper(self._zookeeper, connect_timeout_s=_CONNECT_TIMEOUT_S)
        try:
            store = ClusterStore(zookeeper, self._cluster)
            joined = joined_partitions(store, self._replica_id)
        finally:
            zookeeper.close()
        if joined:
            raise StorageError(
                f"replica {self._replica_id} has joined sessions of partitions {few(joined)}: its files stay where "
                f"they are until it is replaced, by: waltz replace-replica {self._replica_id}"
            )

    def _rename_directory(self) -> str:
        parent, _, name = self._directory.rpartition("/")
        aside = f"{parent}/aside-{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{self._incarnation[:4]}"
        try:
            lock = lock_directory(self._disk, self._directory)
            try:
                self._disk.rename(self._directory, aside)
                self._disk.fsync_directory(parent)
            finally:
                self._disk.close(lock)
        except OSError as error:
            raise StorageError(
                f"{self._directory} cannot be renamed ({error.strerror}): move it away by hand"
            ) from error
        return aside

    def _run(self) -> None:
        take_normal_priority()
        gauges, due_s = Gauges(self._cluster, replica=str(self._replica_id)), 0.0
        while not self._stopping.is_set():
            pause_s = self._follow() if self._state is ActorState.SERVING else self._try_to_start()
            # Also while it tries again without end: what it said last would go on being told.
            if pause_s > _RETRY_S or time.monotonic() >= due_s:
                self._tell(gauges)
                due_s = time.monotonic() + _METRICS_INTERVAL_S
            self._wake.wait(pause_s)
            self._wake.clear()

    def _tell(self, gauges: Gauges) -> None:
        try:
            gauges.replica(self.status())
            self._untold = ""
        except Exception as error:  # as of a lack of memory: the thread that starts and follows must not end by it
            if repr(error) != self._untold:
                log.exception("replica %d: its figures are not told to Ray; trying again", self._replica_id)
            self._untold = repr(error)

    def _try_to_start(self) -> float:
        """For how long to wait afterwards."""
        try:
            with self._changing:
                self._start()
        except (StorageLocked, DiskFull, OutOfResources, CoordinationError) as error:
            # The predecessor may still be ending, others may make room, ZooKeeper may be away: no person is needed.
            self._because(ActorState.STARTING, str(error))
            return _RETRY_S
        except (ControlFileMissing, ForeignStorage, Corruption, ConfigError) as error:
            self._because(ActorState.REFUSED, str(error))
            return _REFUSED_RETRY_S  # looking again changes nothing, and the right disk may be mounted by then
        except Exception as error:  # whatever it is: a replica that never looks again is lost for good
            reason = _told(error)
            if not isinstance(error, (OSError, WaltzError)) and reason not in self._reason:
                log.exception("replica %d: cannot start", self._replica_id)
            self._because(ActorState.REFUSED, f"replica {self._replica_id}: {reason}; it looks again every few seconds")
            return self._pauses.next_s()
        self._pauses.reset()
        quieten_garbage_collector()
        return 0.0

    def _follow(self) -> float:
        """What spaces and trim marks say is done here, too; for how long to wait afterwards."""
        try:
            with self._changing:
                if self._cluster_store is not None and self._service is not None:
                    self._check_files()
                    self._follow_with(self._cluster_store, self._service)
        except (SyncFailed, ControlFileMissing) as error:
            self._fatal(f"replica {self._replica_id}: {error}; the process ends")
            return _RETRY_S
        except (DiskFull, OutOfResources, CoordinationError) as error:
            if count := self._unfollowed.due():
                text = "replica %d: does not follow spaces and trim marks yet (tried %d times since this was said): %s"
                log.warning(text, self._replica_id, count, error)
            if not isinstance(error, CoordinationError):  # that ZooKeeper is away others tell
                self._problem = f"it does not follow spaces and trim marks yet: {error}"
            self._spaces_changed.set()
            return _RETRY_S
        except Exception as error:  # whatever it is: a replica whose disk is never made free again is lost for good
            log.exception("replica %d: does not follow spaces and trim marks", self._replica_id)
            self._problem = f"it does not follow spaces and trim marks: {_told(error)}; it tries again"
            self._spaces_changed.set()
            return self._pauses.next_s()
        self._pauses.reset()
        self._problem = ""
        return _METRICS_INTERVAL_S

    def _check_files(self) -> None:
        """ControlFileMissing if the files that are open have no names any more: nobody would find again what is
        acknowledged from then on."""
        if self._store is not None and not self._store.is_in_place():
            raise ControlFileMissing(
                f"{self._directory} was removed, renamed, unmounted or mounted over while it was served"
            )

    def _follow_with(self, store: ClusterStore, service: ReplicaService) -> None:
        try:
            self._follow_spaces(store, service)
        finally:  # whatever is wrong there: this makes room
            if self._table is not None:
                service.retain(self._table, self._trim_marks)

    def _follow_spaces(self, store: ClusterStore, service: ReplicaService) -> None:
        if self._spaces_changed.is_set():
            self._spaces_changed.clear()
            self._table, (assignment, _) = store.spaces.table(), store.assignment()
            try:
                service.follow(self._table, assignment)
            finally:
                self._sets.follow(store, service)
            self._remember(store)
        self._sets.follow(store, service)

    def _remember(self, store: ClusterStore) -> None:
        """Write down what ZooKeeper says of the cluster, for the day on which it says nothing any more."""
        self._sets.look(store)
        sets = {str(p): list(replicas) for p, replicas in sorted(self._sets.known.items())}
        nodes = snapshot_nodes(store.zookeeper, self._cluster)
        memory = {"name": self._cluster, "cluster_key": str(store.info().cluster_key), "sets": sets, "nodes": nodes}
        if memory == self._remembered:
            return
        try:
            write_memory(self._disk, self._directory, {**memory, "seen_ms": _now_ms()})
            self._remembered = memory
        except (
            OSError
        ) as error:  # a full disk, or one that is gone: that is told elsewhere, and others remember it, too
            log.warning("replica %d: what it knows of the cluster was not written down: %s", self._replica_id, error)

    def _look_at_marks(self, marks: dict[int, int]) -> None:
        """A watch calls: nothing is done in its thread."""
        self._trim_marks = marks
        self._wake.set()

    def _look_at_spaces(self, *state: object) -> None:
        """A watch calls: nothing is done in its thread."""
        self._spaces_changed.set()
        self._wake.set()

    def _because(self, state: ActorState, reason: str) -> None:
        if reason and reason != self._reason:
            log.warning("replica %d: %s: %s", self._replica_id, state, reason)
        if state != self._state:
            self._since_ms = _now_ms()
        self._state, self._reason = state, reason

    def _start(self) -> None:
        client = KazooZooKeeper(self._zookeeper, connect_timeout_s=_CONNECT_TIMEOUT_S)
        try:
            cluster_store = ClusterStore(client, self._cluster)
            if self._endpoint is None:
                self._open(cluster_store)
            assert self._endpoint is not None
            cluster_store.announce_replica(self._replica_id, self._endpoint.endpoint, self._incarnation)
            cluster_store.spaces.watch(self._look_at_spaces)
            cluster_store.trims.watch(self._look_at_marks)
            cluster_store.moves.watch(self._sets.seen)
            cluster_store.watch_assignment(self._look_at_spaces)  # what a server has is not removed
            assert self._store is not None
            if self._upkeep is None:
                keyring = Keyring.of_reader(self._secret, replica_tls(self._config.tls_authority))
                self._upkeep = UpkeepThread(self._store, self._config, self._replica_id, self._peers, keyring)
        except BaseException:
            client.close()
            raise
        self._client, self._cluster_store = client, cluster_store
        self._because(ActorState.SERVING, "")
        log.info("replica %d serves %s at %s", self._replica_id, self._directory, self._endpoint.endpoint)

    def _peers(self) -> dict[int, Endpoint]:
        """Where the other replicas listen. CoordinationError."""
        cluster_store = self._cluster_store
        found = cluster_store.replicas() if cluster_store is not None else {}
        return {number: peer.endpoint for number, peer in found.items() if number != self._replica_id}

    def _open(self, cluster_store: ClusterStore) -> None:
        """The storage, recovered before the first server asks, and the endpoint; both or nothing."""
        self._secret.secret()  # without it nobody could be believed
        self._config = self._configured(cluster_store)
        tls = _tls(self._config)
        self._handles = OwnHandles(self._disk)
        try:
            disk = self._handles.disk
            info = cluster_store.info()
            has_all = info.replication == len(info.replica_ids)
            self._sets = OwnSets(self._replica_id, has_all, self._look_at_spaces)
            self._store = open_storage(disk, self._directory, cluster_store, self._replica_id, self._config)
            for partition_id in self._store.served_ids:
                try:
                    self._store.partition(partition_id)
                except Corruption as damage:  # refused to everybody who asks; shown in the status
                    log.warning("replica %d: partition %d: %s", self._replica_id, partition_id, damage)
            service = self._service = ReplicaService(self._store)

            def handle(requests: Sequence[ReplicaRequest], connection: object) -> list[ReplicaReply]:
                return self._lost.noted(self._full.noted(service.handle(requests, connection)))

            self._endpoint = ReplicaEndpoint(
                handle,
                Doorkeeper(self._secret.secret, self._replica_id, self._config.tls_only),
                self._host,
                name=f"replica/{self._replica_id}",
                connections=self._config.connections,
                connections_per_peer=self._config.connections_per_peer,
                tls=tls,
                on_fatal=self._fatal,
            )
            self._endpoint.start()
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        """Nothing is open afterwards, whatever state it was in. Idempotent."""
        upkeep, self._upkeep = self._upkeep, None
        if upkeep is not None:
            upkeep.stop()
        client, self._client, self._cluster_store, self._service = self._client, None, None, None
        if client is not None:
            client.close()
        endpoint, self._endpoint = self._endpoint, None
        store, self._store = self._store, None
        handles, self._handles = self._handles, None
        if endpoint is not None:
            endpoint.stop()
        try:
            if store is not None:
                store.close()
        except (OSError, StorageError) as error:  # not cleanly: the next opening recovers
            log.warning("replica %d: %s", self._replica_id, error)
        finally:
            if handles is not None:
                handles.close_all()


def _tls(config: StorageConfig) -> ServerTls | None:
    """ConfigError if its files cannot be used."""
    if not config.tls_certificate:
        return None
    try:
        return ServerTls(config.tls_certificate, config.tls_key)
    except OSError as error:  # which ssl.SSLError is
        raise ConfigError(
            f"its files for TLS cannot be used ({config.tls_certificate}, {config.tls_key}): "
            f"{error.strerror or error}; they have to be PEM files, on every node"
        ) from error


def _as_kept(store: ClusterStore) -> StorageConfig:
    """The cluster's settings of replicas. CoordinationError, ConfigError."""
    return settings_in(store).config.storage


def _told(error: Exception) -> str:
    if isinstance(error, WaltzError):
        return str(error).partition("; end this process")[0]  # what SyncFailed tells the process, not its reader
    return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}, see its log"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _measured(measure: Callable[[], int]) -> int | None:
    """None where the directory has been taken away under us: the status must still be told."""
    try:
        return measure()
    except OSError:
        return None


def _held(store: ReplicaStore, sets: OwnSets) -> dict[int, StoredPartition]:
    """The partitions; where others have some of them, those on which a session was ever opened here, and which were not
    moved away since."""
    found: dict[int, StoredPartition] = {}
    for p in store.served_ids:
        if p not in sets.left:
            with contextlib.suppress(InvalidInput):  # it has been removed in this moment
                found[p] = _stored(store, p)
    return {p: stored for p, stored in found.items() if sets.has_all or stored.damaged or stored.session != NO_SESSION}


def _stored(store: ReplicaStore, partition_id: int) -> StoredPartition:
    try:
        partition = store.partition(partition_id)
    except (StorageError, OSError) as error:  # its control entry is lost, the store is being closed, the disk fails
        return StoredPartition(damaged=_told(error))
    return StoredPartition(
        session=partition.session_id,
        first_id=partition.first_id,
        last_id=partition.last_id,
        synced_id=partition.synced_id,
        low_water_mark=partition.low_water_mark,
        local_low_water_mark=partition.local_low_water_mark,
        damaged=str(partition.damaged) if partition.damaged else None,
    )


class StorageReplica:
    """The actor; see ``ReplicaHost``. ``host`` = "": this node's Ray address."""

    def __init__(
        self,
        cluster: str,
        zookeeper: str,
        replica_id: int,
        directory: str,
        secret_path: str,
        host: str = "",
    ) -> None:
        import ray

        begin_log(cluster, f"replica/{replica_id}")
        self._node_id = ray.get_runtime_context().get_node_id()
        self._host = ReplicaHost(cluster, zookeeper, replica_id, directory, _as_kept, own_host(host), secret_path)

    def health(self) -> ActorState:
        return self._host.health()

    def status(self) -> ReplicaStatus:
        return replace(self._host.status(), node=self._node_id, process=about_process())

    def set_files_aside(self) -> str:
        return self._host.set_files_aside()

    def shutdown(self) -> None:
        self._host.shutdown()
