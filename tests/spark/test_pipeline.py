"""The pipeline on the session's cluster and Spark; the collector's Spark side; sums that notice what they should."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyarrow.parquet as pq
import pytest
from waltz_spark import read_feed
from waltz_spark.pipeline.run import PipelineResult, _append, files_frame, flow
from waltz_spark.pipeline.sums import PartitionSums, differences, sums_of_frame
from waltz_spark.streams.announce import Announcement, announce
from waltz_spark.streams.collector import Collector, CollectorSettings
from waltz_spark.streams.collector_files import ClusterFeed
from waltz_spark.streams.collector_states import CollectorState
from waltz_spark.streams.collector_status import collector_status
from waltz_spark.streams.files import Files, local_files
from waltz_spark.streams.hadoop_files import HadoopFiles
from waltz_spark.streams.layout import consumers_path
from waltz_spark.streams.nodes import read_nodes
from waltz_spark.streams.services import StreamService
from waltz_spark.streams.settings import Source, StreamSettings
from waltz_spark.streams.spark_copying import OnSpark, SparkJobs, TaskGates

import waltz_ray
from tests.cluster.harness import wait_until
from tests.spark.spark_collector_worker import settings_of
from tests.spark.streams.world import CHAIN, FIRST, NOW, World, walk
from waltz_ray.bring_up import Cluster
from waltz_ray.client.readers.ranges import Range
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.hold_store import HoldStore
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import DataUnavailable, StorageError
from waltz_ray.testing import InMemoryCluster

ROOT = Path(__file__).resolve().parents[2]

needs_spark = [
    pytest.mark.cluster,
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


def with_spark(test: Any) -> Any:
    for mark in needs_spark:
        test = mark(test)
    return test


class Screen:
    def __init__(self) -> None:
        self.stages: list[str] = []
        self.records = 0

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def committed(self, records: int) -> None:
        self.records = records


def test_long_records_are_not_all_in_memory_at_one_time() -> None:
    """And few of them are in all partitions."""
    longest, records, appended = 1_000_000, 150, {0: PartitionSums(), 1: PartitionSums()}
    told: list[int] = []

    class Listening(Screen):
        def committed(self, records: int) -> None:
            told.append(records)

    with InMemoryCluster(partitions=2) as cluster, cluster.connect() as client:
        _append(client, appended, records, longest, PipelineResult(records), Listening())
        assert [client.server_high_water_mark(p) + 1 for p in (0, 1)] == [appended[p].records for p in (0, 1)]
    assert told == [64, 128, 150]
    assert [sums.records for sums in appended.values()] == [75, 75]


@with_spark
def test_the_whole_way(spark: Any, bank: Cluster, zookeeper: KazooZooKeeper, tmp_path: Path) -> None:
    """On a cluster that holds records already, as gzip lines."""
    with waltz_ray.connect(bank.name) as client:
        client.append_many(1, [b"there before", b"\xff not text"]).result(30)
        before = sum(client.server_high_water_mark(p) + 1 for p in range(client.partitions))
    screen, result = Screen(), PipelineResult(2000)
    holds = HoldStore(zookeeper, bank.name)
    holds.hold("collector.collector", {0: 0, 1: 1, 2: 0}, "a collector of the cluster's own")
    held = holds.all()
    flow(spark, bank.name, bank.zookeeper, tmp_path / "roots", result, screen, "jsonl", parts=2)
    assert result.differences == []
    assert result.ok
    assert len(result.checks) == 8
    assert {sums.records for sums in result.sums.values()} == {before + 2000}
    assert screen.records == before + 2000
    assert result.as_json()["ok"]
    assert result.appended_bytes == 2000 * 200
    seconds = result.seconds["log to files"]
    assert result.rates["log to files, records/s"] == pytest.approx((before + 2000) / seconds)
    parts = [path for path in (tmp_path / "roots/b/streams/records").glob("*/*/*/*/*/*") if path.is_dir()]
    assert len(parts) == 3
    assert {path.name for path in parts} == {"local.collector"}
    assert not any(name.startswith("databus-pipeline") for name in zookeeper.children("/"))
    assert holds.all() == held, "what others keep is kept, and nothing for the pipeline's collector"
    holds.release("collector.collector")


@pytest.fixture
def zookeeper(bank: Cluster) -> Iterator[KazooZooKeeper]:
    client = KazooZooKeeper(bank.zookeeper)
    yield client
    client.close()


@with_spark
def test_a_collector_on_a_cluster(spark: Any, bank: Cluster, zookeeper: KazooZooKeeper, tmp_path: Path) -> None:
    now = datetime(2026, 11, 21, 15, 50, 2, tzinfo=timezone.utc)  # two seconds to settle
    node = f"/collector-{tmp_path.name}"
    settings = CollectorSettings("c1", str(tmp_path), "bank", bank.name, (0, 2), zookeeper_root=node)
    with waltz_ray.connect(bank.name) as client:
        for partition_id in range(3):
            client.append_many(partition_id, [b"%d" % i for i in range(500)]).result(30)
        marks = {p: client.server_high_water_mark(p) for p in (0, 2)}
    feed = ClusterFeed(spark, replace(settings, bytes_per_task=10_000), bank.zookeeper)
    with Collector(settings, zookeeper, feed, clock=lambda: now) as collector:
        assert collector.run_once().records == sum(marks.values()) + 2
        [status] = collector_status(zookeeper, bank.zookeeper, lambda: now + timedelta(minutes=3), node)
        assert (status.running, status.high_water_marks, status.lag_records, status.lag_minutes) == (True, marks, 0, 3)
    files = sorted((tmp_path / "data/bank/c1").glob("*.parquet"))
    assert len(files) > 2
    tables = [pq.read_table(path, columns=["partition_id", "transaction_id"]).to_pylist() for path in files]
    found = sorted((row["partition_id"], row["transaction_id"]) for table in tables for row in table)
    assert found == [(p, n) for p in (0, 2) for n in range(marks[p] + 1)]
    with pytest.raises(DataUnavailable, match=r"has collected up to .*; is it the same log"):
        feed.plan({0: marks[0] + 2})


@pytest.mark.long
@with_spark
def test_killed_while_spark_writes(spark: Any, bank: Cluster, zookeeper: KazooZooKeeper, tmp_path: Path) -> None:
    """A first run is killed, and the one that recovers; the third does it, with another Spark, while the log grows."""
    now = datetime.now(timezone.utc)
    node = f"/killed-{tmp_path.name}"
    settings = settings_of(str(tmp_path), bank.name, node)
    case = {"hosts": bank.zookeeper, "cluster": bank.name, "root": str(tmp_path), "node": node, "now": now.isoformat()}
    for seconds in (0.3, 1.5):
        with waltz_ray.connect(bank.name) as client:
            client.append_many(1, [os.urandom(200) for _ in range(10_000)]).result(30)
        command = [sys.executable, "-m", "tests.spark.spark_collector_worker", json.dumps(case | {"seconds": seconds})]
        assert subprocess.run(command, cwd=ROOT, timeout=120, check=False).returncode == -signal.SIGKILL
        wait_until(lambda: zookeeper.exists(f"{node}/c1/lock") is None, "the killed run's session expires", 30)
        assert read_nodes(zookeeper, node).collectors["c1"].state is CollectorState.PLANNED
    with Collector(settings, zookeeper, ClusterFeed(spark, settings, bank.zookeeper), clock=lambda: now) as collector:
        assert collector.run_once().minute is None, "recovery has done the minute"
        now += timedelta(minutes=1)
        assert collector.run_once().records == 10_000
    local = StreamSettings("local", "local", str(tmp_path), zookeeper_root=node)
    with StreamService(local, zookeeper, clock=lambda: now) as service:
        assert len(service.run_once().committed) == 2
    expected = sums_of_frame(read_feed(spark, bank.name))
    published = sums_of_frame(files_frame(spark, str(tmp_path / "streams_local"), "parquet"))
    assert differences(expected, published, "streams_local") == []
    assert not list((tmp_path / "data").rglob("*.*"))


@with_spark
def test_what_a_task_cannot_write(spark: Any, bank: Cluster, tmp_path: Path) -> None:
    settings = CollectorSettings("c1", str(tmp_path), "bank", bank.name)
    feed = ClusterFeed(spark, settings, bank.zookeeper)
    with waltz_ray.connect(bank.name) as client:
        client.append(0, b"at least one").result(30)
    with pytest.raises(StorageError, match=r"No such file or directory.*every Spark executor must see") as caught:
        feed.write([Range(0, 0, 1)], "parquet", str(tmp_path / "taken/away"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "taken").exists()


@with_spark
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_files_on_a_hadoop_file_system(spark: Any, bank: Cluster, tmp_path: Path, kind: Any) -> None:
    """Hadoop's own view of the local file system stands for any other."""
    hadoop = HadoopFiles.of(spark)

    def files_of(root: str) -> Files:
        return hadoop if "://" in root else local_files(root)

    with waltz_ray.connect(bank.name) as client:
        first = int(client.append_many(0, [b"a", b"\xff", b"c"]).result(30)[0])
    directory = f"file://{tmp_path}/system/tmp/c1/run/files.1"
    hadoop.make_directories(directory)
    feed = ClusterFeed(
        spark, CollectorSettings("c1", f"file://{tmp_path}", "bank", bank.name), bank.zookeeper, files_of
    )
    spark.conf.set("spark.sql.files.maxRecordsPerFile", 1)  # somebody's setting: a file for each range all the same
    try:
        written = feed.write([Range(0, first, first + 2), Range(0, first + 2, first + 3)], kind, directory)
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")
    assert [each.records for each in written] == [2, 1]
    assert not (tmp_path / "system/tmp/c1.spark").exists()
    paths = [Path(each.path.removeprefix("file://")) for each in written]
    if kind == "parquet":
        assert [pq.read_table(path)["data"].to_pylist() for path in paths] == [[b"a", b"\xff"], [b"c"]]
    else:
        lines = [[json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()] for path in paths]
        assert [line["transaction_id"] for file in lines for line in file] == [first, first + 1, first + 2]
        assert lines[0][1]["data_base64"] == "/w=="


