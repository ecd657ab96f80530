"""Replicas come and go and partitions move between them while clients append: servers, replicas, files, sockets and
ZooKeeper are real, without Ray. What clients see must be what one log could have shown, and nothing may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, wait_until
from tests.linearizability.log import Append, Appended, Caller, LogCall, log_model, resolved
from tests.linearizability.search import check
from waltz_ray.connecting import connect
from waltz_ray.errors import InvalidInput, PartitionNotReady
from waltz_ray.members import Members
from waltz_ray.protocol.placement import NodeView
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.verify import compare_reports, verify_directory

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

PARTITIONS, CALLERS, CALLS = 4, 3, 15
HERE = [NodeView("127.0.0.1", frozenset())]


class Load:
    """Callers that append and read; ``go_on`` until each has had some more calls."""

    def __init__(self, cluster: Cluster) -> None:
        self._clients = [connect(cluster.name, zookeeper=cluster.zookeeper) for _ in range(CALLERS)]
        self._callers = [Caller(f"{n}", client, PARTITIONS, n) for n, client in enumerate(self._clients)]

    def go_on(self) -> None:
        wanted = [len(each.calls) + CALLS for each in self._callers]

        def enough() -> bool:
            pairs = zip(self._callers, wanted, strict=True)
            return all(len(each.calls) >= count or each.errors for each, count in pairs)

        wait_until(enough, "calls going on", 60.0)

    def end(self) -> list[LogCall]:
        for caller in self._callers:
            caller.stop()
        for partition in range(PARTITIONS):
            self._callers[0].read(partition, 0)
        for client in self._clients:
            client.close()
        return [call for caller in self._callers for call in caller.calls]


@contextmanager
def loaded(cluster: Cluster) -> Iterator[tuple[Load, Members]]:
    """Under load, which must have seen one log in the end."""
    for p in range(PARTITIONS):
        cluster.wait_members(p, set(cluster.store.roster(p)[0].replicas))
    load = Load(cluster)
    with Members(cluster.name, zookeeper=cluster.zookeeper) as members:
        try:
            load.go_on()
            yield load, members
            load.go_on()
        finally:
            calls = load.end()
    found = resolved(calls)
    assert check(found, log_model()) > 0
    appended = [call for call in found if isinstance(call.asked, Append) and isinstance(call.result, Appended)]
    assert {call.key for call in appended} == set(range(PARTITIONS))


def verified(cluster: Cluster, replicas: list[int]) -> None:
    """The directories, compared as ``waltz verify`` does it."""
    for replica_id in list(cluster.stores):
        cluster.stop_replica(replica_id)
    reports = [verify_directory(OsDisk(), str(cluster.replica_directory(r))) for r in replicas]
    assert [report.damages for report in reports] == [[]] * len(replicas)
    compared = compare_reports(OsDisk(), reports, len(replicas), 3)
    assert [each.errors for each in compared] == [()] * PARTITIONS


def moved(members: Members) -> None:
    members.wait_until_moved(range(PARTITIONS), lambda text: None, 60.0)


def test_three_replicas_become_five_and_three_again(tmp_path: Path, zookeeper_server: str) -> None:
    with Cluster(tmp_path, zookeeper_server, partitions=PARTITIONS, servers=2) as cluster:
        cluster.start_mover()
        with loaded(cluster) as (load, members):
            for _ in range(2):
                cluster.start_replica(members.add_replica(HERE))
            plan = members.rebalance()
            assert len(plan) >= 2
            moved(members)
            load.go_on()
            loads = [len(row.partitions) for row in members.replicas()]
            assert (sum(loads), max(loads) - min(loads)) == (3 * PARTITIONS, 1)
            for leaving in (0, 1):
                members.drain_replica(leaving)
                moved(members)
                load.go_on()
                cluster.stop_replica(leaving)
                members.remove_replica(leaving)
            assert set(members.sets().values()) == {frozenset((2, 3, 4))}
            assert members.waits_for(range(PARTITIONS)) == {}
            with pytest.raises(InvalidInput, match="3 replicas hold a partition"):
                members.drain_replica(2)
            load.go_on()
        for p in range(PARTITIONS):
            cluster.wait_members(p, {2, 3, 4})
        wait_until(lambda: 0 not in cluster.servers[1].links, "nobody looks for a replica that was removed")
        assert cluster.ended == []
        verified(cluster, [2, 3, 4])


def test_a_manager_that_ends_in_the_middle_of_a_drain_is_followed_by_one_that_goes_on(
    tmp_path: Path, zookeeper_server: str
) -> None:
    with Cluster(tmp_path, zookeeper_server, partitions=PARTITIONS, replicas=4, replication=3) as cluster:
        with loaded(cluster) as (load, members):
            leaving = members.drain_replica(1)
            assert len(leaving) == 3
            with pytest.raises(PartitionNotReady, match="the manager goes on with it"):
                members.wait_until_moved(leaving, lambda text: None, 0.2)  # there is no manager
            for _ in range(6):  # it ends after whatever it was about
                cluster.start_mover()
                load.go_on()
                cluster.stop_mover()
            assert members.drain_replica(1) == {}, "asked again: all of it is wanted already"
            cluster.start_mover()
            moved(members)
            assert set(members.sets().values()) == {frozenset((0, 2, 3))}
        for p in range(PARTITIONS):
            cluster.wait_members(p, {0, 2, 3})
        verified(cluster, [0, 2, 3])


def test_a_lost_node_is_drained_though_it_never_answers_again(tmp_path: Path, zookeeper_server: str) -> None:
    """A replica and a server go at once; the replica's partitions are copied from those that are left."""
    with Cluster(tmp_path, zookeeper_server, partitions=PARTITIONS, replicas=4, servers=2, replication=3) as cluster:
        cluster.start_mover()
        with loaded(cluster) as (load, members):
            cluster.stop_replica(2)
            cluster.stop_server(2)
            cluster.place()
            load.go_on()
            members.drain_replica(2)
            moved(members)
            members.remove_replica(2)
            assert set(members.sets().values()) == {frozenset((0, 1, 3))}
        for p in range(PARTITIONS):
            cluster.wait_members(p, {0, 1, 3})
        verified(cluster, [0, 1, 3])


