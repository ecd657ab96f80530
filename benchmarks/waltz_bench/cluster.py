"""The cluster that is measured: one of our own, up and down again, or one that runs already."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waltz_bench.processes import Processes
from waltz_ray import connect
from waltz_ray.actors.supervision import ask, replica_name
from waltz_ray.bring_up import bring_up
from waltz_ray.client.application import Callbacks
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.engine import FeedKind
from waltz_ray.config import ClientConfig, ClusterConfig, KvConfig, ServerConfig, TopicConfig
from waltz_ray.errors import ClusterNotFound, InvalidInput
from waltz_ray.finding import cluster_file, ray_lookup
from waltz_ray.interruption import interruptible, undisturbed
from waltz_ray.protocol.spaces import DEFAULT_SPACE
from waltz_ray.readiness import cluster_status
from waltz_ray.runtime.status import ActorStatus, ClusterStatus, ReplicaStatus
from waltz_ray.spaces import Spaces
from waltz_ray.take_down import take_down_in

__all__ = ["PARTITIONS", "REPLICAS", "SERVERS", "Waltz", "pid_of", "scratch_directory", "waltz_cluster"]

PARTITIONS, REPLICAS, SERVERS = 64, 3, 2
_ANSWER_S = 20.0
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Waltz:
    """A running cluster; this process is joined to its Ray."""

    name: str
    directory: str
    zookeeper: str
    partitions: int
    space: str = DEFAULT_SPACE
    """Whose partitions its clients use."""

    def client(
        self,
        callbacks: Callbacks | None = None,
        config: ClientConfig | None = None,
        partitions: tuple[int, ...] | None = None,
        feed: FeedKind | None = None,
        transport: Any = "tcp",
    ) -> WaltzClient:
        """A client of it, like an application's."""
        return connect(
            self.name,
            callbacks,
            config=config,
            partitions=partitions,
            zookeeper=self.zookeeper,
            transport=transport,
            feed=feed,
            space=self.space,
        )

    def status(self) -> ClusterStatus:
        """What the manager says (``waltz status``)."""
        return cluster_status(self.name)

    def pids(self) -> dict[str, int]:
        """The processes on the data path: ``server-<n>``, ``replica-<n>``. ClusterNotFound if one does not answer."""
        return {name: pid_of(name, actor) for name, actor in self.actors().items()}

    def actors(self) -> dict[str, ActorStatus]:
        """What these say of themselves, by the same names."""
        view = self.status()
        servers = {f"server-{number}": server for number, server in sorted(view.servers.items())}
        return servers | {f"replica-{number}": replica for number, replica in sorted(view.replicas.items())}

    def processes(self) -> Processes:
        """These, to be measured."""
        return Processes(self.pids())

    def replica(self, replica_id: int) -> ReplicaStatus:
        """What the replica says of itself (``ReplicaHost.status``)."""
        status: ReplicaStatus = ask(self.name, replica_name(replica_id), "status", _ANSWER_S)
        return status

    def syncs(self) -> dict[str, float]:
        """Turns of each replica since it started: a turn with appends costs one sync (EndpointStatistics)."""
        traffic = {number: self.replica(number).traffic for number in sorted(self.status().replicas)}
        return {f"syncs of replica-{number}": float(each.turns if each else 0) for number, each in traffic.items()}


def pid_of(name: str, actor: ActorStatus) -> int:
    """The process that does the actor's work. ClusterNotFound, saying why, if it does not tell."""
    if actor.pid is None:
        raise ClusterNotFound(f"{name} does not tell its process ({actor.state}: {actor.reason}); see waltz status")
    return actor.pid


@contextmanager
def waltz_cluster(
    directory: Path,
    running: str = "",
    progress: Progress = lambda text: None,
    partitions: int = PARTITIONS,
    server: ServerConfig | None = None,
    space: str = DEFAULT_SPACE,
    kv: int = 0,
    topics: int = 0,
    replicas: int = REPLICAS,
) -> Iterator[Waltz]:
    """A new cluster in ``directory``, taken down at the end whatever happens; or the one named ``running``.

    ``kv``, ``topics``: actors of these layers, ``replicas``: of which each partition is on ``REPLICAS``; of a new one.
    ``space``: of one that runs. SpaceNotFound, SpaceGone; InvalidInput for a new one, which has no other.
    """
    if running:
        found = cluster_file.find_running(name=running)
        ray_lookup.join(found.address)
        with Spaces(found.name, zookeeper=found.zookeeper) as spaces:
            partitions = spaces.describe(space).space.count
        yield Waltz(found.name, found.directory, found.zookeeper, partitions, space)
        return
    if space != DEFAULT_SPACE:
        raise InvalidInput(f"a new cluster has no space {space!r}; say with --cluster which running one has it")
    place = directory / "waltz"
    config = ClusterConfig(
        "bench",
        str(place),
        partitions,
        replicas,
        SERVERS,
        replication=REPLICAS if replicas > REPLICAS else 0,
        server=server or ServerConfig(),
        kv=KvConfig(actors=kv),
        topics=TopicConfig(actors=topics),
    )
    try:
        cluster = bring_up(config, progress=progress)
        with interruptible():
            yield Waltz(cluster.name, cluster.directory, cluster.zookeeper, cluster.partitions)
    finally:
        progress("taking the cluster down")
        with undisturbed():
            take_down_in(place, progress)


@contextmanager
def scratch_directory(below: str = "", kept_for: tuple[type[BaseException], ...] = ()) -> Iterator[Path]:
    """A new directory below ``below`` (default: the system's temporary one), removed at the end, whatever happens but
    ``kept_for``."""
    if below:
        os.makedirs(below, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="waltz-bench-", dir=below or None)).resolve()
    try:
        yield path
    except kept_for:
        raise
    except BaseException:
        shutil.rmtree(path)
        raise
    shutil.rmtree(path)
