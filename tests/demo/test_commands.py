"""``waltz load``, ``waltz feed`` and Spark's reader against a real cluster without Ray; and the whole demo, small."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

import waltz_ray
from tests.cluster.harness import Cluster, wait_until, waltz
from waltz_ray.cli.load_cursor import open_cursor
from waltz_ray.client.keys import key_hash, partition_for
from waltz_ray.client.readers.reading import Reading, plan_reading
from waltz_ray.errors import LockConflict
from waltz_ray.protocol.ids import LockId

pytestmark = pytest.mark.cluster

PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: str) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), zookeeper_server, partitions=PARTITIONS) as running:
        for partition_id in range(PARTITIONS):
            running.wait_members(partition_id, {0, 1, 2})
        yield running


def marks(cluster: Cluster) -> list[int]:
    return [int(cluster.served(partition_id).high_water_mark) for partition_id in range(PARTITIONS)]


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_load_then_feed(cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = marks(cluster)
    path = tmp_path / "a.csv"
    path.write_text("id,name\n" + "".join(f"{i},n{i % 7}\n" for i in range(1000)))
    waltz(cluster, "load", str(path), "--key", "name", "--header", "5", "--json")
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rows"], summary["file"]) == (1000, str(path))
    rows: list[dict[str, Any]] = []
    for partition_id in range(PARTITIONS):
        waltz(cluster, "feed", "-p", str(partition_id), "--from", str(before[partition_id] + 1), "--json")
        fed = objects(capsys.readouterr().out)
        assert [each["transaction_id"] for each in fed] == list(
            range(before[partition_id] + 1, before[partition_id] + 1 + len(fed))
        )
        assert {each["header"] for each in fed} <= {5}
        values = [json.loads(each["data"]) for each in fed]
        assert {partition_for(value["name"], PARTITIONS) for value in values} <= {partition_id}
        rows += values
    assert sorted(int(row["id"]) for row in rows) == list(range(1000))
    for name in {row["name"] for row in rows}:
        ids = [int(row["id"]) for row in rows if row["name"] == name]
        assert ids == sorted(ids), "rows of one key are in the order of the file"


def test_limit_and_unknown_partition(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    with waltz_ray.connect(cluster.name, zookeeper=cluster.zookeeper) as client:
        ids = client.append_many(0, [b"\xff", b"text", b"more"]).result(30)
    waltz(cluster, "feed", "-p", "0", "--from", str(ids[0]), "--limit", "2", "--json")
    assert [each.get("data", each.get("data_base64")) for each in objects(capsys.readouterr().out)] == ["/w==", "text"]
    waltz(cluster, "feed", "-p", "0", "--from", str(ids[0]), "--limit", "1")
    assert "0xff" in capsys.readouterr().out
    waltz(cluster, "feed", "-p", "7", code=1)
    assert capsys.readouterr().err == "waltz: there is no partition 7; this space has 2: 0 to 1\n"


def test_an_unknown_column_appends_nothing(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = marks(cluster)
    path = tmp_path / "a.csv"
    path.write_text("tailnum,dest\nN1,IAH\n")
    waltz(cluster, "load", str(path), "--key", "tailnm", code=1)
    assert capsys.readouterr().err == f"waltz: {path} has no column 'tailnm'; it has tailnum, dest\n"
    assert marks(cluster) == before


def test_a_row_is_locked_by_its_key(cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who decided about the key before the load is refused, who decided about another one is not."""
    path = tmp_path / "a.csv"
    path.write_text("account,x\nbob,1\n")
    partition_id = partition_for("bob", PARTITIONS)
    with waltz_ray.connect(cluster.name, zookeeper=cluster.zookeeper) as client:
        mark = client.server_high_water_mark(partition_id)
        waltz(cluster, "load", str(path), "--key", "account")
        refused = client.append(partition_id, b"x", write_locks=[LockId("account", key_hash("bob"))], client_mark=mark)
        passed = client.append(partition_id, b"x", write_locks=[LockId("account", key_hash("ann"))], client_mark=mark)
        with pytest.raises(LockConflict):
            refused.result(30)
        assert passed.result(30) == mark + 2


