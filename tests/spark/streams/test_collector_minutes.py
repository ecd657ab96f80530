"""Which transactions belong to which minute: by the clock under which they were appended, also after a pause."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from waltz_spark.streams import collector as streams_collector
from waltz_spark.streams.collector import Collected, Collector
from waltz_spark.streams.collector_states import next_minute
from waltz_spark.streams.files import LocalFiles

from tests.spark.streams.collecting import ListFeed, settings_of
from waltz_ray.client.readers.ranges import Range, bounds_of, split_ranges
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer

NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)


class Clocks:
    """Partition -> seconds after noon at which its transactions were appended; None = before there were times."""

    def __init__(self, appended: Mapping[int, Sequence[float | None]]) -> None:
        self.appended = appended

    def appended_ms(self, partition_id: int, transaction_id: int) -> int | None:
        seconds = self.appended[partition_id][transaction_id]
        return None if seconds is None else round((NOON.timestamp() + seconds) * 1000)

    def first_id_at(self, partition_id: int, time_ms: int) -> int:
        known = [self.appended_ms(partition_id, n) or 0 for n in range(len(self.appended[partition_id]))]
        return bisect_left(known, time_ms)

    def new(self, position: Mapping[int, int]) -> list[Range]:
        marks = {p: len(times) - 1 for p, times in self.appended.items()}
        return bounds_of({p: position.get(p, 0) for p in marks}, "latest", marks)


@pytest.mark.parametrize(
    ("appended", "position", "first", "last", "minute", "ranges"),
    [
        ({0: [1, 59.999, 60, 61, 185]}, {}, 0, 9, 0, [(0, 0, 2)]),
        ({0: [1, 59.999, 60, 61, 185]}, {0: 2}, 1, 9, 1, [(0, 2, 4)]),
        ({0: [1, 59.999, 60, 61, 185]}, {0: 4}, 2, 9, 3, [(0, 4, 5)]),
        ({0: [1, 59.999, 60, 61, 185]}, {0: 4}, 2, 2, 2, []),
        ({0: [1, 59.999, 60, 61, 185]}, {0: 5}, 4, 9, 9, []),
        ({0: [1, 70], 1: [130], 2: []}, {}, 0, 5, 0, [(0, 0, 1)]),
        ({0: [1, 70], 1: [130], 2: []}, {0: 1}, 1, 5, 1, [(0, 1, 2)]),
        # Their minute is closed: they belong to the first that is not.
        ({0: [1, 59, 61, 125]}, {}, 2, 5, 2, [(0, 0, 4)]),
        # Of a log from before there were times.
        ({0: [None, None, 1]}, {}, 0, 5, 5, [(0, 0, 3)]),
        ({0: [None, None], 1: [62]}, {}, 0, 5, 1, [(1, 0, 1)]),
    ],
)
def test_the_next_minute(
    appended: Mapping[int, Sequence[float | None]],
    position: Mapping[int, int],
    first: int,
    last: int,
    minute: int,
    ranges: list[tuple[int, int, int]],
) -> None:
    clocks = Clocks(appended)
    found = next_minute(clocks.new(position), NOON + first * MINUTE, NOON + last * MINUTE, clocks)
    assert found == (NOON + minute * MINUTE, [Range(*each) for each in ranges])


class TimedFeed(ListFeed):
    """A log whose transactions were appended when ``clocks`` says."""

    def __init__(self, clocks: Clocks) -> None:
        super().__init__({p: len(times) - 1 for p, times in clocks.appended.items()}, LocalFiles())
        self.clocks = clocks

    def plan_minute(self, position: Mapping[int, int], first: datetime, last: datetime) -> tuple[datetime, list[Range]]:
        return next_minute(self.clocks.new(position), first, last, self.clocks)


@pytest.fixture
def zookeeper() -> Iterator[MemoryZooKeeper]:
    client = MemoryZooKeeperServer().client()
    yield client
    client.close()


def test_after_a_pause_each_record_is_in_its_minute(tmp_path: Path, zookeeper: MemoryZooKeeper) -> None:
    """The collector is away from 12:01 to 12:10: what came in at 12:02, 12:03 and 12:07 is found there."""
    clocks = Clocks({0: [1, 130, 185, 186, 440], 1: [131]})
    now = NOON + MINUTE + timedelta(seconds=2)
    settings = settings_of(str(tmp_path))
    first = TimedFeed(Clocks({0: [1], 1: []}))
    with Collector(settings, zookeeper, first, clock=lambda: now) as collector:
        assert collector.run_once() == Collected(False, NOON, 0, 1, 0)
    now = NOON + timedelta(minutes=10, seconds=1.9)
    with Collector(settings, zookeeper, TimedFeed(clocks), clock=lambda: now) as collector:
        passes: list[tuple[int, int, int]] = []
        while (done := collector.run_once()).minute is not None:
            passes.append(((done.minute - NOON) // MINUTE, done.empty, done.records))
        assert passes == [(2, 1, 2), (3, 0, 2), (7, 3, 1), (8, 0, 0)], "12:09 is not over by two seconds yet"
        now += timedelta(seconds=0.1)
        assert collector.run_once().minute == NOON + 9 * MINUTE
        assert collector.node.records == 6
    names = sorted(path.name for path in (tmp_path / "data/bank/c1").glob("*.parquet"))
    assert [name.rpartition(".")[0] for name in names] == [
        "202611211200.0-0-0",
        "202611211202.0-1-1",
        "202611211202.1-0-0",
        "202611211203.0-2-3",
        "202611211207.0-4-4",
    ]
    assert len(list((tmp_path / "data/bank/c1").glob("*.done"))) == 10


class SplitFeed(TimedFeed):
    """Files of two records each, as ``plan`` has them."""

    def plan_minute(self, position: Mapping[int, int], first: datetime, last: datetime) -> tuple[datetime, list[Range]]:
        minute, ranges = super().plan_minute(position, first, last)
        return minute, split_ranges(ranges, {}, 2)


def test_a_clock_that_is_years_ahead_for_a_moment_does_not_have_years_marked(
    tmp_path: Path, zookeeper: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streams_collector, "MOST_MARKED", 7 * MINUTE)
    appended: list[float | None] = [1]
    now, years = NOON + MINUTE + timedelta(seconds=2), timedelta(days=365 * 70)
    with Collector(
        settings_of(str(tmp_path)), zookeeper, TimedFeed(Clocks({0: appended})), clock=lambda: now
    ) as collector:
        assert collector.run_once().records == 1
        now += 10 * MINUTE
        passed = collector.run_once()
        assert (passed.minute, passed.records) == (NOON + 7 * MINUTE, 0)
        appended.append(8 * 60)
        passed = collector.run_once()
        assert (passed.minute, passed.records) == (NOON + 8 * MINUTE, 1)
        assert collector.run_once().minute == NOON + 10 * MINUTE
        now += years
        assert collector.run_once().minute == NOON + 17 * MINUTE
        now -= years
        assert collector.run_once().minute is None
        assert "waits" not in caplog.text
        now -= 2 * timedelta(hours=1)
        assert [collector.run_once().minute, collector.run_once().minute] == [None, None]
        assert caplog.text.count("collector c1 waits: it has marked minute 202611211217") == 1
    assert len(list(tmp_path.glob("data/bank/c1/*.done"))) == 18


def test_a_log_too_large_for_one_plan_is_in_several_minutes(
    tmp_path: Path, zookeeper: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("waltz_spark.streams.collector.PLAN_RANGES", 2)
    clocks = Clocks({0: [-500] * 7, 1: [-400, -300, 1]})
    now = NOON + MINUTE + timedelta(seconds=2)
    with Collector(settings_of(str(tmp_path)), zookeeper, SplitFeed(clocks), clock=lambda: now) as collector:
        passes: list[tuple[int, int]] = []
        while (done := collector.run_once()).minute is not None:
            passes.append(((done.minute - NOON) // MINUTE, done.records))
        assert passes == [(-2, 3), (-1, 4), (0, 3)]
        now += MINUTE
        assert collector.run_once().records == 0
        assert collector.node.position == {0: 7, 1: 3}
    files = [path.name.split(".")[1].split("-") for path in (tmp_path / "data/bank/c1").glob("*.parquet")]
    found = [(int(p), n) for p, first, last in files for n in range(int(first), int(last) + 1)]
    assert sorted(found) == [*((0, n) for n in range(7)), *((1, n) for n in range(3))]
