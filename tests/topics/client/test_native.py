"""The native client: producers and members of groups, on topic actors in memory."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FuturesTimeout  # in Python 3.10 it is not the builtin one
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from tests.net.cutting_proxy import CuttingProxy
from tests.net.test_tls import made
from tests.topics.client.world import FAST, MemoryPlace, TopicWorld, topic_world
from tests.topics.scenes import Crowd
from waltz_ray import compat
from waltz_ray.client.aio import engine_of
from waltz_ray.client.io_thread import IoThread, in_io_thread
from waltz_ray.errors import (
    AccessRefused,
    ClientClosed,
    InvalidInput,
    PartitionNotReady,
    SpaceGone,
    SpaceNotFound,
    TopicRefused,
    TopicUnknownFate,
    WireError,
    ZooKeeperUnreachable,
)
from waltz_ray.net.backoff import Backoff
from waltz_ray.net.connector import connect
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.topics import (
    AsyncTopicClient,
    AsyncTopicConsumer,
    BoundGroup,
    MessageBatch,
    TopicClient,
    TopicClientConfig,
    TopicConsumer,
    TopicProducer,
)
from waltz_ray.topics.client import consumer as consumer_module
from waltz_ray.topics.client import held_partition as held_partition_module
from waltz_ray.topics.client import links as links_module
from waltz_ray.topics.client.arguments import SeekTo
from waltz_ray.topics.client.held_partition import HeldPartition
from waltz_ray.topics.client.links import TopicLink, TopicLinks
from waltz_ray.topics.client.masters import Masters
from waltz_ray.topics.client.outgoing import Spread
from waltz_ray.topics.codes import BrokerOperation, RpcMethod, TopicCode
from waltz_ray.topics.framing import TopicFrame, TopicFramer, encode_frame
from waltz_ray.topics.groups.events import SteppedDown, TookOver
from waltz_ray.topics.messages_consumer import (
    CloseRequestC2M,
    CloseResponseM2C,
    ProgressRequestC2B,
    RegisterRequestC2B,
)
from waltz_ray.topics.messages_producer import CloseResponseM2P
from waltz_ray.topics.rpc import FaultName, RpcAnswer, RpcFault, encode_reply
from waltz_ray.topics.wire import TopicRequest, TopicResponse, encode_response

LIMIT_S = 20

T = TypeVar("T")


async def pulled(consumer: AsyncTopicConsumer, count: int) -> list[MessageBatch]:
    """Batches with so many messages; nothing is confirmed."""
    found: list[MessageBatch] = []
    async with compat.timeout(LIMIT_S):
        while sum(len(list(batch)) for batch in found) < count:
            batch = await consumer.pull()
            assert batch is not None
            found.append(batch)
    return found


def run(work: object) -> None:
    asyncio.run(work)  # type: ignore[arg-type]


def test_t48_what_is_produced_is_consumed_in_its_order_and_confirmed() -> None:
    """Synchronous production and pull."""

    async def scene() -> None:
        async with topic_world() as world, world.client() as client:
            producer = client.producer()
            sent = [await producer.send("orders", b"%d" % n, type="new", key=b"k") for n in range(10)]
            assert len({each.partition for each in sent}) == 1
            assert [each.offset for each in sent] == sorted({each.offset for each in sent})
            async with client.consumer("g", "orders") as consumer:
                (batch,) = await pulled(consumer, 10)
                assert [message.data for message in batch] == [b"%d" % n for n in range(10)]
                first = next(iter(batch))
                assert (first.topic, first.type, first.offset) == ("orders", "new", sent[0].offset)
                await consumer.confirm(batch)
            async with client.consumer("g", "orders") as consumer:
                await producer.send("orders", b"last", key=b"k")
                (batch,) = await pulled(consumer, 1)
                assert [message.data for message in batch] == [b"last"], "the others were confirmed"

    run(scene())


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


def test_t48_a_group_with_several_topics_and_members() -> None:
    async def scene() -> None:
        async with topic_world(partitions=4) as world, world.client() as client:
            await world.cluster.create("bills", 3)
            await world.cluster.until(world.cluster.settled)
            producer = client.producer()
            one, two = (client.consumer("g", ["orders", "bills"]) for _ in range(2))
            async with one, two:
                await world.until(lambda: len(one.partitions) + len(two.partitions) == 7)
                await world.until(lambda: {len(one.partitions), len(two.partitions)} == {3, 4})
                assert not set(one.partitions) & set(two.partitions)
                for n in range(70):
                    await producer.send(("orders", "bills")[n % 2], b"%d" % n)
                found = Counter[bytes]()

                async def take(consumer: AsyncTopicConsumer) -> None:
                    async for message in consumer:
                        found[message.data] += 1

                tasks = [asyncio.create_task(take(each)) for each in (one, two)]
                await world.until(lambda: len(found) == 70)
                assert set(found.values()) == {1}
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    run(scene())


@pytest.mark.parametrize("who", ["consumer", "client"])
def test_who_is_cancelled_while_a_consumer_is_closed_leaves_no_lease_behind(who: str) -> None:
    """It would be renewed for as long as the process lives, and nobody else of the group get the partition."""

    async def scene() -> None:
        async with topic_world(client_ms=3_600_000) as world, world.client() as client, world.client() as another:
            consumer = client.consumer("g", "orders")
            await consumer.start()
            await world.until(lambda: len(consumer.partitions) == 2)
            what: AsyncTopicConsumer | AsyncTopicClient = consumer if who == "consumer" else client
            closing = asyncio.create_task(what.close())
            await asyncio.sleep(0)  # it has begun
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            async with another.consumer("g", "orders") as other:
                await world.until(lambda: len(other.partitions) == 2)
            await what.close()
            assert consumer._held == {}

    run(scene())


def test_t48_t32_native_and_foreign_members_share_a_group() -> None:
    """Each message is confirmed by one of them; who goes hands on to the other, in both directions."""

    async def scene() -> None:
        async with topic_world(partitions=4) as world, world.client() as client:
            producer, crowd = client.producer(), Crowd(world.cluster)
            told: list[bytes] = []

            async def handled(batch: MessageBatch) -> None:
                told.extend(message.data for message in batch)

            async def sent(turn: int) -> None:
                for partition in range(4):
                    await producer.send_many("orders", [b"%d/%d" % (turn, n) for n in range(10)], partition=partition)

            async def until(what: Callable[[], bool]) -> None:
                async with compat.timeout(LIMIT_S):
                    while not what():
                        await crowd.beat()
                        for member in crowd.members.values():
                            await member.consume()
                        await asyncio.sleep(0.01)  # polling interval, not synchronisation

            def confirmed(turn: int) -> Counter[bytes]:
                everybody = [*told, *(each for member in crowd.members.values() for each in member.got)]
                return Counter(each for each in everybody if each.startswith(b"%d/" % turn))

            def whole_of(turn: int) -> Counter[bytes]:
                return Counter({b"%d/%d" % (turn, n): 4 for n in range(10)})

            crowd.add("foreign")
            await until(lambda: crowd.counts() == [4])
            native = client.consumer("g", "orders")
            async with native:
                running = asyncio.ensure_future(native.run(handled))
                await until(lambda: len(native.partitions) == 2 == crowd.counts()[0])
                await sent(1)
                await until(lambda: confirmed(1) == whole_of(1))
                assert len(told) == 20, "of half the partitions"
                await crowd.remove("foreign")
                await until(lambda: len(native.partitions) == 4)
                await sent(2)
                await until(lambda: confirmed(2) == whole_of(2))
                crowd.add("again")
                await until(lambda: len(native.partitions) == 2 == crowd.counts()[0])
                running.cancel()
                await asyncio.wait([running])
            await until(lambda: crowd.counts() == [4])
            await sent(3)
            await until(lambda: Counter(crowd.members["again"].got) == whole_of(3))

    run(scene())


def test_t48_t44_filters_read_of_the_data_little_but_what_is_wanted() -> None:
    """ "Aa" has the hash of "BB", and is not given to who wants that."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            for n in range(1000):
                await producer.send_many("orders", [bytes(1000)] * 99, type="other")
                await producer.send("orders", b"x%d" % n + bytes(1000), type="BB")
            await producer.send("orders", bytes(1000), type="Aa")
            async with client.consumer("g", {"orders": ["BB"]}) as consumer:
                batches = await pulled(consumer, 1000)
                assert [m.data[:4].rstrip(b"\0") for batch in batches for m in batch] == [
                    b"x%d" % n for n in range(1000)
                ]
                assert sum(batch.size_bytes for batch in batches) < 0.05 * 100_000 * 1000

    run(scene())