def test_sums_notice() -> None:
    expected = PartitionSums()
    expected.add(0, [b"a", b"bc"])
    expected.add(2, [b"d"])
    assert (expected.records, expected.size_bytes, expected.first_id, expected.last_id) == (3, 4, 0, 2)
    assert expected.is_whole
    assert differences({0: expected}, {0: replace(expected)}, "x") == []
    for change in ({"records": 2}, {"crc_sum": 1}, {"size_bytes": 5}, {"distinct": 2}, {"last_id": 3}):
        [line] = differences({0: expected}, {0: replace(expected, **change)}, "the mirror")
        assert line.startswith("the mirror, partition 0: ")
    assert len(differences({0: expected}, {}, "x")) == 1
    assert len(differences({}, {4: expected}, "x")) == 1
    twice = replace(expected, records=4)
    assert "not all of IDs 0 to 2" in differences({0: twice}, {0: twice}, "x")[0]


def test_a_result_without_checks_is_not_ok() -> None:
    assert not PipelineResult(1).ok
    assert not replace(PipelineResult(1), checks={"one": True, "other": False}).ok


def run_to(line: str, directory: Path, records: int) -> tuple[subprocess.Popen[str], list[str]]:
    """``waltz pipeline`` in a process, read up to a line that begins like this."""
    command = [sys.executable, "-m", "waltz_ray", "pipeline", "--records", str(records), "--dir", str(directory)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen: list[str] = []
    while not seen or not seen[-1].startswith(line):
        seen.append(process.stdout.readline())
        if not seen[-1]:
            break
    return process, seen


def left_behind(directory: Path) -> list[str]:
    """Processes that a cluster in this directory has not ended."""
    return [
        " ".join(each.info["cmdline"])
        for each in psutil.process_iter(["cmdline"])
        if any(str(directory) in word for word in each.info["cmdline"] or ())
    ]


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.parametrize("interrupted", [False, True])
def test_the_command_takes_everything_down(tmp_path: Path, interrupted: bool) -> None:
    process, seen = run_to("part 2 of 10: log to files" if interrupted else "yes", tmp_path / "x", 20_000)
    try:
        if interrupted:
            process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=120)
        assert process.returncode == (130 if interrupted else 0), "".join(seen) + rest
        assert "taking everything down" in "".join(seen) + rest
        assert left_behind(tmp_path / "x") == []
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@with_spark
def test_a_mirror_copies_with_tasks(spark: Any, tmp_path: Path) -> None:
    """Directories, and another scheme: there a task has a JVM of its own, with what the driver's Hadoop is told."""
    there = tmp_path / "there"
    there.mkdir()
    spark.sparkContext._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.logs.link./r", f"file://{there}")
    hadoop, zookeeper = HadoopFiles.of(spark), MemoryZooKeeperServer().client()
    said: list[str] = []

    def files_of(root: str) -> Files:
        return hadoop if "://" in root else local_files(root)

    def service(settings: StreamSettings, client: ZooKeeper) -> StreamService:
        settings = replace(settings, spark_copy_bytes=1, copy_tasks=2)
        on_spark = OnSpark(SparkJobs(spark), TaskGates.of(spark), 2, said.append)
        return StreamService(settings, client, files_of, lambda: NOW, on_spark=on_spark)

    world = World(local_files("/"), str(tmp_path / "here"), minutes=3)
    assert {len(one.committed) for one in world.finish(zookeeper, service).values()} == {3}
    assert world.problems(zookeeper) == []
    far = StreamSettings("mirror", "away", "viewfs://logs/r/away", (Source("copy", world.root("copy")),))
    [part] = [path.to_stream("streams") for path, content in world.expected.items() if path.minute == FIRST]
    inbox = consumers_path(world.root("copy"), "away", "copy")
    announce(world.files, world.root("copy"), inbox, Announcement("copy", part), str(tmp_path / "staged"))
    with service(far, zookeeper) as mirror:
        assert mirror.run_once().committed == ("202611211550.bank.tokyo.c1",)
    copied = walk(local_files("/"), part.on(str(there / "away")))
    assert {Path(name).name: data for name, data in copied.items() if "crc" not in name} == {
        Path(name).name: data for name, data in walk(local_files("/"), part.on(world.root("copy"))).items()
    }
    assert len(said) == len(CHAIN) + 1
    assert all(text.startswith("copied") and "with 2 tasks" in text for text in said)
