"""Topic actors as foreign clients meet them: a master, slots, messages from producers to groups."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.net.test_tls import made
from tests.topics.foreign_client import Fields, ForeignFault, message, text
from tests.topics.members import Member, brokers_in, joined
from tests.topics.servers import topic_cluster
from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.net.tls import client_context
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.spaces import Space
from waltz_ray.topics.client.links import tell_slot
from waltz_ray.topics.groups.table import SlotPlace, TopicPartition
from waltz_ray.topics.lease_ending import OTHERS_END, others_end
from waltz_ray.topics.serving import topic_server
from waltz_ray.topics.serving.client_owners import ClientOwners
from waltz_ray.topics.serving.deliveries import Deliveries
from waltz_ray.topics.serving.partition_fold import PartitionFold

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
            await cluster.delete("orders")
            await cluster.until(lambda: server.status().topics == {"bills": 3})
            assert cluster.settled()

    asyncio.run(run())


def test_a_topic_that_cannot_be_served_yet_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind it were not served; and for a lack of threads none was until the actor was started again."""

    async def run() -> None:
        async with topic_cluster(1) as cluster:
            server, lacking = cluster.servers[0], {"bills"}
            connect = server._connect

            async def connected(space: Space) -> AsyncWaltzClient:
                if space.name in lacking:
                    raise RuntimeError("can't start new thread")
                return await connect(space)

            monkeypatch.setattr(server, "_connect", connected)
            for topic in ("bills", "orders"):
                await cluster.create(topic, 1)
            await cluster.until(lambda: set(server.node.topics) == {"orders"} and bool(server.failure))
            assert "topic bills: can't start new thread" in server.status().reason
            lacking.clear()
            await cluster.until(cluster.settled)
            assert not server.failure

    monkeypatch.setattr(topic_server, "_AGAIN_S", 0.02)
    asyncio.run(run())


def test_what_a_bug_has_ended_does_not_look_as_if_it_served(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:
            server = cluster.servers[0]
            await cluster.until(lambda: server.status().serving)

            def bug() -> list[int]:
                raise TypeError("a bug")

            monkeypatch.setattr(server.node, "slots", bug)
            server.node._stirred.set()
            await cluster.until(lambda: bool(server.node.tasks.broken))
            monkeypatch.undo()
            said = server.status()
            assert not said.serving
            assert said.reason.startswith("slots are left as they are: TypeError('a bug')")
            server.node.tasks.broken = ""
            cluster.offsets.away = True
            assert server.status().reason == "it is away", "no group can begin or confirm"
            cluster.offsets.away = False

            async def ends() -> None:
                raise TypeError("another")

            server._spawn(ends())
            await cluster.until(lambda: not server.status().serving)
            assert server.status().reason.startswith("a task has ended: TypeError('another')")
            server.tasks.broken = ""
            server.master._spawn(ends())
            await cluster.until(lambda: not server.status().serving)
            assert server.status().reason.startswith("a task of the master has ended: TypeError('another')")
            server.master.tasks.broken = ""
            server.node.duties.deliveries.spawn(ends())
            await cluster.until(lambda: not server.status().serving)
            assert server.status().reason.startswith("a delivery has failed: TypeError('another')")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("called", "told"),
    [("keep", "groups are not balanced any more"), ("_look_after_leases", "no lease ends any more")],
)
def test_what_ticks_no_more_does_not_look_as_if_it_served(
    monkeypatch: pytest.MonkeyPatch, called: str, told: str
) -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:
            server = cluster.servers[0]
            await cluster.until(lambda: server.status().serving)

            def bug(*_: object) -> None:
                raise TypeError("a bug")

            asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # where it goes on to
            monkeypatch.setattr(ClientOwners if called == "keep" else Deliveries, called, bug)
            await cluster.until(lambda: not server.status().serving)
            assert server.status().reason.startswith(f"{told}: TypeError('a bug')")

    asyncio.run(run())