def test_a_member_that_dies_while_another_replica_is_added_stops_nothing(tmp_path: Path, zookeeper_server: str) -> None:
    """The new one does not run yet: it is taken out of the set again, and waits until all others are there."""
    with Cluster(tmp_path, zookeeper_server, partitions=PARTITIONS, replicas=3) as cluster:
        cluster.start_mover()
        with loaded(cluster) as (load, members):
            new = members.add_replica(HERE)
            members.move([0], [0, 1, new])
            wait_until(lambda: new in members.sets()[0], "it is added")
            wait_until(lambda: "copied" in members.waits_for([0])[0], "its server has noticed")
            load.go_on()
            cluster.stop_replica(2)
            wait_until(lambda: new not in members.sets()[0], "it is taken out again")
            load.go_on()
            cluster.start_replica(2)
            cluster.start_replica(new)
            moved(members)
            assert members.sets()[0] == {0, 1, new}
        cluster.wait_members(0, {0, 1, new})


def test_partitions_are_served_where_they_are_preferred(tmp_path: Path, zookeeper_server: str) -> None:
    with (
        Cluster(tmp_path, zookeeper_server, partitions=PARTITIONS) as cluster,
        Members(cluster.name, zookeeper=zookeeper_server) as members,
    ):
        with pytest.raises(InvalidInput, match="no server 7"):
            members.prefer([0], 7)
        first, second = members.add_server(), members.add_server()
        assert (first, second) == (0, 1)
        members.prefer([0, 1], first)
        members.prefer([1, 2], second)
        assert [row.preferred for row in members.servers()] == [(0,), (1, 2)]
        with pytest.raises(InvalidInput, match="no partition 9"):
            members.prefer([9], first)
        members.drain_server(second)
        with pytest.raises(InvalidInput, match="is drained"):
            members.prefer([3], second)
        with pytest.raises(InvalidInput, match="server 1 cannot be removed: it has 4 partitions"):
            members.remove_server(second)
        members.keep_server(second)
        members.drain_server(first)
        members.remove_server(first)
        assert [row.server for row in members.servers()] == [second]
        assert cluster.store.preferred(first) == ()
