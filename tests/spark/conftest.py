"""One cluster of real actors and one Spark (RayDP) for all tests of the session that need them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from waltz_ray.bring_up import Cluster, bring_up
from waltz_ray.config import ClusterConfig
from waltz_ray.finding import cluster_file
from waltz_ray.take_down import take_down

BANK = "bank"
PARTITIONS = 3


@pytest.fixture(scope="session")
def bank(ray_of_tests: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster ``bank``: 3 partitions, 3 replicas, 2 servers; this process is joined to its Ray."""
    directory = tmp_path_factory.mktemp("bank")
    try:
        yield bring_up(ClusterConfig(BANK, str(directory), PARTITIONS, 3, 2), ray_of_tests)
    finally:
        known = cluster_file.read(directory)
        if known is not None:
            take_down(known)


@pytest.fixture(scope="session")
def ray_of_tests(request: pytest.FixtureRequest) -> str:
    """The session's Ray, started so that its workers can start Spark's JVMs."""
    from waltz_spark.session import use_java

    use_java()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return str(request.getfixturevalue("ray_head"))


@pytest.fixture(scope="session")
def spark(bank: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two executors of one core, so that one may be killed. Ended before ``bank``, which takes Ray away with it.

    Of Ray's CPUs they take half a one each: on two cores something must be left for Ray Data's tasks.
    """
    from waltz_spark.session import start_spark, stop_spark

    here = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("spark"))  # Spark leaves artifacts in its working directory
    try:
        half = {"spark.ray.raydp_spark_executor.actor.resource.cpu": "0.5"}
        yield start_spark("waltz-tests", executors=2, executor_cores=1, executor_memory="600m", configs=half)
    finally:
        stop_spark()
        os.chdir(here)
