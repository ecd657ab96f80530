"""What a native client may: users, tokens, rights that are taken away, TLS, rules of flow, bad input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.net.test_tls import made
from tests.topics.client.pulling import LIMIT_S, pulled, run
from tests.topics.client.world import topic_world
from waltz_ray import compat
from waltz_ray.errors import InvalidInput, PartitionNotReady, TopicRefused
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics import TopicClientConfig
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.messages_consumer import ProgressRequestC2B
from waltz_ray.topics.rpc import RpcFault
from waltz_ray.topics.wire import TopicRequest, TopicResponse

T = TypeVar("T")


def test_bad_input_is_refused_before_anything_is_sent() -> None:
    async def scene() -> None:
        async with topic_world(max_message_bytes=1000) as world, world.client() as client:
            producer = client.producer()
            for data, why in ((b"", "without data"), ("text", "bytes, not str"), (bytes(2000), "1000 are the most")):
                with pytest.raises(InvalidInput, match=why):
                    await producer.send("orders", data)  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match="partitions 0 to 1, not 2"):
                await producer.send("orders", b"x", partition=2)
            with pytest.raises(InvalidInput, match="a list of texts, not str"):
                client.consumer("g", {"orders": "new"})
            with pytest.raises(InvalidInput, match="earliest"):
                client.consumer("g", "orders", start="somewhere")  # type: ignore[arg-type]
            async with client.consumer("g", "orders") as consumer:
                await producer.send("orders", b"there is something to take")
                for most in (0, -1, 1.5, True):
                    with pytest.raises(InvalidInput, match="at least 1"):
                        await consumer.pull(most)  # type: ignore[arg-type]
                with pytest.raises(TopicRefused, match="filter"):
                    await client.consumer("g", {"orders": ["new"]}).start()

    run(scene())


def test_t48_t45_rules_of_flow_hold_for_who_reads_the_log() -> None:
    """400 ms after each batch; another group is not slowed down."""

    async def scene() -> None:
        flow = '{"default": [], "groups": {"slow": [{"type": 3, "rule": [{"normFreqInMs": 400, "filterFreqInMs": 400, '
        flow += '"minDataFilterFreqInMs": 400}]}]}}'
        async with topic_world(partitions=1) as world, world.client() as client:
            await world.set_document("flow", flow)
            producer = client.producer()
            await producer.send_many("orders", [b"%d" % n for n in range(100)])
            loop = asyncio.get_running_loop()
            took: dict[str, tuple[float, float]] = {}
            for group in ("slow", "fast"):
                async with client.consumer(group, "orders") as consumer:
                    asked_s = loop.time()
                    first = await consumer.pull(10)
                    assert first is not None
                    begin_s = loop.time()
                    for _ in range(3):
                        batch = await consumer.pull(10)
                        assert batch is not None
                    took[group] = loop.time() - asked_s, loop.time() - begin_s
            assert took["slow"][0] >= 3 * 0.4 > took["fast"][1], took

    run(scene())


def test_t48_t45_who_has_to_wait_for_longer_than_a_lease_keeps_the_partition_and_confirms_meanwhile() -> None:
    """Or what he has comes again and again, and never anything else."""

    async def scene() -> None:
        async with topic_world(partitions=1, client_ms=1000) as world, world.client() as client:
            await world.set_document("flow", '{"groups": {"slow": [{"type": 3, "rule": [{"normFreqInMs": 2000}]}]}}')
            producer = client.producer()
            await producer.send("orders", b"a")
            async with client.consumer("slow", "orders") as consumer:
                loop = asyncio.get_running_loop()
                (batch,) = await pulled(consumer, 1)
                begin_s = loop.time()
                await producer.send("orders", b"b")
                (held,) = consumer._held.values()
                await world.until(lambda: not held._free.is_set())
                await consumer.confirm(batch)
                assert world.offset("slow", 0) == batch.end
                assert loop.time() - begin_s < 1.9, "it does not wait for that"
                (batch,) = await pulled(consumer, 1)
                assert loop.time() - begin_s > 1.9
                assert [message.data for message in batch] == [b"b"]
                assert consumer._held[held.subscription] is held, "it was not lost"

    run(scene())


def test_t48_authorization_by_signature_and_tokens() -> None:
    async def scene() -> None:
        rules = '{"authenticate": true, "users": {"ann": "secret"}, "rights": [{"user": "ann", "topic": "orders", '
        rules += '"may": ["produce", "consume"]}]}'
        async with topic_world() as world:
            await world.cluster.create("bills", 1)
            await world.cluster.until(world.cluster.settled)
            await world.set_document("access", rules)
            config = TopicClientConfig(user="ann", password="secret", heartbeat_s=0.05)
            async with world.client(config) as client:
                producer = client.producer()
                await producer.send("orders", b"x")
                async with client.consumer("g", "orders") as consumer:
                    (batch,) = await pulled(consumer, 1)
                    await consumer.confirm(batch)
                with pytest.raises(TopicRefused, match="403"):
                    await producer.send("bills", b"x")
                with pytest.raises(TopicRefused, match="403"):
                    await client.consumer("g", "bills").start()
            async with world.client(TopicClientConfig(user="ann", password="wrong")) as client:
                with pytest.raises(TopicRefused, match="415"):
                    await client.producer().send("orders", b"x")
            async with world.client() as client:
                with pytest.raises(TopicRefused, match="401"):
                    await client.producer().send("orders", b"x")

    run(scene())


async def once_allowed(work: Callable[[], Awaitable[T]]) -> T:
    async with compat.timeout(LIMIT_S):
        while True:
            try:
                return await work()
            except TopicRefused:
                await asyncio.sleep(0.02)  # polling interval, not synchronisation


@pytest.mark.parametrize(("taken", "code"), [("right", "403"), ("user", "415"), ("group", "450")])
def test_t43_t48_a_right_that_is_taken_away_ends_what_rests_on_it(taken: str, code: str) -> None:
    """The user's, the user, and by the blacklist: with the next report. What was consumed before is confirmed."""
    may = {"user": "ann", "topic": "orders", "may": ["produce", "consume"]}
    document: dict[str, object] = {"authenticate": True, "users": {"ann": "secret"}, "rights": [may]}
    without = {
        "right": {**document, "rights": [{**may, "may": ["produce"]}]},
        "user": {"authenticate": True, "users": {"bob": "other"}},
        "group": {**document, "blacklist": {"g": ["orders"]}},
    }

    async def scene() -> None:
        async with topic_world(partitions=1) as world:
            await world.set_document("access", json.dumps(document))
            config = TopicClientConfig(user="ann", password="secret", heartbeat_s=0.05)
            async with world.client(config) as client:
                producer, consumer = client.producer(), client.consumer("g", "orders")
                await producer.send("orders", b"x")
                await consumer.start()
                (batch,) = await pulled(consumer, 1)
                await world.set_document("access", json.dumps(without[taken]))
                consumer.consumed(batch)
                with pytest.raises(TopicRefused, match=code):
                    await consumer.pull(timeout=LIMIT_S)
                await world.until(lambda: consumer.partitions == [])
                await world.confirmed("g", 0, batch.end)
                await world.set_document("access", json.dumps(document))
                await once_allowed(lambda: producer.send("orders", b"y"))
                found = await once_allowed(lambda: consumer.pull(timeout=LIMIT_S))
                assert [message.data for message in found or ()] == [b"y"], "it goes on when it may again"
                await consumer.close()

    run(scene())


