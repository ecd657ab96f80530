"""A key/value space as a DataFrame, from nothing but its log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from waltz_spark import read_kv

import waltz_ray
from waltz_ray.bring_up import Cluster
from waltz_ray.coordination.trim_store import TrimStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import InvalidInput, ProjectionFailed, SpaceNotFound
from waltz_ray.kv.compaction import chunks
from waltz_ray.kv.model import Delete, ItemKey, Lock, Record, Set, SnapshotBegin, SnapshotEnd, Touch, ValueType
from waltz_ray.kv.records import encode_record, header_of
from waltz_ray.kv.routing import fnv1a_32, partition_of
from waltz_ray.kv.state import MemoryState

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.spark,
    pytest.mark.timeout(300),
    # PySpark 3.5 compares versions with distutils, and leaves the sockets of collect() to the garbage collector.
    pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

PARTITIONS = 2


class KvLog:
    """Appends records as an actor would, and folds them."""

    def __init__(self, client: waltz_ray.WaltzClient) -> None:
        self.client = client
        self.states = [MemoryState(), MemoryState()]

    def append(self, partition: int, *records: Record) -> None:
        data = [encode_record(record) for record in records]
        headers = [header_of(record) for record in records]
        ids = self.client.append_many(partition, data, headers=headers).result(30)
        self.states[partition].apply(zip(map(int, ids), data, strict=True))

    def snapshot(self, partition: int) -> None:
        for sections in (1, 2, 4, 8):
            self.append(partition, SnapshotBegin(sections))
            state = self.states[partition]
            begin = state.snapshot_begun
            self.append(partition, *chunks(state.snapshot_items(sections), begin, 2000), SnapshotEnd(begin))


def key_of(name: bytes, map_hash: int = 0) -> ItemKey:
    return ItemKey(map_hash, fnv1a_32(name), name)


@pytest.fixture(scope="module")
def stock(bank: Cluster) -> Iterator[str]:
    with waltz_ray.Spaces(bank.name) as spaces:
        spaces.create("stock", PARTITIONS, "kv", {"compact": 0})  # nobody else trims it
        yield "stock"
        spaces.delete("stock", "stock")


def trimmed_to(bank: Cluster, space: str, first_id: int) -> None:
    """As actors that compact it would: of a space of items nobody else may."""
    with waltz_ray.Spaces(bank.name) as spaces:
        first = next(each.first for each in spaces.list() if each.name == space)
    zookeeper = KazooZooKeeper(bank.zookeeper)
    try:
        assert TrimStore(zookeeper, bank.name).raise_marks({first: first_id}) == {first: first_id}
    finally:
        zookeeper.close()


def test_the_live_items(spark: Any, bank: Cluster, stock: str) -> None:
    with pytest.raises(SpaceNotFound):
        read_kv(spark, bank.name, "nobody")
    with pytest.raises(InvalidInput, match="space 'log' of cluster 'bank' is of kind log, not kv; use read_feed"):
        read_kv(spark, bank.name, "log")
    for wrong in ("0", 1.5, True, float("nan")):
        with pytest.raises(InvalidInput, match="now_ms must be milliseconds"):
            read_kv(spark, bank.name, stock, now_ms=cast(Any, wrong))
    assert read_kv(spark, bank.name, stock).count() == 0
    with waltz_ray.connect(bank.name, space=stock) as client:
        log = KvLog(client)
        names = [b"item %d" % n for n in range(300)]
        for p in range(PARTITIONS):
            mine = [key_of(name) for name in names if partition_of(fnv1a_32(name), PARTITIONS) == p]
            log.append(p, *(Set(key, ValueType.STRING, b"old") for key in mine))
            log.append(p, *(Delete(key) for key in mine[:10]), Lock(b"door", 1, 99))
            log.snapshot(p)
            log.append(p, *(Set(key, ValueType.STRING, b"new " + key.name) for key in mine[5:]))
            log.append(p, Touch(mine[6], 5000), Delete(mine[7]))
        special = [
            Set(key_of(b"int"), ValueType.INT, (-7).to_bytes(4, "big", signed=True)),
            Set(key_of(b"long", 9), ValueType.LONG, (1 << 40).to_bytes(8, "big"), 8000, b"caf\xc3\xa9"),
            Set(key_of(b"\xff"), ValueType.TEXT, "naïve".encode(), (1 << 63) + 5),  # as actors have appended it once
        ]
        for record in special:
            log.append(partition_of(record.key.hash, PARTITIONS), record)
        expected = {
            (p, key, item.version, item.data)
            for p, state in enumerate(log.states)
            for key, item in state.items()
            if not 0 < item.deadline_ms <= 6000
        }
    assert len(expected) == 300 - 10 - 2 - 2 + 3
    rows = read_kv(spark, bank.name, stock, now_ms=6000).collect()
    found = {
        (r.partition_id, ItemKey(r.map_hash, r.hash, bytes(r.name_bytes)), r.version, bytes(r.value)) for r in rows
    }
    assert found == expected
    assert len(rows) == len(expected)
    by_name = {bytes(row.name_bytes): row for row in rows}
    row = by_name[b"int"]
    assert (row.name, row.type, row.number, row.text, row.map_name, row.deadline_ms) == ("int", 2, -7, None, None, None)
    row = by_name[b"long"]
    assert (row.map_hash, row.map_name, row.number, row.deadline_ms) == (9, "café", 1 << 40, 8000)
    row = by_name[b"\xff"]
    assert (row.name, row.text, row.deadline_ms) == (None, "naïve", (1 << 63) - 1)
    assert {row.map_hash for row in read_kv(spark, bank.name, stock).collect()} == {0}, "by the clock all have expired"
    kept = read_kv(spark, bank.name, stock, [1], now_ms=0, source="replica")
    assert kept.count() == sum(1 for _ in log.states[1].items())
    assert read_kv(spark, bank.name, stock, [0], stop=5).count() == 5, "as it was"

    begin = log.states[0].needed_from
    trimmed_to(bank, stock, begin - 3)  # in the midst of what nobody needs any more
    assert read_kv(spark, bank.name, stock, [0], now_ms=6000).count() == sum(1 for each in expected if each[0] == 0)
    with pytest.raises(Exception, match=f"its log begins with transaction {begin - 3}, and the snapshots"):
        read_kv(spark, bank.name, stock, [0], stop=begin + 1).collect()
    with pytest.raises(ProjectionFailed, match=f"begins with transaction {begin - 3}, and nothing is left of what was"):
        read_kv(spark, bank.name, stock, [0], stop=5)
