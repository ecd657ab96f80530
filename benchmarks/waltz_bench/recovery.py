"""``waltz bench recover``: how long a long log is away, and how fast a replica comes back.

Processes of the benchmark's own cluster are killed and stopped by their pids; Ray starts them again.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil  # type: ignore[import-untyped]

from waltz_bench.clients import READY_S, clients_of
from waltz_bench.cluster import Waltz, pid_of
from waltz_bench.filling import fill
from waltz_bench.measure import median, ratio
from waltz_bench.report import report
from waltz_ray.client.client import WaltzClient
from waltz_ray.config import StorageConfig
from waltz_ray.errors import ClusterNotFound, DataUnavailable, PartitionNotReady
from waltz_ray.protocol.records import RECORD_OVERHEAD_BYTES
from waltz_ray.readiness import missing
from waltz_ray.runtime.status import ActorState, ReplicaStatus

__all__ = ["RecoverOptions", "figure", "recover"]

_LONG, _BEHIND = 0, 1  # partitions: with all the records, with what the replica misses; the others are short
_REPLICA = 2
_BACK_S, _POLL_S = 120.0, 0.02
_DATA_BYTES = 100


@dataclass(frozen=True)
class RecoverOptions:
    """``records`` of 100 bytes are in the partition; a replica misses ``missed_mb`` of records of 1 KB."""

    runs: int = 5
    records: int = 1_000_000
    missed_mb: int = 200


def recover(
    waltz: Waltz, options: RecoverOptions, progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Server kills, then replica starts, then catch-up."""
    progress("starting an empty replica")
    empty = [_restart_replica(waltz)]
    with clients_of(waltz, 1, waltz.partitions) as (client,):
        progress(f"filling a partition with {options.records} records")
        begin = perf_counter()
        fill(client, _LONG, options.records, _DATA_BYTES)
        filled_s = perf_counter() - begin
        pauses: list[tuple[float, float]] = []
        full: list[tuple[float, int]] = []
        rates: list[float] = []
        for run in range(options.runs):
            progress(f"run {run + 1} of {options.runs}: killing a server")
            pauses.append(_kill_server(waltz, client))
            progress(f"run {run + 1} of {options.runs}: killing a replica")
            full.append(_restart_replica(waltz))
            progress(f"run {run + 1} of {options.runs}: a replica misses {options.missed_mb} MB")
            rates.append(_catch_up(waltz, client, options.missed_mb))
    read = [read_bytes - empty[0][1] for _, read_bytes in full]
    figures = [
        figure(f"server killed until an append to {options.records} records commits", "s", [a for a, _ in pauses]),
        figure("server killed until an append to an almost empty partition commits", "s", [b for _, b in pauses]),
        figure("replica killed until it serves again", "s", [seconds for seconds, _ in full]),
        figure("the same with empty partitions", "s", [empty[0][0]]),
        figure("read at a replica's start beyond what an empty one reads", "MB", [each / 1e6 for each in read]),
        figure("a replica catches up", "MB/s", rates),
        figure("filling the partition", "records/s", [options.records / filled_s]),
    ]
    return report("recover", [], _ratios(pauses, read, options.records), Path(waltz.directory), figures=figures)


