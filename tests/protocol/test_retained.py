"""What the recent records of a partition cost in memory is what the budget says."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from waltz_ray.protocol.records import RECORD_HEADER_BYTES, RecordBatch, build_records, few_records
from waltz_ray.protocol.retained import RetainedRecords

BUDGET_BYTES = 4 << 20


def small_batch(first_id: int, count: int) -> RecordBatch:
    data = bytes(200)
    return few_records(3, first_id, [(7, 1, first_id + i, 0, 0, data) for i in range(count)])


def large_batch(first_id: int, count: int) -> RecordBatch:
    lengths = np.full(count, 200, np.int32)
    columns = np.arange(count, dtype=np.int32), np.zeros(count, np.int32), lengths, np.zeros(count, np.uint32)
    return build_records(3, first_id, 7, 1, columns, bytes(200 * count))


@pytest.mark.parametrize(("make", "count"), [(small_batch, 1), (small_batch, 8), (large_batch, 500)])
def test_the_budget_is_that_of_memory(make: Callable[[int, int], RecordBatch], count: int) -> None:
    retained = RetainedRecords(0, BUDGET_BYTES)
    gc.collect()
    tracemalloc.start()
    try:
        while retained.end_id < 2 * BUDGET_BYTES // 200:
            batch = make(retained.end_id, count)
            assert len(batch.origins) == len(batch.fields) == count  # as the feed looks at it
            retained.append(batch)
            retained.trim(batch.last_id)
        del batch
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert retained.first_id > 0
    assert 0.8 * BUDGET_BYTES < held_bytes < 1.2 * BUDGET_BYTES


def test_a_record_that_changed_in_memory_is_found_wherever_it_is() -> None:
    batches = [small_batch(0, 2), large_batch(2, 60), small_batch(62, 1)]
    for changed_id in (None, 0, 1, 2, 40, 61, 62):
        retained = RetainedRecords(0, BUDGET_BYTES)
        for batch in batches:
            retained.append(batch if changed_id is None else with_one_changed(batch, changed_id))
        assert retained.first_bad_id() == changed_id


def with_one_changed(batch: RecordBatch, transaction_id: int) -> RecordBatch:
    if not batch.first_id <= transaction_id <= batch.last_id:
        return batch
    changed = bytearray(batch.records)
    changed[int(batch.offsets[transaction_id - batch.first_id]) + RECORD_HEADER_BYTES] ^= 4
    return RecordBatch(batch.partition_id, batch.first_id, batch.lengths, bytes(changed))


def test_what_is_in_flight_keeps_what_is_gathered_from_it() -> None:
    retained = RetainedRecords(0, BUDGET_BYTES)
    batches = [small_batch(0, 2), small_batch(2, 2)]
    origins = [batch.origins for batch in batches]
    for batch in batches:
        retained.append(batch)
    retained.trim(1)
    assert [batch.origins is own for batch, own in zip(batches, origins, strict=True)] == [False, True]
    assert batches[0].origins == [(7, 0), (7, 1)]
