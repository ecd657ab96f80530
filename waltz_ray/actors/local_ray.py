"""A Ray of our own on this machine: started for ``waltz up`` without ``--address``, ended by ``waltz down``.

It is ``ray start --head --block`` in a session of its own: a process that outlives the command that started it and
takes its children with it on SIGTERM. It listens on 127.0.0.1 only, on ports of its own choice, with a temporary
directory of its own, so that it stands beside another cluster or somebody's own Ray: in the shared directory it would
become the machine's "current cluster", which everybody's ``ray.init()`` joins. ``ray stop`` is never used: it ends
every Ray of this machine.

How a driver joins it: ``finding.ray_lookup``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from waltz_ray.coordination.java import find_java
from waltz_ray.errors import InvalidInput, RayNotRunning
from waltz_ray.finding.cluster_file import LocalRay
from waltz_ray.finding.ray_lookup import reachable

__all__ = ["LOOPBACK_ONLY", "launch", "start", "stop", "wait_until_started"]

# Ray's switch for "this machine only". Without it a head turns the 127.0.0.1 that it is given into the outside address.
LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"

_OBJECT_STORE_BYTES = 512 * 1024 * 1024  # the log does not use it; RayDP's exchange with Spark does
_LONGEST_TEMPORARY = 107 - len("/session_2026-11-22_11-08-50_758631_4194304/sockets/dash_MetricsHead")  # of a socket
_LOG = "start.log"
_SHORT = "waltz-ray-"
_END_DEADLINE_S = 15.0
_POLL_S = 0.05

# Popen objects must be kept, and a dead child asked, or it stays a zombie of this process.
_children: dict[int, subprocess.Popen[bytes]] = {}


@atexit.register
def _ask_children() -> None:
    """Those that another process has ended would be reported as still running."""
    for child in _children.values():
        child.poll()


def start(directory: Path, dashboard: bool = True, deadline_s: float = 60.0) -> LocalRay:
    """Start a head and wait until it serves. RayNotRunning, quoting its log, if not; then nothing of it runs."""
    head = launch(directory, dashboard)
    try:
        wait_until_started(head, deadline_s)
    except BaseException:
        stop(head)
        raise
    return head


def launch(directory: Path, dashboard: bool = True) -> LocalRay:
    """Make the process of a head and return; its output goes to ``directory``/ray/start.log."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = _temporary(directory)
    ports = _free_ports(6)
    port, client_port, dashboard_port, agent_port = ports[:4]
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={client_port}"),
        *("--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}", f"--temp-dir={temporary}"),
        *(f"--include-dashboard={str(dashboard).lower()}", f"--dashboard-agent-listen-port={agent_port}"),
        *(f"--object-store-memory={_OBJECT_STORE_BYTES}", "--disable-usage-stats", "--log-style=record"),
    ]
    with (temporary / _LOG).open("wb") as log:
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
    return LocalRay(
        reachable(f"127.0.0.1:{port}"),
        f"127.0.0.1:{dashboard_port}" if dashboard else "",
        head.pid,
        psutil.Process(head.pid).create_time(),
        str(temporary),
    )


def wait_until_started(head: LocalRay, deadline_s: float) -> None:
    """Return when it serves. RayNotRunning, quoting the log, if it ended, or does not serve in time."""
    log = Path(head.temporary, _LOG).resolve()
    deadline = time.monotonic() + deadline_s
    while b"Ray runtime started" not in log.read_bytes():
        if head.process() is None:
            raise RayNotRunning(f"Ray ended while starting: {_last_line(log)} (all of it: {log})")
        if time.monotonic() > deadline:
            raise RayNotRunning(
                f"Ray did not start within {deadline_s:g} s: {_last_line(log)} (all of it: {log}); "
                "give it more time with --timeout"
            )
        time.sleep(_POLL_S)


