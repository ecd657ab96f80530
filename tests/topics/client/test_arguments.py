"""What an application gives that cannot be: refused before anything is sent or asked, in a short line."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from tests.topics.client.world import FAST, TopicWorld, topic_world
from waltz_ray.errors import ClientClosed, ConfigError, InvalidInput, SpaceNotFound
from waltz_ray.topics import BoundGroup, TopicClient, TopicClientConfig
from waltz_ray.topics.client.aio import subscription_of
from waltz_ray.topics.client.arguments import checked_topics
from waltz_ray.topics.client.outgoing import Spread, record_of, records_of
from waltz_ray.topics.wire import TopicRequest, TopicResponse

LONG = "x" * 100_000
NO_TEXTS: list[Any] = [None, True, 1, 1.5, b"x", [], {}, object(), [LONG]]


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput) as caught:
        call()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("wrong", NO_TEXTS, ids=lambda wrong: type(wrong).__name__)
def test_what_is_no_text(wrong: Any) -> None:
    refused(lambda: record_of(b"x", wrong, None, "", 0, 0))
    refused(lambda: record_of(b"x", "", None, wrong, 0, 0))
    refused(lambda: records_of([b"x"], wrong, 0, 0))
    if wrong is not None:
        refused(lambda: record_of(b"x", "", wrong, "", 0, 0))
    refused(lambda: subscription_of(wrong, "orders", "earliest", None))
    refused(lambda: checked_topics([wrong]))
    refused(lambda: checked_topics({"orders": [wrong]}))
    refused(lambda: BoundGroup(wrong, 1))


@pytest.mark.parametrize("name", ["timeout_s", "heartbeat_s", "idle_s"])
def test_what_is_no_time_of_a_client(name: str) -> None:
    for wrong in (float("inf"), float("nan"), 0, -1.0, 86_401, True, "10", None):
        with pytest.raises(ConfigError, match=f"TopicClientConfig.{name} must be a number of seconds"):
            TopicClientConfig(**{name: wrong})  # type: ignore[arg-type]
    assert TopicClientConfig(**{name: 86_400}) != TopicClientConfig()  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, 1, 1.5, b"x", "x", LONG, object(), {1}, [None], [b""], [b"x", "y"]], ids=repr)
def test_what_are_no_messages(wrong: Any) -> None:
    refused(lambda: records_of(wrong, "", 0, 0))


@pytest.mark.parametrize("wrong", [True, -1, 2, 1.5, float("nan"), "0", b"", [], 1 << 200, LONG], ids=repr)
def test_what_is_no_partition(wrong: Any) -> None:
    refused(lambda: Spread("orders", 2).choose(None, wrong))


def test_what_a_group_cannot_be_about() -> None:
    for topics in (None, 1, 1.5, object(), [], {}, {"orders": "new"}, {"orders": 1}):
        refused(lambda topics=topics: subscription_of("g", topics, "earliest", None))  # type: ignore[misc]
    refused(lambda: subscription_of("", "orders", "earliest", None))
    refused(lambda: subscription_of("g", "orders", LONG, None))  # type: ignore[arg-type]
    refused(lambda: subscription_of("g", "orders", "earliest", LONG))  # type: ignore[arg-type]
    for members, offsets in ((0, {}), (1.5, {}), (1, {("orders", 0): -1}), (1, {("orders", 0): "x"}), (1, {(1, 0): 1})):
        refused(lambda members=members, offsets=offsets: BoundGroup("k", members, offsets))  # type: ignore[misc]
    assert checked_topics("a") == checked_topics(["a"]) == checked_topics({"a": ()}) == {"a": frozenset()}


def test_a_consumer_is_asked_for_what_it_cannot_do() -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            await producer.send("orders", b"x")
            async with client.consumer("g", "orders") as consumer:
                wrong: list[Callable[[], Awaitable[object]]] = [
                    lambda: producer.send(b"orders", b"x"),  # type: ignore[arg-type]
                    lambda: producer.send(["orders"], b"x"),  # type: ignore[arg-type]
                    lambda: producer.begin("orders", None),  # type: ignore[arg-type]
                    lambda: producer.send_many("orders", b"xyz"),  # type: ignore[arg-type]
                    lambda: consumer.pull(timeout="1"),  # type: ignore[arg-type]
                    lambda: consumer.pull(timeout=float("nan")),
                    lambda: consumer.confirm(None),  # type: ignore[arg-type]
                    lambda: consumer.run(lambda batch: asyncio.sleep(0), workers=0),
                    lambda: consumer.seek(LONG, 0, 0),
                    lambda: consumer.seek("orders", LONG, 0),  # type: ignore[arg-type]
                ]
                for call in wrong:
                    with pytest.raises(InvalidInput) as caught:
                        await call()
                    assert len(str(caught.value)) < 300
                refused(lambda: consumer.pause("orders", "0"))  # type: ignore[arg-type]
                refused(lambda: consumer.resume(["orders"], 0))  # type: ignore[arg-type]
                batch = await consumer.pull(timeout=float("inf"))
                assert batch is not None
                assert [m.data for m in batch] == [b"x"]

    asyncio.run(scene())


def test_who_is_no_member_waits_for_nothing() -> None:
    """Nothing would ever come; and who was closed does not join, or the group would wait for what it has."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            consumer = client.consumer("g", "orders")
            for _ in range(2):
                with pytest.raises(InvalidInput, match="no member of its group"):
                    await consumer.pull()
            with pytest.raises(InvalidInput, match="no member of its group"):
                await anext(aiter(consumer))
            async with consumer:
                with pytest.raises(InvalidInput, match="joined its group already"):
                    await consumer.start()
            with pytest.raises(ClientClosed):
                await consumer.start()
            (server,) = world.cluster.servers.values()
            assert server.groups() == []
            missing = client.consumer("g", "missing")
            with pytest.raises(SpaceNotFound):
                await missing.start()
            with pytest.raises(InvalidInput, match="no member of its group"):
                await missing.pull()
            await asyncio.to_thread(no_member_in_a_thread, world)

    asyncio.run(scene())


