"""What Spark computes from the feed: legs and miles per carrier, legs per aircraft. SQL, so nothing of Spark is
imported here."""

from __future__ import annotations

from typing import Any

from waltz_ray.demo.checks import SparkFacts

__all__ = ["FLIGHT_SCHEMA", "analyse"]

FLIGHT_SCHEMA = "row INT, tail STRING, carrier STRING, miles INT, leg INT"


def analyse(spark: Any, feed: Any) -> SparkFacts:
    """``feed``: the DataFrame of ``waltz_spark.read_feed`` over all partitions of the demo's log."""
    feed.createOrReplaceTempView("feed")
    spark.sql(f"SELECT from_json(CAST(data AS STRING), '{FLIGHT_SCHEMA}') AS leg FROM feed").selectExpr(
        "leg.*"
    ).createOrReplaceTempView("legs")
    spark.sql("CACHE TABLE legs")  # read the log once, not once for each of the questions
    carriers = spark.sql("SELECT carrier, COUNT(*), SUM(miles) FROM legs GROUP BY carrier").collect()
    tails = spark.sql(
        "SELECT tail, COUNT(*), COUNT(DISTINCT leg), MIN(leg), MAX(leg) FROM legs GROUP BY tail"
    ).collect()
    [(transactions, distinct)] = spark.sql("SELECT COUNT(*), COUNT(DISTINCT row) FROM legs").collect()
    return SparkFacts(
        transactions,
        distinct,
        {carrier: legs for carrier, legs, _ in carriers},
        {carrier: miles for carrier, _, miles in carriers},
        {tail: (legs, distinct_legs, low, high) for tail, legs, distinct_legs, low, high in tails},
    )
