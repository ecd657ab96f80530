"""Composition: a whole cluster up, and down again. Used by ``waltz up``, by jobs (``deploy/``) and by tests.

Every step is idempotent, so a bring-up that crashed anywhere is simply run again:

1. Ray: the one at ``address``, or the one this directory already has, or a new one of ours (``local_ray``).
   ``cluster.json`` names it before anything else is started on it.
2. ZooKeeper: the ensemble that was given, or the embedded one below the actor ``zookeeper``. Its process begins while
   a Ray of ours starts: both take seconds, and ZooKeeper first waits for the sessions of whoever was killed to end.
   Then the actor, which looks after it, comes last: it adopts what runs, and nobody waits for another Python to begin.
   What would listen where strangers reach it is refused, unless somebody has said that it may.
3. The cluster's nodes in ZooKeeper: shape, settings and the replicas' places are decided once, here.
4. The cluster's secret, in a file (``security.secret_file``), if there is none yet.
5. The manager, which makes everything else; then waiting until every partition is ready. Servers, replicas and layers
   are made here already, as the manager would: it leads only some seconds later.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from waltz_ray.actors import local_ray
from waltz_ray.actors.cluster_manager import ClusterManager
from waltz_ray.actors.settings import Settings, as_of, from_json, to_json
from waltz_ray.actors.supervision import (
    ZOOKEEPER,
    alive_nodes,
    ask,
    end_actor,
    ensure_actor,
    ensure_data_plane,
    ensure_keeper,
    running_actors,
    statuses,
)
from waltz_ray.backup.recovery import forget_recovered, read_recovered
from waltz_ray.backup.restored import RestoredCluster, forget_restored, read_restored
from waltz_ray.config import ClusterConfig
from waltz_ray.coordination.cluster_store import ClusterInfo, ClusterStore
from waltz_ray.coordination.embedded import EmbeddedZooKeeper, zookeeper_directory
from waltz_ray.coordination.layer_store import LayerStore
from waltz_ray.coordination.snapshot import plant_recovered
from waltz_ray.coordination.space_store import SpaceStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import (
    ClusterMismatch,
    ClusterNotFound,
    ConfigError,
    CoordinationError,
    InvalidInput,
    PartitionNotReady,
    RayNotRunning,
    WaltzError,
)
from waltz_ray.finding import cluster_file, ray_lookup
from waltz_ray.finding.cluster_file import ClusterFile
from waltz_ray.finding.ray_lookup import MANAGER, find_actor, namespace_of, reachable
from waltz_ray.guarding import guards_of_file, guards_with_rights
from waltz_ray.interruption import interruptible, undisturbed, undisturbed_moment
from waltz_ray.protocol.placement import NodeView, place_replicas
from waltz_ray.protocol.replica_sets import locate
from waltz_ray.protocol.spaces import KV_SPACE, OFFSETS_PARTITIONS, OFFSETS_SPACE, Space
from waltz_ray.runtime.status import (
    ActorState,
    ClusterStatus,
    KvActorStatus,
    ManagerStatus,
    PartitionAssignment,
    Readiness,
    TopicActorStatus,
)
from waltz_ray.security.addresses import check_addresses
from waltz_ray.security.secret_file import make_secret
from waltz_ray.small_files import make_directories
from waltz_ray.startup_checks import check_files, check_layers_come_in, check_ports, troubles, unused_settings

__all__ = [
    "Cluster",
    "bring_up",
    "cluster_status",
    "holds_cluster",
    "missing",
    "status_without_manager",
    "take_down",
    "take_down_in",
]

Progress = Callable[[str], None]

_POLL_S = 0.1
_LOCATION_TIMEOUT_S = 5.0


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
    kv: int
    topics: int
    was_running: bool
    warnings: tuple[str, ...] = ()


def bring_up(
    config: ClusterConfig,
    address: str = "",
    *,
    progress: Progress = lambda text: None,
    deadline_s: float = 120.0,
    settings_follow: bool = False,
) -> Cluster:
    """Have ``config``'s cluster running on the Ray at ``address`` ("host:port", "auto"; "" = one of our own).

    ClusterMismatch if the directory or ZooKeeper holds a cluster of another shape; PartitionNotReady, saying what is
    missing, if it is not up within ``deadline_s``: it goes on trying then, and can be looked at. Any other end leaves
    nothing running that was not running before, also Ctrl-C, SIGTERM and SIGHUP, which raise KeyboardInterrupt. The
    process stays connected to Ray, but after such an end, if it was not before. RayNotRunning if it is connected to
    another one. ``settings_follow``: settings of a cluster that is there are the caller's to change then, and rights
    that it cannot have before; else what differs is a warning.
    """
    if not os.path.isabs(config.directory):
        raise ConfigError(f"ClusterConfig.directory must be an absolute path, not {config.directory!r}")
    with interruptible(), _one_at_a_time(config.directory, progress):
        attempt = _Attempt(config, progress, time.monotonic() + deadline_s, settings_follow)
        try:
            return attempt.run(address)
        except PartitionNotReady:
            raise
        except BaseException as error:
            with undisturbed():
                attempt.undo()
            if isinstance(error, SystemExit):  # what Ray makes of SIGTERM once it has been joined
                raise KeyboardInterrupt from error
            raise


class _Attempt:
    """One bring-up: what was found, what is known by now, and how to have it as it was."""

    def __init__(self, config: ClusterConfig, progress: Progress, deadline: float, settings_follow: bool) -> None:
        self._config = config
        self._settings_follow = settings_follow
        self._progress = progress
        self._deadline = deadline
        self._ray_before = ray_lookup.here()  # the caller's, with all that it does there: not ours to leave
        self._first_time = cluster_file.read(config.directory) is None
        self._found = self._known = _known(config)
        self._others_actors = True  # until it is known that there are none of that name: not ours to end
        self._initialised = False
        self._zookeeper_began = False  # its process, before there was an actor

    def run(self, address: str) -> Cluster:
        if self._first_time:  # else what was recorded counts
            check_files(self._config, here=not address)
            check_ports(self._config)
            make_secret(self._config.secret_path)  # a cluster that was made with another file could never be begun
        self._join(address)
        with interruptible():  # Ray has put a handler of its own in place
            self._others_actors = self._found.running or bool(running_actors(self._config.name))
            was_running = self._found.running and find_actor(self._config.name, MANAGER) is not None
            if not self._known.key:
                check_addresses(self._config, _addresses(), self._config.insecure, guards_of_file(self._config))
                check_layers_come_in(self._config)  # before anything is recorded
            self._note(self._with_zookeeper())
            _check_same(self._known, self._key_of_manager())  # before anything is recorded
            info = _initialise(self._known, self._config)
            self._note(_as_recorded(self._known, info))
            self._initialised = True
            recorded = from_json(info.settings).config
            to_be = _with_all_layers(self._known, recorded, self._config)
            check_layers_come_in(to_be)
            if (self._config.kv.actors or self._config.topics.actors) and not self._settings_follow:
                check_ports(to_be)  # of more actors; those that there are serve with what they have
            later = self._settings_follow and not recorded.server.tls_certificate
            rights_file = "" if later else self._config.rights_file
            guards = guards_with_rights(self._known.zookeeper, replace(to_be, rights_file=rights_file))
            check_addresses(to_be, _addresses(), self._config.insecure or recorded.insecure, guards)
            make_secret(recorded.secret_path)
            kv, topics = _with_layers(self._known, self._config)
            _ensure_manager(self._known)
            if not was_running:
                _begin_data_plane(self._known, info, kv, topics)
            if self._zookeeper_began:
                self._ensure_keeper()
            status = _start_and_wait(self._known, kv, topics, self._progress, self._deadline)
            if self._zookeeper_began:
                self._ask_keeper()
        known = self._known
        return Cluster(
            name=known.name,
            directory=known.directory,
            address=known.address,
            dashboard=known.ray.dashboard if known.ray else "",
            zookeeper=known.zookeeper,
            partitions=known.partitions,
            replicas=known.replicas,
            servers=known.servers,
            kv=kv,
            topics=topics,
            was_running=was_running,
            warnings=(*troubles(status), *([] if self._settings_follow else unused_settings(status, self._config))),
        )

    def undo(self) -> None:
        """What was not running before does not run afterwards."""
        known = self._known
        if known.ray is not None and known.ray != self._found.ray:
            self._progress("ending what was started")
            _end_processes(known)
            cluster_file.write(known.stopped())
        elif known.address and not self._others_actors:
            _take_down(known, self._progress)
        if self._first_time and not self._initialised:
            cluster_file.remove(known.directory)  # there is no such cluster: the next try may be of another shape
        elif known != self._found and not self._initialised:
            # It names the Ray or the ZooKeeper of another cluster by now, whom ``waltz down`` would end.
            cluster_file.write(self._found if self._found.running else self._found.stopped())
        if not self._ray_before:
            ray_lookup.leave()

    def _note(self, known: ClusterFile) -> None:
        self._known = known
        cluster_file.write(known)

    def _left_s(self) -> float:
        return max(1.0, self._deadline - time.monotonic())

    def _join(self, address: str) -> None:
        """The cluster's Ray, which may have to be started first."""
        if address and self._is_gone_from(address):
            self._found = self._known = self._known.stopped()
        known = self._known
        if known.running:
            if address and address != "auto" and reachable(address) != reachable(known.address):
                raise ClusterMismatch(f"cluster {known.name!r} runs on the Ray at {known.address}, not at {address}")
            ray_lookup.join(known.address)
        elif address:
            self._progress(f"connecting to Ray at {address}")
            self._note(replace(known, address=ray_lookup.join(address), ray=None))
        else:
            self._start_ray()
            ray_lookup.join(self._known.address)

    def _is_gone_from(self, address: str) -> bool:
        """The Ray of others that it ran on is not the one at ``address``, and does not answer any more. Should actors
        of then live, they have the disks, or lose their sessions."""
        before = self._known.address
        elsewhere = before and self._known.ray is None and ray_lookup.reachable(address) != ray_lookup.reachable(before)
        return bool(elsewhere) and not ray_lookup.answers(before)

    def _start_ray(self) -> None:
        if now := self._ray_before:
            raise RayNotRunning(
                f"this process is connected to the Ray at {now}, and the cluster would have one of its own: give that "
                "address, or ray.shutdown() first"
            )
        if self._known.ray is not None:
            local_ray.stop(self._known.ray)  # its head was killed: what it left behind holds the replicas' locks
        if self._known.embedded:
            EmbeddedZooKeeper(zookeeper_directory(self._known.directory)).check_directory()
        self._progress("starting Ray")
        with undisturbed_moment():  # no process that is not written down
            head = local_ray.launch(Path(self._known.directory))
            self._note(replace(self._known, address=head.address, ray=head))
        if self._known.embedded:  # meanwhile; the actor adopts it. Sessions of before a crash begin to end, too
            EmbeddedZooKeeper(zookeeper_directory(self._known.directory)).launch()
            self._zookeeper_began = True
        local_ray.wait_until_started(head, self._left_s())

    def _with_zookeeper(self) -> ClusterFile:
        known = self._known
        if not known.embedded:
            return replace(known, zookeeper=self._config.zookeeper)
        self._progress("starting ZooKeeper")
        if self._zookeeper_began:
            return replace(
                known, zookeeper=EmbeddedZooKeeper(zookeeper_directory(known.directory)).start(self._left_s())
            )
        self._ensure_keeper()
        return replace(known, zookeeper=self._ask_keeper())

    def _key_of_manager(self) -> str:
        """Of the cluster whose manager is there already, "" if there is none. One that begins anew is waited for."""
        name = self._known.name
        while self._others_actors and find_actor(name, MANAGER) is not None:
            try:
                return str(ask(name, MANAGER, "location", self._left_s())["cluster_key"])
            except ClusterNotFound as error:
                if time.monotonic() > self._deadline:
                    raise PartitionNotReady(f"cluster {name!r} was not up in time: {error}") from error
            time.sleep(_POLL_S)
        return ""

    def _ensure_keeper(self) -> None:
        """The actor that starts the embedded ZooKeeper, or adopts it, and looks after it."""
        ensure_keeper(self._known.name, self._known.directory, self._left_s())

    def _ask_keeper(self) -> str:
        """Where its ZooKeeper is. CoordinationError if there is none."""
        try:
            return str(ask(self._known.name, ZOOKEEPER, "connect_string", self._left_s()))
        except ClusterNotFound as error:
            log = f"{zookeeper_directory(self._known.directory)}/zookeeper.log"
            raise CoordinationError(
                f"ZooKeeper does not start: {error}; look into {log}, or give --timeout more seconds"
            ) from error


