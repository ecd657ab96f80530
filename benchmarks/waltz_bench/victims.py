"""Processes of the benchmark's own cluster that are to be killed or stopped, by their names and pids."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from waltz_bench.cluster import Waltz, pid_of
from waltz_ray.errors import InvalidInput

__all__ = ["MANAGER", "ZOOKEEPER", "pids_of", "stopped"]

ZOOKEEPER, MANAGER = "zookeeper", "manager"


def pids_of(waltz: Waltz, names: Sequence[str]) -> list[int]:
    """Of ``server-<n>``, ``replica-<n>``, the manager, the embedded ZooKeeper. InvalidInput: it is somebody else's."""
    view = waltz.status()
    pids = waltz.pids()
    if view.zookeeper_server is not None:
        pids[ZOOKEEPER] = pid_of(ZOOKEEPER, view.zookeeper_server)
    elif ZOOKEEPER in names:
        raise InvalidInput(f"cluster {waltz.name!r} has a ZooKeeper that is not ours to stop")
    if view.manager.pid is not None:
        pids[MANAGER] = view.manager.pid
    return [pids[name] for name in names]


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """They get SIGSTOP, and SIGCONT at the end."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):  # somebody has ended it because it hung
                os.kill(pid, signal.SIGCONT)
