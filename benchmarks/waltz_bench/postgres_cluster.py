"""A real PostgreSQL primary with two streaming standbys, one of which must have flushed before a commit returns.

PostgreSQL refuses to run as root; then it runs as the user ``postgres`` or ``nobody``, whoever exists.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from waltz_bench.nats_cluster import HOST, free_ports
from waltz_bench.processes import DRIVER, Processes
from waltz_ray.errors import PartitionNotReady
from waltz_ray.testing.postgres import installed_places, postgres_user, programs_in, run_program

__all__ = ["Postgres", "postgres_cluster"]

_START_S, _STOP_S, _POLL_S = 60.0, 20.0, 0.1
_STANDBYS = ("standby_0", "standby_1")
_NEEDED = ("postgres", "initdb", "pg_basebackup")
_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = on
synchronous_commit = on
synchronous_standby_names = 'ANY 1 (standby_0, standby_1)'
max_connections = 200
max_wal_size = '16GB'
shared_buffers = '256MB'
"""


@dataclass(frozen=True)
class Postgres:
    """A running primary, listening on ``port``; ``pids`` of the three postmasters."""

    version: str
    pids: dict[str, int]
    port: int

    def processes(self) -> Processes:
        """To be measured, each postmaster with all it has started."""
        return _Families(self.pids)


class _Families(Processes):
    """Backends come with the connections, so who belongs to a postmaster is looked up every time."""

    def cpu_s(self) -> dict[str, float]:
        return super().cpu_s() | {name: sum(map(_cpu_s, family)) for name, family in self._families().items()}

    def rss_bytes(self) -> dict[str, int]:
        sizes = {name: sum(_rss_bytes(each) for each in family) for name, family in self._families().items()}
        return super().rss_bytes() | sizes

    def _families(self) -> dict[str, list[psutil.Process]]:
        postmasters = {name: psutil.Process(pid) for name, pid in self.pids.items() if name != DRIVER}
        return {name: [each, *each.children()] for name, each in postmasters.items()}


def _cpu_s(process: psutil.Process) -> float:
    """A backend may end while it is looked at; its share of a window is nothing then."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


@contextmanager
def postgres_cluster(directory: Path, progress: Callable[[str], None] = lambda text: None) -> Iterator[Postgres]:
    """Primary and standbys in ``directory``; ended at the end, whatever happens."""
    binaries, user = programs_in(installed_places(), _NEEDED, "install it, or compare nats only"), postgres_user()
    directory.mkdir(parents=True)
    if user:
        _let_in(directory, user["user"])
    ports = dict(zip(("primary", *_STANDBYS), free_ports(3), strict=True))
    running: dict[str, subprocess.Popen[bytes]] = {}
    progress("starting PostgreSQL")
    try:
        primary = directory / "primary"
        run_program([binaries / "initdb", "-D", primary, "-A", "trust", "-U", "bench", "--no-sync"], user)
        with open(primary / "postgresql.conf", "a") as settings:
            settings.write(_SETTINGS)
        running["primary"] = _start(binaries, primary, ports["primary"], user)
        _wait_listening(ports["primary"], running["primary"], directory)
        for name in _STANDBYS:
            source = f"host={HOST} port={ports['primary']} user=bench application_name={name}"
            run_program([binaries / "pg_basebackup", "-D", directory / name, "-d", source, "-R", "--no-sync"], user)
            running[name] = _start(binaries, directory / name, ports[name], user)
            _wait_listening(ports[name], running[name], directory)
        version = run_program([binaries / "postgres", "--version"], user).rpartition("(PostgreSQL) ")[2].split()[0]
        yield Postgres(version, {name: process.pid for name, process in running.items()}, ports["primary"])
    finally:
        progress("ending PostgreSQL")
        for process in reversed(running.values()):
            process.send_signal(signal.SIGINT)  # "fast": connections are ended
        for process in running.values():
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGQUIT)  # it ends its children, which SIGKILL would leave
                process.wait(_STOP_S)


def _let_in(directory: Path, user: int) -> None:
    os.chown(directory, user, -1)
    directory.chmod(0o700)
    directory.parent.chmod(0o711)  # the benchmark's own scratch directory


def _start(binaries: Path, place: Path, port: int, user: dict[str, Any]) -> subprocess.Popen[bytes]:
    with open(place.parent / f"{place.name}.log", "wb") as log:
        command = [str(binaries / "postgres"), "-D", str(place), "-p", str(port)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **user)


def _wait_listening(port: int, process: subprocess.Popen[bytes], directory: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            time.sleep(_POLL_S)
        else:
            return
    raise PartitionNotReady(f"PostgreSQL did not start; see the logs in {directory}")
