"""A process with one pass of the collector, which kills itself at a point of ``collector.POINTS``.

python -m tests.spark.streams.collector_worker '{"hosts": ..., "root": ..., "node": ..., "now": ..., "marks": {...},
                                                 "point": ...}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import datetime
from typing import Any

from waltz_spark.streams.collector import Collector
from waltz_spark.streams.files import LocalFiles

from tests.spark.streams.collecting import ListFeed, settings_of
from waltz_ray.coordination.zookeeper import KazooZooKeeper

__all__ = ["SESSION_TIMEOUT_MS"]

SESSION_TIMEOUT_MS = 1000


def main(case: dict[str, Any]) -> None:
    def hook(point: str) -> None:
        if point == case["point"]:
            os.kill(os.getpid(), signal.SIGKILL)

    marks = {int(partition): mark for partition, mark in case["marks"].items()}
    zookeeper = KazooZooKeeper(case["hosts"], SESSION_TIMEOUT_MS)
    try:
        settings = settings_of(case["root"], case["node"])
        feed = ListFeed(marks, LocalFiles())
        now = datetime.fromisoformat(case["now"])
        with Collector(settings, zookeeper, feed, clock=lambda: now, hook=hook) as collector:
            collector.run_once()
    finally:
        zookeeper.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