def test_no_more_is_pulled_than_was_asked_for_also_of_some_types() -> None:
    """Of a frame of headers what is wanted is read in pieces."""

    async def scene() -> None:
        async with (
            topic_world(partitions=1) as world,
            world.client() as client,
            client.consumer("g", {"orders": ["new"]}) as consumer,
        ):
            await world.until(lambda: len(consumer.partitions) == 1)
            producer = client.producer()
            kinds = ("new", "new", "new", *["other"] * 8) * 4
            sent = [await producer.begin("orders", b"%d" % n, type=kind) for n, kind in enumerate(kinds)]
            offsets = [(await each).offset for each in sent]
            (held,) = consumer._held.values()
            await world.until(lambda: bool(held._reads) and held._reads[-1].end > offsets[-1])
            assert any(len(read.records) > 1 for read in held._reads), "or there is nothing to be cut"
            found: list[bytes] = []
            while len(found) < 12:
                batch = await consumer.pull(2)
                assert batch is not None
                assert 1 <= len(list(batch)) <= 2
                found += [message.data for message in batch]
                await consumer.confirm(batch)
                following = [n for n, kind in enumerate(kinds) if kind == "new" and offsets[n] >= batch.end]
                assert len(found) + len(following) == 12, "nothing is passed over"
            assert found == [b"%d" % n for n, kind in enumerate(kinds) if kind == "new"]
            await world.confirmed("g", 0, offsets[-1] + 1)

    run(scene())


def test_what_nobody_wants_is_passed_over_also_when_it_comes_before_a_confirm() -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            async with client.consumer("g", {"orders": ["new"]}) as consumer:
                await producer.send("orders", b"x", type="new")
                (batch,) = await pulled(consumer, 1)
                (held,) = consumer._held.values()
                waiting = asyncio.create_task(pulled(consumer, 1))  # takes what is not wanted, and goes on waiting
                last = (await producer.send_many("orders", [b"y"] * 50, type="other")).offsets[-1]
                await world.until(lambda: held._given == last + 1)
                consumer.consumed(batch)
                await world.confirmed("g", 0, int(last) + 1)
                last = (await producer.send_many("orders", [b"y"] * 50, type="other")).offsets[-1]
                await world.confirmed("g", 0, int(last) + 1)
                await producer.send("orders", b"z", type="new")
                assert [m.data for each in await waiting for m in each] == [b"z"]
                await world.until(lambda: held.end > last + 1)
                assert world.offset("g", 0) == last + 1, "which is not confirmed"

    run(scene())


def refused_read() -> RecordBatch:
    raise AccessRefused("the server says: the client has not the right to read")


def failed_read() -> RecordBatch:
    raise RuntimeError("a bug")


