"""What runs of the suite on one machine have found: a line for each in ``history.jsonl``, and its picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from waltz_bench.plots import plot_history

__all__ = ["remember"]

_FILE, _PICTURE = "history.jsonl", "latest-history.svg"


def remember(found: Mapping[str, Any], directory: Path) -> str:
    """Add this run to the history in ``directory`` and draw all of it; the picture's file name.

    The same run (by its date) is not added twice. Lines that are no runs are left alone, and not drawn.
    """
    path = directory / _FILE
    lines = path.read_text().splitlines() if path.exists() else []
    runs = [run for line in lines if (run := _run(line)) is not None]
    if all(run["date"] != found["date"] for run in runs):
        runs.append(_brief(found))
        path.write_text("\n".join([*lines, json.dumps(runs[-1])]) + "\n")
    plot_history(_series(runs), directory / _PICTURE)
    return _PICTURE


def _run(line: str) -> dict[str, Any] | None:
    try:
        run = json.loads(line)
    except json.JSONDecodeError:
        return None
    return run if isinstance(run, dict) and {"date", "ratios"} <= run.keys() else None


def _brief(found: Mapping[str, Any]) -> dict[str, Any]:
    """The date, what ran, and every ratio that has a gate: ``{part: {name: [value, gate, smaller is better]}}``."""
    return {
        "date": found["date"],
        "versions": found["versions"],
        "cores": found["machine"]["cores"],
        "load": found["machine"]["load_average_at_end"],
        "ratios": {
            part["benchmark"]: {
                name: [each["value"], each["gate"], each["smaller_is_better"]]
                for name, each in part["ratios"].items()
                if each["gate"] is not None
            }
            for part in found["parts"]
        },
        "rates": {
            part["benchmark"]: {f"{row['system']}: {row['case']}": row["rate"] for row in part["rows"]}
            for part in found["parts"]
        },
    }


def _series(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, float, float]]]:
    """Of each ratio: (date, value, gate of then). One that the last run does not have is history."""
    last = runs[-1]["ratios"]
    series: dict[str, list[tuple[str, float, float]]] = {}
    for part, names in last.items():
        for name in names:
            points = [(run["date"], run["ratios"].get(part, {}).get(name)) for run in runs]
            series[f"{part}: {name}"] = [(date, point[0], point[1]) for date, point in points if point is not None]
    return series
