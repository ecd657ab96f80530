"""``waltz top`` and ``waltz status --watch``: what is shown of several looks, and how they end."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from tests.cli.test_commands import run
from tests.cli.test_status import CLUSTER, REPLICA, SERVED, SERVER
from waltz_ray import readiness
from waltz_ray.cli import live
from waltz_ray.protocol.session_replica import Phase
from waltz_ray.runtime.histogram import Histogram, HistogramView
from waltz_ray.runtime.measures import Measures
from waltz_ray.runtime.status import ClusterStatus, CursorStatus, EndpointStatistics, Readiness, ReplicaProgress


def looks() -> Iterator[ClusterStatus]:
    """Every two seconds; a hundred transactions between them, a slow commit before the first and a quick one after."""
    measures = Measures()
    measures.commit.observe(5.0)
    for number in range(1, 100):
        measures.records, measures.record_bytes, measures.lock_failures = 100 * number, 10_000 * number, 4 * number
        measures.commit.observe(0.0004)
        served = replace(
            SERVED,
            high_water_mark=100 * number,
            lags={7: 12},
            replicas={0: ReplicaProgress(Phase.MEMBER, 100 * number - 3)},
        )
        server = replace(SERVER, partitions={0: served}, measures=measures.view())
        replica = replace(REPLICA, traffic=EndpointStatistics(records=200 * number), disk_free_bytes=3_000_000)
        yield replace(CLUSTER, at_ms=2000 * number, servers={1: server}, replicas={0: replica})


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[ClusterStatus]:
    """The looks that were taken. Nobody waits between them, and the fifth is interrupted."""
    taken: list[ClusterStatus] = []
    coming = looks()

    def look(name: str, timeout_s: float) -> ClusterStatus:
        if len(taken) == 4:
            raise KeyboardInterrupt
        taken.append(next(coming))
        return taken[-1]

    monkeypatch.setattr("waltz_ray.finding.find.find_on_ray", lambda name, directory, address: ("c", "LOCALHOST:9"))
    monkeypatch.setattr(readiness, "cluster_status", look)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setattr("waltz_ray.cli.common.plain", lambda: False)  # as on a terminal
    return taken


def cells(text: str, first: str) -> list[str]:
    """Of the last line whose first cell is that."""
    rows = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in text.splitlines() if "│" in line]
    return [row for row in rows if row[0] == first][-1]


def test_top_shows_rates_between_two_looks(seen: list[ClusterStatus], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("top", "--count", "2", "--interval", "0.2") == 0
    told = capsys.readouterr().out
    assert len(seen) == 2
    first, _, last = told.partition("cluster c: 50 transactions a second, 1 of 1 partitions ready, everything serves")
    assert "rates with the next look" in first
    assert last
    _, servers, replicas, partitions = last.split("┏")
    assert cells(servers, "1") == ["1", "SERVING", "50", "5 KB", "0.5 ms", "2", "0"]
    assert cells(replicas, "0") == ["0", "SERVING", "100", "0 B", "-", "3", "-", "3 MB"]
    assert cells(partitions, "0") == ["0", "-", "1", "READY", "50", "0 B", "1", "0", "12"]


def test_without_a_manager_there_are_no_rates(
    seen: list[ClusterStatus], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(readiness, "cluster_status", lambda name, timeout_s: replace(CLUSTER, at_ms=None))
    assert run("top", "--count", "3", "--interval", "0.2") == 0
    assert capsys.readouterr().out.count("rates with the next look") == 3


def test_a_log_that_opens_has_not_grown_by_all_that_was_in_it(
    seen: list[ClusterStatus], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its server has just been given it, and does not know yet where it ends."""
    opening = replace(SERVED, state=Readiness.NOT_READY, high_water_mark=-1)
    states = iter([(2000, opening), (4000, replace(SERVED, high_water_mark=1_000_000))])

    def look(name: str, timeout_s: float) -> ClusterStatus:
        at_ms, served = next(states)
        return replace(CLUSTER, at_ms=at_ms, servers={1: replace(SERVER, partitions={0: served})})

    monkeypatch.setattr(readiness, "cluster_status", look)
    assert run("top", "--count", "2", "--interval", "0.2") == 0
    assert capsys.readouterr().out.count("rates with the next look") == 2


