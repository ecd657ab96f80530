"""Spark on a real cluster of actors: DataFrames and streams hold what was appended, also after kills."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.cloudpickle import register_pickle_by_value
from waltz_spark import BatchProgress, JsonRows, read_feed, stream_feed
from waltz_spark.offset_log import position_of

import waltz_ray
from tests.cluster.harness import wait_until
from waltz_ray import read_dataset
from waltz_ray.bring_up import Cluster
from waltz_ray.errors import ClusterNotFound, InvalidInput, SpaceNotFound
from waltz_ray.readiness import cluster_status, missing

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.spark,
    pytest.mark.timeout(300),
    # PySpark 3.5 compares versions with distutils, and leaves the sockets of collect() to the garbage collector.
    pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    # Ray Data warns of the options that it sets itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),
]

# Spark's Python workers cannot import this module, so what of it is in a decoder goes to them as it is.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

Row = tuple[int, int, int, bytes]


@pytest.fixture(scope="module")
def start(bank: Cluster) -> dict[int, int]:
    """Where this module's transactions begin: other modules append to the same cluster."""
    with waltz_ray.connect(bank.name) as client:
        return {p: client.server_high_water_mark(p) + 1 for p in range(bank.partitions)}


@pytest.fixture(scope="module")
def appended(bank: Cluster, start: dict[int, int]) -> list[Row]:
    """9000 rows as ``waltz load`` writes them: (partition, transaction, header, data), in order."""
    rows: list[Row] = []
    with waltz_ray.connect(bank.name) as client:
        for p in range(bank.partitions):
            for header in range(3):
                datas = [
                    json.dumps({"id": 10_000 * p + 1000 * header + i, "name": f"n{i}"}).encode() for i in range(1000)
                ]
                ids = client.append_many(p, datas, headers=header).result(30)
                rows += [(p, int(number), header, data) for number, data in zip(ids, datas, strict=True)]
    return rows


@pytest.fixture(scope="module")
def space(bank: Cluster) -> Iterator[str]:
    """Of two partitions, with 50 rows in each."""
    with waltz_ray.Spaces(bank.name) as spaces:
        spaces.create("sparks", 2)
        with waltz_ray.connect(bank.name, space="sparks") as client:
            for p in (0, 1):
                client.append_many(p, [b"%d/%d" % (p, n) for n in range(50)], headers=7 * p).result(30)
        yield "sparks"
        spaces.delete("sparks", "sparks")


def rows_of(frame: Any) -> list[Row]:
    chosen = frame.select("partition_id", "transaction_id", "header", "data").collect()
    return sorted((r[0], r[1], r[2], bytes(r[3])) for r in chosen)


def test_no_ray_in_sparks_python_workers(spark: Any, start: dict[int, int], appended: list[Row]) -> None:
    """First, in workers that have done nothing else: RayDP's ``to_spark`` uses Ray in those that Spark uses again."""

    def loaded(rows: pa.RecordBatch) -> pa.RecordBatch:
        names = [name for name in ("ray", "raydp") if name in sys.modules]
        return pa.record_batch([pa.array([",".join(names)])], names=["modules"])

    frame = read_feed(spark, "bank", start=start, decoder=loaded, decoder_schema="modules string")
    assert {row.modules for row in frame.collect()} == {""}


