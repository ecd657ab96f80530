"""Spaces on real replicas, servers and a manager, with a real ZooKeeper: in one process, without Ray."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import get_args

import pytest

import waltz_ray
from tests.cluster.harness import Cluster, wait_until, waltz
from waltz_ray.actors.manager import Manager
from waltz_ray.actors.storage_replica import ReplicaHost
from waltz_ray.client.readers.reading import Reading, Source, plan_reading
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import InvalidInput, PartitionNotReady, SpaceGone
from waltz_ray.protocol.spaces import SpaceState
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.verify import verify_directory

pytestmark = pytest.mark.cluster


class ManagedCluster(Cluster):
    """With the replicas' own hosts, which follow the spaces, and a manager."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        super().__init__(directory, zookeeper, partitions=2, servers=2)
        self.hosts: dict[int, ReplicaHost] = {}
        self._of_manager = KazooZooKeeper(zookeeper)

    def start_replica(self, replica_id: int) -> None:
        where = str(self.directory)
        self.hosts[replica_id] = ReplicaHost(
            self.name, self.zookeeper, replica_id, where, lambda store: self._storage, "127.0.0.1", self.secret.path
        )

    def stop_replica(self, replica_id: int) -> None:
        self.hosts.pop(replica_id).shutdown()

    def place(self, servers: list[int] | None = None) -> None:
        async def manage() -> Manager:
            manager = Manager(ClusterStore(self._of_manager, self.name), 0, lambda: None, "test", 0.1, 1.5)
            await manager.start()
            return manager

        self.manager = self.run(manage())

    def close(self) -> None:
        self.run(self.manager.close())  # before its ZooKeeper
        for replica_id in list(self.hosts):
            self.stop_replica(replica_id)
        self._of_manager.close()
        super().close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: str) -> Iterator[ManagedCluster]:
    with ManagedCluster(tmp_path_factory.mktemp("cluster"), zookeeper_server) as running:
        assert isinstance(running, ManagedCluster)
        for partition_id in range(2):
            running.wait_members(partition_id, {0, 1, 2})
        yield running


def connected(cluster: Cluster, space: str) -> waltz_ray.WaltzClient:
    return waltz_ray.connect(cluster.name, zookeeper=cluster.zookeeper, space=space)


def until_it_fails(client: waltz_ray.WaltzClient) -> None:
    while True:
        client.append(1, b"too late").result(30)


def files_of(cluster: Cluster, replica_id: int, partition_id: int) -> list[str]:
    return sorted(path.name for path in (cluster.replica_directory(replica_id) / str(partition_id)).iterdir())


def wait_removed(cluster: Cluster, replica_id: int) -> None:
    def gone() -> bool:
        return all(files_of(cluster, replica_id, p) == ["removed"] for p in (2, 3, 4))

    wait_until(gone, f"removal on replica {replica_id}")


def test_a_cluster_grows_while_a_replica_is_away_and_loses_a_space_while_another_is(cluster: ManagedCluster) -> None:
    stop, ids = threading.Event(), list[int]()
    with ExitStack() as stack:
        spaces = stack.enter_context(waltz_ray.Spaces(cluster.name, zookeeper=cluster.zookeeper))
        log = stack.enter_context(connected(cluster, "log"))

        def load() -> None:
            while not stop.is_set():
                ids.append(log.append(0, b"x").result(30))

        loading = threading.Thread(target=load)
        loading.start()
        stack.callback(loading.join, 30)  # also after a failure: it ends before its client is closed
        stack.callback(stop.set)
        cluster.stop_replica(2)
        space = spaces.create("orders", 3, settings={"retention_ms": 3_600_000})
        assert (space.first, space.state) == (2, SpaceState.READY)
        with connected(cluster, "orders") as client:
            assert [client.append(p, b"%d" % p).result(30) for p in (0, 1, 2)] == [0, 0, 0]
            assert client.append(2, b"again", header=7).result(30) == 1
            again = pickle.loads(pickle.dumps(client))
            assert [one.data for one in again.feed(2)] == [b"2", b"again"]
            again.close()
        cluster.start_replica(2)
        for partition_id in space.partitions:
            cluster.wait_members(partition_id, {0, 1, 2})
        assert [each.members for each in spaces.describe("orders").partitions] == [(0, 1, 2)] * 3

        columns, sources = ["partition_id", "data"], get_args(Source)
        for source in sources:
            reading = Reading.of(cluster.zookeeper, cluster.name, source, columns, space="orders")
            rows = [row for batch in reading.batches(plan_reading(reading)) for row in batch.to_pylist()]
            assert [(row["partition_id"], row["data"]) for row in rows] == [
                (0, b"0"),
                (1, b"1"),
                (2, b"2"),
                (2, b"again"),
            ]
        headers = Reading.of(cluster.zookeeper, cluster.name, columns=["partition_id", "header"], space="orders")
        later = datetime.now(timezone.utc) + timedelta(hours=1)
        timed = Reading.of(cluster.zookeeper, cluster.name, columns=["_appended_at"], space="orders")
        assert sum(batch.num_rows for batch in timed.batches(plan_reading(timed, stop=later))) == 4
        found = [row for batch in headers.batches(plan_reading(headers, [2])) for row in batch.to_pylist()]
        assert found == [{"partition_id": 2, "header": 0}, {"partition_id": 2, "header": 7}]
        with pytest.raises(InvalidInput, match=r"there is no partition 3 in space 'orders'; known: \[0, 1, 2\]"):
            plan_reading(headers, [3])

        cluster.stop_replica(1)
        with connected(cluster, "orders") as client:
            client.append(1, b"last").result(30)
            spaces.delete("orders", "orders")
            with pytest.raises(SpaceGone):
                until_it_fails(client)
        for replica_id in (0, 2):
            wait_removed(cluster, replica_id)
        assert files_of(cluster, 1, 4) != ["removed"], "it was away"
        cluster.start_replica(1)
        wait_removed(cluster, 1)
        assert list(cluster.hosts[1].status().partitions) == [0, 1]
        with pytest.raises(SpaceGone):
            plan_reading(headers)
        stop.set()
        loading.join(30)
        assert ids == list(range(len(ids)))
        assert spaces.create("next", 1).first == 5
    cluster.stop_replica(0)
    assert verify_directory(OsDisk(), str(cluster.replica_directory(0))).ok
    cluster.start_replica(0)


