"""``waltz bench partitions``: what a thousand partitions cost that nobody uses.

A cluster with one partition grows by a space with all the others, loses the server that has half of them, and is
started again. Memory is what a process has for itself (USS), after as long as everything needs to have been told once.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from waltz_bench.cluster import REPLICAS, SERVERS, Waltz, waltz_cluster
from waltz_bench.measure import ratio
from waltz_bench.recovery import figure
from waltz_bench.report import report
from waltz_ray.bring_up import bring_up
from waltz_ray.config import ClusterConfig
from waltz_ray.errors import PartitionNotReady
from waltz_ray.readiness import missing
from waltz_ray.runtime.status import Readiness
from waltz_ray.spaces import Spaces
from waltz_ray.take_down import take_down_in

__all__ = ["idle_partitions", "targets"]

START_S, FAILOVER_S, KB_EACH = 60.0, 5.0, 150.0
"""Targets, on two cores."""

_REST_S = 12.0  # gauges are set every five seconds
_PATIENCE_S = 180.0
_READY = Readiness.READY
Progress = Callable[[str], None]


def idle_partitions(place: Path, count: int, progress: Progress = lambda text: None) -> dict[str, Any]:
    """All figures, of one run."""
    with waltz_cluster(place, "", progress, 1) as waltz:
        time.sleep(_REST_S)
        before, written = _memory(waltz), _writes(waltz)
        progress(f"growing to {count} partitions")
        begin = time.monotonic()
        with Spaces(waltz.name, directory=waltz.directory) as spaces:
            spaces.create("idle", count - 1, timeout=_PATIENCE_S)
        grown_s = time.monotonic() - begin
        written_growing = _writes(waltz) - written
        progress("resting")
        time.sleep(_REST_S)
        each = {name: (kb - before[name]) / (count - 1) for name, kb in _memory(waltz).items()}
        written = _writes(waltz)
        failover_s, back_s, owned = _lose_a_server(waltz, count, progress)
        written_failing = _writes(waltz) - written
        start_s = _start_again(waltz, progress)
        rows = [
            figure("partitions", "", [float(count)]),
            figure("start of the whole cluster", "s", [start_s]),
            figure("growth, until all are open", "s", [grown_s]),
            figure("failover of the server that had most", "s", [failover_s]),
            figure("until that server has its share again", "s", [back_s]),
            figure("partitions that server had", "", [float(owned)]),
            figure("ZooKeeper writes of the growth", "", [float(written_growing)]),
            figure("ZooKeeper writes of the failover", "", [float(written_failing)]),
            *(figure(f"memory for each partition, {name}", "KB", [kb]) for name, kb in each.items()),
        ]
        ratios = targets(start_s, failover_s, sum(each.values()))
        return report("partitions", [], ratios, Path(waltz.directory), figures=rows)


def targets(start_s: float, failover_s: float, kb_each: float) -> dict[str, dict[str, Any]]:
    """What was measured by what it should be at most."""
    return {
        "start by its target": ratio(start_s / START_S, goal=1.0, smaller_is_better=True),
        "failover by its target": ratio(failover_s / FAILOVER_S, goal=1.0, smaller_is_better=True),
        "memory for each partition by its target": ratio(kb_each / KB_EACH, goal=1.0, smaller_is_better=True),
    }


def _memory(waltz: Waltz) -> dict[str, float]:
    """KB of each process of the cluster's own."""
    view = waltz.status()
    assert view.zookeeper_server is not None, "a cluster of the benchmark's own has an embedded one"
    pids = {"manager": view.manager.pid, **waltz.pids(), "zookeeper": view.zookeeper_server.pid}
    return {name: psutil.Process(pid).memory_full_info().uss / 1024 for name, pid in pids.items()}


def _writes(waltz: Waltz) -> int:
    """ZooKeeper's transactions so far, as it numbers them."""
    host, _, port = waltz.zookeeper.partition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(b"srvr")
        text = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    (line,) = (line for line in text.splitlines() if line.startswith("Zxid:"))
    return int(line.split()[1], 16)


def _lose_a_server(waltz: Waltz, count: int, progress: Progress) -> tuple[float, float, int]:
    """(seconds from the kill until each partition has been open again, and until the server is back and all that was
    moved back to it is open, too; how many it had)."""
    servers = waltz.status().servers
    victim = max(servers, key=lambda server_id: len(servers[server_id].partitions))
    owned, pid = set(servers[victim].partitions), servers[victim].pid
    assert pid is not None
    progress(f"killing the server of {len(owned)} partitions")
    os.kill(pid, signal.SIGKILL)
    begin, over_s, again = time.monotonic(), 0.0, set[int]()
    while time.monotonic() < begin + _PATIENCE_S:
        alive = {number: each for number, each in waltz.status().servers.items() if each.pid != pid}
        ready = {p for each in alive.values() for p, served in each.partitions.items() if served.state is _READY}
        again |= ready
        if not over_s and len(again) == count:
            over_s = time.monotonic() - begin
        if len(ready) == count and victim in alive and alive[victim].partitions:
            return over_s, time.monotonic() - begin, len(owned)
        time.sleep(0.05)
    left = count - len(again)
    raise PartitionNotReady(f"{left} partitions were not open {_PATIENCE_S:g} s after a server was killed")


def _start_again(waltz: Waltz, progress: Progress) -> float:
    """Seconds of ``bring_up`` where nothing runs, Ray and ZooKeeper counted."""
    take_down_in(Path(waltz.directory), progress)
    begin = time.monotonic()
    config = ClusterConfig(waltz.name, waltz.directory, 1, REPLICAS, SERVERS)
    bring_up(config, progress=progress, deadline_s=_PATIENCE_S)
    while waiting := missing(waltz.status()):
        if time.monotonic() > begin + _PATIENCE_S:
            raise PartitionNotReady(f"not up after {_PATIENCE_S:g} s: {waiting[0]}")
        time.sleep(0.05)
    return time.monotonic() - begin
