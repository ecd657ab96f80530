"""Everything at once: every process of a cluster, of its Ray and of its ZooKeeper is killed, and ``waltz up`` begins.

What is felt is measured by clients that live on, of another process: from the beginning of ``waltz up``, a moment after
the kill, until each of them has committed something in each partition.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from waltz_bench.cluster import Waltz, pid_of
from waltz_bench.filling import fill
from waltz_bench.steady import PARTITIONS
from waltz_ray.client.client import WaltzClient
from waltz_ray.errors import ClusterNotFound
from waltz_ray.finding import cluster_file, ray_lookup

__all__ = ["fill_all", "restart_everything"]

_RECORD_BYTES = 16
_UP_S = 300.0
_GONE_S = 10.0


def fill_all(client: WaltzClient, records: int, progress: Callable[[str], None]) -> None:
    """So many small records in all partitions together."""
    for partition_id in range(PARTITIONS):
        progress(f"filling partition {partition_id} with {records // PARTITIONS} records")
        fill(client, partition_id, records // PARTITIONS, _RECORD_BYTES)


def restart_everything(waltz: Waltz) -> None:
    """Kill, and bring up; this process is joined to the new Ray afterwards. ClusterNotFound, quoting ``waltz up``."""
    processes = _processes(waltz)
    ray_lookup.leave()  # whose raylet dies: a driver of it would end, too
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, _GONE_S)
    command = [sys.executable, "-m", "waltz_ray", "up", "--dir", waltz.directory]
    up = subprocess.run(command, capture_output=True, text=True, timeout=_UP_S)
    if up.returncode != 0:
        raise ClusterNotFound(f"the cluster does not come up again: {up.stderr.strip()}")
    ray_lookup.join(_file(waltz).address)


def _processes(waltz: Waltz) -> Sequence[psutil.Process]:
    """Ray's head and all below it, and ZooKeeper."""
    known, keeper = _file(waltz), waltz.status().zookeeper_server
    head = known.ray.process() if known.ray is not None else None
    if head is None or keeper is None:
        raise ClusterNotFound(f"cluster {waltz.name!r} has no Ray or no ZooKeeper of its own that could be killed")
    return [head, *head.children(recursive=True), psutil.Process(pid_of("zookeeper", keeper))]


def _file(waltz: Waltz) -> cluster_file.ClusterFile:
    found = cluster_file.read(Path(waltz.directory))
    if found is None:
        raise ClusterNotFound(f"{waltz.directory} has no cluster.json")
    return found
