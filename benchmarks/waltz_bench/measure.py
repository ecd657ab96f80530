"""Measuring: loads, windows, alternating runs, medians.

The machine is noisy, so nothing here is a single number: every case runs several times, in turn with the others
(A B C A B C, never A A B B), and what counts is the median of its runs and the ratio of two medians of one benchmark.
"""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from waltz_bench.processes import Processes
from waltz_ray.errors import InvalidInput

__all__ = [
    "PERCENTILES",
    "Case",
    "Load",
    "Figure",
    "Sample",
    "alternate",
    "measure",
    "median",
    "percentile",
    "ratio",
    "warm_up",
]

PERCENTILES = (50.0, 99.0, 99.9)


class Load(Protocol):
    """Something that keeps a system busy from ``start`` to ``stop``."""

    records_per_call: int
    latencies_s: list[float]
    """One entry for every call that has been acknowledged, in the order of the acknowledgements."""
    failed: threading.Event
    """Set as soon as any call fails; ``stop`` then raises it."""

    def start(self) -> None:
        """Begin. Returns when everything that shall be outstanding is."""

    def stop(self) -> None:
        """No new calls; wait until every call has its acknowledgement. Raises if one failed or got none."""


@dataclass(frozen=True)
class Sample:
    """One window of one load. ``cpu_s`` and ``rss_bytes`` per process, ``latencies_us`` the three PERCENTILES,
    ``counts`` by how much a probe's numbers rose."""

    records: int
    seconds: float
    latencies_us: tuple[float, ...]
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    rss_bytes: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds


@dataclass(frozen=True)
class Case:
    """Something to measure: ``run`` takes one sample each time it is called."""

    name: str
    run: Callable[[], Sample]
    system: str = "waltz_ray"


@dataclass(frozen=True)
class Figure:
    """The runs of one case: medians over the runs, and the slowest and fastest run.

    Units: ``rate`` records a second; ``p..._us`` microseconds of one call; ``cpu_s_per_million`` CPU seconds per
    million records and process; ``cpu_share`` of one core and process; ``counts_per_million`` records of what the
    case counts, such as the syncs of each replica.
    """

    system: str
    case: str
    runs: int
    rate: float
    rate_min: float
    rate_max: float
    p50_us: float
    p99_us: float
    p999_us: float
    cpu_s_per_million: dict[str, float]
    cpu_share: dict[str, float]
    rss_mb: dict[str, float]
    counts_per_million: dict[str, float]

    @classmethod
    def of(cls, case: Case, samples: Sequence[Sample]) -> Figure:
        """From at least one sample."""
        rates = [sample.rate for sample in samples]
        p50, p99, p999 = (median([sample.latencies_us[i] for sample in samples]) for i in range(len(PERCENTILES)))
        names = list(samples[0].cpu_s)
        return cls(
            case.system,
            case.name,
            len(samples),
            round(median(rates), 1),
            round(min(rates), 1),
            round(max(rates), 1),
            round(p50, 1),
            round(p99, 1),
            round(p999, 1),
            {n: round(median([s.cpu_s[n] / max(1, s.records) * 1e6 for s in samples]), 3) for n in names},
            {n: round(median([s.cpu_s[n] / s.seconds for s in samples]), 3) for n in names},
            {n: round(median([s.rss_bytes[n] / 1e6 for s in samples]), 1) for n in samples[0].rss_bytes},
            {n: round(median([s.counts[n] / max(1, s.records) * 1e6 for s in samples]), 1) for n in samples[0].counts},
        )


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank: the smallest value that ``percent`` of all values do not exceed. InvalidInput if there are none."""
    if not values:
        raise InvalidInput("there is no percentile of nothing: no call was acknowledged in the window; run longer")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(0, min(len(ordered) - 1, int(rank) - 1))]


def median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the two in the middle."""
    if not values:
        raise InvalidInput("there is no median of nothing; let it run at least once")
    return float(statistics.median(values))


def ratio(
    value: float, gate: float | None = None, goal: float | None = None, *, smaller_is_better: bool = False
) -> dict[str, Any]:
    """A ratio and whether it meets its gate and its goal; None where there is no such thing."""

    def met(bound: float | None) -> bool | None:
        if bound is None:
            return None
        return value <= bound if smaller_is_better else value >= bound

    return {
        "value": round(value, 3),
        "gate": gate,
        "goal": goal,
        "smaller_is_better": smaller_is_better,
        "gate_met": met(gate),
        "goal_met": met(goal),
    }


def measure(
    load: Load,
    processes: Processes,
    seconds: float,
    warmup_s: float = 0.3,
    probe: Callable[[], Mapping[str, float]] = dict,
) -> Sample:
    """Run ``load`` for ``warmup_s`` + ``seconds`` and look at the latter. Raises what the load failed with.

    ``probe`` gives counts that only rise; it is asked just before and just after the window.
    """
    gc.collect()
    gc.freeze()  # what this process has imported is not measured: one look at all of it is 70 ms, for every system
    try:
        return _window(load, processes, seconds, warmup_s, probe)
    finally:
        gc.unfreeze()


def _window(
    load: Load, processes: Processes, seconds: float, warmup_s: float, probe: Callable[[], Mapping[str, float]]
) -> Sample:
    load.start()
    try:
        load.failed.wait(warmup_s)
        counts_before, cpu_before = probe(), processes.cpu_s()
        begin, first = time.perf_counter(), len(load.latencies_s)
        load.failed.wait(seconds)
        last, end, cpu_after = len(load.latencies_s), time.perf_counter(), processes.cpu_s()
        counts_after, rss = probe(), processes.rss_bytes()
    finally:
        load.stop()
    # Nothing in a whole window is a result, too: then every call took at least as long as that.
    latencies = load.latencies_s[first:last] or [end - begin]
    return Sample(
        records=(last - first) * load.records_per_call,
        seconds=end - begin,
        latencies_us=tuple(percentile(latencies, each) * 1e6 for each in PERCENTILES),
        cpu_s={name: cpu_after[name] - cpu_before[name] for name in cpu_after},
        rss_bytes=rss,
        counts={name: counts_after[name] - counts_before[name] for name in counts_after},
    )


def warm_up(cases: Sequence[Case], progress: Callable[[str], None] = lambda text: None) -> None:
    """Every case once, for nothing."""
    for case in cases:
        progress(f"warming up: {case.system}, {case.name}")
        case.run()


def alternate(cases: Sequence[Case], runs: int, progress: Callable[[str], None] = lambda text: None) -> list[Figure]:
    """Every case ``runs`` times, in turn; one row for each, in the order of the cases."""
    if runs < 1:
        raise InvalidInput(f"--runs must be at least 1, not {runs}")
    samples: list[list[Sample]] = [[] for _ in cases]
    for run in range(runs):
        for case, taken in zip(cases, samples, strict=True):
            progress(f"run {run + 1} of {runs}: {case.system}, {case.name}")
            taken.append(case.run())
    return [Figure.of(case, taken) for case, taken in zip(cases, samples, strict=True)]
