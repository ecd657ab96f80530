"""The readers of ranges against a real cluster, without Ray and Spark: sources, pushdown, dead replicas."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import waltz_ray
from tests.actors.replica_client import ReplicaPeer, connected
from tests.cluster.harness import Cluster
from tests.security.keys import keyring
from waltz_ray.client.ray.dataset import FeedDatasource
from waltz_ray.client.readers.locations import Locations, ReplicaView, where_of
from waltz_ray.client.readers.ranges import Bound, Range, split_ranges
from waltz_ray.client.readers.reading import Marks, Reading, checked_header, plan_reading, positions_of
from waltz_ray.client.readers.replica_reader import ReplicaReader, proven_mark
from waltz_ray.errors import ClusterNotFound, DataUnavailable, InvalidInput
from waltz_ray.protocol.authentication import Role
from waltz_ray.protocol.ids import NO_SESSION, Endpoint
from waltz_ray.protocol.messages.replica import (
    Append,
    Appended,
    Open,
    StateReply,
    Truncate,
    Truncated,
)
from waltz_ray.protocol.records import build_records
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster

READER = keyring(Role.READER)

PARTITIONS = 2
Make = Callable[..., Cluster]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: str) -> Iterator[Make]:
    running: list[Cluster] = []

    def start(servers: int = 1) -> Cluster:
        cluster = Cluster(tmp_path_factory.mktemp("cluster"), zookeeper_server, partitions=PARTITIONS, servers=servers)
        running.append(cluster)
        cluster.__enter__()
        for partition_id in range(PARTITIONS):
            cluster.wait_members(partition_id, {0, 1, 2})
        return cluster

    yield start
    for cluster in running:
        cluster.close()


@pytest.fixture(scope="module")
def cluster(make: Make) -> Cluster:
    """With 6000 transactions in partition 0 and 10 in partition 1; headers 0 to 9 in turn."""
    started = make()
    fill(started)
    return started


def fill(cluster: Cluster) -> None:
    with waltz_ray.connect(cluster.name, zookeeper=cluster.zookeeper) as client:
        for first in range(0, 6000, 10):
            datas = [b"%d" % number * (number % 50) for number in range(first, first + 10)]
            futures = [client.append(0, data, header=i) for i, data in enumerate(datas)]
        for future in futures:
            future.result(30)
        client.flush(30)
        client.append_many(1, [b"x"] * 10, headers=7).result(30)


def rows_of(reading: Reading, bytes_per_task: int = 50_000, **bounds: Any) -> list[dict[str, Any]]:
    ranges = plan_reading(reading, bytes_per_task=bytes_per_task, **bounds)
    return [row for each in ranges for batch in reading.batches([each]) for row in batch.to_pylist()]


def all_rows(cluster: Cluster) -> list[dict[str, Any]]:
    """What a client reads."""
    with waltz_ray.connect(cluster.name, zookeeper=cluster.zookeeper) as client:
        return [
            {
                "partition_id": p,
                "transaction_id": each.transaction_id,
                "header": each.header,
                "client_id": each.req_id.client_id,
                "generation": each.req_id.generation,
                "sequence_number": each.req_id.sequence_number,
                "data": each.data,
            }
            for p in range(PARTITIONS)
            for each in client.feed(p)
        ]


@pytest.mark.cluster
def test_both_sources_give_what_was_appended(cluster: Cluster) -> None:
    expected = all_rows(cluster)
    assert len(expected) == 6010
    for source in ("server", "replica"):
        assert rows_of(Reading.of(cluster.zookeeper, cluster.name, source)) == expected


@pytest.mark.cluster
@pytest.mark.parametrize("source", ["server", "replica"])
@pytest.mark.parametrize("columns", [("transaction_id", "header"), ("data",), ("sequence_number", "partition_id")])
def test_columns_and_header_are_pushed_down(cluster: Cluster, source: Any, columns: tuple[str, ...]) -> None:
    expected = [
        {name: row[name] for name in columns}
        for row in all_rows(cluster)
        if row["header"] in (3, 7) and 100 <= row["transaction_id"] < 5000
    ]
    found = rows_of(Reading.of(cluster.zookeeper, cluster.name, source, columns, {3, 7}), start=100, stop=5000)
    assert len(found) == 980
    assert found == expected


@pytest.mark.cluster
def test_without_data_only_headers_cross_the_network(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*arguments: object, **options: object) -> None:
        raise AssertionError("records were asked for")

    reading = Reading.of(cluster.zookeeper, cluster.name, columns=["header"])
    monkeypatch.setattr("waltz_ray.client.range_reader.RangeReader.read_range", read)
    assert sum(batch.num_rows for batch in reading.batches([Range(0, 0, 6000)])) == 6000
    with pytest.raises(AssertionError, match="records"):
        list(Reading.of(cluster.zookeeper, cluster.name).batches([Range(0, 0, 6000)]))


@pytest.mark.cluster
def test_endpoints_instead_of_zookeeper(cluster: Cluster) -> None:
    endpoints = {p: str(cluster.servers[1].endpoint) for p in range(PARTITIONS)}
    found = rows_of(Reading.of(endpoints, cluster.name, columns=["transaction_id"], header=range(9, 4, -2)))
    assert len(found) == 3 * 600 + 10
    with pytest.raises(InvalidInput, match="source='replica' finds the replicas in ZooKeeper"):
        Reading.of(endpoints, cluster.name, "replica")
    with pytest.raises(InvalidInput, match="the endpoint of partition 0 must be 'host:port', not 'nowhere'"):
        rows_of(Reading.of({0: "nowhere"}, cluster.name))


@pytest.mark.cluster
def test_decoder_in_the_task(cluster: Cluster) -> None:
    def lengths(rows: Any) -> Any:
        return pa.record_batch([pa.compute.binary_length(rows["data"])], names=["bytes"])

    found = rows_of(Reading.of(cluster.zookeeper, cluster.name, columns=["data"], decoder=lengths))
    assert [row["bytes"] for row in found] == [len(row["data"]) for row in all_rows(cluster)]
    with pytest.raises(InvalidInput, match=r"must return a pyarrow.RecordBatch, not int"):
        rows_of(Reading.of(cluster.zookeeper, cluster.name, decoder=lambda rows: 3))


@pytest.mark.cluster
def test_dead_replicas_and_servers_are_passed_over(make: Make) -> None:
    """One replica dies in the middle of a range; then the server: what a quorum has is proven and read without it."""
    cluster = make()
    fill(cluster)
    expected = all_rows(cluster)
    reading = Reading.of(cluster.zookeeper, cluster.name, "replica")
    batches = reading.batches([Range(0, 0, 3000), Range(0, 3000, 6000), Range(1, 0, 10)])
    rows = next(batches).to_pylist()
    cluster.stop_replica(0)
    rows += [row for batch in batches for row in batch.to_pylist()]
    assert rows == expected
    cluster.wait_members(0, {1, 2})
    cluster.wait_members(1, {1, 2})
    cluster.stop_server(1)
    assert rows_of(reading) == expected
    with (
        Locations(cluster.zookeeper, cluster.name) as locations,
        ReplicaReader(locations.replicas, READER, 0.3) as reader,
    ):
        assert [reader.committed_mark(p) for p in range(PARTITIONS)] == [5999, 9]
        cluster.stop_replica(1)
        with pytest.raises(DataUnavailable, match=r"no quorum of session .* proves what is committed; replica"):
            reader.committed_mark(0)
        cluster.stop_replica(2)
        with pytest.raises(
            DataUnavailable, match=r"partition 1, transaction 4 could not be read within 0\.3 s: replica"
        ):
            list(reader.read_range(1, 4, 9, 1000))


@pytest.mark.cluster
def test_a_replica_that_is_no_member_tells_only_what_is_below_its_low_water_mark(cluster: Cluster) -> None:
    """It may have accepted the session and still hold a tail that was never committed."""
    with Locations(cluster.zookeeper, cluster.name) as locations:
        real = locations.replicas(0)
        assert real.members == {0, 1, 2}
        outsiders = real._replace(members=frozenset())
        with ReplicaReader(lambda partition: real, READER, 0.2) as reader:
            assert [len(batch) for batch in reader.read_range(0, 5000, 5010, 1 << 20)] == [10]
        with (
            ReplicaReader(lambda partition: outsiders, READER, 0.2) as reader,
            pytest.raises(DataUnavailable, match=r"records \[5000, 0\) were asked for"),
        ):
            list(reader.read_range(0, 5000, 5010, 1 << 20))


def opened(cluster: Cluster, replica_id: int, session_id: int, stack: ExitStack) -> ReplicaPeer:
    """A connection that has opened ``session_id`` of partition 0, as a server's."""
    peer = stack.enter_context(connected(cluster.endpoints[replica_id].endpoint, replica_id=replica_id))
    joined = cluster.store.roster(0)[0].last_published_session
    assert isinstance(peer.ask(Open(0, session_id, cluster.info.cluster_key, joined)), StateReply)
    return peer


