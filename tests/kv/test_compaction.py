"""When a snapshot is written, and in which records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.kv.compaction import chunks, is_due, room_bytes, sections_at_once
from waltz_ray.kv.model import SECTIONS, ItemKey, Record, Set, SnapshotBegin, SnapshotEnd, SnapshotItem
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


def test_each_section_is_due_once_while_half_of_what_is_alive_is_written() -> None:
    assert not is_due(live_bytes=1600, since_snapshot_bytes=199, tail_bytes=999, least_tail_bytes=100)
    assert is_due(live_bytes=1600, since_snapshot_bytes=200, tail_bytes=200, least_tail_bytes=100)


def test_where_little_is_alive_sections_are_written_together() -> None:
    """Each snapshot costs three transactions and a trim, whatever it is of."""
    assert [sections_at_once(live, least_tail_bytes=100) for live in (0, 100, 101, 114, 133, 134, 10_000)] == [
        4, 4, 3, 3, 2, 1, 1,
    ]  # fmt: skip
    assert not is_due(live_bytes=5, since_snapshot_bytes=99, tail_bytes=124, least_tail_bytes=100)
    assert is_due(live_bytes=5, since_snapshot_bytes=100, tail_bytes=100, least_tail_bytes=100)
    assert is_due(live_bytes=120, since_snapshot_bytes=50, tail_bytes=100, least_tail_bytes=100), "two of four"


def test_what_has_fallen_behind_is_due_at_once() -> None:
    """However little was written since: writes would wait, or the log stay as long as it is if nobody writes."""
    assert is_due(live_bytes=1600, since_snapshot_bytes=0, tail_bytes=1000, least_tail_bytes=100)
    assert is_due(live_bytes=0, since_snapshot_bytes=0, tail_bytes=125, least_tail_bytes=100)


def test_writes_have_room_for_a_round_and_a_quarter() -> None:
    assert room_bytes(live_bytes=1600, tail_bytes=999, least_tail_bytes=100) == 1
    assert room_bytes(live_bytes=1600, tail_bytes=1000, least_tail_bytes=100) == 0
    assert room_bytes(live_bytes=200, tail_bytes=124, least_tail_bytes=100) == 1
    assert room_bytes(live_bytes=0, tail_bytes=374, least_tail_bytes=100) == 1, "as long a log where little is alive"
    assert room_bytes(live_bytes=100, tail_bytes=174, least_tail_bytes=100) == 1


@pytest.mark.parametrize(("items", "least"), [(50, 10_000), (500, 10_000)])
def test_overwriting_is_compacted_again_and_again_and_the_log_stays_short(items: int, least: int) -> None:
    state, sizes, written = MemoryState(), [0], 0  # the log's size at each transaction

    def append(record: Record) -> int:
        nonlocal written
        data = encode_record(record)
        state.apply([(state.mark + 1, data)])
        sizes.append(sizes[-1] + len(data) + 40)
        written += len(data) + 40
        return state.mark

    user_bytes = longest = snapshots = 0
    for n in range(10_000):
        place, before = n % items, written
        append(Set(ItemKey(0, place * 0x9E37_79B1 % (1 << 32), b"item %d" % place), 4, bytes(100)))
        user_bytes += written - before
        if is_due(state.live_bytes, state.since_snapshot_bytes, state.tail_bytes, least):
            at_once, needed = sections_at_once(state.live_bytes, least), max(0, state.needed_from)
            sections = state.oldest_sections(at_once)
            begin = append(SnapshotBegin(sections))
            for chunk in chunks(state.snapshot_items(sections), begin):
                append(chunk)
            append(SnapshotEnd(begin))
            longest = max(longest, sizes[-1] - sizes[needed])
            snapshots += at_once
            assert state.oldest_sections(1) == 1 << snapshots % SECTIONS
    assert snapshots > 10 * SECTIONS
    assert longest < max(1.5 * state.live_bytes, 2 * least) + 1.05 * max(state.live_bytes / 2, least)
    assert written < 3.3 * user_bytes
