"""Topic actors as foreign clients meet them: a master, slots, messages from producers to groups."""

from __future__ import annotations

import asyncio

import pytest

from tests.topics.foreign_client import Fields, ForeignFault, message, text
from tests.topics.members import Member, brokers_in, joined
from tests.topics.servers import topic_cluster

PRODUCER: Fields = {1: text("producer"), 2: text("orders"), 3: -1, 4: text("127.0.0.1")}


def test_t11_t12_t15_a_producer_finds_its_brokers_and_sends() -> None:
    async def run() -> None:
        async with topic_cluster(2) as cluster:
            await cluster.create("orders", 3)
            await cluster.until(cluster.settled)
            master = await cluster.master()
            registered = await master.ask(1, PRODUCER)
            assert registered.code == 200
            brokers = brokers_in(registered.texts(5))
            assert sorted(brokers) == [1, 2, 3]
            checksum = registered.number(4)
            beat = await master.ask(2, {1: text("producer"), 2: checksum, 3: text("h"), 4: text("orders")})
            assert beat.texts(5) == [f"orders#1:1:1,2:1:1,3:1:1#{4 << 20}"]
            assert beat.texts(6) == [], "it has them"
            other = await master.ask(2, {1: text("producer"), 2: 1, 3: text("h"), 4: text("orders")})
            assert brokers_in(other.texts(6)) == brokers
            for slot, port in brokers.items():
                sent = await (await cluster.client(port)).produce("orders", f"to {slot}".encode())
                assert sent.code == 200
            assert (await master.ask(3, {1: text("producer")})).code == 200
            unknown = await master.ask(2, {1: text("producer"), 2: checksum, 3: text("h"), 4: text("orders")})
            assert unknown.code == 411

    asyncio.run(run())


def test_t38_who_does_not_lead_says_so() -> None:
    async def run() -> None:
        async with topic_cluster(2) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            leader = cluster.leader()
            assert leader is not None
            with pytest.raises(ForeignFault, match="StandbyException"):
                await (await cluster.master(1 - leader)).ask(1, PRODUCER)
            await cluster.end(leader)
            await cluster.until(lambda: cluster.leader() == 1 - leader)
            assert (await (await cluster.master()).ask(1, PRODUCER)).code == 200

    asyncio.run(run())


def test_t32_t33_a_group_shares_partitions_and_consumes_all_of_them() -> None:
    async def run() -> None:
        async with topic_cluster(2) as cluster:
            await cluster.create("orders", 4)
            await cluster.until(cluster.settled)
            master = await cluster.master()
            one, two = Member(cluster.client, "one"), Member(cluster.client, "two")
            await one.join(master)
            await two.join(master)
            brokers = brokers_in((await master.ask(1, PRODUCER)).texts(5))
            for slot, port in brokers.items():
                broker = await cluster.client(port)
                for number in range(5):
                    assert (await broker.produce("orders", f"{slot}/{number}".encode())).code == 200

            async def all_shared() -> None:
                while len(one.has) != 2 or len(two.has) != 2:
                    assert await one.beat() == await two.beat() == 200
                    await asyncio.sleep(0.01)  # polling interval, not synchronisation

            await asyncio.wait_for(all_shared(), 20)
            while len(one.got) + len(two.got) < 20:
                await one.consume()
                await two.consume()
            assert sorted(one.got + two.got) == sorted(f"{s}/{n}".encode() for s in brokers for n in range(5))
            assert not set(one.has) & set(two.has)

    asyncio.run(run())


def test_a_slot_of_an_actor_that_leaves_is_where_the_checksum_says() -> None:
    async def run() -> None:
        async with topic_cluster(2) as cluster:
            await cluster.create("orders", 2)
            await cluster.until(cluster.settled)
            leader = cluster.leader()
            assert leader is not None
            master = await cluster.master()
            registered = await master.ask(1, PRODUCER)
            before = brokers_in(registered.texts(5))
            await cluster.end(1 - leader)
            await cluster.until(cluster.settled)
            beat = await master.ask(2, {1: text("producer"), 2: registered.number(4), 3: text("h"), 4: text("orders")})
            after = brokers_in(beat.texts(6))
            assert beat.number(4) != registered.number(4)
            assert [slot for slot in (1, 2) if before[slot] != after[slot]] != []
            for port in after.values():
                assert (await (await cluster.client(port)).produce("orders", b"x")).code == 200

    asyncio.run(run())


def test_topics_come_and_go_and_grow_the_table() -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:
            server = cluster.servers[0]
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            await cluster.create("bills", 3)
            await cluster.until(lambda: cluster.settled() and len(server.node.ports) == 3)
            assert server.status().topics == {"orders": 1, "bills": 3}
            await asyncio.to_thread(cluster.log.delete_space, "orders")
            await cluster.until(lambda: server.status().topics == {"bills": 3})
            assert cluster.settled()

    asyncio.run(run())


def test_t51_what_makes_no_sense_is_refused_and_says_why() -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            master = await cluster.master()
            head: Fields = {1: text("c"), 2: text("g"), 3: text("h"), 4: text("orders")}
            wrong = await master.ask(4, {**head, 5: text("nonsense")})
            assert (wrong.code, "consumer@group" in wrong.why) == (400, True)
            assert (await master.ask(4, {**head, 6: text("#")})).code == 400
            assert (await master.ask(4, {**head, 7: 1, 11: text("1:orders")})).code == 400
            event = message({1: 1, 2: 1, 3: 99})
            assert (await master.ask(4, head)).code == 200
            assert (await master.ask(5, {1: text("c"), 2: text("g"), 4: 0, 5: event})).code == 400
            assert (await joined(master, "d", topic="others")).code == 400

    asyncio.run(run())
