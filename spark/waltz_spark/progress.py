"""How a stream is getting on: one object per batch, and the same for Prometheus."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from prometheus_client import Counter, Gauge

__all__ = ["BatchProgress", "publish"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchProgress:
    """What a query has done in one committed batch.

    ``records``: transactions of its ranges, before any header filter; ``bytes``: their size, from the average at the
    beginning of each range; ``duration_s``: from planning to commit. ``lag``: partition -> committed transactions
    behind this batch, as of its planning: the high-water mark minus the last transaction of the batch.
    ``replayed``: an earlier run had planned it and was ended before its commit.
    """

    batch_id: int
    records: int
    bytes: int
    duration_s: float
    records_per_s: float
    lag: Mapping[int, int]
    replayed: bool = False

    def as_json(self) -> dict[str, Any]:
        """The progress as plain values for ``json.dumps``."""
        return asdict(self) | {"lag": {str(partition): lag for partition, lag in self.lag.items()}}


@functools.cache
def _metrics() -> dict[str, Any]:
    """In prometheus_client's default registry, made when a stream first commits: nobody else gets them."""
    labels = ("cluster", "checkpoint")
    return {
        "batches": Counter("waltz_spark_stream_batches", "batches committed by this process", labels),
        "records": Counter("waltz_spark_stream_records", "transactions in them", labels),
        "bytes": Counter("waltz_spark_stream_bytes", "estimated bytes of their records", labels),
        "last_batch": Gauge("waltz_spark_stream_last_batch", "ID of the last committed batch", labels),
        "duration": Gauge("waltz_spark_stream_batch_duration_seconds", "from planning to commit", labels),
        "lag": Gauge("waltz_spark_stream_lag", "committed transactions not yet in a batch", (*labels, "partition")),
    }


def publish(cluster: str, checkpoint: str, progress: BatchProgress) -> None:
    """To Prometheus (``prometheus_client.start_http_server`` shows them) and to the log."""
    metrics = _metrics()
    labels = (cluster, checkpoint)
    metrics["batches"].labels(*labels).inc()
    metrics["records"].labels(*labels).inc(progress.records)
    metrics["bytes"].labels(*labels).inc(progress.bytes)
    metrics["last_batch"].labels(*labels).set(progress.batch_id)
    metrics["duration"].labels(*labels).set(progress.duration_s)
    for partition_id, lag in progress.lag.items():
        metrics["lag"].labels(*labels, str(partition_id)).set(lag)
    log.info(
        "stream of %s: batch %d, %d records in %.1f s, %d behind",
        cluster,
        progress.batch_id,
        progress.records,
        progress.duration_s,
        sum(progress.lag.values()),
    )
