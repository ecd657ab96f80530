"""What the recent records of a partition cost in memory is what the budget says."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from waltz_ray.protocol.records import RECORD_HEADER_BYTES, RecordBatch, build_records, few_records
from waltz_ray.protocol.retained import RetainedMemory, RetainedRecords

BUDGET_BYTES = 4 << 20


def small_batch(first_id: int, count: int) -> RecordBatch:
    data = bytes(200)
    return few_records(3, first_id, [(7, 1, first_id + i, 0, 0, data) for i in range(count)])


def large_batch(first_id: int, count: int) -> RecordBatch:
    lengths = np.full(count, 200, np.int32)
    columns = np.arange(count, dtype=np.int32), np.zeros(count, np.int32), lengths, np.zeros(count, np.uint32)
    return build_records(3, first_id, 7, 1, columns, bytes(200 * count))


def in_memory(memory: RetainedMemory) -> RetainedRecords:
    retained = RetainedRecords(0)
    memory.join(retained)
    return retained


def fill(retained: RetainedRecords, size_bytes: int) -> None:
    """With so much more, all of it committed."""
    end_bytes = retained.size_bytes + size_bytes
    while retained.size_bytes < end_bytes:
        before = retained.size_bytes
        retained.append(small_batch(retained.end_id, 1))
        retained.trim(retained.end_id - 1)
        if retained.size_bytes <= before:
            return  # there is no room for more


@pytest.mark.parametrize(("make", "count"), [(small_batch, 1), (small_batch, 8), (large_batch, 500)])
def test_the_budget_is_that_of_memory(make: Callable[[int, int], RecordBatch], count: int) -> None:
    retained = in_memory(RetainedMemory(BUDGET_BYTES))
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
        retained = RetainedRecords(0)
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
    retained = RetainedRecords(0)
    batches = [small_batch(0, 2), small_batch(2, 2)]
    origins = [batch.origins for batch in batches]
    for batch in batches:
        retained.append(batch)
    retained.trim(1)
    assert [batch.origins is own for batch, own in zip(batches, origins, strict=True)] == [False, True]
    assert batches[0].origins == [(7, 0), (7, 1)]


def test_who_has_much_to_retain_has_what_the_others_do_not_use() -> None:
    memory = RetainedMemory(100_000)
    memory.sharers = 4
    busy, idle = in_memory(memory), in_memory(memory)
    fill(idle, 10_000)
    fill(busy, 200_000)
    assert 85_000 < busy.size_bytes < 90_500
    assert idle.first_id == 0


def test_who_has_more_than_its_share_gives_it_up_for_others_though_it_does_nothing() -> None:
    memory = RetainedMemory(100_000)
    memory.sharers = 4
    busy, others = in_memory(memory), [in_memory(memory) for _ in range(3)]
    fill(busy, 200_000)
    for other in others:
        fill(other, 20_000)
    assert all(other.first_id == 0 for other in others)
    assert memory.used_bytes == sum(each.size_bytes for each in (busy, *others)) <= 100_000
    assert busy.size_bytes > 35_000, "no more than is needed"
    for other in others:
        fill(other, 20_000)
    assert memory.used_bytes <= 100_000
    assert all(24_000 < each.size_bytes < 27_000 for each in (busy, *others)), "each has its share"


def test_what_is_in_flight_stays_whoever_needs_room() -> None:
    memory = RetainedMemory(100_000)
    memory.sharers = 2
    stuck, other = in_memory(memory), in_memory(memory)
    while stuck.size_bytes < 150_000:
        stuck.append(small_batch(stuck.end_id, 1))
    fill(other, 80_000)
    assert stuck.first_id == 0
    assert other.size_bytes > 49_000, "it has its share all the same"
    stuck.trim(stuck.end_id - 1)
    assert memory.used_bytes <= 100_000


def test_who_leaves_leaves_room() -> None:
    memory = RetainedMemory(100_000)
    memory.sharers = 2
    one, other = in_memory(memory), in_memory(memory)
    fill(one, 100_000)
    memory.leave(one)
    assert memory.used_bytes == 0
    fill(other, 99_000)
    assert other.first_id == 0
    one.trim(one.end_id - 1)  # whoever still has it
    assert memory.used_bytes == other.size_bytes
