"""A Ray whose control service (GCS) has a Redis: the head alone, a node with the disks, each a process of its own.

They are started as deploy/compose.yaml starts them (``ray start --block``), only that all of it is on 127.0.0.1.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.cluster.harness import wait_until
from waltz_ray.actors.local_ray import LOOPBACK_ONLY
from waltz_ray.finding.ray_lookup import reachable

__all__ = ["HeadAndNode", "head_and_node", "needs_redis", "redis_server"]

needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="there is no redis-server here")

_STARTED = b"Ray runtime started"
_START_S = 60.0
# Where a node has a loopback address ``ray start`` takes the machine's outside one instead, or takes no node at all.
_NODE = """
import sys
import ray._private.services as services
services.resolve_ip_for_localhost = lambda host: host
from ray.scripts.scripts import main
sys.exit(main())
"""


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def redis_server(directory: Path) -> Iterator[str]:
    """Its address; what it knows ends with the block."""
    (port,) = _free_ports(1)
    directory.mkdir()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(directory)]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(["redis-server", *options], stdout=log, stderr=log)
    try:
        # A head whose Redis does not answer tries for a minute, and then ends.
        wait_until(lambda: _pong(port), f"Redis answers at port {port}", 30)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _pong(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(100) == b"+PONG\r\n"
    except OSError:
        return False


class _Member:
    """One ``ray start --block``, in a session of its own."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        self.pid = self._process.pid

    def wait_until_started(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while _STARTED not in self._log.read_bytes():
            assert self._process.poll() is None, f"ray start ended: {self._log.read_text()[-2000:]}"
            assert time.monotonic() < deadline_s, f"ray start takes too long: {self._log.read_text()[-2000:]}"
            time.sleep(0.05)  # polling interval, not synchronisation

    def carries(self, pid: int) -> bool:
        """Whether the process was started by this node."""
        return any(parent.pid == self.pid for parent in psutil.Process(pid).parents())

    def kill_gcs(self) -> None:
        """The control service alone; ``--block`` then ends the head, as it does when any part of it has ended."""
        (gcs,) = (each for each in psutil.Process(self.pid).children() if each.name() == "gcs_server")
        gcs.kill()
        self._process.wait(30)
        self.kill()

    def kill(self) -> None:
        """All of it at once, and what it has left behind in its session."""
        self._process.kill()
        self._process.wait(30)
        left = self._session()
        for each in left:
            each.kill()
        psutil.wait_procs(left, timeout=30)

    def _session(self) -> list[psutil.Process]:
        found = []
        for each in psutil.process_iter():
            try:
                if os.getsid(each.pid) == self.pid and each.pid != self.pid:
                    found.append(each)
            except (psutil.Error, OSError):  # it has ended
                continue
        return found


class HeadAndNode:
    """``address``: of the head, as Ray takes it."""

    def __init__(self, directory: Path, redis: str) -> None:
        self._directory, self._redis, self._starts = directory, redis, 0
        self._ports = _free_ports(6)
        self.address = reachable(f"127.0.0.1:{self._ports[0]}")
        self.head: _Member | None = None
        self.node: _Member | None = None

    def start_head(self) -> None:
        """Always at the same address, with no actors of ours on it; return when it serves."""
        port, client, dashboard, agent = self._ports[:4]
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}", "--num-cpus=0"),
            *("--labels=waltz-actors=none", f"--ray-client-server-port={client}", f"--dashboard-port={dashboard}"),
            *("--include-dashboard=false", "--dashboard-host=127.0.0.1", f"--dashboard-agent-listen-port={agent}"),
            *(f"--temp-dir={self._directory / 'ray'}", *_COMMON),
        ]
        redis = {"RAY_REDIS_ADDRESS": self._redis, "RAY_external_storage_namespace": "waltz", LOOPBACK_ONLY: "0"}
        self._starts += 1
        self.head = _Member(command, self._environment() | redis, self._directory / f"head-{self._starts}.log")
        self.head.wait_until_started()

    def start_node(self, resources: str) -> None:
        command = [
            *(sys.executable, "-c", _NODE, "start", f"--address={self.address}", "--num-cpus=1"),
            *(f"--resources={resources}", f"--dashboard-agent-listen-port={_free_ports(1)[0]}", *_COMMON),
        ]
        patient = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
        self.node = _Member(command, self._environment() | patient, self._directory / "node.log")
        self.node.wait_until_started()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A process of this Ray's, as an operator starts it."""
        environment = self._environment() | {"RAY_ADDRESS": self.address}
        return subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    def _environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "WALTZ_"))}
        return own | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "disabled",
            "RAY_worker_niceness": "0",
            "AUTOSCALER_METRIC_PORT": str(self._ports[4]),
            "DASHBOARD_METRIC_PORT": str(self._ports[5]),
        }

    def close(self) -> None:
        for each in (self.node, self.head):
            if each is not None:
                each.kill()


_COMMON = [
    *("--block", "--node-ip-address=127.0.0.1", "--object-store-memory=80000000", "--disable-usage-stats"),
    "--log-style=record",
]


@contextmanager
def head_and_node(directory: Path, resources: str) -> Iterator[HeadAndNode]:
    """``resources``: what the node offers, as JSON. Nothing of it is left after the block."""
    with redis_server(directory / "redis") as redis:
        running = HeadAndNode(directory, redis)
        try:
            running.start_head()
            running.start_node(resources)
            yield running
        finally:
            running.close()
