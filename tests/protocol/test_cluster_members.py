"""Who belongs to a cluster: what is refused, and that no number comes twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.cluster_members import ClusterMembers
from waltz_ray.protocol.replica_sets import ReplicaPlace, nowhere_in_particular

FIVE = ClusterMembers(nowhere_in_particular(range(5)), 3, frozenset((0, 1)))


def test_a_replica_comes_and_goes_and_its_number_never_comes_again() -> None:
    six = FIVE.with_replica("waltz-replica-5", ReplicaPlace("n", "z"))
    assert six.places[5] == ReplicaPlace("n", "z")
    assert six.resources == {5: "waltz-replica-5"}
    drained = six.draining_replica(5, 3)
    assert (sorted(drained.places), sorted(drained.staying)) == ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4])
    gone = drained.without_replica(5, 0)
    assert (sorted(gone.places), gone.resources, gone.draining_replicas) == ([0, 1, 2, 3, 4], {}, frozenset())
    assert sorted(gone.with_replica("r", ReplicaPlace()).places) == [0, 1, 2, 3, 4, 6]


def test_a_replica_that_holds_something_is_not_removed() -> None:
    with pytest.raises(InvalidInput, match="it may be given partitions at any time; drain it first"):
        FIVE.without_replica(1, 0)
    with pytest.raises(InvalidInput, match="2 partitions are on it; drain it first"):
        FIVE.draining_replica(1, 3).without_replica(1, 2)
    with pytest.raises(InvalidInput, match="no replica 9, only 0, 1, 2, 3, 4"):
        FIVE.draining_replica(9, 3)


def test_as_many_replicas_stay_as_the_largest_set_needs() -> None:
    drained = FIVE.draining_replica(1, 3).draining_replica(2, 3)
    with pytest.raises(InvalidInput, match=r"3 replicas hold a partition, and without it 2 would be left \(3, 4\)"):
        drained.draining_replica(0, 3)
    with pytest.raises(InvalidInput, match="5 replicas hold a partition"):
        FIVE.draining_replica(0, 5)
    assert drained.draining_replica(1, 3) == drained, "asked again"
    assert drained.keeping_replica(1).draining_replica(0, 3).draining_replicas == {0, 2}


def test_servers_come_and_go_and_one_always_stays() -> None:
    three = FIVE.with_server()
    assert three.servers == {0, 1, 2}
    drained = three.draining_server(0).draining_server(1)
    with pytest.raises(InvalidInput, match="no other one is left"):
        drained.draining_server(2)
    with pytest.raises(InvalidInput, match="it has 3 partitions; drain it first"):
        drained.without_server(1, 3)
    with pytest.raises(InvalidInput, match="it may be given partitions"):
        drained.without_server(2, 0)
    with pytest.raises(InvalidInput, match="no server 7, only 0, 1, 2"):
        drained.keeping_server(7)
    gone = drained.without_server(1, 0)
    assert gone.leaving_servers == {0, 1}, "who is removed is given nothing again while its process ends"
    numbers = [sorted(one) for one in (gone.servers, gone.draining_servers, gone.with_server().servers)]
    assert numbers == [[0, 2], [0], [0, 2, 3]]
    assert gone.keeping_server(0).draining_servers == frozenset()


def test_a_cluster_of_unusual_replication_takes_no_more() -> None:
    with pytest.raises(InvalidInput, match="each partition is on all 4 replicas"):
        ClusterMembers(nowhere_in_particular(range(4)), 4, frozenset((0,))).with_replica("r", ReplicaPlace())
    full = replace(FIVE, next_replica=99, next_server=9999)
    with pytest.raises(InvalidInput, match="replica 99 would be one too many"):
        full.with_replica("r", ReplicaPlace())
    with pytest.raises(InvalidInput, match="server 9999 would be one too many"):
        full.with_server()
