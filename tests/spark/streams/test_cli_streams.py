"""``waltz streams`` without Spark: a file of services on a real ZooKeeper, in processes and in this one."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from waltz_spark.streams.collector import Collector, CollectorSettings
from waltz_spark.streams.files import LocalFiles
from waltz_spark.streams.layout import data_path, encode_marker, marker_name
from waltz_spark.streams.services import StreamService
from waltz_spark.streams.states import StreamState

from tests.cluster.harness import wait_until
from tests.spark.streams.collecting import ListFeed
from waltz_ray.cli import main
from waltz_ray.coordination.zookeeper import KazooZooKeeper

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 60.0
MINUTE = datetime.now(timezone.utc).replace(second=0, microsecond=0) - timedelta(minutes=10)


@dataclass
class Services:
    """A file with a local, a merged and a mirror in two roots, and one minute of a collector."""

    base: Path
    hosts: str
    config: Path
    node: str

    def command(self, *arguments: str) -> list[str]:
        return ["streams", arguments[0], "--config", str(self.config), *arguments[1:]]

    def run(self, *arguments: str) -> int:
        with pytest.raises(SystemExit) as leaving:
            main(self.command(*arguments))
        return int(str(leaving.value.code))

    def published(self, root: str, stream: str) -> list[str]:
        return sorted(path.name for path in (self.base / root / stream).rglob("*") if path.is_file())


@pytest.fixture
def services(tmp_path: Path, zookeeper_server: str) -> Services:
    node = f"/{uuid.uuid4().hex}"
    for root in ("a", "b"):
        (tmp_path / root).mkdir()
    config = tmp_path / "streams.toml"
    config.write_text(
        f'zookeeper = "{zookeeper_server}"\nzookeeper_root = "{node}"\ninterval_s = 0.05\n'
        f'[roots]\na = "{tmp_path}/a"\nb = "{tmp_path}/b"\n'
        '[services.local]\nkind = "local"\nroot = "a"\nconsumers = ["all"]\n'
        '[services.all]\nkind = "merged"\nroot = "a"\nsources = ["local"]\nconsumers = ["far"]\n'
        '[services.far]\nkind = "mirror"\nroot = "b"\nsources = ["all"]\n'
    )
    found = Services(tmp_path, zookeeper_server, config, node)
    collect(found, MINUTE)
    return found


def collect(services: Services, minute: datetime) -> None:
    directory = Path(data_path(str(services.base / "a"), "bank", "c1"))
    directory.mkdir(parents=True, exist_ok=True)
    name = marker_name(minute).removesuffix(".done") + ".x"
    (directory / name).write_text("a record")
    (directory / marker_name(minute)).write_bytes(encode_marker(minute, [name]))


def test_once_status_and_again(services: Services, capsys: pytest.CaptureFixture[str]) -> None:
    assert services.run("run", "--once", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert [(each["name"], len(each["committed"])) for each in done] == [("local", 1), ("all", 1), ("far", 1)]
    for root, stream in (("a", "streams_local"), ("a", "streams"), ("b", "streams")):
        assert len(services.published(root, stream)) == 1
    assert services.run("status", "--json") == 0
    view = json.loads(capsys.readouterr().out)
    assert view["collectors"] == []
    assert [(each["name"], each["commits"], each["state"]) for each in view["services"]] == [
        ("all", 1, "SUCCESS_COMMIT"),
        ("far", 1, "SUCCESS_COMMIT"),
        ("local", 1, "SUCCESS_COMMIT"),
    ]
    assert services.run("status", "--service", "far") == 0
    shown = capsys.readouterr().out
    assert "mirror" in shown
    assert "merged" not in shown
    assert services.run("run", "--once") == 0
    assert "0 committed, 0 dropped as repeated" in capsys.readouterr().out


def test_quarantine(services: Services, capsys: pytest.CaptureFixture[str]) -> None:
    minute = MINUTE + timedelta(minutes=1)
    directory = Path(data_path(str(services.base / "a"), "bank", "c1"))
    (directory / marker_name(minute)).write_bytes(b"{")
    assert services.run("run", "--once") == 0
    record = f"{minute:%Y%m%d%H%M}.bank.local.c1"
    capsys.readouterr()

    def quarantine(verb: str, *more: str) -> int:
        with pytest.raises(SystemExit) as leaving:
            main(["streams", "quarantine", verb, "--config", str(services.config), *more])
        return int(str(leaving.value.code))

    assert quarantine("list", "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["service"], one["commit"], one["count"]) == ("local", record, 1)
    assert quarantine("list") == 0
    assert record in capsys.readouterr().out
    assert quarantine("drop", "--yes", "--service", "all", record) == 1
    assert "is not in the quarantine of all" in capsys.readouterr().err
    assert quarantine("retry", "--service", "local", record) == 0
    assert quarantine("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert services.run("run", "--once") == 0
    assert quarantine("drop", "--yes", "--service", "local", record) == 0
    assert services.run("run", "--once") == 0
    assert quarantine("list", "--json", "--service", "local") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == []
    assert not (directory / marker_name(minute)).exists()


def test_status_goes_on_with_watch(services: Services) -> None:
    command = [sys.executable, "-m", "waltz_spark.streams", *services.command("status", "--watch", "--json")[1:]]
    with subprocess.Popen([*command, "--interval", "0.2"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    assert [json.loads(line)["unreadable"] for line in lines] == [{}, {}]


def test_recover(services: Services, capsys: pytest.CaptureFixture[str]) -> None:
    class Stopped(BaseException):
        pass

    def hook(point: str) -> None:
        if point == "after TRANS_MV_COMPLETE":
            raise Stopped

    assert services.run("recover", "--json") == 0
    assert {each["before"] for each in json.loads(capsys.readouterr().out)} == {"never ran"}
    from waltz_spark.streams.configuration import read_config

    zookeeper = KazooZooKeeper(services.hosts)
    try:
        settings = read_config(services.config).services[0]
        with pytest.raises(Stopped):
            StreamService(settings, zookeeper, hook=hook).run_once()
    finally:
        zookeeper.close()
    assert services.run("recover", "--json", "--service", "local") == 0
    [local] = json.loads(capsys.readouterr().out)
    assert local == {"name": "local", "before": StreamState.MOVED.value, "after": StreamState.SUCCESS.value}
    assert services.published("a", "streams_local") != []
    assert services.run("recover") == 0
    assert "SUCCESS_COMMIT" in capsys.readouterr().out


def test_a_collector_in_status(services: Services, capsys: pytest.CaptureFixture[str]) -> None:
    """The cluster it collects from is not there: the status says so and goes on."""
    zookeeper = KazooZooKeeper(services.hosts)
    try:
        settings = CollectorSettings("c2", str(services.base / "a"), "bank", "gone", zookeeper_root=services.node)
        with Collector(settings, zookeeper, ListFeed({0: 4}, LocalFiles()), clock=lambda: MINUTE) as collector:
            collector.run_once()
    finally:
        zookeeper.close()
    assert services.run("status", "--json") == 0
    [view] = json.loads(capsys.readouterr().out)["collectors"]
    assert (view["name"], view["state"], view["position"], view["records"]) == ("c2", "COLLECT_DONE", {"0": 5}, 5)
    assert view["lag_records"] is None
    assert "gone" in view["trouble"]
    assert view["lag_minutes"] >= 10
    assert services.run("status") == 0
    assert "c2" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_running_process_ends_cleanly(services: Services, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "waltz_spark.streams", *services.command("run", "--metrics-port", "0")[1:]]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        seen: list[str] = []
        while not any(line.startswith("far: streams/bank") for line in seen):
            seen.append(process.stderr.readline())
            assert seen[-1], "".join(seen)
        [port] = [int(line.rsplit(":", 1)[1].split("/")[0]) for line in seen if line.startswith("metrics at ")]
        assert fetched(port, "/") == (404, "there is /metrics\n")
        running = 'waltz_stream_running{kind="mirror",service="far"} 1.0'
        wait_until(lambda: running in fetched(port)[1], running, PATIENCE_S)
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
        assert "ending" in errors
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert len(services.published("b", "streams")) == 1


def fetched(port: int, path: str = "/metrics") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_metrics_port_that_cannot_be_had(services: Services, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert services.run("run", "--for", "0", "--metrics-port", str(port)) == 1
    [line] = [each for each in capsys.readouterr().err.splitlines() if each.startswith("waltz: ")]
    assert f"127.0.0.1:{port} cannot be had" in line


def test_for_seconds(services: Services, capsys: pytest.CaptureFixture[str]) -> None:
    assert services.run("run", "--for", "0") == 0
    assert "running local, all, far" in capsys.readouterr().err


def test_the_error_of_one_service_ends_all(services: Services, capsys: pytest.CaptureFixture[str]) -> None:
    (services.base / "b" / "system").write_text("a file where all services need a directory")
    assert services.run("run") == 1
    shown = capsys.readouterr().err
    assert shown.splitlines()[-1].startswith("waltz: stream service far: ")
    assert "Traceback" not in shown


def test_clear_errors(services: Services, capsys: pytest.CaptureFixture[str]) -> None:
    def error_of(*arguments: str) -> str:
        assert services.run(*arguments) == 1
        shown = capsys.readouterr().err.strip()
        assert "\n" not in shown
        assert "Traceback" not in shown
        return shown

    assert "there is no service 'loca'" in error_of("run", "--once", "--service", "loca")
    text = services.config.read_text()
    services.config.write_text(text.replace(f"{services.base}/b", f"{services.base}/nowhere"))
    assert "the root " in (shown := error_of("run", "--once"))
    assert "nowhere is not there" in shown
    services.config.write_text(text.replace("kind", "kin", 1))
    assert "unknown key 'kin'; did you mean 'kind'" in error_of("status")
    services.config.write_text(text.replace(f'zookeeper = "{services.hosts}"\n', ""))
    assert "the file names no zookeeper" in error_of("recover")


@pytest.mark.long
def test_zookeeper_is_away(services: Services, capsys: pytest.CaptureFixture[str]) -> None:
    assert services.run("run", "--once", "--zookeeper", "127.0.0.1:1") == 1
    assert "no ZooKeeper server answers at 127.0.0.1:1" in capsys.readouterr().err