def test_tasks_leave_sparks_garbage_collector_little_to_do(
    spark: Any, start: dict[int, int], appended: list[Row]
) -> None:
    def frozen(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([pa.array([gc.get_freeze_count()])], names=["objects"])

    found = read_feed(spark, "bank", start=start, decoder=frozen, decoder_schema="objects long").collect()
    assert found
    assert min(row.objects for row in found) > 10_000


def test_both_sources_by_name(spark: Any, bank: Cluster, start: dict[int, int], appended: list[Row]) -> None:
    frame = read_feed(spark, "bank", start=start, bytes_per_task=100_000)
    assert frame.schema.simpleString() == (
        "struct<partition_id:int,transaction_id:bigint,header:int,client_id:int,generation:int,sequence_number:int,"
        "data:binary>"
    )
    assert frame.rdd.getNumPartitions() > bank.partitions
    assert rows_of(frame) == appended
    assert rows_of(read_feed(spark, "bank", start=start, source="replica")) == appended
    assert read_feed(spark, "bank", start="latest").count() == 0


@pytest.mark.parametrize("source", ["server", "replica"])
def test_a_space(spark: Any, bank: Cluster, space: str, source: Any) -> None:
    """Its partitions are numbered from 0, though the cluster's first ones are others."""
    rows = [(p, n, 7 * p, b"%d/%d" % (p, n)) for p in (0, 1) for n in range(50)]
    assert rows_of(read_feed(spark, "bank", source=source, space=space, bytes_per_task=1000)) == rows
    assert rows_of(read_feed(spark, "bank", [1], 10, 20, source=source, space=space)) == rows[60:70]
    with pytest.raises(SpaceNotFound, match="has no space 'nobody'"):
        read_feed(spark, "bank", source=source, space="nobody")


def test_pushdown(spark: Any, start: dict[int, int], appended: list[Row]) -> None:
    first, stop = start[2] + 500, start[2] + 2500
    frame = read_feed(spark, "bank", [2], first, stop, columns=["transaction_id", "header"], header={0, 2})
    expected = [row[1:3] for row in appended if row[0] == 2 and first <= row[1] < stop and row[2] in (0, 2)]
    assert sorted(tuple(row) for row in frame.collect()) == expected


@pytest.mark.parametrize("source", ["server", "replica"])
@pytest.mark.usefixtures("appended")
@pytest.mark.parametrize("columns", [["transaction_id", "_appended_at"], ["_appended_at", "data"]])
def test_times(spark: Any, bank: Cluster, start: dict[int, int], source: Any, columns: Any) -> None:
    with waltz_ray.connect(bank.name) as client:
        first = next(iter(client.read(1, start[1], start[1] + 1))).appended_at
    assert first is not None
    end = datetime.now(timezone.utc) + timedelta(seconds=60)
    frame = read_feed(spark, "bank", [1], start=first.replace(microsecond=0), stop=end, source=source, columns=columns)
    assert dict(frame.dtypes)["_appended_at"] == "timestamp"
    times = [row._appended_at.astimezone(timezone.utc) for row in frame.collect()]
    assert len(times) >= 3000
    assert times == sorted(times)
    assert times[0] <= first + timedelta(seconds=1)
    assert times[-1] < end
    assert read_feed(spark, "bank", start=end, source=source).count() == 0


def test_decoders(spark: Any, start: dict[int, int], appended: list[Row]) -> None:
    def length(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([pa.compute.binary_length(rows["data"])], names=["bytes"])

    frame = read_feed(spark, "bank", start=start, columns=["data"], decoder=length, decoder_schema="bytes long")
    assert sum(row.bytes for row in frame.collect()) == sum(len(row[3]) for row in appended)
    rows = read_feed(spark, "bank", start=start, decoder=JsonRows("id long, name string, missing double"))
    assert rows.columns == ["partition_id", "transaction_id", "id", "name", "missing"]
    found = sorted((r[0], r[1], r[2], r[3], r[4]) for r in rows.collect())
    values = [(row[0], row[1], json.loads(row[3])) for row in appended]
    assert found == [(p, number, value["id"], value["name"], None) for p, number, value in values]
    with pytest.raises(InvalidInput, match="decoder= needs decoder_schema="):
        read_feed(spark, "bank", decoder=length)
    with pytest.raises(InvalidInput, match="give both or neither"):
        read_feed(spark, "bank", decoder_schema="bytes long")
    with pytest.raises(Exception, match=r"the decoder returned columns \['bytes'\], decoder_schema names \['size'\]"):
        read_feed(spark, "bank", decoder=length, decoder_schema="size long").collect()


@pytest.mark.parametrize("wrong", [None, "", 5, b"x", True, [], "a\0b", "s3://bucket/x"], ids=repr)
def test_a_stream_needs_directories(wrong: Any) -> None:
    """An empty one was the directory in which the program ran: files were mixed with the sink's."""
    with pytest.raises(InvalidInput, match=r"checkpoint (must be|is) a directory"):
        stream_feed(cast(Any, None), checkpoint=wrong, sink="there")
    with pytest.raises(InvalidInput, match=r"sink (must be|is) a directory"):
        stream_feed(cast(Any, None), checkpoint="here", sink=wrong)
    with pytest.raises(InvalidInput, match="on_progress must be a function"):
        stream_feed(cast(Any, None), checkpoint="here", sink="there", on_progress=cast(Any, 5))


def test_json_that_does_not_fit(spark: Any) -> None:
    decoder = JsonRows("id long")

    def rows(*datas: bytes) -> pa.RecordBatch:
        count = len(datas)
        ids = [pa.array([4] * count, type=pa.int32()), pa.array(range(7, 7 + count), type=pa.int64())]
        return pa.record_batch(
            [*ids, pa.array(datas, type=pa.binary())], names=["partition_id", "transaction_id", "data"]
        )

    assert decoder(rows(b'{"id":\n1,"other":2}', b"{}")).to_pylist() == [
        {"partition_id": 4, "transaction_id": 7, "id": 1},
        {"partition_id": 4, "transaction_id": 8, "id": None},
    ]
    good, two = b'{"id":1}', b'{"id":1} {"id":2}'
    for bad in (b"\xff\x00", b'{"id":"x"}', two, b"", b"null", b"[1]", b'{"id":1},{"id":2}', b'{"id":1},"more":2'):
        with pytest.raises(InvalidInput, match="partition 4, transactions from 7 on"):
            decoder(rows(good, bad))
    # As many objects as transactions, but not one in each.
    halves = (b'{"id":1', b',"other":2} {"id":2}'), (b'{"id":1,"other":"', b'"}', good), (b'{"id":', b"1}", good)
    for together in (
        (b"", two),
        (two, b" "),
        (b'{"id":1}{"id":2}', good, b""),
        (b'{"id":1}]}{"r":[{"id":2}', b""),
        *halves,
    ):
        with pytest.raises(InvalidInput, match="partition 4, transactions from 7 on"):
            decoder(rows(*together))
    with pytest.raises(InvalidInput, match="needs the column data"):
        decoder(rows(b"{}").drop_columns(["data"]))


def test_a_dataset_and_back_to_spark(spark: Any, start: dict[int, int], appended: list[Row]) -> None:
    dataset = read_dataset("bank", start=start, bytes_per_task=100_000, header=1)
    expected = [row for row in appended if row[2] == 1]
    assert dataset.count() == len(expected)
    assert rows_of(dataset.to_spark(spark)) == expected
    nothing = read_dataset("bank", start="latest", columns=["header", "data"])
    assert (nothing.count(), nothing.columns()) == (0, ["header", "data"])


def test_unknown_cluster(spark: Any, bank: Cluster) -> None:
    with pytest.raises(ClusterNotFound, match=r"no cluster 'shop' runs on the Ray at .*; running there: .*bank"):
        read_feed(spark, "shop")


def killing(directory: Path, pid_of: Callable[[], int]) -> Callable[[Any], Any]:
    """A decoder that kills a process once, the first time it is called, and otherwise does nothing."""
    marker = str(directory / "killed")

    def decode(rows: Any) -> Any:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return rows
        os.kill(pid_of(), signal.SIGKILL)
        return rows

    return decode


def own_executor() -> int:
    """In a Python worker: the JVM of the executor it works for."""
    return int(next(each.pid for each in psutil.Process().parents() if "java" in each.name()))


COLUMNS = (
    "partition_id int, transaction_id long, header int, client_id int, generation int, sequence_number int, data binary"
)


def pid_of_owner(cluster: str, partition_id: int) -> int:
    """The process of the server that has the partition."""
    view = cluster_status(cluster)
    owner = view.partitions[partition_id].server
    assert owner is not None
    pid = view.servers[owner].pid
    assert pid is not None
    return pid


@pytest.mark.parametrize("victim", ["server", "executor"])
def test_a_stream_whose_server_or_executor_is_killed_in_the_middle_of_a_batch(
    spark: Any, bank: Cluster, start: dict[int, int], appended: list[Row], tmp_path: Path, victim: str
) -> None:
    server_pid = pid_of_owner(bank.name, 0)
    pid_of = own_executor if victim == "executor" else lambda: server_pid
    progress: list[BatchProgress] = []
    stream = stream_feed(
        spark,
        "bank",
        checkpoint=tmp_path / "checkpoint",
        sink=tmp_path / "out",
        start=start,
        max_records_per_trigger=4000,
        bytes_per_task=60_000,
        decoder=killing(tmp_path, pid_of),
        decoder_schema=COLUMNS,
        on_progress=progress.append,
    )
    stream.run()
    assert (tmp_path / "killed").exists()
    written = spark.read.parquet(str(tmp_path / "out"))
    assert rows_of(written) == appended
    assert [each.batch_id for each in progress] == [0, 1, 2]
    assert sum(each.records for each in progress) == len(appended)
    assert progress[-1].lag == {0: 0, 1: 0, 2: 0}
    wait_until(lambda: not missing(cluster_status(bank.name)), "the cluster is whole again", 60)


def test_a_replay_has_the_same_content(spark: Any, start: dict[int, int], appended: list[Row], tmp_path: Path) -> None:
    """The sink fails when it has the batch, which comes again: the same rows in the same order, whatever the limits."""
    calls: list[tuple[int, list[Row]]] = []
    positions: list[int] = []
    """How many transactions the running stream has behind it, as others see it (``waltz topic lag --stream``)."""

    def sink(frame: Any, batch_id: int) -> None:
        positions.append(sum(end - start[p] for p, end in position_of(tmp_path).ends.items()))
        calls.append((batch_id, [(r[0], r[1], r[2], bytes(r[6])) for r in frame.collect()]))
        if len(calls) == 2:
            raise ConnectionError("the table is away")

    def stream(limit: int) -> Any:
        return stream_feed(
            *(spark, "bank"),
            checkpoint=tmp_path,
            sink=sink,
            max_records_per_trigger=limit,
            partitions=[0, 1],
            start={p: start[p] for p in (0, 1)},
        )

    running = stream(1000).start()
    with pytest.raises(ConnectionError, match="the table is away"):
        running.await_termination(60)
    stream(100_000).run()
    assert [batch_id for batch_id, _ in calls] == [0, 1, 1, 2]
    assert calls[1] == calls[2]
    assert positions == [0, 1000, 1000, len(calls[0][1]) + len(calls[1][1])]
    rows = [row for _, batch in (calls[0], *calls[2:]) for row in batch]
    assert sorted(rows) == [row for row in appended if row[0] < 2]
    assert sum(end - start[p] for p, end in position_of(tmp_path).ends.items()) == len(rows)