def figure(name: str, unit: str, values: list[float]) -> dict[str, Any]:
    """One line: the median of the values, and their range."""
    return {
        "name": name,
        "unit": unit,
        "runs": len(values),
        "value": round(median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def _ratios(pauses: list[tuple[float, float]], read: list[int], records: int) -> dict[str, dict[str, Any]]:
    """A start may read what has no flushed index yet, and the journals; nothing that grows with the log."""
    config = StorageConfig()
    unflushed = 2 * config.index_flush_interval * (_DATA_BYTES + RECORD_OVERHEAD_BYTES)
    allowed = unflushed + 2 * int(getattr(config, "journal_bytes", 0)) + 1_000_000
    return {
        "pause of the long partition by that of the short one": ratio(median([a / b for a, b in pauses])),
        "read at a replica's start by what it may read": ratio(median(read) / allowed, 1.0, smaller_is_better=True),
        "read at a replica's start by the size of the log": ratio(
            median(read) / (records * (_DATA_BYTES + RECORD_OVERHEAD_BYTES)), smaller_is_better=True
        ),
    }


def _kill_server(waltz: Waltz, client: WaltzClient) -> tuple[float, float]:
    """Seconds until an append that was made right after the kill commits: long partition, a short one beside it."""
    owners = {each.partition: each.server for each in waltz.status().partitions if each.server is not None}
    server = owners[_LONG]
    short = next(partition for partition in owners if partition > _BEHIND and owners[partition] == server)
    pid = waltz.pids()[f"server-{server}"]
    for partition in (_LONG, short):
        client.append(partition, b"before").result(READY_S)
    ended: dict[int, float] = {}
    os.kill(pid, signal.SIGKILL)
    begin = perf_counter()
    futures = []
    for partition in (_LONG, short):
        future = client.append(partition, b"after")
        future.add_done_callback(partial(_note, ended, partition))
        futures.append(future)
    for future in futures:
        future.result(_BACK_S)
    _wait(lambda: _server_is_back(waltz, server, pid), f"server {server} did not come back")
    return ended[_LONG] - begin, ended[short] - begin


def _note(ended: dict[int, float], partition: int, future: Future[int]) -> None:
    ended[partition] = perf_counter()


def _server_is_back(waltz: Waltz, server: int, old_pid: int) -> bool:
    """Alive again, and every partition open somewhere."""
    view = waltz.status()
    return view.servers[server].pid not in (None, old_pid) and not missing(view)


def _restart_replica(waltz: Waltz) -> tuple[float, int]:
    """Kill the replica; seconds until it serves again, and how many bytes the new process has read by then."""
    old = _pid_of_replica(waltz)
    os.kill(old, signal.SIGKILL)
    begin = perf_counter()
    new = old

    def serves() -> bool:
        nonlocal new
        status = _replica_status(waltz)
        new = status.pid or old
        return status.serving and new != old

    _wait(serves, f"replica {_REPLICA} did not come back")
    seconds = perf_counter() - begin
    return seconds, int(psutil.Process(new).io_counters().read_chars)


def _replica_status(waltz: Waltz) -> ReplicaStatus:
    try:
        return waltz.replica(_REPLICA)
    except ClusterNotFound as error:  # it is not there just now
        return ReplicaStatus(state=ActorState.NO_ANSWER, reason=str(error))


def _pid_of_replica(waltz: Waltz) -> int:
    return pid_of(f"replica-{_REPLICA}", waltz.replica(_REPLICA))


def _catch_up(waltz: Waltz, client: WaltzClient, missed_mb: int) -> float:
    """MB a second at which a replica gets what was appended while it was stopped."""
    pid = _pid_of_replica(waltz)
    os.kill(pid, signal.SIGSTOP)
    try:
        last = fill(client, _BEHIND, missed_mb * 1000, 1000 - RECORD_OVERHEAD_BYTES)
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGCONT)
    begin = perf_counter()
    first: list[int] = []

    def has_all() -> bool:
        stored = _replica_status(waltz).partitions.get(_BEHIND)
        found = -1 if stored is None or stored.last_id is None else stored.last_id
        if not first and found >= 0:
            first.append(found)
        return found >= last

    _wait(has_all, f"replica {_REPLICA} did not catch up")
    if last - first[0] < missed_mb * 100:
        raise DataUnavailable(
            f"the replica missed only {last - first[0]} records while it was stopped: there is nothing to measure; "
            "let it miss more"
        )
    return (last - first[0]) * 1000 / 1e6 / (perf_counter() - begin)


def _wait(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _BACK_S
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise PartitionNotReady(f"{otherwise} within {_BACK_S:g} s; see the logs of its actor")
        pause.wait(_POLL_S)
