"""The ZooKeeper nodes of one cluster, and how they come to be.

::

    /<cluster>                         name, partitions                          (original's bytes)
        /ids/client, /ids/server       the last ID given out                     (original's bytes)
        /serverDescriptors             the assignment                            (original's bytes)
            /s_<10 digits>             one live server, ephemeral                (original's bytes)
        /store                         key and partitions, for the original's tools (original's bytes)
            /partition/<p>, /assignment, /group, /connection   for the same tools, see ``original_nodes.py``
                                       from here on JSON with a "version" field
            /cluster                   key, replicas and servers, settings, and whether initialisation is complete
            /partitions/<p>            Roster: session, generation, replica entries
            /replicas/<n>              where replica n listens
            /preferred                 preferred partitions of every server that has some
            /moves                     partitions that are to be on other replicas, see ``move_store.py``
            /spaces, /spaces/<name>    which partitions are whose, see ``space_store.py``
            /recovered                 which recovery from the disks has made these nodes, if one has
            /trims, /holds/<name>      what may go, and what must stay, see ``hold_store.py``
            /layers, /units, /topics   of layers: ``layer_store.py``, ``unit_store.py``, ``topic_store.py``
            /leader, /admin            locks, ephemeral

``create_nodes`` may crash anywhere. Its first step is one transaction that makes the root, ``/store`` and
``/store/cluster`` (the decision: shape and key, "complete": false); every further node is made if it is not
there; "complete": true comes last. Until then the cluster counts as absent, and the next ``create_nodes`` goes on
from the decision that was made, so the key is never made twice.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from waltz_ray.coordination.api import Write, ZooKeeper
from waltz_ray.errors import ClusterMismatch, ClusterNotFound, CoordinationError, NodeExists, NoNode, VersionConflict
from waltz_ray.protocol.cluster_members import ClusterMembers
from waltz_ray.protocol.disaster import GivenUp
from waltz_ray.protocol.ids import NO_SESSION
from waltz_ray.protocol.placement import Assignment
from waltz_ray.protocol.replica_sets import ReplicaPlace, choose_sets, nowhere_in_particular
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster
from waltz_ray.protocol.spaces import DEFAULT_SPACE
from waltz_ray.wire import znodes
from waltz_ray.wire.znodes import AssignmentNode, RootNode, StoreParams

__all__ = [
    "NEVER_JOINED",
    "WRITES_AT_ONCE",
    "ClusterInfo",
    "complete_info",
    "create_nodes",
    "given_up_fields",
    "given_up_of",
    "info_json",
    "info_of",
    "naming",
    "partition_path",
    "read_info",
    "servers_at_first",
    "to_fields",
    "to_json",
]

NEVER_JOINED = ReplicaEntry(NO_SESSION, UNRESOLVED)

WRITES_AT_ONCE = 500
"""Partition records in one transaction: ZooKeeper takes about 1 MB at once, a record has a few hundred bytes."""

_VERSION = 1


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """What is decided when a cluster is initialised. As of the reading, and changed since: ``partitions``, which only
    grows, and ``members``, who belongs to it. ``settings`` are the caller's, plain JSON values."""

    name: str
    partitions: int
    cluster_key: uuid.UUID
    members: ClusterMembers
    settings: Mapping[str, Any]

    @property
    def replica_ids(self) -> tuple[int, ...]:
        """In rising order."""
        return tuple(sorted(self.members.places))

    @property
    def replication(self) -> int:
        """On how many replicas a partition is made."""
        return self.members.replication

    def first_rosters(self, partitions: int) -> list[bytes]:
        """What the records of partitions 0 .. ``partitions`` - 1 are made as: who holds each."""
        sets = islice(choose_sets(self.members.staying, self.replication), partitions)
        return [Roster.initial(replica_ids).to_json().encode() for replica_ids in sets]


def to_json(fields: Mapping[str, Any], packed: bool = False) -> bytes:
    """A node's bytes, with the version field in front. ``packed``: of much, which people read less easily then."""
    indent, separators = (None, (",", ":")) if packed else (1, None)
    return json.dumps({"version": _VERSION, **fields}, indent=indent, separators=separators).encode()