@pytest.mark.parametrize("failing", [refused_read, failed_read])
def test_a_partition_of_which_a_read_has_failed_is_lost_and_taken_anew(
    failing: Callable[[], RecordBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with (
            topic_world(partitions=1) as world,
            world.client() as client,
            client.consumer("g", {"orders": ["new"]}) as consumer,
        ):
            await world.until(lambda: len(consumer.partitions) == 1)
            (held,) = consumer._held.values()
            rpc = engine_of(held._source).rpc
            read = rpc.read

            async def fails_once(partition: int, first: int, end: int, most_bytes: int) -> RecordBatch:
                monkeypatch.setattr(rpc, "read", read)
                return failing()

            monkeypatch.setattr(rpc, "read", fails_once)
            await client.producer().send("orders", b"x", type="new")
            assert [m.data for batch in await pulled(consumer, 1) for m in batch] == [b"x"]
            assert held.lost is not None
            assert held.lost.code == TopicCode.INTERNAL_ERROR

    run(scene())


class CountedPauses(Backoff):
    """Which are none."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        super().__init__(first_s, longest_s)
        self.count = 0

    def next_s(self) -> float:
        self.count += 1
        return 0.0


def test_a_server_that_is_behind_is_asked_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[CountedPauses] = []

    def pauses(first_s: float, longest_s: float) -> CountedPauses:
        made.append(CountedPauses(first_s, longest_s))
        return made[-1]

    async def scene() -> None:
        async with (
            topic_world(partitions=1) as world,
            world.client() as client,
            client.consumer("g", {"orders": ["new"]}) as consumer,
        ):
            await world.until(lambda: len(consumer.partitions) == 1)
            (held,) = consumer._held.values()
            rpc = engine_of(held._source).rpc
            read, reads = rpc.read, list[int]()

            async def behind(partition: int, first: int, end: int, most_bytes: int) -> RecordBatch:
                reads.append(first)
                found = await read(partition, first, end, most_bytes)
                return found if len(reads) > 5 else found.slice(0, 0)

            monkeypatch.setattr(rpc, "read", behind)
            monkeypatch.setattr(held_partition_module, "Backoff", pauses)
            await client.producer().send("orders", b"x", type="new")
            (batch,) = await pulled(consumer, 1)
            assert [message.data for message in batch] == [b"x"]
            assert (len(reads), len(batch.records), [each.count for each in made]) == (6, 1, [5])

    run(scene())


def test_t48_bound_consume_begins_at_given_offsets() -> None:
    async def scene() -> None:
        async with topic_world(partitions=2) as world, world.client() as client:
            producer = client.producer()
            sent = [
                (await producer.send_many("orders", [b"%d" % n for n in range(10)], partition=p)).offsets
                for p in (0, 1)
            ]
            bound = BoundGroup("once", 2, {("orders", p): int(sent[p][7]) for p in (0, 1)})
            one, two = (client.consumer("b", "orders", bound=bound) for _ in range(2))
            async with one:
                assert await one.pull(timeout=0.2) is None, "not before both are there"
                async with two:
                    batches = await pulled(one, 3) + await pulled(two, 3)
                    assert [m.data for b in batches for m in b] == [b"7", b"8", b"9"] * 2

    run(scene())


def test_t30_a_bound_group_goes_on_where_it_is_under_a_master_that_knows_nothing_of_it() -> None:
    """Also if none of its members has a partition just then, as when all actors were started anew."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            offsets = [(await producer.send("orders", b"%d" % n)).offset for n in range(4)]
            bound = BoundGroup("key", 1, {("orders", 0): offsets[1]})
            async with client.consumer("g", "orders", bound=bound) as consumer:
                (batch,) = await pulled(consumer, 3)
                await consumer.confirm(batch)
                (held,) = consumer._held.values()
                (server,) = world.cluster.servers.values()
                held._lose(TopicCode.HB_NO_NODE, "its slot was started anew")
                server.master.step(SteppedDown())
                server.master.step(TookOver(99, 0))
                await producer.send("orders", b"new")
                (batch,) = await pulled(consumer, 1)
                assert [message.data for message in batch] == [b"new"]

    run(scene())


def test_t48_partition_offsets_pause_resume_and_seek() -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            sent = (await producer.send_many("orders", [b"%d" % n for n in range(10)])).offsets
            async with client.consumer("g", "orders") as consumer:
                (batch,) = await pulled(consumer, 10)
                await consumer.confirm(batch)
                assert await consumer.seek("orders", 0, int(sent[8])) == sent[8]
                (batch,) = await pulled(consumer, 2)
                assert [m.data for m in batch] == [b"8", b"9"]
                await consumer.seek("orders", 0, "earliest")
                assert len(list((await pulled(consumer, 10))[0])) == 10
                await consumer.seek("orders", 0, "latest")
                consumer.pause("orders", 0)
                await producer.send("orders", b"new")
                assert await consumer.pull(timeout=0.2) is None
                consumer.resume("orders", 0)
                (batch,) = await pulled(consumer, 1)
                assert [m.data for m in batch] == [b"new"]
                await consumer.confirm(batch)
                await world.until(lambda: consumer.lag() == {("orders", 0): 0})
                with pytest.raises(InvalidInput, match="not this consumer's"):
                    await consumer.seek("orders", 5, 0)

    run(scene())


def test_t48_where_nobody_can_go_is_refused_and_it_goes_on_where_the_group_is() -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            await producer.send_many("orders", [b"%d" % n for n in range(4)])
            async with client.consumer("g", "orders") as consumer:
                (batch,) = await pulled(consumer, 4)
                await consumer.confirm(batch)
                wrong: list[Any] = ["x", "", -1, True, 1.5, 1 << 63, None, datetime(2026, 1, 1)]
                for to in wrong:
                    with pytest.raises(InvalidInput):
                        await consumer.seek("orders", 0, to)
                with pytest.raises(TopicRefused, match="offset 1000 is not in the log"):
                    await consumer.seek("orders", 0, 1000)
                await producer.send("orders", b"new")
                (batch,) = await pulled(consumer, 1)
                assert [m.data for m in batch] == [b"new"]

    run(scene())


def test_t48_who_seeks_where_no_slot_answers_is_told_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topic actor has just gone."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            await client.producer().send("orders", b"x")
            async with client.consumer("g", "orders") as consumer:
                await pulled(consumer, 1)

                async def gone(endpoint: Endpoint, request: TopicRequest) -> TopicResponse | RpcFault:
                    raise ConnectionRefusedError(111, "no connection")

                with monkeypatch.context() as patch:
                    patch.setattr(consumer, "_ask_slot", gone)
                    with pytest.raises(PartitionNotReady, match="partition 0 of topic orders does not answer"):
                        await consumer.seek("orders", 0, 0)
                assert [m.data for batch in await pulled(consumer, 1) for m in batch] == [b"x"]

    run(scene())


@contextmanager
def nothing_is_logged() -> Iterator[None]:
    """By asyncio, of errors that nobody has looked at, on the loop that runs now."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    yield
    gc.collect()
    assert told == []


def test_t48_a_consumer_that_is_closed_while_it_gives_a_partition_back_leaves_nothing_to_be_logged() -> None:
    async def scene() -> None:
        with nothing_is_logged():
            async with topic_world(partitions=1) as world, world.client() as client:
                await client.producer().send("orders", b"x")
                async with client.consumer("g", "orders") as consumer:
                    await pulled(consumer, 1)
                    (held,) = consumer._held.values()
                    giving_back = asyncio.create_task(held.give_back(60.0, finish=True))
                    await asyncio.sleep(0)
                    assert held._waiting
                    giving_back.cancel()
                    await asyncio.wait([giving_back])
            del held, giving_back

    run(scene())


def test_who_gave_up_a_connection_that_then_fails_leaves_nothing_to_be_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        dialled, fails = asyncio.Event(), asyncio.Event()

        async def refused(*_: object) -> TopicLink:
            dialled.set()
            await fails.wait()
            raise ConnectionRefusedError(111, "no connection")

        monkeypatch.setattr(links_module, "connect", refused)
        with nothing_is_logged():
            links = TopicLinks(1.0, 1.0)
            asking = asyncio.create_task(links._link(Endpoint("127.0.0.1", 1)))
            await dialled.wait()
            asking.cancel()
            await asyncio.wait([asking])
            fails.set()
            while len(links):
                await asyncio.sleep(0)
            await links.close()
            del asking

    run(scene())


def test_t48_who_is_cancelled_while_he_seeks_goes_on_where_the_group_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            await client.producer().send("orders", b"x")
            async with client.consumer("g", "orders") as consumer:
                await pulled(consumer, 1)
                asked, ask = asyncio.Event(), consumer._ask_slot

                async def held_up(endpoint: Endpoint, request: TopicRequest) -> TopicResponse | RpcFault:
                    asked.set()
                    await asyncio.sleep(3600)
                    return await ask(endpoint, request)

                with monkeypatch.context() as patch:
                    patch.setattr(consumer, "_ask_slot", held_up)
                    seeking = asyncio.create_task(consumer.seek("orders", 0, 0))
                    await asked.wait()
                    patch.undo()
                    seeking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await seeking
                assert [m.data for batch in await pulled(consumer, 1) for m in batch] == [b"x"]

    run(scene())


def test_who_is_cancelled_while_he_seeks_leaves_no_feed_and_no_lease_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """His client went on being fed what nobody would take, and the slot was not told."""
    stop = HeldPartition.stop

    async def cancelled_in_it(held: HeldPartition) -> None:
        monkeypatch.setattr(HeldPartition, "stop", stop)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await stop(held)

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            await client.producer().send("orders", b"x")
            log = engine_of(await client._started().logs.of("orders"))
            consumer = client.consumer("g", "orders")

            async def seeks() -> None:
                async with consumer:
                    await pulled(consumer, 1)
                    monkeypatch.setattr(HeldPartition, "stop", cancelled_in_it)
                    await consumer.seek("orders", 0, 0)

            asked, ask = list[object](), consumer._ask_slot

            async def noted(endpoint: Endpoint, request: TopicRequest) -> TopicResponse | RpcFault:
                asked.append(request)
                return await ask(endpoint, request)

            monkeypatch.setattr(consumer, "_ask_slot", noted)
            seeking = asyncio.create_task(seeks())
            await asyncio.wait([seeking])
            assert seeking.cancelled()
            assert consumer.closed
            await world.until(lambda: not log._subscriptions)
            assert isinstance(asked[-1], RegisterRequestC2B)
            assert asked[-1].op_type == BrokerOperation.LOGOUT

    run(scene())


def test_a_partition_whose_stop_is_cancelled_is_fed_no_more() -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            log = engine_of(await client._started().logs.of("orders"))
            async with client.consumer("g", "orders") as consumer:
                await world.until(lambda: bool(consumer._held))
                (held,) = consumer._held.values()
                stopping = asyncio.create_task(held.stop())
                await asyncio.sleep(0)
                stopping.cancel()
                await asyncio.wait([stopping])
                assert stopping.cancelled()
                await world.until(lambda: not log._subscriptions)

    run(scene())


def test_a_client_on_another_loop_is_refused_and_goes_on_where_it_is() -> None:
    """It broke: whoever closed it there could not close it where it is, and a seek there ended its consumer."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer, consumer = client.producer(), client.consumer("g", "orders")
            await producer.send("orders", b"x")
            await consumer.start()
            (batch,) = await pulled(consumer, 1)

            async def elsewhere() -> None:
                for call in (
                    client.close,
                    producer.flush,
                    producer.close,
                    consumer.start,
                    consumer.pull,
                    consumer.close,
                    partial(producer.begin, "orders", b"y"),
                    partial(producer.send, "bills", b"y"),
                    partial(consumer.confirm, batch),
                    partial(consumer.seek, "orders", 0, 0),
                ):
                    with pytest.raises(InvalidInput, match="belongs to the loop"):
                        await call()
                with pytest.raises(InvalidInput, match="belongs to the loop"):
                    client.producer()
                with pytest.raises(InvalidInput, match="belongs to the loop"):
                    client.consumer("g", "orders")

            await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
            await consumer.confirm(batch)
            await producer.send("orders", b"z")
            assert [message.data for batch in await pulled(consumer, 1) for message in batch] == [b"z"]

    run(scene())


def test_a_topic_that_is_not_there_is_not_waited_for() -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            with pytest.raises(SpaceNotFound, match="has no space 'oders'"):
                await client.consumer("g", "oders").start()
            with pytest.raises(InvalidInput, match="is of kind log, not topic"):
                await client.consumer("g", ["orders", "log"]).start()

    run(scene())


def test_who_consumes_a_topic_that_is_deleted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also who has none of its partitions. While another one of its topics is there, it goes on."""
    monkeypatch.setattr(consumer_module, "_LOOK_S", 0.05)

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            await world.cluster.create("others", 1)
            async with (
                client.consumer("g", "orders") as one,
                client.consumer("g", "orders") as two,
                client.consumer("h", ["orders", "others"]) as three,
            ):
                await world.until(lambda: len(one.partitions) + len(two.partitions) == 1)
                world.delete("orders")
                for consumer in (one, two):
                    with pytest.raises(SpaceGone, match="space 'orders' of cluster"):
                        await consumer.pull(timeout=20)
                await client.producer().send("others", b"x")
                assert [m.data for batch in await pulled(three, 1) for m in batch] == [b"x"]
                world.delete("others")
                with pytest.raises(SpaceGone):
                    await three.pull(timeout=20)

    run(scene())


def test_what_is_lost_while_it_is_sought_in_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else may have it by then: it is not taken away from him, but given by the master."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            await client.producer().send("orders", b"x")
            async with client.consumer("g", "orders") as consumer:
                await pulled(consumer, 1)
                find, (subscription,) = consumer._offset, consumer._held

                async def lost_meanwhile(topic: str, partition: int, to: SeekTo) -> int:
                    consumer._forget(subscription)
                    return await find(topic, partition, to)

                monkeypatch.setattr(consumer, "_offset", lost_meanwhile)
                with pytest.raises(TopicRefused, match="has been lost since"):
                    await consumer.seek("orders", 0, "earliest")
                assert [m.data for batch in await pulled(consumer, 1) for m in batch] == [b"x"]

    run(scene())


def test_t48_t49_a_master_that_is_none_or_is_not_there_is_passed_over() -> None:
    """Dead addresses before the living one; after some failures they are not even tried (shielded)."""

    async def scene() -> None:
        async with topic_world(actors=2) as world:
            from waltz_ray.protocol.ids import Endpoint

            place = MemoryPlace(world.cluster, [Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)])
            from waltz_ray.topics import AsyncTopicClient

            async with AsyncTopicClient(place, FAST) as client:
                producer = client.producer()
                assert (await producer.send("orders", b"x")).offset >= 0

    run(scene())


def test_t48_t52_connections_are_shared_recycled_and_opened_again() -> None:
    async def scene() -> None:
        config = TopicClientConfig(heartbeat_s=3600, idle_s=0.2)
        async with topic_world() as world, world.client(config) as client:
            first, second = client.producer(), client.producer()
            await first.send("orders", b"x")
            await second.send("orders", b"x")
            assert client.connections == 1
            own = client.producer(shared=False)
            await own.send("orders", b"x")
            assert client.connections == 2
            await world.until(lambda: client.connections == 0)
            await world.cluster.create("bills", 1)
            await world.cluster.until(world.cluster.settled)
            await first.send("bills", b"y")
            assert client.connections == 1

    run(scene())


def test_a_connection_that_was_forgotten_in_between_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a proxy, which goes on to take what it is sent: TCP never says so."""
    between: dict[Endpoint, CuttingProxy] = {}

    async def through(make: Callable[[], TopicLink], host: str, port: int, *limits: Any) -> TopicLink:
        target = Endpoint(host, port)
        if target not in between:
            between[target] = CuttingProxy(target)
        return await connect(make, *between[target].endpoint, *limits)

    monkeypatch.setattr(links_module, "connect", through)

    async def scene() -> None:
        async with topic_world() as world, world.client(replace(FAST, timeout_s=0.5)) as client:
            producer = client.producer()
            async with client.consumer("g", ["orders"]) as consumer:
                await producer.send("orders", b"before", partition=0)
                (batch,) = await pulled(consumer, 1)
                for link in between.values():
                    link.forget()
                async with compat.timeout(LIMIT_S):
                    await consumer.confirm(batch)
                await world.confirmed("g", 0, 2)
                await world.cluster.create("bills", 1)
                await world.cluster.until(world.cluster.settled)
                async with compat.timeout(LIMIT_S):
                    await producer.send("bills", b"after")  # which its master is asked about first

    try:
        run(scene())
    finally:
        for link in between.values():
            link.close()


def test_an_answer_to_what_was_not_asked_is_an_error_of_that_request() -> None:
    """Whoever has the address by now, a consumer asks again; it was a failed assertion, with which a consumer ended."""

    async def scene() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            framer, frames = TopicFramer(), list[TopicFrame]()
            while not frames:
                frames += framer.feed(await reader.read(1 << 16))
            method, data = encode_response(CloseResponseM2P(True, TopicCode.OK, ""))
            writer.write(encode_frame(frames[0][0], encode_reply(RpcAnswer(method, data))))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        links = TopicLinks(LIMIT_S, LIMIT_S)
        out = CloseRequestC2M("g_127.0.0.1-1-1-1-Pull-waltz", "g", None)
        with pytest.raises(WireError, match="of method 3, what was asked is of 6"):
            await links.ask(Endpoint("127.0.0.1", server.sockets[0].getsockname()[1]), out)
        await links.close()
        server.close()
        await server.wait_closed()

    run(scene())


def test_t48_another_clusters_actor_at_a_known_address_is_not_spoken_with() -> None:
    """Addresses are used again: there its topics, groups and slots may have the same names."""

    async def scene() -> None:
        async with topic_world() as world, topic_world() as other:
            (actor,) = other.cluster.servers.values()
            assert actor.endpoint is not None
            place = MemoryPlace(world.cluster, [actor.endpoint])
            async with AsyncTopicClient(place, FAST) as client, client.consumer("g", "orders") as consumer:
                await client.producer().send("orders", b"x")
                await pulled(consumer, 1)
                assert actor.groups() == []
                assert actor._gateway.counts.requests == 0

    run(scene())


def test_who_does_not_know_which_cluster_is_meant_is_asked_all_the_same() -> None:
    """An actor from before that was asked."""

    async def scene() -> None:
        async with topic_world() as world, world.client() as client:
            (actor,) = world.cluster.servers.values()
            shared = actor._gateway._shared
            shared.methods -= {RpcMethod.CLUSTER_MEANT}
            await client.producer().send("orders", b"x")
            assert actor._gateway.counts.unknown == 1

    run(scene())


def test_masters_that_hang_are_waited_for_no_longer_than_was_said() -> None:
    """As by who leaves: a second each, and not the time of any request."""

    async def scene() -> None:
        come = asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            come.set()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        links = TopicLinks(60.0, 60.0, None, "a key")  # so that it hangs while it is greeted
        masters = Masters(links, lambda: [Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])])
        out = CloseRequestC2M("g_127.0.0.1-1-1-1-Pull-waltz", "g", None)
        with pytest.raises(PartitionNotReady, match=r"has not answered within 0\.5 s"):
            await asyncio.wait_for(masters.ask(lambda: out, 0.5), LIMIT_S)
        assert come.is_set()
        await links.close()
        server.close()
        await server.wait_closed()

    run(scene())


