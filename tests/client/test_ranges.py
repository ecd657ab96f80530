from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.client.readers.arrow import ARROW_SCHEMA, COLUMNS, to_arrow
from waltz_ray.client.readers.ranges import Range, bounds_of, split_ranges
from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.records import build_records


def test_bounds() -> None:
    marks = {0: 9, 1: -1, 2: 4}
    assert bounds_of("earliest", "latest", marks) == [Range(0, 0, 10), Range(2, 0, 5)]
    assert bounds_of(3, 5, marks) == [Range(0, 3, 5), Range(2, 3, 5)]
    assert bounds_of(5, 100, marks) == [Range(0, 5, 10)]
    assert bounds_of({0: 1, 1: 0, 2: 4}, {0: 2, 1: 7, 2: 5}, marks) == [Range(0, 1, 2), Range(2, 4, 5)]
    assert bounds_of("latest", "latest", marks) == []


@pytest.mark.parametrize("bound", [-1, "newest", 1.5, True, {0: 1}, {0: "x", 1: 0, 2: 0}])
def test_bad_bounds(bound: Any) -> None:
    with pytest.raises(InvalidInput, match="start"):
        bounds_of(bound, "latest", {0: 9, 1: 3, 2: 4})


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 5000)), max_size=5),
    st.integers(1, 10_000),
    st.floats(0.0, 500.0),
)
def test_split_covers_every_transaction_once(sizes: list[tuple[int, int]], bytes_per_task: int, record: float) -> None:
    ranges = [Range(partition, first, first + count) for partition, (first, count) in enumerate(sizes)]
    pieces = split_ranges(ranges, dict.fromkeys(range(len(ranges)), record), bytes_per_task)
    assert all(piece.first_id < piece.end_id for piece in pieces)
    for whole in ranges:
        own = [piece for piece in pieces if piece.partition_id == whole.partition_id]
        assert [own[0].first_id, own[-1].end_id] == [whole.first_id, whole.end_id]
        assert all(before.end_id == after.first_id for before, after in pairwise(own))
        lengths = [piece.end_id - piece.first_id for piece in own]
        assert max(lengths) - min(lengths) <= 1


def test_split_by_size() -> None:
    assert split_ranges([Range(0, 0, 100)], {0: 50.0}, 1000) == [Range(0, i * 20, i * 20 + 20) for i in range(5)]
    assert split_ranges([Range(3, 7, 9)], {3: 1e9}, 1) == [Range(3, 7, 8), Range(3, 8, 9)]
    with pytest.raises(InvalidInput, match="bytes_per_task"):
        split_ranges([Range(0, 0, 1)], {}, 0)


def test_arrow_shape() -> None:
    datas = [b"", b"\x00\xff", b"text"]
    columns = (
        np.array([5, 6, 7], dtype=np.int32),
        np.array([-1, 0, 9], dtype=np.int32),
        np.array([len(data) for data in datas], dtype=np.int32),
        np.zeros(3, dtype=np.uint32),
    )
    rows = to_arrow(build_records(2, 1 << 40, 11, 3, columns, b"".join(datas)))
    assert rows.schema == ARROW_SCHEMA
    assert rows.column("data").type == pa.binary()
    assert rows.to_pylist()[1] == {
        "partition_id": 2,
        "transaction_id": (1 << 40) + 1,
        "header": 0,
        "client_id": 11,
        "generation": 3,
        "sequence_number": 6,
        "data": b"\x00\xff",
    }
    assert rows.column("data").to_pylist() == datas


@given(
    st.lists(st.binary(max_size=300), max_size=40),
    st.sets(st.integers(0, 39)),
    st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1),
)
def test_arrow_is_what_a_loop_over_the_records_gives(datas: list[bytes], wanted: set[int], columns: list[str]) -> None:
    count = len(datas)
    lengths = np.array([len(data) for data in datas], dtype=np.int32)
    numbers = (np.arange(count, dtype=np.int32), np.arange(7, 7 + count, dtype=np.int32))
    batch = build_records(1, 1000, 2, 3, (*numbers, lengths, np.zeros(count, dtype=np.uint32)), b"".join(datas))
    chosen = np.array(sorted(each for each in wanted if each < count), dtype=np.int64)
    every = [
        dict(zip(COLUMNS, (1, 1000 + i, 7 + i, 2, 3, i, bytes(data)), strict=True))
        for i, data in enumerate(batch.datas())
    ]
    for positions, expected in ((None, every), (chosen, [every[i] for i in chosen])):
        found = to_arrow(batch, columns, positions)
        found.validate(full=True)
        assert found.schema == pa.schema([ARROW_SCHEMA.field(name) for name in columns])
        assert found.to_pylist() == [{name: row[name] for name in columns} for row in expected]