def _temporary(directory: Path) -> Path:
    """``directory``/ray, new, for Ray's sockets and logs; those of the Ray before stay in ray.before.

    A UNIX socket has a short path, and Ray takes ASCII only: where that of ``directory`` is too long, or has other
    characters, Ray is given a link to it. InvalidInput if they are not of a Ray that we have started, but somebody's
    files.
    """
    inside, before = directory.resolve() / "ray", directory.resolve() / "ray.before"
    for path in (inside, before):
        if os.path.lexists(path) and not _was_started_here(path):
            raise InvalidInput(
                f"{path} is there, and no Ray was started in it by waltz: it would be removed; move it away, or give "
                "another directory"
            )
    if inside.exists():
        _remove(before)
        inside.rename(before)
    inside.mkdir(mode=0o755)
    if len(os.fsencode(inside)) <= _LONGEST_TEMPORARY and str(inside).isascii():
        return inside
    link = Path(tempfile.mkdtemp(prefix=_SHORT, dir="/tmp"), "ray")
    link.symlink_to(inside)
    return link


def _remove(directory: Path) -> None:
    """All of it, if it is there; last what says that it is of a Ray: else who is killed meanwhile leaves what nobody
    can tell from somebody's files. InvalidInput."""
    if not directory.exists():
        return
    try:
        for path in [*directory.iterdir()]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _LOG:
                path.unlink()
        shutil.rmtree(directory)
    except OSError as error:
        raise InvalidInput(f"{error.filename} cannot be removed: {error.strerror}; move {directory} away") from error


def stop(head: LocalRay) -> None:
    """End this Ray and everything it started, by pid, nothing else. Idempotent.

    The head ends its own processes on SIGTERM. One that was killed has left them behind, in its session. InvalidInput
    if it is another user's.
    """
    family = _family(head)
    process = head.process()
    if process is not None:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            pass
        except psutil.AccessDenied as error:
            raise InvalidInput(f"Ray (pid {head.pid}) is another user's: end it as that user") from error
        psutil.wait_procs([process], timeout=_END_DEADLINE_S)
        family += _family(head)  # what was started meanwhile
    _, left = psutil.wait_procs(family, timeout=2 if process else 0)
    for survivor in left:
        with suppress(psutil.NoSuchProcess):  # it has ended by itself
            survivor.kill()  # psutil compares the creation time: never somebody who got the pid since
    psutil.wait_procs(left, timeout=_END_DEADLINE_S)
    child = _children.pop(head.pid, None)
    if child is not None:
        child.wait()
    if Path(head.temporary).is_symlink():
        shutil.rmtree(Path(head.temporary).parent)


def _was_started_here(path: Path) -> bool:
    """By ``launch``: or it came no further than to make the directory."""
    return path.is_dir() and not path.is_symlink() and ((path / _LOG).is_file() or not any(path.iterdir()))


def _family(head: LocalRay) -> list[psutil.Process]:
    """The live processes of the head's session, and those below it that opened sessions of their own.

    A session has the number of its first process, and nobody gets that as long as one of them lives. Later on somebody
    may, as after a start of the machine: a session in which nothing looks like Ray's is his.
    """
    process = head.process()
    session = []
    for other in psutil.process_iter():
        try:
            if os.getsid(other.pid) == head.pid:
                session.append(other)
        except OSError:  # gone
            continue
    if process is None:
        return session if any(_looks_like_ours(each, head) for each in session) else []
    return list({*process.children(recursive=True), *session})


def _looks_like_ours(process: psutil.Process, head: LocalRay) -> bool:
    """It has our temporary directory in its command line, or works in ours, as who has overwritten that line does."""
    try:
        if not head.temporary:  # an earlier version has not written it down
            return LOOPBACK_ONLY in process.environ()
        own = os.path.dirname(os.path.realpath(head.temporary))
        return any(head.temporary in each for each in process.cmdline()) or process.cwd() == own
    except psutil.Error:  # gone, or not ours to look at
        return False


def _environment(autoscaler_metrics_port: int, dashboard_metrics_port: int) -> dict[str, str]:
    # Which cluster the shell that started it meant is nothing that the processes of this one should know; nor is that
    # a command is not to start a Ray by itself: jobs may.
    shell = ("RAY_ADDRESS", "WALTZ_DIR", "WALTZ_CLUSTER", "WALTZ_ZOOKEEPER", "RAY_ENABLE_AUTO_CONNECT")
    environment = {key: value for key, value in os.environ.items() if key not in shell}
    java_home = str(Path(find_java()).resolve().parent.parent)
    return environment | {
        LOOPBACK_ONLY: "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Where a plain ray.init() has ever left a token in ~/.ray, `ray start` would ask everybody for it, and
        # ray.init(address=...) does not send one unless it is told to: nobody could join.
        "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "disabled"),
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


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
