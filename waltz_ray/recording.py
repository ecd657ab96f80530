"""Which cluster a directory and a ZooKeeper hold, and the first entries of one that is new.

``cluster.json`` tells the machine, ZooKeeper decides: what both say is compared before anything is recorded, so that no
cluster is begun over another one's disks, and none goes on with another one's nodes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from waltz_ray.actors.settings import Settings, as_of, from_json, to_json
from waltz_ray.actors.supervision import alive_nodes
from waltz_ray.backup.recovery import forget_recovered, read_recovered
from waltz_ray.backup.restored import RestoredCluster, forget_restored, read_restored
from waltz_ray.config import ClusterConfig
from waltz_ray.coordination.cluster_store import ClusterInfo, ClusterStore
from waltz_ray.coordination.layer_store import LayerStore
from waltz_ray.coordination.snapshot import plant_recovered
from waltz_ray.coordination.space_store import SpaceStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import ClusterMismatch, ClusterNotFound, InvalidInput, WaltzError, ZooKeeperRefused
from waltz_ray.finding import cluster_file
from waltz_ray.finding.cluster_file import ClusterFile
from waltz_ray.protocol.placement import NodeView, place_replicas
from waltz_ray.protocol.replica_sets import locate
from waltz_ray.protocol.spaces import KV_SPACE, OFFSETS_PARTITIONS, OFFSETS_SPACE, Space

__all__ = [
    "as_recorded",
    "check_may_start",
    "check_same",
    "initialise",
    "known_in",
    "with_all_layers",
    "with_layers",
]


def known_in(config: ClusterConfig) -> ClusterFile:
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


def check_same(known: ClusterFile, running: str) -> None:
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


def initialise(known: ClusterFile, config: ClusterConfig) -> ClusterInfo:
    """The cluster's nodes in ZooKeeper: made, if there are none and should be none; else what they say.

    A restored cluster's, and those of one that was recovered from its replicas, are planted here. ClusterMismatch if
    they, the directory and ``config`` are not of one cluster of one shape.
    """
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
                return _initialise_recovered(client, known)
            _check_no_other(client, known)
            _check_no_replicas(known)
            info = _initialise_new(store, known, config)
        _same(known, info)
        if known.key:  # who was killed behind the planting has left it: what is old by now must not be planted again
            forget_recovered(known.directory)
        return info
    finally:
        client.close()


def check_may_start(known: ClusterFile) -> None:
    """ZooKeeperRefused if this process may only read the nodes, and so the processes that it would start, too: they
    are known to ZooKeeper by the same environment, and none would ever serve."""
    client = KazooZooKeeper(known.zookeeper)
    try:
        ClusterStore(client, known.name).check_may_change()
    except ZooKeeperRefused as error:
        raise ZooKeeperRefused(f"cluster {known.name!r} cannot be started from here: {error}") from error
    finally:
        client.close()


def _initialise_recovered(client: KazooZooKeeper, known: ClusterFile) -> ClusterInfo:
    recovered = read_recovered(known.directory)
    if recovered is None or str(recovered[0]) != known.key:
        raise ClusterMismatch(
            f"the ZooKeeper at {known.zookeeper} has no cluster {known.name!r}, which {known.directory} holds: is it "
            "the right one, and does it have its data? (if that is lost: waltz recover)"
        )
    info = plant_recovered(client, known.name, *recovered)
    forget_recovered(known.directory)
    return info


def _initialise_new(store: ClusterStore, known: ClusterFile, config: ClusterConfig) -> ClusterInfo:
    nodes = alive_nodes()
    placement = _placement(config, nodes)
    settings = to_json(Settings(replace(config, directory=known.directory), placement))
    replica_ids, places = tuple(range(config.replicas)), locate(placement, nodes)
    return store.initialize(config.partitions, replica_ids, settings, config.replication, places)


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


def as_recorded(known: ClusterFile, info: ClusterInfo) -> ClusterFile:
    """With the key, and the replicas and servers that there are by now: ZooKeeper decides, the file only tells."""
    now = as_of(from_json(info.settings), info.members).config
    key = str(info.cluster_key)
    return replace(known, key=key, replicas=now.replicas, replication=now.replication, servers=now.servers)


def with_all_layers(known: ClusterFile, recorded: ClusterConfig, wanted: ClusterConfig) -> ClusterConfig:
    """``recorded``, with as many actors of layers as there are already, or as are ``wanted``."""
    client = KazooZooKeeper(known.zookeeper)
    try:
        layers = LayerStore(client, known.name)
        kv, topics = max(layers.actors("kv"), wanted.kv.actors), max(layers.actors("topic"), wanted.topics.actors)
    finally:
        client.close()
    return replace(recorded, kv=replace(recorded.kv, actors=kv), topics=replace(recorded.topics, actors=topics))


def with_layers(known: ClusterFile, config: ClusterConfig) -> tuple[int, int]:
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
    try:
        spaces.create(name, partitions, "kv")
    except InvalidInput:
        if name not in spaces.table().spaces:  # else it was there, or somebody else was faster
            raise


def _present(spaces: SpaceStore) -> list[Space]:
    """Those that were not deleted."""
    return spaces.table().present()
