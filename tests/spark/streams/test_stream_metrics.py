"""``/metrics`` of the stream services: the figures of the status, the page that lists them, and looks that fail."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from waltz_spark.streams import collector_status
from waltz_spark.streams.cli import StreamsStatus
from waltz_spark.streams.collector_status import CollectorStatus
from waltz_spark.streams.metrics import COLLECTOR_GAUGES, OF_ALL, SERVICE_GAUGES, StreamsWatch, streams_exposition
from waltz_spark.streams.status import status

from tests.spark.streams.collecting import Place
from tests.spark.streams.faults import Fuse
from tests.spark.streams.memory_files import MemoryFiles
from tests.spark.streams.world import CHAIN, FIRST, NOW, World
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.errors import AccessRefused, ZooKeeperUnreachable

PAGE = Path(__file__).parents[3] / "docs/metrics.md"
COLLECTOR = CollectorStatus(
    *("c1", "bank", "orders", "/a", True, "", "COLLECT_DONE", None, 0, "202611211550", None, 7, 70, {}, {}, 12, "")
)


def values(page: bytes) -> dict[tuple[str, str], float]:
    """(name, labels' values) -> value."""
    return {
        (sample.name, " ".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def view(world: World, server: MemoryZooKeeperServer) -> StreamsStatus:
    services = status(server.client(), lambda root: world.files, lambda: NOW, world.node)
    return StreamsStatus("memory", services, [COLLECTOR], {"odd": "not JSON"})


def test_the_figures_of_a_chain() -> None:
    world, server = World(MemoryFiles(), "/x", minutes=3), MemoryZooKeeperServer()
    zookeeper = server.client()
    for name in CHAIN[:2]:
        with world.service(name, zookeeper) as service:
            service.run_once()
    world.collect(FIRST - timedelta(minutes=20), 1)
    found = values(streams_exposition(view(world, server), NOW))
    assert found["waltz_stream_commits", "local tokyo"] == found["waltz_stream_commits", "merged all"] == 3
    assert found["waltz_stream_not_consumed", "far merged all"] == 3
    assert found["waltz_stream_running", "local tokyo"] == 0
    assert found["waltz_stream_unpublished", "local tokyo"] == 1
    # 15:30 is over since 15:31.
    assert found["waltz_stream_lag_seconds", "local tokyo"] == (NOW - FIRST).total_seconds() + 19 * 60
    assert found["waltz_stream_lag_seconds", "merged all"] == 0
    assert found["waltz_streams_unreadable", ""] == 1
    assert found["waltz_streams_view_seconds", ""] == NOW.timestamp()
    assert found["waltz_collector_lag_transactions", "orders c1"] == 12
    assert ("waltz_collector_lag_minutes", "orders c1") not in found  # it is not known


def test_a_collector_whose_marks_are_refused_hides_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks may have no right to read what one of them collects."""

    def refused(reading: object) -> None:
        raise AccessRefused("nobody may read in log: show a certificate or a token")

    place = Place()
    assert place.collect(Fuse())
    monkeypatch.setattr(collector_status, "Marks", refused)
    (seen,) = collector_status.collector_status(place.server.client(), "127.0.0.1:1", lambda: place.now)
    assert (seen.lag_records, seen.trouble) == (None, "nobody may read in log: show a certificate or a token")


def test_every_figure_is_told_and_on_the_page() -> None:
    world, server = World(MemoryFiles(), "/x"), MemoryZooKeeperServer()
    world.finish(server.client())
    told = {name for name, _ in values(streams_exposition(view(world, server), NOW))}
    names = {*OF_ALL, *(gauge.name for gauge in (*SERVICE_GAUGES, *COLLECTOR_GAUGES))}
    assert told == names - {"waltz_collector_lag_minutes"}
    _, _, page = PAGE.read_text().partition("## The stream services\n")
    listed = [line for line in page.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    rows = [f"| `{name}` | | {text} |" for name, text in OF_ALL.items()]
    for labels, gauges in ((("service", "kind"), SERVICE_GAUGES), (("collector", "category"), COLLECTOR_GAUGES)):
        for gauge in gauges:
            keys = ", ".join(f"`{each}`" for each in (*labels, *([gauge.by] if gauge.by else [])))
            rows.append(f"| `{gauge.name}` | {keys} | {gauge.text} |")
    assert listed == rows


def test_the_last_look_stays_when_zookeeper_is_away(caplog: pytest.LogCaptureFixture) -> None:
    looks = threading.Semaphore(0)
    seen = StreamsStatus("memory", [], [], {})
    troubles = iter(["gone", "", "gone again"])

    def look() -> StreamsStatus:
        looks.release()
        if trouble := next(troubles, "still gone"):
            raise ZooKeeperUnreachable(trouble)
        return seen

    watch = StreamsWatch(look, every_s=0.01)
    try:
        for _ in range(5):
            assert looks.acquire(timeout=30)
    finally:
        watch.close()
    page, trouble = watch.page()
    assert "waltz_streams_view_seconds" in page.decode()
    assert trouble == "still gone"
    assert [record.getMessage() for record in caplog.records] == [
        "the threads cannot be looked at: gone",
        "the threads cannot be looked at: gone again",
    ]


def test_a_look_that_fails_as_nobody_has_foreseen_is_not_the_last_one() -> None:
    looks = threading.Semaphore(0)
    errors: list[Exception] = [KeyError("fields")]

    def look() -> StreamsStatus:
        looks.release()
        if errors:
            raise errors.pop()
        return StreamsStatus("memory", [], [], {})

    watch = StreamsWatch(look, every_s=0.01)
    try:
        for _ in range(3):
            assert looks.acquire(timeout=30)
    finally:
        watch.close()
    page, trouble = watch.page()
    assert ("waltz_streams_view_seconds" in page.decode(), trouble) == (True, "")
