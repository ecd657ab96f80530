"""``waltz bench availability``: the pause that users feel when something dies, hangs, or is moved under load.

Four clients keep appends under way in every partition. One event after the other, and again; of each the longest time
without a commit for some client in some partition, as long as the event lasts and until everything is well again. The
first row is of no event at all: what the machine does by itself. Only processes of the benchmark's own cluster are
stopped and killed, by pid.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from waltz_bench.clients import READY_S, clients_of
from waltz_bench.cluster import REPLICAS, SERVERS, Waltz
from waltz_bench.kills import wait_for_all
from waltz_bench.measure import ratio
from waltz_bench.report import report
from waltz_bench.victims import ZOOKEEPER, pids_of, stopped
from waltz_ray.actors.supervision import MANAGER, ask
from waltz_ray.client.client import WaltzClient
from waltz_ray.errors import DataUnavailable, InvalidInput

__all__ = ["EVENTS", "PARTITIONS", "AvailabilityOptions", "availability", "chosen"]

PARTITIONS = 4
_ANSWER_S = 20.0
_ZOOKEEPER_HANGS_S = 20.0  # more than sessions last


@dataclass(frozen=True)
class AvailabilityOptions:
    """``tries`` of each event. Each client has ``outstanding`` appends of ``size_bytes`` in each of four partitions."""

    tries: int = 20
    clients: int = 4
    outstanding: int = 4
    size_bytes: int = 200
    events: tuple[str, ...] = ()
    """Names in ``EVENTS``; none: all."""


class _Appends:
    """Keeps a client's appends under way."""

    def __init__(self, client: WaltzClient, options: AvailabilityOptions) -> None:
        self.commits = [0] * PARTITIONS
        self.failures: list[str] = []
        self._client, self._data = client, b"." * options.size_bytes
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        self._stopping = False
        self._open = 0
        self._last = [perf_counter()] * PARTITIONS
        self._longest = 0.0
        for partition_id in range(PARTITIONS):
            for _ in range(options.outstanding):
                self._append(partition_id)

    def _append(self, partition_id: int) -> None:
        with self._lock:
            if self._stopping:
                return
            self._open += 1
        self._client.append(partition_id, self._data).add_done_callback(lambda done: self._done(partition_id, done))

    def _done(self, partition_id: int, future: Future[int]) -> None:
        now, error = perf_counter(), future.exception()
        with self._lock:
            if error is not None:
                self.failures.append(f"{type(error).__name__}: {error}")
            else:
                self.commits[partition_id] += 1
            self._longest = max(self._longest, now - self._last[partition_id])
            self._last[partition_id] = now
            self._open -= 1
            self._drained.notify_all()
        self._append(partition_id)

    def felt_s(self) -> float:
        """The longest time without a commit in some partition since this was asked last."""
        now = perf_counter()
        with self._lock:
            longest = max(self._longest, *(now - last for last in self._last))
            self._longest = 0.0
            return longest

    def end(self) -> None:
        """No further appends; waits for those under way."""
        with self._lock:
            self._stopping = True
            if not self._drained.wait_for(lambda: not self._open, READY_S):
                raise DataUnavailable(f"{self._open} appends have no fate {READY_S:g} s after the last event")


@dataclass(frozen=True)
class _Event:
    """``act`` is given the cluster and the number of the try, and returns when the event is over. ``p50_s``, ``max_s``:
    what may be felt of it, the median of the tries and at the most; None: no matter."""

    act: Callable[[Waltz, int], None]
    p50_s: float | None = None
    max_s: float | None = None


def _nothing(waltz: Waltz, number: int) -> None:
    time.sleep(2)  # the measured interval itself


Victims = Callable[[Waltz, int], Sequence[str]]
"""Names of the processes that the event is about."""


def _a_replica(waltz: Waltz, number: int) -> Sequence[str]:
    """Each in turn."""
    return [f"replica-{number % REPLICAS}"]


def _a_server(waltz: Waltz, number: int) -> Sequence[str]:
    """One that has partitions: who has just been started again may have none."""
    return [f"server-{waltz.status().partitions[number % PARTITIONS].server}"]


def _all_servers(waltz: Waltz, number: int) -> Sequence[str]:
    return [f"server-{server}" for server in range(SERVERS)]


def _zookeeper(waltz: Waltz, number: int) -> Sequence[str]:
    """The embedded one; its keeper ends one that hangs, and starts it again."""
    return [ZOOKEEPER]


def _kill(victims: Victims) -> Callable[[Waltz, int], None]:
    """SIGKILL."""

    def act(waltz: Waltz, number: int) -> None:
        for pid in pids_of(waltz, victims(waltz, number)):
            os.kill(pid, signal.SIGKILL)
        time.sleep(2)  # the measured interval itself

    return act


def _stop(seconds: float, victims: Victims) -> Callable[[Waltz, int], None]:
    """SIGSTOP of one, for so long."""

    def act(waltz: Waltz, number: int) -> None:
        (pid,) = pids_of(waltz, victims(waltz, number))
        with stopped(pid):
            time.sleep(seconds)  # how long it hangs

    return act


def _kill_a_replica_while_zookeeper_hangs(waltz: Waltz, number: int) -> None:
    replica, zookeeper = pids_of(waltz, [*_a_replica(waltz, number), *_zookeeper(waltz, number)])
    with stopped(zookeeper):
        time.sleep(2)  # it hangs before, and after
        os.kill(replica, signal.SIGKILL)
        time.sleep(_ZOOKEEPER_HANGS_S - 2)  # the measured interval itself


