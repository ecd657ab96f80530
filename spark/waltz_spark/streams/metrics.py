"""``/metrics`` of the stream services: what ``waltz streams status`` says, as Prometheus reads it.

The status is looked at by a thread of its own, every few seconds; a request gets what was seen last. So whoever asks
often costs nothing, and a ZooKeeper that hangs is told by the age of what was seen.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from waltz_ray.errors import InvalidInput, WaltzError
from waltz_spark.streams.collector_status import CollectorStatus
from waltz_spark.streams.layout import parse_minute
from waltz_spark.streams.status import ThreadStatus

if TYPE_CHECKING:
    from waltz_spark.streams.cli import StreamsStatus

__all__ = ["COLLECTOR_GAUGES", "OF_ALL", "SERVICE_GAUGES", "StreamGauge", "StreamsWatch", "streams_exposition"]

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0


@dataclass(frozen=True)
class StreamGauge:
    """One figure of a thread. ``of``: (what the label ``by`` is, value) of each; None = it is not known."""

    name: str
    text: str
    of: Callable[[Any, datetime], Iterable[tuple[str, float | None]]]
    by: str = ""


def _one(value: Callable[[Any, datetime], float | None]) -> Callable[[Any, datetime], list[tuple[str, float | None]]]:
    return lambda status, now: [("", value(status, now))]


def _oldest_seconds(status: ThreadStatus, now: datetime) -> float:
    """Since the end of the oldest minute that is not published; 0 = all are."""
    try:
        oldest = parse_minute(status.oldest_unpublished or "")
    except InvalidInput:
        return 0.0  # there is none, or something odd, which is in quarantine
    return max(0.0, (now - oldest - timedelta(minutes=1)).total_seconds())


SERVICE_GAUGES: tuple[StreamGauge, ...] = (
    StreamGauge("waltz_stream_running", "1 if a run has its lock, else 0", _one(lambda s, now: s.running)),
    StreamGauge("waltz_stream_commits", "parts that it has published in all", _one(lambda s, now: s.commits)),
    StreamGauge(
        "waltz_stream_in_flight", "1 if a part is between two states, else 0", _one(lambda s, now: bool(s.in_flight))
    ),
    StreamGauge(
        "waltz_stream_unpublished", "parts that wait to be published by it", _one(lambda s, now: s.unpublished)
    ),
    StreamGauge(
        "waltz_stream_lag_seconds",
        "since the oldest minute that waits ended; 0: none waits",
        _one(_oldest_seconds),
    ),
    StreamGauge("waltz_stream_quarantined", "records in its quarantine", _one(lambda s, now: len(s.quarantined))),
    StreamGauge(
        "waltz_stream_not_consumed",
        "parts that are announced to a consumer and not taken over",
        lambda s, now: s.pending.items(),
        "consumer",
    ),
)
"""Of each service; labels: ``service``, ``kind``."""

COLLECTOR_GAUGES: tuple[StreamGauge, ...] = (
    StreamGauge("waltz_collector_running", "1 if a run has its lock, else 0", _one(lambda c, now: c.running)),
    StreamGauge("waltz_collector_minutes", "minutes that it has marked in all", _one(lambda c, now: c.minutes)),
    StreamGauge("waltz_collector_records", "records in them", _one(lambda c, now: c.records)),
    StreamGauge(
        "waltz_collector_lag_minutes", "minutes that are over and not marked", _one(lambda c, now: c.lag_minutes)
    ),
    StreamGauge("waltz_collector_lag_transactions", "committed and not collected", _one(lambda c, now: c.lag_records)),
)
"""Of each collector; labels: ``collector``, ``category``."""

OF_ALL = {
    "waltz_streams_view_seconds": "when the threads were looked at last, Unix time",
    "waltz_streams_unreadable": "threads whose node in ZooKeeper cannot be understood",
}
"""Without labels."""


class _Families:
    def __init__(self, view: StreamsStatus, seen: datetime) -> None:
        self._view, self._seen = view, seen

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for (name, text), value in zip(
            OF_ALL.items(), (self._seen.timestamp(), len(self._view.unreadable)), strict=True
        ):
            yield GaugeMetricFamily(name, text, value)
        for gauge in SERVICE_GAUGES:
            yield self._family(gauge, ("service", "kind"), self._view.services, lambda s: (s.name, s.kind))
        for gauge in COLLECTOR_GAUGES:
            yield self._family(gauge, ("collector", "category"), self._view.collectors, lambda c: (c.name, c.category))

    def _family(
        self,
        gauge: StreamGauge,
        labels: tuple[str, ...],
        threads: Iterable[ThreadStatus | CollectorStatus],
        names: Callable[[Any], tuple[str, ...]],
    ) -> GaugeMetricFamily:
        family = GaugeMetricFamily(gauge.name, gauge.text, labels=[*labels, *([gauge.by] if gauge.by else [])])
        for thread in threads:
            for by, value in gauge.of(thread, self._seen):
                if value is not None:
                    family.add_metric([*names(thread), *([by] if gauge.by else [])], float(value))
        return family


def streams_exposition(view: StreamsStatus, seen: datetime) -> bytes:
    """In Prometheus' text format. ``seen``: when it was looked at."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(view, seen))
    return generate_latest(registry)


class StreamsWatch:
    """Looks every few seconds, in a thread of its own, until ``close``. ``look``: one status; what it raises is
    told, and it is tried again."""

    def __init__(self, look: Callable[[], StreamsStatus], every_s: float = LOOK_EVERY_S) -> None:
        self._look, self._every_s = look, every_s
        self._stop = threading.Event()
        self._page = b""
        self._trouble = "the threads were not looked at yet"
        self._thread = threading.Thread(target=self._run, name="streams-metrics", daemon=True)
        self._thread.start()

    def page(self) -> tuple[bytes, str]:
        """What was seen last, b"" before the first look, and why it is not of now, "" = it is."""
        return self._page, self._trouble

    def close(self) -> None:
        """Returns when the look that is under way has ended. Idempotent."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._page = streams_exposition(self._look(), datetime.now(timezone.utc))
                self._trouble = ""
            except Exception as error:  # whatever it is: who ceases to look tells nobody of it
                known = isinstance(error, (WaltzError, OSError))
                if not self._trouble or not self._page:
                    log.warning("the threads cannot be looked at: %s", error, exc_info=None if known else error)
                self._trouble = str(error) if known else f"{type(error).__name__}: {error}"
            self._stop.wait(self._every_s)
