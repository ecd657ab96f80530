"""Other systems' processes: waited for at their start, ended by their own handles."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from waltz_bench.nats_cluster import HOST
from waltz_ray.errors import PartitionNotReady

__all__ = ["end_all", "wait_listening"]

_START_S, _POLL_S = 60.0, 0.05


def wait_listening(what: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until ``port`` takes connections. PartitionNotReady, naming the log, if the process ends or it takes too long."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            time.sleep(_POLL_S)
        else:
            return
    raise PartitionNotReady(f"{what} did not start; see {log}")


def end_all(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """SIGKILL: their directories are gone in a moment, and members of a cluster would wait for each other."""
    processes = list(processes)
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