def take_down(cluster: ClusterFile, progress: Progress = lambda text: None) -> None:
    """End the manager, servers, replicas, our ZooKeeper and our Ray, by name and pid, nothing else. Idempotent.

    The data stays; ``bring_up`` of the same directory has it again. One that is under way is waited for: it would make
    anew what is ended here, and wait in vain for what it has made. A program that has connected itself to Ray stays so,
    unless that Ray is ended; one that ``bring_up`` has connected does not.
    """
    with _beside_no_other(cluster.directory, progress), _back_where_it_was():
        _take_down(cluster, progress)


@contextmanager
def _back_where_it_was() -> Iterator[None]:
    """Whoever belongs to no Ray, or to one by ``bring_up`` only, belongs to none afterwards. What a program does on its
    own Ray would end with that."""
    own = bool(ray_lookup.here()) and not ray_lookup.joined_here()
    try:
        yield
    finally:
        if not own:
            ray_lookup.leave()


def _take_down(cluster: ClusterFile, progress: Progress) -> None:
    unreachable: WaltzError | None = None
    try:
        if cluster.running:
            ray_lookup.join(cluster.address)
            for name in _own_actors(cluster, progress):
                progress(f"ending {name}")
                end_actor(cluster.name, name)
    except RayNotRunning as error:
        unreachable = error  # our head may be half dead: its processes are ended below all the same
    finally:
        if cluster.ray is not None:
            progress("ending Ray")
        if cluster.ray is not None or unreachable is None:
            _end_processes(cluster)
    if unreachable is not None and cluster.ray is None:
        raise unreachable
    if cluster_file.read(cluster.directory) is not None:
        cluster_file.write(cluster.stopped())