def test_feed_into_a_closed_pipe_ends_quietly(cluster: Cluster) -> None:
    with waltz_ray.connect(cluster.name, zookeeper=cluster.zookeeper) as client:
        client.append_many(1, [b"x" * 200] * 5000).result(30)
    command = [sys.executable, "-m", "waltz_ray", "feed", "-p", "1"]
    command += ["--zookeeper", cluster.zookeeper, "--cluster", cluster.name]
    feed = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert feed.stdout is not None
        assert feed.stderr is not None
        assert b"client" in feed.stdout.readline()
        feed.stdout.close()
        assert feed.wait(60) == 0
        assert feed.stderr.read() == b""
        feed.stderr.close()
    finally:
        feed.kill()
        feed.wait()


def test_follow_ends_quietly_with_ctrl_c(cluster: Cluster) -> None:
    with waltz_ray.connect(cluster.name, zookeeper=cluster.zookeeper) as client:
        start = client.append(0, b"before").result(30)
        command = [sys.executable, "-m", "waltz_ray", "feed", "-p", "0", "--follow", "--json", "--from", str(start)]
        command += ["--zookeeper", cluster.zookeeper, "--cluster", cluster.name]
        feed = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert feed.stdout is not None
            assert json.loads(feed.stdout.readline())["data"] == "before"
            client.append(0, b"after").result(30)
            assert json.loads(feed.stdout.readline())["data"] == "after"
            feed.send_signal(2)
            out, errors = feed.communicate(timeout=60)
            assert (feed.returncode, out, errors) == (130, "", "")
        finally:
            feed.kill()
            feed.wait()


def loading(cluster: Cluster, path: str, *options: str, stdin: Any = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "waltz_ray", "load", path, "--key", "id", *options]
    command += ["--zookeeper", cluster.zookeeper, "--cluster", cluster.name]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def loaded_ids(cluster: Cluster, before: list[int]) -> list[int]:
    with waltz_ray.connect(cluster.name, zookeeper=cluster.zookeeper) as client:
        return sorted(
            int(json.loads(each.data)["id"]) for p in range(PARTITIONS) for each in client.feed(p, before[p] + 1)
        )


def test_a_load_is_interrupted_and_killed_and_every_row_is_in_the_log_once(cluster: Cluster, tmp_path: Path) -> None:
    before, rows = marks(cluster), 60_000
    path = tmp_path / "a.csv"
    path.write_text("id,name\n" + "".join(f"{i},n\n" for i in range(rows)))
    choose = random.Random(7)
    for run, signal_number in enumerate((signal.SIGINT, signal.SIGKILL, signal.SIGKILL)):
        come, more = sum(marks(cluster)), choose.randrange(1, 9000)
        load = loading(cluster, str(path), *(["--resume"] if run else []))
        try:
            wait_until(lambda: sum(marks(cluster)) > come + more, "more rows are in the log")  # noqa: B023 - now
            load.send_signal(signal_number)
            out, errors = load.communicate(timeout=60)
        finally:
            load.kill()
            load.wait()
        assert out == ""
        if signal_number is signal.SIGINT:
            appended = sum(marks(cluster)) - sum(before)
            assert load.returncode == 130
            assert errors.splitlines()[-1] == (
                f"waltz: interrupted: {appended} of {rows} rows are in the log; the same command with --resume goes on"
            )
    again = loading(cluster, str(path))
    assert "an earlier load did not end" in again.communicate(timeout=60)[1]
    again = loading(cluster, str(path), "--resume", "--json")
    out, errors = again.communicate(timeout=100)
    assert (again.returncode, errors) == (0, "")
    summary = json.loads(out)
    assert summary["rows"] + summary["rows_before"] == rows
    assert summary["rows_before"] > 1000
    assert loaded_ids(cluster, before) == list(range(rows))
    assert [each.name for each in tmp_path.iterdir()] == ["a.csv"]


