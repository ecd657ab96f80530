"""Consumers of the native client: what comes again, to whom, and what is confirmed of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from tests.topics.client.pulling import LIMIT_S, pulled, run
from tests.topics.client.world import topic_world
from waltz_ray.errors import TopicRefused
from waltz_ray.topics import AsyncTopicConsumer, MessageBatch
from waltz_ray.topics.client import consumer as consumer_module


def test_t26_what_was_not_confirmed_comes_again() -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            await producer.send_many("orders", [b"a", b"b"])
            async with client.consumer("g", "orders") as consumer:
                await pulled(consumer, 2)
            async with client.consumer("g", "orders") as consumer:
                (batch,) = await pulled(consumer, 2)
                assert [message.data for message in batch] == [b"a", b"b"]

    run(scene())


def test_t48_a_push_consumer_confirms_what_was_handled_and_no_more() -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            sent = await producer.send_many("orders", [b"%d" % n for n in range(20)])
            seen: list[bytes] = []

            async def handle(batch: MessageBatch) -> None:
                seen.extend(message.data for message in batch)
                if b"bad" in seen:
                    raise ValueError("cannot be handled")

            async with client.consumer("g", "orders") as consumer:
                running = asyncio.create_task(consumer.run(handle, workers=3))
                await world.until(lambda: len(seen) == 20)
                await world.confirmed("g", 0, int(sent.offsets[-1]) + 1)
                await producer.send("orders", b"bad")
                with pytest.raises(ValueError, match="cannot be handled"):
                    await running
            async with client.consumer("g", "orders") as consumer:
                (batch,) = await pulled(consumer, 1)
                assert [message.data for message in batch] == [b"bad"], "of the failed one, and of no other"

    run(scene())


def test_what_another_worker_took_behind_a_failed_batch_is_neither_handled_nor_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            await producer.send("orders", b"bad")
            handled: list[list[bytes]] = []
            async with client.consumer("g", "orders") as consumer:
                next_batch, taken, both = consumer._next, list[MessageBatch](), asyncio.Event()

                async def counted(most: int) -> MessageBatch:
                    taken.append(await next_batch(most))
                    if len(taken) == 2:
                        both.set()
                    return taken[-1]

                async def handle(batch: MessageBatch) -> None:
                    handled.append([message.data for message in batch])
                    if handled[-1] == [b"bad"]:
                        await producer.send("orders", b"behind it")
                        await both.wait()
                        raise ValueError("cannot be handled")

                monkeypatch.setattr(consumer, "_next", counted)
                with pytest.raises(ValueError, match="cannot be handled"):
                    await asyncio.wait_for(consumer.run(handle, workers=2), LIMIT_S)
                assert handled == [[b"bad"]]
                again = await pulled(consumer, 2)
                assert [message.data for batch in again for message in batch] == [b"bad", b"behind it"], "given up"
            async with client.consumer("g", "orders") as consumer:
                again = await pulled(consumer, 2)
                assert [message.data for batch in again for message in batch] == [b"bad", b"behind it"]

    run(scene())


async def two_of_them(consumer: AsyncTopicConsumer) -> None:
    async for message in consumer:
        if message.data == b"2":
            break


async def an_error_in_a_loop(consumer: AsyncTopicConsumer) -> None:
    async def take() -> None:
        async for message in consumer:
            if message.data == b"2":
                raise ValueError("cannot be handled")

    with pytest.raises(ValueError, match="cannot be handled"):
        await take()


async def a_cancelled_loop(consumer: AsyncTopicConsumer) -> None:
    begun = asyncio.Event()

    async def take() -> None:
        async for _ in consumer:
            begun.set()
            await asyncio.sleep(3600)

    taking = asyncio.create_task(take())
    await begun.wait()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking


async def a_closed_iteration(consumer: AsyncTopicConsumer) -> None:
    async with aclosing(aiter(consumer)) as iteration:
        assert (await anext(iteration)).data == b"1"
    with pytest.raises(StopAsyncIteration):
        await anext(iteration)


async def a_handler_that_raises(consumer: AsyncTopicConsumer) -> None:
    async def handle(batch: MessageBatch) -> None:
        raise ValueError("cannot be handled")

    with pytest.raises(ValueError, match="cannot be handled"):
        await consumer.run(handle)


async def a_cancelled_run(consumer: AsyncTopicConsumer) -> None:
    begun = asyncio.Event()

    async def handle(batch: MessageBatch) -> None:
        begun.set()
        await asyncio.sleep(3600)

    running = asyncio.create_task(consumer.run(handle, workers=2))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize(
    "given_up",
    [
        two_of_them,
        an_error_in_a_loop,
        a_cancelled_loop,
        a_closed_iteration,
        a_handler_that_raises,
        a_cancelled_run,
    ],
)
def test_what_was_given_up_comes_again_to_the_same_consumer_before_what_is_behind_it(
    given_up: Callable[[AsyncTopicConsumer], Awaitable[None]],
) -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            await producer.send_many("orders", [b"1", b"2", b"3"])
            async with client.consumer("g", "orders") as consumer:
                await world.until(lambda: len(consumer.partitions) == 1)
                (held,) = consumer._held.values()
                await asyncio.wait_for(given_up(consumer), LIMIT_S)
                last = (await producer.send("orders", b"4")).offset
                await world.until(lambda: held._seen == last + 1)
                found: list[bytes] = []

                async def take() -> None:
                    async for message in consumer:
                        found.append(message.data)

                taking = asyncio.create_task(take())
                await world.confirmed("g", 0, last + 1)
                assert found == [b"1", b"2", b"3", b"4"]
                assert consumer.skipped() == 0
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)

    run(scene())


def test_what_was_given_up_is_given_to_who_waits_for_something() -> None:
    """From another thread, as when an iteration is collected as garbage there."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            await producer.send_many("orders", [b"1", b"2"])
            async with client.consumer("g", "orders") as consumer:
                (batch,) = await pulled(consumer, 2)
                waiting = asyncio.create_task(pulled(consumer, 2))
                await asyncio.sleep(0)  # it waits now
                await asyncio.to_thread(consumer.give_up, batch)
                (again,) = await waiting
                assert list(again) == list(batch)

    run(scene())


