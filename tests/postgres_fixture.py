"""A real PostgreSQL for tests, one per test session: import ``postgres_server`` into a conftest or a test module.

Its programs come with the wheel ``pgserver`` (extra ``dev``); a PostgreSQL that is installed will do, too. It listens
on 127.0.0.1 and syncs nothing. Every test uses a database of its own.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from waltz_bench.nats_cluster import free_ports
from waltz_bench.postgres_cluster import postgres_binaries

from waltz_ray.errors import ConfigError

__all__ = ["postgres_server", "running_postgres"]

_START_S = 60.0
_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
max_connections = 50
shared_buffers = '32MB'
"""


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address without a database: "postgresql+psycopg://waltz@127.0.0.1:port"."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL: neither the wheel pgserver (extra dev) nor one that is installed")
    with running_postgres(binaries) as address:
        yield address


def _binaries() -> Path | None:
    wheel = importlib.util.find_spec("pgserver")
    if wheel is not None and wheel.origin is not None:
        found = Path(wheel.origin).parent / "pginstall/bin"
        if (found / "postgres").exists():
            return found
    try:
        return postgres_binaries()
    except ConfigError:
        return None


@contextmanager
def running_postgres(binaries: Path) -> Iterator[str]:
    """Started in a directory of its own, ended and removed at the end."""
    user = _user()
    with tempfile.TemporaryDirectory(prefix="waltz-postgres-") as place:
        if user:
            os.chown(place, user["user"], -1)
        data, log = Path(place) / "data", Path(place) / "log"
        initialise = [
            str(binaries / "initdb"),
            "-D",
            str(data),
            "-A",
            "trust",
            "-U",
            "waltz",
            "--no-sync",
            "-E",
            "UTF8",
        ]
        subprocess.run(initialise, check=True, capture_output=True, cwd="/", **user)
        with open(data / "postgresql.conf", "a") as settings:
            settings.write(_SETTINGS)
        [port] = free_ports(1)
        command = [str(binaries / "postgres"), "-D", str(data), "-p", str(port)]
        with open(log, "wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", **user)
        try:
            _wait_ready(port, process, log)
            yield f"postgresql+psycopg://waltz@127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)  # "fast": connections are ended
            process.wait(20)


def _wait_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="waltz", dbname="postgres").close()
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)  # polling interval, not synchronisation
        else:
            return


def _user() -> dict[str, Any]:
    """For ``subprocess``: PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam("nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
