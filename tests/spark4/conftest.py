"""The PySpark 4 lane: ``make test-spark4``. Nothing here is collected in an environment with PySpark 3.5."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import Cluster

if int(importlib.metadata.version("pyspark").partition(".")[0]) < 4:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One Spark, through RayDP, for all tests: started as an application starts it."""
    from waltz_spark.session import start_spark, stop_spark, use_java

    use_java()  # before Ray is started: its workers start Spark's JVMs
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    request.getfixturevalue("ray_head")
    try:
        yield start_spark("waltz-spark4-tests")
    finally:
        stop_spark()


@pytest.fixture
def cluster(tmp_path: Path, zookeeper_server: str) -> Iterator[Cluster]:
    """Two servers, three partitions."""
    with Cluster(tmp_path / "cluster", zookeeper_server, partitions=3, replicas=1, servers=2) as running:
        for partition_id in range(3):
            running.wait_members(partition_id, {0})
        yield running
