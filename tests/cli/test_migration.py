"""``waltz import`` and ``export-original`` as commands, on real replicas and servers with a real ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import waltz_ray
from tests.cluster.harness import wait_until, waltz
from tests.spaces.test_cluster import ManagedCluster
from tests.storage.originals import Record, write_original
from tests.storage.page_reader import records_of
from tests.storage.test_golden import golden
from waltz_ray.cli import main
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.original import open_original

__all__ = ["golden"]

pytestmark = pytest.mark.cluster

PARTITIONS: list[list[Record]] = [[(n, b"%d" % n) for n in range(2500)], [(7, b""), (-1, bytes(100_000))]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: str) -> Iterator[ManagedCluster]:
    with ManagedCluster(tmp_path_factory.mktemp("cluster"), zookeeper_server) as running:
        assert isinstance(running, ManagedCluster)
        yield running


def test_import(cluster: ManagedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = str(write_original(tmp_path / "old", PARTITIONS, per_segment=1000))
    waltz(cluster, "import", old, "--space", "old", code=1)
    told = capsys.readouterr().err
    assert "has no space 'old'; it has: log" in told
    assert told.endswith("make it with: waltz space create old --partitions 2, or give --create\n")
    waltz(cluster, "import", old, "--space", "old", "--create")
    out, err = capsys.readouterr()
    assert f"{old}: 2,502 transactions in " in out
    assert "partition 0: transactions 0 to 2499\n  partition 1: transactions 0 to 1\n" in out
    assert err == ""
    waltz(cluster, "import", old, "--space", "old", "--create", "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["transactions"], found["before"]) == (0, 2502)
    with waltz_ray.connect(cluster.name, zookeeper=cluster.zookeeper, space="old") as client:
        assert [[(one.header, one.data) for one in client.feed(p)] for p in (0, 1)] == PARTITIONS
    three = str(write_original(tmp_path / "three", [[], [], []]))
    for arguments, error in (
        ((three, "--space", "old"), "has 3 partitions and space 'old' 2: transactions are imported into the partition"),
        ((str(cluster.replica_directory(0)), "--space", "old"), "was written by waltz_ray, not by Waltz 0.13"),
        ((str(tmp_path), "--space", "old"), "there is no control file"),
    ):
        waltz(cluster, "import", *arguments, code=1)
        assert error in capsys.readouterr().err


def test_the_golden_directory_through_a_cluster_and_back(
    cluster: ManagedCluster, golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same records under the same IDs; not the same: client, generation and number of the partition."""
    waltz(cluster, "import", str(golden), "--space", "golden", "--create", "--json")
    assert json.loads(capsys.readouterr().out)["transactions"] == 5361
    with waltz_ray.Spaces(cluster.name, zookeeper=cluster.zookeeper) as spaces:
        first = spaces.describe("golden").space.first
    cluster.wait_members(first, {0, 1, 2})
    replica = cluster.hosts[2]
    wait_until(lambda: replica.status().partitions[first].last_id == 5360, "the last records on replica 2")
    with pytest.raises(SystemExit) as running:
        main(["export-original", str(cluster.replica_directory(2)), "--into", str(tmp_path / "new")])
    assert running.value.code == 1
    assert "another process has this storage directory open; stop it first" in capsys.readouterr().err
    cluster.stop_replica(2)
    try:
        with pytest.raises(SystemExit) as leaving:
            main(["export-original", str(cluster.replica_directory(2)), "--into", str(tmp_path / "back"), "--json"])
    finally:
        cluster.start_replica(2)
    assert leaving.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["partitions"][str(first)], told["partitions"][str(first + 1)]) == (5361, 0)
    files = {str(f.relative_to(tmp_path / "back")): f.read_bytes() for f in (tmp_path / "back").rglob("*.*")}
    with open_original(OsDisk(), str(golden)) as old, open_original(OsDisk(), str(tmp_path / "back")) as new:
        before = [row for batch in old.records(0) for row in zip(batch.fields["header"], batch.datas(), strict=True)]
        after = [row for batch in new.records(first) for row in zip(batch.fields["header"], batch.datas(), strict=True)]
    assert after == before
    assert records_of(files, first) == [data for _, data in before]
