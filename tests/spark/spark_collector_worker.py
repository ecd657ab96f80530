"""A process with a Spark of its own and one pass of a collector, which is killed while Spark's tasks write.

python -m tests.spark.spark_collector_worker '{"hosts": ..., "cluster": ..., "root": ..., "node": ..., "now": ...,
                                               "seconds": 0.5}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from datetime import datetime
from typing import Any

from waltz_spark.local_session import start_local_spark
from waltz_spark.streams.collector import Collector, CollectorSettings
from waltz_spark.streams.collector_files import ClusterFeed

from waltz_ray.coordination.zookeeper import KazooZooKeeper

__all__ = ["settings_of"]


def settings_of(root: str, cluster: str, node: str) -> CollectorSettings:
    return CollectorSettings("c1", root, "bank", cluster, bytes_per_task=100_000, zookeeper_root=node)


def main(case: dict[str, Any]) -> None:
    def hook(point: str) -> None:
        if point == "before WRITE":
            threading.Timer(case["seconds"], os.kill, (os.getpid(), signal.SIGKILL)).start()

    spark = start_local_spark("killed")
    spark.range(1).count()  # so that the first job is not all start-up
    zookeeper = KazooZooKeeper(case["hosts"], 1000)
    settings = settings_of(case["root"], case["cluster"], case["node"])
    now = datetime.fromisoformat(case["now"])
    Collector(settings, zookeeper, ClusterFeed(spark, settings, case["hosts"]), clock=lambda: now, hook=hook).run_once()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
