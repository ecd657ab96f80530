"""What the tests append, and what they expect to see of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.cluster.harness import Cluster
from waltz_ray.connecting import connect

__all__ = ["Row", "append", "options", "rows_of"]

Row = tuple[int, int, int, bytes]
"""Partition ID, transaction ID, header, data."""


def append(cluster: Cluster, counts: dict[int, int]) -> set[Row]:
    """``counts``: partition ID -> how many. Header = transaction ID modulo 10."""
    rows = set()
    with connect(cluster.name, zookeeper=cluster.zookeeper) as client:
        for partition_id, count in counts.items():
            first = client.server_high_water_mark(partition_id) + 1
            datas = [b"%d/%d" % (partition_id, first + i) for i in range(count)]
            headers = [(first + i) % 10 for i in range(count)]
            ids = client.append_many(partition_id, datas, headers=headers).result(30).tolist()
            assert ids == list(range(first, first + count))
            rows |= {(partition_id, *row) for row in zip(ids, headers, datas, strict=True)}
    return rows


def options(cluster: Cluster) -> dict[str, str]:
    return {"zookeeper": cluster.zookeeper, "cluster": cluster.name}


def rows_of(rows: Iterable[Any]) -> set[Row]:
    """Of Spark's rows; a transaction that is there twice is an error."""
    found = [(row.partition_id, row.transaction_id, row.header, bytes(row.data)) for row in rows]
    assert len(set(found)) == len(found), "a transaction is there twice"
    return set(found)
