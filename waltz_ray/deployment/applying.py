"""A deployment compared with what there is, and carried out: made, started, and changed while it runs.

Idempotent: what is there already is left alone, so an attempt that ended anywhere is made again. Whatever the file asks
for that cannot be done is said before anything is done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from waltz_ray.actors.settings import as_of, from_json
from waltz_ray.actors.supervision import alive_nodes
from waltz_ray.backup.restored import read_restored
from waltz_ray.bring_up import Cluster, bring_up
from waltz_ray.config import ClusterConfig, within_bounds
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.layer_store import LayerStore
from waltz_ray.coordination.settings_store import SettingsStore
from waltz_ray.coordination.upgrade_store import UpgradeStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.deployment.difference import Change, SeenCluster, Verb, difference, space_changes, with_settings
from waltz_ray.deployment.file import Deployment
from waltz_ray.deployment.stages import SECTIONS, stages
from waltz_ray.errors import ClusterMismatch, ClusterNotFound, InvalidInput
from waltz_ray.finding import cluster_file, ray_lookup
from waltz_ray.guarding import guards_with_rights
from waltz_ray.members import Members
from waltz_ray.protocol.placement import NodeView
from waltz_ray.spaces import Spaces
from waltz_ray.startup_checks import check_settings, tls_files
from waltz_ray.upgrading import change_settings, change_settings_of_stuck, hands_of

__all__ = ["AppliedDeployment", "apply", "compare", "have_spaces"]

Progress = Callable[[str], None]

_STEP_S = 300.0  # of a restart of one process, as of waltz upgrade
_STUCK_S = 20.0  # for so long an actor does not serve that has just been started, and no more, if it can begin


@dataclass(frozen=True)
class AppliedDeployment:
    """``cluster``: as it runs now; ``changes``: what was done, and what was left as it is (NOTE)."""

    cluster: Cluster
    changes: tuple[Change, ...]


def compare(deployment: Deployment) -> list[Change]:
    """What ``apply`` would do, or refuse; nothing is changed. RayNotRunning, ZooKeeperUnreachable."""
    deployment = _resolved(deployment)
    zookeeper = _zookeeper_of(deployment)
    seen = _seen(deployment, zookeeper)
    if seen is not None:
        changes = difference(deployment, seen)
        if not any(each.verb is Verb.REFUSE for each in changes):
            _check_settings(_config(deployment, seen), zookeeper, seen, changes)
        return changes
    name, directory = deployment.cluster.name, deployment.cluster.directory
    if cluster_file.read(directory) is not None:
        why = "it does not run, and its ZooKeeper is its own: it is started, and compared then"
        return [Change(Verb.ADD, "name", None, name, why=why)]
    made = [Change(Verb.ADD, "name", None, name, deployment.lines.get("name", 0), f"a new cluster, in {directory}")]
    return [*made, *_spaces_of(deployment, difference(deployment, SeenCluster(deployment.cluster, {}, [])))]


def apply(deployment: Deployment, progress: Progress = lambda text: None) -> AppliedDeployment:
    """Have the cluster as the file says. ClusterMismatch names everything that cannot be done, and nothing was done;
    only of a cluster that had to be started first, it runs then. Else what ``bring_up``, ``upgrading`` and ``Spaces``
    raise; after each of them the same call goes on."""
    deployment = _resolved(deployment)
    zookeeper = _zookeeper_of(deployment)
    seen = _seen(deployment, zookeeper)
    planned = difference(deployment, seen) if seen is not None else []
    _refuse(deployment, planned)
    config, deadline_s = _config(deployment, seen), deployment.ray.deadline_s
    if seen is not None:
        _check_settings(config, zookeeper, seen, planned)
        _change_settings_of_stuck(deployment, zookeeper, seen, planned, progress)
    running = bring_up(config, deployment.ray.address, progress=progress, deadline_s=deadline_s, settings_follow=True)
    now = _seen(deployment, running.zookeeper)
    if now is None:
        raise ClusterNotFound(f"cluster {running.name!r} is gone from its ZooKeeper at {running.zookeeper}")
    rest = difference(deployment, now)
    _refuse(deployment, rest)
    _check_settings(config, running.zookeeper, now, rest, alive_nodes())
    _change_settings(running, now, rest, progress)
    if config.rights_file:
        as_it_is = replace(with_settings(now.config, rest), rights_file=config.rights_file)
        guards_with_rights(running.zookeeper, as_it_is)
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


def _seen(deployment: Deployment, zookeeper: str) -> SeenCluster | None:
    """As that ZooKeeper has it; None if there is none, or no such cluster in it."""
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


def _check_settings(
    config: ClusterConfig, zookeeper: str, seen: SeenCluster, changes: Sequence[Change], nodes: Sequence[NodeView] = ()
) -> None:
    """ConfigError, InvalidInput if the settings as they would be let strangers in, or refuse the cluster's own."""
    wanted = with_settings(seen.config, changes)
    if wanted != seen.config:
        kv, topics = replace(wanted.kv, actors=seen.layers["kv"]), replace(wanted.topics, actors=seen.layers["topic"])
        as_of_now = replace(wanted, kv=kv, topics=topics, rights_file=config.rights_file)
        known = cluster_file.read(config.directory)
        # Files that others have brought are looked at once: who changes a limit need not be able to read a key.
        here = known is not None and known.ray is not None and tls_files(wanted) != tls_files(seen.config)
        check_settings(as_of_now, zookeeper, [node.address for node in nodes], config.insecure, here)


