"""A cluster's end: its actors by their names, its Ray and its ZooKeeper by their pids, nothing else. The data stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waltz_ray.actors import local_ray
from waltz_ray.actors.supervision import ask, end_actor, running_actors
from waltz_ray.cluster_directory import Progress, beside_no_other
from waltz_ray.coordination.embedded import EmbeddedZooKeeper, zookeeper_directory
from waltz_ray.errors import ClusterNotFound, RayNotRunning, WaltzError
from waltz_ray.finding import cluster_file, ray_lookup
from waltz_ray.finding.cluster_file import ClusterFile
from waltz_ray.finding.ray_lookup import MANAGER

__all__ = ["end_cluster", "end_processes", "take_down", "take_down_in"]

_LOCATION_TIMEOUT_S = 5.0


def take_down(cluster: ClusterFile, progress: Progress = lambda text: None) -> None:
    """End the manager, servers, replicas, our ZooKeeper and our Ray, by name and pid, nothing else. Idempotent.

    The data stays; ``bring_up`` of the same directory has it again. One that is under way is waited for: it would make
    anew what is ended here, and wait in vain for what it has made. A program that has connected itself to Ray stays so,
    unless that Ray is ended; one that ``bring_up`` has connected does not.
    """
    with beside_no_other(cluster.directory, progress), _back_where_it_was():
        end_cluster(cluster, progress)


def take_down_in(directory: Path, progress: Progress = lambda text: None) -> None:
    """``take_down`` of the cluster in ``directory``; nothing if there is none."""
    with beside_no_other(str(directory), progress), _back_where_it_was():
        known = cluster_file.read(directory)  # only now: who was waited for has changed it
        if known is not None:
            end_cluster(known, progress)


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


def end_cluster(cluster: ClusterFile, progress: Progress) -> None:
    """``take_down``, while nobody else does anything in the directory. RayNotRunning if its actors live on a Ray of
    others that does not answer."""
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
            end_processes(cluster)
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


def end_processes(cluster: ClusterFile) -> None:
    """Our Ray, if it is ours, with all actors, and our ZooKeeper."""
    if cluster.ray is not None:
        if ray_lookup.here() == ray_lookup.reachable(cluster.ray.address):
            ray_lookup.leave()
        local_ray.stop(cluster.ray)
    if cluster.embedded:
        EmbeddedZooKeeper(zookeeper_directory(cluster.directory)).stop()
