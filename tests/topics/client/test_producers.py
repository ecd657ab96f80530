"""Producers of the native client: order, room, what is refused, where messages go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import cast

import pytest

from tests.topics.client.pulling import LIMIT_S, run
from tests.topics.client.world import FAST, TopicWorld, topic_world
from waltz_ray import compat
from waltz_ray.errors import InvalidInput, PartitionNotReady
from waltz_ray.topics import AsyncTopicProducer, TopicClient, TopicClientConfig, TopicProducer
from waltz_ray.topics.client.masters import Masters
from waltz_ray.topics.client.outgoing import Spread
from waltz_ray.topics.client.registering import ProducerRegistration
from waltz_ray.topics.messages_producer import (
    CloseRequestP2M,
    HeartRequestP2M,
    HeartResponseM2P,
    RegisterRequestP2M,
    RegisterResponseM2P,
)


def test_t48_asynchronous_production_with_back_pressure() -> None:
    async def scene() -> None:
        config = TopicClientConfig(heartbeat_s=0.05, outstanding_bytes=1000)
        async with topic_world() as world, world.client(config) as client:
            producer = client.producer()
            tasks = [await producer.begin("orders", b"%0100d" % n, partition=0) for n in range(200)]
            await producer.flush()
            offsets = [task.result().offset for task in tasks]
            assert offsets == sorted(offsets), "in the order of the calls"
            with pytest.raises(InvalidInput, match="more than outstanding_bytes"):
                await producer.begin("orders", bytes(2000))

    run(scene())


def test_t48_who_waits_for_room_first_has_it_first() -> None:
    """Whoever went on beginning kept what there was, and others waited for ever, the longer message first of all."""

    async def scene() -> None:
        config = replace(FAST, outstanding_bytes=1 << 20)
        async with topic_world(partitions=1) as world, world.client(config) as client:
            producer = client.producer()
            for _ in range(3):
                await producer.begin("orders", b"x" * 300_000)
            order: list[int] = []

            async def begun(size: int) -> None:
                await producer.begin("orders", b"y" * size)
                order.append(size)

            waiting = [asyncio.create_task(begun(size)) for size in (1_000_000, 200_000, 100_000)]
            async with compat.timeout(LIMIT_S):
                await asyncio.sleep(0)
                with pytest.raises(InvalidInput, match="more than outstanding_bytes"):
                    await producer.begin("orders", b"z" * 2_000_000)
                await begun(50_000)
                await asyncio.gather(*waiting)
            assert order == [1_000_000, 200_000, 100_000, 50_000]

    run(scene())


def test_t48_what_was_begun_is_before_what_is_sent_after_it() -> None:
    """What is begun is sent by a task, which has not run yet when ``begin`` returns."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            tasks = [await producer.begin("orders", b"0"), await producer.begin("orders", b"1")]
            two = await producer.send("orders", b"2")
            tasks.append(await producer.begin("orders", b"3"))
            many = await producer.send_many("orders", [b"4", b"5"])
            cancelled = await producer.begin("orders", b"never")
            cancelled.cancel()
            six = await producer.send("orders", b"6")
            first, second, fourth = [(await task).offset for task in tasks]
            offsets = [first, second, two.offset, fourth, *many.offsets.tolist(), six.offset]
            assert offsets == [*range(first, first + 7)]
            assert not producer._ahead

    run(scene())


def test_t48_a_message_is_as_long_as_its_topic_allows_attributes_and_all() -> None:
    """So it is for slots: a longer one may not fit into what a foreign consumer takes, and it would get no further."""

    def in_a_thread(world: TopicWorld) -> None:
        with TopicClient(world.place, FAST) as client, client.producer() as producer:
            producer.send("orders", bytes(990), attributes="abcdef")
            with pytest.raises(InvalidInput, match="a message of 1001 bytes: 1000 are the most"):
                producer.send("orders", bytes(990), attributes="abcdefg")

    async def scene() -> None:
        async with topic_world(max_message_bytes=1000) as world, world.client() as client:
            producer = client.producer()
            await producer.send("orders", bytes(990), attributes="abcdef")
            with pytest.raises(InvalidInput, match="a message of 1001 bytes: 1000 are the most"):
                await producer.send("orders", bytes(990), attributes="abcdefg")
            with pytest.raises(InvalidInput, match="a message of 1001 bytes: 1000 are the most"):
                await (await producer.begin("orders", bytes(990), attributes="abcdefg"))
            await asyncio.to_thread(in_a_thread, world)

    run(scene())


def test_t48_messages_go_to_partitions_that_take_them() -> None:
    spread = Spread("orders", 4)
    assert [spread.choose(None, None) for _ in range(5)] == [0, 1, 2, 3, 0]
    spread.hindered = {1, 2}
    assert [spread.choose(None, None) for _ in range(3)] == [3, 0, 3]
    assert spread.choose(None, 1) == 1, "who asks for it gets it"
    assert spread.choose(b"k", None) == spread.choose(b"k", None)
    spread.hindered = range(4)
    assert [spread.choose(None, None) for _ in range(4)] == [0, 1, 2, 3], "nobody is better"


def test_producers_that_are_made_at_one_time_are_closed_with_their_client() -> None:
    both = threading.Barrier(2)

    def met(producer: TopicProducer) -> bool:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # of a right client only one is here at a time
        return False

    def thread(world: TopicWorld) -> None:
        client = TopicClient(world.place, FAST)
        made = [client.producer()]
        with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(2) as pool:
            patched.setattr(TopicProducer, "closed", property(met))
            made += [each.result() for each in [pool.submit(client.producer) for _ in range(2)]]
        client.close()
        assert [each.closed for each in made] == [True] * 3

    async def scene() -> None:
        async with topic_world() as world:
            await asyncio.to_thread(thread, world)

    run(scene())


def test_a_producer_whose_end_is_cancelled_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for what it had begun, and stayed with its master until its client was closed."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            flushing = asyncio.Event()

            async def never() -> None:
                flushing.set()
                await asyncio.Event().wait()

            async def produce() -> None:
                async with client.producer() as producer:
                    producers.append(producer)
                    await producer.send("orders", b"x")
                    monkeypatch.setattr(producer, "flush", never)

            producers: list[AsyncTopicProducer] = []
            producing = asyncio.create_task(produce())
            await flushing.wait()
            producing.cancel()
            await asyncio.wait([producing])
            assert producing.cancelled()
            assert [each.closed for each in producers] == [True]

    run(scene())


class Leaving:
    """``Masters`` that do not answer the second heartbeat; who is cancelled meanwhile is told that its time is over, as
    ``compat.timeout`` may with Python 3.10. Those that follow are answered."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.waits = asyncio.Event()

    async def ask(self, make: Callable[[], object], within_s: float) -> object:
        request = make()
        self.asked.append(request)
        if isinstance(request, RegisterRequestP2M):
            return RegisterResponseM2P(True, 200, "", 0)
        if isinstance(request, HeartRequestP2M) and len(self.asked) == 3:
            self.waits.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise PartitionNotReady("no master of topics answers") from None
        return HeartResponseM2P(True, 200, "", 0)


def test_a_producer_is_closed_in_the_turn_in_which_a_time_is_over() -> None:
    """It went on to say that it is there, and whoever closed it waited for ever."""

    async def scene() -> None:
        masters = Leaving()
        registration = ProducerRegistration(cast(Masters, masters), TopicClientConfig(heartbeat_s=0.001))
        await registration.know("orders")
        await masters.waits.wait()
        await registration.close()
        assert isinstance(masters.asked[-1], CloseRequestP2M)

    asyncio.run(asyncio.wait_for(scene(), 5))