def _own_actors(cluster: ClusterFile, progress: Progress) -> list[str]:
    """None, if those of its name are another cluster's by now, as where a Ray of others was started anew."""
    names = running_actors(cluster.name)
    if cluster.key and cluster.ray is None and MANAGER in names:
        try:
            found = ask(cluster.name, MANAGER, "location", _LOCATION_TIMEOUT_S)["cluster_key"]
        except ClusterNotFound:  # silent: it is ended by its name
            return names
        if found != cluster.key:
            progress(f"the actors on the Ray at {cluster.address} are another cluster's, and are left alone")
            return []
    return names


def holds_cluster(directory: Path) -> bool:
    """Whether a cluster was ever brought up there."""
    return cluster_file.read(directory) is not None


def take_down_in(directory: Path, progress: Progress = lambda text: None) -> None:
    """``take_down`` of the cluster in ``directory``; nothing if there is none."""
    with _beside_no_other(str(directory), progress), _back_where_it_was():
        known = cluster_file.read(directory)  # only now: who was waited for has changed it
        if known is not None:
            _take_down(known, progress)


def _end_processes(cluster: ClusterFile) -> None:
    """Our Ray, if it is ours, with all actors, and our ZooKeeper."""
    if cluster.ray is not None:
        if ray_lookup.here() == ray_lookup.reachable(cluster.ray.address):
            ray_lookup.leave()
        local_ray.stop(cluster.ray)
    if cluster.embedded:
        EmbeddedZooKeeper(zookeeper_directory(cluster.directory)).stop()