@pytest.mark.cluster
def test_a_server_that_died_between_fencing_and_publishing_leaves_the_log_readable(make: Make) -> None:
    cluster = make()
    fill(cluster)
    cluster.stop_server(1)
    session_id = cluster.store.roster(0)[0].last_published_session + 1
    with (
        ExitStack() as stack,
        Locations(cluster.zookeeper, cluster.name) as locations,
        ReplicaReader(locations.replicas, READER, 0.3) as reader,
    ):
        for replica_id in range(3):
            opened(cluster, replica_id, session_id, stack)
        assert sum(len(batch) for batch in reader.read_range(0, 0, 6000, 1 << 20)) == 6000
        with pytest.raises(DataUnavailable, match="no quorum of session"):
            reader.committed_mark(0)


@pytest.mark.cluster
def test_a_tail_that_was_never_committed_is_not_read(make: Make) -> None:
    """Replica 2 has other records than the log from 5000 on, and is no member; only it is left."""
    cluster = make()
    fill(cluster)
    cluster.stop_server(1)
    record, version = cluster.store.roster(0)
    session_id = record.last_published_session + 1
    with ExitStack() as stack:
        peer = opened(cluster, 2, session_id, stack)
        assert isinstance(peer.ask(Truncate(0, session_id, 4999)), Truncated)
        zeros = np.zeros(10, dtype=np.int32)
        dirty = build_records(0, 5000, 9, 9, (zeros, zeros, zeros + 5, zeros.astype(np.uint32)), b"dirty" * 10)
        assert isinstance(peer.ask(Append(0, session_id, 5000, dirty.lengths, dirty.records)), Appended)
    member, outsider = ReplicaEntry(session_id, UNRESOLVED), ReplicaEntry(session_id - 1, 4999)
    entries = {0: member, 1: member, 2: outsider}
    cluster.store.set_roster(0, Roster(session_id, record.generation, entries), version)
    for replica_id in (0, 1):
        cluster.stop_replica(replica_id)
    with (
        Locations(cluster.zookeeper, cluster.name) as locations,
        ReplicaReader(locations.replicas, READER, 0.3) as reader,
    ):
        with pytest.raises(DataUnavailable, match="transaction 5000 could not be read"):
            list(reader.read_range(0, 5000, 5010, 1 << 20))
        claimed = locations.replicas(0)._replace(members=frozenset({2}))
    with ReplicaReader(lambda partition: claimed, READER, 0.3) as reader:
        [batch] = reader.read_range(0, 5000, 5010, 1 << 20)
        assert bytes(batch.data(0)) == b"dirty", "without the rule it would be read"


