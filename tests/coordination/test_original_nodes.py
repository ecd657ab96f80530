"""The nodes for the original's operator tools follow the cluster; nobody waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from waltz_ray.coordination import original_nodes
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.original_nodes import OriginalNodes
from waltz_ray.coordination.space_store import SpaceStore
from waltz_ray.errors import ZooKeeperUnreachable
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.replica_sets import ReplicaPlace
from waltz_ray.protocol.roster import ReplicaEntry, Roster
from waltz_ray.protocol.spaces import SpaceTable
from waltz_ray.wire import znodes
from waltz_ray.wire.znodes import PartitionMetadata, ReplicaState, StoreParams


class Cluster:
    """Two partitions, three replicas, of which 0 and 2 have said where they listen."""

    def __init__(self) -> None:
        server = MemoryZooKeeperServer()
        self.client: MemoryZooKeeper = server.client()
        self.reader: MemoryZooKeeper = server.client()
        self.store = ClusterStore(self.client, "c")
        self.info = self.store.initialize(2, [0, 1, 2], {})
        self.announce(0, 4000)
        self.announce(2, 4002)

    def announce(self, replica_id: int, port: int) -> None:
        self.store.announce_replica(replica_id, Endpoint("10.0.0.1", port), "x")

    def open_session(self, session_id: int) -> None:
        _, version = self.store.roster(1)
        entries = {0: ReplicaEntry(session_id, None), 1: ReplicaEntry(-1, None), 2: ReplicaEntry(1, 7)}
        self.store.set_roster(1, Roster(session_id, 4, entries), version)

    def read(self, node: str) -> bytes:
        return self.reader.get("/c/store" + node)[0]

    def metadata(self, p: int) -> PartitionMetadata:
        return znodes.decode_partition_metadata("p", p, self.read(f"/partition/{p}"))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"not within 20 s: {what}"
        time.sleep(0.01)


def test_the_store_says_key_and_partitions_from_the_beginning(cluster: Cluster) -> None:
    assert znodes.decode_store_params("s", cluster.read("")) == StoreParams(cluster.info.cluster_key, 2)


def test_everything_is_written_once(cluster: Cluster) -> None:
    cluster.open_session(5)
    cluster.store.set_roster(0, Roster.initial([0, 1]), 0)  # replica 2 is not assigned to it
    nodes = OriginalNodes(cluster.client, "c")
    nodes.write_changed()
    names = ("10.0.0.1:4000", "10.0.0.1:4002")
    assert znodes.decode_replica_assignments("a", cluster.read("/assignment")) == {
        "10.0.0.1:4000": (0, 1),
        "10.0.0.1:4002": (1,),
    }
    assert znodes.decode_numbers("g", cluster.read("/group")) == {names[0]: 0, names[1]: 2}
    assert znodes.decode_numbers("c", cluster.read("/connection")) == {}
    assert cluster.metadata(1) == PartitionMetadata(
        4, 5, {names[0]: ReplicaState(5, None), names[1]: ReplicaState(1, 7)}
    )
    assert cluster.metadata(0).session_id == 0
    versions = {node: cluster.reader.get("/c/store" + node)[1] for node in ("/group", "/partition/1")}
    nodes._mark(range(2))
    nodes.write_changed()
    assert {node: cluster.reader.get("/c/store" + node)[1] for node in versions} == versions, "what is right stays"


def test_a_cluster_made_before_these_nodes_gets_them(cluster: Cluster) -> None:
    cluster.client.set("/c/store", b"", -1)
    OriginalNodes(cluster.client, "c").write_changed()
    assert znodes.decode_store_params("s", cluster.read("")).cluster_key == cluster.info.cluster_key


def test_it_follows_sessions_and_replicas_that_move(cluster: Cluster) -> None:
    nodes = OriginalNodes(cluster.client, "c")
    nodes.start()
    try:
        until(lambda: cluster.reader.exists("/c/store/partition/1") is not None, "the first copy")
        cluster.open_session(6)
        until(lambda: cluster.metadata(1).session_id == 6, "the session is followed")
        cluster.announce(2, 4900)
        until(lambda: "10.0.0.1:4900" in cluster.metadata(1).replicas, "the replica is followed")
        until(lambda: "10.0.0.1:4900" in znodes.decode_numbers("g", cluster.read("/group")), "in its group, too")
    finally:
        nodes.close()


def test_it_follows_replicas_that_are_added_and_removed(cluster: Cluster) -> None:
    nodes = OriginalNodes(cluster.client, "c")
    nodes.start()

    def group() -> dict[str, int]:
        return dict(znodes.decode_numbers("g", cluster.read("/group")))

    try:
        until(lambda: cluster.reader.exists("/c/store/group") is not None, "the first copy")
        members = cluster.store.members
        members.change(lambda before: replace(before, replication=3).with_replica("CPU", ReplicaPlace()))
        cluster.announce(3, 4003)
        until(lambda: group().get("10.0.0.1:4003") == 3, "the replica that was added")
        cluster.announce(3, 4903)
        until(lambda: group().get("10.0.0.1:4903") == 3, "which moves")
        members.forget_replica(3)
        until(lambda: 3 not in group().values(), "and is removed")
    finally:
        nodes.close()


def test_what_could_not_be_written_is_written_the_next_time(cluster: Cluster) -> None:
    nodes = OriginalNodes(cluster.client, "c")
    real = cluster.client.create
    failing = ["/c/store/partition/1", "/c/store/group"]

    def create(path: str, data: bytes, **options: bool) -> str:
        if path in failing:
            failing.remove(path)
            raise ZooKeeperUnreachable("away")
        return real(path, data, **options)

    cluster.client.create = create  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(ZooKeeperUnreachable):
            nodes.write_changed()
    nodes.write_changed()
    assert znodes.decode_numbers("g", cluster.read("/group"))
    assert cluster.metadata(1).session_id == 0


def test_they_are_kept_up_also_if_zookeeper_was_away_when_that_began(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(original_nodes, "_PAUSE_S", 0.01)
    nodes = OriginalNodes(cluster.client, "c")
    away, table = [True], SpaceStore.table

    def sometimes(store: SpaceStore) -> SpaceTable:
        if away:
            away.pop()
            raise ZooKeeperUnreachable("ZooKeeper is away")
        return table(store)

    monkeypatch.setattr(SpaceStore, "table", sometimes)
    nodes.start()
    until(lambda: cluster.reader.exists("/c/store/partition/1") is not None, "the nodes are there")
    nodes.close()
