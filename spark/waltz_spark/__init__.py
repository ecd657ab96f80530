"""The Spark side of waltz_ray: a Spark on the same Ray cluster, and the log's feed as DataFrames and streams.

from waltz_spark import read_feed, start_spark, stop_spark

spark = start_spark("analytics")
feed = read_feed(spark, "bank")
feed.groupBy("partition_id").count().show()
stop_spark()

``waltz_ray.read_dataset`` gives the same as a ``ray.data.Dataset``. Nothing is imported here before it is asked for:
Spark's Python workers import this package and can do without Ray, the stream services can do without PySpark.
``docs/spark.md`` has all of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waltz_spark.decoders import JsonRows
    from waltz_spark.feed import read_feed
    from waltz_spark.key_values import read_kv
    from waltz_spark.progress import BatchProgress
    from waltz_spark.session import start_spark, stop_spark, use_java
    from waltz_spark.stream import stream_feed
    from waltz_spark.stream_runner import FeedStream
    from waltz_spark.topic_rows import TopicRows

__all__ = [
    "BatchProgress",
    "FeedStream",
    "JsonRows",
    "TopicRows",
    "read_feed",
    "read_kv",
    "start_spark",
    "stop_spark",
    "stream_feed",
    "use_java",
]

_MODULES = {
    "BatchProgress": "progress",
    "FeedStream": "stream_runner",
    "JsonRows": "decoders",
    "TopicRows": "topic_rows",
    "read_feed": "feed",
    "read_kv": "key_values",
    "start_spark": "session",
    "stop_spark": "session",
    "stream_feed": "stream",
    "use_java": "session",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
