"""When a snapshot is written, and in which records."""

from __future__ import annotations

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


def test_it_is_due_when_as_much_was_written_as_is_alive() -> None:
    assert not is_due(live_bytes=500, tail_bytes=499, least_tail_bytes=100)
    assert is_due(live_bytes=500, tail_bytes=500, least_tail_bytes=100)
    assert not is_due(live_bytes=5, tail_bytes=99, least_tail_bytes=100)
    assert is_due(live_bytes=5, tail_bytes=100, least_tail_bytes=100)


def test_overwriting_is_compacted_again_and_again_and_the_log_stays_short() -> None:
    state, log, written = MemoryState(), 0, 0

    def append(data: bytes) -> int:
        nonlocal log, written
        state.apply([(state.mark + 1, data)])
        log += len(data) + 40
        written += len(data) + 40
        return state.mark

    user_bytes = longest = snapshots = 0
    for n in range(5000):
        key = ItemKey(0, n % 50, b"item %d" % (n % 50))
        data = encode_record(Set(key, 4, bytes(100)))
        user_bytes += len(data) + 40
        append(data)
        longest = max(longest, log)
        if is_due(state.live_bytes, state.tail_bytes, 10_000):
            snapshot = append(encode_record(SnapshotBegin()))
            log = 42
            for chunk in chunks(state.snapshot_items(), snapshot):
                append(encode_record(chunk))
            append(encode_record(SnapshotEnd(snapshot)))
            assert state.last_snapshot == snapshot
            snapshots += 1
    assert snapshots > 10
    assert longest < 3 * 10_000
    assert written < 2.2 * user_bytes
