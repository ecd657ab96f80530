"""``waltz bench growth``: is the log as fast with fifty million records as with one million, and as small in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from waltz_bench.clients import clients_of, single_load, window
from waltz_bench.cluster import Waltz
from waltz_bench.filling import fill
from waltz_bench.loads import AppendLoad, batches, pairs
from waltz_bench.measure import Case, Figure, alternate, ratio
from waltz_bench.report import report
from waltz_ray.client.client import WaltzClient
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
    """Partition 0 is filled to each of ``millions`` in turn and measured there, with 100-byte records, by turns with
    another partition that has just got as many as the first of ``millions``.

    So the two logs that are compared are measured within the same minute: a machine may be another one five minutes
    and twenty gigabytes later (the page cache is full, its disk writes back what it has got).
    """
    rows: list[Figure] = []
    with clients_of(waltz, 1, len(millions)) as (client,):
        processes = waltz.processes()
        for partition, count in enumerate(millions):
            for filled, wanted in {partition: millions[0], 0: count}.items():
                progress(f"filling partition {filled} to {wanted} million records")
                have = client.server_high_water_mark(filled) + 1
                fill(client, filled, max(0, wanted * 1_000_000 - have), _SIZE_BYTES)
            batched = {p: window(_batched(client, p), processes, (seconds, 0.5)) for p in {0, partition}}
            alone = window(single_load([client], 1, _SIZE_BYTES), processes, (seconds, 0.3))
            cases = [Case(f"{_BATCHED} at {count} M", batched[0]), Case(f"1 outstanding at {count} M", alone)]
            if partition:
                cases.append(Case(_beside(millions, count), batched[partition]))
            cases[0].run()
            rows += alternate(cases, runs, progress)
    return report("growth", rows, growth_ratios(rows, millions), Path(waltz.directory))


def _batched(client: WaltzClient, partition: int) -> Callable[[], AppendLoad]:
    call = batches(client, partition, _SIZE_BYTES, 100)
    return lambda: AppendLoad(pairs([call], 64), 100)


def _beside(millions: Sequence[int], count: int) -> str:
    return f"{_BATCHED} at {millions[0]} M, beside {count} M"


def growth_ratios(rows: Sequence[Figure], millions: Sequence[int]) -> dict[str, dict[str, Any]]:
    """The rate at every size by that of a short log beside it, and memory and rate by those at the beginning."""
    found = {row.case: row for row in rows}
    first = found[f"{_BATCHED} at {millions[0]} M"]
    ratios = {}
    for count in millions[1:]:
        row, beside = found[f"{_BATCHED} at {count} M"], found[_beside(millions, count)]
        name = f"at {count} M by"
        ratios[f"rate {name} rate at {millions[0]} M, by turns"] = ratio(row.rate / beside.rate, 0.95)
        ratios[f"rate {name} rate at {millions[0]} M, at the beginning"] = ratio(row.rate / first.rate)
        ratios[f"memory {name} memory at {millions[0]} M"] = ratio(
            _memory(row) / _memory(first), smaller_is_better=True
        )
    return ratios


def _memory(row: Figure) -> float:
    return sum(value for name, value in row.rss_mb.items() if name.startswith(("server", "replica")))