def test_a_confirm_whose_answer_is_lost_with_the_partition_is_not_told_as_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The group may be behind it: who undid his work would never see the batch again."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            await client.producer().send("orders", b"x")
            async with client.consumer("g", "orders") as consumer:
                (batch,) = await pulled(consumer, 1)
                (subscription,) = consumer._held
                ask = consumer._ask_slot

                async def lost(endpoint: Endpoint, request: TopicRequest) -> TopicResponse | RpcFault:
                    answer = await ask(endpoint, request)
                    if isinstance(request, ProgressRequestC2B):
                        raise ConnectionResetError("its answer is lost")
                    return answer

                monkeypatch.setattr(consumer._held[subscription], "_ask", lost)
                confirming = asyncio.create_task(consumer.confirm(batch))
                await world.confirmed("g", 0, batch.end)
                await consumer._held[subscription].stop()
                for again in (confirming, consumer.confirm(batch)):
                    with pytest.raises(TopicUnknownFate, match="was lost before a confirm had its answer"):
                        await again
                consumer._forget(subscription)
                with pytest.raises(TopicUnknownFate):
                    await consumer.confirm(batch)

    run(scene())


def test_a_confirm_that_was_never_sent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            await client.producer().send("orders", b"x")
            async with client.consumer("g", "orders") as consumer:
                (batch,) = await pulled(consumer, 1)
                (held,) = consumer._held.values()
                tried = asyncio.Event()

                async def unreachable(endpoint: Endpoint, request: TopicRequest) -> TopicResponse | RpcFault:
                    if isinstance(request, ProgressRequestC2B) and request.offset >= 0:
                        tried.set()
                    raise ConnectionRefusedError("no connection")

                monkeypatch.setattr(held, "_ask", unreachable)
                confirming = asyncio.create_task(consumer.confirm(batch))
                await tried.wait()
                await held.stop()
                with pytest.raises(TopicRefused, match="the partition was given back"):
                    await confirming

    run(scene())


