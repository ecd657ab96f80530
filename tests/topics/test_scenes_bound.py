"""T30 over the real ports: a bound group, from the offsets that its members name; sessions and their keys end."""

from __future__ import annotations

import asyncio
import time

from tests.topics.foreign_client import Fields, text
from tests.topics.scenes import Crowd, SceneMember
from tests.topics.servers import TopicCluster, topic_cluster
from waltz_ray.topics.groups.table import TopicPartition

CLIENT_S = 1.0


def bound(key: str, count: int = 2, required: str = "", big: bool = True) -> Fields:
    head: Fields = {4: text("orders"), 7: 1, 8: 1, 9: text(key), 10: count, 13: int(big)}
    return {**head, 11: text(required)} if required else head


async def filled(cluster: TopicCluster) -> None:
    """Partitions 0 and 1 of ``orders`` have messages at the offsets 1 to 9, which say so."""
    await cluster.create("orders", 2)
    await cluster.until(cluster.settled)
    ports = {slot: port for server in cluster.servers.values() for slot, port in server.node.ports.items()}
    for slot in (1, 2):
        broker = await cluster.client(ports[slot])
        for number in range(1, 10):
            reply = await broker.produce("orders", b"%d/%d" % (slot, number))
            assert (reply.code, reply.number(5)) == (200, number)


async def consume(crowd: Crowd, count: int) -> list[bytes]:
    deadline = time.monotonic() + 20
    while sum(len(each.got) for each in crowd.members.values()) < count:
        assert time.monotonic() < deadline
        await crowd.beat()
        for each in crowd.members.values():
            await each.consume()
    return sorted(data for each in crowd.members.values() for data in each.got)


def test_t30_a_bound_group_waits_for_all_its_members_and_begins_where_they_say() -> None:
    async def run() -> None:
        for big, first in ((True, 6), (False, 4)):
            async with topic_cluster(2) as cluster:
                await filled(cluster)
                crowd = Crowd(cluster)
                crowd.add("a", register=bound("k", 2, "1:orders:0=4,2:orders:0=8", big))
                for _ in range(20):
                    await crowd.beat()
                assert crowd.counts() == [0], "one is missing"
                crowd.add("b", register=bound("k", 2, "1:orders:0=6", big))
                await crowd.until_shared([1, 1])
                expected = [b"1/%d" % n for n in range(first, 10)] + [b"2/8", b"2/9"]
                assert await consume(crowd, len(expected)) == expected
                late = SceneMember(crowd, "c", "g", bound("k", 2, "", big))
                late.master = await cluster.master()
                refused = await late.master.ask(4, {1: b"c", 2: b"g", 3: b"h", **late.register_fields})
                assert (refused.code, "2 consumers" in refused.why) == (400, True)

    asyncio.run(run())


def test_t30_a_session_that_lacks_a_member_goes_on_and_gives_way_when_its_lease_is_over() -> None:
    """One of two is killed: the other has all; its key keeps others out for a while, and no longer. When it comes back
    with the old key, it is a zombie, and is told so."""

    async def run() -> None:
        async with topic_cluster(1, client_ms=int(CLIENT_S * 1000)) as cluster:
            await filled(cluster)
            crowd = Crowd(cluster)
            crowd.add("a", "b", register=bound("k"))
            await crowd.until_shared([1, 1])
            crowd.vanish("b")
            gone = time.monotonic()
            zombie = crowd.members["a"]
            await crowd.until_shared([2])
            master = await cluster.master()
            newcomer: Fields = {1: b"n", 2: b"g", 3: b"h", **bound("next", 1, "1:orders:0=9")}
            refusals = 0
            while (reply := await master.ask(4, newcomer)).code != 200:
                assert (reply.code, "session key k, and this consumer next" in reply.why) == (400, True)
                refusals += 1
                await crowd.beat()
                assert time.monotonic() - gone < 30
                await asyncio.sleep(0.01)  # polling interval, not synchronisation
            assert refusals > 0
            assert time.monotonic() - gone > 2 * CLIENT_S, "a session lacks members for two periods before it ends"
            assert await zombie.beat() == 411
            assert await zombie.beat() == 400, "its key is over"
            for subscription in list(zombie.has):
                await zombie.leave(subscription)
            del crowd.members["a"]
            crowd.add("n", register=bound("next", 1, "1:orders:0=9"))
            await crowd.until_shared([2])
            got = await consume(crowd, 10)
            assert [data for data in got if data.startswith(b"1/")] == [b"1/9"]

    asyncio.run(run())


def test_t30_a_session_whose_members_are_all_killed_is_soon_over() -> None:
    async def run() -> None:
        async with topic_cluster(1, client_ms=int(CLIENT_S * 1000)) as cluster:
            await filled(cluster)
            crowd = Crowd(cluster)
            crowd.add("a", "b", register=bound("k"))
            await crowd.until_shared([1, 1])
            crowd.vanish("a")
            crowd.vanish("b")
            crowd.add("n", register=bound("next", 1))
            await crowd.until_shared([2])

    asyncio.run(run())


def test_t30_a_master_that_leads_no_more_sets_no_group_back() -> None:
    """The group has begun under the next one, and is further, when the first master's write would be made."""

    async def run() -> None:
        async with topic_cluster(2, client_ms=int(CLIENT_S * 1000)) as cluster:
            await filled(cluster)
            first = cluster.leader()
            assert first is not None
            reached, go_on = asyncio.Event(), asyncio.Event()

            async def between() -> None:
                if not reached.is_set():
                    reached.set()
                    await go_on.wait()

            cluster.offsets.between = between
            crowd = Crowd(cluster)
            crowd.add("a", register=bound("k", 1, "1:orders:0=4,2:orders:0=8"))
            while not reached.is_set():
                await crowd.beat()
            storing = list(cluster.servers[first].master.tasks._tasks)
            session = cluster.sessions[first]
            cluster.log._zookeeper.disconnect(session)
            cluster.log._zookeeper.expire(session.session_id)
            await cluster.until(lambda: cluster.servers[1 - first].master.machine.leads)
            cluster.log._zookeeper.reconnect(session)
            await crowd.until_shared([2])
            assert cluster.leader() == 1 - first
            await consume(crowd, 8)
            there = dict(cluster.offsets.items)
            assert min(item.offset for item in there.values()) >= 10
            go_on.set()
            await asyncio.gather(*storing)
            assert cluster.offsets.items == there
            assert crowd.counts() == [2]

    asyncio.run(run())


def test_t30_a_master_that_may_have_been_followed_stores_nothing() -> None:
    """It is cut off, and has not been told that its session is over."""

    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await filled(cluster)
            server, orders = cluster.servers[0], {TopicPartition("orders", 1): 4}
            assert await server._store_offsets("g", orders, lambda: True) == ""
            assert cluster.offsets.items["g", "orders", 0].offset == 4
            cluster.log._zookeeper.disconnect(cluster.sessions[0])
            await cluster.until(lambda: not server._has_lease())
            assert server.master.machine.leads
            assert "not now" in await server._store_offsets("g", {TopicPartition("orders", 1): 2}, lambda: True)
            assert cluster.offsets.items["g", "orders", 0].offset == 4
            cluster.log._zookeeper.reconnect(cluster.sessions[0])

    asyncio.run(run())
