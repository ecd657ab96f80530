"""Options, filters and offsets, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource
from waltz_spark4.filters import Values, both, narrowed, values_of
from waltz_spark4.offsets import admitted, offsets_of, partitions_of
from waltz_spark4.options import Options

from waltz_ray.client.readers.ranges import Range
from waltz_ray.client.readers.reading import positions_of
from waltz_ray.errors import ClientAhead, InvalidInput

HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda x, v: x == v,
    "EqualNullSafe": lambda x, v: x == v,
    "GreaterThan": lambda x, v: x > v,
    "GreaterThanOrEqual": lambda x, v: x >= v,
    "LessThan": lambda x, v: x < v,
    "LessThanOrEqual": lambda x, v: x <= v,
    "In": lambda x, v: x in v,
}
numbers = st.one_of(st.integers(-3, 12), st.sampled_from([-(2**31), 2**31 - 1, -(2**63), 2**63 - 1]))
comparisons = st.one_of(
    st.tuples(st.sampled_from(sorted(set(HOLDS) - {"In"})), numbers),
    st.tuples(st.just("In"), st.lists(numbers, max_size=4).map(tuple)),
)


@given(st.lists(comparisons, min_size=1, max_size=3))
def test_filters_say_exactly_what_spark_says(chosen: list[tuple[str, Any]]) -> None:
    values: Values | None = None
    for kind, value in chosen:
        each = values_of(getattr(datasource, kind)(("header",), value))
        assert each is not None
        values = each if values is None else both(values, each)
    assert values is not None
    headers = np.array([*range(-4, 14), -(2**31), 2**31 - 1], dtype=np.int32)
    expected = [i for i, x in enumerate(headers.tolist()) if all(HOLDS[kind](x, value) for kind, value in chosen)]
    positions = positions_of(values, headers)
    assert positions is not None
    assert positions.tolist() == expected
    for column in ("partition_id", "transaction_id"):
        kept = narrowed([Range(p, 0, 12) for p in range(3)], {column: values})
        rows = {(p, i) for p, low, high in kept for i in range(low, high)}
        wanted = {(p, i) for p in range(3) for i in range(12) if (p if column == "partition_id" else i) in values}
        assert wanted <= rows
        if column == "partition_id" or isinstance(values, range):
            assert wanted == rows


@pytest.mark.parametrize(
    "pushed",
    [
        datasource.EqualTo(("data",), 1),
        datasource.EqualTo(("header", "inner"), 1),
        datasource.EqualTo(("header",), True),
        datasource.In(("header",), (1, None)),
        datasource.Not(datasource.EqualTo(("header",), 1)),
        datasource.IsNull(("header",)),
    ],
)
def test_other_filters_are_left_to_spark(pushed: Any) -> None:
    assert values_of(pushed) is None


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=5),
    st.one_of(st.none(), st.integers(1, 120)),
)
def test_a_limit_is_used_up_and_never_exceeded(sizes: list[tuple[int, int]], limit: int | None) -> None:
    start = {p: first for p, (first, _) in enumerate(sizes)}
    reached = {p: first + waiting for p, (first, waiting) in enumerate(sizes)}
    end = admitted(start, reached, limit)
    assert all(start[p] <= end[p] <= reached[p] for p in start)
    waiting = sum(reached.values()) - sum(start.values())
    taken = sum(end.values()) - sum(start.values())
    assert taken == (waiting if limit is None else min(limit, waiting))


def test_partitions_share_a_limit() -> None:
    assert admitted({0: 0, 1: 0, 2: 0}, {0: 100, 1: 2, 2: 100}, 20) == {0: 9, 1: 2, 2: 9}


def test_a_checkpoint_of_something_else_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"partitions \[0, 1\], the query of \[0\]"):
        admitted({0: 1, 1: 1}, {0: 5}, None)
    with pytest.raises(ClientAhead, match="partition 1: the checkpoint has transaction 8, the log ends with 4"):
        admitted({0: 1, 1: 9}, {0: 5, 1: 5}, None)


def test_offsets_are_the_same_bytes_for_the_same_place() -> None:
    assert list(offsets_of({10: 1, 2: 5, 0: 7}).items()) == [("0", 7), ("2", 5), ("10", 1)]
    assert partitions_of({"0": 7, "10": 1}) == {0: 7, 10: 1}


def test_options() -> None:
    parsed = Options.parse(
        {"ZOOKEEPER": "z:1", "cluster": "bank", "partitions": "2, 0,2", "start": "0=5, 2=7", "columns": "header"}
    )
    assert parsed.reading.where == "z:1"
    assert (parsed.reading.cluster, parsed.reading.source, parsed.reading.columns) == ("bank", "server", ("header",))
    assert (parsed.partitions, parsed.start, parsed.stop) == ([0, 2], {0: 5, 2: 7}, None)
    assert Options.parse({"endpoints": "0=127.0.0.1:1,1=[::1]:2"}).reading.where == {0: "127.0.0.1:1", 1: "[::1]:2"}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "needs the option zookeeper or the option endpoints"),
        ({"zookeeper": "z:1", "endpoints": "0=h:1"}, "and not both"),
        ({"zookeeper": ""}, "option zookeeper must be given"),
        ({"zookeeper": "z:1"}, "needs the option cluster beside zookeeper"),
        ({"endpoints": "0=h"}, "option endpoints must be a server for each partition"),
        ({"endpoints": "0=h:1,0=h:2"}, "option endpoints must be a server for each partition"),
        ({"zookeeper": "z", "partition": "1"}, "did you mean 'partitions'"),
        ({"zookeeper": "z", "partitions": "all"}, "option partitions must be partition IDs"),
        ({"zookeeper": "z", "start": "-1"}, "option start must be"),
        ({"zookeeper": "z", "stop": "0=5,1"}, "option stop must be"),
        ({"zookeeper": "z", "bytesPerTask": "0"}, "option bytesPerTask must be a whole number"),
        ({"zookeeper": "z", "maxRecordsPerTrigger": "many"}, "option maxRecordsPerTrigger must be"),
        ({"zookeeper": "z", "pushFilters": "yes"}, "option pushFilters must be true or false"),
        ({"zookeeper": "z", "source": "disk"}, "source must be 'server' or 'replica'"),
        ({"zookeeper": "z", "columns": "data,key"}, "the feed has no column 'key'"),
    ],
)
def test_bad_options(given: dict[str, str], line: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Options.parse(given)
    assert line in str(refused.value)
