"""What a benchmark found, as a value for JSON and as tables for people."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

from waltz_bench.measure import Figure

__all__ = [
    "flag",
    "gates_met",
    "machine",
    "markdown_figures",
    "markdown_pauses",
    "markdown_ratios",
    "markdown_rows",
    "report",
    "show",
    "versions",
]


def report(
    name: str, rows: Sequence[Figure], ratios: Mapping[str, dict[str, Any]], directory: Path, **more: Any
) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    return {
        "benchmark": name,
        "rows": [asdict(row) for row in rows],
        "ratios": dict(ratios),
        "gates_met": gates_met(ratios),
        **more,
        "versions": versions() | more.get("versions", {}),
        "machine": machine(directory),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def gates_met(ratios: Mapping[str, dict[str, Any]]) -> bool:
    """Whether every ratio that has a gate meets it."""
    return all(each["gate_met"] is not False for each in ratios.values())


def versions() -> dict[str, str]:
    """Of what took part."""
    packages = {name: version(name) for name in ("waltz-ray", "ray", "uvloop", "numpy")}
    return {"python": platform.python_version(), "kernel": platform.release(), **packages}


def machine(directory: Path) -> dict[str, Any]:
    """Cores, memory, and the file system that the logs were written to."""
    partitions = sorted(psutil.disk_partitions(all=True), key=lambda each: len(each.mountpoint))
    holding = [each for each in partitions if directory.resolve().is_relative_to(each.mountpoint)]
    return {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "file_system": holding[-1].fstype if holding else "unknown",
        "load_average_at_end": [round(each, 2) for each in os.getloadavg()],
    }


def flag(met: bool | None) -> str:
    """For a person: met, not met, or nothing where there is no bound."""
    return "-" if met is None else ("met" if met else "NOT met")


def show(found: Mapping[str, Any], console: Console) -> None:
    """Tables of the rows, the figures and the ratios, and whatever else there is a line for."""
    if found["rows"]:
        console.print(_rows(found["rows"]))
    if found.get("events"):
        console.print(_pauses(found["events"]))
    if found.get("figures"):
        console.print(_figures(found["figures"]))
    if found["ratios"]:
        console.print(_ratios(found["ratios"]))
    for note in found.get("notes", []):
        console.print(note, soft_wrap=True, highlight=False)
    place = found["machine"]
    console.print(
        f"{place['cores']} cores, {place['memory_gb']} GB, {place['file_system']}, {found['date']}", highlight=False
    )


_ROW_HEADS = ("system", "case", "runs", "records/s", "min-max", "p50", "p99", "p99.9", "CPU s/million", "driver")


def _rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(*_ROW_HEADS)
    for row in rows:
        table.add_row(*_cells(row))
    return table


_PAUSE_HEADS = ("event", "tries", "p50", "p99", "max", "may be", "load")


def _pauses(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(*_PAUSE_HEADS, title="felt, seconds")
    for row in rows:
        table.add_row(*_pause_cells(row))
    return table


def _pause_cells(row: Mapping[str, Any]) -> list[str]:
    may = ", ".join(
        f"{name} {row[key]:g}" for name, key in (("p50", "may_p50_s"), ("max", "may_s")) if row[key] is not None
    )
    felt = (f"{row[key]:.3f}" for key in ("p50_s", "p99_s", "max_s"))
    return [row["event"], str(row["tries"]), *felt, may or "-", f"{row['load']:.1f}"]


def markdown_pauses(rows: Sequence[Mapping[str, Any]]) -> str:
    """What was felt of events as a Markdown table."""
    return _markdown(_PAUSE_HEADS, [_pause_cells(row) for row in rows])


_FIGURE_HEADS = ("figure", "median", "min", "max", "unit", "runs")


def _figures(figures: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(*_FIGURE_HEADS)
    for each in figures:
        table.add_row(*_figure_cells(each))
    return table


def _figure_cells(each: Mapping[str, Any]) -> list[str]:
    numbers = (f"{each[name]:,.2f}" for name in ("value", "min", "max"))
    return [each["name"], *numbers, each["unit"], str(each["runs"])]


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["system"],
        row["case"],
        str(row["runs"]),
        f"{row['rate']:,.0f}",
        f"{row['rate_min']:,.0f}-{row['rate_max']:,.0f}",
        *(_time(row[name]) for name in ("p50_us", "p99_us", "p999_us")),
        _by_kind(row["cpu_s_per_million"]),
        f"{row['cpu_share'].get('driver', 0.0):.0%}",
    ]


def _by_kind(of_processes: Mapping[str, float]) -> str:
    """``server-0`` and ``server-1`` are one number for a person; JSON has both."""
    kinds: dict[str, float] = {}
    for name, value in of_processes.items():
        kind = name.partition("-")[0]
        kinds[kind] = kinds.get(kind, 0.0) + value
    return ", ".join(f"{kind} {value:.1f}" for kind, value in kinds.items())


def _ratios(ratios: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table("ratio", "value", "gate", "", "goal", "")
    for name, each in ratios.items():
        table.add_row(*_ratio_cells(name, each))
    return table


def _ratio_cells(name: str, each: Mapping[str, Any]) -> list[str]:
    sign = "<=" if each["smaller_is_better"] else ">="
    gate, goal = (f"{sign} {each[kind]:g}" if each[kind] is not None else "-" for kind in ("gate", "goal"))
    return [name, f"{each['value']:,.2f}", gate, flag(each["gate_met"]), goal, flag(each["goal_met"])]


def markdown_figures(figures: Sequence[Mapping[str, Any]]) -> str:
    """The figures as a Markdown table."""
    return _markdown(_FIGURE_HEADS, [_figure_cells(each) for each in figures])


def markdown_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table."""
    return _markdown(_ROW_HEADS, [_cells(row) for row in rows])


def markdown_ratios(ratios: Mapping[str, Mapping[str, Any]]) -> str:
    """The ratios as a Markdown table."""
    heads = ["ratio", "value", "gate", "gate met", "goal", "goal met"]
    return _markdown(heads, [_ratio_cells(name, each) for name, each in ratios.items()])


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(heads), " | ".join("---" for _ in heads), *(" | ".join(row) for row in rows)]
    return "".join(f"| {line} |\n" for line in lines)


def _time(microseconds: float) -> str:
    return f"{microseconds / 1000:,.2f} ms" if microseconds >= 1000 else f"{microseconds:,.0f} us"
