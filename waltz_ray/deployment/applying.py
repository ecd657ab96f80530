"""A deployment compared with what there is, and carried out: made, started, and changed while it runs.

Idempotent: what is there already is left alone, so an attempt that ended anywhere is made again. Whatever the file asks
for that cannot be done is said before anything is done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from waltz_ray.actors.settings import as_of, from_json
from waltz_ray.backup.restored import read_restored
from waltz_ray.bring_up import Cluster, bring_up
from waltz_ray.config import ClusterConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.layer_store import LayerStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.deployment.difference import Change, SeenCluster, Verb, difference
from waltz_ray.deployment.file import Deployment
from waltz_ray.errors import ClusterMismatch, ClusterNotFound
from waltz_ray.finding import cluster_file, ray_lookup
from waltz_ray.spaces import Spaces

__all__ = ["AppliedDeployment", "apply", "compare"]


@dataclass(frozen=True)
class AppliedDeployment:
    """``cluster``: as it runs now; ``changes``: what was done, and what was left as it is (NOTE)."""

    cluster: Cluster
    changes: tuple[Change, ...]


def compare(deployment: Deployment) -> list[Change]:
    """What ``apply`` would do, or refuse; nothing is changed. RayNotRunning, ZooKeeperUnreachable."""
    deployment = _resolved(deployment)
    seen = _seen(deployment)
    if seen is not None:
        return difference(deployment, seen)
    name, directory = deployment.cluster.name, deployment.cluster.directory
    if cluster_file.read(directory) is not None:
        why = "it does not run, and its ZooKeeper is its own: it is started, and compared then"
        return [Change(Verb.ADD, "name", None, name, why=why)]
    made = [Change(Verb.ADD, "name", None, name, deployment.lines.get("name", 0), f"a new cluster, in {directory}")]
    return [*made, *_spaces_of(deployment, difference(deployment, SeenCluster(deployment.cluster, {}, [])))]


def apply(deployment: Deployment, progress: Callable[[str], None] = lambda text: None) -> AppliedDeployment:
    """Have the cluster as the file says. ClusterMismatch names everything that cannot be done, and nothing was done;
    only of a cluster that had to be started first, it runs then. Else what ``bring_up`` and ``Spaces`` raise."""
    deployment = _resolved(deployment)
    seen = _seen(deployment)
    planned = difference(deployment, seen) if seen is not None else []
    _refuse(deployment, planned)
    config = _config(deployment, seen)
    running = bring_up(config, deployment.ray.address, progress=progress, deadline_s=deployment.ray.deadline_s)
    now = _seen(deployment, running.zookeeper)
    if now is None:
        raise ClusterNotFound(f"cluster {running.name!r} is gone from its ZooKeeper at {running.zookeeper}")
    rest = difference(deployment, now)
    _refuse(deployment, rest)
    _change_spaces(deployment, running, rest, progress)
    if seen is None:
        what = "a new cluster" if not running.was_running else ""
        planned = [Change(Verb.ADD, "name", None, running.name, why=what), *rest]
    return AppliedDeployment(running, tuple(planned))


def _resolved(deployment: Deployment) -> Deployment:
    """With the directory as the cluster's own files have it."""
    directory = os.path.realpath(deployment.cluster.directory)
    return replace(deployment, cluster=replace(deployment.cluster, directory=directory))


def _zookeeper_of(deployment: Deployment) -> str:
    """The connect string; "" where the cluster does not run and has a ZooKeeper of its own, or is not there."""
    known = cluster_file.read(deployment.cluster.directory)
    if deployment.cluster.zookeeper:
        return deployment.cluster.zookeeper
    if known is not None and not known.embedded:
        return known.zookeeper
    address = known.address if known is not None and known.running else deployment.ray.address
    if not address:
        return ""
    ray_lookup.join(address)
    if deployment.cluster.name not in ray_lookup.cluster_names():
        return ""
    return ray_lookup.ask_manager(deployment.cluster.name)["zookeeper"]


def _seen(deployment: Deployment, zookeeper: str = "") -> SeenCluster | None:
    zookeeper = zookeeper or _zookeeper_of(deployment)
    if not zookeeper:
        return None
    client = KazooZooKeeper(zookeeper)
    try:
        store = ClusterStore(client, deployment.cluster.name)
        try:
            info = store.info()
        except ClusterNotFound:
            return None
        recorded = from_json(info.settings)
        now = as_of(recorded, info.members)
        same = sorted(now.placement) == sorted(recorded.placement)  # else the disks of the file are not those of now
        config = replace(now.config, disks=recorded.config.disks) if same else now.config
        layers = LayerStore(client, deployment.cluster.name)
        spaces = sorted(store.spaces.table().spaces.values(), key=lambda space: space.first)
        return SeenCluster(config, {layer: layers.actors(layer) for layer in ("kv", "topic")}, spaces)
    finally:
        client.close()


def _config(deployment: Deployment, seen: SeenCluster | None) -> ClusterConfig:
    """What is brought up: where the file says nothing, a cluster that is there already is left as it is."""
    wanted = deployment.cluster
    known = cluster_file.read(wanted.directory)
    restored = read_restored(wanted.directory) if known is None else None
    there = (seen.config if seen else None) or known or (restored.config if restored else None)
    if there is None:
        return wanted
    shape: dict[str, Any] = {"partitions": there.partitions, "replication": there.replication, "servers": there.servers}
    if not deployment.says("disks"):
        shape["replicas"] = there.replicas
    left_out = {name: value for name, value in shape.items() if not deployment.says(name)}
    zookeeper = wanted.zookeeper or (known.zookeeper if known and not known.embedded else "")
    return replace(wanted, zookeeper=zookeeper, **left_out)


def _refuse(deployment: Deployment, changes: Sequence[Change]) -> None:
    refused = [each for each in changes if each.verb is Verb.REFUSE]
    if not refused:
        return
    told = "; ".join(
        f"{deployment.source}:{each.line}: {each.what} is {each.before!r}, not {each.after!r}: {each.why}"
        for each in refused
    )
    raise ClusterMismatch(f"the running cluster cannot become what the file says, and nothing was changed: {told}")


def _spaces_of(deployment: Deployment, changes: Sequence[Change]) -> list[Change]:
    return [each for each in changes if each.what.startswith("spaces.")]


def _change_spaces(
    deployment: Deployment, running: Cluster, changes: Sequence[Change], progress: Callable[[str], None]
) -> None:
    doing = [each for each in _spaces_of(deployment, changes) if each.verb in (Verb.ADD, Verb.CHANGE)]
    if not doing:
        return
    with Spaces(running.name, zookeeper=running.zookeeper) as spaces:
        for name in dict.fromkeys(each.what.split(".")[1] for each in doing):
            space, settings = deployment.spaces[name], deployment.space_settings(name)
            if any(each.what == f"spaces.{name}" for each in doing):
                progress(f"making space {name}")
                told = {key: value for key, value in settings.items() if value is not None}
                spaces.create(name, space.partitions, space.kind, told, deployment.ray.deadline_s)
            else:
                progress(f"setting space {name}")
                spaces.set(name, **settings)
