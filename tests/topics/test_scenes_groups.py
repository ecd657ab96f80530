"""What groups are promised, on the whole serving stack: real ports, actors, the log; in one process."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.topics.members import brokers_in
from tests.topics.scenes import Crowd
from tests.topics.servers import TopicCluster, topic_cluster
from tests.topics.test_topic_server import PRODUCER
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics.client.links import tell_slot
from waltz_ray.topics.lease_ending import others_end
from waltz_ray.topics.records import TopicMessage, decode_topic_record, is_message
from waltz_ray.topics.tokens import AuthSecrets


def test_t32_t33_shares_are_even_at_each_step_and_only_the_surplus_moves() -> None:
    async def run() -> None:
        async with topic_cluster(2) as cluster:
            await cluster.create("orders", 7)
            await cluster.until(cluster.settled)
            crowd = Crowd(cluster)
            for join, leave, counts, moved in (
                ("a", "", [7], 7),
                ("bc", "", [3, 2, 2], 4),
                ("", "c", [4, 3], 2),
                ("def", "", [2, 2, 1, 1, 1], 3),
            ):
                before = len(crowd.moves)
                crowd.add(*join)
                for name in leave:
                    gone = len(crowd.members[name].has)
                    await crowd.remove(name)
                    assert gone == moved
                await crowd.until_shared(counts)
                assert len(crowd.moves) - before == moved, crowd.moves[before:]
            owners = sorted(partition for each in crowd.members.values() for partition in each.partitions)
            assert owners == [("orders", str(slot)) for slot in range(1, 8)]

    asyncio.run(run())


def test_t35_who_comes_early_is_told_410_and_succeeds_later() -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 2)
            await cluster.until(cluster.settled)
            crowd = Crowd(cluster)
            crowd.add("a")
            await crowd.until_shared([2])
            crowd.add("b")
            late = crowd.members["b"]
            for subscription in [each.replace("a@", "b@") for each in crowd.members["a"].has]:
                await late.connect(subscription)
            assert late.codes == [410, 410]
            assert not late.has
            await crowd.until_shared([1, 1])
            assert late.codes == [410, 410, 200]

    asyncio.run(run())


async def fifty(seed: int, steps: int) -> None:
    """They come and go; then the rest are left alone."""
    async with topic_cluster(2, client_ms=1000) as cluster:
        await cluster.create("orders", 7)
        await cluster.until(cluster.settled)
        crowd = Crowd(cluster)
        await crowd.random_life(seed, steps, 50)
        while len(crowd.members) < 3:
            crowd.add(f"last{len(crowd.members)}")
        members = len(crowd.members)
        least, more = divmod(7, members)
        # Two periods are enough (tests/topics/groups/groups_world.py, by its own clock), and how long a look takes.
        await crowd.until_shared([least + 1] * more + [least] * (members - more))
        assert len(crowd.log.holder) == 7
        assert len(crowd.moves) > 7


def test_t32_t36_fifty_that_come_and_go_leave_every_partition_with_one_owner() -> None:
    asyncio.run(fifty(1, 150))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 12))
def test_t32_t36_fifty_that_come_and_go_for_minutes(seed: int) -> None:
    asyncio.run(fifty(seed, 1500))


def test_t33_t38_t39_members_go_on_under_the_next_leader_and_ids_rise() -> None:
    async def run() -> None:
        async with topic_cluster(2, client_ms=2000) as cluster:
            await cluster.create("orders", 4)
            await cluster.until(cluster.settled)
            crowd = Crowd(cluster)
            crowd.add("a", "b")
            await crowd.until_shared([2, 2])
            before = {name: member.partitions for name, member in crowd.members.items()}
            last, orders = crowd.log.last_id, len(crowd.log.orders)
            leader = cluster.leader()
            assert leader is not None
            await cluster.end(leader)
            unowned_since = 0.0
            deadline = time.monotonic() + 20
            while not (cluster.settled() and len(crowd.log.holder) == 4 and crowd.counts() == [2, 2]):
                assert time.monotonic() < deadline, (crowd.log.holder, crowd.counts())
                await crowd.beat()
                for each in crowd.members.values():
                    await each.consume()
                if crowd.counts() == [2, 2]:
                    unowned_since = 0.0
                else:
                    unowned_since = unowned_since or time.monotonic()
                    assert time.monotonic() - unowned_since < 4.0, "two periods"
                await asyncio.sleep(0.005)  # polling interval, not synchronisation
            assert {name: member.partitions for name, member in crowd.members.items()} == before
            assert crowd.log.last_id > last, "the log has judged each ID on its way"
            crowd.add("c")
            await crowd.until_shared([2, 1, 1])
            assert len(crowd.log.orders) > orders
            assert min(sorted(crowd.log.orders)[orders:]) > last

    asyncio.run(run())


def test_t29_who_consumes_and_has_nothing_to_confirm_hears_that_its_offset_was_set() -> None:
    """As ``waltz topic reset`` does it: the offset first, then the slot is told."""

    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            server = cluster.servers[0]
            port = server.node.ports[1]
            broker = await cluster.client(port)
            crowd = Crowd(cluster)
            crowd.add("a")
            await crowd.until_shared([1])
            for data in (b"1", b"2", b"3"):
                assert (await broker.produce("orders", data)).code == 200
            member = crowd.members["a"]
            for _ in range(3):
                await member.consume()
            assert member.got == [b"1", b"2", b"3"]
            assert await cluster.offsets.put("g", "orders", 0, 2) == ""
            await member.consume()
            assert len(member.got) == 3, "it has not heard of it"
            place = Endpoint("127.0.0.1", port)
            forged = others_end(AuthSecrets(b"not theirs"), "g", "orders", 1, "")
            assert await tell_slot(place, forged, 5.0) == ""
            await member.consume()
            assert (len(member.has), len(member.got)) == (1, 3)
            assert await tell_slot(place, others_end(server.access.now.secrets, "g", "orders", 1, ""), 5.0) == ""
            await member.consume()
            assert member.has == {}
            await crowd.until_shared([1])
            await member.consume()
            assert member.got[3:] == [b"2", b"3"]
            assert await tell_slot(Endpoint("127.0.0.1", 1), forged, 5.0) != ""

    asyncio.run(run())


def payloads(cluster: TopicCluster, partitions: int) -> dict[tuple[int, int], bytes]:
    """(slot, offset) -> payload of each message of ``orders``."""
    with cluster.log.connect(space="orders") as client:
        there = [each for partition in range(partitions) for each in client.feed(partition) if is_message(each.data)]
    messages = [(each.partition_id + 1, each.transaction_id, decode_topic_record(each.data)) for each in there]
    return {(slot, at): each.payload for slot, at, each in messages if isinstance(each, TopicMessage)}


def test_t12_an_actor_that_leaves_in_the_middle_of_sends_doubles_and_loses_nothing() -> None:
    """Acknowledged messages are in the log once, at their offset, whichever actor their slot was with."""

    async def run() -> None:
        async with topic_cluster(2) as cluster:
            await cluster.create("orders", 2)
            await cluster.until(cluster.settled)
            leader = cluster.leader()
            assert leader is not None
            master = await cluster.master(leader)
            registered = await master.ask(1, PRODUCER)
            ports = brokers_in(registered.texts(5))
            acknowledged: dict[tuple[int, int], bytes] = {}
            stopping = asyncio.Event()

            async def sends(slot: int) -> None:
                number, broker = 0, await cluster.client(ports[slot])
                while not stopping.is_set():
                    payload = b"%d of %d" % (number, slot)
                    number += 1
                    try:
                        reply = await broker.produce("orders", payload)
                    except ConnectionError:
                        beat = await master.ask(2, {1: b"producer", 2: registered.number(4), 3: b"h", 4: b"orders"})
                        ports.update(brokers_in(beat.texts(6)))
                        broker = await cluster.client(ports[slot]) if slot in ports else broker
                        continue
                    if reply.code == 200:
                        acknowledged[slot, reply.number(5)] = payload

            sending = [asyncio.ensure_future(sends(slot)) for slot in (1, 2)]
            await cluster.until(lambda: len(acknowledged) > 100)
            before = dict(ports)
            await cluster.end(1 - leader)
            await cluster.until(cluster.settled)
            sent = len(acknowledged)
            await cluster.until(lambda: len(acknowledged) > sent + 100 and {s for s, _ in acknowledged} == {1, 2})
            stopping.set()
            await asyncio.gather(*sending)
            assert ports != before
            found = await asyncio.to_thread(payloads, cluster, 2)
            assert {key: found[key] for key in acknowledged} == acknowledged, "at the offset that was told"
            assert len(set(found.values())) == len(found), "once"

    asyncio.run(run())
