"""Ratios of rows, the report as JSON, as tables and as a page; counting syncs in a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from waltz_bench.appending import lock_ratios, partition_ratios
from waltz_bench.availability import EVENTS, AvailabilityOptions, chosen, rows_of, write_availability
from waltz_bench.checkpoints import felt_at
from waltz_bench.compare import BATCHED_ATOMIC, CompareOptions, enough_syncs, nats_ratios
from waltz_bench.feeds import feed_ratios
from waltz_bench.growth import growth_ratios
from waltz_bench.history import remember
from waltz_bench.measure import Figure, ratio
from waltz_bench.plots import plot_all
from waltz_bench.recovery import figure
from waltz_bench.report import gates_met, report, show
from waltz_bench.suite import write_results
from waltz_bench.syncs import parse_trace

from waltz_ray.errors import DataUnavailable, InvalidInput


def row(case: str, rate: float, system: str = "waltz_ray", p50_us: float = 500.0, **more: Any) -> Figure:
    fields: dict[str, Any] = {
        "runs": 5,
        "rate_min": rate * 0.9,
        "rate_max": rate * 1.1,
        "p99_us": p50_us * 2,
        "p999_us": p50_us * 30,
        "cpu_s_per_million": {"driver": 1.0, "server-0": 2.0, "server-1": 3.0},
        "cpu_share": {"driver": 0.25},
        "rss_mb": {"driver": 90.0, "server-0": 100.0},
        "counts_per_million": {},
    }
    return Figure(system=system, case=case, rate=rate, p50_us=p50_us, **fields | more)


COMPARED = [
    row("1 outstanding", 2000, p50_us=480.0),
    row("1 outstanding", 1200, "NATS", p50_us=800.0),
    row("64 clients with 1 each", 21_000),
    row("64 clients with 1 each", 14_000, "NATS"),
    row("append_many(100)", 280_000),
    row("append_many(100)", 60_000, "NATS"),
    row(BATCHED_ATOMIC, 80_000, "NATS"),
]


def test_ratios_with_nats() -> None:
    found = nats_ratios(COMPARED)
    assert {name: each["value"] for name, each in found.items()} == {
        "1 outstanding, p50": 0.6,
        "64 clients with 1 each, rate": 1.5,
        "append_many(100), rate": 3.5,  # against the better of NATS's two ways
    }
    assert all(each["gate_met"] for each in found.values())
    assert [each["goal_met"] for each in found.values()] == [False, False, False]


@pytest.mark.parametrize(
    ("syncs", "enough"),
    [
        ((200, 200, 200), True),
        ((200, 200, 0), True),
        ((199, 200, 198), True),  # the one that is behind syncs two at once, and another one is in the quorum
        ((200, 199, 0), False),
        ((600, 0, 0), False),  # never two of them
        ((2, 2, 2), False),
    ],
)
def test_the_proof_needs_a_quorum_of_syncs_for_each_append(syncs: tuple[int, ...], enough: bool) -> None:
    assert enough_syncs({f"replica-{n}": total for n, total in enumerate(syncs)}, 200) is enough


def test_an_unknown_case_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'pipelined'; the cases are: 1 outstanding"):
        CompareOptions(cases=("pipelined",))


def test_partition_ratios_compare_the_same_shape() -> None:
    rows = [
        row("single, 1024 B, 1 partition", 100),
        row("single, 1024 B, 8 partitions", 110),
        row("append_many(100), 1024 B, 1 partition", 1000),
        row("append_many(100), 1024 B, 64 partitions", 1500),
        row("append_many(100), 100 B, 64 partitions", 9999),
        row("single, 1024 B, 8 partitions, contended locks", 9),
    ]
    found = partition_ratios(rows)
    assert {name: each["value"] for name, each in found.items()} == {
        "single, 1024 B, 8 partitions": 1.1,
        "append_many(100), 1024 B, 64 partitions": 1.5,
    }
    assert [each["goal_met"] for each in found.values()] == [False, True]


def test_lock_ratios_are_thousands_a_second() -> None:
    (found,) = lock_ratios([row("single, 1024 B, 1 partition, contended locks", 1190), row("single", 5)]).values()
    assert (found["value"], found["gate_met"]) == (1.19, False)


def test_feed_ratios() -> None:
    def given(share: float) -> dict[str, float]:
        return {"given to the slowest subscriber": share * 1e6}

    found = feed_ratios(
        [
            row("append_many(100), no subscriber", 100_000, counts_per_million=given(0)),
            row("live, 8 subscribers, inline data", 90_000, counts_per_million=given(0.94)),
            row("catch-up, 1 subscriber, inline data", 500_000),
            row("catch-up, 8 subscribers, inline data", 900_000),
        ]
    )
    assert {name: (each["value"], each["gate_met"]) for name, each in found.items()} == {
        "live, 8 subscribers, inline data: given by appended": (0.94, False),
        "live, 8 subscribers, inline data: append rate by that without": (0.9, None),
        "catch-up, 1 subscriber, inline data: rate by append rate": (5.0, True),
        "catch-up, 8 subscribers, inline data: rate by append rate": (9.0, None),
    }


def test_growth_ratios() -> None:
    rows = [
        row("append_many(100) at 1 M", 100),
        row("append_many(100) at 50 M", 94, rss_mb={"server-0": 110.0}),
        row("append_many(100) at 1 M, beside 50 M", 95),
    ]
    found = growth_ratios(rows, (1, 50))
    assert found["rate at 50 M by rate at 1 M, by turns"] == ratio(94 / 95, 0.95)
    assert found["rate at 50 M by rate at 1 M, at the beginning"]["gate_met"] is None
    assert found["memory at 50 M by memory at 1 M"]["value"] == 1.1
    rows[2] = row("append_many(100) at 1 M, beside 50 M", 100)
    assert growth_ratios(rows, (1, 50))["rate at 50 M by rate at 1 M, by turns"]["gate_met"] is False


def test_gates_met_ignores_ratios_without_a_gate() -> None:
    assert gates_met({"a": ratio(0.1), "b": ratio(2.0, 1.0)})
    assert not gates_met({"a": ratio(0.1, 1.0), "b": ratio(2.0, 1.0)})


def test_a_report_is_json_and_shows_everything(tmp_path: Path) -> None:
    found = report(
        "compare nats",
        COMPARED,
        nats_ratios(COMPARED),
        tmp_path,
        notes=["the load generator used little"],
        figures=[figure("pause", "s", [1.0, 3.0, 2.0])],
        versions={"nats-server": "v2.15.1"},
    )
    again = json.loads(json.dumps(found))
    assert again["gates_met"] is True
    assert again["rows"][0]["p50_us"] == 480.0
    assert again["versions"]["nats-server"] == "v2.15.1"
    assert again["machine"]["cores"] >= 1
    console = Console(width=200, record=True)
    with console.capture() as shown:
        show(again, console)
    text = shown.get()
    for piece in (
        "64 clients with 1 each",
        "280,000",
        "driver 1.0, server 5.0",
        "NOT met",
        "<= 0.7",
        "little",
        "pause",
    ):
        assert piece in text


def test_results_are_a_page_numbers_and_small_plots(tmp_path: Path) -> None:
    part = report("append, sizes", COMPARED, {"x": ratio(1.0, 1.0)}, tmp_path)
    found = {"benchmark": "all", "parts": [part], "gates_met": True, "minutes": 1.0} | {
        name: part[name] for name in ("versions", "machine", "date")
    }
    (tmp_path / "latest-old.svg").write_text("of a part that is no more")
    write_results(found, tmp_path)
    page = (tmp_path / "latest.md").read_text()
    assert "![append, sizes](latest-append-sizes.svg)" in page
    assert "| x | 1.00 | >= 1 | met | - | - |" in page
    assert json.loads((tmp_path / "latest.json").read_text())["parts"][0]["benchmark"] == "append, sizes"
    names = sorted(each.name for each in tmp_path.glob("*.svg"))
    assert names == ["latest-append-sizes.svg", "latest-history.svg"]
    assert "![history](latest-history.svg)" in page
    assert (tmp_path / "latest-append-sizes.svg").stat().st_size < 100_000


def test_the_history_has_a_line_for_each_run(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text("of another tool\n")
    for day, value in ((1, 0.5), (2, 1.5), (2, 1.5)):
        part = report("append", COMPARED[:1], {"x": ratio(value, 1.0), "y": ratio(value)}, tmp_path)
        found = {"parts": [part], "date": f"2026-01-0{day}", "versions": {}, "machine": part["machine"]}
        assert remember(found, tmp_path) == "latest-history.svg"
    other, *runs = (tmp_path / "history.jsonl").read_text().splitlines()
    assert other == "of another tool"
    assert [json.loads(run)["ratios"] for run in runs] == [
        {"append": {"x": [0.5, 1.0, False]}},
        {"append": {"x": [1.5, 1.0, False]}},
    ]
    assert "append: x  1.5" in (tmp_path / "latest-history.svg").read_text()


def test_the_same_numbers_make_the_same_plot(tmp_path: Path) -> None:
    part = report("latency", COMPARED[:1], {}, tmp_path)
    (name,) = plot_all([part], tmp_path).values()
    first = (tmp_path / name).read_bytes()
    plot_all([part], tmp_path)
    assert (tmp_path / name).read_bytes() == first


TRACE = """\
4711  fdatasync(7)                      = 0
4711 fsync(8 <unfinished ...>
4712  12:00.5 read(3, "fsync(9)", 8)  = 8
4711 <... fsync resumed>)               = 0
[pid  4711] +++ exited with 0 +++
4713 fdatasync(9)                      = 0
"""


def test_syncs_of_a_trace() -> None:
    assert parse_trace(TRACE) == {"fdatasync": 2, "fsync": 1}


@pytest.mark.parametrize(
    "line", ["1 fsync(3) = -1 EIO (Input/output error)", "1 <... fdatasync resumed>) = -1 EIO (Input/output error)"]
)
def test_a_failed_sync_is_no_proof(line: str) -> None:
    with pytest.raises(DataUnavailable, match="a sync failed"):
        parse_trace(TRACE + line)


@pytest.mark.parametrize(
    ("mark", "felt"),
    [
        (12, 4.0),  # between 10 and 20, which are other clients' as well
        (10, 4.0),  # its own commit at the mark came before
        (9, 2.0),
        (4, None),  # nothing of before
        (20, None),  # nothing of behind
    ],
)
def test_what_is_felt_at_a_mark(mark: int, felt: float | None) -> None:
    assert felt_at(mark, [5, 8, 10, 20], [1.0, 2.0, 4.0, 8.0]) == felt


def test_rows_of_events_have_percentiles_and_load_and_what_may_be(tmp_path: Path) -> None:
    felt = {"nothing": [0.01], "SIGKILL of a replica": [0.1, 0.2, 0.4]}
    rows = rows_of(felt, {"nothing": [1.0], "SIGKILL of a replica": [1.0, 3.0, 2.0]})
    assert [(each.event, each.tries, each.p50_s, each.max_s, each.load) for each in rows] == [
        ("nothing", 1, 0.01, 0.01, 1.0),
        ("SIGKILL of a replica", 3, 0.2, 0.4, 2.0),
    ]
    assert 0.39 < rows[1].p99_s < 0.4
    found = report("availability", [], {}, tmp_path, events=[vars(each) for each in rows], figures=[])
    write_availability(found, tmp_path / "results")
    page = (tmp_path / "results" / "availability.md").read_text()
    assert "| SIGKILL of a replica | 3 | 0.200 | 0.396 | 0.400 | p50 0.15, max 0.3 | 2.0 |" in page
    assert "| nothing | 1 | 0.010 | 0.010 | 0.010 | - | 1.0 |" in page


def test_events_that_take_long_are_tried_less_often() -> None:
    options = AvailabilityOptions(tries=20, long_tries=5)
    assert {name for name in chosen(()) if EVENTS[name].tries(options) == 5} == {
        "rolling restart",
        "ZooKeeper dead",
        "ZooKeeper dead, SIGKILL of a replica",
        "ZooKeeper hung",
        "ZooKeeper hung, SIGKILL of a replica",
        "SIGKILL of everything, waltz up",
    }
    assert EVENTS["ZooKeeper hung"].tries(AvailabilityOptions(tries=2)) == 2
