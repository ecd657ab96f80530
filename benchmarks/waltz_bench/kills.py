"""``waltz bench kills``: appends without end while processes are killed, one every so often.

What is looked at: the longest pause in the commits of any partition after each kill, what replicas refused and why,
how many sessions were taken, whether the memory of what lives on stays flat, and whether everything that was
acknowledged is in the log once, with its own data. Only processes of the benchmark's own cluster are killed, by pid.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil  # type: ignore[import-untyped]

from waltz_bench.clients import READY_S, clients_of
from waltz_bench.cluster import Waltz
from waltz_bench.measure import ratio
from waltz_bench.recovery import figure
from waltz_bench.report import report
from waltz_ray.client.client import WaltzClient
from waltz_ray.errors import ClusterNotFound, DataUnavailable
from waltz_ray.protocol.messages.replica import RefusalCode
from waltz_ray.readiness import missing
from waltz_ray.runtime.status import ClusterStatus, ServerStatus

__all__ = ["KillsOptions", "kills", "wait_for_all"]

_PARTITIONS = 4
_BACK_S = 60.0
_SAMPLE_S = 1.0
_KILLED = ("replica-0", "replica-1", "server-0", "replica-2")
"""In turn. server-1 lives on: its memory is the one to look at."""


@dataclass(frozen=True)
class KillsOptions:
    """``outstanding`` appends of ``size_bytes`` in each of four partitions; ``pause_gate_s`` for a replica's kill."""

    minutes: float = 20.0
    kill_every_s: float = 20.0
    outstanding: int = 16
    size_bytes: int = 200
    pause_gate_s: float = 0.3


class _Load:
    """Keeps appends under way and remembers what was acknowledged, as a sum per partition."""

    def __init__(self, client: WaltzClient, options: KillsOptions) -> None:
        self._client, self._size = client, options.size_bytes
        self._lock = threading.Lock()
        self._number = 0
        self._stopping = False
        self._open = 0
        self._drained = threading.Condition(self._lock)
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(_PARTITIONS)]
        self.failures: list[str] = []
        self.doubled = 0
        self.last = [perf_counter()] * _PARTITIONS
        self.longest = [0.0] * _PARTITIONS

    def begin(self, outstanding: int) -> None:
        for _ in range(outstanding):
            for partition_id in range(_PARTITIONS):
                self._append(partition_id)

    def _append(self, partition_id: int) -> None:
        with self._lock:
            if self._stopping:
                return
            self._number += 1
            self._open += 1
            data = (b"%d:%d:" % (partition_id, self._number)).ljust(self._size, b".")
        self._client.append(partition_id, data).add_done_callback(partial(self._done, partition_id, data))

    def _done(self, partition_id: int, data: bytes, future: Future[int]) -> None:
        now, error = perf_counter(), future.exception()
        with self._lock:
            if error is not None:
                self.failures.append(f"{type(error).__name__}: {error}")
            else:
                known = self.acknowledged[partition_id].setdefault(future.result(), _digest(data))
                self.doubled += known != _digest(data)
            self.longest[partition_id] = max(self.longest[partition_id], now - self.last[partition_id])
            self.last[partition_id] = now
            self._open -= 1
            self._drained.notify_all()
        self._append(partition_id)

    def pause_s(self) -> float:
        """The longest time without a commit of some partition since this was asked last."""
        now = perf_counter()
        with self._lock:
            running = [now - last for last in self.last]
            longest = max([*self.longest, *running])
            self.longest = [0.0] * _PARTITIONS
            return longest

    def end(self) -> None:
        """No further appends; waits for those under way."""
        with self._lock:
            self._stopping = True
            if not self._drained.wait_for(lambda: not self._open, READY_S):
                raise DataUnavailable(f"{self._open} appends have no fate {READY_S:g} s after the last kill")


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


