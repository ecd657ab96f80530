"""The fold of a kv partition: from the first transaction, and from any whole snapshot on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kv.mutations_kv import MUTATIONS
from tests.kv.walk import check_walk
from waltz_ray.kv.model import (
    NOBODYS,
    Delete,
    ItemKey,
    Record,
    RequestId,
    Set,
    Several,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    SnapshotItem,
    Touch,
)
from waltz_ray.kv.records import encode_record
from waltz_ray.kv.state import MemoryState
from waltz_ray.kv.tables import CHANGED_BYTES, Table, item_key, item_value

TEETH_SEEDS = 800


@pytest.mark.parametrize("seed", range(60))
def test_a_walk(seed: int) -> None:
    check_walk(seed, 300)


def test_walks_have_everything() -> None:
    walks = [check_walk(seed, 300) for seed in range(5)]
    assert sum(len(walk.needed) for walk in walks) > 5
    assert all(walk.plain.items and walk.plain.owners for walk in walks)
    assert any(walk.plain.locks for walk in walks)
    assert any(walk.plain.requests for walk in walks)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: str(each.__name__))
def test_a_broken_rule_is_noticed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    for seed in range(TEETH_SEEDS):
        try:
            check_walk(seed, 300)
        except AssertionError:
            return
    pytest.fail(f"nobody noticed in {TEETH_SEEDS} walks: {mutation.__doc__}")


def test_a_request_is_remembered_though_its_item_was_written_by_another_since() -> None:
    """Were it kept in the item, the repetition would be taken for a new write, and undo the other's."""
    state = MemoryState()
    key = ItemKey(0, 1, b"x")
    first, other = RequestId(7, 3, 3), RequestId(8, 1, 1)
    state.apply(
        [
            (0, encode_record(Set(key, 4, b"mine", request=first, at_ms=1))),
            (1, encode_record(Set(key, 4, b"another's", request=other, at_ms=2))),
        ]
    )
    assert (state.request(7, 3), state.request(8, 1)) == (0, 1)
    state.apply([(2, encode_record(Set(key, 4, b"mine, later", request=RequestId(7, 4, 4), at_ms=3)))])
    assert (state.request(7, 3), state.request(7, 4)) == (None, 2)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("request_id", [NOBODYS, RequestId(7, 3, 3)])
def test_a_set_ends_what_was_deferred(together: bool, request_id: RequestId) -> None:
    """A fold that begins with a snapshot: the older item which a chunk brings later is no news any more."""
    state, key = MemoryState(), ItemKey(0, 1, b"x")
    newest = Set(key, 4, b"new", request=request_id, at_ms=9)
    old = SnapshotItem(Table.ITEMS, item_key(key), item_value(2, 4, 0, b"", b"old")[CHANGED_BYTES:], 2)
    records: list[Record] = [
        SnapshotBegin(),
        Touch(key, 9_000),
        Several((newest, newest)) if together else newest,
        SnapshotChunk(5, (old,)),
        SnapshotEnd(5),
    ]
    state.apply([(5 + place, encode_record(record)) for place, record in enumerate(records)])
    item = state.item(key)
    assert item is not None
    assert (item.data, item.version) == (b"new", 7)


def test_how_long_a_request_is_remembered() -> None:
    state = MemoryState()
    state.apply([(0, encode_record(Delete(ItemKey(0, 1, b"x"), RequestId(7, 3, 3), at_ms=59_999)))])
    state.apply([(1, encode_record(Delete(ItemKey(0, 1, b"x"), at_ms=11 * 60_000 - 1)))])
    assert state.request(7, 3) == 0
    state.apply([(2, encode_record(Delete(ItemKey(0, 1, b"x"), at_ms=11 * 60_000)))])
    assert state.request(7, 3) is None
    assert state.live_bytes == 0
