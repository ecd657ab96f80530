"""A watch of the earliest, where the log begins with a snapshot."""

from __future__ import annotations

import asyncio

import pytest

from tests.kv.conftest import LogPlace
from tests.kv.test_client_parts import KEY, NAME, OF_A_MAP, OTHER
from tests.kv.walk import Walk
from waltz_ray.errors import Trimmed
from waltz_ray.kv.client.aio import AsyncKvClient
from waltz_ray.kv.client.beginnings import WatchBeginning
from waltz_ray.kv.client.client import KvClient
from waltz_ray.kv.client.watching import ItemDeleted, ItemExpired, ItemSet, ItemTouched
from waltz_ray.kv.model import (
    BARRIER,
    Delete,
    Expired,
    ItemKey,
    Record,
    Set,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    SnapshotItem,
    Touch,
    ValueType,
)
from waltz_ray.kv.records import decode_record, encode_record, header_of
from waltz_ray.kv.routing import fnv1a_32
from waltz_ray.kv.state import MemoryState
from waltz_ray.kv.tables import CHANGED_BYTES, Table, item_key, item_value


@pytest.mark.parametrize("seed", range(12))
def test_it_begins_with_the_state_at_the_end_of_a_snapshot(seed: int) -> None:
    """Of a random log, from where it was needed and from before: all items of what is wanted, as of one transaction."""
    walk = Walk(seed)
    walk.run(400)
    records = [decode_record(data) for data in walk.log]

    def wanted(key: ItemKey) -> bool:
        return key.map_hash == 1 and key.name.startswith(b"a")

    seen = 0
    for first in (*walk.needed, *(walk.random.randint(1, begin) for begin in walk.needed if begin)):
        beginning = WatchBeginning(wanted)
        for at in range(first, len(records)):
            items = beginning.items(at, records[at])
            if items is not None:
                whole = MemoryState()
                whole.apply(enumerate(walk.log[: at + 1]))
                expected = [entry for entry in whole.items() if wanted(entry[0])]
                assert list(items) == sorted(expected, key=lambda entry: entry[1].version)
                assert isinstance(records[at], SnapshotEnd)
                seen += len(expected)
                break
        else:
            pytest.fail(f"from {first} on it never knows")
    assert seen or not walk.needed


def _item(key: ItemKey, data: bytes, version: int, map_name: bytes = b"") -> SnapshotItem:
    value = item_value(version, ValueType.TEXT, 0, map_name, data)
    return SnapshotItem(Table.ITEMS, item_key(key), value[CHANGED_BYTES:], version)


BOB, GONE = ItemKey(0, fnv1a_32(OTHER), OTHER), ItemKey(0, fnv1a_32(b"gone"), b"gone")
BEGIN = 6
LOG: list[Record] = [
    Set(GONE, ValueType.TEXT, b"never seen"),
    Set(KEY, ValueType.TEXT, b"one"),
    Set(OF_A_MAP, ValueType.TEXT, b"of a map", map_name=b"users"),
    Set(BOB, ValueType.TEXT, b"of another name"),
    Delete(GONE),
    BARRIER,
    SnapshotBegin(),  # 6, and the log begins here later
    Delete(BOB),
    Touch(KEY, 99),  # the item comes in a chunk
    SnapshotChunk(BEGIN, (_item(KEY, b"one", 1), _item(BOB, b"of another name", 3))),
    SnapshotChunk(BEGIN, (_item(OF_A_MAP, b"of a map", 2, b"users"),)),
    SnapshotEnd(BEGIN),
    Set(BOB, ValueType.TEXT, b"again"),  # 12
    Expired(((KEY, 8),)),
]
EVENTS = [ItemSet("ann", "one", 8, 0, 99), ItemSet("bob", "again", 12, 0, 0), ItemExpired("ann", 8, 0)]


def append(place: LogPlace, records: list[Record]) -> None:
    with place.log() as log:
        for record in records:
            log.append(0, encode_record(record), header_of(record)).result(10)


def test_a_watch_of_a_compacted_log(place: LogPlace) -> None:
    append(place, LOG)
    with KvClient(place) as items, items.watch(start="earliest") as events:
        whole = [next(events) for _ in range(8)]
        assert whole[0] == ItemSet("gone", "never seen", 0, 0, 0), "history, while there is all of it"
        assert whole[3:] == [
            ItemDeleted("gone", 4, 0),
            ItemDeleted("bob", 7, 0),
            ItemTouched("ann", 8, 0, 99),
            *EVENTS[1:],
        ]
    place.log_cluster.trim(0, BEGIN, "kv")
    with KvClient(place) as items:
        with items.watch(start="earliest") as events:
            assert [next(events) for _ in EVENTS] == EVENTS
            append(place, [Delete(BOB)])
            assert next(events) == ItemDeleted("bob", 14, 0)
        with items.watch(start="earliest", map="users") as events:
            assert next(events) == ItemSet(NAME.decode(), "of a map", 2, 0, 0)
        with items.watch(start={0: 8, 1: 0}) as events:
            assert next(events) == ItemTouched("ann", 8, 0, 99), "who knows the state goes on with records"
        with pytest.raises(Trimmed), items.watch(start={0: 1, 1: 0}) as events:
            next(events)

    async def run() -> None:
        async with AsyncKvClient(place) as found, found.watch(start="earliest") as events:
            assert [await anext(events) for _ in EVENTS] == EVENTS

    asyncio.run(run())


def test_a_snapshot_tells_of_no_other_map_with_the_same_hash(place: LogPlace) -> None:
    map_hash = fnv1a_32(b"costarring")
    ours, theirs = (ItemKey(map_hash, fnv1a_32(name), name) for name in (b"ours", b"theirs"))
    chunk = (_item(ours, b"1", 0, b"costarring"), _item(theirs, b"2", 0, b"liquid"))
    append(place, [BARRIER, SnapshotBegin(), SnapshotChunk(1, chunk), SnapshotEnd(1), Delete(theirs), Delete(ours)])
    place.log_cluster.trim(0, 1, "kv")
    with KvClient(place) as items, items.watch(start="earliest", map="costarring") as events:
        assert [next(events), next(events)] == [ItemSet("ours", "1", 0, 0, 0), ItemDeleted("ours", 5, 0)]
