"""The lock table against an exact model and against itself, one transaction at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_ray.config import ServerConfig
from waltz_ray.protocol.ids import LockId
from waltz_ray.protocol.locks import LockRequests, LockTable, OneByOne
from waltz_ray.protocol.records import LockColumns

Transaction = tuple[int, list[int], list[int], list[int]]  # client mark, write, read and append hashes

Hashes = npt.NDArray[np.int32]

HASHES = st.lists(st.integers(0, 12), max_size=3)
TRANSACTIONS = st.lists(st.tuples(st.integers(-1, 60), HASHES, HASHES, HASHES), max_size=30)


def requests_of(transactions: list[Transaction]) -> LockRequests:
    return LockRequests(
        np.array([t[0] for t in transactions], dtype=np.int64),
        LockColumns.pack([t[1] for t in transactions]),
        LockColumns.pack([t[2] for t in transactions]),
        LockColumns.pack([t[3] for t in transactions]),
    )


@given(TRANSACTIONS, st.sampled_from([1, 2, 7, 50, 30_000]))
@settings(max_examples=300)
def test_a_batch_equals_one_at_a_time(transactions: list[Transaction], size: int) -> None:
    together, alone = LockTable(size, 3, 4), LockTable(size, 3, 4)
    verdicts = together.admit(requests_of(transactions), 10)
    next_id = 10
    for index, transaction in enumerate(transactions):
        one = alone.admit(requests_of([transaction]), next_id)
        assert bool(one.passed[0]) == bool(verdicts.passed[index])
        assert int(one.conflicts[0]) == int(verdicts.conflicts[index])
        next_id += int(one.passed[0])
    every_hash = np.arange(13, dtype=np.int32)
    assert together.estimates(every_hash).tolist() == alone.estimates(every_hash).tolist()


@given(TRANSACTIONS, st.sampled_from([1, 2, 7, 50, 30_000]))
@settings(max_examples=300)
def test_plain_integers_decide_as_columns_do(transactions: list[Transaction], size: int) -> None:
    table, columns = LockTable(size, 3, 4), LockTable(size, 3, 4)
    verdicts, one_by_one, next_id = columns.admit(requests_of(transactions), 10), OneByOne(table), 10
    for index, (mark, write, read, append) in enumerate(transactions):
        estimate = one_by_one.estimate([*write, *read])
        assert (estimate, estimate <= mark) == (int(verdicts.conflicts[index]), bool(verdicts.passed[index]))
        if estimate <= mark:
            one_by_one.update([*write, *append], next_id)
            next_id += 1
    assert table.marks.tolist() == columns.marks.tolist()


@given(TRANSACTIONS, st.sampled_from([1, 5, 30_000]))
@settings(max_examples=300)
def test_no_false_negative_against_the_exact_locks(transactions: list[Transaction], size: int) -> None:
    table = LockTable(size, 3, -1)
    verdicts = table.admit(requests_of(transactions), 0)
    last_update: dict[int, int] = {}
    next_id = 0
    for index, (mark, write, read, append) in enumerate(transactions):
        truth = max((last_update.get(h, -1) for h in [*write, *read]), default=-1)
        if not verdicts.passed[index]:
            assert int(verdicts.conflicts[index]) > mark
            continue
        assert truth <= mark, "passed although a lock was newer than the client's mark"
        last_update.update(dict.fromkeys([*write, *append], next_id))
        next_id += 1


def test_equal_mark_passes_and_a_greater_estimate_fails() -> None:
    table = LockTable(30_000, 3, -1)
    lock = LockId("aircraft", 7).hash
    assert table.admit(requests_of([(-1, [lock], [], [])]), 5).passed.all()
    stale = table.admit(requests_of([(4, [lock], [], [])]), 6)
    assert not stale.passed[0]
    assert stale.conflicts[0] == 5
    assert table.admit(requests_of([(5, [lock], [], [])]), 6).passed.all()


def test_read_locks_do_not_update_and_append_locks_do_not_check() -> None:
    table = LockTable(30_000, 3, -1)
    assert table.admit(requests_of([(-1, [], [9], []), (-1, [9], [], [])]), 0).passed.all()
    assert table.admit(requests_of([(-1, [], [], [9])]), 2).passed.all()
    assert table.estimates(np.array([9], dtype=np.int32))[0] == 2


def test_every_slot_starts_at_the_log_end() -> None:
    table = LockTable(100, 3, 41)
    assert not table.admit(requests_of([(40, [], [3], [])]), 42).passed[0]
    assert table.admit(requests_of([(41, [], [3], [])]), 42).passed[0]


def test_lock_hashes_are_those_of_the_original() -> None:
    # java: "aircraft".hashCode() ^ Long.hashCode(id)
    assert LockId("", 0).hash == 0
    assert LockId("a", 0).hash == 97
    assert LockId("lock", 1).hash == (3327275 ^ 1)
    assert LockId("a", -1).hash == 97  # Long.hashCode(-1) == 0
    assert LockId("polygenelubricants", 0).hash == -(2**31)


def test_slots_are_those_of_the_original() -> None:
    def slots(h: int, size: int) -> list[int]:
        result = []
        for _ in range(3):
            h = (h * 1103515245 + 12345) & 0xFFFFFFFF
            result.append((h & 0x3FFFFFFF) % size)
        return result

    table = LockTable(30_000, 3, -1)
    hashes = np.array([0, 1, -1, 2**31 - 1, -(2**31), 123456789], dtype=np.int32)
    for row, value in zip(table.slots_of(hashes).tolist(), hashes.tolist(), strict=True):
        assert row == slots(value & 0xFFFFFFFF, 30_000)


# ---- how often a lock seems newer than it is ------------------------------------------------------------------


def false_positive_rate(table: LockTable, newer: Hashes, others: Hashes) -> float:
    """After transactions 0, 1, ... have updated ``newer``: the share of ``others`` that seem updated as well."""
    assert table.admit(requests_of([(-1, [], [], newer.tolist())]), 0).passed.all()
    assert (table.estimates(newer) >= 0).all(), "a false negative"
    return float((table.estimates(others) >= 0).mean())


def expected_rate(newer: int, size: int, probes: int) -> float:
    """All ``probes`` slots of a lock have been hit by one of ``newer`` others, as in a counting Bloom filter."""
    untouched = (1 - 1 / size) ** (probes * newer)
    return float((1 - untouched) ** probes)


@pytest.mark.parametrize("probes", [1, 2, 3])
@pytest.mark.parametrize("load", [0.05, 0.33, 1.0], ids=lambda load: f"load-{load}")
@pytest.mark.parametrize("size", [1000, 30_000])
def test_the_false_positive_rate_is_that_of_the_theory(size: int, load: float, probes: int) -> None:
    random = np.random.default_rng(size * probes)
    newer, queries, tables = int(size * load), 30_000, 5
    rates = []
    for _ in range(tables):
        hashes = np.unique(random.integers(-(2**31), 2**31, newer + queries + 100, dtype=np.int64)).astype(np.int32)
        random.shuffle(hashes)
        table = LockTable(size, probes, -1)
        rates.append(false_positive_rate(table, hashes[:newer], hashes[newer : newer + queries]))
    expected = expected_rate(newer, size, probes)
    # Two sources of chance: which slots the newer locks have hit (matters in a small table), and the queries.
    tolerance = 0.12 * expected + 4 * (expected / (queries * tables)) ** 0.5
    assert abs(float(np.mean(rates)) - expected) < tolerance, (np.mean(rates), expected)


@pytest.mark.parametrize("size", [1000, 29_989, 30_000])
@pytest.mark.parametrize("load", [0.05, 0.33])
def test_numbered_locks_are_hardly_worse_than_random_ones(size: int, load: float) -> None:
    """Applications number their locks 0, 1, 2...; the original's hash and probes must not gather them in few slots."""
    first = LockId("aircraft", 0).hash
    numbers = np.random.default_rng(size).permutation(60_000).astype(np.int32)
    newer = int(size * load)
    rate = false_positive_rate(LockTable(size, 3, -1), first ^ numbers[:newer], first ^ numbers[newer:])
    assert rate < 1.35 * expected_rate(newer, size, 3) + 0.001


def test_a_table_of_the_default_size_costs_few_re_executions() -> None:
    """What the default promises: with 1000 other locks updated since the client's mark, under one in a thousand."""
    config = ServerConfig()
    assert expected_rate(1000, config.lock_table_size, config.lock_table_probes) < 0.001
