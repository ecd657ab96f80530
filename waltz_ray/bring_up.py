"""Composition: a whole cluster up, and down again. Used by ``waltz up``, by jobs (``deploy/``) and by tests.

Every step is idempotent, so a bring-up that crashed anywhere is simply run again:

1. Ray: the one at ``address``, or the one this directory already has, or a new one of ours (``local_ray``).
   ``cluster.json`` names it before anything else is started on it.
2. ZooKeeper: the ensemble that was given, or the embedded one below the actor ``zookeeper``.
3. The cluster's nodes in ZooKeeper: shape, settings and the replicas' places are decided once, here.
4. The manager, which makes everything else; then waiting until every partition is ready.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from waltz_ray import cluster_file
from waltz_ray.actors import local_ray
from waltz_ray.actors.cluster_manager import ClusterManager
from waltz_ray.actors.settings import Settings, from_json, to_json
from waltz_ray.actors.supervision import (
    MANAGER,
    ZOOKEEPER,
    alive_nodes,
    ask,
    end_actor,
    ensure_actor,
    find_actor,
    namespace_of,
    replica_name,
    restart_actor,
    running_actors,
    statuses,
)
from waltz_ray.actors.zookeeper_host import ZooKeeperHost
from waltz_ray.client import ray_lookup
from waltz_ray.cluster_file import ClusterFile
from waltz_ray.config import ClusterConfig
from waltz_ray.coordination.cluster_store import ClusterInfo, ClusterStore
from waltz_ray.coordination.embedded import EmbeddedZooKeeper
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import (
    ClusterMismatch,
    ClusterNotFound,
    ConfigError,
    PartitionNotReady,
    RayNotRunning,
    StorageError,
    WaltzError,
)
from waltz_ray.protocol.placement import place_replicas
from waltz_ray.runtime.status import (
    ActorState,
    ClusterStatus,
    ManagerStatus,
    PartitionAssignment,
    Readiness,
    ReplicaStatus,
)

__all__ = ["Cluster", "bring_up", "cluster_status", "missing", "replace_replica", "status_without_manager", "take_down"]

Progress = Callable[[str], None]

_POLL_S = 0.1


@dataclass(frozen=True)
class Cluster:
    """A running cluster. ``was_running``: nothing had to be started. ``warnings``: one line each."""

    name: str
    directory: str
    address: str
    dashboard: str
    zookeeper: str
    partitions: int
    replicas: int
    servers: int
    was_running: bool
    warnings: tuple[str, ...] = ()


def bring_up(
    config: ClusterConfig, address: str = "", *, progress: Progress = lambda text: None, deadline_s: float = 120.0
) -> Cluster:
    """Have ``config``'s cluster running on the Ray at ``address`` ("host:port", "auto"; "" = one of our own).

    ClusterMismatch if the directory or ZooKeeper holds a cluster of another shape; PartitionNotReady, saying what is
    missing, if it is not up within ``deadline_s``. The process stays connected to Ray.
    """
    if not os.path.isabs(config.directory):
        raise ConfigError(f"ClusterConfig.directory must be an absolute path, not {config.directory!r}")
    Path(config.directory).mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(config.directory):
        first_time = cluster_file.read(config.directory) is None
        found = _known(config)
        known, initialised = found, False
        try:
            known = _with_ray(found, address, progress)
            cluster_file.write(known)
            known = _with_zookeeper(known, config, progress)
            cluster_file.write(known)
            _initialise(known, config)
            initialised = True
            was_running = found.running and find_actor(config.name, MANAGER) is not None
            status = _start_and_wait(known, progress, deadline_s)
        except PartitionNotReady:
            raise  # it goes on trying, and can be looked at
        except BaseException:
            if known.ray is not None and known.ray != found.ray:
                take_down(known, progress)  # a Ray that was started for nothing
            if first_time and not initialised:
                cluster_file.remove(config.directory)  # there is no such cluster: the next try may be of another shape
            raise
    return Cluster(
        name=known.name,
        directory=known.directory,
        address=known.address,
        dashboard=known.ray.dashboard if known.ray else "",
        zookeeper=known.zookeeper,
        partitions=known.partitions,
        replicas=known.replicas,
        servers=known.servers,
        was_running=was_running,
        warnings=tuple(_warnings(status)),
    )


def take_down(cluster: ClusterFile, progress: Progress = lambda text: None) -> None:
    """End the manager, servers, replicas, our ZooKeeper and our Ray, by name and pid, nothing else. Idempotent.

    The data stays; ``bring_up`` of the same directory has it again.
    """
    unreachable: WaltzError | None = None
    try:
        if cluster.running:
            ray_lookup.join(cluster.address)
            for name in running_actors(cluster.name):
                progress(f"ending {name}")
                end_actor(cluster.name, name)
    except RayNotRunning as error:
        unreachable = error  # our head may be half dead: its processes are ended below all the same
    finally:
        ray_lookup.leave()
        if cluster.ray is not None:
            progress("ending Ray")
            local_ray.stop(cluster.ray)
        if cluster.embedded and (cluster.ray is not None or unreachable is None):
            EmbeddedZooKeeper(os.path.join(cluster.directory, "zookeeper")).stop()
    if unreachable is not None and cluster.ray is None:
        raise unreachable
    if cluster_file.read(cluster.directory) is not None:
        cluster_file.write(cluster.stopped())


def cluster_status(name: str, timeout_s: float = 20.0) -> ClusterStatus:
    """What the manager says (``ClusterManager.status``). ClusterNotFound if there is no manager or it is silent."""
    status: ClusterStatus = ask(name, MANAGER, "status", timeout_s)
    return status


def status_without_manager(name: str, reason: str) -> ClusterStatus:
    """What servers and replicas say themselves, in the same form, while the manager is silent for ``reason``."""
    actors = running_actors(name)
    answers = statuses(name, _numbers(actors, "server"), _numbers(actors, "replica"))
    partitions = [
        PartitionAssignment(partition_id, server_id, served.generation, served.session, served.members)
        for server_id, server in answers.servers.items()
        for partition_id, served in server.partitions.items()
    ]
    return ClusterStatus(
        cluster=name,
        manager=ManagerStatus(pid=None, leading=None, reason=reason),
        partitions=tuple(sorted(partitions, key=lambda each: each.partition)),
        servers=answers.servers,
        replicas=answers.replicas,
    )


def _numbers(actors: Sequence[str], kind: str) -> list[int]:
    return [int(actor.removeprefix(f"{kind}/")) for actor in actors if actor.startswith(f"{kind}/")]


def replace_replica(
    name: str,
    zookeeper: str,
    replica_id: int,
    *,
    partitions: Sequence[int] | None = None,
    files_aside: bool = False,
    progress: Progress = lambda text: None,
    deadline_s: float = 60.0,
) -> None:
    """Let replica ``replica_id`` be rebuilt from its peers: it forgets what it had joined and starts again.

    ``partitions``: only what it has of these. Returns when it serves all of its partitions; one that was damaged is
    served again when a server has opened a session with it. CoordinationError, and nothing is changed, while the
    replica is a member of a partition's last session. StorageError, saying why, if it cannot serve with the files that
    it has; ``files_aside``: those are renamed, and it begins with none.
    """
    client = KazooZooKeeper(zookeeper)
    try:
        store = ClusterStore(client, name)
        if replica_id not in store.info().replica_ids:
            raise ConfigError(f"cluster {name!r} has no replica {replica_id}; it has {list(store.info().replica_ids)}")
        before = _replica_status(name, replica_id).incarnation
        with store.admin_lock(f"replace-replica {replica_id}, pid {os.getpid()}"):
            store.replace_replica(replica_id, partitions)
    finally:
        client.close()
    restart_actor(name, replica_name(replica_id))  # it reads its new standing in ZooKeeper when it starts
    _wait_until_replaced(name, replica_id, before, files_aside, progress, deadline_s)


def _replica_status(name: str, replica_id: int) -> ReplicaStatus:
    return statuses(name, [], [replica_id]).replicas[replica_id]


def _wait_until_replaced(
    name: str, replica_id: int, before: str | None, files_aside: bool, progress: Progress, deadline_s: float
) -> None:
    deadline = time.monotonic() + deadline_s
    while True:
        status = _replica_status(name, replica_id)
        again = status.incarnation not in (None, before)
        why_not = _why_not_whole(status) if again else "its new process has not answered yet"
        if not why_not:
            return
        lasting = again and status.state is ActorState.REFUSED  # STARTING passes by itself, damage goes with a session
        if lasting and files_aside:
            progress(f"set aside: {ask(name, replica_name(replica_id), 'set_files_aside', 30)}")
            files_aside = False
        elif lasting:
            raise StorageError(
                f"replica {replica_id} was declared replaceable, but it {why_not}; have {status.directory} set "
                f"aside (renamed, not deleted) with: waltz replace-replica {replica_id} --set-files-aside"
            )
        elif time.monotonic() > deadline:
            raise StorageError(
                f"replica {replica_id} was declared replaceable, but it does not serve after {deadline_s:g} s: "
                f"{why_not}; it goes on trying: see waltz status"
            )
        progress(f"waiting for replica {replica_id}: {why_not}")
        time.sleep(_POLL_S)


def _why_not_whole(status: ReplicaStatus) -> str:
    """ "" if the replica serves all of its partitions."""
    if not status.serving:
        return f"is {status.state}: {status.reason}"
    for partition_id, stored in status.partitions.items():
        if stored.damaged:
            return f"does not serve partition {partition_id}: {stored.damaged}"
    return ""


@contextmanager
def _one_at_a_time(directory: str) -> Iterator[None]:
    with open(os.path.join(directory, "cluster.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _known(config: ClusterConfig) -> ClusterFile:
    """What the directory says, or a first entry for it. ClusterMismatch if it is about another cluster."""
    wanted = ClusterFile(
        config.name,
        str(Path(config.directory).resolve()),
        config.partitions,
        config.replicas,
        config.servers,
        zookeeper=config.zookeeper,
        embedded=not config.zookeeper,
    )
    found = cluster_file.read(config.directory)
    if found is None:
        return wanted
    for what in ("name", "partitions", "replicas", "servers"):
        if getattr(found, what) != getattr(wanted, what):
            raise ClusterMismatch(
                f"{config.directory} holds a cluster with {what} {getattr(found, what)!r}, not "
                f"{getattr(wanted, what)!r}; leave the option out or use another directory"
            )
    if found.embedded != wanted.embedded:
        kind = "its embedded ZooKeeper" if found.embedded else f"the ZooKeeper at {found.zookeeper}"
        raise ClusterMismatch(f"the cluster of {config.directory} lives in {kind}; start it with the same")
    return found if found.running else replace(found, address="")


def _with_ray(known: ClusterFile, address: str, progress: Progress) -> ClusterFile:
    """Joined to the cluster's Ray, which may have to be started first."""
    if known.running:
        if address and address not in ("auto", known.address):
            raise ClusterMismatch(f"cluster {known.name!r} runs on the Ray at {known.address}, not at {address}")
        ray_lookup.join(known.address)
        return known
    if address:
        progress(f"connecting to Ray at {address}")
        return replace(known, address=ray_lookup.join(address))
    if known.ray is not None:
        local_ray.stop(known.ray)  # its head was killed: what it left behind holds the replicas' locks
    progress("starting Ray")

    def named(head: local_ray.LocalRay) -> ClusterFile:
        return replace(known, address=head.address, ray=head)

    started = named(local_ray.start(Path(known.directory), lambda head: cluster_file.write(named(head))))
    ray_lookup.join(started.address)
    return started