def test_what_was_given_up_and_confirmed_with_what_is_behind_it_does_not_come_again() -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            async with client.consumer("g", "orders") as consumer:
                batches = []
                for data in (b"1", b"2", b"3"):
                    await producer.send("orders", data)
                    batches += await pulled(consumer, 1)
                consumer.give_up(batches[1])
                consumer.give_up(batches[0])
                consumer.give_up(batches[2])
                (first,) = await pulled(consumer, 1)
                await consumer.confirm(batches[1])
                assert [m.data for each in (first, *await pulled(consumer, 1)) for m in each] == [b"1", b"3"]
                assert world.offset("g", 0) == batches[1].end

    run(scene())


def test_who_has_given_something_up_is_not_waited_for_when_the_partition_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody will confirm it before another member gets it."""
    monkeypatch.setattr(consumer_module, "_LEAVE_S", 3600.0)

    async def scene() -> None:
        async with topic_world(partitions=2) as world, world.client() as client:
            producer = client.producer()
            async with client.consumer("g", "orders") as one:
                await world.until(lambda: len(one.partitions) == 2)
                for partition in (0, 1):
                    await producer.send("orders", b"%d" % partition, partition=partition)
                for batch in await pulled(one, 2):
                    one.give_up(batch)
                async with client.consumer("g", "orders") as two:
                    assert len(await pulled(two, 1)) == len(await pulled(one, 1)) == 1

    run(scene())


def test_nothing_is_given_out_of_a_partition_that_is_about_to_go() -> None:
    """Whatever is said of pauses while the application deals with what it has: the next member is given the rest."""

    async def scene() -> None:
        async with (
            topic_world(partitions=1) as world,
            world.client() as client,
            client.consumer("g", "orders") as consumer,
        ):
            producer = client.producer()
            await producer.send("orders", b"a")
            (batch,) = await pulled(consumer, 1)
            (held,) = consumer._held.values()
            leaving = asyncio.create_task(consumer._give_back(held.subscription, finish=True))
            await producer.send("orders", b"b")
            await world.until(lambda: bool(held._reads))
            consumer.pause("orders", 0)
            consumer.resume("orders", 0)
            assert consumer._take(1000) is None
            consumer.consumed(batch)
            await leaving
            assert world.offset("g", 0) == batch.end

    run(scene())


def test_who_consumes_is_told_when_the_partition_is_anothers() -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            await client.producer().send("orders", b"x")
            async with client.consumer("g", "orders") as consumer:
                (batch,) = await pulled(consumer, 1)
                world.take_away("g", 0)
                with pytest.raises(TopicRefused):
                    await consumer.confirm(batch)
                assert (world.offset("g", 0) or 0) <= next(iter(batch)).offset, "unmoved"
                again = await pulled(consumer, 1)
                assert [m.data for m in again[0]] == [b"x"], "it is given the partition once more"

    run(scene())


def test_t26_a_batch_of_an_older_lease_is_not_confirmed() -> None:
    """The group was set elsewhere meanwhile: what is to come again would be passed over."""

    async def scene() -> None:
        async with topic_world() as world, world.client() as client:
            producer = client.producer()
            for number in range(4):
                await producer.send("orders", b"%d" % number, partition=0)
            async with client.consumer("g", "orders") as consumer:
                (first,) = await pulled(consumer, 4)
                await consumer.confirm(first)
                await producer.send("orders", b"4", partition=0)
                (late,) = await pulled(consumer, 1)
                assert await world.cluster.offsets.put("g", "orders", 0, 0) == ""
                with pytest.raises(TopicRefused):
                    await consumer.confirm(late)
                again = await pulled(consumer, 5)
                assert [message.data for batch in again for message in batch] == [b"0", b"1", b"2", b"3", b"4"]
                consumer.consumed(late)
                with pytest.raises(TopicRefused, match="set elsewhere"):
                    await consumer.confirm(late)
                assert world.offset("g", 0) == 0
                await consumer.confirm(again[-1])

    run(scene())