def to_fields(path: str, data: bytes) -> dict[str, Any]:
    """What ``to_json`` was given, from a node's bytes; CoordinationError names the node."""
    with naming(path):
        fields = json.loads(data)
        if not isinstance(fields, dict) or fields.get("version") != _VERSION:
            raise ValueError(f"not JSON of version {_VERSION}")
        return fields


def given_up_fields(given_up: Mapping[int, Iterable[GivenUp]]) -> dict[str, list[list[int]]]:
    """Partition -> [first ID, session], as JSON has it."""
    return {str(p): [[each.first_id, each.session_id] for each in some] for p, some in sorted(given_up.items()) if some}


def given_up_of(fields: Mapping[str, Any]) -> dict[int, list[GivenUp]]:
    """What ``given_up_fields`` was given; earlier versions wrote none. ValueError, KeyError, TypeError."""
    found = fields.get("given_up", {}).items()
    return {int(p): [GivenUp(int(first_id), int(session)) for first_id, session in some] for p, some in found}


@contextmanager
def naming(path: str) -> Iterator[None]:
    """What is wrong with a node's content becomes a CoordinationError with the node's path."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CoordinationError(f"ZooKeeper node {path}: {type(error).__name__} {error}; is it damaged?") from error


def partition_path(root: str, p: int) -> str:
    return f"{root}/store/partitions/{p}"


def read_info(zookeeper: ZooKeeper, root: str) -> tuple[ClusterInfo, bool, int]:
    """(info, whether initialisation is complete, node version). NoNode."""
    path = root + "/store/cluster"
    data, version = zookeeper.get(path)
    return *info_of(path, root[1:], data), version


def info_of(path: str, cluster: str, data: bytes) -> tuple[ClusterInfo, bool]:
    """(info, whether initialisation is complete), of the bytes of ``store/cluster``."""
    fields = to_fields(path, data)
    with naming(path):
        settings = dict(fields["settings"])
        info = ClusterInfo(
            cluster,
            int(fields["partitions"]),
            uuid.UUID(fields["cluster_key"]),
            _members(fields, settings),
            settings,
        )
        return info, bool(fields["complete"])


def _members(fields: Mapping[str, Any], settings: Mapping[str, Any]) -> ClusterMembers:
    """With what there was not in a cluster that was made before replicas and servers came and went."""
    places = nowhere_in_particular([int(replica_id) for replica_id in fields["replica_ids"]])
    for replica_id, place in fields.get("places", {}).items():  # written since sets are chosen by them
        places[int(replica_id)] = ReplicaPlace(str(place["node"]), str(place["zone"]))
    draining = fields.get("draining", {"replicas": [], "servers": []})
    following = fields.get("next", {"replica": 0, "server": 0})
    return ClusterMembers(
        places,
        int(fields.get("replication", len(places))),  # before that everybody held everything
        frozenset(map(int, fields.get("servers", servers_at_first(settings)))),
        {int(replica_id): str(resource) for replica_id, resource in fields.get("resources", {}).items()},
        frozenset(map(int, draining["replicas"])),
        frozenset(map(int, draining["servers"])),
        int(following["replica"]),
        int(following["server"]),
    )


def servers_at_first(settings: Mapping[str, Any]) -> frozenset[int]:
    """The servers that a cluster with these settings is made with."""
    return frozenset(range(int(settings.get("config", {}).get("servers", 0))))


def complete_info(zookeeper: ZooKeeper, root: str) -> tuple[ClusterInfo, int]:
    """(info, node version). ClusterNotFound if there is no such cluster, or its initialisation was never completed."""
    try:
        info, complete, version = read_info(zookeeper, root)
    except NoNode as error:
        raise ClusterNotFound(f"ZooKeeper has no cluster {root[1:]!r}; start it or check the name") from error
    if not complete:
        raise ClusterNotFound(f"cluster {root[1:]!r} is only half initialised; initialise it again")
    return info, version


def create_nodes(
    zookeeper: ZooKeeper, root: str, wanted: ClusterInfo, further: Mapping[str, bytes] | None = None
) -> ClusterInfo:
    """Make, or finish making, the nodes: the cluster as it is (key and settings may be older than ``wanted``).

    ``further``: nodes that are not drawn here, or have other contents, path below the root -> content.
    ClusterMismatch if the root has another shape or is another program's; nothing is changed then.
    """
    try:
        zookeeper.write_all(
            [
                Write(root, znodes.encode_root(RootNode(wanted.name, wanted.partitions))),
                Write(root + "/store", znodes.encode_store_params(StoreParams(wanted.cluster_key, wanted.partitions))),
                Write(root + "/store/cluster", info_json(wanted, complete=False)),
            ]
        )
    except NodeExists:
        _check_shape(zookeeper, root, wanted)
    info, complete, version = read_info(zookeeper, root)
    if not complete:
        _create_missing(zookeeper, root, info, further or {})
        try:
            zookeeper.set(root + "/store/cluster", info_json(info, complete=True), version)
        except VersionConflict:
            return info  # another initialiser got as far: this is the only change the node ever sees
    return info


def info_json(info: ClusterInfo, complete: bool) -> bytes:
    """The bytes of ``store/cluster``."""
    members = info.members
    return to_json(
        {
            "complete": complete,
            "partitions": info.partitions,
            "cluster_key": str(info.cluster_key),
            "replica_ids": list(info.replica_ids),
            "replication": info.replication,
            "places": {str(r): {"node": at.node, "zone": at.zone} for r, at in sorted(members.places.items())},
            "resources": {str(r): resource for r, resource in sorted(members.resources.items())},
            "servers": sorted(members.servers),
            "draining": {"replicas": sorted(members.draining_replicas), "servers": sorted(members.draining_servers)},
            "next": {"replica": members.next_replica, "server": members.next_server},
            "settings": dict(info.settings),
        }
    )


def _check_shape(zookeeper: ZooKeeper, root: str, wanted: ClusterInfo) -> None:
    try:
        found = znodes.decode_root(root, zookeeper.get(root)[0])
        info, _, _ = read_info(zookeeper, root)
    except CoordinationError as error:
        if error.retriable:
            raise
        raise ClusterMismatch(f"{root} in ZooKeeper is another program's ({error}); use another name") from error
    if info.cluster_key == wanted.cluster_key:
        return  # nobody else has that key: it was begun with exactly this
    made_with = _partitions_at_first(zookeeper, root, found)
    if (found.cluster, made_with) != (wanted.name, wanted.partitions):
        raise ClusterMismatch(
            f"{root} in ZooKeeper is cluster {found.cluster!r} with {made_with} partitions, "
            f"not {wanted.name!r} with {wanted.partitions}; use another name"
        )
    if info.replica_ids != wanted.replica_ids:
        raise ClusterMismatch(
            f"cluster {wanted.name!r} has replicas {list(info.replica_ids)}, not {list(wanted.replica_ids)}; "
            f"use another name"
        )
    if info.replication != wanted.replication:
        raise ClusterMismatch(
            f"cluster {wanted.name!r} has each partition on {info.replication} replicas, not on {wanted.replication}; "
            f"use another name"
        )


def _partitions_at_first(zookeeper: ZooKeeper, root: str, found: RootNode) -> int:
    """Those that the cluster was made with: spaces may have been added since."""
    path = f"{root}/store/spaces/{DEFAULT_SPACE}"
    try:
        fields = to_fields(path, zookeeper.get(path)[0])
    except NoNode:
        return found.partitions
    with naming(path):
        return int(fields["count"])


def _create_missing(zookeeper: ZooKeeper, root: str, info: ClusterInfo, further: Mapping[str, bytes]) -> None:
    nodes = {
        "/ids": b"",
        "/ids/client": znodes.encode_counter(0),
        "/ids/server": znodes.encode_counter(0),
        "/serverDescriptors": znodes.encode_assignment(AssignmentNode(0, info.partitions, Assignment())),
        "/store/partitions": b"",
        "/store/replicas": b"",
        "/store/preferred": to_json({"servers": {}}),
        **{partition_path("", p): record for p, record in enumerate(info.first_rosters(info.partitions))},
        **further,
    }
    for path, data in nodes.items():
        try:
            zookeeper.create(root + path, data)
        except NodeExists:
            continue  # an earlier attempt, or one that runs beside us, made it from the same decision
