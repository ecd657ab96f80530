"""``waltz import`` as a command, on real replicas and servers with a real ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import waltz_ray
from tests.cluster.harness import waltz
from tests.spaces.test_cluster import ManagedCluster
from tests.storage.originals import Record, write_original

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
