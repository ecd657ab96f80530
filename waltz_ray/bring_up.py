"""Composition: a whole cluster up (down again: ``take_down.py``). For ``waltz up``, jobs (``deploy/``) and tests.

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

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from waltz_ray.actors import local_ray
from waltz_ray.actors.cluster_manager import ClusterManager
from waltz_ray.actors.settings import as_of, from_json
from waltz_ray.actors.supervision import (
    ZOOKEEPER,
    alive_nodes,
    ask,
    ensure_actor,
    ensure_data_plane,
    ensure_keeper,
    running_actors,
)
from waltz_ray.cluster_directory import Progress, one_at_a_time
from waltz_ray.config import ClusterConfig
from waltz_ray.coordination.cluster_store import ClusterInfo
from waltz_ray.coordination.embedded import EmbeddedZooKeeper, zookeeper_directory
from waltz_ray.errors import (
    ClusterMismatch,
    ClusterNotFound,
    ConfigError,
    CoordinationError,
    PartitionNotReady,
    RayNotRunning,
    RuntimeEnvFailed,
)
from waltz_ray.finding import cluster_file, ray_lookup
from waltz_ray.finding.cluster_file import ClusterFile
from waltz_ray.finding.ray_lookup import MANAGER, find_actor, namespace_of, reachable
from waltz_ray.guarding import guards_of_file, guards_with_rights
from waltz_ray.interruption import interruptible, undisturbed, undisturbed_moment
from waltz_ray.readiness import cluster_status, missing
from waltz_ray.recording import (
    as_recorded,
    check_may_start,
    check_same,
    initialise,
    known_in,
    with_all_layers,
    with_layers,
)
from waltz_ray.runtime.status import ClusterStatus
from waltz_ray.security.addresses import check_addresses
from waltz_ray.security.secret_file import make_secret
from waltz_ray.startup_checks import check_files, check_layers_come_in, check_ports, troubles, unused_settings
from waltz_ray.take_down import end_cluster, end_processes

__all__ = ["Cluster", "bring_up"]

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
    with interruptible(), one_at_a_time(config.directory, progress):
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
        self._found = self._known = known_in(config)
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
            info = self._record()
            if not was_running:
                check_may_start(self._known)
            self._check_wanted(from_json(info.settings).config)
            kv, topics = with_layers(self._known, self._config)
            status = self._start(info, kv, topics, was_running)
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

    def _record(self) -> ClusterInfo:
        """The cluster's nodes in ZooKeeper, made if it is new; nothing of it is recorded before it may be."""
        if not self._known.key:
            check_addresses(self._config, _addresses(), self._config.insecure, guards_of_file(self._config))
            check_layers_come_in(self._config)
        self._note(self._with_zookeeper())
        check_same(self._known, self._key_of_manager())
        info = initialise(self._known, self._config)
        self._note(as_recorded(self._known, info))
        self._initialised = True
        return info

    def _check_wanted(self, recorded: ClusterConfig) -> None:
        """What is recorded can be started, with the layers that are wanted besides."""
        to_be = with_all_layers(self._known, recorded, self._config)
        check_layers_come_in(to_be)
        if (self._config.kv.actors or self._config.topics.actors) and not self._settings_follow:
            check_ports(to_be)  # of more actors; those that there are serve with what they have
        later = self._settings_follow and not recorded.server.tls_certificate
        rights_file = "" if later else self._config.rights_file
        guards = guards_with_rights(self._known.zookeeper, replace(to_be, rights_file=rights_file))
        check_addresses(to_be, _addresses(), self._config.insecure or recorded.insecure, guards)
        make_secret(recorded.secret_path)

    def _start(self, info: ClusterInfo, kv: int, topics: int, was_running: bool) -> ClusterStatus:
        """The actors, as soon as everything serves."""
        _ensure_manager(self._known)
        if not was_running:
            _begin_data_plane(self._known, info, kv, topics)
        if self._zookeeper_began:
            self._ensure_keeper()
        status = _start_and_wait(self._known, kv, topics, self._progress, self._deadline)
        if self._zookeeper_began:
            self._ask_keeper()
        return status

    def undo(self) -> None:
        """What was not running before does not run afterwards."""
        known = self._known
        if known.ray is not None and known.ray != self._found.ray:
            self._progress("ending what was started")
            end_processes(known)
            cluster_file.write(known.stopped())
        elif known.address and not self._others_actors:
            end_cluster(known, self._progress)
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
                why = _why_silent(error)
                if time.monotonic() > self._deadline:
                    raise PartitionNotReady(f"cluster {name!r} was not up in time: {why}") from error
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
            why, log = _why_silent(error), f"{zookeeper_directory(self._known.directory)}/zookeeper.log"
            raise CoordinationError(
                f"ZooKeeper does not start: {why}; look into {log}{_log_of_environment()}, or give --timeout more "
                "seconds"
            ) from error


def _why_silent(error: ClusterNotFound) -> str:
    """Why an actor gives no answer yet. One that Ray cannot even begin never will: RuntimeEnvFailed is raised again."""
    if isinstance(error, RuntimeEnvFailed):
        raise error
    return str(error)


def _log_of_environment() -> str:
    """Where Ray tells what it does before an actor's process begins, if this process has a ``runtime_env``, which its
    actors inherit: pip may take minutes."""
    environment = ray_lookup.runtime_env()
    if not environment:
        return ""
    return f" and, for the runtime_env ({', '.join(environment)}), into runtime_env_setup-*.log among the logs of Ray"


def _addresses() -> list[str]:
    """Of the nodes that Ray has now."""
    return [node.address for node in alive_nodes()]


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
        if known.ray is not None and known.ray.process() is None:  # asked, it would be waited for until Ray ends us
            raise RayNotRunning(f"Ray ended while the cluster was started; its logs are in {known.ray.temporary}")
        _ensure_manager(known)
        try:
            status = cluster_status(known.name)
            waiting = missing(status, kv, topics)
            if not waiting:
                return status
        except ClusterNotFound as error:
            waiting = [_why_silent(error)]
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
