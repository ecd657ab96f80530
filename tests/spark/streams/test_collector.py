"""What a collector leaves, minute by minute; what it refuses; real processes killed with SIGKILL; the formats."""

from __future__ import annotations

import gzip
import io
import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from waltz_spark.streams.cli import StreamsPlace
from waltz_spark.streams.collector import POINTS, Collector, CollectorSettings, Written
from waltz_spark.streams.collector_files import write_file
from waltz_spark.streams.collector_states import (
    CollectorNode,
    CollectorState,
    decode_collector,
    encode_collector,
    file_name,
    is_collector,
)
from waltz_spark.streams.files import LocalFiles, local_files
from waltz_spark.streams.layout import decode_marker
from waltz_spark.streams.nodes import read_nodes
from waltz_spark.streams.services import StreamService
from waltz_spark.streams.states import ThreadNode, encode_node

from tests.spark.streams.collecting import BEGIN, MINUTE, ListFeed, local_settings, problems_of, settings_of
from tests.spark.streams.collector_worker import SESSION_TIMEOUT_MS
from waltz_ray.client.readers.arrow import ARROW_SCHEMA
from waltz_ray.client.readers.ranges import Range
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import (
    ConfigError,
    CoordinationError,
    DataUnavailable,
    InvalidInput,
    StorageError,
    Trimmed,
    VersionConflict,
)

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 60.0


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    return MemoryZooKeeperServer().client()


def collector(root: Path, zookeeper: ZooKeeper, feed: ListFeed, now: Any = BEGIN, **more: Any) -> Collector:
    settings = replace(settings_of(str(root)), **more)
    return Collector(settings, zookeeper, feed, clock=now if callable(now) else lambda: now)


def test_minute_by_minute(tmp_path: Path, zookeeper: MemoryZooKeeper) -> None:
    feed = ListFeed({0: 2, 1: -1}, LocalFiles())
    now = BEGIN
    data = tmp_path / "data" / "bank" / "c1"
    with collector(tmp_path, zookeeper, feed, lambda: now) as collecting:
        first = collecting.run_once()
        assert (first.minute, first.records, first.empty) == (BEGIN.replace(second=0) - MINUTE, 3, 0)
        assert collecting.run_once().minute is None
        now += MINUTE
        assert collecting.run_once().records == 0
        assert json.loads((data / "202611211550.done").read_bytes())["files"] == []
        feed.marks = {0: 3, 1: 1}
        now += 3 * MINUTE
        last = collecting.run_once()
        assert (last.records, last.empty) == (3, 2)
        now -= timedelta(hours=1)  # a clock that goes back
        assert collecting.run_once().minute is None
        assert zookeeper.owner("/databus/c1/lock") == zookeeper.session_id
    assert zookeeper.owner("/databus/c1/lock") is None
    names = sorted(path.name for path in data.iterdir())
    assert names == [
        "202611211549.0-0-0.parquet",
        "202611211549.0-1-2.parquet",
        "202611211549.done",
        "202611211550.done",
        "202611211551.done",
        "202611211552.done",
        "202611211553.0-3-3.parquet",
        "202611211553.1-0-1.parquet",
        "202611211553.done",
    ]
    marker = json.loads((data / "202611211553.done").read_bytes())
    assert marker["ranges"] == [[0, 3, 4], [1, 0, 2]]
    assert decode_marker("202611211553.done", json.dumps(marker).encode()) == names[-3:-1]
    node = collecting.node
    assert (node.minutes, node.records, dict(node.position)) == (2, 6, {0: 4, 1: 2})
    [run] = (tmp_path / "system" / "tmp" / "c1").iterdir()
    assert list(run.iterdir()) == []


def test_one_run_at_a_time(tmp_path: Path, zookeeper: MemoryZooKeeper) -> None:
    feed = ListFeed({0: 0}, LocalFiles())
    with collector(tmp_path, zookeeper, feed) as one:
        assert one.run_once().records == 1
        assert collector(tmp_path, zookeeper, feed).run_once().standing_by
        zookeeper.delete("/databus/c1/lock")
        with pytest.raises(VersionConflict, match="another run has taken over"):
            one.run_once()
        assert not one.is_open


class Broken(ListFeed):
    def write(self, ranges: Sequence[Range], kind: Any, directory: str) -> list[Written]:
        return super().write(ranges[:-1], kind, directory)