def _with_zookeeper(known: ClusterFile, config: ClusterConfig, progress: Progress) -> ClusterFile:
    if not known.embedded:
        return replace(known, zookeeper=config.zookeeper)
    progress("starting ZooKeeper")
    data_dir = os.path.join(known.directory, "zookeeper")
    namespace = namespace_of(known.name)
    ensure_actor(ZooKeeperHost, ZOOKEEPER, namespace, (data_dir,), threads=4, resource="node:__internal_head__")
    return replace(known, zookeeper=str(ask(known.name, ZOOKEEPER, "connect_string", 60)))


def _initialise(known: ClusterFile, config: ClusterConfig) -> ClusterInfo:
    client = KazooZooKeeper(known.zookeeper)
    try:
        store = ClusterStore(client, known.name)
        try:
            info = store.info()
        except ClusterNotFound:
            replica_ids = tuple(range(config.replicas))
            settings = Settings(replace(config, directory=known.directory), place_replicas(replica_ids, alive_nodes()))
            info = store.initialize(config.partitions, replica_ids, to_json(settings))
        _same(known, info)
        return info
    finally:
        client.close()


def _same(known: ClusterFile, info: ClusterInfo) -> None:
    recorded = from_json(info.settings).config
    for what, found, wanted in (
        ("partitions", info.partitions, known.partitions),
        ("replicas", len(info.replica_ids), known.replicas),
        ("servers", recorded.servers, known.servers),
        ("its directory", recorded.directory, known.directory),
    ):
        if found != wanted:
            raise ClusterMismatch(
                f"ZooKeeper at {known.zookeeper} records cluster {known.name!r} with {what} {found}, not {wanted}; "
                f"use what is recorded or another name"
            )


