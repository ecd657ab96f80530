"""``make deploy-test``: a cluster from its file to its copy, as an operator runs it; minutes.

A job on a Ray with its dashboard brings it up, with TLS; it is looked at, watched by a Prometheus, has every process
replaced under load, is backed up, and what is restored is compared. The tests build on each other, in order.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.operate.jobs import Ray, ray_with_dashboard
from tests.operate.monitoring import FOLDER, needs_prometheus
from tests.operate.test_cluster import NOT_MEANT, Operated, Prometheus, until
from waltz_ray.security.certificates import make_certificates

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]

RECORDS = 2000


@dataclass
class Deployed:
    ray: Ray
    directory: Path
    file: Path
    port: int

    @property
    def cluster(self) -> str:
        return str(self.directory / "cluster")

    @property
    def token(self) -> Path:
        return self.directory / "prometheus.token"

    @property
    def authority(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.directory / "certs" / "authority.pem"))

    def waltz(self, *arguments: str, code: int = 0) -> str:
        done = self.ray.waltz(*arguments)
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.waltz("status", "--dir", self.cluster, "--json"))
        return found


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    directory = tmp_path_factory.mktemp("deployed")
    certs = directory / "certs"
    make_certificates(certs, ["localhost", "127.0.0.1"], ["client"], 30)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tls = f"tls_certificate: {certs}/server.pem, tls_key: {certs}/server.key"
    file = directory / "cluster.yaml"
    file.write_text(f"""
name: whole
directory: {directory}/cluster
partitions: 2
servers: 2
server: {{{tls}}}
storage: {{{tls}, tls_authority: {certs}/authority.pem, tls_only: true}}
http: {{port: {port}, interval_ms: 500, {tls}}}
spaces:
  orders: {{partitions: 2}}
""")
    with ray_with_dashboard(directory) as ray:
        found = Deployed(ray, directory, file, port)
        yield found
        ray.waltz("down", "--dir", found.cluster)


def test_a_job_brings_it_up_and_all_is_well(deployed: Deployed) -> None:
    job = ("python", "deploy/bring_up.py", "--config", str(deployed.file))
    done = deployed.ray.submit(*job)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "+ name: whole  (a new cluster)" in done.stdout
    assert "nothing to change" in deployed.waltz("apply", "--config", str(deployed.file), "--dry-run")
    assert "no problem" in deployed.waltz("doctor", "--dir", deployed.cluster)
    with urlopen(f"https://127.0.0.1:{deployed.port}/readyz", timeout=10, context=deployed.authority) as answer:
        assert answer.status == 200
    server = deployed.status()["servers"]["0"]["endpoint"]
    host, _, number = server.rpartition(":")
    with (
        socket.create_connection((host, int(number)), timeout=10) as plain,
        deployed.authority.wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        assert encrypted.version() in ("TLSv1.2", "TLSv1.3")
    told = deployed.waltz("log", "--dir", deployed.cluster, "--actor", "replica", "--json").splitlines()
    assert {json.loads(line)["actor"] for line in told} == {"replica/0", "replica/1", "replica/2"}


@pytest.fixture
def prometheus(deployed: Deployed, tmp_path: Path) -> Iterator[Prometheus]:
    """As deploy/monitoring has it, over TLS and with a token; its rules wait for a second only."""
    (tmp_path / "alerts.yml").write_text(re.sub(r"for: \w+", "for: 1s", (FOLDER / "alerts.yml").read_text()))
    config = (FOLDER / "prometheus.yml").read_text().replace("127.0.0.1:9464", f"127.0.0.1:{deployed.port}")
    config, comments = re.subn(r"# (scheme|tls_config|authorization):", r"\1:", config)
    assert comments == 3
    config = config.replace("/etc/waltz/authority.pem", f"{deployed.directory}/certs/authority.pem")
    config = config.replace("/etc/waltz/prometheus.token", str(deployed.token))
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


def test_with_rights_its_state_is_for_who_may_monitor(deployed: Deployed) -> None:
    rights = {
        "clients": {"prometheus": {}},
        "rights": [
            {"client": "*", "space": "*", "may": ["read", "append"]},
            {"client": "prometheus", "space": "*", "may": ["monitor"]},
        ],
    }
    path = deployed.directory / "rights.json"
    path.write_text(json.dumps(rights))
    deployed.waltz("access", "set", str(path), "--dir", deployed.cluster)
    deployed.waltz("access", "token", "prometheus", str(deployed.token), "--dir", deployed.cluster)
    asked = Request(f"https://127.0.0.1:{deployed.port}/metrics")

    def refused() -> bool:
        try:
            with urlopen(asked, timeout=10, context=deployed.authority):
                return False
        except HTTPError as error:
            error.close()
            return error.code == 401

    until(refused)  # the manager has seen them
    asked.add_header("Authorization", f"Bearer {deployed.token.read_text().strip()}")
    with urlopen(asked, timeout=10, context=deployed.authority) as answer:
        assert b"waltz_cluster_partitions_ready" in answer.read()


@needs_prometheus
def test_a_prometheus_sees_it_and_has_nothing_to_say(deployed: Deployed, prometheus: Prometheus) -> None:
    until(lambda: prometheus.value('up{job="waltz"}') == 1)
    assert prometheus.firing() - NOT_MEANT == set()


def test_every_process_is_replaced_under_load_and_no_append_fails(deployed: Deployed) -> None:
    zookeeper = str(deployed.status()["zookeeper"])
    load = Operated(zookeeper, f"http://127.0.0.1:{deployed.port}", "whole")
    before = deployed.status()
    with load.load() as taken:
        until(lambda: taken() > RECORDS)
        told = json.loads(deployed.waltz("upgrade", "--rolling", "--dir", deployed.cluster, "--json"))
        at_the_end = taken()
        until(lambda: taken() > at_the_end)
    assert len(told["restarted"]) == 6
    after = deployed.status()
    for actors in ("servers", "replicas"):
        for number, each in after[actors].items():
            assert each["pid"] != before[actors][number]["pid"]
    assert "no problem" in deployed.waltz("doctor", "--dir", deployed.cluster)


def feeds(deployed: Deployed, directory: Path) -> list[str]:
    told = []
    for space in ("log", "orders"):
        told += deployed.waltz("feed", "--dir", str(directory), "--space", space, "--json").splitlines()
    return told


def test_what_is_backed_up_and_restored_is_the_same(deployed: Deployed) -> None:
    target, again = str(deployed.directory / "backup"), deployed.directory / "again"
    assert "transactions of whole" in deployed.waltz("backup", target, "--dir", deployed.cluster)
    assert ": ok, whole of " in deployed.waltz("backup", "verify", target)
    original = feeds(deployed, deployed.directory / "cluster")
    assert len(original) > RECORDS
    rights = deployed.waltz("access", "show", "--dir", deployed.cluster)
    assert "monitor" in rights
    deployed.waltz("down", "--dir", deployed.cluster)
    deployed.waltz("restore", target, "--into", str(again), "--name", "again")
    deployed.waltz("up", "--dir", str(again))
    try:
        assert deployed.waltz("access", "show", "--dir", str(again)) == rights
        assert feeds(deployed, again) == original
        assert "no problem" in deployed.waltz("doctor", "--dir", str(again))
    finally:
        deployed.waltz("down", "--dir", str(again))
    for directory in (deployed.directory / "cluster", again):
        assert deployed.waltz("verify", str(directory)).count(": ok, ") == 3
    shutil.rmtree(again)
