"""``waltz bench availability``: the pause that users feel when something dies, hangs, or is moved under load.

Four clients keep appends under way in every partition. One event after the other, and again; of each the longest time
without a commit for some client in some partition, as long as the event lasts and until everything is well again. The
first row is of no event at all: what the machine does by itself. What happens is in ``events.py``; everything at once
(``restarts.py``) and checkpoints (``checkpoints.py``) have a cluster of their own each.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from waltz_bench import events
from waltz_bench.checkpoints import INTERVAL, Commits, checkpoints
from waltz_bench.clients import READY_S, clients_of
from waltz_bench.cluster import REPLICAS, SERVERS, Waltz, waltz_cluster
from waltz_bench.events import Act
from waltz_bench.measure import ratio
from waltz_bench.report import markdown_figures, markdown_pauses, report
from waltz_bench.restarts import fill_all, restart_everything
from waltz_bench.steady import PARTITIONS, Note, SteadyAppends, felt_s, wait_for_commits
from waltz_ray.config import ServerConfig
from waltz_ray.errors import ClusterNotFound, DataUnavailable, InvalidInput
from waltz_ray.readiness import missing
from waltz_ray.runtime.status import ClusterStatus

__all__ = [
    "BETWEEN",
    "CHECKPOINT",
    "EVENTS",
    "EVERYTHING",
    "AvailabilityOptions",
    "FeltRow",
    "availability",
    "chosen",
    "rows_of",
    "write_availability",
]

EVERYTHING, CHECKPOINT, BETWEEN = "SIGKILL of everything, waltz up", "checkpoint session", "between two checkpoints"
Progress = Callable[[str], None]
_MAJORITY_S = 12.0  # longer than a replica may say nothing before its link is cut (``ServerConfig.replica_timeout_ms``)


@dataclass(frozen=True)
class AvailabilityOptions:
    """``tries`` of each event, ``long_tries`` at the most of those that take half a minute or more. Each client has
    ``outstanding`` appends of ``size_bytes`` in each of four partitions. ``zookeeper_s``: for how long ZooKeeper is
    away. ``records``: in the directory that is brought up again."""

    tries: int = 20
    clients: int = 4
    outstanding: int = 4
    size_bytes: int = 200
    events: tuple[str, ...] = ()
    """Names in ``EVENTS``; none: all."""
    long_tries: int = 5
    zookeeper_s: float = 60.0
    records: int = 10_000_000


@dataclass(frozen=True)
class _Event:
    """``act`` makes what is to happen; None: it is not about the cluster that all others are about. ``p50_s``,
    ``max_s``: what may be felt of it, the median of the tries and at the most; None: no matter. ``long``: it takes
    half a minute or more. ``spare``: the cluster has a replica more than a partition is on."""

    act: Callable[[AvailabilityOptions], Act] | None
    p50_s: float | None = None
    max_s: float | None = None
    long: bool = False
    spare: bool = False

    def tries(self, options: AvailabilityOptions) -> int:
        """How often."""
        return min(options.tries, options.long_tries) if self.long else options.tries


def _always(act: Act) -> Callable[[AvailabilityOptions], Act]:
    return lambda options: act


def _away(hung: bool, with_kill: bool) -> _Event:
    """ZooKeeper; what is felt is no more than of a replica's kill, and nothing without one."""

    def act(options: AvailabilityOptions) -> Act:
        return events.without_zookeeper(hung, with_kill, options.zookeeper_s)

    return _Event(act, None, 0.3, long=True)


