"""Consumers of the native client: order, offsets, seeking, groups and their members."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from tests.topics.client.pulling import LIMIT_S, pulled, run
from tests.topics.client.world import FAST, topic_world
from tests.topics.scenes import Crowd
from waltz_ray import compat
from waltz_ray.client.aio import engine_of
from waltz_ray.errors import AccessRefused, InvalidInput, PartitionNotReady, SpaceGone, SpaceNotFound, TopicRefused
from waltz_ray.net.backoff import Backoff
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.topics import AsyncTopicClient, AsyncTopicConsumer, BoundGroup, MessageBatch
from waltz_ray.topics.client import consumer as consumer_module
from waltz_ray.topics.client import held_partition as held_partition_module
from waltz_ray.topics.client import links as links_module
from waltz_ray.topics.client.arguments import SeekTo
from waltz_ray.topics.client.held_partition import HeldPartition
from waltz_ray.topics.client.links import TopicLink, TopicLinks
from waltz_ray.topics.codes import BrokerOperation, TopicCode
from waltz_ray.topics.groups.events import SteppedDown, TookOver
from waltz_ray.topics.messages_consumer import RegisterRequestC2B
from waltz_ray.topics.rpc import RpcFault
from waltz_ray.topics.wire import TopicRequest, TopicResponse


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


def test_of_some_types_too_no_more_is_read_ahead_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of headers is small, whatever their data has: all of that was read before any of it was given out."""

    async def scene() -> None:
        config = replace(FAST, ahead_bytes=4096)
        async with topic_world(partitions=1) as world, world.client(config) as client:
            await client.producer().send_many("orders", [b"%d" % n + bytes(1000) for n in range(200)], type="new")
            async with client.consumer("g", {"orders": ["new"]}) as consumer:
                rpc, sizes = engine_of(await consumer._logs.of("orders")).rpc, list[int]()
                read = rpc.read

                async def counted(partition: int, first: int, end: int, most_bytes: int) -> RecordBatch:
                    found = await read(partition, first, end, most_bytes)
                    sizes.append(found.size_bytes)
                    return found

                monkeypatch.setattr(rpc, "read", counted)
                found, given = list[bytes](), 0
                while len(found) < 200:
                    (batch,) = await pulled(consumer, 1)
                    found += [message.data.rstrip(b"\0") for message in batch]
                    assert sum(sizes) - given <= 4 * 4096
                    given += batch.size_bytes
                assert found == [b"%d" % n for n in range(200)]
                (held,) = consumer._held.values()
                assert held._ahead == 0

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