def test_t49_a_master_whose_link_was_bad_is_asked_again_if_no_other_one_leads() -> None:
    """The other one says that it does not lead: who asks would be without a master for half an hour."""
    out = CloseRequestC2M("g_127.0.0.1-1-1-1-Pull-waltz", "g", None)
    leader, standby = Endpoint("a", 1), Endpoint("b", 2)
    known, asked = [leader, standby], list[Endpoint]()

    class Links(TopicLinks):
        cut = True

        async def ask(
            self, endpoint: Endpoint, request: TopicRequest, timeout_s: float | None = None
        ) -> TopicResponse | RpcFault:
            asked.append(endpoint)
            if endpoint == standby:
                return FaultName.STANDBY.fault("it does not lead")
            if self.cut:
                raise ConnectionRefusedError("it is cut off")
            return CloseResponseM2C(True, TopicCode.OK, "")

    async def scene() -> None:
        links = Links(1.0, 1.0)
        masters = Masters(links, lambda: known)
        while asked.count(leader) < 6:
            with pytest.raises(PartitionNotReady):
                await masters.ask(lambda: out, -1.0)
        links.cut = False
        asked.clear()
        assert await masters.ask(lambda: out, -1.0) == CloseResponseM2C(True, TopicCode.OK, "")
        assert asked == [standby, leader], "the others come first"
        known.clear()
        with pytest.raises(PartitionNotReady, match="no topic actor is registered"):
            await masters.ask(lambda: out, -1.0)

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