EVENTS = {
    "nothing": _Event(_always(events.nothing)),
    "SIGKILL of a replica": _Event(_always(events.kill(events.a_replica)), 0.15, 0.3),
    "SIGSTOP of a replica": _Event(_always(events.stop(4, events.a_replica)), None, 2.0),
    "SIGSTOP of two replicas": _Event(_always(events.stop(_MAJORITY_S, events.a_majority)), None, _MAJORITY_S + 2.0),
    "SIGKILL of a server": _Event(_always(events.kill(events.a_server)), 0.5, 1.0),
    "SIGSTOP of a server": _Event(_always(events.stop(8, events.a_server)), None, 2.5),
    "SIGKILL of both servers": _Event(_always(events.kill(events.all_servers)), None, 4.0),
    "SIGKILL of a replica and a server": _Event(_always(events.kill(events.a_node)), 0.65, 1.3),
    "planned move": _Event(_always(events.move), None, 0.2),
    "drain of a server": _Event(_always(events.drain), None, 0.2),
    "drain of a replica": _Event(_always(events.drain_replica), None, 0.2, spare=True),
    "rolling restart": _Event(_always(events.rolling_restart), None, 0.2, long=True),
    "ZooKeeper dead": _away(hung=False, with_kill=False),
    "ZooKeeper dead, SIGKILL of a replica": _away(hung=False, with_kill=True),
    "ZooKeeper hung": _away(hung=True, with_kill=False),
    "ZooKeeper hung, SIGKILL of a replica": _away(hung=True, with_kill=True),
    CHECKPOINT: _Event(None, None, 0.02),
    EVERYTHING: _Event(None, None, 15.0, long=True),
}
"""By name, in the order in which they come."""


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Those, in their order; none: all. InvalidInput."""
    strangers = sorted(set(names) - EVENTS.keys())
    if strangers:
        raise InvalidInput(f"there is no event {strangers[0]!r}; there are: {', '.join(EVENTS)}")
    return tuple(name for name in EVENTS if name in names or not names)


@dataclass
class _Found:
    """What was felt of each event, and the load average (1 minute) when it began."""

    felt: dict[str, list[float]]
    loads: dict[str, list[float]]
    failures: list[str] = field(default_factory=list)
    commits: int = 0
    seconds: float = 0.0

    def note(self, name: str, seconds: Sequence[float], load: float) -> None:
        """Of one try, or of some under one load."""
        self.felt.setdefault(name, []).extend(seconds)
        self.loads.setdefault(name, []).extend([load] * len(seconds))


def availability(place: Path, options: AvailabilityOptions, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Each event ``tries`` times, in clusters below ``place``."""
    names = chosen(options.events)
    found = _Found({}, {})
    for spare in (False, True):
        here = [name for name in names if EVENTS[name].act is not None and EVENTS[name].spare == spare]
        if here:
            where, replicas = place / ("spare" if spare else ""), REPLICAS + spare
            made = waltz_cluster(where, "", progress, PARTITIONS, replicas=replicas)
            with made as waltz, _load(waltz, options, found) as appends:
                _in_turn(waltz, appends, here, options, found, progress)
    if CHECKPOINT in names:
        server = ServerConfig(checkpoint_interval=INTERVAL)
        with waltz_cluster(place / "checkpoints", "", progress, PARTITIONS, server) as waltz:
            _checkpoints(waltz, options, found, progress)
    if EVERYTHING in names:
        with waltz_cluster(place / "everything", "", progress, PARTITIONS) as waltz:
            _everything(waltz, options, found, progress)
    return _told(found, place)


def _in_turn(
    waltz: Waltz,
    appends: Sequence[SteadyAppends],
    names: Sequence[str],
    options: AvailabilityOptions,
    found: _Found,
    progress: Progress,
) -> None:
    for number, name in itertools.product(range(options.tries), names):
        event = EVENTS[name]
        if event.act is None or number >= event.tries(options):
            continue
        act, load = event.act(options), _when_all_is_well(waltz)
        felt_s(appends)
        act(waltz, number)
        wait_for_commits(appends)
        found.note(name, [felt_s(appends)], load)
        progress(f"{number + 1}/{event.tries(options)} {name}: {found.felt[name][-1]:.2f} s")


def _checkpoints(waltz: Waltz, options: AvailabilityOptions, found: _Found, progress: Progress) -> None:
    commits = [Commits() for _ in range(options.clients)]
    with _load(waltz, options, found, commits):
        at, between = checkpoints(waltz, commits, options.tries, progress)
    load = os.getloadavg()[0]
    found.note(BETWEEN, between, load)
    found.note(CHECKPOINT, at, load)


def _everything(waltz: Waltz, options: AvailabilityOptions, found: _Found, progress: Progress) -> None:
    with clients_of(waltz, 1, PARTITIONS) as (client,):
        fill_all(client, options.records, progress)
    tries = EVENTS[EVERYTHING].tries(options)
    with _load(waltz, options, found) as appends:
        for number in range(tries):
            load = _when_all_is_well(waltz)
            felt_s(appends)
            restart_everything(waltz)
            wait_for_commits(appends)
            found.note(EVERYTHING, [felt_s(appends)], load)
            progress(f"{number + 1}/{tries} {EVERYTHING}: {found.felt[EVERYTHING][-1]:.2f} s")