def test_the_busiest_partitions_come_first_and_cursors_that_are_behind(
    seen: list[ClusterStatus], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = iter([(0, 0, 0), (10, 500, 100)])

    def look(name: str, timeout_s: float) -> ClusterStatus:
        partitions = {p: replace(SERVED, high_water_mark=mark) for p, mark in enumerate(next(marks))}
        assigned = tuple(replace(CLUSTER.partitions[0], partition=p) for p in partitions)
        cursor = CursorStatus(space="log", name="audit", positions={}, holds_retention=False, epoch=1, lag=4)
        cursors = (cursor, replace(cursor, name="mail", lag=9000))
        server = replace(SERVER, partitions=partitions)
        at_ms = 1000 * partitions[1].high_water_mark
        return replace(CLUSTER, at_ms=at_ms, servers={1: server}, partitions=assigned, cursors=cursors)

    monkeypatch.setattr(readiness, "cluster_status", look)
    assert run("top", "--count", "2", "--partitions", "2") == 0
    last = capsys.readouterr().out.rpartition("cluster c")[2].split("┏")
    first = [line.strip("│ ").split("│")[0].strip() for line in last[-2].splitlines() if line.startswith("│")]
    assert first == ["1", "2"]
    assert "mail" in last[-1].splitlines()[3]
    assert "9,000" in last[-1]


@pytest.mark.parametrize("command", [["top"], ["status", "--watch"], ["status", "--watch", "--json"]])
def test_ctrl_c_is_its_end(seen: list[ClusterStatus], capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert run(*command, "--interval", "0.2") == 0
    told = capsys.readouterr().out
    assert len(seen) == 4
    if "--json" in command:
        lines = [json.loads(line) for line in told.splitlines()]
        assert [each["at_ms"] for each in lines] == [2000, 4000, 6000, 8000]
    else:
        assert told.count("cluster c") == 4


def test_on_a_terminal_each_look_takes_the_place_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(live, "console", lambda: Console(file=screen, force_terminal=True, width=80, height=10))
    live.show_live([["first"], ["second"]])
    told = screen.getvalue()
    assert "\x1b[?1049h" in told
    assert told.index("first") < told.index("second") < told.index("\x1b[?1049l"), "and the terminal is as it was"


def test_looks_are_due_by_the_clock_however_long_they_take() -> None:
    now, slept = 0.0, list[float]()

    def look() -> None:
        nonlocal now
        now += 0.5 if len(slept) != 1 else 9.0

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    assert len(list(live.views(look, 2.0, 4, sleep, lambda: now))) == 4
    assert slept == [1.5, 0.0, 1.5]


def view_of(*values: float) -> HistogramView:
    histogram = Histogram((1.0, 2.0))
    for value in values:
        histogram.observe(value)
    return histogram.view()


def test_what_came_since() -> None:
    before, now = view_of(0.5, 1.5), view_of(0.5, 1.5, 1.5, 9.0)
    assert now.since(before) == view_of(1.5, 9.0)
    assert now.since(None) is now
    assert before.since(now) is before, "it began anew"
    assert view_of(9.0, 9.0, 9.0).since(before).counts == (0, 0, 3), "it began anew, and has more by now"


@pytest.mark.parametrize(("share", "bound"), [(0.0, 1.0), (0.5, 1.0), (0.75, 2.0), (0.99, float("inf"))])
def test_the_bound_below_which_a_share_is(share: float, bound: float) -> None:
    assert view_of(0.5, 0.5, 1.5, 9.0).below(share) == bound
    assert view_of().below(share) is None