def _move(waltz: Waltz, number: int) -> None:
    """The servers change places: from the second try on each gets the partitions that the other one had."""
    halves = [list(range(0, PARTITIONS // 2)), list(range(PARTITIONS // 2, PARTITIONS))]
    for server, half in enumerate(halves if number % 2 else reversed(halves)):
        ask(waltz.name, MANAGER, "set_preferred", _ANSWER_S, server, half)
    time.sleep(2)  # the measured interval itself


EVENTS = {
    "nothing": _Event(_nothing),
    "SIGKILL of a replica": _Event(_kill(_a_replica), 0.15, 0.3),
    "SIGSTOP of a replica": _Event(_stop(4, _a_replica), None, 2.0),
    "SIGKILL of a server": _Event(_kill(_a_server), 0.5, 1.0),
    "SIGSTOP of a server": _Event(_stop(8, _a_server), None, 2.5),
    "SIGKILL of both servers": _Event(_kill(_all_servers), None, 4.0),
    "planned move": _Event(_move, None, 0.2),
    "SIGKILL of ZooKeeper": _Event(_kill(_zookeeper), None, 0.3),
    "SIGSTOP of ZooKeeper": _Event(_stop(_ZOOKEEPER_HANGS_S, _zookeeper), None, 0.3),
    "SIGKILL of a replica, ZooKeeper hangs": _Event(_kill_a_replica_while_zookeeper_hangs, None, 0.3),
}
"""By name, in the order in which they come."""


def chosen(events: Sequence[str]) -> tuple[str, ...]:
    """Those, in their order; none: all. InvalidInput."""
    strangers = sorted(set(events) - EVENTS.keys())
    if strangers:
        raise InvalidInput(f"there is no event {strangers[0]!r}; there are: {', '.join(EVENTS)}")
    return tuple(name for name in EVENTS if name in events or not events)


def availability(
    waltz: Waltz, options: AvailabilityOptions, progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Each event in turn, ``tries`` times."""
    names = chosen(options.events)
    felt: dict[str, list[float]] = {name: [] for name in names}
    loads: list[float] = []
    with clients_of(waltz, options.clients, PARTITIONS) as clients:
        appends = [_Appends(client, options) for client in clients]
        begin_s = perf_counter()
        for number, name in itertools.product(range(options.tries), names):
            _wait_for_servers(waltz)
            loads.append(os.getloadavg()[0])
            _felt_s(appends)
            EVENTS[name].act(waltz, number)
            _wait_for_commits(appends)
            felt[name].append(_felt_s(appends))
            progress(f"{number + 1}/{options.tries} {name}: {felt[name][-1]:.2f} s")
        seconds = perf_counter() - begin_s
        for each in appends:
            each.end()
    failures = [failure for each in appends for failure in each.failures]
    figures = [
        *(figure for name, values in felt.items() for figure in _figures(name, values)),
        _figure("committed", "appends/s", [sum(sum(each.commits) for each in appends) / seconds]),
        _figure("appends that failed", "appends", [len(failures)]),
        _figure("load average", "processes", loads),
    ]
    more = {"figures": figures, "felt_s": felt, "failures": failures[:10]}
    return report("availability", [], _ratios(felt), Path(waltz.directory), **more)


def _wait_for_servers(waltz: Waltz) -> None:
    """Until everything serves, and each server has a partition: who has just been started again gets some."""
    until_s = perf_counter() + READY_S
    wait_for_all(waltz)
    while len({each.server for each in waltz.status().partitions}) < SERVERS:
        if perf_counter() > until_s:
            raise DataUnavailable(f"a server has had no partition for {READY_S:g} s; see waltz status")
        time.sleep(0.1)
    wait_for_all(waltz)


def _felt_s(appends: Sequence[_Appends]) -> float:
    return max(each.felt_s() for each in appends)


def _wait_for_commits(appends: Sequence[_Appends]) -> None:
    """Until each client has committed something in each partition after now: what is felt is not over before."""
    before, until_s = [list(each.commits) for each in appends], perf_counter() + READY_S
    while any(
        now == then
        for each, counts in zip(appends, before, strict=True)
        for now, then in zip(each.commits, counts, strict=True)
    ):
        if perf_counter() > until_s:
            raise DataUnavailable(f"a client has committed nothing for {READY_S:g} s after an event; see waltz status")
        time.sleep(0.01)


def _figure(name: str, unit: str, values: Sequence[float]) -> dict[str, Any]:
    """One line: the median of the values, and their range."""
    shown = {"value": np.median(values), "min": min(values), "max": max(values)}
    return {"name": name, "unit": unit, "runs": len(values)} | {key: round(float(v), 3) for key, v in shown.items()}


def _figures(name: str, values: Sequence[float]) -> list[dict[str, Any]]:
    p99 = float(np.percentile(values, 99))
    return [_figure(name, "s felt", values), _figure(f"{name}, p99", "s felt", [p99])]


def _ratios(felt: dict[str, list[float]]) -> dict[str, Any]:
    """What was felt, against what may be."""
    bounds = [
        (f"{name}, {what}, s", value(felt[name]), bound)
        for name in felt
        for what, value, bound in (
            ("p50", lambda values: float(np.median(values)), EVENTS[name].p50_s),
            ("max", max, EVENTS[name].max_s),
        )
        if bound is not None
    ]
    return {name: ratio(value, bound, smaller_is_better=True) for name, value, bound in bounds}
