"""``waltz bench append`` and ``latency``: how many appends a second, and how long one takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from waltz_bench.clients import clients_of, many_load, single_load, window
from waltz_bench.cluster import Waltz
from waltz_bench.loads import AppendLoad
from waltz_bench.locked import locked_load
from waltz_bench.measure import Case, Figure, alternate, ratio, warm_up
from waltz_bench.report import report
from waltz_ray.client.client import WaltzClient
from waltz_ray.errors import InvalidInput

__all__ = ["AppendOptions", "LockKind", "append", "append_cases", "latency", "partition_ratios"]

LockKind = Literal["none", "unique", "contended"]
_MANY = 100
_LOCKED_OUTSTANDING = {"unique": 256, "contended": 8}  # contenders: as many as a client has context threads


@dataclass(frozen=True)
class AppendOptions:
    """The matrix is every combination. ``outstanding``: records, of all clients together; a case with several clients
    has one append of each. ``many``: records of an ``append_many``, 0 = single appends."""

    runs: int = 5
    seconds: float = 2.0
    warmup_s: float = 0.5
    clients: tuple[int, ...] = (1, 64)
    outstanding: int = 6400
    sizes_bytes: tuple[int, ...] = (1024,)
    partitions: tuple[int, ...] = (1,)
    locks: tuple[LockKind, ...] = ("none",)
    many: tuple[int, ...] = (0, _MANY)
    transport: str = "tcp"

    def __post_init__(self) -> None:
        for kind in self.locks:
            if kind not in ("none", "unique", "contended"):
                raise InvalidInput(f"--locks must be none, unique or contended, not {kind!r}")


def append(
    waltz: Waltz, options: AppendOptions, progress: Callable[[str], None] = lambda text: None, name: str = "append"
) -> dict[str, Any]:
    """The whole matrix. Its report is called ``name``."""
    with clients_of(waltz, max(options.clients), max(options.partitions), options.transport) as clients:
        cases = append_cases(waltz, clients, options)
        warm_up(cases, progress)
        rows = alternate(cases, options.runs, progress)
        return report(name, rows, partition_ratios(rows) | lock_ratios(rows), Path(waltz.directory))


def append_cases(waltz: Waltz, clients: Sequence[WaltzClient], options: AppendOptions) -> list[Case]:
    """One for each combination that makes sense: several clients append singly, locks go with single appends."""
    processes = waltz.processes()
    cases = []
    matrix = itertools.product(options.clients, options.many, options.sizes_bytes, options.partitions, options.locks)
    for count, many, size, partitions, locks in matrix:
        if many and (count > 1 or locks != "none"):
            continue
        if locks == "none":
            load = _unlocked(clients[:count], many, size, partitions, options.outstanding)
        else:
            outstanding = _LOCKED_OUTSTANDING[locks] if count == 1 else count
            load = locked_load(clients[:count], locks, outstanding, size, partitions)
        name = ", ".join(
            [f"append_many({many})" if many else ("single" if count == 1 else f"{count} clients x 1")]
            + [f"{size} B", f"{partitions} partition{'s' if partitions > 1 else ''}"]
            + ([] if locks == "none" else [f"{locks} locks"])
        )
        cases.append(Case(name, window(load, processes, (options.seconds, options.warmup_s), waltz.syncs)))
    return cases


def _unlocked(
    clients: Sequence[WaltzClient], many: int, size: int, partitions: int, outstanding: int
) -> Callable[[], AppendLoad]:
    if many:
        return many_load(clients, max(1, outstanding // many), many, size, partitions)
    return single_load(clients, outstanding if len(clients) == 1 else len(clients), size, partitions)


def partition_ratios(rows: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    """The rate on several partitions by the rate on one, same load shape."""
    found = {row.case: row.rate for row in rows}
    return {
        case: ratio(rate / found[one], *_partition_gate(case))
        for case, rate in found.items()
        if " partitions" in case and "contended" not in case and (one := _with_one_partition(case)) in found
    }


def _partition_gate(case: str) -> tuple[float, float]:
    """Gate and goal. Of clients that wait for each append fewer are in a batch, the more partitions there are."""
    few = " 8 partitions" in case
    if case.startswith("append_many"):
        return (1.2 if few else 1.1), 1.5
    return (0.9 if few else 0.8), 1.2


def _with_one_partition(case: str) -> str:
    return ", ".join("1 partition" if part.endswith(" partitions") else part for part in case.split(", "))


def lock_ratios(rows: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    """Progress where all appends want the same lock, in thousands a second."""
    return {
        f"{row.case}: thousands committed a second": ratio(row.rate / 1000, 1.2, 2.0)
        for row in rows
        if "contended locks" in row.case
    }


def latency(
    waltz: Waltz,
    runs: int = 5,
    seconds: float = 2.0,
    sizes_bytes: Sequence[int] = (100, 1024, 10240),
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """One append outstanding, for each size: the next is sent when the one before has committed."""
    with clients_of(waltz, 1, 1) as clients:
        processes = waltz.processes()
        cases = [
            Case(
                f"1 outstanding, {size} B",
                window(single_load(clients, 1, size), processes, (seconds, 0.3), waltz.syncs),
            )
            for size in sizes_bytes
        ]
        warm_up(cases, progress)
        return report("latency", alternate(cases, runs, progress), {}, Path(waltz.directory))