def cluster_status(name: str, timeout_s: float = 20.0) -> ClusterStatus:
    """What the manager says (``ClusterManager.status``). ClusterNotFound if there is no manager or it is silent."""
    status: ClusterStatus = ask(name, MANAGER, "status", timeout_s)
    return status


def status_without_manager(name: str, reason: str) -> ClusterStatus:
    """What servers and replicas say themselves, in the same form, while the manager is silent for ``reason``."""
    actors = running_actors(name)
    servers, replicas, kv, topics = (_numbers(actors, kind) for kind in ("server", "replica", "kv", "topic"))
    answers = statuses(name, servers, replicas, ZOOKEEPER in actors, kv=kv, topics=topics)
    partitions = [
        PartitionAssignment(partition_id, server_id, served.generation, served.session, served.members)
        for server_id, server in answers.servers.items()
        for partition_id, served in server.partitions.items()
    ]
    return ClusterStatus(
        cluster=name,
        zookeeper_server=answers.zookeeper,
        manager=ManagerStatus(pid=None, leading=None, reason=reason),
        partitions=tuple(sorted(partitions, key=lambda each: each.partition)),
        servers=answers.servers,
        replicas=answers.replicas,
        kv=answers.kv,
        topics=answers.topics,
    )


def _numbers(actors: Sequence[str], kind: str) -> list[int]:
    return [int(actor.removeprefix(f"{kind}/")) for actor in actors if actor.startswith(f"{kind}/")]


