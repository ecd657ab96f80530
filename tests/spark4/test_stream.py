"""Streams: every transaction exactly once, whatever ends a query in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from waltz_spark4 import WaltzStreamReader
from waltz_spark4.options import Options

from tests.cluster.harness import Cluster, wait_until
from tests.spark4.feeds import Row, append, options, rows_of
from waltz_ray.errors import ClientAhead, InvalidInput, Trimmed

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

Batches = dict[int, set[Row]]


def stream(spark: Any, cluster: Cluster, **more: str) -> Any:
    return spark.readStream.format("waltz").options(**options(cluster), **more).load()


def run(feed: Any, checkpoint: Path, into: Callable[[Any, int], None]) -> Any:
    """A query that ends when it has read what was there at its start."""
    writer = feed.writeStream.option("checkpointLocation", str(checkpoint))
    query = writer.foreachBatch(into).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return query


def into(batches: Batches) -> Callable[[Any, int], None]:
    """A sink that keeps batches by their ID: one that is run again must be the same one."""

    def keep(rows: Any, batch_id: int) -> None:
        found = rows_of(rows.collect())
        assert batches.setdefault(batch_id, found) == found, f"batch {batch_id} was another one before"

    return keep


def all_of(batches: Batches) -> set[Row]:
    rows = [row for batch in batches.values() for row in batch]
    assert len(set(rows)) == len(rows), "a transaction is in two batches"
    return set(rows)


def test_a_stopped_query_goes_on_where_it_was(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    """The parquet sink, and the trigger that never ends by itself."""
    wanted = append(cluster, {0: 300, 1: 20})

    def until(rows: int) -> None:
        writer = stream(spark, cluster).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.format("parquet").option("path", str(tmp_path / "table")).start()
        try:
            query.processAllAvailable()
            assert spark.read.parquet(str(tmp_path / "table")).count() == rows
        finally:
            query.stop()

    until(320)
    wanted |= append(cluster, {0: 10, 1: 200, 2: 1})
    until(531)
    assert rows_of(spark.read.parquet(str(tmp_path / "table")).collect()) == wanted


def test_available_now_within_the_limit(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    wanted = append(cluster, {0: 250, 1: 40})
    batches: Batches = {}
    query = run(stream(spark, cluster, maxRecordsPerTrigger="100"), tmp_path, into(batches))
    assert [len(batches[each]) for each in sorted(batches)] == [100, 100, 90]
    assert all_of(batches) == wanted
    assert query.lastProgress.sources[0].latestOffset == '{"0": 250, "1": 40, "2": 0}'
    wanted |= append(cluster, {2: 101})
    run(stream(spark, cluster, maxRecordsPerTrigger="100"), tmp_path, into(batches))
    assert all_of(batches) == wanted
    assert len(batches) == 5


def test_a_batch_that_failed_is_run_again_with_the_same_rows(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    wanted = append(cluster, {0: 120, 1: 30})
    batches: Batches = {}

    def fails_after_the_second(rows: Any, batch_id: int) -> None:
        into(batches)(rows, batch_id)
        if batch_id == 1:
            raise OSError("the disk is gone")

    with pytest.raises(StreamingQueryException, match="the disk is gone"):
        run(stream(spark, cluster, maxRecordsPerTrigger="50"), tmp_path, fails_after_the_second)
    assert sorted(batches) == [0, 1]
    wanted |= append(cluster, {1: 40})
    run(stream(spark, cluster, maxRecordsPerTrigger="50"), tmp_path, into(batches))
    assert all_of(batches) == wanted


def test_latest_begins_when_the_query_first_ran(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    """Also if its first batch did not end: what came between must not be missed."""
    append(cluster, {0: 50, 1: 50})
    batches: Batches = {}

    def fails(rows: Any, batch_id: int) -> None:
        raise OSError("the disk is gone")

    with pytest.raises(StreamingQueryException, match="the disk is gone"):
        run(stream(spark, cluster, start="latest"), tmp_path, fails)
    wanted = append(cluster, {0: 7, 2: 3})
    run(stream(spark, cluster, start="latest"), tmp_path, into(batches))
    wanted |= append(cluster, {0: 2})
    run(stream(spark, cluster, start="latest"), tmp_path, into(batches))
    assert all_of(batches) == wanted


def test_a_partition_server_dies_in_the_middle(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    wanted = append(cluster, {0: 200, 1: 200, 2: 200})
    batches: Batches = {}

    def kills_after_the_second(rows: Any, batch_id: int) -> None:
        into(batches)(rows, batch_id)
        if batch_id == 1:
            cluster.stop_server(1)
            cluster.place()
            wanted.update(append(cluster, {0: 50, 1: 50, 2: 50}))

    feed = stream(spark, cluster, maxRecordsPerTrigger="60")
    query = feed.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    running = query.foreachBatch(kills_after_the_second).start()
    try:
        wait_until(
            lambda: not running.isActive or sum(map(len, batches.values())) >= 750, "every record in the sink", 60
        )
        assert running.exception() is None
    finally:
        running.stop()
    assert all_of(batches) == wanted
    assert len(batches) >= 13


def test_from_the_replicas(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    wanted = append(cluster, {0: 20, 1: 30})
    batches: Batches = {}
    run(stream(spark, cluster, source="replica"), tmp_path, into(batches))
    wanted |= append(cluster, {1: 10})
    run(stream(spark, cluster, source="replica"), tmp_path, into(batches))
    assert all_of(batches) == wanted


def test_a_stream_has_no_stop(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="option stop is for batch reads"):
        run(stream(spark, cluster, stop="5"), tmp_path, into({}))


def test_another_log_or_other_partitions_under_a_checkpoint_are_refused(
    spark: Any, cluster: Cluster, tmp_path: Path, zookeeper_server: str
) -> None:
    """And the checkpoint stays as it was."""
    wanted = append(cluster, {0: 50})
    batches: Batches = {}
    run(stream(spark, cluster), tmp_path / "checkpoint", into(batches))
    with pytest.raises(StreamingQueryException, match=r"partitions \[0, 1, 2\], the query of \[0\]"):
        run(stream(spark, cluster, partitions="0"), tmp_path / "checkpoint", into({}))
    with (
        Cluster(tmp_path / "other", zookeeper_server, partitions=3, replicas=1) as other,
        pytest.raises(StreamingQueryException, match="has transaction 49, the log ends with -1"),
    ):
        run(stream(spark, other), tmp_path / "checkpoint", into({}))
    wanted |= append(cluster, {0: 5, 2: 5})
    run(stream(spark, cluster), tmp_path / "checkpoint", into(batches))
    assert all_of(batches) == wanted


# ---- the reader as PySpark 4.0 and 4.1 drive it: no arguments, and the end asked before the beginning ---------


def reader(cluster: Cluster, **more: str) -> WaltzStreamReader:
    return WaltzStreamReader(Options.parse(options(cluster) | more))


def ids_of(each: WaltzStreamReader, start: dict[str, int], end: dict[str, int]) -> set[tuple[int, int]]:
    batches = [batch for partition in each.partitions(start, end) for batch in each.read(partition)]
    return {(row["partition_id"], row["transaction_id"]) for batch in batches for row in batch.to_pylist()}


def test_without_arguments(cluster: Cluster) -> None:
    append(cluster, {0: 30, 1: 5})
    earliest, later = reader(cluster, partitions="0,1", start="0=10,1=9"), reader(cluster, start="latest")
    try:
        end = earliest.latestOffset()
        assert end == {"0": 30, "1": 9}
        assert earliest.initialOffset() == {"0": 10, "1": 9}
        assert ids_of(earliest, earliest.initialOffset(), end) == {(0, i) for i in range(10, 30)}
        first = later.latestOffset()
        append(cluster, {0: 5})
        assert later.initialOffset() == first == {"0": 30, "1": 5, "2": 0}
        second = later.latestOffset()
        assert second == {"0": 35, "1": 5, "2": 0}
        assert ids_of(later, first, second) == {(0, i) for i in range(30, 35)}
    finally:
        earliest.stop()
        later.stop()


def test_the_first_batch_of_latest_is_empty_whatever_comes_while_it_is_planned(cluster: Cluster) -> None:
    """As PySpark 4.2 asks. If it had rows, a crash in it would lose them: see streaming.py."""
    append(cluster, {0: 30})
    each = reader(cluster, start="latest")
    try:
        begin = each.initialOffset()
        append(cluster, {0: 5})
        assert each.latestOffset(begin) == begin == {"0": 30, "1": 0, "2": 0}
        assert each.latestOffset(begin) == {"0": 35, "1": 0, "2": 0}
        assert ids_of(each, begin, each.latestOffset(begin)) == {(0, i) for i in range(30, 35)}
    finally:
        each.stop()


def test_latest_after_a_crash_in_the_first_batch(cluster: Cluster) -> None:
    append(cluster, {0: 30})
    before = reader(cluster, start="latest")
    try:
        end = before.latestOffset()
    finally:
        before.stop()
    append(cluster, {0: 5})
    after = reader(cluster, start="latest")
    try:
        assert ids_of(after, after.initialOffset(), end) == set()
        assert ids_of(after, end, after.latestOffset(end)) == {(0, i) for i in range(30, 35)}
        with pytest.raises(ClientAhead, match="partition 0: the stream is at transaction 99"):
            after.partitions({"0": 99, "1": 0, "2": 0}, end)
        with pytest.raises(InvalidInput, match=r"the checkpoint is of the partitions \[0\]"):
            after.partitions({"0": 1}, end)
    finally:
        after.stop()


def test_a_stream_begins_with_what_is_left_and_says_what_its_checkpoint_lacks(cluster: Cluster) -> None:
    append(cluster, {0: 30, 1: 5})
    cluster.store.trims.raise_marks({0: 20})
    earliest, below = reader(cluster), reader(cluster, start="0=19,1=0,2=0")
    try:
        begin = earliest.initialOffset()
        assert begin == {"0": 20, "1": 0, "2": 0}
        assert ids_of(earliest, begin, earliest.latestOffset(begin)) == (
            {(0, i) for i in range(20, 30)} | {(1, i) for i in range(5)}
        )
        with pytest.raises(Trimmed, match=r"partition 0: transaction 19 was trimmed away; the first .* is 20"):
            earliest.partitions({"0": 19, "1": 0, "2": 0}, {"0": 30, "1": 5, "2": 0})
        with pytest.raises(Trimmed):
            below.initialOffset()
    finally:
        earliest.stop()
        below.stop()


def test_a_start_for_a_partition_that_is_not_read(cluster: Cluster) -> None:
    after = reader(cluster, partitions="1", start="0=5,1=5")
    try:
        with pytest.raises(InvalidInput, match=r"start names partition 0, which is not read; read: \[1\]"):
            after.initialOffset()
    finally:
        after.stop()
