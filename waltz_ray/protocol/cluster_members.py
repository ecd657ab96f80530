"""Who belongs to a cluster, and who is leaving: its replicas and servers, as they come and go while it runs.

A replica or server that is to go is *drained* first: it gets nothing new, and what it has is moved away. When it has
nothing any more it is removed. Numbers never come twice: a replica that comes back under its number would bring files
along that nobody counts on.

Values and rules only; what refuses says why (InvalidInput), and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.replica_sets import ReplicaPlace
from waltz_ray.protocol.value import value

__all__ = ["ClusterMembers"]

_MOST_REPLICAS, _MOST_SERVERS = 99, 9999  # as of ``ClusterConfig``
_REPLICATIONS = 3, 5


@value()
class ClusterMembers:
    """``places``: of every replica; ``resources``: the Ray resource that ties a replica to its node, of those that were
    added since the cluster was made; ``replication``: on how many replicas a partition is. ``next_replica`` and
    ``next_server`` were never used. Do not change the mappings in place."""

    places: Mapping[int, ReplicaPlace]
    replication: int
    servers: frozenset[int]
    resources: Mapping[int, str] = field(default_factory=dict)
    draining_replicas: frozenset[int] = frozenset()
    draining_servers: frozenset[int] = frozenset()
    next_replica: int = 0
    next_server: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "next_replica", max([self.next_replica, *(r + 1 for r in self.places)]))
        object.__setattr__(self, "next_server", max([self.next_server, *(s + 1 for s in self.servers)]))

    @property
    def staying(self) -> dict[int, ReplicaPlace]:
        """The replicas that may be given partitions."""
        return {r: place for r, place in sorted(self.places.items()) if r not in self.draining_replicas}

    @property
    def leaving_servers(self) -> frozenset[int]:
        """Those that are to have no partition: drained, or removed, for such a process lives on for a moment."""
        return self.draining_servers | (frozenset(range(self.next_server)) - self.servers)

    # ---- replicas

    def with_replica(self, resource: str, place: ReplicaPlace) -> ClusterMembers:
        """One more, ``next_replica``. InvalidInput if there are as many as there may be, and for a cluster that has
        everything on an unusual number of replicas, of which some partitions would then be on an unusual part."""
        number = self.next_replica
        if self.replication not in _REPLICATIONS:
            raise InvalidInput(
                f"each partition is on all {self.replication} replicas of this cluster; replicas can be added where a "
                "partition is on 3 or 5: back it up, and restore it into a cluster of so many"
            )
        if number >= _MOST_REPLICAS:
            raise InvalidInput(f"replica {number} would be one too many: numbers go up to {_MOST_REPLICAS - 1}")
        return replace(
            self,
            places={**self.places, number: place},
            resources={**self.resources, number: resource},
            next_replica=number + 1,
        )

    def draining_replica(self, number: int, largest_set: int) -> ClusterMembers:
        """It gets nothing new, and gives up what it has. ``largest_set``: how many replicas some partition is on.

        InvalidInput for a stranger, and if too few would be left.
        """
        self._check_replica(number)
        left = [r for r in self.staying if r != number]
        needed = max(self.replication, largest_set)
        if len(left) < needed:
            raise InvalidInput(
                f"replica {number} cannot be drained: {needed} replicas hold a partition, and without it "
                f"{len(left)} would be left ({_listed(left)}); add one first, with: waltz replica add"
            )
        return replace(self, draining_replicas=self.draining_replicas | {number})

    def without_replica(self, number: int, held: int) -> ClusterMembers:
        """It is gone. ``held``: how many partitions are on it, or are to be. InvalidInput unless it is drained."""
        self._check_replica(number)
        if number not in self.draining_replicas or held:
            has = f"{held} partitions are on it" if held else "it may be given partitions at any time"
            raise InvalidInput(
                f"replica {number} cannot be removed: {has}; drain it first, with: waltz replica drain {number}"
            )
        return replace(
            self,
            places={r: place for r, place in self.places.items() if r != number},
            resources={r: resource for r, resource in self.resources.items() if r != number},
            draining_replicas=self.draining_replicas - {number},
        )

    def keeping_replica(self, number: int) -> ClusterMembers:
        """It is not to go after all. InvalidInput for a stranger."""
        self._check_replica(number)
        return replace(self, draining_replicas=self.draining_replicas - {number})

    def _check_replica(self, number: int) -> None:
        if number not in self.places:
            raise InvalidInput(f"the cluster has no replica {number}, only {_listed(self.places)}")

    # ---- servers

    def with_server(self) -> ClusterMembers:
        """One more, ``next_server``."""
        number = self.next_server
        if number >= _MOST_SERVERS:
            raise InvalidInput(f"server {number} would be one too many: numbers go up to {_MOST_SERVERS - 1}")
        return replace(self, servers=self.servers | {number}, next_server=number + 1)

    def draining_server(self, number: int) -> ClusterMembers:
        """Its partitions go to the others. InvalidInput for a stranger, and for the last one that stays."""
        self.check_server(number)
        if not self.servers - self.draining_servers - {number}:
            raise InvalidInput(
                f"server {number} cannot be drained: no other one is left to serve its partitions; add one first, "
                "with: waltz server add"
            )
        return replace(self, draining_servers=self.draining_servers | {number})

    def without_server(self, number: int, served: int) -> ClusterMembers:
        """It is gone. ``served``: how many partitions it has. InvalidInput unless it is drained."""
        self.check_server(number)
        if number not in self.draining_servers or served:
            has = f"it has {served} partitions" if served else "it may be given partitions at any time"
            raise InvalidInput(
                f"server {number} cannot be removed: {has}; drain it first, with: waltz server drain {number}"
            )
        return replace(self, servers=self.servers - {number}, draining_servers=self.draining_servers - {number})

    def keeping_server(self, number: int) -> ClusterMembers:
        """It is not to go after all. InvalidInput for a stranger."""
        self.check_server(number)
        return replace(self, draining_servers=self.draining_servers - {number})

    def check_server(self, number: int) -> None:
        """InvalidInput if there is no such server."""
        if number not in self.servers:
            raise InvalidInput(f"the cluster has no server {number}, only {_listed(self.servers)}")


def _listed(numbers: Mapping[int, object] | frozenset[int] | list[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"
