"""``waltz bench smoke``: transactions with locks from several client processes while every kind of process is stopped
and started in turn; then the rules of the log, asked of the replicas' files; the cluster is started again, and all once
more.

One line for each fault, with the pause that the other clients felt: the longest time without a commit for some client
in some partition. What the clients were told, and fed, is in files beside the cluster's. Only processes of the
benchmark's own cluster are stopped and killed, by pid.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil  # type: ignore[import-untyped]

from waltz_bench.clients import READY_S
from waltz_bench.cluster import REPLICAS, Waltz, waltz_cluster
from waltz_bench.kills import wait_for_all
from waltz_bench.recovery import figure
from waltz_bench.report import report
from waltz_bench.smoke_checks import RuleBroken, check_all, gather
from waltz_bench.smoke_client import ClientPlan
from waltz_bench.smoke_clients import SmokeClients
from waltz_bench.smoke_faults import FAULTS, chosen_faults, strike
from waltz_bench.smoke_files import note_proposed
from waltz_bench.smoke_rosters import RosterWatch
from waltz_ray.config import ServerConfig
from waltz_ray.coordination.embedded import EmbeddedZooKeeper
from waltz_ray.errors import DataUnavailable
from waltz_ray.runtime.status import known_marks

__all__ = ["RuleBroken", "SmokeOptions", "check_files", "chosen_faults", "smoke"]

_PARTITIONS = 4
_MOST_A_SECOND = 6_000.0
_TURN_S = 65.0  # that all faults take
_HISTORIES, _CLUSTER = "histories", "waltz"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class SmokeOptions:
    """``transactions`` in the log at the end, half of them in each round, at ``rate`` a second (0: as many as make them
    about so many in one turn through all faults, 6,000 at the most); each round goes through ``faults`` (names in
    ``FAULTS``; none: all) at least once, with ``quiet_s`` between two."""

    transactions: int = 1_000_000
    clients: int = 4
    rate: float = 0.0
    outstanding: int = 256
    locks: int = 500
    size_bytes: int = 120
    checkpoint: int = 3_000
    quiet_s: float = 1.0
    faults: tuple[str, ...] = ()
    lasting: float = 1.0
    """How long each fault lasts, by what is usual."""

    rounds: int = 2


@dataclass
class _Found:
    """Over all rounds."""

    felt_s: dict[str, list[float]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    committed: int = 0
    under_load_s: float = 0.0
    checked: list[str] = field(default_factory=list)
    checking_s: list[float] = field(default_factory=list)


def smoke(
    directory: Path, options: SmokeOptions, progress: Tell = lambda text: None, tell: Tell = lambda text: None
) -> dict[str, Any]:
    """In ``directory``. RuleBroken, and everything is still there."""
    (directory / _HISTORIES).mkdir()
    return _Smoke(directory, options, progress, tell).run()


def check_files(directory: Path, clients: int) -> list[str]:
    """The rules, of what a smoke has left in ``directory``; no process may be using it. RuleBroken."""
    replicas = [directory / _CLUSTER / f"replica-{n}" for n in range(REPLICAS)]
    return check_all(gather(replicas, directory / _HISTORIES, _PARTITIONS, clients))


class _Smoke:
    """``progress``: what is being done; ``tell``: a line for each fault."""

    def __init__(self, directory: Path, options: SmokeOptions, progress: Tell, tell: Tell) -> None:
        self._directory, self._options, self._progress, self._tell = directory, options, progress, tell
        self._names = chosen_faults(options.faults)
        self._lives = itertools.count(1)
        self._struck = 0
        self._found = _Found()

    def run(self) -> dict[str, Any]:
        """All rounds."""
        server = ServerConfig(checkpoint_interval=self._options.checkpoint)
        for number in range(1, self._options.rounds + 1):
            with waltz_cluster(self._directory, "", self._progress, _PARTITIONS, server) as waltz:
                self._round(waltz, number)
            self._look_once_more(waltz.name)
            self._check(number)
        return _report(self._found, self._directory)

    def _look_once_more(self, cluster: str) -> None:
        """At the records, when nobody can write them any more: a checkpoint that has to wait for ZooKeeper after a kill
        of it opens its session later than the last look."""
        server = EmbeddedZooKeeper(self._directory / _CLUSTER / "zookeeper")
        try:
            with RosterWatch(server.start(60.0), cluster, _PARTITIONS, self._directory / _HISTORIES) as watch:
                watch.look()
        finally:
            server.stop()

    def _check(self, number: int) -> None:
        found = self._found
        self._progress("reading the replicas' files")
        begin_s = perf_counter()
        try:
            found.checked = check_files(self._directory, self._options.clients)
        except RuleBroken as broken:
            raise RuleBroken(broken.rule, f"{broken.what}; everything is left in {self._directory}") from broken
        found.checking_s.append(perf_counter() - begin_s)
        self._tell(
            f"round {number}: stopped; {found.committed} transactions, {REPLICAS} replicas alike; "
            f"{', '.join(found.checked)}: ok ({found.checking_s[-1]:.1f} s)"
        )

    def _round(self, waltz: Waltz, number: int) -> None:
        found, wanted = self._found, self._options.transactions * number // self._options.rounds
        histories = self._directory / _HISTORIES
        with RosterWatch(waltz.zookeeper, waltz.name, _PARTITIONS, histories) as watch:
            clients = SmokeClients(self._plan(waltz), self._options.clients, self._lives)
            begin_s = perf_counter()
            for turn in itertools.count():
                if turn >= len(self._names) and found.committed >= wanted:
                    break
                self._fault(waltz, clients, f"round {number}, fault {turn + 1}", self._names[turn % len(self._names)])
            self._progress("waiting for all fates")
            note_proposed(histories, clients.stop())
            found.under_load_s += perf_counter() - begin_s
            wait_for_all(waltz)
            marks = _marks(waltz)
            found.errors += clients.end(marks)
            found.committed = sum(mark + 1 for mark in marks)
            watch.look()

    def _plan(self, waltz: Waltz) -> ClientPlan:
        options = self._options
        usual = min(_MOST_A_SECOND, max(100.0, options.transactions / options.rounds / _TURN_S))
        sizes = options.rate or usual, options.outstanding, options.locks, options.size_bytes
        return ClientPlan(waltz.name, str(self._directory / _HISTORIES), _PARTITIONS, 0, 0, *sizes)

    def _fault(self, waltz: Waltz, clients: SmokeClients, where: str, name: str) -> None:
        found = self._found
        wait_for_all(waltz)
        until_s = perf_counter() + self._options.quiet_s
        while perf_counter() < until_s:
            clients.wait_for_commits()
        clients.felt_s()
        victims, client = strike(FAULTS[name], waltz, clients, self._struck, self._options.lasting)
        self._struck += 1
        clients.wait_for_commits()
        felt_s = clients.felt_s(but=client)
        wait_for_all(waltz)
        found.committed = sum(mark + 1 for mark in _marks(waltz))
        found.felt_s.setdefault(name, []).append(felt_s)
        line = f"{where}: {name} ({', '.join(victims)}): felt {felt_s:.2f} s; {found.committed} committed"
        found.lines.append(line)
        self._tell(f"{line}; load {os.getloadavg()[0]:.1f}")


def _marks(waltz: Waltz) -> list[int]:
    """The high-water mark of each partition, as its server says. DataUnavailable if one has none for long."""
    until_s = perf_counter() + READY_S
    while True:
        marks = known_marks(waltz.status().servers.values())
        if all(p in marks for p in range(_PARTITIONS)):
            return [marks[p] for p in range(_PARTITIONS)]
        if perf_counter() > until_s:
            raise DataUnavailable(f"partitions have no server for {READY_S:g} s: all but {sorted(marks)}")
        wait_for_all(waltz)


def _report(found: _Found, directory: Path) -> dict[str, Any]:
    figures = [
        *(figure(name, "s felt", values) for name, values in found.felt_s.items()),
        figure("transactions in the log", "transactions", [found.committed]),
        figure("rate, faults included", "transactions/s", [found.committed / found.under_load_s]),
        figure("under load", "s", [found.under_load_s]),
        figure("reading the files and asking the rules", "s", found.checking_s),
        figure("errors of clients", "errors", [len(found.errors)]),
        figure("memory of this process at the end", "MB", [psutil.Process().memory_info().rss / 1e6]),
    ]
    more = {"figures": figures, "faults": found.lines, "rules": found.checked, "failures": found.errors[:10]}
    return report("smoke", [], {}, directory, **more)