def no_member_in_a_thread(world: TopicWorld) -> None:
    with TopicClient(world.place, FAST) as client:
        consumer = client.consumer("g", "orders")
        with pytest.raises(InvalidInput, match="no member of its group"):
            consumer.pull()


def test_what_was_closed_is_forgotten_and_sends_nothing() -> None:
    """A client that makes a producer or a consumer for each of its calls does not grow."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world:
            async with world.client() as client:
                for _ in range(3):
                    async with client.producer() as producer, client.consumer("g", "orders"):
                        await producer.send("orders", b"x")
                    with pytest.raises(ClientClosed):
                        await producer.send("orders", b"y")
                running = client._started()
                assert len(running._producers) + len(running._consumers) <= 2
                for _ in range(10):
                    with pytest.raises(SpaceNotFound):
                        async with client.consumer("g", "oders"):
                            pytest.fail("there is no such topic")
                gc.collect()
                assert len(running._consumers) <= 2, "who could not join is dropped"
            await asyncio.to_thread(in_a_thread, world)

    asyncio.run(scene())


@pytest.mark.parametrize("what", ["log", "connection"])
def test_a_message_on_its_way_when_the_client_closes_is_told_so(what: str) -> None:
    """What it waits for was being opened: it was told CancelledError, as if somebody had cancelled it."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer, opening = client.producer(), asyncio.Event()

            async def never(wanted: object) -> Any:
                opening.set()
                await asyncio.Event().wait()

            running = client._started()
            openers: dict[str, Any] = {"log": running.logs, "connection": running.links[0]}
            openers[what]._opened = never
            sending, given_up = (asyncio.ensure_future(producer.send("orders", b"x")) for _ in range(2))
            await opening.wait()
            given_up.cancel()
            await client.close()
            with pytest.raises(ClientClosed, match="the client of topics is closed"):
                await sending
            with pytest.raises(asyncio.CancelledError):
                await given_up

    asyncio.run(scene())


@pytest.mark.parametrize("how", ["closed", "cancelled"])
def test_a_consumer_that_is_given_up_while_it_joins_is_no_member_of_its_group(how: str) -> None:
    """The master has registered it already: until it was missed nobody would be given what is its share."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            master = world.cluster.servers[0].master.machine
            consumer = client.consumer("g", "orders")
            membership = consumer._membership
            ask, asked, goes_on = membership._masters.ask, asyncio.Event(), asyncio.Event()

            async def slow(make: Callable[[], TopicRequest], within_s: float) -> TopicResponse:
                answer = await ask(make, within_s)
                if not asked.is_set():
                    asked.set()
                    await goes_on.wait()
                return answer

            membership._masters.ask = slow  # type: ignore[method-assign]
            starting = asyncio.ensure_future(consumer.start())
            await asked.wait()
            assert master.group_names() == ["g"]
            if how == "closed":
                await consumer.close()
                goes_on.set()
                with pytest.raises(ClientClosed, match="the consumer is closed"):
                    await starting
            else:
                starting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await starting
            assert master.group_names() == []

    asyncio.run(scene())


def test_a_producer_that_is_closed_while_the_master_hears_of_it_sends_nothing() -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            beat, asked = producer._registration._beat, asyncio.Event()

            async def slow(topics: Sequence[str]) -> None:
                asked.set()
                await asyncio.sleep(0)
                await beat(topics)

            producer._registration._beat = slow  # type: ignore[method-assign]
            sending = asyncio.ensure_future(producer.send("orders", b"x"))
            await asked.wait()
            await producer.close()
            with pytest.raises(ClientClosed, match="the producer is closed"):
                await sending
            assert producer._registration._beating is None

    asyncio.run(scene())


def in_a_callback(client: TopicClient) -> None:
    """What waits there would hold up all clients of the process, for ever."""
    producer = client.producer()
    told: Future[list[str]] = Future()

    def callback(future: Future[int]) -> None:
        found: list[str] = []
        calls: list[Callable[[], object]] = [
            client.close,
            producer.close,
            producer.flush,
            client.producer,
            lambda: client.consumer("g", "orders"),
            lambda: producer.send("orders", b"y"),
        ]
        for call in calls:
            try:
                call()
            except InvalidInput as error:
                found.append(str(error))
        told.set_result(found)

    producer.send_nowait("orders", b"x").add_done_callback(callback)
    assert len(told.result(20)) == 6
    producer.send("orders", b"z")
    producer.close()


def in_a_thread(world: TopicWorld) -> None:
    with TopicClient(world.place, FAST) as client:
        for _ in range(3):
            with client.producer() as producer:
                producer.send("orders", b"x")
                refused(lambda producer=producer: producer.send("orders", b"x", partition="0"))  # type: ignore[misc]
                refused(lambda producer=producer: producer.send_many("orders", 5))  # type: ignore[misc]
                refused(lambda producer=producer: producer.flush("5"))  # type: ignore[misc]
            with pytest.raises(ClientClosed):
                producer.send("orders", b"y")
        assert len(client._producers) == 1
        in_a_callback(client)
        with client.consumer("h", "orders") as consumer:
            refused(lambda: consumer.pull(timeout="1"))  # type: ignore[arg-type]
            batch = consumer.pull()
            assert batch is not None
            consumer.confirm(batch)
