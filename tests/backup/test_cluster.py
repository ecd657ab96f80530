"""A backup of a real cluster that is being loaded, restored, and brought up again by ``waltz up``."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import waltz_ray
from tests.cluster.harness import waltz
from tests.spaces.test_cluster import ManagedCluster
from waltz_ray.backup.source import RunningCluster
from waltz_ray.cli import main
from waltz_ray.coordination.topic_store import TopicStore
from waltz_ray.coordination.trim_store import TrimStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.finding.find import FoundCluster
from waltz_ray.take_down import take_down_in

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: str) -> Iterator[ManagedCluster]:
    with ManagedCluster(tmp_path_factory.mktemp("cluster"), zookeeper_server) as running:
        assert isinstance(running, ManagedCluster)
        for partition_id in range(2):
            running.wait_members(partition_id, {0, 1, 2})
        yield running


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def own(*arguments: str, code: int = 0) -> None:
    """A command that needs no cluster."""
    with pytest.raises(SystemExit) as leaving:
        main([*arguments])
    assert leaving.value.code == code


def all_bytes(zookeeper: str, name: str, ends: dict[int, int], first: dict[int, int]) -> dict[int, bytes]:
    """The records of each partition, up to ``ends``."""
    with RunningCluster(FoundCluster(name, zookeeper)) as source:
        return {
            p: b"".join(bytes(batch.records) for batch in source.read(p, first.get(p, 0), end))
            for p, end in ends.items()
        }


def test_backed_up_under_load_restored_and_brought_up(
    cluster: ManagedCluster, ray_head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup, into, zookeeper = str(tmp_path / "backup"), str(tmp_path / "again"), cluster.zookeeper
    stop = threading.Event()
    with waltz_ray.Spaces(cluster.name, zookeeper=zookeeper) as spaces:
        spaces.create("orders", 1, "topic", {"retention_ms": 86_400_000})
    with closing(KazooZooKeeper(zookeeper)) as there:
        assert TopicStore(there, cluster.name).set_document("access", b'{"users": {"alice": "her password"}}', -1)
    with waltz_ray.connect(cluster.name, zookeeper=zookeeper) as log:

        def load() -> None:
            while not stop.is_set():
                log.append(0, b"loaded" * 10).result(30)

        for n in range(30):
            log.append(1, b"%d" % n, header=n).result(30)
        trimming = KazooZooKeeper(zookeeper)
        assert TrimStore(trimming, cluster.name).raise_marks({1: 12}) == {1: 12}
        trimming.close()
        loading = threading.Thread(target=load)
        loading.start()
        try:
            waltz(cluster, "backup", backup, "--rate", "50MB", "--json")
            first = said(capsys)
            with waltz_ray.connect(cluster.name, zookeeper=zookeeper, space="orders") as orders:
                orders.append(0, b"order").result(30)
        finally:
            stop.set()
            loading.join(30)
        last_client_id = log.client_id
    waltz(cluster, "backup", backup, "--hold", "--json")
    second = said(capsys)
    assert (first["manifest"], second["manifest"]) == (0, 1)
    ends = {int(p): end for p, end in dict(second["next_ids"]).items()}  # type: ignore[call-overload]
    assert ends[0] > 0
    assert (ends[1], ends[2]) == (30, 1)
    waltz(cluster, "backup", "holds", "--json")
    (hold,) = json.loads(capsys.readouterr().out)
    assert hold["name"] == second["hold"]
    assert hold["positions"] == {str(p): end for p, end in ends.items()}
    waltz(cluster, "backup", "holds", "--release", str(second["hold"]), "--yes")
    assert "what it kept may be trimmed" in capsys.readouterr().out
    own("backup", "verify", backup)
    assert ": ok, " in capsys.readouterr().out

    own("restore", backup, "--into", into, "--name", "again", "--json")
    restored = said(capsys)
    assert restored["next_ids"] == {str(p): end for p, end in ends.items()}
    assert "waltz topic access FILE" in str(restored["notes"])
    try:
        own("up", "--dir", into, "--address", ray_head, "--zookeeper", zookeeper, "--servers", "1", "--json")
        assert (said(capsys)["name"], (tmp_path / "again/waltz-restored.json").exists()) == ("again", False)
        with closing(KazooZooKeeper(zookeeper)) as there:
            assert TopicStore(there, "again").document("access")[0] == b'{"authenticate": true}'
        begins = {1: 12}
        assert all_bytes(zookeeper, "again", ends, begins) == all_bytes(zookeeper, cluster.name, ends, begins)
        with waltz_ray.connect("again", zookeeper=zookeeper) as client:
            assert client.client_id > last_client_id, "IDs that are in records are not given again"
            assert client.append(0, b"on").result(30) == ends[0]
            assert client.append(1, b"on").result(30) == 30
            assert [each.data for each in client.read(1, 28, 31)] == [b"28", b"29", b"on"]
        with waltz_ray.connect("again", zookeeper=zookeeper, space="orders") as orders:
            assert [each.data for each in orders.feed(0)] == [b"order"]
        with waltz_ray.Spaces("again", zookeeper=zookeeper) as spaces:
            found = spaces.describe("orders").space
            assert (found.first, found.count, found.kind, found.settings) == (
                2,
                1,
                "topic",
                {"retention_ms": 86_400_000},
            )
        own("backup", "holds", "--cluster", "again", "--zookeeper", zookeeper, "--json")
        (hold,) = json.loads(capsys.readouterr().out)
        assert (hold["name"], hold["positions"]) == ("backup.restored", {"2": 0})
    finally:
        take_down_in(Path(into))


def test_a_directory_that_is_not_whole_is_not_brought_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "waltz-restored.json").write_text("{")
    own("up", "--dir", str(tmp_path), code=1)
    assert "waltz-restored.json is damaged" in capsys.readouterr().err
    assert not (tmp_path / "cluster.json").exists()


def test_commands_refuse_in_one_line(
    cluster: ManagedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = str(tmp_path)
    for arguments, line in (
        (("--rate", "fast", there), "--rate must be a size such as 50MB or 64MiB, not 'fast'"),
        (("holds", "--release", "backup.x"), "no backup holds anything by the name 'backup.x'; there are: none"),
    ):
        waltz(cluster, "backup", *arguments, code=1)
        assert capsys.readouterr().err == f"waltz: {line}\n"
    for commands, line in (
        (("backup", "verify", there), f"{there} holds no backup; make one with: waltz backup {there}"),
        (("restore", there, "--into", there + "/x"), f"{there} holds no backup; make one with: waltz backup {there}"),
        (("restore", there, "--into", there + "/x", "--until", "5"), "--until 5: a transaction is one of a partition"),
        (("restore", there, "--into", there + "/x", "--until", "x=5"), "--until must begin with a partition's number"),
        (("restore", there, "--into", there + "/x", "--until", "1=soon"), "--until must say so long ago (90s, 10m"),
    ):
        own(*commands, code=1)
        assert line in capsys.readouterr().err
    own("backup", code=2)