class _Watch:
    """What the processes say and use, once a second."""

    def __init__(self, waltz: Waltz) -> None:
        self._waltz = waltz
        self._stopping = threading.Event()
        self._counted: dict[tuple[str, int | None, int, RefusalCode], int] = {}
        self.refusals: Counter[RefusalCode] = Counter()
        self.rss: dict[tuple[str, int], list[tuple[float, int]]] = {}  # (name, pid) -> (seconds, bytes)
        self._begin = perf_counter()
        self._thread = threading.Thread(target=self._run, name="kills-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(_SAMPLE_S):
            try:
                self.look()
            except ClusterNotFound:
                continue  # an actor is being started again: the next look finds it

    def look(self) -> None:
        for name, actor in self._waltz.actors().items():
            if actor.pid is not None:
                self._sample(name, actor.pid)
            if isinstance(actor, ServerStatus):
                self._count(name, actor)

    def _count(self, name: str, server: ServerStatus) -> None:
        for replica_id, link in server.links.items():
            for code, count in link.refusals.items():
                key = name, server.pid, replica_id, code
                self.refusals[code] += count - self._counted.get(key, 0)
                self._counted[key] = count

    def _sample(self, name: str, pid: int) -> None:
        try:
            rss = int(psutil.Process(pid).memory_info().rss)
        except psutil.NoSuchProcess:
            return
        if rss:  # else it has just been killed
            self.rss.setdefault((name, pid), []).append((perf_counter() - self._begin, rss))

    def end(self) -> None:
        """It asks nothing more: whoever asked after the cluster is down would be given a new Ray. Idempotent."""
        self._stopping.set()
        self._thread.join()

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


def kills(waltz: Waltz, options: KillsOptions, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Append, kill, look; then compare what was acknowledged with the log."""
    pauses: dict[str, list[float]] = {"replica": [], "server": []}
    with _Watch(waltz) as watch, clients_of(waltz, 1, _PARTITIONS) as (client,):
        load = _Load(client, options)
        sessions = _sessions(waltz)
        begin = perf_counter()
        load.begin(options.outstanding)
        quiet_s = _calm(load, min(options.kill_every_s, 60 * options.minutes))
        count = 0
        while perf_counter() - begin < 60 * options.minutes:
            victim = _KILLED[count % len(_KILLED)]
            count += 1
            progress(f"kill {count}: {victim}; {sum(map(len, load.acknowledged))} acknowledged")
            pid = waltz.pids()[victim]
            load.pause_s()
            os.kill(pid, signal.SIGKILL)
            pauses[victim.split("-")[0]].append(_calm(load, options.kill_every_s))
            wait_for_all(waltz)
        load.end()
        seconds = perf_counter() - begin
        taken = _sessions(waltz) - sessions
        watch.end()  # before the log is read: that is another kind of work
        progress("reading the log")
        wrong = _compare(client, load)
    acknowledged = sum(map(len, load.acknowledged))
    others = {code: count for code, count in watch.refusals.items() if code is not RefusalCode.NOT_CONTIGUOUS}
    figures = [
        figure("longest pause without a kill", "s", [quiet_s]),
        *[figure(f"pause after the kill of a {kind}", "s", each) for kind, each in pauses.items() if each],
        figure("acknowledged", "records", [acknowledged]),
        figure("rate", "records/s", [acknowledged / seconds]),
        figure("sessions taken", "sessions", [taken]),
        figure("refused: not contiguous", "requests", [watch.refusals[RefusalCode.NOT_CONTIGUOUS]]),
        *[figure(f"refused: {code.name}", "requests", [count]) for code, count in others.items()],
        figure("appends that failed", "appends", [len(load.failures)]),
        figure("acknowledged and not in the log, or twice", "records", [wrong + load.doubled]),
        *_memory(watch),
    ]
    worst = max(pauses["replica"], default=0.0)
    ratios = {
        "pause after the kill of a replica by the gate": ratio(
            worst / options.pause_gate_s, 1.0, smaller_is_better=True
        )
    }
    more = {"figures": figures, "failures": load.failures[:10], "pauses": pauses, "rss": _series(watch)}
    return report("kills", [], ratios, Path(waltz.directory), **more)


def _calm(load: _Load, seconds: float) -> float:
    """The longest pause of the next so many seconds."""
    load.pause_s()
    time.sleep(seconds)  # the measured interval itself
    return load.pause_s()


def wait_for_all(waltz: Waltz) -> None:
    """Until everything serves again: the next kill must leave a quorum."""
    deadline = time.monotonic() + _BACK_S
    trouble: Any = "no answer"
    while time.monotonic() < deadline:
        try:
            view = waltz.status()
            trouble = missing(view) or _not_members(view)
            if not trouble:
                return
        except ClusterNotFound as error:
            trouble = error
        threading.Event().wait(0.1)
    raise DataUnavailable(f"not everything serves {_BACK_S:g} s after a kill: {trouble}")


def _not_members(view: ClusterStatus) -> list[str]:
    """Partitions that have not all their replicas yet."""
    return [
        f"partition {partition_id} has members {list(served.members)}"
        for server in view.servers.values()
        for partition_id, served in server.partitions.items()
        if set(served.members) != served.replicas.keys()
    ]


def _sessions(waltz: Waltz) -> int:
    servers = waltz.status().servers.values()
    partitions = [each for server in servers for each in server.partitions.items()]
    return sum(served.session or 0 for number, served in partitions if number < _PARTITIONS)


def _compare(client: WaltzClient, load: _Load) -> int:
    """How many acknowledged records are not in the log as they were sent, or are there a second time."""
    wrong = 0
    for partition_id, acknowledged in enumerate(load.acknowledged):
        found: Counter[bytes] = Counter()
        next_id, end_id = 0, max(acknowledged, default=-1) + 1
        while next_id < end_id:
            for transaction in client.read(partition_id, next_id, min(end_id, next_id + 10_000)):
                digest = _digest(transaction.data)
                found[digest] += 1
                wrong += acknowledged.get(transaction.transaction_id, digest) != digest
                next_id = transaction.transaction_id + 1
        wrong += sum(found[digest] != 1 for digest in acknowledged.values())
    return wrong


def _memory(watch: _Watch) -> list[dict[str, Any]]:
    """Of the process of each name that lived longest: after a third of its life, and at the end."""
    figures = []
    for name in sorted({name for name, _ in watch.rss}):
        longest = max((samples for (own, _), samples in watch.rss.items() if own == name), key=len)
        early, late = longest[len(longest) // 3][1], longest[-1][1]
        life_s = longest[-1][0] - longest[0][0]
        figures.append(
            figure(f"memory of {name} after a third of its longest life ({life_s:.0f} s)", "MB", [early / 1e6])
        )
        figures.append(figure(f"memory of {name} at the end of it", "MB", [late / 1e6]))
    return figures


def _series(watch: _Watch) -> dict[str, list[tuple[int, int]]]:
    """(second, MB) about once a minute, of every life of every process."""
    return {
        f"{name} (pid {pid})": [(round(at), round(rss / 1e6)) for at, rss in samples[:: round(60 / _SAMPLE_S)]]
        for (name, pid), samples in watch.rss.items()
    }
