"""Each partition on three of five replicas: servers, replicas, files, sockets and ZooKeeper are real, without Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster
from waltz_ray.client import WaltzClient
from waltz_ray.connecting import connect
from waltz_ray.errors import WaltzError
from waltz_ray.protocol.ids import NO_SESSION
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.verify import compare_reports, verify_directory

pytestmark = pytest.mark.cluster

PARTITIONS = 5


@pytest.fixture
def cluster(tmp_path: Path, zookeeper_server: str) -> Iterator[Cluster]:
    with Cluster(tmp_path, zookeeper_server, partitions=PARTITIONS, replicas=5, servers=2, replication=3) as running:
        for p in range(PARTITIONS):
            running.wait_members(p, holders(running, p))
        yield running


def holders(cluster: Cluster, partition_id: int) -> set[int]:
    return set(cluster.store.roster(partition_id)[0].replicas)


def append_to(client: WaltzClient, partitions: list[int], count: int = 50) -> None:
    futures = [client.append(p, f"{p} {n}".encode()) for n in range(count) for p in partitions]
    for future in futures:
        future.result(30)


def test_a_partition_needs_its_own_replicas_and_no_other(cluster: Cluster) -> None:
    stopped = sorted(holders(cluster, 0))[:2]
    there = [p for p in range(PARTITIONS) if len(holders(cluster, p) - set(stopped)) >= 2]
    assert there, "some partition has a quorum without these two"
    assert 0 not in there
    with connect(cluster.name, zookeeper=cluster.zookeeper) as client:
        append_to(client, list(range(PARTITIONS)))
        for replica_id in stopped:
            cluster.stop_replica(replica_id)
        append_to(client, there)
        waiting = client.append(0, b"two of its three are away")
        with pytest.raises((TimeoutError, WaltzError)):
            waiting.result(1.0)
        for replica_id in stopped:
            cluster.start_replica(replica_id)
        append_to(client, list(range(PARTITIONS)))
    for p in range(PARTITIONS):
        cluster.wait_members(p, holders(cluster, p))


def test_replicas_have_what_is_theirs_and_nothing_of_the_others(cluster: Cluster, tmp_path: Path) -> None:
    with connect(cluster.name, zookeeper=cluster.zookeeper) as client:
        append_to(client, list(range(PARTITIONS)))
    for replica_id, store in cluster.stores.items():
        opened = {p for p in store.partition_ids if store.partition(p).session_id != NO_SESSION}
        assert opened == {p for p in range(PARTITIONS) if replica_id in holders(cluster, p)}
    for p in range(PARTITIONS):
        cluster.wait_members(p, holders(cluster, p))
    for replica_id in list(cluster.stores):
        cluster.stop_replica(replica_id)
    reports = [verify_directory(OsDisk(), str(cluster.replica_directory(replica_id))) for replica_id in range(5)]
    compared = compare_reports(OsDisk(), reports, 5, 3)
    assert [each.errors for each in compared] == [()] * PARTITIONS
    for p, each in enumerate(compared):
        assert {standing.replica for standing in each.standings} == {f"replica-{n}" for n in holders(cluster, p)}