def test_t29_who_begins_at_the_end_goes_on_where_the_group_is_when_it_has_the_partition_again() -> None:
    """It would lose what came meanwhile, and what it had not confirmed."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            producer = client.producer()
            await producer.send("orders", b"before")
            async with client.consumer("g", "orders", start="end") as consumer:
                await world.until(lambda: len(consumer.partitions) == 1)
                await producer.send("orders", b"a")
                (batch,) = await pulled(consumer, 1)
                assert [message.data for message in batch] == [b"a"]
                world.take_away("g", 0)
                with pytest.raises(TopicRefused):
                    await consumer.confirm(batch)
                await producer.send("orders", b"b")
                found = [message.data for each in await pulled(consumer, 2) for message in each]
                assert found == [b"a", b"b"]
                with pytest.raises(TopicRefused, match="not in the log"):
                    await consumer.seek("orders", 0, 100)
                again = [message.data for each in await pulled(consumer, 2) for message in each]
                assert again == [b"a", b"b"], "it goes on where the group is"
            async with client.consumer("g", "orders", start="end") as consumer:
                await world.until(lambda: len(consumer.partitions) == 1)
                await producer.send("orders", b"c")
                (batch,) = await pulled(consumer, 1)
                assert [message.data for message in batch] == [b"c"]

    run(scene())


@pytest.mark.parametrize("types", [(), ("new",)])
def test_what_was_trimmed_before_it_was_read_is_counted(types: tuple[str, ...]) -> None:
    """Also when the partition is taken anew for that."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client(replace(FAST, ahead_bytes=1)) as client:
            producer, log = client.producer(), world.cluster.log
            async with client.consumer("g", {"orders": types}) as consumer:
                await world.until(lambda: len(consumer.partitions) == 1)
                consumer.pause("orders", 0)
                offsets = [(await producer.send("orders", bytes(5000), type="new")).offset for _ in range(20)]
                await asyncio.to_thread(log.trim, 0, offsets[15], "orders")
                await asyncio.to_thread(log.move, log._store.spaces.get("orders").first)  # it had them in memory
                consumer.resume("orders", 0)
                batches = await pulled(consumer, 5)
                assert [message.offset for batch in batches for message in batch] == offsets[15:]
                before = consumer.skipped()
                assert before in (offsets[15], offsets[15] - offsets[0]), "whether the OWN before them was read or not"
                await consumer.confirm(batches[-1])
                await consumer.seek("orders", 0, "latest")
                assert consumer.skipped() == before

    run(scene())


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


def test_a_client_that_is_closed_while_it_starts_does_not_run_on() -> None:
    class Slow(MemoryPlace):
        gate = threading.Event()

        def directory(self) -> Any:
            assert self.gate.wait(LIMIT_S)
            return super().directory()

    async def scene() -> None:
        async with topic_world() as world:
            place = Slow(world.cluster)
            client = AsyncTopicClient(place, FAST)
            starting = asyncio.create_task(client.start())
            await asyncio.sleep(0)
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0)
            place.gate.set()
            await asyncio.gather(starting, closing)
            with pytest.raises(InvalidInput, match="not been started"):
                client.producer()

    run(scene())