def test_a_partition_that_a_bug_has_ended_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:

            async def bug(self: PartitionFold) -> None:
                monkeypatch.undo()
                raise TypeError("a bug")

            monkeypatch.setattr(PartitionFold, "start", bug)
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)

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


def test_t23_t36_who_is_gone_for_the_master_and_goes_on_pulling_loses_the_partition() -> None:
    """On slots of both actors: of the master itself, and of the other one."""

    async def run() -> None:
        async with topic_cluster(2, client_ms=1500) as cluster:
            await cluster.create("orders", 2)
            await cluster.until(cluster.settled)
            master = await cluster.master()
            old, new = Member(cluster.client, "old"), Member(cluster.client, "new")
            await old.join(master)
            while len(old.has) < 2:
                assert await old.beat() == 200
                await asyncio.sleep(0.01)  # polling interval, not synchronisation
            await new.join(master)

            async def taken_over() -> None:
                while len(new.has) < 2:
                    assert await new.beat() == 200
                    for broker in old.has.values():
                        await broker.pull("g", "orders", "old")  # which renews its lease; it says nothing to the master
                    await asyncio.sleep(0.02)  # polling interval, not synchronisation

            await asyncio.wait_for(taken_over(), 30)
            for broker in old.has.values():
                assert (await broker.pull("g", "orders", "old")).code == 412

    asyncio.run(run())


def test_only_a_master_ends_leases() -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            broker = await cluster.client(cluster.servers[0].node.ports[1])
            assert (await broker.register("g", "orders", "one")).code == 200
            made_up: Fields = {1: OTHERS_END, 2: text("two"), 3: text("g"), 4: text("orders"), 5: 0, 6: 0}
            for shown in ({}, {9: text("0" * 64)}):
                refused = await broker.ask(15, {**made_up, **shown})
                assert (refused.code, "opType is 31" in refused.why) == (400, True)
            assert (await broker.pull("g", "orders", "one")).code == 404

    asyncio.run(run())


def test_t47_all_ports_speak_tls_and_the_master_reaches_its_slots(tmp_path: Path) -> None:
    own = made(tmp_path)

    async def run() -> None:
        async with topic_cluster(1, tls_certificate=own.path, tls_key=own.key) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            server, trust = cluster.servers[0], client_context(own.path)
            assert server.endpoint is not None
            master = await cluster.client(server.endpoint.port, ssl=trust)
            brokers = brokers_in((await master.ask(1, PRODUCER)).texts(5))
            broker = await cluster.client(brokers[1], ssl=trust)
            assert (await broker.produce("orders", b"x")).code == 200
            assert (await broker.register("g", "orders", "one")).code == 200
            granted = TopicPartition("orders", 1)
            await server._tell_slot("g", granted, "two", SlotPlace("127.0.0.1", brokers[1]))
            assert (await broker.pull("g", "orders", "one")).code == 411, "it was told"
            assert (await broker.register("g", "orders", "two")).code == 200
            nobody = others_end(server.access.now.secrets, "g", "orders", 1, "")
            assert await tell_slot(Endpoint("127.0.0.1", brokers[1]), nobody, 5.0) == ""
            assert (await broker.pull("g", "orders", "two")).code == 411, "as an operator that sets a group elsewhere"

    asyncio.run(run())


def test_all_ports_show_the_certificate_that_is_in_their_files_now(tmp_path: Path) -> None:
    before, after = made(tmp_path / "before"), made(tmp_path / "after")
    files = tmp_path / "certificate.pem", tmp_path / "key.pem"

    async def run() -> None:
        shutil.copy(before.path, files[0])
        shutil.copy(before.key, files[1])
        async with topic_cluster(1, tls_certificate=str(files[0]), tls_key=str(files[1])) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            server = cluster.servers[0]
            assert server.endpoint is not None
            ports = server.endpoint.port, server.node.ports[1]
            shutil.copy(after.path, files[0])
            shutil.copy(after.key, files[1])
            for port in ports:
                await cluster.client(port, ssl=client_context(after.path))

    asyncio.run(run())
