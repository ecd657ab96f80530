"""``waltz bench compare postgres``: the comparison of ``compare.py``, with PostgreSQL. There is no gate."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from waltz_bench.clients import clients_of, window
from waltz_bench.cluster import waltz_cluster
from waltz_bench.compare import (
    BATCH_RECORDS,
    BATCHED,
    BATCHES,
    MANY_CLIENTS,
    ONE,
    PIPELINED,
    PIPELINED_RECORDS,
    WALTZ,
    CompareOptions,
    our_loads,
)
from waltz_bench.measure import Case, Figure, Sample, alternate, measure, ratio, warm_up
from waltz_bench.nats_load import Shape
from waltz_bench.postgres_cluster import Postgres, postgres_cluster
from waltz_bench.postgres_load import TABLE, PostgresLoad, query
from waltz_bench.report import report
from waltz_ray.errors import AppendFailed

__all__ = ["CompareOptions", "compare_postgres", "postgres_ratios"]

POSTGRES = "PostgreSQL"


def compare_postgres(
    directory: Path, options: CompareOptions, running: str = "", progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Both clusters in ``directory``, every case in turn. Raises what either system failed with."""
    with (
        postgres_cluster(directory / "postgres", progress) as postgres,
        waltz_cluster(directory, running, progress) as waltz,
        clients_of(waltz, options.clients, 1) as clients,
        clients_of(waltz, 1, 1, outstanding=PIPELINED_RECORDS) as [pipelining],
    ):
        query(postgres.port, TABLE)
        acknowledged: list[int] = []
        ours, size = our_loads(clients, pipelining, options.size_bytes), options.size_bytes
        theirs = {
            ONE: Shape(size_bytes=size),
            MANY_CLIENTS: Shape(clients=len(clients), size_bytes=size),
            PIPELINED: Shape(outstanding=PIPELINED_RECORDS, size_bytes=size),
            BATCHED: Shape(outstanding=BATCHES * BATCH_RECORDS, chunk=BATCH_RECORDS, size_bytes=size, atomic=True),
        }
        processes, times = waltz.processes(), (options.seconds, options.warmup_s)
        cases: list[Case] = []
        for name in options.cases:
            cases.append(Case(name, window(ours[name], processes, times, waltz.syncs), WALTZ))
            cases.append(Case(name, partial(_run, postgres, theirs[name], options, acknowledged), POSTGRES))
        warm_up(cases, progress)
        rows = alternate(cases, options.runs, progress)
        stored = _stored(postgres)
        if stored != sum(acknowledged):
            raise AppendFailed(f"PostgreSQL acknowledged {sum(acknowledged)} rows and holds {stored}")
        versions = {"postgres": postgres.version}
        return report("compare postgres", rows, postgres_ratios(rows), directory, versions=versions)


def _run(postgres: Postgres, shape: Shape, options: CompareOptions, acknowledged: list[int]) -> Sample:
    load = PostgresLoad(postgres.port, shape)
    sample = measure(load, postgres.processes(), options.seconds, options.warmup_s)
    acknowledged.append(load.acknowledged)
    return sample


def _stored(postgres: Postgres) -> int:
    answer = query(postgres.port, "SELECT count(*) FROM bench")
    at = answer.index(b"D\0\0\0")
    (length,) = struct.unpack_from("!i", answer, at + 7)
    return int(answer[at + 11 : at + 11 + length])


def postgres_ratios(rows: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    """waltz_ray by PostgreSQL: the p50 of one append, the rates of the others."""
    found = {(row.system, row.case): row for row in rows}
    ratios: dict[str, dict[str, Any]] = {}
    for (system, case), row in found.items():
        if system == WALTZ and (POSTGRES, case) in found:
            other = found[POSTGRES, case]
            if case == ONE:
                ratios[f"{case}, p50"] = ratio(row.p50_us / other.p50_us, smaller_is_better=True)
            else:
                ratios[f"{case}, rate"] = ratio(row.rate / other.rate)
    return ratios