@contextmanager
def _one_at_a_time(directory: str, progress: Progress) -> Iterator[None]:
    """The directory is there, and nobody else brings a cluster up in it. InvalidInput if it cannot be had."""
    try:
        make_directories(directory, 0o755)
        lock = open(os.path.join(directory, cluster_file.LOCK), "w")  # noqa: SIM115 - what fails here has a name
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise InvalidInput(f"{directory} cannot be a cluster's directory: {why}; give another --dir") from error
    with lock:
        _wait_for_turn(lock, directory, progress)
        yield


@contextmanager
def _beside_no_other(directory: str, progress: Progress) -> Iterator[None]:
    """Nobody else brings a cluster up in the directory, or takes it down.

    Where its lock cannot be had there is nobody: the directory is another machine's, nothing was ever brought up there,
    or its disk takes no writing any more, which ends a ``waltz up`` and must not keep processes from being ended.
    """
    try:
        lock = open(os.path.join(directory, cluster_file.LOCK), "r+")  # noqa: SIM115 - only what fails here
    except OSError:
        yield
        return
    with lock:
        _wait_for_turn(lock, directory, progress)
        yield


def _wait_for_turn(lock: TextIO, directory: str, progress: Progress) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress(f"waiting for another waltz up or down of {directory}")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _known(config: ClusterConfig) -> ClusterFile:
    """What the directory says, or a first entry for it. ClusterMismatch if it is about another cluster."""
    wanted = ClusterFile(
        config.name,
        os.path.realpath(config.directory),
        config.partitions,
        config.replicas,
        config.servers,
        zookeeper=config.zookeeper,
        embedded=not config.zookeeper,
        replication=config.replication,
    )
    found = cluster_file.read(config.directory)
    restored = None if found is not None and found.key else read_restored(config.directory)
    if restored is not None:
        _check_restored(restored, wanted)
    if found is None:
        return wanted
    for what in ("name", "partitions", "replicas", "replication", "servers"):
        if getattr(found, what) != getattr(wanted, what):
            raise ClusterMismatch(
                f"{config.directory} holds a cluster with {what} {getattr(found, what)!r}, not "
                f"{getattr(wanted, what)!r}; leave the option out or use another directory"
            )
    if found.embedded != wanted.embedded:
        kind = "its embedded ZooKeeper" if found.embedded else f"the ZooKeeper at {found.zookeeper}"
        raise ClusterMismatch(f"the cluster of {config.directory} lives in {kind}; start it with the same")
    return found if found.running else replace(found, address="")