def _start_and_wait(known: ClusterFile, progress: Progress, deadline_s: float) -> ClusterStatus:
    deadline = time.monotonic() + deadline_s
    last = ""
    while True:
        ensure_actor(ClusterManager, MANAGER, namespace_of(known.name), (known.name, known.zookeeper), threads=8)
        try:
            status = cluster_status(known.name)
            waiting = missing(status)
            if not waiting:
                return status
        except ClusterNotFound as error:
            waiting = [str(error)]
        text = f"waiting for {waiting[0]}" + (f" and {len(waiting) - 1} more" if len(waiting) > 1 else "")
        if text != last:
            progress(text)
            last = text
        if time.monotonic() > deadline:
            raise PartitionNotReady(
                f"cluster {known.name!r} was not up after {deadline_s:g} s, still {text}; "
                f"it goes on trying: see waltz status"
            )
        time.sleep(_POLL_S)


def missing(status: ClusterStatus) -> list[str]:
    """What a starting cluster still lacks. A replica that refuses to start is not waited for: see ``warnings``."""
    replicas = [
        f"replica {replica_id} ({replica.reason or replica.state})"
        for replica_id, replica in status.replicas.items()
        if replica.state not in (ActorState.SERVING, ActorState.REFUSED)
    ]
    ready = {
        partition_id
        for server in status.servers.values()
        for partition_id, served in server.partitions.items()
        if served.state is Readiness.READY
    }
    trouble = status.manager.supervision_error
    return (
        ([f"actors ({trouble})"] if trouble else [])
        + replicas
        + [f"partition {each.partition}" for each in status.partitions if each.partition not in ready]
    )


def _warnings(status: ClusterStatus) -> list[str]:
    return [replica.reason for replica in status.replicas.values() if replica.state is ActorState.REFUSED]
