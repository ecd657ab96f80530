"""``waltz bench growth``: is the log as fast with fifty million records as with one million, and as small in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from waltz_bench.clients import clients_of, many_load, single_load, window
from waltz_bench.cluster import Waltz
from waltz_bench.filling import fill
from waltz_bench.measure import Case, Row, alternate, ratio
from waltz_bench.report import report
from waltz_ray.errors import InvalidInput

__all__ = ["growth", "growth_ratios", "rising"]

_SIZE_BYTES = 100
_BATCHED = "append_many(100)"


def rising(millions: Sequence[int]) -> Sequence[int]:
    """``millions``, if a log can be filled to each of them in turn."""
    if list(millions) != sorted(set(millions)):
        raise InvalidInput(f"--millions must be rising numbers, not {list(millions)}")
    return millions


def growth(
    waltz: Waltz,
    millions: Sequence[int],
    runs: int = 5,
    seconds: float = 2.0,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Partition 0 is filled to each of ``millions`` in turn and measured there, with 100-byte records.

    The sizes cannot alternate: a log only grows. What disturbs the machine disturbs one size more than another.
    """
    rows: list[Row] = []
    with clients_of(waltz, 1, 1) as (client,):
        processes = waltz.processes()
        for count in millions:
            have = client.server_high_water_mark(0) + 1
            progress(f"filling partition 0 to {count} million records")
            fill(client, 0, max(0, count * 1_000_000 - have), _SIZE_BYTES)
            batched = window(many_load([client], 64, 100, _SIZE_BYTES), processes, (seconds, 0.5))
            alone = window(single_load([client], 1, _SIZE_BYTES), processes, (seconds, 0.3))
            cases = [Case(f"{_BATCHED} at {count} M", batched), Case(f"1 outstanding at {count} M", alone)]
            cases[0].run()
            rows += alternate(cases, runs, progress)
    return report("growth", rows, growth_ratios(rows, millions), Path(waltz.directory))


def growth_ratios(rows: Sequence[Row], millions: Sequence[int]) -> dict[str, dict[str, Any]]:
    """The rate at every size by that at the first, and the memory of servers and replicas likewise."""
    found = {row.case: row for row in rows}
    first = found[f"{_BATCHED} at {millions[0]} M"]
    ratios = {}
    for count in millions[1:]:
        row = found[f"{_BATCHED} at {count} M"]
        ratios[f"rate at {count} M by rate at {millions[0]} M"] = ratio(row.rate / first.rate, 0.95)
        ratios[f"memory at {count} M by memory at {millions[0]} M"] = ratio(
            _memory(row) / _memory(first), smaller_is_better=True
        )
    return ratios


def _memory(row: Row) -> float:
    return sum(value for name, value in row.rss_mb.items() if name.startswith(("server", "replica")))