def _check_restored(restored: RestoredCluster, wanted: ClusterFile) -> None:
    """Its logs are there already, so many of them."""
    for what in ("partitions", "replicas", "replication"):
        found = getattr(restored.config, what)
        if found != getattr(wanted, what):
            raise ClusterMismatch(
                f"{wanted.directory} has a restored cluster with {what} {found}, not {getattr(wanted, what)}; "
                "leave the option out, or restore into another directory"
            )


def _check_same(known: ClusterFile, running: str) -> None:
    """ClusterMismatch if the manager that runs under its name is of another cluster than ``known``: ``running`` is that
    one's key, "" if there is none. All actors of this one would be taken to be there, and nobody would serve it."""
    if not running or running == known.key:
        return
    if not known.key:
        client = KazooZooKeeper(known.zookeeper)
        try:
            if str(ClusterStore(client, known.name).info().cluster_key) == running:
                return
        except ClusterNotFound:
            pass  # it would be made
        finally:
            client.close()
    raise ClusterMismatch(
        f"another cluster {known.name!r} runs on the Ray at {known.address}, of another directory or ZooKeeper (their "
        "keys differ); use another name or another Ray"
    )


def _initialise(known: ClusterFile, config: ClusterConfig) -> ClusterInfo:
    client = KazooZooKeeper(known.zookeeper)
    try:
        store = ClusterStore(client, known.name)
        restored = None if known.key else read_restored(known.directory)
        if restored is not None:
            return _initialise_restored(store, restored, known, config)
        try:
            info = store.info()
        except ClusterNotFound:
            if known.key:
                recovered = read_recovered(known.directory)
                if recovered is not None and str(recovered[0]) == known.key:
                    info = plant_recovered(client, known.name, *recovered)
                    forget_recovered(known.directory)
                    return info
                raise ClusterMismatch(
                    f"the ZooKeeper at {known.zookeeper} has no cluster {known.name!r}, which {known.directory} holds: "
                    "is it the right one, and does it have its data? (if that is lost: waltz recover)"
                ) from None
            _check_no_other(client, known)
            _check_no_replicas(known)
            replica_ids = tuple(range(config.replicas))
            nodes = alive_nodes()
            placement = _placement(config, nodes)
            settings = to_json(Settings(replace(config, directory=known.directory), placement))
            places = locate(placement, nodes)
            info = store.initialize(config.partitions, replica_ids, settings, config.replication, places)
        _same(known, info)
        if known.key:  # who was killed behind the planting has left it: what is old by now must not be planted again
            forget_recovered(known.directory)
        return info
    finally:
        client.close()


def _check_no_other(client: KazooZooKeeper, known: ClusterFile) -> None:
    """ClusterMismatch if the directory has a cluster of another name: its ``cluster.json`` is gone, which knew it, and
    a new cluster could do nothing with its replicas' disks."""
    for name in client.children("/") if known.embedded else ():
        try:
            settings = ClusterStore(client, name).info().settings
        except WaltzError:  # ZooKeeper's own, or never completed
            continue
        if from_json(settings).config.directory == known.directory:
            raise ClusterMismatch(
                f"{known.directory} holds cluster {name!r}, as its ZooKeeper knows; start that with: "
                f"waltz up --dir {known.directory} --cluster {name}"
            )


