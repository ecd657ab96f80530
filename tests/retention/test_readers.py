"""Ranges of a log that was trimmed, as the tasks of Spark and Ray Data read them: from what there is, or Trimmed."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import waltz_ray
from tests.cluster.harness import FAST, Cluster
from tests.security.keys import keyring
from waltz_ray.client.readers.locations import Locations
from waltz_ray.client.readers.ranges import Range
from waltz_ray.client.readers.reading import Marks, Reading, Source, plan_reading
from waltz_ray.client.readers.replica_reader import ReplicaReader
from waltz_ray.config import ServerConfig, StorageConfig
from waltz_ray.errors import Trimmed
from waltz_ray.protocol.authentication import Role

READER = keyring(Role.READER)

pytestmark = pytest.mark.cluster

CONFIG = ServerConfig(**{**vars(FAST), "retained_bytes": 0})
GONE_AT = 40
"""The trim mark of partition 0: on replicas 0 and 1 what is below it has gone, replica 2 has it all."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: str) -> Iterator[Cluster]:
    storage = StorageConfig(preallocate_bytes=0, segment_size_bytes=1000)
    directory = tmp_path_factory.mktemp("cluster")
    with Cluster(directory, zookeeper_server, config=CONFIG, storage=storage) as cluster:
        for partition_id in range(2):
            cluster.wait_members(partition_id, {0, 1, 2})
        with waltz_ray.connect(cluster.name, zookeeper=cluster.zookeeper) as client:
            for number in range(100):
                client.append(0, b"%d" % number).result(30)
            client.append_many(1, [b"x"] * 5).result(30)
        cluster.store.trims.raise_marks({0: GONE_AT})
        for replica_id in (0, 1):
            trim(cluster, replica_id)
        yield cluster


def trim(cluster: Cluster, replica_id: int) -> None:
    log = cluster.stores[replica_id].partition(0)
    log.trim(GONE_AT)
    assert 20 < log.first_id <= GONE_AT, "only whole segments go"


def reading_of(cluster: Cluster, source: Source = "server", columns: Any = None) -> Reading:
    return Reading.of(cluster.zookeeper, cluster.name, source, columns)


def ids(reading: Reading, ranges: list[Range]) -> list[int]:
    return [row for rows in reading.batches(ranges) for row in rows["transaction_id"].to_pylist()]


@pytest.mark.parametrize("source", ["server", "replica"])
def test_earliest_is_planned_from_the_mark_and_what_is_below_it_refused(cluster: Cluster, source: Source) -> None:
    for columns in (None, ["transaction_id"]):
        reading = reading_of(cluster, source, columns)
        ranges = plan_reading(reading, bytes_per_task=1000)
        assert ranges[0][:2] == (0, GONE_AT)
        assert ranges[-1] == (1, 0, 5)
        assert ids(reading, ranges[:-1]) == list(range(GONE_AT, 100))
        assert plan_reading(reading, [0], {0: GONE_AT}, 50) == [Range(0, GONE_AT, 50)]
        with pytest.raises(Trimmed) as planned:
            plan_reading(reading, [0], GONE_AT - 1)
        assert planned.value.args[:3] == (0, GONE_AT - 1, GONE_AT)
        assert plan_reading(reading, [0], 0, 0) == []


def test_without_zookeeper_a_server_says_where_a_partition_begins(cluster: Cluster) -> None:
    endpoints = {p: str(cluster.servers[1].endpoint) for p in range(2)}
    reading = Reading.of(endpoints, cluster.name, columns=["transaction_id"])
    assert ids(reading, plan_reading(reading, [0])) == list(range(GONE_AT, 100))
    with Marks(reading) as marks:
        marks.hold("nobody", {0: 50}, "there is nowhere to write it")
    assert cluster.store.trims.holds.all() == {}


def test_another_replica_is_asked_before_a_task_gives_up(cluster: Cluster) -> None:
    """Replica 2 has what is gone elsewhere; when it has dropped it too, the task is told, in an error that pickles."""
    with (
        Locations(cluster.zookeeper, cluster.name) as locations,
        ReplicaReader(locations.replicas, READER, 5.0) as reader,
    ):
        assert reader._order(0, locations.replicas(0)) == [0, 1, 2], "the one that has it is asked last"
        batches = [*reader.read_range(0, 3, 30, 1 << 20)]
        assert (batches[0].first_id, batches[-1].end_id) == (3, 30)
    trim(cluster, 2)
    for source, columns in (("replica", None), ("server", None), ("server", ["transaction_id"])):
        with pytest.raises(Trimmed) as raised:
            ids(reading_of(cluster, source, columns), [Range(0, 3, 60)])  # type: ignore[arg-type]
        copy = pickle.loads(pickle.dumps(raised.value))
        assert (str(copy), copy.args[:3]) == (str(raised.value), (0, 3, GONE_AT))


def test_a_stream_holds_what_it_has_not_read(cluster: Cluster) -> None:
    holds = cluster.store.trims.holds
    with Marks(reading_of(cluster)) as marks:
        marks.hold("mine", {0: 50, 1: 0}, "a test")
        marks.hold("mine", {0: 60, 1: 0}, "a test")
        assert holds.all()["mine"].positions == {0: 60, 1: 0}
        marks.hold("mine", {0: 45, 1: 2}, "it went back")
        assert holds.all()["mine"].positions == {0: 45, 1: 2}
        assert cluster.store.trims.raise_marks({0: 80}) == {0: 45}
        with pytest.raises(Trimmed) as raised:
            marks.hold("mine", {0: 44, 1: 2}, "too far back")
        assert raised.value.args[:3] == (0, 44, 45)
    holds.release("mine")