def _change_settings(running: Cluster, seen: SeenCluster, changes: Sequence[Change], progress: Progress) -> None:
    """Stage by stage (``stages.py``), after one that was interrupted. Nothing if there is nothing to change."""
    plan = list(stages(seen.config, with_settings(seen.config, changes)))
    with Members(running.name, directory=running.directory) as members:
        upgrades = UpgradeStore(members.zookeeper, running.name)
        if plan or upgrades.read() is not None:
            change = partial(_kept_by, SettingsStore(members.zookeeper, running.name, within_bounds))
            befores = [seen.config, *(stage.config for stage in plan)]
            kept = ((stage.kinds, change(before, stage.config)) for before, stage in zip(befores, plan, strict=False))
            change_settings(upgrades, hands_of(members), kept, progress, _STEP_S)


def _change_settings_of_stuck(
    deployment: Deployment, zookeeper: str, seen: SeenCluster, changes: Sequence[Change], progress: Progress
) -> None:
    """The first stage of the change, where the cluster runs and some that read these settings do not begin, perhaps
    because of those that are kept: ``bring_up`` would wait for them in vain, and what was bad be kept for ever."""
    plan = list(stages(seen.config, with_settings(seen.config, changes)))
    known = cluster_file.read(deployment.cluster.directory)
    address = known.address if known is not None and known.running else deployment.ray.address
    if not plan or not address:
        return
    ray_lookup.join(address)
    with Members(deployment.cluster.name, zookeeper=zookeeper) as members:
        upgrades = UpgradeStore(members.zookeeper, members.cluster)
        settings = SettingsStore(members.zookeeper, members.cluster, within_bounds)
        begin = partial(_kept_by(settings, seen.config, plan[0].config), instead=True)
        change_settings_of_stuck(upgrades, hands_of(members), plan[0].kinds, begin, progress, _STUCK_S)


def _kept_by(settings: SettingsStore, before: ClusterConfig, after: ClusterConfig) -> Callable[..., None]:
    """Keeps the sections in which these differ, and begins the upgrade that it is given."""
    old, new = asdict(before), asdict(after)
    changed = [name for name in SECTIONS if old[name] != new[name]]
    return partial(settings.change, {name: old[name] for name in changed}, {name: new[name] for name in changed})


def _spaces_of(deployment: Deployment, changes: Sequence[Change]) -> list[Change]:
    return [each for each in changes if each.what.startswith("spaces.")]


def _change_spaces(deployment: Deployment, running: Cluster, changes: Sequence[Change], progress: Progress) -> None:
    doing = [each for each in _spaces_of(deployment, changes) if each.verb in (Verb.ADD, Verb.CHANGE)]
    if not doing:
        return
    with Spaces(running.name, zookeeper=running.zookeeper) as spaces:
        have_spaces(deployment, spaces, doing, progress)


def have_spaces(deployment: Deployment, spaces: Spaces, doing: Sequence[Change], progress: Progress) -> None:
    """Spaces are made and set; one that another ``apply`` has just made is that of the file, if it is as that says."""
    for name in dict.fromkeys(each.what.split(".")[1] for each in doing):
        space, settings = deployment.spaces[name], deployment.space_settings(name)
        if any(each.what == f"spaces.{name}" for each in doing):
            progress(f"making space {name}")
            told = {key: value for key, value in settings.items() if value is not None}
            try:
                spaces.create(name, space.partitions, space.kind, told, deployment.ray.deadline_s)
                continue
            except InvalidInput:
                there = next((each for each in spaces.list() if each.name == name), None)
                if there is None or any(each.verb is Verb.REFUSE for each in space_changes(deployment, name, there)):
                    raise
            spaces.wait_ready(name, deployment.ray.deadline_s)
        progress(f"setting space {name}")
        spaces.set(name, **settings)