def _check_no_replicas(known: ClusterFile) -> None:
    """ClusterMismatch if the directory has replicas of a cluster that ZooKeeper does not know by this name: a new one
    could not use them."""
    found = next(Path(known.directory).glob("replica-*/waltz-storage.ctl"), None)
    if found is not None:
        raise ClusterMismatch(
            f"{found.parent} is a replica of a cluster already, whose cluster.json was lost, and the ZooKeeper at "
            f"{known.zookeeper} has none that is called {known.name!r}: give its name with --cluster; if ZooKeeper's "
            "data is lost, too: waltz recover"
        )


def _placement(config: ClusterConfig, nodes: list[NodeView]) -> dict[int, str]:
    named = {replica_id: disk.resource for replica_id, disk in enumerate(config.disks)}
    return place_replicas(tuple(range(config.replicas)), nodes, named=named)


def _with_all_layers(known: ClusterFile, recorded: ClusterConfig, wanted: ClusterConfig) -> ClusterConfig:
    """``recorded``, with as many actors of layers as there are already, or as are ``wanted``."""
    client = KazooZooKeeper(known.zookeeper)
    try:
        layers = LayerStore(client, known.name)
        kv, topics = max(layers.actors("kv"), wanted.kv.actors), max(layers.actors("topic"), wanted.topics.actors)
    finally:
        client.close()
    return replace(recorded, kv=replace(recorded.kv, actors=kv), topics=replace(recorded.topics, actors=topics))


def _with_layers(known: ClusterFile, config: ClusterConfig) -> tuple[int, int]:
    """As many kv and topic actors as are wanted, or as there are to be anyway, and the spaces that they need: with the
    first kv actors ``kv``, with the first topic actors one for offsets, and a kv actor for that. What a person has
    deleted of these is not made again, for its name is not, and keeps no cluster down.

    InvalidInput for fewer than there are.
    """
    client = KazooZooKeeper(known.zookeeper)
    try:
        layers, spaces = LayerStore(client, known.name), ClusterStore(client, known.name).spaces
        topics = layers.actors("topic")
        kv = layers.raise_actors("kv", config.kv.actors) if config.kv.actors else layers.actors("kv")
        if config.kv.actors and not any(each.kind == "kv" and each.name != OFFSETS_SPACE for each in _present(spaces)):
            _made_once(spaces, KV_SPACE, None)
        if config.topics.actors:
            kv = layers.raise_actors("kv", max(kv, 1))
            _made_once(spaces, OFFSETS_SPACE, OFFSETS_PARTITIONS)
            topics = layers.raise_actors("topic", config.topics.actors)
        return kv, topics
    finally:
        client.close()


def _made_once(spaces: SpaceStore, name: str, partitions: int | None) -> None:
    if name not in spaces.table().spaces:
        spaces.create(name, partitions, "kv")


def _present(spaces: SpaceStore) -> list[Space]:
    """Those that were not deleted."""
    return spaces.table().present()


def _initialise_restored(
    store: ClusterStore, restored: RestoredCluster, known: ClusterFile, config: ClusterConfig
) -> ClusterInfo:
    """As the nodes of the cluster that was backed up, as far as they go on; or go on with those that an attempt that
    was killed has made of the same."""
    if any(disk.directory not in ("", known.directory) for disk in config.disks):
        raise ClusterMismatch(
            f"what was restored is below {known.directory}; leave the directories of the disks out, or mount them there"
        )
    own = replace(config, directory=known.directory, storage=restored.config.storage, server=restored.config.server)
    replica_ids = tuple(range(config.replicas))
    nodes = alive_nodes()
    placement = _placement(config, nodes)
    places = locate(placement, nodes)
    info = store.plant(restored.seed, replica_ids, to_json(Settings(own, placement)), own.replication, places)
    _same(known, info)
    forget_restored(known.directory)
    return info


def _addresses() -> list[str]:
    """Of the nodes that Ray has now."""
    return [node.address for node in alive_nodes()]


