"""``waltz bench all``: everything once, short, for ``make bench``; a page, a plot for each part, and the numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from waltz_bench.appending import AppendOptions, append, latency
from waltz_bench.cluster import Waltz, waltz_cluster
from waltz_bench.compare import CompareOptions, compare_nats
from waltz_bench.contexts import ContextOptions, contexts
from waltz_bench.feeds import FeedOptions, feed, fetch
from waltz_bench.history import remember
from waltz_bench.plots import plot_all
from waltz_bench.recovery import RecoverOptions, recover
from waltz_bench.report import gates_met, markdown_figures, markdown_ratios, markdown_rows
from waltz_ray.protocol.spaces import DEFAULT_SPACE
from waltz_ray.spaces import Spaces

__all__ = ["SuiteOptions", "page", "run_suite", "write_results"]

Progress = Callable[[str], None]

_KEPT_BYTES = 1 << 30
"""Of each partition while rates of appends are measured: all that is appended would be 60 GB on the disk, and more on a
faster machine."""

_READ_RECORDS = 600_000
"""To catch up with, of 1 KB: more than twice what a server may keep in memory."""


@dataclass(frozen=True)
class SuiteOptions:
    """``seconds`` of one run of one case; ``records`` of the recovery."""

    runs: int = 5
    seconds: float = 0.8
    records: int = 1_000_000


def run_suite(directory: Path, options: SuiteOptions, progress: Progress = lambda text: None) -> dict[str, Any]:
    """One cluster for the comparison, one for appends, one for what is read, and one for the recovery, which kills.
    Each one's files are removed before the next one comes."""
    begin = perf_counter()
    runs, seconds = options.runs, options.seconds
    with _place(directory / "compare") as place:
        parts = [compare_nats(place, CompareOptions(runs, seconds, 0.3), progress=progress)]
    with _place(directory / "appends") as place, waltz_cluster(place, progress=progress) as waltz:
        with Spaces(waltz.name, zookeeper=waltz.zookeeper) as spaces:
            spaces.set(DEFAULT_SPACE, retention_bytes=_KEPT_BYTES)
        parts += _appends(waltz, runs, seconds, progress)
    with _place(directory / "reads") as place, waltz_cluster(place, progress=progress) as waltz:
        reads = FeedOptions(runs, seconds, subscribers=(1, 8), catch_up_records=_READ_RECORDS, cold=True)
        parts.append(feed(waltz, reads, progress))
        parts.append(fetch(waltz, runs, progress=progress))
    with _place(directory / "recovery") as place, waltz_cluster(place, progress=progress) as waltz:
        parts.append(recover(waltz, RecoverOptions(runs, options.records), progress))
    return {
        "benchmark": "all",
        "parts": parts,
        "gates_met": all(gates_met(part["ratios"]) for part in parts),
        "minutes": round((perf_counter() - begin) / 60, 1),
        "versions": parts[0]["versions"],
        "machine": parts[-1]["machine"],
        "date": parts[-1]["date"],
    }


@contextmanager
def _place(directory: Path) -> Iterator[Path]:
    """``directory``, removed at the end if all went well; else whoever gave it decides."""
    yield directory
    shutil.rmtree(directory)


def _appends(waltz: Waltz, runs: int, seconds: float, progress: Progress) -> list[dict[str, Any]]:
    unlocked = AppendOptions(runs, seconds, 0.3, partitions=(1, 8, 64))
    locked = AppendOptions(runs, seconds, 0.3, locks=("unique", "contended"), many=(0,))
    sizes = AppendOptions(runs, seconds, 0.3, clients=(1,), sizes_bytes=(100, 10240))
    return [
        append(waltz, unlocked, progress, "append, partitions"),
        append(waltz, sizes, progress, "append, sizes"),
        append(waltz, locked, progress, "append, locks"),
        latency(waltz, runs, seconds, progress=progress),
        contexts(waltz, ContextOptions(runs, seconds), progress),
    ]


def write_results(found: Mapping[str, Any], directory: Path) -> None:
    """``latest.json``, the same as a page, and the plots this shows, replacing those of before; a line of history."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "latest.json").write_text(json.dumps(found, indent=1) + "\n")
    plots = plot_all(found["parts"], directory)
    (directory / "latest.md").write_text(page(found, plots, remember(found, directory)))


def page(found: Mapping[str, Any], plots: Mapping[str, str], history: str) -> str:
    """The results for people. ``plots``: the picture's file name for a part's name; ``history``: of all runs."""
    machine, versions = found["machine"], found["versions"]
    lines = [
        "# Benchmark results",
        "",
        f"Made by `make bench` on {found['date']}, in {found['minutes']} minutes: {machine['cores']} cores "
        f"({machine['processor']}), {machine['memory_gb']} GB, {machine['file_system']}; "
        + ", ".join(f"{name} {text}" for name, text in versions.items())
        + ". What is measured and how: [docs/benchmarks.md](../../docs/benchmarks.md). "
        "Only the ratios mean something on another machine.",
        "",
        "## History",
        "",
        "Every ratio that has a gate (dashed), run after run (`history.jsonl`); the last value is in its title.",
        "",
        f"![history]({history})",
    ]
    for part in found["parts"]:
        lines += ["", *_section(part, plots.get(part["benchmark"]))]
    return "\n".join(lines) + "\n"


def _section(part: Mapping[str, Any], plot: str | None) -> Sequence[str]:
    blocks = [f"## {part['benchmark']}"]
    if plot is not None:
        blocks.append(f"![{part['benchmark']}]({plot})")
    if part["ratios"]:
        blocks.append(markdown_ratios(part["ratios"]).rstrip())
    if part.get("figures"):
        blocks.append(markdown_figures(part["figures"]).rstrip())
    if part["rows"]:
        blocks.append(markdown_rows(part["rows"]).rstrip())
    blocks += part.get("notes", [])
    return "\n\n".join(blocks).split("\n")
