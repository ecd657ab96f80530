"""What is on a node's disks is the cluster's user's, whatever the umask of who brought the cluster up."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backup.test_seeding import SEED
from waltz_ray.actors import local_ray
from waltz_ray.backup.restored import RESTORED, RestoredCluster, write_restored
from waltz_ray.cluster_directory import one_at_a_time
from waltz_ray.config import ClusterConfig
from waltz_ray.coordination.embedded import EmbeddedZooKeeper
from waltz_ray.finding import cluster_file
from waltz_ray.finding.cluster_file import ClusterFile
from waltz_ray.projections.projection_file import ProjectionFile
from waltz_ray.storage.cluster_memory import MEMORY_FILE, write_memory
from waltz_ray.storage.disk import OsDisk


@pytest.fixture(autouse=True)
def careless() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nobody_else_reads_what_a_replica_writes(tmp_path: Path) -> None:
    write_memory(OsDisk(), str(tmp_path), {"nodes": {"/store/topics/access": '{"users": {"alice": "her password"}}'}})
    assert mode_of(tmp_path / MEMORY_FILE) == 0o600


def test_nobody_else_puts_files_in_place_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_ray, "_LONGEST_TEMPORARY", 4096)
    OsDisk().mkdir(str(tmp_path / "replica-0"))
    ProjectionFile(tmp_path / "kv" / "state.lmdb", {"cluster": "c"}, [b"items"]).close()
    with one_at_a_time(str(tmp_path / "cluster"), lambda text: None):
        pass
    local_ray._temporary(tmp_path)
    assert {each.name: mode_of(each) for each in tmp_path.iterdir()} == dict.fromkeys(
        ("replica-0", "kv", "cluster", "ray"), 0o755
    )


def test_nobody_else_writes_what_commands_go_by(tmp_path: Path) -> None:
    cluster_file.write(ClusterFile("c", str(tmp_path), 1, 1, 1))
    write_restored(tmp_path, RestoredCluster(ClusterConfig("c", str(tmp_path)), SEED, {0: 5}, "backup"))
    assert {each.name: mode_of(each) for each in tmp_path.iterdir()} == dict.fromkeys(("cluster.json", RESTORED), 0o644)


def test_nobody_else_reads_projections(tmp_path: Path) -> None:
    ProjectionFile(tmp_path / "state.lmdb", {"cluster": "c"}, [b"items"]).close()
    assert {each.name: mode_of(each) for each in tmp_path.glob("*.l*")} == {"state.lmdb": 0o600, "state.lock": 0o600}


@pytest.mark.parametrize("there", [False, True])
def test_nobody_else_reads_the_nodes_of_the_embedded_zookeeper(there: bool, tmp_path: Path) -> None:
    directory = tmp_path / "zookeeper"
    if there:  # as it was made before
        directory.mkdir(mode=0o755)
    with EmbeddedZooKeeper(directory)._starting():
        assert mode_of(directory) == 0o700