def _same(known: ClusterFile, info: ClusterInfo) -> None:
    if known.key and known.key != str(info.cluster_key):
        raise ClusterMismatch(
            f"the ZooKeeper at {known.zookeeper} has another cluster {known.name!r} than {known.directory} holds "
            "(their keys differ); give the right one with --zookeeper"
        )
    recorded = from_json(info.settings).config
    shape = [
        ("partitions", recorded.partitions, known.partitions),  # spaces may have been added since
        ("its directory", recorded.directory, known.directory),
    ]
    if not known.key:  # later on replicas and servers come and go
        shape += [
            ("replicas", len(info.replica_ids), known.replicas),
            ("replication", recorded.replication, known.replication),
            ("servers", recorded.servers, known.servers),
        ]
    for what, found, wanted in shape:
        if found != wanted:
            raise ClusterMismatch(
                f"ZooKeeper at {known.zookeeper} records cluster {known.name!r} with {what} {found}, not {wanted}; "
                f"use what is recorded or another name"
            )


def _as_recorded(known: ClusterFile, info: ClusterInfo) -> ClusterFile:
    """With the key, and the replicas and servers that there are by now: ZooKeeper decides, the file only tells."""
    now = as_of(from_json(info.settings), info.members).config
    key = str(info.cluster_key)
    return replace(known, key=key, replicas=now.replicas, replication=now.replication, servers=now.servers)


def _ensure_manager(known: ClusterFile) -> None:
    ensure_actor(ClusterManager, MANAGER, namespace_of(known.name), (known.name, known.zookeeper), threads=8)


def _begin_data_plane(known: ClusterFile, info: ClusterInfo, kv: int, topics: int) -> None:
    """What the manager will make sure of once it leads: processes begin meanwhile, and replicas read their disks."""
    settings = as_of(from_json(info.settings), info.members)
    config = settings.config
    layers = replace(config, kv=replace(config.kv, actors=kv), topics=replace(config.topics, actors=topics))
    ensure_data_plane(replace(settings, config=layers), known.zookeeper)


def _start_and_wait(known: ClusterFile, kv: int, topics: int, progress: Progress, deadline: float) -> ClusterStatus:
    begin = time.monotonic()
    last = ""
    while True:
        _ensure_manager(known)
        try:
            status = cluster_status(known.name)
            waiting = missing(status, kv, topics)
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
                f"cluster {known.name!r} was not up in time ({time.monotonic() - begin:.0f} s), still {text}; "
                "it goes on trying: see waltz status, or wait longer with: waltz up --timeout"
            )
        time.sleep(_POLL_S)


def missing(status: ClusterStatus, kv: int = 0, topics: int = 0) -> list[str]:
    """What a starting cluster with so many kv and topic actors still lacks. A replica that refuses to start is not
    waited for: see ``startup_checks.troubles``."""
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
        + _missing_of_kv(status, kv)
        + _missing_of_topics(status, topics)
    )


def _missing_of_kv(status: ClusterStatus, actors: int) -> list[str]:
    answers = {actor_id: status.kv.get(actor_id, KvActorStatus(state=ActorState.ABSENT)) for actor_id in range(actors)}
    absent = [f"kv {n} ({actor.reason or actor.state})" for n, actor in answers.items() if not actor.serving]
    if absent or not actors:
        return absent
    return [
        f"space {space.name} ({unserved} of its buckets)"
        for space in status.spaces
        if space.kind == "kv" and (unserved := status.unserved_buckets(space.name)) > 0
    ]


def _missing_of_topics(status: ClusterStatus, actors: int) -> list[str]:
    absent = TopicActorStatus(state=ActorState.ABSENT)
    answers = {actor_id: status.topics.get(actor_id, absent) for actor_id in range(actors)}
    waiting = [f"topic {n} ({actor.reason or actor.state})" for n, actor in answers.items() if not actor.serving]
    if waiting or not actors:
        return waiting
    return [
        f"topic {space.name} ({unserved} of its partitions)"
        for space in status.spaces
        if space.kind == "topic" and (unserved := status.unserved_slots(space)) > 0
    ]