def test_what_is_confirmed_while_the_right_is_taken_away_is_told_to_be_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It never came again, and who confirmed was told that it would: so he undid what he had done with it."""
    may = {"user": "ann", "topic": "orders", "may": ["produce", "consume"]}
    document: dict[str, object] = {"authenticate": True, "users": {"ann": "secret"}, "rights": [may]}
    without = {**document, "rights": [{**may, "may": ["produce"]}]}

    async def scene() -> None:
        async with topic_world(partitions=1) as world:
            await world.set_document("access", json.dumps(document))
            config = TopicClientConfig(user="ann", password="secret", heartbeat_s=0.05)
            async with world.client(config) as client, client.consumer("g", "orders") as consumer:
                await client.producer().send("orders", b"x")
                (batch,) = await pulled(consumer, 1)
                (held,) = consumer._held.values()
                ask = held._ask

                async def late(endpoint: Endpoint, request: TopicRequest) -> TopicResponse | RpcFault:
                    if isinstance(request, ProgressRequestC2B) and request.offset >= 0:
                        await world.set_document("access", json.dumps(without))
                    return await ask(endpoint, request)

                monkeypatch.setattr(held, "_ask", late)
                await consumer.confirm(batch)
                assert world.offset("g", 0) == batch.end
                await world.until(lambda: consumer.partitions == [])
                await consumer.confirm(batch)

    run(scene())


def test_a_refusal_that_is_told_again_and_again_does_not_grow() -> None:
    """Each telling added to the traceback of the one before, which has the locals of all."""

    async def length(call: Callable[[], Awaitable[object]]) -> int:
        with pytest.raises(TopicRefused) as told:
            await call()
        return len(told.traceback)

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer, refusal = client.producer(), TopicRefused(TopicCode.UNAUTHORIZED, "not any more")
            await producer.send("orders", b"x")
            async with client.consumer("g", "orders") as consumer:
                producer._registration.refusals = {"orders": refusal}
                consumer._failure = refusal
                for call in (
                    lambda: producer.send("orders", b"x"),
                    lambda: producer.begin("orders", b"x"),
                    consumer.pull,
                ):
                    assert [await length(call) for _ in range(10)][1:] == 9 * [await length(call)]

    run(scene())


def test_t43_a_right_that_is_taken_away_is_that_of_one_topic() -> None:
    """What the same producer sends to others is taken on; and a topic that comes later is asked for by itself."""
    rights = [{"user": "ann", "topic": topic, "may": ["produce"]} for topic in ("orders", "bills", "notes")]
    document: dict[str, object] = {"authenticate": True, "users": {"ann": "secret"}, "rights": rights}

    async def scene() -> None:
        async with topic_world(partitions=1) as world:
            for topic in ("bills", "notes"):
                await world.cluster.create(topic, 1)
            await world.cluster.until(world.cluster.settled)
            await world.set_document("access", json.dumps(document))
            config = TopicClientConfig(user="ann", password="secret", heartbeat_s=0.05)
            async with world.client(config) as client:
                producer = client.producer()
                await producer.send("orders", b"1")
                await producer.send("bills", b"1")
                await world.set_document("access", json.dumps({**document, "rights": rights[1:]}))
                await world.until(lambda: producer._registration.refusals != {})
                with pytest.raises(TopicRefused, match="may not produce to topic 'orders'"):
                    await producer.send("orders", b"2")
                assert (await producer.send("bills", b"2")).topic == "bills"
                assert (await producer.send("notes", b"1")).topic == "notes"
                await world.set_document("access", json.dumps(document))
                await once_allowed(lambda: producer.send("orders", b"3"))

    run(scene())


def test_t48_tls(tmp_path: Path) -> None:
    async def scene() -> None:
        own = made(tmp_path)
        async with topic_world(partitions=1, tls_certificate=own.path, tls_key=own.key) as world:
            config = TopicClientConfig(tls=True, tls_authority=own.path, heartbeat_s=0.05)
            async with world.client(config) as client:
                await client.producer().send("orders", b"x")
                async with client.consumer("g", "orders") as consumer:
                    (batch,) = await pulled(consumer, 1)
                    await consumer.confirm(batch)
            async with world.client(TopicClientConfig(timeout_s=0.5)) as client:
                with pytest.raises(PartitionNotReady, match="no master of topics answers"):
                    await client.producer().send("orders", b"x")

    run(scene())
