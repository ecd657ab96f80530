"""The log as a Data Source of PySpark 4: ``spark.read.format("waltz")`` and ``spark.readStream.format("waltz")``.

Cannot be imported under PySpark 3.5, which has no Python Data Sources; there it is ``waltz_spark.read_feed``.
``waltz_spark.start_spark`` registers the source; a Spark that was started otherwise is given to ``register``.

from waltz_spark import start_spark

spark = start_spark("analytics")
feed = spark.read.format("waltz").option("zookeeper", "127.0.0.1:2181").option("cluster", "demo").load()
feed.where("partition_id = 0 and header = 7").show()
"""

from waltz_spark4.datasource import WaltzDataSource, register
from waltz_spark4.streaming import WaltzStreamReader

__all__ = ["WaltzDataSource", "WaltzStreamReader", "register"]
