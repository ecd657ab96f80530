"""The Spark side of waltz_ray: a Spark on the same Ray cluster, and the log's feed as a DataFrame.

from waltz_spark import read_feed, start_spark, stop_spark

spark = start_spark("analytics")
feed = read_feed(spark, zookeeper="127.0.0.1:2181", cluster="demo")
feed.groupBy("partition_id").count().show()
stop_spark()
"""

from waltz_spark.feed import read_feed
from waltz_spark.session import start_spark, stop_spark

__all__ = ["read_feed", "start_spark", "stop_spark"]
