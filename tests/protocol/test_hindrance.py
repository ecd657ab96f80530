"""What a partition says of why it takes no appends: by step of its life."""

from __future__ import annotations

from waltz_ray.config import ServerConfig
from waltz_ray.protocol.partition.events import NO_SUCH_SESSION, Assigned, RosterRead, Unassigned
from waltz_ray.protocol.partition.hindrance import ZOOKEEPER_IS_SILENT
from waltz_ray.protocol.partition.machine import Partition
from waltz_ray.protocol.roster import ReplicaEntry, Roster
from waltz_ray.protocol.session_types import (
    ReplicaAvailable,
    ReplicaLost,
    ReplicaOpened,
    RosterConflict,
    RosterWritten,
)

ROSTER = Roster(1, 1, {number: ReplicaEntry(1, None) for number in range(3)})
FULL = "/data/replica: no space left on the disk"
NEEDED = "too few replicas take part, 2 of 3 have to: "


def opened() -> Partition:
    """Session 2 is open with three members."""
    partition = Partition(0, ServerConfig())
    partition.step(Assigned(1))
    partition.step(RosterRead(ROSTER, 7))
    partition.step(RosterWritten(2, 8))
    for replica_id in range(3):
        partition.step(ReplicaOpened(2, replica_id, -1, -1))
    partition.step(RosterWritten(2, 9))
    assert partition.ready
    return partition


def test_nothing_hinders_a_session_with_a_quorum() -> None:
    partition = opened()
    assert partition.hindrance() == ""
    partition.step(ReplicaLost(2, 1, FULL))
    assert partition.hindrance() == "", "two of three are enough"
    assert partition.hindrance(ZOOKEEPER_IS_SILENT) == "", "it is not waited for while the session commits"


def test_too_few_replicas_are_named_each_with_its_reason() -> None:
    partition = opened()
    partition.step(ReplicaLost(2, 2, "not connected: refused"))
    partition.step(ReplicaLost(2, 1, FULL))
    assert partition.hindrance() == f"{NEEDED}replica 1: {FULL}; replica 2: not connected: refused"


def test_zookeeper_is_named_while_a_session_is_waited_for() -> None:
    partition = Partition(0, ServerConfig())
    partition.step(Assigned(1))
    assert partition.hindrance(ZOOKEEPER_IS_SILENT).startswith("ZooKeeper, which gives the next session, does not")


def test_the_life_of_an_opening() -> None:
    partition = Partition(0, ServerConfig())
    assert partition.hindrance() == "its server does not have it any more"
    partition.step(Assigned(1))
    partition.step(RosterRead(ROSTER, 7))
    partition.step(RosterWritten(2, 8))
    assert partition.hindrance() == "its session is being opened on 3 replicas"
    partition.step(ReplicaLost(2, 0, FULL))
    assert partition.hindrance() == f"{NEEDED}replica 0: {FULL}"
    partition.step(ReplicaAvailable(NO_SUCH_SESSION, 0))
    partition.step(ReplicaOpened(2, 0, -1, -1, damaged=True))
    assert partition.hindrance() == f"{NEEDED}replica 0: damaged"
    for replica_id in (1, 2):
        partition.step(ReplicaOpened(2, replica_id, -1, -1))
    partition.step(RosterConflict(2))
    assert partition.hindrance().startswith("its last session failed: another server has written")
    partition.step(Unassigned("assigned to another server"))
    assert partition.hindrance() == "its server does not have it any more"
