"""What is wanted of partitions, as a node of ZooKeeper."""

from __future__ import annotations

from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.protocol.spaces import most_partitions

_NODE_BYTES = 1024 * 1024
"""Of ZooKeeper's ``jute.maxbuffer``, unless somebody raises it: a longer node costs the connection."""


def test_of_as_many_partitions_as_there_may_be_a_node_holds_what_is_wanted() -> None:
    zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
    store = ClusterStore(zookeeper, "c")
    store.initialize(1, range(5))
    sets = {p: frozenset(range(94, 99)) for p in range(most_partitions(5))}
    store.moves.want(sets)
    data, _ = zookeeper.get("/c/store/moves")
    assert len(data) < _NODE_BYTES * 3 / 4
    assert store.moves.read().wanted == sets
