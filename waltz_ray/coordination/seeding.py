"""The ZooKeeper nodes of a cluster that begins with logs: one that was restored from a backup.

Its replicas have the logs already. So the nodes say that a session, number SEED_SESSION, has been published on every
partition, and that each replica is a member of it, unresolved: the first real session asks them for their votes, and
none of them may come without its files. Client and server IDs, and generations, go on behind those that are in the
records, for none of them may come twice. The rights that the backup has hold from the beginning: there is no moment in
which the cluster is open to all.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_nodes import partition_path, to_json
from waltz_ray.coordination.hold_store import Hold, first_hold_nodes
from waltz_ray.coordination.snapshot import DOCUMENTS, TOPIC_USERS
from waltz_ray.coordination.space_store import space_nodes
from waltz_ray.errors import NoNode
from waltz_ray.protocol.placement import Assignment
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster
from waltz_ray.protocol.spaces import SpaceTable
from waltz_ray.wire import znodes
from waltz_ray.wire.znodes import AssignmentNode

__all__ = ["NO_TOPIC_USERS", "SEED_SESSION", "Seed", "documents_of", "seed_nodes"]

SEED_SESSION = 1
"""What the control files of the restored replicas have, too."""

NO_TOPIC_USERS = '{"authenticate": true}'
"""In place of rights of topics that have passwords: nobody produces or consumes until somebody sets them again."""


@dataclass(frozen=True)
class Seed:
    """``generations`` and ``trim_marks`` by partition, of those that have one. ``spaces`` has N, and who is gone.
    ``hold``: what retention must leave alone until somebody releases it. ``sets``: partition -> the replicas that have
    its log; one that is not there is on all. ``documents``: as ``documents_of``."""

    cluster_key: uuid.UUID
    spaces: SpaceTable
    last_client_id: int
    last_server_id: int
    generations: Mapping[int, int]
    trim_marks: Mapping[int, int]
    hold: Hold | None = None
    sets: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    documents: Mapping[str, str] = field(default_factory=dict)


def documents_of(zookeeper: ZooKeeper, cluster: str) -> dict[str, str]:
    """Who may do what, and how fast, as operators have set it: path below the root -> text, without passwords."""
    found = {}
    for path in DOCUMENTS:
        try:
            found[path] = zookeeper.get(f"/{cluster}{path}")[0].decode(errors="replace")
        except NoNode:
            continue
    if TOPIC_USERS in found and _has_users(found[TOPIC_USERS]):
        found[TOPIC_USERS] = NO_TOPIC_USERS
    return found


def _has_users(text: str) -> bool:
    """Or may have some."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return True
    return not isinstance(document, dict) or bool(document.get("users"))


def seed_nodes(seed: Seed, replica_ids: Sequence[int]) -> dict[str, bytes]:
    """Path below the cluster's root -> content, in the order in which they can be made."""
    generations = {p: generation for p, generation in sorted(seed.generations.items()) if generation > 0}
    nodes = {
        "/ids/client": znodes.encode_counter(seed.last_client_id),
        "/ids/server": znodes.encode_counter(seed.last_server_id),
        "/serverDescriptors": znodes.encode_assignment(
            AssignmentNode(0, seed.spaces.partitions, Assignment({}, generations))
        ),
        **space_nodes(seed.spaces.spaces.values()),
    }
    if seed.trim_marks:
        nodes["/store/trims"] = to_json({"marks": {str(p): mark for p, mark in sorted(seed.trim_marks.items())}})
    if seed.hold is not None:
        nodes |= first_hold_nodes([seed.hold])
    documents = {path: seed.documents[path].encode() for path in DOCUMENTS if path in seed.documents}
    if any(path.startswith("/store/topics/") for path in documents):
        nodes["/store/topics"] = b""
    nodes |= documents
    for p in seed.spaces.kept:
        holders = sorted(seed.sets.get(p, replica_ids))
        members = dict.fromkeys(holders, ReplicaEntry(SEED_SESSION, UNRESOLVED))
        nodes[partition_path("", p)] = Roster(SEED_SESSION, generations.get(p, 0), members).to_json().encode()
    return nodes
