"""A Ray of our own on this machine: started for ``waltz up`` without ``--address``, ended by ``waltz down``.

It is ``ray start --head --block`` in a session of its own: a process that outlives the command that started it and
takes its children with it on SIGTERM. It listens on 127.0.0.1 only, on ports of its own choice, so that it stands
beside another cluster or somebody's own Ray. ``ray stop`` is never used: it ends every Ray of this machine.

How a driver joins it: ``client.ray_lookup.join``.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from waltz_ray.client.ray_lookup import LOOPBACK_ONLY
from waltz_ray.coordination.java import find_java
from waltz_ray.errors import RayNotRunning

__all__ = ["LocalRay", "start", "stop"]

_OBJECT_STORE_BYTES = 512 * 1024 * 1024  # the log does not use it; RayDP's exchange with Spark does
_START_DEADLINE_S = 60.0
_END_DEADLINE_S = 15.0
_POLL_S = 0.05

# Popen objects must be kept, and a dead child asked, or it stays a zombie of this process.
_children: dict[int, subprocess.Popen[bytes]] = {}


@atexit.register
def _ask_children() -> None:
    """Those that another process has ended would be reported as still running."""
    for child in _children.values():
        child.poll()


@dataclass(frozen=True)
class LocalRay:
    """A head we started: its address ("127.0.0.1:port"), its dashboard ("" if none), and the process to end it by.

    ``started_at`` (seconds, as psutil gives it) tells our process from a later one that got the same pid.
    """

    address: str
    dashboard: str
    pid: int
    started_at: float

    def process(self) -> psutil.Process | None:
        """The live head process, None if it has ended."""
        try:
            process = psutil.Process(self.pid)
            ours = abs(process.create_time() - self.started_at) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return process if ours else None


def start(
    directory: Path, launched: Callable[[LocalRay], None] = lambda head: None, dashboard: bool = True
) -> LocalRay:
    """Start a head and wait until it serves; its output goes to ``directory``/ray.log.

    ``launched`` is called as soon as there is a process, so that it can be written down whom to end. RayNotRunning,
    quoting the log, if it does not come up; then, or if this is interrupted, nothing of it is left running.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ports = _free_ports(6)
    port, client_port, dashboard_port, agent_port = ports[:4]
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={client_port}"),
        *("--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}"),
        *(f"--include-dashboard={str(dashboard).lower()}", f"--dashboard-agent-listen-port={agent_port}"),
        *(f"--object-store-memory={_OBJECT_STORE_BYTES}", "--disable-usage-stats", "--log-style=record"),
    ]
    log_path = directory / "ray.log"
    with log_path.open("ab") as log:
        begin = log.tell()
        head = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C at the command must not reach it
            env=_environment(ports[4], ports[5]),
            cwd=directory,
        )
    _children[head.pid] = head
    ray_of_ours = LocalRay(
        f"127.0.0.1:{port}",
        f"127.0.0.1:{dashboard_port}" if dashboard else "",
        head.pid,
        psutil.Process(head.pid).create_time(),
    )
    try:
        launched(ray_of_ours)
        _wait_until_started(head, log_path, begin)
    except BaseException:
        stop(ray_of_ours)
        raise
    return ray_of_ours


def _wait_until_started(head: subprocess.Popen[bytes], log_path: Path, begin: int) -> None:
    deadline = time.monotonic() + _START_DEADLINE_S
    while b"Ray runtime started" not in _read(log_path, begin):
        if head.poll() is not None:
            raise RayNotRunning(f"Ray ended while starting: {_last_line(log_path)} (all of it: {log_path})")
        if time.monotonic() > deadline:
            raise RayNotRunning(f"Ray did not start within {_START_DEADLINE_S:g} s: {_last_line(log_path)}")
        time.sleep(_POLL_S)


def stop(head: LocalRay) -> None:
    """End this Ray and everything it started, by pid, nothing else. Idempotent.

    The head ends its own processes on SIGTERM. One that was killed has left them behind, in its session.
    """
    family = _family(head)
    process = head.process()
    if process is not None:
        process.terminate()
        psutil.wait_procs([process], timeout=_END_DEADLINE_S)
        family += _family(head)  # what was started meanwhile
    _, left = psutil.wait_procs(family, timeout=2 if process else 0)
    for survivor in left:
        survivor.kill()  # psutil compares the creation time: never somebody who got the pid since
    psutil.wait_procs(left, timeout=_END_DEADLINE_S)
    child = _children.pop(head.pid, None)
    if child is not None:
        child.wait()


def _family(head: LocalRay) -> list[psutil.Process]:
    """The live processes of the head's session, and those below it that opened sessions of their own."""
    process = head.process()
    found = set(process.children(recursive=True)) if process else set()
    for other in psutil.process_iter():
        try:
            if os.getsid(other.pid) == head.pid and other.create_time() >= head.started_at - 1:
                found.add(other)
        except (psutil.Error, OSError):  # gone, or not ours to look at
            continue
    return list(found)


def _environment(autoscaler_metrics_port: int, dashboard_metrics_port: int) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    java_home = str(Path(find_java()).resolve().parent.parent)
    return environment | {
        LOOPBACK_ONLY: "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # 15 otherwise, and every append would wait behind whatever else runs
        # Detached actors never leave a draining node: waiting for that would only delay the end.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "AUTOSCALER_METRIC_PORT": str(autoscaler_metrics_port),
        "DASHBOARD_METRIC_PORT": str(dashboard_metrics_port),
        # Workers, and Spark's workers below them, must run in this virtual environment; RayDP takes `java` from PATH.
        "PATH": os.pathsep.join(
            [str(Path(sys.executable).parent), f"{java_home}/bin", environment.get("PATH", os.defpath)]
        ),
        "JAVA_HOME": java_home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on now; all different, because all are held until the last is known."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _read(path: Path, begin: int) -> bytes:
    with path.open("rb") as file:
        file.seek(begin)
        return file.read()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