@contextmanager
def _load(
    waltz: Waltz, options: AvailabilityOptions, found: _Found, commits: Sequence[Commits] = ()
) -> Iterator[list[SteadyAppends]]:
    """Clients that append until the end."""
    notes: list[Note | None] = [each.note for each in commits] or [None] * options.clients
    with clients_of(waltz, options.clients, PARTITIONS) as clients:
        begin_s = perf_counter()
        pairs = zip(clients, notes, strict=True)
        appends = [SteadyAppends(client, options.outstanding, options.size_bytes, note) for client, note in pairs]
        yield appends
        found.seconds += perf_counter() - begin_s
        for each in appends:
            each.end()
        found.failures += [failure for each in appends for failure in each.failures]
        found.commits += sum(sum(each.commits) for each in appends)


def _when_all_is_well(waltz: Waltz) -> float:
    """Until everything serves, with all members, and each server has a partition, for who has just been started again
    gets some: the load average then. DataUnavailable."""
    until_s, trouble = perf_counter() + READY_S, ["no answer"]
    while trouble:
        if perf_counter() > until_s:
            raise DataUnavailable(f"not everything serves {READY_S:g} s after an event: {trouble[0]}")
        try:
            trouble = _not_well(waltz.status())
        except ClusterNotFound as error:
            trouble = [str(error)]
        time.sleep(0.1 if trouble else 0)
    return os.getloadavg()[0]


def _not_well(view: ClusterStatus) -> list[str]:
    served = [each for server in view.servers.values() for each in server.partitions.items()]
    owners = {each.server for each in view.partitions}
    return [
        *missing(view),
        *(f"partition {p} lacks members" for p, one in served if set(one.members) != set(one.replicas)),
        *([f"only servers {sorted(map(str, owners))} have partitions"] if len(owners) < SERVERS else []),
    ]


# ---- what is told


def write_availability(found: Mapping[str, Any], directory: Path) -> None:
    """As JSON, and as a page for people; the files are called after the benchmark."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "availability.json").write_text(json.dumps(found, indent=2) + "\n")
    place = found["machine"]
    text = [
        "# Pauses that clients feel, in seconds",
        f"{found['date']}, {place['cores']} cores, {place['memory_gb']} GB, {place['file_system']}",
        markdown_pauses(found["events"]),
        markdown_figures(found["figures"]),
    ]
    (directory / "availability.md").write_text("\n\n".join(text))


@dataclass(frozen=True)
class FeltRow:
    """Of one event. ``load``: median of the load averages (1 minute) when the tries began. ``may_p50_s``, ``may_s``:
    what may be felt, None: no matter."""

    event: str
    tries: int
    p50_s: float
    p99_s: float
    max_s: float
    load: float
    may_p50_s: float | None
    may_s: float | None


def rows_of(felt: dict[str, list[float]], loads: dict[str, list[float]]) -> list[FeltRow]:
    """A row for each event."""
    return [_row(name, values, loads[name]) for name, values in felt.items()]


def _row(name: str, values: Sequence[float], loads: Sequence[float]) -> FeltRow:
    event = EVENTS.get(name, _Event(None))
    p50, p99 = (round(float(np.percentile(values, percent)), 4) for percent in (50, 99))
    load = round(float(np.median(loads)), 1)
    return FeltRow(name, len(values), p50, p99, round(max(values), 4), load, event.p50_s, event.max_s)


def _told(found: _Found, place: Path) -> dict[str, Any]:
    rows = rows_of(found.felt, found.loads)
    figures = [
        _figure("committed", "appends/s", found.commits / found.seconds),
        _figure("appends that failed", "appends", len(found.failures)),
    ]
    more = {
        "figures": figures,
        "events": [vars(row) for row in rows],
        "felt_s": {name: [round(each, 4) for each in values] for name, values in found.felt.items()},
        "loads": found.loads,
        "failures": found.failures[:10],
    }
    return report("availability", [], _ratios(rows), place, **more)


def _figure(name: str, unit: str, value: float) -> dict[str, Any]:
    shown = round(float(value), 3)
    return {"name": name, "unit": unit, "runs": 1, "value": shown, "min": shown, "max": shown}


def _ratios(rows: Sequence[FeltRow]) -> dict[str, Any]:
    """What was felt, against what may be."""
    bounds = [
        (f"{row.event}, {what}, s", value, bound)
        for row in rows
        for what, value, bound in (("p50", row.p50_s, row.may_p50_s), ("max", row.max_s, row.may_s))
        if bound is not None
    ]
    return {name: ratio(value, bound, smaller_is_better=True) for name, value, bound in bounds}
