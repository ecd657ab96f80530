"""``/metrics``: a cluster's figures as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from waltz_ray.runtime.figures import FIGURES, Metric, samples
from waltz_ray.runtime.histogram import HistogramView
from waltz_ray.runtime.status import ClusterStatus

__all__ = ["KIND", "exposition"]

KIND = "text/plain; version=0.0.4; charset=utf-8"
"""The header Content-Type of it."""


class _Collector:
    def __init__(self, view: ClusterStatus) -> None:
        self._view = view

    def collect(self) -> Iterator[Family]:
        found: dict[str, list[tuple[list[str], float | HistogramView]]] = {}
        for metric, labels, value in samples(self._view):
            found.setdefault(metric.name, []).append((labels, value))
        for keys, metrics in FIGURES.values():
            for metric in metrics:
                if metric.name in found:
                    yield _family(metric, [*keys, *([metric.by] if metric.by else [])], found[metric.name])


def exposition(view: ClusterStatus) -> bytes:
    """Every figure of a cluster that is known, in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(view))
    return generate_latest(registry)


def _family(
    metric: Metric[object], keys: list[str], values: Iterable[tuple[list[str], float | HistogramView]]
) -> Family:
    told = list(values)
    if isinstance(told[0][1], HistogramView):
        histogram = HistogramMetricFamily(metric.name, metric.text, labels=keys)
        for labels, value in told:
            assert isinstance(value, HistogramView)
            histogram.add_metric(labels, value.cumulative(), value.total)
        return histogram
    kind = CounterMetricFamily if metric.name.endswith("_total") else GaugeMetricFamily
    family = kind(
        metric.name.removesuffix("_total") if kind is CounterMetricFamily else metric.name, metric.text, labels=keys
    )
    for labels, value in told:
        assert not isinstance(value, HistogramView)
        family.add_metric(labels, float(value))
    return family
