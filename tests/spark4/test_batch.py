from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from waltz_spark import read_feed

from tests.cluster.harness import Cluster
from tests.spark4.feeds import Row, append, options, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def load(spark: Any, cluster: Cluster, **more: str) -> Any:
    return spark.read.format("waltz").options(**options(cluster), **more).load()


def test_every_transaction_once(spark: Any, cluster: Cluster) -> None:
    assert load(spark, cluster).count() == 0
    wanted = append(cluster, {0: 2000, 2: 700})
    feed = load(spark, cluster, bytesPerTask="20000")
    assert feed.rdd.getNumPartitions() > 3
    assert rows_of(feed.collect()) == wanted
    assert rows_of(read_feed(spark, cluster.name, zookeeper=cluster.zookeeper).collect()) == wanted
    assert feed.schema == read_feed(spark, cluster.name, zookeeper=cluster.zookeeper).schema


def test_bounds_and_fixed_endpoints(spark: Any, cluster: Cluster) -> None:
    wanted = append(cluster, {0: 50, 1: 50})
    some = load(spark, cluster, partitions="1, 2", start="1=10,2=0", stop="40")
    assert rows_of(some.collect()) == {row for row in wanted if row[0] == 1 and 10 <= row[1] < 40}
    servers = {0: cluster.store.servers(), 1: cluster.store.servers()}
    assignment, _ = cluster.store.assignment()
    owners = {p: assignment.owner(p) for p in servers}
    assert all(owners.values())
    table = ",".join(f"{p}={servers[p][owner.server_id].endpoint}" for p, owner in owners.items() if owner)
    fixed = spark.read.format("waltz").option("endpoints", table).load()
    assert rows_of(fixed.collect()) == wanted


def test_from_the_replicas_and_without_the_data(spark: Any, cluster: Cluster) -> None:
    wanted = append(cluster, {0: 50, 1: 50})
    assert rows_of(load(spark, cluster, source="replica").collect()) == wanted
    headers = load(spark, cluster, columns="header,transaction_id,partition_id").where(
        "header = 3 and partition_id < 1"
    )
    assert headers.columns == ["header", "transaction_id", "partition_id"]
    assert {tuple(row) for row in headers.collect()} == {(3, i, 0) for i in range(3, 50, 10)}


PREDICATES: dict[str, Callable[[Row], bool]] = {
    "partition_id = 1": lambda row: row[0] == 1,
    "partition_id in (0, 2) and header <> 3": lambda row: row[0] in (0, 2) and row[2] != 3,
    "partition_id > 0 and transaction_id >= 100": lambda row: row[0] > 0 and row[1] >= 100,
    "transaction_id between 90 and 110": lambda row: 90 <= row[1] <= 110,
    "transaction_id in (5, 50, 299) and header < 9": lambda row: row[1] in (5, 50, 299) and row[2] < 9,
    "transaction_id < 0": lambda row: False,
    "header = 7 or transaction_id = 1": lambda row: row[2] == 7 or row[1] == 1,
    "header <=> 4 and header is not null": lambda row: row[2] == 4,
    "header > 2 and header <= 5 and data = cast('1/13' as binary)": lambda row: row[3] == b"1/13",
    "partition_id = 7 and header = 1": lambda row: False,
}


def test_filters_give_the_same_rows_pushed_or_not(spark: Any, cluster: Cluster) -> None:
    wanted = append(cluster, {0: 300, 1: 300, 2: 40})
    for predicate, holds in PREDICATES.items():
        expected = {row for row in wanted if holds(row)}
        for push in ("true", "false"):
            found = load(spark, cluster, pushFilters=push).where(predicate)
            assert rows_of(found.collect()) == expected, f"{predicate}, pushFilters={push}"


def test_a_pushed_filter_spares_the_reading(spark: Any, cluster: Cluster) -> None:
    append(cluster, {0: 1000, 1: 1000})

    def tasks(push: str) -> int:
        found = load(spark, cluster, bytesPerTask="6000", pushFilters=push)
        return int(found.where("partition_id = 1 and transaction_id < 100 and header = 3").rdd.getNumPartitions())

    assert tasks("true") < tasks("false") / 4


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"bytesPertask": "0"}, "option bytesPerTask must be a whole number of at least 1, not '0'"),
        ({"partition": "0"}, "did you mean 'partitions'?"),
        ({"start": "newest"}, "option start must be 'earliest', 'latest'"),
        ({"partitions": "9"}, "there is no partition 9; known: [0, 1, 2]"),
        ({"maxRecordsPerTrigger": "5"}, "option maxRecordsPerTrigger is for readStream"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_name(
    spark: Any, cluster: Cluster, more: dict[str, str], line: str
) -> None:
    with pytest.raises(PySparkException) as refused:
        load(spark, cluster, **more).count()
    assert line in str(refused.value)
