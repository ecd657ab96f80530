"""What ZooKeeper has of a cluster that no disk would know, as text: taken while it runs, planted when it was lost.

Not in it, for the disks know better, or nobody needs it: sessions (rosters), IDs and generations that were given out,
trim marks, leases, cursors' positions, tables of units.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_nodes import (
    ClusterInfo,
    create_nodes,
    given_up_fields,
    given_up_of,
    info_of,
    partition_path,
    to_fields,
    to_json,
)
from waltz_ray.errors import ClusterMismatch, NoNode
from waltz_ray.protocol.disaster import GivenUp
from waltz_ray.protocol.placement import Assignment
from waltz_ray.protocol.roster import Roster
from waltz_ray.wire import znodes
from waltz_ray.wire.znodes import AssignmentNode

__all__ = [
    "DOCUMENTS",
    "TOPIC_USERS",
    "RecoveredNodes",
    "given_up_in",
    "info_in",
    "plant_recovered",
    "snapshot_nodes",
]

TOPIC_USERS = "/store/topics/access"
"""Rights of topics' users, with their passwords."""

DOCUMENTS = "/store/access", TOPIC_USERS, "/store/topics/flow"
"""Who may do what, and how fast, as operators have set it."""

_RECOVERED = "/store/recovered"

_TREES = "/store/spaces", "/store/preferred", "/store/layers", "/store/moves", "/store/holds"


def snapshot_nodes(zookeeper: ZooKeeper, cluster: str) -> dict[str, str]:
    """Path below the root -> content, parents first. NoNode if there is no such cluster."""
    root, found = f"/{cluster}", {}
    found["/store/cluster"] = zookeeper.get(f"{root}/store/cluster")[0].decode()
    waiting = [*DOCUMENTS, _RECOVERED, *_TREES]
    while waiting:
        path = waiting.pop(0)
        try:
            if zookeeper.owner(root + path):
                continue  # ephemeral: it belongs to a process that is gone by then
            found[path] = zookeeper.get(root + path)[0].decode()
            if path.startswith(_TREES):
                waiting += [f"{path}/{name}" for name in zookeeper.children(root + path)]
        except NoNode:
            continue
    return dict(sorted(found.items()))


def given_up_in(nodes: Mapping[str, str]) -> dict[int, list[GivenUp]]:
    """What recoveries before this one have given up, by partition, as a snapshot says."""
    text = nodes.get(_RECOVERED)
    return {} if text is None else given_up_of(to_fields(_RECOVERED, text.encode()))


def info_in(nodes: Mapping[str, str], cluster: str) -> ClusterInfo:
    """What ``store/cluster`` of a snapshot says. CoordinationError."""
    return info_of("/store/cluster", cluster, nodes["/store/cluster"].encode())[0]


class RecoveredNodes:
    """``nodes``: of a snapshot; the rest from the disks. ``generations``: by partition, all that come are higher.
    ``recovery``: names this recovery, no other one is called so; "" = nobody has named it. ``given_up``: by partition,
    by this recovery or one before."""

    def __init__(
        self,
        nodes: Mapping[str, str],
        rosters: Mapping[int, Roster],
        generations: Mapping[int, int],
        trim_marks: Mapping[int, int],
        last_ids: tuple[int, int],
        recovery: str = "",
        given_up: Mapping[int, Sequence[GivenUp]] | None = None,
    ) -> None:
        self.nodes, self.rosters, self.generations = nodes, rosters, generations
        self.trim_marks, self.last_ids, self.recovery = trim_marks, last_ids, recovery
        self.given_up = given_up or {}


def plant_recovered(zookeeper: ZooKeeper, cluster: str, key: uuid.UUID, recovered: RecoveredNodes) -> ClusterInfo:
    """Make the cluster's nodes, or finish making them. ClusterMismatch if there is another cluster of that name."""
    wanted = info_in(recovered.nodes, cluster)
    unowned = Assignment({}, {p: generation for p, generation in sorted(recovered.generations.items()) if generation})
    further = {path: text.encode() for path, text in recovered.nodes.items() if path != "/store/cluster"}
    for parent in ("/store/layers", "/store/topics"):
        if any(path.startswith(f"{parent}/") for path in further):
            further = {parent: b"", **further}
    further |= {
        "/ids/client": znodes.encode_counter(recovered.last_ids[0]),
        "/ids/server": znodes.encode_counter(recovered.last_ids[1]),
        "/serverDescriptors": znodes.encode_assignment(AssignmentNode(0, wanted.partitions, unowned)),
        **{partition_path("", p): roster.to_json().encode() for p, roster in sorted(recovered.rosters.items())},
    }
    if recovered.trim_marks:
        marks = {str(p): mark for p, mark in sorted(recovered.trim_marks.items())}
        further["/store/trims"] = to_json({"marks": marks})
    if recovered.recovery:
        given_up = given_up_fields(recovered.given_up)
        further[_RECOVERED] = to_json({"recovery": recovered.recovery, "given_up": given_up})
    info = create_nodes(zookeeper, f"/{cluster}", wanted, further)
    if info.cluster_key != key:
        raise ClusterMismatch(f"ZooKeeper has another cluster {cluster!r} than the one that was recovered")
    return info