def test_files_that_are_short_are_never_marked(tmp_path: Path, zookeeper: MemoryZooKeeper) -> None:
    with pytest.raises(DataUnavailable, match="2 of 3 records of minute 202611211549 were written"):
        collector(tmp_path, zookeeper, Broken({0: 1, 1: 0}, LocalFiles())).run_once()
    with collector(tmp_path, zookeeper, ListFeed({0: 9, 1: 9}, LocalFiles()), BEGIN + MINUTE) as again:
        again.run_once()
        assert again.node.records == 20
    assert not list((tmp_path / "data/bank/c1").glob("202611211549.0-2*")), "the plan was not kept"
    assert (tmp_path / "data/bank/c1/202611211549.0-0-1.parquet").exists()


def test_what_is_in_no_file_yet_is_held(tmp_path: Path, zookeeper: MemoryZooKeeper) -> None:
    """The first minute begins with what is left of the log; a later one does not leave out what is gone."""
    feed = ListFeed({0: 5, 1: -1}, LocalFiles())
    feed.trim_marks = {0: 3}
    with collector(tmp_path, zookeeper, feed) as one:
        one.run_once()
        assert one.node.records == 3
    feed.marks = {0: 9, 1: 2}
    with collector(tmp_path, zookeeper, feed, BEGIN + MINUTE) as one:
        one.run_once()
        assert one.node.records == 10
    assert feed.held == [{0: 3, 1: 0}, {0: 6, 1: 0}]
    feed.trim_marks = {0: 11}
    with (
        collector(tmp_path, zookeeper, feed, BEGIN + 2 * MINUTE) as one,
        pytest.raises(Trimmed, match="partition 0: transaction 10 was trimmed away; the first that can be read is 11"),
    ):
        one.run_once()


class Skipping(ListFeed):
    def plan(self, position: Mapping[int, int]) -> list[Range]:
        return [Range(0, 1, 2)]


def test_a_plan_must_go_on_where_the_position_is(tmp_path: Path, zookeeper: MemoryZooKeeper) -> None:
    with pytest.raises(DataUnavailable, match=r"transactions \[1, 2\) do not go on at 0"):
        collector(tmp_path, zookeeper, Skipping({0: 1}, LocalFiles())).run_once()


def test_what_is_refused(tmp_path: Path, zookeeper: MemoryZooKeeper) -> None:
    feed = ListFeed({0: 0}, LocalFiles())
    with collector(tmp_path, zookeeper, feed) as one:
        one.run_once()
    with pytest.raises(ConfigError, match="its position is one in the log of cluster waltz, not of other"):
        collector(tmp_path, zookeeper, feed, cluster="other").run_once()
    zookeeper.create("/databus/tokyo", encode_node(ThreadNode()))
    with pytest.raises(CoordinationError, match=r"/databus/tokyo: .*another service's"):
        collector(tmp_path, zookeeper, feed, name="tokyo").run_once()
    with pytest.raises(CoordinationError, match="/databus/c1"):
        StreamService(replace(local_settings(str(tmp_path)), name="c1"), zookeeper).run_once()
    assert list(read_nodes(zookeeper, "/databus").services) == ["tokyo"]
    zookeeper.set("/databus/c1", b'{"version": 1, "kind": "collector"', -1)
    with pytest.raises(CoordinationError, match="is it damaged"):
        collector(tmp_path, zookeeper, feed).run_once()


def test_a_cluster_that_was_made_anew_under_its_name_is_not_gone_on_with(
    tmp_path: Path, zookeeper: MemoryZooKeeper
) -> None:
    """Its log is another one: once it is as long, its first records would be left out without a word."""
    feed = ListFeed({0: 2}, LocalFiles())
    with collector(tmp_path, zookeeper, feed) as one:
        one.run_once()
        before = one.node
    feed.key, feed.marks = "another", {0: 5}
    with pytest.raises(ConfigError, match=r"the log of another cluster waltz \(their keys differ\)"):
        collector(tmp_path, zookeeper, feed, BEGIN + MINUTE).run_once()
    zookeeper.set("/databus/c1", encode_collector(replace(before, cluster_key="")), -1)  # of an earlier version
    with collector(tmp_path, zookeeper, feed, BEGIN + MINUTE) as one:
        assert (one.run_once().records, one.node.cluster_key) == (3, "another")