def test_clients_of_processes_with_the_same_number_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of two containers that have begun in the same millisecond: they would be one member, and consume the same."""

    async def scene() -> None:
        async with topic_world(partitions=2) as world, world.client() as client:
            monkeypatch.setattr(consumer_module, "time", SimpleNamespace(time_ns=lambda: 7))
            monkeypatch.setattr(consumer_module, "_COUNTS", itertools.repeat(1))
            async with client.consumer("g", "orders") as one, client.consumer("g", "orders") as two:
                await world.until(lambda: len(one.partitions) == len(two.partitions) == 1)

    run(scene())


def test_a_client_that_is_dropped_and_not_closed_says_so() -> None:
    async def scene() -> None:
        async with topic_world() as world:
            client = AsyncTopicClient(world.place, FAST)
            await client.start()
            running = client._running
            assert running is not None
            with pytest.warns(ResourceWarning, match="unclosed client of topics: "):
                del client
            await running.ending.come()

    run(scene())


def test_threads_do_the_same() -> None:
    async def scene() -> None:
        async with topic_world(partitions=2) as world:
            await asyncio.to_thread(in_a_thread, world)

    run(scene())


def in_a_thread(world: TopicWorld) -> None:
    with TopicClient(world.place, FAST) as client:
        with client.producer() as producer:
            sent = producer.send("orders", b"first", type="new", attributes="a=b", time="202611231200")
            futures = [producer.send_nowait("orders", b"%d" % n, partition=1) for n in range(100)]
            many = producer.send_many("orders", [b"m1", b"m2"], partition=sent.partition)
            producer.flush()
            assert [f.result() for f in futures] == sorted(f.result() for f in futures)
            assert many.offsets[1] == many.offsets[0] + 1
        found: dict[bytes, tuple[str, str | None, str]] = {}
        with client.consumer("g", "orders") as consumer:
            for message in consumer:
                found[message.data] = message.type, message.attributes, message.time
                if len(found) == 103:
                    break
        assert found[b"first"] == ("new", "a=b", "202611231200")
    with pytest.raises(ClientClosed):
        client.producer()


def test_a_forked_child_leaves_producers_and_consumers_as_they_are() -> None:
    """It had no part in them: what it was left by, SystemExit say, was replaced by a ClientClosed."""

    def thread(world: TopicWorld) -> None:
        with TopicClient(world.place, FAST) as client, client.producer() as producer:
            producer.send("orders", b"first")
            with client.consumer("g", "orders") as consumer:
                child = os.fork()
                if not child:
                    code = 1
                    try:
                        producer.close()
                        consumer.close()
                        client.close()
                        code = 7
                    finally:
                        os._exit(code)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                producer.send("orders", b"second")
                batch = consumer.pull(1)
                assert batch is not None

    async def scene() -> None:
        async with topic_world(partitions=1) as world:
            await asyncio.to_thread(thread, world)

    run(scene())


def test_threads_wait_for_messages_each_for_its_time() -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world:
            await asyncio.to_thread(waiting_threads, world)

    run(scene())


def test_a_client_whose_close_is_interrupted_has_closed_all_the_same() -> None:
    """Or the sessions of its logs would be left, with connections, and nobody could close them any more."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    def thread(world: TopicWorld) -> None:
        client = TopicClient(world.place, FAST)
        producers = [client.producer(), client.producer()]
        for producer in producers:
            producer.send("orders", b"x")
            producer.send("bills", b"x")
        logs = [outlet.log for producer in producers for outlet in producer._outlets.values()]
        core = client._core
        assert core is not None
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(logs[3], "close", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.close()
        logs[3].close()
        for log in logs[:3]:
            with pytest.raises(ClientClosed):
                log.append(0, b"x")
        assert all(producer._registration._closed for producer in producers)
        assert core._running is None, "it has ended"

    async def scene() -> None:
        async with topic_world() as world:
            await world.cluster.create("bills", 1)
            await world.until(world.cluster.settled)
            await asyncio.to_thread(thread, world)

    run(scene())


def test_what_is_refused_in_a_future_s_callback_is_not_sent() -> None:
    """It was, and who sent it once more from elsewhere had it twice."""

    def thread(world: TopicWorld) -> None:
        with TopicClient(world.place, FAST) as client, client.producer() as producer:
            told: Future[list[BaseException | None]] = Future()

            def callback(sent: Future[int]) -> None:
                found: list[BaseException | None] = []
                for send in (
                    lambda: producer.send("orders", b"twice"),
                    lambda: producer.send_many("orders", [b"twice"]),
                    lambda: producer.send_nowait("orders", b"once"),
                ):
                    try:
                        send()
                        found.append(None)
                    except InvalidInput as error:
                        found.append(error)
                told.set_result(found)

            first = Future[int]()  # on the thread of those of appends, whenever it is done
            first.add_done_callback(callback)
            producer.send("orders", b"first")
            producer._io.post(first.set_result, 0)
            assert [type(each) for each in told.result(LIMIT_S)] == [InvalidInput, InvalidInput, type(None)]
            producer.flush()
            producer.send("orders", b"last")
            found: list[bytes] = []
            with client.consumer("g", "orders") as consumer:
                for message in consumer:
                    found.append(message.data)
                    if message.data == b"last":
                        break
            assert found == [b"first", b"once", b"last"]

    async def scene() -> None:
        async with topic_world(partitions=1) as world:
            await asyncio.to_thread(thread, world)

    run(scene())


def waiting_threads(world: TopicWorld) -> None:
    def data_of(batch: MessageBatch | None) -> list[bytes]:
        return [message.data for message in batch or ()]

    with TopicClient(world.place, FAST) as client, ThreadPoolExecutor(3) as pool:
        producer, consumer = client.producer(), client.consumer("g", "orders")
        with consumer:
            with pytest.raises(InvalidInput, match="at least 1"):
                consumer.pull(0)
            assert consumer.pull(timeout=0) is None
            assert consumer.pull(timeout=0.05) is None
            producer.send("orders", b"after a pull that was given up")
            assert data_of(consumer.pull(timeout=10)) == [b"after a pull that was given up"], "and it took nothing away"
            two = [pool.submit(consumer.pull, 1, 10.0) for _ in range(2)]
            producer.send_many("orders", [b"for one", b"for another"])
            assert sorted(data_of(each.result()) for each in two) == [[b"for another"], [b"for one"]]

            with pytest.MonkeyPatch.context() as patched:  # Ctrl-C, just when something has come
                patched.setattr(Future, "result", interrupted)
                producer.send_nowait("orders", b"of an interrupted pull")
                with pytest.raises(KeyboardInterrupt):
                    consumer.pull()
            assert data_of(consumer.pull(timeout=10)) == [b"of an interrupted pull"]
            comes_again_in_a_thread(producer, consumer)
            waiting = pool.submit(consumer.pull)
            with suppress(FuturesTimeout):
                waiting.result(0.05)
        with pytest.raises(ClientClosed):
            waiting.result(10)
        with pytest.raises(ClientClosed):
            consumer.pull()
        left = client.consumer("g", "orders")
        left.start()
    with pytest.raises(ClientClosed):
        consumer.pull()
    left.close()  # it was closed with the client
    with pytest.raises(ClientClosed):
        client.open()


def comes_again_in_a_thread(producer: TopicProducer, consumer: TopicConsumer) -> None:
    producer.send("orders", b"given up")
    for message in consumer:
        assert message.data == b"given up"
        break

    def take() -> None:
        for message in consumer:
            raise ValueError([message.data])

    def handle(batch: MessageBatch) -> None:
        raise ValueError([message.data for message in batch])

    for work in (take, lambda: consumer.run(handle)):
        with pytest.raises(ValueError, match="given up"):
            work()
    again = consumer.pull(timeout=10)
    assert [message.data for message in again or ()] == [b"given up"]


def interrupted(future: Future[object], timeout: float | None = None) -> object:
    """In place of ``Future.result``."""
    wait([future], 10)
    raise KeyboardInterrupt


class Meddling:
    """A partition; while anybody looks at it another one comes, as when the loop runs in another thread."""

    topic, partition, end, confirmed = "orders", 0, 5, 3

    def __init__(self) -> None:
        self.held = {"first": self}

    @property
    def lost(self) -> None:
        self.held[f"number {len(self.held)}"] = self

    @property
    def skipped(self) -> int:
        self.held[f"number {len(self.held)}"] = self
        return 7


def test_where_a_consumer_is_can_be_asked_while_partitions_come(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            asked: list[tuple[Callable[[AsyncTopicConsumer], object], object]] = [
                (lambda consumer: consumer.partitions, [("orders", 0)]),
                (lambda consumer: consumer.lag(), {("orders", 0): 2}),
                (lambda consumer: consumer.skipped(), 7),
            ]
            for ask, answer in asked:
                consumer = client.consumer("g", "orders")
                with monkeypatch.context() as patch:
                    patch.setattr(consumer, "_held", Meddling().held)
                    assert ask(consumer) == answer

    run(scene())


def test_what_a_thread_says_to_a_consumer_is_done_in_the_loop_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, bool]] = []

    def record(name: str) -> None:
        method = getattr(AsyncTopicConsumer, name)

        def recorded(consumer: AsyncTopicConsumer, *args: object) -> None:
            done.append((name, in_io_thread()))
            method(consumer, *args)

        monkeypatch.setattr(AsyncTopicConsumer, name, recorded)

    for name in ("pause", "resume", "consumed"):
        record(name)

    def thread(world: TopicWorld) -> list[int]:
        offsets: list[int] = []
        with (
            TopicClient(world.place, FAST) as client,
            client.producer() as producer,
            client.consumer("g", "orders") as consumer,
        ):
            consumer.pause("orders", 0)
            offsets.append(producer.send("orders", b"first").offset)
            assert consumer.pull(timeout=0.05) is None
            with pytest.raises(InvalidInput):
                consumer.pause("orders", "0")  # type: ignore[arg-type]
            consumer.resume("orders", 0)
            for message in consumer:
                if message.data == b"last":
                    break
                offsets.append(producer.send("orders", b"last").offset)
        return offsets

    async def scene() -> None:
        async with topic_world(partitions=1) as world:
            first, last = await asyncio.wait_for(asyncio.to_thread(thread, world), LIMIT_S)
            assert done == [("pause", True), ("resume", True), ("consumed", True)]
            assert first < (world.offset("g", 0) or 0) <= last, "the close has waited for it"

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


