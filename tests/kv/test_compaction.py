"""When a snapshot is written, and in which records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.kv.compaction import chunks, is_due
from waltz_ray.kv.model import ItemKey, Set, SnapshotBegin, SnapshotEnd, SnapshotItem
from waltz_ray.kv.records import encode_record
from waltz_ray.kv.state import MemoryState

ITEMS = st.builds(SnapshotItem, st.just(1), st.binary(max_size=30), st.binary(max_size=120), st.integers(0, 9))


@given(st.lists(ITEMS, max_size=30))
def test_chunks_are_full_and_not_too_large(items: list[SnapshotItem]) -> None:
    found = list(chunks(items, 7, most_bytes=200))
    assert [item for chunk in found for item in chunk.items] == items
    sizes = [len(encode_record(chunk)) for chunk in found]
    for at, chunk in enumerate(found):
        assert chunk.snapshot == 7
        assert chunk.items
        assert sizes[at] <= 200 or len(chunk.items) == 1
        if at:
            first = chunk.items[0]
            assert sizes[at - 1] + 15 + len(first.key) + len(first.data) > 200


def test_it_is_due_when_half_as_much_was_written_as_is_alive() -> None:
    assert not is_due(live_bytes=500, tail_bytes=249, least_tail_bytes=100)
    assert is_due(live_bytes=500, tail_bytes=250, least_tail_bytes=100)
    assert not is_due(live_bytes=5, tail_bytes=99, least_tail_bytes=100)
    assert is_due(live_bytes=5, tail_bytes=100, least_tail_bytes=100)


@pytest.mark.parametrize(("items", "least"), [(50, 10_000), (500, 10_000)])
def test_overwriting_is_compacted_again_and_again_and_the_log_stays_short(items: int, least: int) -> None:
    state, log, written = MemoryState(), 0, 0

    def append(data: bytes) -> int:
        nonlocal log, written
        state.apply([(state.mark + 1, data)])
        log += len(data) + 40
        written += len(data) + 40
        return state.mark

    user_bytes = longest = snapshots = 0
    for n in range(10_000):
        key = ItemKey(0, n % items, b"item %d" % (n % items))
        data = encode_record(Set(key, 4, bytes(100)))
        user_bytes += len(data) + 40
        append(data)
        if is_due(state.live_bytes, state.tail_bytes, least):
            snapshot = append(encode_record(SnapshotBegin()))
            before = log - 42
            for chunk in chunks(state.snapshot_items(), snapshot):
                append(encode_record(chunk))
            append(encode_record(SnapshotEnd(snapshot)))
            assert state.last_snapshot == snapshot
            longest = max(longest, log)
            log -= before
            snapshots += 1
    assert snapshots > 10
    assert longest < 2.2 * state.live_bytes + 1.05 * max(state.live_bytes / 2, least)
    assert written < 3.1 * user_bytes
