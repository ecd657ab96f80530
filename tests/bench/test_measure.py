"""Percentiles, medians, ratios; the order of the runs; what a window counts."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waltz_bench import loads
from waltz_bench.loads import AppendLoad
from waltz_bench.measure import Case, Figure, Sample, alternate, measure, median, percentile, ratio
from waltz_bench.processes import DRIVER, Processes

from waltz_ray.errors import AppendFailed, AppendTimeout, DataUnavailable, InvalidInput


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 50, 7.0),
        ([7.0], 99.9, 7.0),
        ([2.0, 1.0], 50, 1.0),
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([float(n) for n in range(1, 101)], 99, 99.0),
        ([float(n) for n in range(1, 101)], 99.9, 100.0),
        ([float(n) for n in range(1, 1001)], 99.9, 999.0),
    ],
)
def test_percentile_is_the_nearest_rank(values: Sequence[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.sampled_from([1.0, 50.0, 90.0, 99.0, 99.9]))
def test_percentile_is_the_smallest_that_enough_do_not_exceed(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    needed = percent / 100 * len(values)
    assert sum(each <= found for each in values) >= needed - 1e-9
    assert sum(each < found for each in values) < needed + 1e-9


def test_there_is_no_percentile_or_median_of_nothing() -> None:
    with pytest.raises(InvalidInput, match="run longer"):
        percentile([], 50)
    with pytest.raises(InvalidInput, match="at least once"):
        median([])


def test_median() -> None:
    assert median([9.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5


def test_a_ratio_meets_its_bounds_inclusively_in_its_direction() -> None:
    assert ratio(1.5, 1.5, 3.0) == {
        "value": 1.5,
        "gate": 1.5,
        "goal": 3.0,
        "smaller_is_better": False,
        "gate_met": True,
        "goal_met": False,
    }
    small = ratio(0.6, 0.9, 0.6, smaller_is_better=True)
    assert (small["gate_met"], small["goal_met"]) == (True, True)
    assert ratio(0.91, 0.9, 0.6, smaller_is_better=True)["gate_met"] is False
    assert ratio(5.0)["gate_met"] is None


def test_a_ratio_is_judged_before_it_is_rounded() -> None:
    assert ratio(0.99996, 1.0)["gate_met"] is False


def _sample(records: int, seconds: float = 2.0, cpu: float = 1.0) -> Sample:
    return Sample(records, seconds, (1.0, 2.0, 3.0), {DRIVER: cpu}, {DRIVER: 5_000_000}, {"syncs": records / 2})


def test_the_cases_take_turns() -> None:
    order: list[str] = []

    def case(name: str) -> Case:
        def run() -> Sample:
            order.append(name)
            return _sample(100)

        return Case(name, run)

    rows = alternate([case("a"), case("b"), case("c")], 3)
    assert order == ["a", "b", "c"] * 3
    assert [row.case for row in rows] == ["a", "b", "c"]
    with pytest.raises(InvalidInput, match="at least 1"):
        alternate([case("a")], 0)


def test_a_row_is_the_median_of_its_runs() -> None:
    row = Figure.of(
        Case("x", lambda: _sample(1)), [_sample(1000, cpu=4.0), _sample(4000, cpu=4.0), _sample(2000, cpu=4.0)]
    )
    assert (row.rate, row.rate_min, row.rate_max) == (1000.0, 500.0, 2000.0)
    assert row.cpu_s_per_million == {DRIVER: 2000.0}
    assert row.cpu_share == {DRIVER: 2.0}
    assert row.rss_mb == {DRIVER: 5.0}
    assert row.counts_per_million == {"syncs": 500_000.0}


class _Fake:
    """Calls that a thread answers in order, the n-th with what ``outcomes`` says (None: success)."""

    def __init__(self, fail_at: int = 0) -> None:
        self._fail_at = fail_at
        self._calls = itertools.count(1)
        self._waiting: list[tuple[int, Future[Any]]] = []
        self._changed = threading.Condition()
        self._open = True
        self.most = 0
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def call(self) -> Future[Any]:
        future: Future[Any] = Future()
        with self._changed:
            self._waiting.append((next(self._calls), future))
            self.most = max(self.most, len(self._waiting))
            self._changed.notify()
        return future

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()

    def _answer(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or not self._open)
                if not self._waiting:
                    return
                number, future = self._waiting[0]
            if number == self._fail_at:
                future.set_exception(AppendFailed("on purpose"))
            else:
                future.set_result(number)
            with self._changed:
                self._waiting.remove((number, future))


def test_a_load_keeps_its_calls_in_the_air_and_counts_the_window() -> None:
    fake = _Fake()
    try:
        load = AppendLoad([fake.call] * 3, records_per_call=10)
        probed: list[int] = []

        def probe() -> dict[str, float]:
            probed.append(len(load.latencies_s))
            return {"calls": float(len(load.latencies_s))}

        sample = measure(load, Processes({}), seconds=0.1, warmup_s=0.02, probe=probe)
    finally:
        fake.close()
    assert len(probed) == 2
    assert 0 < sample.records <= 10 * len(load.latencies_s)
    assert sample.counts["calls"] >= sample.records / 10
    assert sample.records % 10 == 0
    assert 1 <= fake.most <= 4  # the call that is being answered is still counted when its successor comes
    assert set(sample.cpu_s) == set(sample.rss_bytes) == {DRIVER}


def test_a_window_in_which_nothing_commits_is_a_rate_of_zero_and_a_long_latency() -> None:
    future: Future[Any] = Future()
    load = AppendLoad([lambda: future])

    def resume() -> dict[str, float]:
        """The window is over when it is asked again."""
        asked.append(0)
        if len(asked) == 2:
            load.ending()
            future.set_result(0)
        return {}

    asked: list[int] = []
    sample = measure(load, Processes({}), seconds=0.05, warmup_s=0.0, probe=resume)
    assert (sample.records, sample.rate) == (0, 0.0)
    assert all(each >= 50_000 for each in sample.latencies_us)


def test_a_failed_call_ends_the_window_at_once_and_is_raised() -> None:
    fake = _Fake(fail_at=5)
    try:
        with pytest.raises(AppendFailed, match="on purpose"):
            measure(AppendLoad([fake.call] * 2), Processes({}), seconds=60.0, warmup_s=60.0)
    finally:
        fake.close()


def test_a_call_without_a_fate_is_lost_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "_LAST_FATES_S", 0.05)
    futures: list[Future[Any]] = [Future() for _ in range(3)]
    load = AppendLoad([lambda future=future: future for future in futures])  # type: ignore[misc]
    load.start()
    load.ending()
    for future in futures[:2]:
        future.set_result(7)
    with pytest.raises(AppendTimeout, match="1 of 3 calls"):
        load.stop()


def test_a_call_that_raises_is_reported_like_one_that_fails() -> None:
    frozen: list[int] = []

    def call() -> Future[Any]:
        frozen.append(gc.get_freeze_count())
        raise InvalidInput("no such partition")

    with pytest.raises(InvalidInput, match="no such partition"):
        measure(AppendLoad([call]), Processes({}), seconds=60.0, warmup_s=60.0)
    assert frozen[0] > gc.get_freeze_count() == 0  # of what the process has imported, and only while it was measured


def test_a_process_that_is_gone_is_named() -> None:
    with pytest.raises(DataUnavailable, match="process 4194304 ended"):
        Processes({"server-0": 4194304})  # beyond the kernel's largest pid