def test_a_load_from_stdin_is_resumed_by_its_cursor(cluster: Cluster, tmp_path: Path) -> None:
    before, cursor = marks(cluster), str(tmp_path / "cursor")
    lines = tmp_path / "lines"
    lines.write_text("".join(f'{{"id": {i}}}\n' for i in range(1000)))
    with (
        open_cursor(Path(cursor), False) as kept,
        waltz_ray.connect(cluster.name, zookeeper=cluster.zookeeper) as client,
    ):
        settings = {"key": "id", "types": "text", "nan": "error", "header": 0, "format": "jsonl", "space": "log"}
        size, key = lines.stat().st_size, client.cluster_key
        kept.begin({**settings, "bytes": size, "cluster_key": key}, [mark + 1 for mark in before], client.client_id)
        for number in (7, 300):
            client.append(partition_for(number, PARTITIONS), b'{"id": %d}' % number).result(30)
    with lines.open() as stdin:
        load = loading(cluster, "-", "--format", "jsonl", "--cursor", cursor, "--resume", "--json", stdin=stdin)
        out, errors = load.communicate(timeout=60)
    assert (load.returncode, errors) == (0, "")
    assert json.loads(out)["rows_before"] == 2
    assert loaded_ids(cluster, before) == list(range(1000))
    assert not Path(cursor).exists()


def test_spark_ranges_hold_every_transaction_once(cluster: Cluster) -> None:
    """What Spark's tasks read, without Spark."""
    with waltz_ray.connect(cluster.name, zookeeper=cluster.zookeeper) as client:
        client.append_many(0, [b"%d" % number for number in range(5000)], headers=3).result(30)
        expected = [
            (p, each.transaction_id, each.header, each.req_id.client_id, each.req_id.sequence_number, each.data)
            for p in range(PARTITIONS)
            for each in client.feed(p)
        ]
    endpoints = {p: str(cluster.servers[1].endpoint) for p in range(PARTITIONS)}
    for where in (cluster.zookeeper, endpoints):
        reading = Reading.of(where, cluster.name)
        ranges = plan_reading(reading, bytes_per_task=20_000)
        assert len(ranges) > 5
        rows = [row for each in ranges for batch in reading.batches([each]) for row in batch.to_pylist()]
        names = ("partition_id", "transaction_id", "header", "client_id", "sequence_number", "data")
        assert [tuple(row[name] for name in names) for row in rows] == expected
    with pytest.raises(waltz_ray.errors.InvalidInput, match="there is no partition 9"):
        plan_reading(Reading.of(endpoints, cluster.name), [0, 9], bytes_per_task=20_000)


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_demo(tmp_path: Path) -> None:
    """Ray, ZooKeeper, two SIGKILLs, Spark and all comparisons on 3000 flights; nothing is left running.

    A cluster that commands mean otherwise is none of its business."""
    directory, result_file = tmp_path / "demo", tmp_path / "result.json"
    command = [sys.executable, "-m", "waltz_ray", "demo", "--flights", "3000"]
    command += ["--dir", str(directory), "--json", str(result_file)]
    meant = os.environ | {"WALTZ_DIR": str(tmp_path / "another")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, env=meant, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    result = json.loads(result_file.read_text())
    assert set(result) == {
        *("ok", "flights", "transactions_in_log", "distinct_flights_in_log", "lock_conflicts", "retries"),
        *("append_rate_per_s", "failures", "checks", "storage_dirs"),
    }
    assert result["ok"] is True
    assert result["flights"] == result["transactions_in_log"] == result["distinct_flights_in_log"] == 3000
    assert len(result["failures"]) == 2
    assert all(set(failure) == {"what", "at_transaction", "felt_ms"} for failure in result["failures"])
    assert len(result["checks"]) == 17
    assert all(result["checks"].values())
    assert [Path(each).name for each in result["storage_dirs"]] == ["replica-0", "replica-1", "replica-2"]
    left = [
        p.info["cmdline"]
        for p in psutil.process_iter(["cmdline"])
        if str(directory) in " ".join(p.info["cmdline"] or [])
    ]
    assert left == []
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 1
    assert "holds a cluster already" in again.stderr