def state(session_id: int, last_id: int, damaged: bool = False) -> StateReply:
    return StateReply(0, NO_SESSION, session_id, -1, -1, last_id, damaged)


@pytest.mark.parametrize(
    ("states", "mark"),
    [
        ({0: state(5, 9), 1: state(5, 7), 2: state(5, 8)}, 8),
        ({0: state(5, 9), 2: state(5, 8)}, 8),
        ({0: state(5, 9), 1: state(6, 12), 2: state(5, 8)}, 8),  # 1 is fenced: its vote may be given already
        ({0: state(5, 9), 1: state(6, 12)}, None),
        ({0: state(5, 9), 1: state(5, 9, damaged=True)}, None),
        ({0: state(5, 9), 3: state(5, 9)}, None),  # 3 is no member
        ({0: state(5, -1), 1: state(5, -1)}, -1),
        ({}, None),
    ],
)
def test_what_a_quorum_proves(states: dict[int, StateReply], mark: int | None) -> None:
    view = ReplicaView(5, frozenset({0, 1, 2}), 2, {n: Endpoint("h", n) for n in range(4)})
    assert proven_mark(view, states) == mark


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"partitions": [0, 9]}, "there is no partition 9; known"),
        ({"partitions": ["0"]}, "partitions must be partition IDs"),
        ({"start": "newest"}, "start must be"),
        ({"stop": {0: 1, 5: 2}}, "stop names partition 5, which is not read"),
        ({"bytes_per_task": 0}, "bytes_per_task must be a whole number, at least 1"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(cluster: Cluster, bounds: dict[str, Bound], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        plan_reading(Reading.of(cluster.zookeeper, cluster.name), **bounds)  # type: ignore[arg-type]


@pytest.mark.cluster
def test_unknown_cluster(cluster: Cluster) -> None:
    reading = Reading.of(cluster.zookeeper, "nobody")
    with pytest.raises(ClusterNotFound, match="no cluster 'nobody'"), Marks(reading):
        pass


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"source": "disk"}, "source must be 'server' or 'replica', not 'disk'"),
        ({"columns": ["offset"]}, "the feed has no column 'offset'; it has partition_id"),
        ({"columns": []}, "at least one column"),
        ({"columns": ["data", "data"]}, "none twice"),
        ({"header": "3"}, "header must be an int"),
        ({"header": 1.5}, "header must be an int"),
        ({"header": ""}, "header must be an int"),
        ({"header": b"x"}, "header must be an int"),
        ({"header": [True]}, "header must be an int"),
        ({"header": 2**31}, "a header has 32 bits"),
        ({"header": {0, -(2**200)}}, "a header has 32 bits"),
        ({"header": range(2**31 - 1, 2**31 + 1)}, "a header has 32 bits"),
        ({"columns": 5}, "the feed has no column 5"),
        ({"decoder": 7}, "decoder must be a function"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        Reading.of("z:1", "bank", **options)


@pytest.mark.cluster
@pytest.mark.parametrize("wrong", [5, True, "", "01", 1.5, object(), [None], ["0"]], ids=repr)
def test_partitions_that_are_none(cluster: Cluster, wrong: Any) -> None:
    reading = Reading.of(cluster.zookeeper, cluster.name)
    with pytest.raises(InvalidInput, match="partitions must be partition IDs"):
        plan_reading(reading, wrong)


@pytest.mark.parametrize("wrong", [None, "1", 0, -1, 1.5, float("nan"), True, []], ids=repr)
def test_a_task_reads_a_number_of_bytes(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="bytes_per_task must be a whole number, at least 1"):
        split_ranges([], {}, wrong)


def test_where_is_one_of_two() -> None:
    assert where_of("bank", "z:1", None) == ("z:1", "bank", "")
    assert where_of("bank", None, {0: "h:1"}) == ({0: "h:1"}, "bank", "")
    with pytest.raises(InvalidInput, match="not both"):
        where_of("bank", "z:1", {0: "h:1"})


@pytest.mark.parametrize(
    "header",
    [5, {5, -7, 2**31 - 1}, range(-3, 9, 4), range(9, -3, -4), range(3, 3), frozenset(), range(5, 2**70, 2**70)],
)
def test_header_filters(header: Any) -> None:
    headers = np.array([5, -7, 2**31 - 1, -3, 1, 9, 0, -(2**31)], dtype=">i4")
    chosen = positions_of(checked_header(header), headers)
    assert chosen is not None
    wanted = {header} if isinstance(header, int) else header
    assert chosen.tolist() == [i for i, each in enumerate(headers.tolist()) if each in wanted]


@pytest.mark.cluster
def test_the_tasks_of_a_dataset(cluster: Cluster) -> None:
    """What Ray Data runs, run here: a task for each range, and a schema also where there is nothing."""
    reading = Reading.of(cluster.zookeeper, cluster.name, columns=["transaction_id", "header"])
    ranges = plan_reading(reading, [0], bytes_per_task=50_000)
    tasks = FeedDatasource(reading, ranges).get_read_tasks(1)
    assert len(tasks) == len(ranges) > 1
    tables = [table for task in tasks for table in task()]
    assert [row for table in tables for row in table.to_pylist()] == rows_of(reading, partitions=[0])
    (nothing,) = [table for task in FeedDatasource(reading, []).get_read_tasks(1) for table in task()]
    assert (nothing.num_rows, nothing.column_names) == (0, ["transaction_id", "header"])


@pytest.mark.parametrize(
    ("imported", "not_loaded"),
    [
        ("waltz_ray.client.readers.reading", ["ray", "raydp", "pyspark", "waltz_spark"]),
        ("waltz_spark.feed", ["ray", "raydp"]),  # by a Spark Python worker, for every task
        ("waltz_ray.client.ray", ["raydp", "pyspark", "waltz_spark"]),
        ("waltz_ray", ["ray", "pyarrow", "pyspark", "kazoo"]),
    ],
)
def test_what_an_import_does_not_load(imported: str, not_loaded: list[str]) -> None:
    code = f"import sys, {imported}; print(sorted(set({not_loaded}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_dataset_is_found_where_connect_is() -> None:
    from waltz_ray.client.ray import read_dataset

    assert waltz_ray.read_dataset is waltz_ray.feed_dataset is read_dataset
    with pytest.raises(AttributeError, match="read_datasets"):
        waltz_ray.read_datasets  # noqa: B018