def test_t48_a_member_goes_on_when_its_slot_and_its_master_move() -> None:
    async def scene() -> None:
        async with topic_world(actors=2, partitions=4) as world, world.client() as client:
            producer = client.producer()
            async with client.consumer("g", "orders") as consumer:
                await world.until(lambda: len(consumer.partitions) == 4)
                found: list[bytes] = []

                async def take() -> None:
                    async for message in consumer:
                        found.append(message.data)

                taking = asyncio.create_task(take())
                for n in range(20):
                    await producer.send("orders", b"before %d" % n)
                await world.until(lambda: len(set(found)) == 20)
                leader = world.cluster.leader()
                assert leader is not None
                await world.cluster.end(leader)
                for n in range(20):
                    await producer.send("orders", b"after %d" % n)
                await world.until(lambda: len(set(found)) == 40)
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)

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


class _Stuck:
    """``TopicsPlace`` and registration of which nothing comes before it is let go on."""

    def __init__(self) -> None:
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def wait(self, coroutine: object = None) -> Any:
        self.asked.set()
        assert self.goes_on.wait(LIMIT_S)
        raise ZooKeeperUnreachable("let go on")

    directory = wait

    def know(self, topic: str) -> None:
        """Awaited by nobody."""


@pytest.mark.parametrize("what", ["a client is opened", "a client is closed", "a producer sends"])
def test_a_call_on_the_io_thread_is_refused_also_while_another_thread_connects(what: str) -> None:
    """It would wait for who connects, and that waits for the IO thread: no client of the process would go on."""
    stuck, io = _Stuck(), IoThread()
    place: Any = stuck
    client, producer = TopicClient(place), TopicProducer(place, FAST, stuck.wait, io, place)
    use: Callable[[], object] = {
        "a client is opened": client.open,
        "a client is closed": client.close,
        "a producer sends": lambda: producer.send_nowait("orders", b"x"),
    }[what]
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(use if what == "a producer sends" else client.open)
        assert stuck.asked.wait(LIMIT_S)

        async def on_the_io_thread() -> None:
            use()

        with pytest.raises(InvalidInput, match="on it, in a future's callback"):
            io.start(on_the_io_thread()).result(LIMIT_S / 2)
        stuck.goes_on.set()
        with pytest.raises(ZooKeeperUnreachable):
            connecting.result(LIMIT_S)
    io.stop(asyncio.sleep(0))


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
