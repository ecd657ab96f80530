"""What cannot be, over the real ports: each is answered with a code and a sentence, and nothing is half done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

import pytest

from tests.topics.foreign_client import Fields, ForeignClient, ForeignFault, ForeignReply, message, text
from tests.topics.servers import CLUSTER, TopicCluster, topic_cluster
from tests.topics.test_access import RULES, producer, rules, sends
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.topics.tokens import issue_auth_token

LONG = "x" * 1025


def consumer(
    group: str = "g",
    topics: tuple[str, ...] = ("orders",),
    name: str = "one",
    conditions: str = "",
    session: tuple[str, int, bool] | None = None,
) -> Fields:
    """m4. ``session``: key, how many, selectBig."""
    fields: dict[int, object] = {1: text(name), 2: text(group), 3: b"h", 4: [text(each) for each in topics]}
    if conditions:
        fields[6] = text(conditions)
    if session is not None:
        key, count, big = session
        fields |= {7: 1, 8: 1, 9: text(key), 10: count, 13: int(big)}
    return fields


async def refused(asking: Awaitable[ForeignReply], code: int, *words: str) -> None:
    reply = await asking
    assert (reply.code, reply.number(1)) == (code, 0), reply.fields
    for word in words:
        assert word in reply.why, reply.why
    assert len(reply.why) < 600


async def a_slot(cluster: TopicCluster, slot: int = 1) -> ForeignClient:
    ports = {number: port for server in cluster.servers.values() for number, port in server.node.ports.items()}
    return await cluster.client(ports[slot])


def everything(cluster: TopicCluster) -> tuple[object, ...]:
    """What there is of messages, offsets, groups, and who consumes."""
    with cluster.log.connect(space="orders") as client:
        messages = [each.data for each in client.feed(0)]
    servers = cluster.servers.values()
    groups = [server.master.machine.group_names() for server in servers]
    return messages, dict(cluster.offsets.items), groups, [server.node.duties.deliveries.status() for server in servers]


def test_what_there_is_not_is_refused_and_leaves_nothing() -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 2)
            await cluster.create("small", 1)
            await cluster.until(cluster.settled)
            master, one, two = await cluster.master(), await a_slot(cluster), await a_slot(cluster, 2)
            before = await asyncio.to_thread(everything, cluster)
            await refused(one.produce("nothing", b"x"), 403, "no topic nothing is served here", "waltz space list")
            await refused(two.produce("small", b"x"), 403, "topic small has 1 partitions", "slot 2")
            await refused(one.produce("orders", b"x", partition=3), 400, "no partition 3")
            await refused(one.register("g", "nothing"), 403, "no topic nothing is served here")
            await refused(one.register("g", "orders", read=7), 400, "readStatus is 0, 1 or 2, not 7")
            await refused(one.register("g", "orders", LONG), 400)
            await refused(one.register(LONG, "orders"), 400)
            await refused(one.register("g", "orders", "a b"), 400)
            await refused(one.register(" g", "orders"), 400, "without # : , @ = or blanks")
            await refused(master.ask(4, consumer(" g")), 400, "without # : , @ = or blanks")
            await refused(one.register("g", "orders", filters=list(map(str, range(501)))), 400, "501 filters")
            await refused(one.register("g", "orders", out=True), 411, "does not have the partition")
            await refused(one.pull("nobody", "orders"), 411, "nobody of group nobody has the partition: register first")
            await refused(one.confirm("nobody", "orders"), 411, "register first")
            await refused(one.beat("g", ["no place"]), 400)
            strange = {1: 33, 2: text("one"), 3: text("g"), 4: text("orders"), 5: 0, 6: 0}
            await refused(one.ask(15, strange), 400, "opType is 31 (register) or 32 (log out), not 33")
            await refused(master.ask(5, {1: text("one"), 2: text("g"), 4: 0}), 411)
            await refused(master.ask(2, {1: text("p"), 2: 1, 3: b"h", 4: b"orders"}), 411)
            for wrong in (consumer(name=LONG), consumer(name="a b"), consumer(LONG), consumer(topics=())):
                await refused(master.ask(4, wrong), 400)
            many = tuple(str(number) for number in range(257))
            await refused(master.ask(4, consumer(topics=many)), 400, "257 topics: there may be 256")
            await refused(master.ask(4, consumer(conditions="bills#a")), 400, "a filter for topic bills")
            for asked in (master, one):
                with pytest.raises(ForeignFault, match="there is no method 20 "):
                    await asked.ask(20, b"")
                with pytest.raises(ForeignFault, match="UnknownProtocol"):
                    await asked.ask(4 if asked is master else 17, b"\xff")
            assert await asyncio.to_thread(everything, cluster) == before

    asyncio.run(run())


def test_t31_who_does_not_agree_with_a_group_is_told_in_what() -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 1)
            await cluster.create("bills", 1)
            await cluster.until(cluster.settled)
            master = await cluster.master()
            for first in (
                consumer("plain"),
                consumer("typed", conditions="orders#a,b"),
                consumer("bound", session=("k", 2, True)),
            ):
                assert (await master.ask(4, first)).code == 200
            for second, named in (
                (consumer("plain", ("orders", "bills"), "two"), "only this consumer has bills"),
                (consumer("plain", name="two", conditions="orders#a"), "other filters of topic orders"),
                (consumer("plain", name="two", session=("k", 2, True)), "is not bound, and this consumer is"),
                (
                    consumer("typed", name="two", conditions="orders#a,c"),
                    "only the group has b, only this",
                ),
                (consumer("bound", name="two"), "is bound, and this consumer is not"),
                (
                    consumer("bound", name="two", session=("other", 2, True)),
                    "session key k, and this consumer other",
                ),
                (consumer("bound", name="two", session=("k", 3, True)), "has source count 2, and this consumer 3"),
                (consumer("bound", name="two", session=("k", 2, False)), "has selectBig True, and this consumer False"),
            ):
                await refused(master.ask(4, second), 400, named, "subscribe as the group does")
            machine = cluster.servers[0].master.machine
            found = [machine.group_status(name) for name in machine.group_names()]
            assert [[each.client_id for each in group.members] for group in found if group] == [["one"]] * 3

    asyncio.run(run())


def test_t15_t19_a_topic_has_a_limit_of_its_own_that_is_told_and_kept() -> None:
    async def run() -> None:
        async with topic_cluster(1, max_message_bytes=1000) as cluster:
            await cluster.create("orders", 1)
            await cluster.create("bills", 1)
            await cluster.until(cluster.settled)
            master, broker = await cluster.master(), await a_slot(cluster)
            spaces = ClusterStore(cluster._manager, CLUSTER).spaces
            head: Fields = {1: text("p"), 2: -1, 3: text("h"), 4: [b"orders", b"bills"]}
            assert (await master.ask(1, {1: text("p"), 2: [b"orders", b"bills"], 3: -1, 4: text("h")})).code == 200

            async def told() -> list[str]:
                return [each.rpartition("#")[2] for each in (await master.ask(2, head)).texts(5)]

            duties = cluster.servers[0].node.duties
            assert await told() == ["1000", "1000"]
            for setting, most in ((10, 10), (5000, 1000), (None, 1000), (700, 700)):
                spaces.set("orders", {"max_message_bytes": setting})
                expected = {} if setting is None else {"orders": most}
                await cluster.until(lambda wanted=expected: duties.topic_bytes == wanted)  # type: ignore[misc]
                assert await told() == ["1000", str(most)]
                assert (await broker.produce("orders", bytes(most))).code == 200
                await refused(broker.produce("orders", bytes(most + 1)), 400, f"{most} are the most")
                assert (await broker.produce("bills", bytes(1000))).code == 200

    asyncio.run(run())


def test_t42_a_token_that_is_over_is_refused_and_says_so() -> None:
    async def run() -> None:
        async with topic_cluster(1) as cluster:
            await cluster.create("orders", 1)
            await cluster.until(cluster.settled)
            await rules(cluster, RULES)
            master, broker = await cluster.master(), await a_slot(cluster)
            secrets = cluster.servers[0].access.now.secrets
            now = time.time_ns() // 1_000_000
            before = await asyncio.to_thread(everything, cluster)
            for age_ms, code in ((3_700_000, 415), (60_000, 200)):
                token = issue_auth_token(secrets, "alice", "s3cret", now - age_ms).encode()
                assert (await master.ask(1, producer(message({2: token})))).code == code
                sent = await sends(broker, message({1: 0, 2: token}))
                assert sent.code == code
                if code == 415:
                    assert "over" in sent.why or "expired" in sent.why
                    assert await asyncio.to_thread(everything, cluster) == before

    asyncio.run(run())
