"""What ``waltz topic`` is made of, over actors in memory; the commands themselves: test_cluster.py."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.kv.fake_cluster import FakeKvCluster
from tests.topics.servers import TopicCluster, topic_cluster
from waltz_ray.errors import InvalidInput, PartitionNotReady
from waltz_ray.kv import KvClient
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics.client.consuming import TopicReader
from waltz_ray.topics.client.positions import GroupPlace, positions, set_position
from waltz_ray.topics.client.producing import TopicSender
from waltz_ray.topics.offset_item import OffsetItem, decode_offset, encode_offset, offset_name


def masters(cluster: TopicCluster) -> list[Endpoint]:
    found = [server.endpoint for server in cluster.servers.values()]
    return [each for each in found if each is not None]


async def read(reader: TopicReader, count: int) -> list[tuple[int, bytes]]:
    got: list[tuple[int, bytes]] = []
    messages = reader.messages()
    async for each in messages:
        got.append((each.partition, each.data))
        if len(got) == count:
            break
    await messages.aclose()  # type: ignore[attr-defined]
    await reader.close()
    return got


def test_what_is_sent_is_read_once_by_a_group() -> None:
    async def run() -> None:
        async with topic_cluster(2) as cluster:
            await cluster.create("orders", 3)
            await cluster.until(cluster.settled)
            sender = TopicSender(masters(cluster), "orders", 10)
            sent = [await sender.send(b"%d" % number, 3, "odd" if number % 2 else "even") for number in range(9)]
            assert [partition for partition, _ in sent] == [0, 1, 2] * 3
            assert (await sender.send(b"last", 3, partition=1))[0] == 1
            got = await asyncio.wait_for(read(TopicReader(masters(cluster), "g", "orders", (), 10), 10), 30)
            assert sorted(got) == sorted([(n % 3, b"%d" % n) for n in range(9)] + [(1, b"last")])
            odd = await asyncio.wait_for(read(TopicReader(masters(cluster), "h", "orders", ("odd",), 10), 4), 30)
            assert sorted(data for _, data in odd) == [b"1", b"3", b"5", b"7"]
            await sender.send(b"new", 3)
            again = await asyncio.wait_for(read(TopicReader(masters(cluster), "g", "orders", (), 10), 1), 30)
            assert again[0][1] == b"new", "the others were confirmed at the end"
            await sender.close()

    asyncio.run(run())


def test_a_sender_follows_a_slot_that_moves_and_says_why_it_cannot() -> None:
    async def run() -> None:
        async with topic_cluster(2) as cluster:
            await cluster.create("orders", 2)
            await cluster.until(cluster.settled)
            sender = TopicSender(masters(cluster), "orders", 10)
            await sender.send(b"a", 2, partition=0)
            await sender.send(b"a", 2, partition=1)
            leader = cluster.leader()
            assert leader is not None
            await cluster.end(1 - leader)
            await cluster.until(cluster.settled)
            for partition in (0, 1):
                with contextlib.suppress(PartitionNotReady):  # the connection ended under it: nobody can say
                    await sender.send(b"b", 2, partition=partition)
                assert (await sender.send(b"c", 2, partition=partition))[0] == partition
            with pytest.raises(InvalidInput, match="the message is refused \\(400\\): the message has no data"):
                await sender.send(b"", 2)
            await sender.close()
            nobody = TopicSender([], "orders", 0.2)
            with pytest.raises(PartitionNotReady, match="start them with waltz up --topics"):
                await nobody.send(b"x", 2)

    asyncio.run(run())


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
