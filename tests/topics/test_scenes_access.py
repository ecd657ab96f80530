"""Rights and limits that change while clients produce and consume: nothing is lost, nothing slips through."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from tests.topics.client.world import FAST, MemoryPlace
from tests.topics.foreign_client import ForeignClient, ForeignReply, message, payloads_of, text
from tests.topics.members import brokers_in
from tests.topics.servers import CLUSTER, TopicCluster, topic_cluster
from tests.topics.test_access import RULES, producer, rules, sends, signed
from waltz_ray.coordination.topic_store import TopicStore
from waltz_ray.topics.client.aio import AsyncTopicClient
from waltz_ray.topics.flow_rules import MIB

DOCUMENT: dict[str, Any] = {
    "groups": {
        "slow": [
            {"type": 0, "rule": [{"start": "00:00", "end": "23:59", "dltInM": 21, "limitInM": 2, "freqInMs": 1000}]}
        ]
    }
}


def test_t45_the_measured_rate_is_that_of_the_rule_and_another_group_is_not_affected() -> None:
    """By a clock that is set: ten minutes."""

    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            server = cluster.servers[0]
            broker = await cluster.client(server.node.ports[1])
            deliveries = server.node.duties.deliveries
            begun_ms = now_ms = deliveries.now_ms()
            deliveries.now_ms = lambda: now_ms
            size = MIB // 4
            for _ in range(22):
                assert {
                    r.code for r in await asyncio.gather(*(broker.produce("orders", bytes(size)) for _ in range(8)))
                } == {200}
            await rules(cluster, DOCUMENT, "flow")
            await cluster.until(lambda: bool(server.access.flow.groups))
            for group in ("slow", "fast"):
                assert (await broker.register(group, "orders")).code == 200
            got, waits, fast = 0, 0, 0
            while now_ms < begun_ms + 600_000:
                reply = await broker.pull("slow", "orders")
                if reply.code == 452:
                    waits += 1
                    assert 0 < reply.number(6) <= 1000, "minLimitTime"
                    now_ms += reply.number(6)
                else:
                    got += sum(map(len, payloads_of(reply)))
                    now_ms += 50
                if fast < 43 * MIB:
                    other = await broker.pull("fast", "orders")
                    assert other.code == 200
                    fast += sum(map(len, payloads_of(other)))
            rate = got / 10
            assert 0.9 * 2 * MIB <= rate <= 1.1 * 2 * MIB, rate
            assert waits > 100
            assert fast >= 43 * MIB

    asyncio.run(run())


async def secrets_rotated(cluster: TopicCluster, fresh: str) -> None:
    """As an operator does it: the current secret becomes the previous one."""
    store = TopicStore(cluster._manager, CLUSTER)
    data, version = store.document("secrets")
    document = {"current": fresh, "previous": json.loads(data)["current"]}
    assert store.set_document("secrets", json.dumps(document).encode(), version)
    wanted = bytes.fromhex(fresh)
    await cluster.until(lambda: all(each.access.now.secrets.current == wanted for each in cluster.servers.values()))


async def token_for(master: ForeignClient, shown: bytes) -> bytes:
    reply = await master.ask(1, producer(shown))
    assert reply.code == 200, reply.fields
    return reply.parts(6)[0].data(2)


def test_t41_t42_tokens_change_in_the_middle_of_sends_and_nothing_is_refused() -> None:
    async def run() -> None:
        async with topic_cluster(2) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            await cluster.until(lambda: all(each.access.now.visit.current for each in cluster.servers.values()))
            await rules(cluster, {**RULES, "guarded": ["orders"]})
            master, leader = await cluster.master(), cluster.leader()
            assert leader is not None
            registered = await master.ask(1, producer(signed("alice", "s3cret")))
            broker = await cluster.client(brokers_in(registered.texts(5))[1])
            shown: list[ForeignReply] = [registered.parts(6)[0]]
            codes: list[int] = []
            stopping = asyncio.Event()

            async def sending() -> None:
                while not stopping.is_set():
                    visit, token = shown[-1].number(1), shown[-1].data(2)
                    codes.append((await sends(broker, message({1: visit, 2: token}))).code)

            task = asyncio.ensure_future(sending())

            async def more() -> None:
                before = len(codes)
                await cluster.until(lambda: len(codes) > before + 20)

            for number in range(1, 4):
                await more()
                cluster.servers[leader].access.rotate(int(time.time() * 1000) + number * 3_700_000)
                await more()
                await secrets_rotated(cluster, f"{number:02x}" * 32)
                await more()
                beat = {1: text("p"), 2: registered.number(4), 3: text("h"), 4: text("orders")}
                answer = await master.ask(2, {**beat, 5: signed("alice", "s3cret")})
                assert answer.code == 200
                shown.append(answer.parts(8)[0])
                await more()
            stopping.set()
            await task
            assert len({each.number(1) for each in shown}) == 4, "each time another visit token"
            assert set(codes) == {200}
            old = message({1: shown[-1].number(1), 2: shown[0].data(2)})
            assert (await sends(broker, old)).code == 415, "under a secret of three times ago"

    asyncio.run(run())


def test_t20_a_topic_is_guarded_and_is_not_any_more_while_producers_send() -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            access = cluster.servers[0].access
            await cluster.until(lambda: bool(access.now.visit.current))
            broker = await cluster.client(cluster.servers[0].node.ports[1])
            for guarded, code in (([], 200), (["orders"], 401), ([], 200), (["*"], 401), (["bills"], 200)):
                await rules(cluster, {"guarded": guarded})
                await cluster.until(lambda wanted=frozenset(guarded): access.now.rules.guarded == wanted)  # type: ignore[misc]
                assert (await sends(broker, message({1: 0}))).code == code
                assert (await sends(broker, message({1: access.now.visit.current}))).code == 200

    asyncio.run(run())


def test_t43_a_group_is_blacklisted_while_it_consumes_and_confirms_what_it_has() -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            broker = await cluster.client(cluster.servers[0].node.ports[1])
            for data in (b"a", b"b"):
                assert (await broker.produce("orders", data)).code == 200
            for group in ("banned", "free"):
                assert (await broker.register(group, "orders")).code == 200
                assert payloads_of(await broker.pull(group, "orders")) == [b"a", b"b"]
            await rules(cluster, {"blacklist": {"banned": ["orders"]}})
            assert (await broker.produce("orders", b"c")).code == 200
            refused = await broker.pull("banned", "orders")
            assert (refused.code, "is on the blacklist" in refused.why) == (450, True)
            confirmed = await broker.confirm("banned", "orders")
            assert (confirmed.code, confirmed.number(4)) == (200, 3)
            assert (await broker.register("banned", "orders")).code == 450
            assert payloads_of(await broker.pull("free", "orders")) == [b"c"]
            await rules(cluster, {})
            assert payloads_of(await broker.pull("banned", "orders")) == [b"c"], "what came meanwhile is not lost"

    asyncio.run(run())


def test_t43_a_right_that_is_taken_away_ends_what_rests_on_it() -> None:
    """Of foreign members with the next pull, of native ones with the next report; what was consumed is confirmed."""

    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            broker = await cluster.client(cluster.servers[0].node.ports[1])
            for data in (b"a", b"b"):
                assert (await broker.produce("orders", data)).code == 200
            for group in ("some", "free"):
                assert (await broker.register(group, "orders", filters=["aaa"] if group == "free" else [])).code == 200
            assert payloads_of(await broker.pull("some", "orders")) == [b"a", b"b"]
            async with AsyncTopicClient(MemoryPlace(cluster), FAST) as client:
                native = client.consumer("native", "orders")
                await native.start()
                batch = await native.pull()
                assert batch is not None
                filters = [
                    {"group": each, "topic": "orders", "choose_from": ["aaa"]} for each in ("some", "free", "native")
                ]
                await rules(cluster, {"filters": filters})
                await cluster.until(lambda: bool(cluster.servers[0].access.now.rules.filters))
                assert (await broker.pull("some", "orders")).code == 455
                confirmed = await broker.confirm("some", "orders")
                assert (confirmed.code, confirmed.number(4)) == (200, 3)
                assert (await broker.register("some", "orders")).code == 455
                assert (await broker.pull("free", "orders")).code == 404, "it wants no more than it may have"
                native.consumed(batch)
                await cluster.until(lambda: native.partitions == [])
                assert cluster.offsets.items["native", "orders", 0].offset == batch.end
                await native.close()

    asyncio.run(run())
