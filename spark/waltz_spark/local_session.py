"""A plain SparkSession in this process and one JVM, without Ray: for a collector where no Ray runs, and for tests."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from waltz_spark.session import use_java

__all__ = ["start_local_spark"]


def start_local_spark(app_name: str = "waltz", cores: int = 2, memory: str = "1g") -> SparkSession:
    """``local[cores]`` on 127.0.0.1; the session that there is, if there is one. Ended by its ``stop()``."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    settings = {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(cores),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session