def test_a_file_system_that_refuses(
    tmp_path: Path, zookeeper: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: LocalFiles, source: str, target: str) -> None:
        raise OSError(28, "No space left on device", target)

    (tmp_path / "data").write_bytes(b"a file where a directory should be: it is moved aside")
    monkeypatch.setattr(LocalFiles, "replace", full)
    with pytest.raises(StorageError, match=r"collector c1: .*goes on from the state in ZooKeeper"):
        collector(tmp_path, zookeeper, ListFeed({0: 0}, LocalFiles())).run_once()
    monkeypatch.undo()
    with collector(tmp_path, zookeeper, ListFeed({0: 5}, LocalFiles())) as again:
        again.run_once()
        assert again.node.records == 1, "the plan was made before the error"


def test_a_plan_in_flight_under_another_root(tmp_path: Path, zookeeper: MemoryZooKeeper) -> None:
    with pytest.raises(DataUnavailable):
        collector(tmp_path, zookeeper, Broken({0: 1}, LocalFiles())).run_once()
    with pytest.raises(ConfigError, match=f"minute 202611211549 of bank under {tmp_path} is in flight"):
        collector(tmp_path / "other", zookeeper, ListFeed({0: 1}, LocalFiles())).run_once()
    with pytest.raises(ConfigError, match="its position is one in the log of cluster waltz, not of other"):
        collector(tmp_path, zookeeper, ListFeed({0: 1}, LocalFiles()), cluster="other").run_once()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": "a.b"}, "name 'a.b' must be letters"),
        ({"category": ""}, "category '' must be letters"),
        ({"format": "csv"}, "format must be one of parquet, jsonl, not 'csv'"),
        ({"partitions": (1, 1)}, "partitions must be different IDs"),
        ({"root": ""}, "a root is empty"),
        ({"interval_s": 0}, "interval_s must be more than 0"),
        ({"interval_s": float("nan")}, "interval_s must be more than 0"),
        ({"bytes_per_task": 0}, "bytes_per_task must be at least 1"),
        ({"zookeeper_root": "x"}, "zookeeper_root must be a path"),
    ],
)
def test_settings(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        replace(CollectorSettings("c1", "/x", "bank"), **change).validate()


def test_a_collector_needs_to_know_its_cluster(tmp_path: Path, zookeeper: MemoryZooKeeper) -> None:
    with pytest.raises(ConfigError, match="cluster must be a name"):
        collector(tmp_path, zookeeper, ListFeed({}, LocalFiles()), cluster="")


def test_a_collector_without_a_cluster_is_of_the_one_that_is_meant(
    tmp_path: Path, zookeeper: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings_of(str(tmp_path)), cluster="")
    found = StreamsPlace("zk:1", None, lambda root: LocalFiles(), cluster="bank")
    assert found.collector(settings, zookeeper, print).settings.cluster == "bank"
    given = replace(found, cluster="")  # its ZooKeeper may have several
    monkeypatch.delenv("WALTZ_CLUSTER", raising=False)
    with pytest.raises(InvalidInput, match="give the cluster's name"):
        given.collector(settings, zookeeper, print)
    monkeypatch.setenv("WALTZ_CLUSTER", "mine")
    assert given.collector(settings, zookeeper, print).settings.cluster == "mine"


def test_a_node_is_read_as_it_was_written() -> None:
    start = CollectorNode(holder="r", cluster="bank", category="c", root="/x")
    planned = start.planned(BEGIN.replace(second=0), [Range(0, 0, 2), Range(0, 2, 3), Range(4, 0, 1)], "jsonl")
    for node in (start, planned, planned.filed("/x/m"), planned.filed("/x/m").done()):
        data = encode_collector(node)
        assert is_collector(data)
        assert decode_collector("/databus/c1", data) == node
    assert not is_collector(b"{")
    fields = json.loads(encode_collector(start)) | {"state": CollectorState.FILED.value}
    with pytest.raises(CoordinationError, match="COLLECT_FILED without a plan"):
        decode_collector("/databus/c1", json.dumps(fields).encode())
    assert file_name(BEGIN, Range(3, 10, 20), "jsonl") == "202611211550.3-10-19.jsonl.gz"


def rows() -> Any:
    columns = [[1, 1], [7, 8], [0, -5], [3, 3], [0, 0], [9, 10], [b'{"a": "\xc3\xa9"}', b"\xff\x00"]]
    return pa.record_batch(
        [pa.array(values, type=kind.type) for values, kind in zip(columns, ARROW_SCHEMA, strict=True)],
        schema=ARROW_SCHEMA,
    )


def test_formats() -> None:
    file = io.BytesIO()
    assert write_file(file, iter([rows(), rows()]), "parquet") == 4
    assert pq.read_table(io.BytesIO(file.getvalue())).to_batches()[0].slice(0, 2).equals(rows())
    lines, again = io.BytesIO(), io.BytesIO()
    assert write_file(lines, iter([rows()]), "jsonl") == 2
    write_file(again, iter([rows()]), "jsonl")
    assert lines.getvalue() == again.getvalue()
    first, second = map(json.loads, gzip.decompress(lines.getvalue()).splitlines())
    assert first == {
        **{"partition_id": 1, "transaction_id": 7, "header": 0, "client_id": 3, "generation": 0},
        **{"sequence_number": 9, "data": '{"a": "é"}'},
    }
    assert (second["header"], second["data_base64"]) == (-5, "/wA=")
    assert "data" not in second


# ---- real processes, real files, a real ZooKeeper


class Killed:
    """A collector that is killed at ``point`` of the minute after a pause; everything before is in order."""

    def __init__(self, point: str, base: Path, hosts: str, zookeeper: ZooKeeper) -> None:
        self.point, self.hosts = point, hosts
        self.root = base / uuid.uuid4().hex
        self.root.mkdir()
        self.node = f"/{self.root.name}"
        self.marks = {0: 2, 1: 0}
        self.now = BEGIN
        self.work(zookeeper)
        self.marks, self.now = {0: 5, 1: 1}, BEGIN + 3 * MINUTE

    def work(self, zookeeper: ZooKeeper) -> None:
        """A clean pass of the collector and one of the local service."""
        feed = ListFeed(self.marks, LocalFiles())
        with Collector(settings_of(str(self.root), self.node), zookeeper, feed, clock=lambda: self.now) as one:
            assert not one.run_once().standing_by
        self.publish(zookeeper)

    def publish(self, zookeeper: ZooKeeper) -> None:
        with StreamService(local_settings(str(self.root), self.node), zookeeper, clock=lambda: self.now) as service:
            assert not service.run_once().quarantined

    def start(self) -> subprocess.Popen[bytes]:
        case = {
            **{"hosts": self.hosts, "root": str(self.root), "node": self.node, "now": self.now.isoformat()},
            **{"marks": self.marks, "point": self.point},
        }
        command = [sys.executable, "-m", "tests.spark.streams.collector_worker", json.dumps(case)]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)

    def until_unlocked(self, zookeeper: ZooKeeper) -> None:
        free = threading.Event()
        lock = f"{self.node}/c1/lock"
        watch = zookeeper.watch_data(lock, lambda data, version: free.set() if data is None else None)
        try:
            assert free.wait(PATIENCE_S), f"{lock} was never given away"
        finally:
            watch.cancel()

    def problems(self, zookeeper: ZooKeeper) -> list[str]:
        self.until_unlocked(zookeeper)
        self.marks, self.now = {0: 7, 1: 1}, BEGIN + 4 * MINUTE
        self.work(zookeeper)
        last, first = self.now.replace(second=0) - MINUTE, BEGIN.replace(second=0) - MINUTE
        files = local_files(str(self.root))
        return problems_of(files, str(self.root), zookeeper, self.node, self.marks, last, first)


