"""Which server has which partition, and which node which replica: pure functions from what is to what should be.

Preferred partitions go first, then the current owners keep theirs up to balance, the rest goes to the least
loaded. A partition's generation rises exactly when it gets an owner other than the one it has; a partition
without an owner keeps its last generation, so that a generation never comes twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from waltz_ray.errors import ConfigError
from waltz_ray.protocol.value import value

__all__ = ["Assignment", "NodeView", "Owner", "ServerInfo", "assign", "place_replicas"]


class Owner(NamedTuple):
    """A partition's server and the generation of that assignment."""

    server_id: int
    generation: int


@value()
class ServerInfo:
    """What placement needs to know of a live server: the partitions it should have if it can."""

    preferred: tuple[int, ...] = ()


@value()
class Assignment:
    """``owners``: partition -> owner. ``unassigned``: partition -> last generation, where nobody owns it now.

    A partition in neither was never assigned (generation 0). Do not change the mappings in place.
    """

    owners: Mapping[int, Owner] = field(default_factory=dict)
    unassigned: Mapping[int, int] = field(default_factory=dict)

    def owner(self, partition: int) -> Owner | None:
        """The partition's owner, None if nobody has it."""
        return self.owners.get(partition)

    def generation(self, partition: int) -> int:
        """The last generation the partition was given; 0 = never assigned."""
        owner = self.owners.get(partition)
        return owner.generation if owner else self.unassigned.get(partition, 0)

    def proven_partitions(self) -> int:
        """How many partitions there are at least: one that was ever assigned is there."""
        return max([0, *(p + 1 for p in self.owners), *(p + 1 for p in self.unassigned)])

    def partitions_of(self, server_id: int) -> dict[int, int]:
        """partition -> generation of what a server has."""
        return {p: owner.generation for p, owner in sorted(self.owners.items()) if owner.server_id == server_id}


def assign(
    partitions: int, servers: Mapping[int, ServerInfo], current: Assignment, gone: frozenset[int] = frozenset()
) -> Assignment:
    """The assignment of partitions 0 .. ``partitions`` - 1 to the live ``servers`` (server ID -> info).

    Every partition is assigned if there is a server, none if there is not; one that is ``gone`` never. Loads differ by
    one at the most, apart from preferences. The same input gives the same output, and the output is a fixed point.
    """
    wanted = [p for p in range(partitions) if p not in gone]
    nobodys = range(partitions) if not servers else sorted(gone)
    generations = {p: current.generation(p) for p in nobodys}
    unassigned = {p: generation for p, generation in generations.items() if generation}
    if not servers:
        return Assignment({}, unassigned)
    placed = _place_preferred(wanted, servers, current)
    rest = [p for p in wanted if p not in placed]
    kept: dict[int, list[int]] = {server_id: [] for server_id in servers}
    for p in rest:
        owner = current.owner(p)
        if owner and owner.server_id in servers:
            kept[owner.server_id].append(p)

    room = _room(_loads(servers, placed), kept, len(rest))
    for server_id, mine in kept.items():
        for p in mine[: room[server_id]]:
            placed[p] = server_id
    loads = _loads(servers, placed)
    for server_id, mine in kept.items():
        room[server_id] -= min(len(mine), room[server_id])
    for p in rest:
        if p not in placed:
            server_id = min((s for s in sorted(servers) if room[s]), key=lambda s: loads[s])
            placed[p] = server_id
            room[server_id] -= 1
            loads[server_id] += 1
    return Assignment({p: _owner(current, p, placed[p]) for p in wanted}, unassigned)


def _owner(current: Assignment, partition: int, server_id: int) -> Owner:
    owner = current.owner(partition)
    if owner and owner.server_id == server_id:
        return owner
    return Owner(server_id, current.generation(partition) + 1)


def _place_preferred(
    partitions: Sequence[int], servers: Mapping[int, ServerInfo], current: Assignment
) -> dict[int, int]:
    """partition -> server for every preferred partition. Of several that prefer it, the present owner wins."""
    there = frozenset(partitions)
    wanted: dict[int, list[int]] = {}
    for server_id in sorted(servers):
        for p in servers[server_id].preferred:
            if p in there:
                wanted.setdefault(p, []).append(server_id)
    placed: dict[int, int] = {}
    for p, candidates in wanted.items():
        owner = current.owner(p)
        if owner and owner.server_id in candidates:
            placed[p] = owner.server_id
    loads = _loads(servers, placed)
    for p in sorted(wanted):
        if p not in placed:
            placed[p] = min(wanted[p], key=lambda server_id: loads[server_id])
            loads[placed[p]] += 1
    return placed


def _loads(servers: Mapping[int, ServerInfo], placed: Mapping[int, int]) -> dict[int, int]:
    loads = dict.fromkeys(servers, 0)
    for server_id in placed.values():
        loads[server_id] += 1
    return loads


def _room(loads: Mapping[int, int], kept: Mapping[int, list[int]], rest: int) -> dict[int, int]:
    """How many of the ``rest`` partitions each server gets, so that the loads become as even as they can be.

    Like filling water over the loads that preferences have made. Where the last layer is not full, those who
    would otherwise have to give up a partition get its drops, so nothing moves that need not.
    """
    level = min(loads.values())
    while sum(max(0, level + 1 - load) for load in loads.values()) <= rest and rest:
        level += 1
    room = {server_id: max(0, level - load) for server_id, load in loads.items()}
    drops = rest - sum(room.values())
    low = [server_id for server_id, load in loads.items() if load <= level]
    low.sort(key=lambda server_id: (len(kept[server_id]) <= room[server_id], server_id))
    for server_id in low[:drops]:
        room[server_id] += 1
    return room


@value()
class NodeView:
    """An alive Ray node: its address, the names of the resources it offers, and its zone, "" = not known."""

    address: str
    resources: frozenset[str]
    zone: str = ""


def place_replicas(
    replica_ids: tuple[int, ...],
    nodes: list[NodeView],
    recorded: Mapping[int, str] | None = None,
    named: Mapping[int, str] | None = None,
) -> dict[int, str]:
    """replica -> the Ray resource that ties it to its node, hard (docs/design.md, "Actors").

    What is ``named`` for it, which must be offered; else ``waltz-replica-<n>`` where a node offers it, else the address
    resource of the only node. What is recorded stands for ever. ConfigError says how to start nodes if there is none.
    """
    if recorded is not None:
        return dict(recorded)
    offered = frozenset().union(*(node.resources for node in nodes))
    placed: dict[int, str] = {}
    for replica_id in replica_ids:
        wanted = (named or {}).get(replica_id, "")
        own = wanted or f"waltz-replica-{replica_id}"
        if own in offered:
            placed[replica_id] = own
        elif len(nodes) == 1 and not wanted:
            placed[replica_id] = f"node:{nodes[0].address}"
        else:
            raise ConfigError(
                f"replica {replica_id} is tied to no disk: none of the {len(nodes)} nodes of the Ray cluster offers "
                f"the resource {own}; start the node with its disk by: ray start ... --resources '{{\"{own}\": 1}}'"
            )
    return placed
