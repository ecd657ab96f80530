"""Rules of servers that join and leave, broken (see ``mutations.py``)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.actors.manager import Manager
from waltz_ray.protocol.cluster_members import ClusterMembers

__all__ = [
    "changes_of_servers_are_not_heard",
    "drained_servers_keep_their_partitions",
    "servers_are_removed_with_their_partitions",
    "the_last_server_may_be_drained",
]

Patch = pytest.MonkeyPatch


def changes_of_servers_are_not_heard(patch: Patch) -> None:
    """The manager goes on with those that it began with."""
    break_rule(patch, Manager, "members_seen", lambda self, expected, draining: None)


def drained_servers_keep_their_partitions(patch: Patch) -> None:
    """Only who was removed is to have none."""

    def leaving_servers(self: ClusterMembers) -> frozenset[int]:
        return frozenset(range(self.next_server)) - self.servers

    break_rule(patch, ClusterMembers, "leaving_servers", property(leaving_servers))


def servers_are_removed_with_their_partitions(patch: Patch) -> None:
    original = ClusterMembers.without_server
    break_rule(patch, ClusterMembers, "without_server", lambda self, number, served: original(self, number, 0))


def the_last_server_may_be_drained(patch: Patch) -> None:
    def draining_server(self: ClusterMembers, number: int) -> ClusterMembers:
        self.check_server(number)
        return replace(self, draining_servers=self.draining_servers | {number})

    break_rule(patch, ClusterMembers, "draining_server", draining_server)