def kill_at(points: Sequence[str], base: Path, hosts: str) -> None:
    zookeeper = KazooZooKeeper(hosts)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        killed = [Killed(point, base, hosts, zookeeper) for point in points]
        for number, one in enumerate(killed):
            processes.append(one.start())
            _, errors = processes[-1].communicate(timeout=PATIENCE_S)
            assert processes[-1].returncode == -signal.SIGKILL, f"{one.point}: {errors.decode()}"
            if number % 2:  # the local service works before the recovery, or only after it
                one.publish(zookeeper)
        for one in killed:
            assert one.problems(zookeeper) == [], f"killed at {one.point}"
        assert SESSION_TIMEOUT_MS < 1000 * PATIENCE_S
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
        zookeeper.close()


def test_killed_in_the_middle(tmp_path: Path, zookeeper_server: str) -> None:
    kill_at(["during WRITE", "during MARK"], tmp_path, zookeeper_server)


@pytest.mark.long
def test_killed_at_every_point(tmp_path: Path, zookeeper_server: str) -> None:
    kill_at([point for point in POINTS for _ in range(2)], tmp_path, zookeeper_server)


def test_every_point_is_passed(tmp_path: Path, zookeeper: MemoryZooKeeper) -> None:
    passed: list[str] = []
    feed = ListFeed({0: 0}, LocalFiles())
    with Collector(settings_of(str(tmp_path)), zookeeper, feed, clock=lambda: BEGIN, hook=passed.append) as one:
        one.run_once()
    assert passed == list(POINTS)