def test_the_commands(cluster: ManagedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waltz(cluster, "space", "create", "users", "--partitions", "2", "--set", "retention_bytes=9")
    assert "is ready: the cluster's partitions" in capsys.readouterr().out
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": number}) + "\n" for number in range(20)))
    waltz(cluster, "load", str(rows), "--key", "id", "--space", "users", "--json")
    assert json.loads(capsys.readouterr().out)["rows"] == 20
    loaded = []
    for partition in ("0", "1"):
        waltz(cluster, "feed", "-p", partition, "--space", "users", "--json")
        loaded += [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(loaded) == 20
    assert {one["partition_id"] for one in loaded} == {0, 1}
    waltz(cluster, "space", "set", "users", "retention_bytes=none", "retention_ms=60000")
    assert capsys.readouterr().out == "space users: retention_ms=60000\n"
    waltz(cluster, "space", "list", "--json")
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["log"]["count"] == found["users"]["count"] == 2
    assert found["users"]["settings"] == {"retention_ms": 60000}
    waltz(cluster, "space", "describe", "users", "--json")
    assert [each["partition"] for each in json.loads(capsys.readouterr().out)["partitions"]] == [*found_range(found)]
    waltz(cluster, "space", "describe", "users")
    assert "space users: log, ready, settings retention_ms=60000" in capsys.readouterr().out
    for arguments, error in (
        (
            ("delete", "users"),
            "waltz: nothing was changed: space users goes with all records of its 2 partitions, for ever; there is no "
            "terminal on which to ask, so say it with --yes\n",
        ),
        (("delete", "log", "--confirm", "log"), "the one every cluster has; it cannot be deleted"),
        (("create", "users", "--partitions", "1"), "is there already (log, 2 partitions, ready); take another name"),
        (("set", "users", "retention_ms"), "a setting is given as name=number, or name=none to take it away"),
        (("describe", "nobody"), "has no space 'nobody'; it has: log,"),
    ):
        waltz(cluster, "space", *arguments, code=1)
        assert error in capsys.readouterr().err
    waltz(cluster, "space", "delete", "users", "--confirm", "users")
    capsys.readouterr()
    waltz(cluster, "feed", "-p", "0", "--space", "users", code=1)
    assert "was deleted, with all its records; names are not used again" in capsys.readouterr().err


def found_range(found: dict[str, dict[str, int]]) -> range:
    return range(found["users"]["first"], found["users"]["first"] + found["users"]["count"])


def test_who_does_not_wait_long_enough_is_told_what_is_missing(cluster: ManagedCluster) -> None:
    with waltz_ray.Spaces(cluster.name, zookeeper=cluster.zookeeper) as spaces:
        for replica_id in (0, 1):
            cluster.stop_replica(replica_id)
        with pytest.raises(InvalidInput, match="timeout must be a number of seconds"):
            spaces.create("slow", 2, timeout=float("nan"))
        assert "slow" not in [space.name for space in spaces.list()]
        with pytest.raises(PartitionNotReady, match=r"is not ready after 1 s: no session of its partitions 0, 1 yet"):
            spaces.create("slow", 2, timeout=1.0)
        for replica_id in (0, 1):
            cluster.start_replica(replica_id)
        assert spaces.wait_ready("slow", float("inf")).state is SpaceState.READY
