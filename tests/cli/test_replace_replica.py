"""``waltz replace-replica``: it says it is done only when the replica serves, and else why it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from waltz_ray import replacement
from waltz_ray.actors.supervision import ActorAnswers
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.errors import ConfigError, CoordinationError, InvalidInput, StorageError
from waltz_ray.protocol.roster import ReplicaEntry, Roster
from waltz_ray.replacement import replace_replica
from waltz_ray.runtime.status import ActorState, ReplicaStatus, StoredPartition

WHOLE, ROTTEN = StoredPartition(), StoredPartition(damaged="rot")
SERVING = ReplicaStatus(state=ActorState.SERVING, incarnation="new", directory="/d/replica-1", partitions={0: WHOLE})
REFUSED = replace(SERVING, state=ActorState.REFUSED, reason="the control file is damaged", partitions={})
STARTING = replace(SERVING, state=ActorState.STARTING, reason="the predecessor holds the lock", partitions={})
DAMAGED = replace(SERVING, partitions={0: WHOLE, 1: ROTTEN})
SILENT = ReplicaStatus(state=ActorState.NO_ANSWER, reason="starting")


class Cluster:
    """Replica 1 as its actor tells it, one answer after the other, the last one for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        server = MemoryZooKeeperServer()
        self.store = ClusterStore(server.client(), "c")
        self.store.initialize(1, [0, 1], {})
        self.store.set_roster(0, Roster(5, 1, {0: ReplicaEntry(5, None), 1: ReplicaEntry(4, 7)}), 0)
        self.answers: list[ReplicaStatus] = []
        self.before = replace(REFUSED, incarnation="old")
        self.restarted = 0
        self.asked: list[str] = []
        self.progress: list[str] = []
        patches: dict[str, Callable[..., Any]] = {
            "KazooZooKeeper": lambda hosts: server.client(),
            "statuses": self.statuses,
            "restart_actor": self.restart,
            "ask": self.ask,
        }
        for name, patch in patches.items():
            monkeypatch.setattr(replacement, name, patch)

    def statuses(self, cluster: str, servers: list[int], replicas: list[int]) -> ActorAnswers:
        assert (servers, replicas) == ([], [1])
        if not self.restarted:
            return ActorAnswers({}, {1: self.before})
        return ActorAnswers({}, {1: self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]})

    def restart(self, cluster: str, name: str) -> None:
        self.restarted += 1

    def ask(self, cluster: str, name: str, method: str, timeout_s: float) -> str:
        self.asked.append(f"{name}.{method}")
        self.answers = [SERVING]
        return "/d/aside-replica-1"

    def replace(self, *answers: ReplicaStatus, files_aside: bool = False, deadline_s: float = 20) -> None:
        self.answers = list(answers)
        replace_replica("c", "z", 1, files_aside=files_aside, progress=self.progress.append, deadline_s=deadline_s)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_it_returns_when_the_new_process_serves(cluster: Cluster) -> None:
    cluster.replace(SILENT, replace(SERVING, incarnation="old"), STARTING, SERVING)
    assert cluster.restarted == 1
    assert len(cluster.progress) == 3
    assert cluster.store.roster(0)[0].replicas[1].session_id == -1


def test_a_refused_replica_is_told_with_its_reason_and_what_to_do(cluster: Cluster) -> None:
    with pytest.raises(StorageError) as refused:
        cluster.replace(STARTING, REFUSED)
    told = str(refused.value)
    assert "but it is REFUSED: the control file is damaged" in told
    assert "/d/replica-1 set aside" in told
    assert "waltz replace-replica 1 --set-files-aside" in told


def test_a_damaged_partition_is_waited_for(cluster: Cluster) -> None:
    cluster.replace(DAMAGED, DAMAGED, SERVING)
    assert cluster.progress == ["waiting for replica 1: does not serve partition 1: rot"] * 2


def test_files_are_set_aside_only_where_they_cannot_be_served(cluster: Cluster) -> None:
    cluster.replace(STARTING, REFUSED, files_aside=True)
    assert cluster.asked == ["replica/1.set_files_aside"]
    assert "set aside: /d/aside-replica-1" in cluster.progress
    cluster.asked.clear()
    cluster.restarted = 0
    cluster.replace(SERVING, files_aside=True)
    assert cluster.asked == []


def test_only_one_partition_is_replaced(cluster: Cluster) -> None:
    cluster.answers = [SERVING]
    with pytest.raises(InvalidInput, match="no partition 1, only 0 to 0"):
        replace_replica("c", "z", 1, partitions=[1])
    replace_replica("c", "z", 1, partitions=[])
    assert cluster.store.roster(0)[0].replicas[1].session_id == 4
    cluster.restarted = 0
    replace_replica("c", "z", 1, partitions=[0])
    assert cluster.store.roster(0)[0].replicas[1].session_id == -1


@pytest.mark.parametrize(
    ("answer", "why"),
    [(STARTING, "the predecessor holds the lock"), (SILENT, "not answered"), (DAMAGED, "partition 1: rot")],
)
def test_the_wait_is_bounded(cluster: Cluster, answer: ReplicaStatus, why: str) -> None:
    with pytest.raises(StorageError, match=rf"does not serve after 0.01 s: .*{why}.*waltz status"):
        cluster.replace(answer, deadline_s=0.01)


def test_nothing_is_changed_for_a_member_or_a_stranger(cluster: Cluster) -> None:
    _, version = cluster.store.roster(0)
    cluster.store.set_roster(0, Roster(5, 1, {0: ReplicaEntry(5, None), 1: ReplicaEntry(5, None)}), version)
    with pytest.raises(CoordinationError, match="nothing was changed"):
        cluster.replace(SERVING)
    with pytest.raises(ConfigError, match="no replica 7"):
        replace_replica("c", "z", 7)
    assert cluster.restarted == 0
