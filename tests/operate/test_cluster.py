"""A real cluster as its operator sees it: the manager's port, Ray's exporter, and a Prometheus that watches."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.operate.monitoring import FOLDER, needs_prometheus
from waltz_ray import connect
from waltz_ray.bring_up import bring_up
from waltz_ray.config import ClusterConfig, HttpConfig
from waltz_ray.finding import cluster_file
from waltz_ray.readiness import cluster_status
from waltz_ray.runtime.figures import FIGURES
from waltz_ray.take_down import take_down

pytestmark = pytest.mark.cluster
NAME = "operated"
OF_LAYERS = ("waltz_kv_", "waltz_topic_", "waltz_cursor_")


class Operated:
    def __init__(self, zookeeper: str, url: str, name: str = NAME) -> None:
        self.zookeeper, self.url, self.name = zookeeper, url, name

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urlopen(self.url + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    @contextlib.contextmanager
    def load(self) -> Iterator[Callable[[], int]]:
        """Appends until the block ends; how many have been taken."""
        stop, taken = threading.Event(), [0]
        with connect(self.name, zookeeper=self.zookeeper) as client:

            def run() -> None:
                while not stop.is_set():
                    appends = [client.append(n % 2, b"x" * 100) for n in range(50)]
                    taken[0] += len([append.result(60) for append in appends])

            thread = threading.Thread(target=run)
            thread.start()
            try:
                yield lambda: taken[0]
            finally:
                stop.set()
                thread.join(120)


def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def operated(ray_head: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    directory = tmp_path_factory.mktemp(NAME)
    try:
        config = ClusterConfig(NAME, str(directory), 2, 3, 2, http=HttpConfig(interval_ms=500))
        running = bring_up(config, ray_head, deadline_s=200.0)
        until(lambda: cluster_status(NAME).manager.http)
        yield Operated(running.zookeeper, f"http://{cluster_status(NAME).manager.http}")
    finally:
        known = cluster_file.read(directory)
        if known is not None:
            take_down(known)


def ray_exports() -> str:
    """What Ray's agent of this node tells Prometheus."""
    import ray

    (node,) = [each for each in ray.nodes() if each["Alive"]]  # type: ignore[no-untyped-call]
    with urlopen(f"http://127.0.0.1:{node['MetricsExportPort']}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_the_managers_port_and_rays_tell_of_appends(operated: Operated) -> None:
    until(lambda: operated.get("/readyz") == (200, "ready\n"))
    assert operated.get("/healthz") == (200, "ok\n")
    with operated.load() as taken:
        until(lambda: taken() > 200)
        counted = r'waltz_append_stage_seconds_count\{.*stage="commit"\} [1-9]'
        until(lambda: re.search(counted, operated.get("/metrics")[1]))
        until(lambda: "waltz_subscriber_lag_transactions{" in operated.get("/metrics")[1])
        told = operated.get("/metrics")[1]
    names = {metric.name for _, metrics in FIGURES.values() for metric in metrics}
    missing = {name for name in names if name not in told and not name.startswith(OF_LAYERS)}
    assert all(name.endswith("_refusals_total") for name in missing), "nothing was refused, and all else is there"
    assert json.loads(operated.get("/status.json")[1])["cluster"] == NAME
    bucket = "ray_waltz_append_stage_seconds_bucket{"
    until(lambda: any(bucket in line and 'le="+Inf"' in line for line in ray_exports().splitlines()))


# ---- Prometheus


class Prometheus:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, what: str, **parameters: str) -> Any:
        try:
            with urlopen(f"{self.url}{what}?{urlencode(parameters)}", timeout=10) as answer:
                return json.load(answer)["data"]
        except URLError:
            return None  # it has just been started

    def value(self, query: str) -> float:
        found = self.ask("query", query=query)
        return float(found["result"][0]["value"][1]) if found and found["result"] else 0.0

    def firing(self) -> set[str]:
        found = self.ask("alerts")
        return (
            {each["labels"]["alertname"] for each in found["alerts"] if each["state"] == "firing"} if found else set()
        )


@pytest.fixture
def prometheus(operated: Operated, tmp_path: Path) -> Iterator[Prometheus]:
    """With our rules, which wait for a second only, of this cluster's manager."""
    import socket

    rules = re.sub(r"for: \w+", "for: 1s", (FOLDER / "alerts.yml").read_text())
    (tmp_path / "alerts.yml").write_text(rules)
    config = (FOLDER / "prometheus.yml").read_text().replace("127.0.0.1:9464", operated.url.removeprefix("http://"))
    assert operated.url.removeprefix("http://") in config
    (tmp_path / "prometheus.yml").write_text(config.replace("5s", "1s"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        found = Prometheus(port)
        until(lambda: found.ask("alerts") is not None)
        yield found
    finally:
        process.terminate()
        process.wait(30)


# Of a test's disk and of a cluster that has just begun.
NOT_MEANT = {
    "WaltzDiskNearlyFull",
    "WaltzDiskFillsUp",
    "WaltzRecoversAgainAndAgain",
    "WaltzSlowSync",
    "WaltzSlowCommit",
}


@needs_prometheus
@pytest.mark.long
def test_a_prometheus_under_load_raises_an_alert_and_clears_it(operated: Operated, prometheus: Prometheus) -> None:
    """A replica is stopped under load: its alert comes, appends go on, and when it goes on the alert goes."""
    with operated.load() as taken:
        until(lambda: prometheus.value('up{job="waltz"}') == 1)
        until(lambda: prometheus.value("sum(rate(waltz_append_records_total[10s]))") > 10)
        slowest = 'histogram_quantile(0.99, sum by (le) (rate(waltz_append_stage_seconds_bucket{stage="commit"}[10s])))'
        assert 0 < prometheus.value(slowest) < 60
        assert prometheus.firing() - NOT_MEANT == set()
        pid = cluster_status(NAME).replicas[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: "WaltzReplicaDown" in prometheus.firing())
            assert operated.get("/readyz")[0] == 503
            before = taken()
            until(lambda: taken() > before + 100)
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: prometheus.firing() - NOT_MEANT == set(), 120)
        until(lambda: operated.get("/readyz")[0] == 200)
