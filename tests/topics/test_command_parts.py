"""What ``waltz topic`` is made of, over actors in memory; the commands themselves: test_cluster.py."""

from __future__ import annotations

from tests.kv.fake_cluster import FakeKvCluster
from waltz_ray.kv import KvClient
from waltz_ray.topics.client.positions import GroupPlace, positions, set_position
from waltz_ray.topics.offset_item import OffsetItem, decode_offset, encode_offset, offset_name


def test_positions_are_read_and_set_and_fence_who_had_them() -> None:
    with FakeKvCluster(2) as cluster, KvClient(cluster.place()) as items:
        items.set(offset_name("g", "orders", 0), encode_offset(OffsetItem(5, 2, 7, 1, 9)))
        items.set(offset_name("g", "orders", 1), encode_offset(OffsetItem(-1, 1, 7, 1)))
        items.set(offset_name("g", "bills", 0), encode_offset(OffsetItem(9, 1, 7, 1)))
        items.set(offset_name("gg", "orders", 0), encode_offset(OffsetItem(3, 1, 7, 1)))
        place = GroupPlace("g", "orders", 0)
        assert {at: item.offset for at, item in positions(items, "g").items()} == {
            GroupPlace("g", "bills", 0): 9,
            place: 5,
            GroupPlace("g", "orders", 1): -1,
        }
        assert positions(items, topic="orders").keys() == {
            place,
            place._replace(partition=1),
            GroupPlace("gg", *place[1:]),
        }
        set_position(items, place, 1)
        set_position(items, place._replace(group="new"), 4)
        assert decode_offset(items.get(offset_name(*place))) == OffsetItem(1, 3, 7, 1, 9), "a higher epoch"
        assert positions(items, "new") == {place._replace(group="new"): OffsetItem(4, 1, 0, 0)}
