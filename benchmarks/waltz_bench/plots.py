"""Small SVGs: for each part of the suite medians as bars, with the slowest and the fastest run; and its history."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "waltz"  # the same numbers give the same file
from matplotlib import pyplot  # noqa: E402 - the backend comes first

__all__ = ["plot_all", "plot_history"]

_COLOURS = {"waltz_ray": "#2a6f97", "NATS": "#c08552"}


def plot_all(parts: Sequence[Mapping[str, Any]], directory: Path) -> dict[str, str]:
    """A picture for each part that has rows; its file name by the part's name."""
    for old in directory.glob("latest-*.svg"):
        old.unlink()
    made: dict[str, str] = {}
    for part in parts:
        if part["rows"]:
            name = f"latest-{re.sub(r'[^a-z0-9]+', '-', part['benchmark'].lower())}.svg"
            _plot(part, directory / name)
            made[part["benchmark"]] = name
    return made


def _plot(part: Mapping[str, Any], path: Path) -> None:
    rows = part["rows"]
    by_time = part["benchmark"] == "latency"
    figure, axes = pyplot.subplots(figsize=(8, 0.6 + 0.32 * len(rows)), layout="constrained")
    values = [row["p50_us"] / 1000 if by_time else row["rate"] for row in rows]
    spread = None
    if not by_time:
        spread = [
            [row["rate"] - row["rate_min"] for row in rows],
            [row["rate_max"] - row["rate"] for row in rows],
        ]
    names = [
        row["case"] if len({r["system"] for r in rows}) == 1 else f"{row['system']}: {row['case']}" for row in rows
    ]
    colours = [_COLOURS.get(row["system"], "#777777") for row in rows]
    axes.barh(range(len(rows)), values, xerr=spread, color=colours, height=0.7, error_kw={"elinewidth": 0.8})
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("p50, ms" if by_time else "records a second", fontsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.2f}" if by_time else f"{value:,.0f}")
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def plot_history(series: Mapping[str, Sequence[tuple[str, float, float]]], path: Path) -> None:
    """Of each ratio a line over the runs, the last value in words, and its gate. ``series``: (date, value, gate)."""
    columns = 3
    lines = max(1, -(-len(series) // columns))
    figure, grid = pyplot.subplots(lines, columns, figsize=(9, 1.3 * lines), layout="constrained", squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for axes, (name, points) in zip(grid.flat, series.items(), strict=False):
        axes.axis("on")
        values = [value for _, value, _ in points]
        axes.plot(range(len(values)), values, color=_COLOURS["waltz_ray"], marker="o", markersize=3, linewidth=1)
        axes.axhline(points[-1][2], color="#777777", linewidth=0.7, linestyle="--")
        axes.set_title(f"{name}  {values[-1]:g}", fontsize=6, wrap=True)
        axes.set_ylim(bottom=0)
        axes.set_xticks([])
        axes.tick_params(axis="y", labelsize=6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
