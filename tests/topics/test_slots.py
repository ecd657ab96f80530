"""Slots over a log in memory: who serves which, what producers are answered, what a zombie can do."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from tests.topics.actors import TopicActors, actors
from tests.topics.foreign_client import ForeignFault, crc
from waltz_ray.errors import CoordinationError, SpaceGone, WaltzError
from waltz_ray.protocol.arrangement import arrange, first_table
from waltz_ray.protocol.ownership_types import UnitPlace, UnitTable
from waltz_ray.topics.access import TopicAccess
from waltz_ray.topics.authorization import AccessRules
from waltz_ray.topics.payload import java_hash
from waltz_ray.topics.records import (
    OWNERSHIP_HEADER,
    SlotOwn,
    SlotRelease,
    TopicMessage,
    decode_topic_record,
    encode_topic_record,
)
from waltz_ray.topics.serving import partition_fold
from waltz_ray.topics.serving.slot_partition import SlotPartition
from waltz_ray.topics.slots import SlotSplitting, grown


async def in_log(found: TopicActors, topic: str, partition: int) -> list[tuple[int, int, object]]:
    """(ID, header, record)."""
    records = await asyncio.to_thread(found.log_of, topic, partition)
    return [(number, header, decode_topic_record(data)) for number, header, data in records]


async def payloads(found: TopicActors, topic: str, partition: int) -> list[bytes]:
    return [each.payload for _, _, each in await in_log(found, topic, partition) if isinstance(each, TopicMessage)]


# ---- producing


def test_t16_a_message_is_committed_and_its_id_is_its_transaction() -> None:
    async def run() -> None:
        async with actors(1) as found:
            await found.create("orders", 2)
            found.arrange(lambda slot: 0, 2)
            await found.until_served(1, 2)
            broker = await found.broker(2)
            reply = await broker.produce("orders", b"hello", "aaa", flag=0, check_sum=907060870)
            assert (reply.number(1), reply.code) == (1, 200)
            [(number, header, record)] = [
                each for each in await in_log(found, "orders", 1) if isinstance(each[2], TopicMessage)
            ]
            assert reply.number(5) == reply.number(7) == number
            assert header == java_hash("aaa")
            assert record == TopicMessage(b"hello", 0, 907060870, -1073741310, reply.number(6), "aaa", "202311142213")
            assert await payloads(found, "orders", 0) == []

    asyncio.run(run())


def test_t18_t19_what_is_no_message_is_refused() -> None:
    async def run() -> None:
        async with actors(1, most_bytes=100_000) as found:
            await found.create("orders", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            broker = await found.broker(1)
            assert (await broker.produce("orders", b"")).code == 400
            assert (await broker.produce("orders", bytes(100_000))).code == 200
            assert (await broker.produce("orders", bytes(100_001))).code == 400
            wrong = await broker.produce("orders", b"hello", check_sum=1)
            assert (wrong.code, wrong.why) == (
                403,
                "the checksum of the message is 907060870, not 1: send it again",
            )
            assert (await broker.produce("orders", b"none", check_sum=-1)).code == 200
            assert (await broker.produce("orders", struct.pack(">i", 9) + b"a=b", flag=1)).code == 400
            assert (await broker.produce("orders", b"x", "t" * 1025)).code == 400
            last = (await in_log(found, "orders", 0))[-1][2]
            assert isinstance(last, TopicMessage)
            assert (last.payload, last.check_sum) == (b"none", crc(b"none"))

    asyncio.run(run())


def test_what_is_not_here_is_refused() -> None:
    async def run() -> None:
        async with actors(1) as found:
            await found.create("orders", 2)
            await found.create("small", 1)
            found.arrange(lambda slot: 0, 2)
            await found.until_served(1, 2)
            broker = await found.broker(2)
            assert (await broker.produce("nothing", b"x")).code == 403
            assert (await broker.produce("small", b"x")).code == 403
            other = await broker.produce("orders", b"x", partition=1)
            assert (other.code, other.why) == (400, "slot 2 has partition 0 of each topic, and no partition 1")

    asyncio.run(run())


def test_t51_any_other_method_is_answered() -> None:
    async def run() -> None:
        async with actors(1) as found:
            await found.create("orders", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            broker = await found.broker(1, version=2)
            for method in (0, 1, 12, 99):
                with pytest.raises(ForeignFault, match=f"UnsupportedOperationException: there is no method {method} "):
                    await broker.ask(method, b"")
            with pytest.raises(ForeignFault, match="UnknownProtocolException") as caught:
                await broker.ask(13, b"\xff")
            assert caught.value.status == 1
            assert (await broker.produce("orders", b"x")).code == 200

    asyncio.run(run())


def test_t04_long_messages_and_many_at_a_time() -> None:
    async def run() -> None:
        async with actors(1) as found:
            await found.create("orders", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            broker = await found.broker(1)
            sent = [bytes([number % 256]) * (1 + 997 * number % 30_000) for number in range(200)]
            replies = await asyncio.gather(*(broker.produce("orders", data) for data in sent))
            assert {reply.code for reply in replies} == {200}
            found_there = {
                number: record.payload
                for number, _, record in await in_log(found, "orders", 0)
                if isinstance(record, TopicMessage)
            }
            assert {reply.number(5): data for reply, data in zip(replies, sent, strict=True)} == found_there

    asyncio.run(run())


# ---- ownership


def test_a_slot_moves_without_losing_a_message_and_its_address_changes() -> None:
    async def run() -> None:
        async with actors(2) as found:
            await found.create("orders", 2)
            await found.create("bills", 2)
            found.arrange(lambda slot: slot - 1, 2)
            await found.until_served(1, 2)
            before = found.ports[0][1]
            broker = await found.broker(1)
            assert (await broker.produce("orders", b"first")).code == 200
            found.arrange(lambda slot: 1, 2)
            await found.until_served(1, 2)
            assert found.ports[1][1] != before
            await found.until(lambda: found.ports[0] == {})
            with pytest.raises(ConnectionError):
                await broker.produce("orders", b"to the wrong one")
            second = await (await found.broker(1)).produce("orders", b"second")
            assert second.code == 200
            assert await payloads(found, "orders", 0) == [b"first", b"second"]
            owners = [each for _, _, each in await in_log(found, "bills", 0)]
            assert owners == [
                SlotOwn(1, 0, "0-first", 1),
                SlotRelease(1, 0, "0-first", 1),
                SlotOwn(1, 1, "1-first", found.places[1].epoch),
            ]

    asyncio.run(run())


def test_a_zombie_appends_nothing_and_learns_why() -> None:
    """Actor 0 believes that it serves slot 1, and the table gives it to actor 1: the log refuses what it sends."""

    async def run() -> None:
        async with actors(2) as found:
            await found.create("orders", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            broker = await found.broker(1)
            partition = found.nodes[0].topics["orders"].of_slot(1)
            assert partition is not None
            held: list[object] = []
            folded = partition.fold.fold  # the zombie hears nothing of its partition from now on
            partition.fold.fold = held.append  # type: ignore[method-assign, assignment]
            del found.incarnations[0]
            found.tell_members(0)
            found.arrange(lambda slot: 1, 1, but=(0,))
            await found.until(lambda: found.serves(1, "orders", 1))
            assert partition.serving, "it does not know"
            answer = asyncio.ensure_future(broker.produce("orders", b"of the zombie"))
            other = await (await found.broker(1)).produce("orders", b"of the owner")
            assert other.code == 200
            await found.until(lambda: len(held) >= 2)
            for batch in held:
                folded(batch)  # type: ignore[arg-type]
            assert (await answer).code == 201
            assert not partition.serving
            assert await payloads(found, "orders", 0) == [b"of the owner"]

    asyncio.run(run())


def test_a_zombie_takes_nothing_back() -> None:
    """A paused actor whose OWN is decided on what it knew before another one took the partition."""

    async def run() -> None:
        async with actors(1) as found:
            await found.create("orders", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            partition = found.nodes[0].topics["orders"].of_slot(1)
            assert partition is not None
            own = SlotOwn(1, 7, "another", 1000)
            with found.cluster.connect(space="orders") as client:
                client.append(0, encode_topic_record(own), OWNERSHIP_HEADER).result(10)
            await found.until(lambda: not partition.serving)
            records = [record for _, _, record in await in_log(found, "orders", 0)]
            assert records == [SlotOwn(1, 0, "0-first", 1), own], "an older table takes nothing from a newer one"

    asyncio.run(run())


def test_a_moved_log_refuses_once_and_the_message_is_appended_all_the_same() -> None:
    async def run() -> None:
        async with actors(1) as found:
            await found.create("orders", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            broker = await found.broker(1)
            await asyncio.to_thread(lambda: found.cluster.force(lock_failures=1))
            assert (await broker.produce("orders", b"once")).code == 200
            assert found.cluster.faults_met["lock_failures"] == 1
            number = found.cluster.partitions  # in the cluster: the space is behind the first
            await asyncio.to_thread(found.cluster.move, number)
            assert (await broker.produce("orders", b"moved")).code == 200
            assert await payloads(found, "orders", 0) == [b"once", b"moved"]

    asyncio.run(run())


def test_who_owns_it_is_found_behind_any_number_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked for backwards; said again by its owner, so that it is not far."""
    monkeypatch.setattr("waltz_ray.topics.serving.slot_partition.SAID_AGAIN_RECORDS", 50)
    monkeypatch.setattr(partition_fold, "_FIRST_LOOK", 2)

    async def run() -> None:
        async with actors(2) as found:
            await found.create("orders", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            broker = await found.broker(1)
            for _ in range(4):
                await asyncio.gather(*(broker.produce("orders", b"x") for _ in range(40)))
            owns = [number for number, _, each in await in_log(found, "orders", 0) if isinstance(each, SlotOwn)]
            assert len(owns) >= 2
            found.arrange(lambda slot: 1, 1)
            await found.until_served(1)
            own = (await in_log(found, "orders", 0))[-1][2]
            assert own == SlotOwn(1, 1, "1-first", found.places[1].epoch)

    asyncio.run(run())


def test_a_topic_that_is_deleted_is_gone() -> None:
    async def run() -> None:
        async with actors(1) as found:
            await found.create("orders", 1)
            await found.create("bills", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            broker = await found.broker(1)
            await asyncio.to_thread(found.cluster.delete_space, "orders")
            await found.nodes[0].remove_topic("orders")
            assert (await broker.produce("orders", b"x")).code == 403
            assert (await broker.produce("bills", b"x")).code == 200

    asyncio.run(run())


def test_a_topic_that_is_deleted_while_its_partitions_are_closed_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The feeds of all of them end with it: whoever closes them may be at the first when the topic goes."""

    async def run() -> None:
        async with actors(1) as found:
            await found.create("orders", 3)
            found.arrange(lambda slot: 0, 3)
            await found.until_served(1, 2, 3)
            node = found.nodes[0]
            topic = node.topics["orders"]
            close = topic.close_partition

            async def deleted_meanwhile(number: int) -> None:
                monkeypatch.setattr(topic, "close_partition", close)
                await node.remove_topic("orders")
                await close(number)

            monkeypatch.setattr(topic, "close_partition", deleted_meanwhile)
            for partition in list(topic.partitions.values()):
                partition._ended(SpaceGone("orders was deleted"))
            await found.until(lambda: not node.topics)
            del found.topics["orders"]
            await found.create("bills", 3)
            await found.until_served(1, 2, 3)
            assert node.tasks.broken == ""

    asyncio.run(run())


def test_a_partition_whose_task_has_failed_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for ever for what the task was to find out, and nobody said why."""
    confirm = SlotPartition._confirm_members

    async def fails(partition: SlotPartition) -> None:
        monkeypatch.setattr(SlotPartition, "_confirm_members", confirm)
        raise LookupError("a bug")

    async def run() -> None:
        async with actors(2) as found:
            await found.create("orders", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            killed = found.nodes.pop(0)
            await killed.close()
            await killed.duties.deliveries.close()
            monkeypatch.setattr(SlotPartition, "_confirm_members", fails)
            found.gone(0)
            found.arrange(lambda slot: 1, 1)
            await found.until_served(1)
            assert SlotPartition._confirm_members is confirm

    asyncio.run(run())


# ---- the table


def test_the_table_grows_with_the_largest_topic_and_stays_in_balance() -> None:
    count = 2
    splitting = SlotSplitting(lambda: count)
    table = arrange(splitting, first_table(splitting, 1000), [0, 1], 1)
    assert [place.primary for place in table.places.values()] == [0, 1]
    count = 6
    larger = arrange(splitting, grown(table, count), [0, 1], 1)
    assert larger.level == 6
    assert [larger.places[slot].primary for slot in (1, 2)] == [0, 1], "who has one keeps it"
    assert [place.primary for place in larger.places.values()].count(0) == 3
    assert min(place.epoch for place in larger.places.values()) > 1000
    assert grown(larger, 3) == larger
    assert grown(UnitTable(0, {}), 1).places == {1: UnitPlace(None, 0)}


def test_a_slot_that_moves_while_it_is_taken_is_released() -> None:
    """Its OWN comes into the log after the table has given the slot away: nobody but this actor can release it."""

    async def run() -> None:
        async with actors(2) as found:
            await found.create("orders", 1)
            node, topic = found.nodes[0], found.nodes[0].topics["orders"]
            append, owns = topic.log.append, list[Callable[[], None]]()
            topic.log.append = lambda *what, **how: owns.append(partial(append, *what, **how))  # type: ignore[method-assign]
            found.arrange(lambda slot: 0, 1)
            await found.until(lambda: bool(owns))
            topic.log.append = append  # type: ignore[method-assign]
            found.arrange(lambda slot: 1, 1)
            await found.until(lambda: not node._stirred.is_set())
            assert 0 in topic.partitions
            owns[0]()
            await found.until_served(1)
            await found.until(lambda: not topic.partitions)

    asyncio.run(run())


def test_a_slot_that_moves_while_nothing_is_known_of_it_is_released() -> None:
    """Its feed ends while it is released: it is looked at once more, and found to be ours."""

    async def run() -> None:
        async with actors(2) as found:
            await found.create("orders", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            topic = found.nodes[0].topics["orders"]
            append = topic.log.append

            def lost(*what: object, **how: object) -> None:
                topic.log.append = append  # type: ignore[method-assign]

            topic.log.append = lost  # type: ignore[method-assign]
            found.arrange(lambda slot: 1, 1)
            assert topic.log.append == append, "its RELEASE is under way"
            topic.partitions[0]._ended(WaltzError("as if it had"))
            await found.until_served(1)
            await found.until(lambda: not topic.partitions)

    asyncio.run(run())


def test_what_waits_for_news_of_rights_is_not_overtaken() -> None:
    """A register that is looked at again, and the logout behind it: nobody has the partition afterwards."""

    async def run() -> None:
        async with actors(1) as found:
            await found.create("orders", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            duties, asked, known = found.nodes[0].duties, asyncio.Event(), asyncio.Event()
            allowed = TopicAccess()
            now = [replace(allowed, rules=AccessRules(authenticate=True))]

            async def again() -> None:
                asked.set()
                await known.wait()
                now[0] = allowed

            duties.access, duties.access_again = lambda: now[0], again
            broker = await found.broker(1)
            registered = asyncio.ensure_future(broker.register("g", "orders"))
            await asked.wait()
            left = asyncio.ensure_future(broker.register("g", "orders", out=True))
            sent = asyncio.ensure_future(broker.produce("orders", b"x"))
            await found.until(lambda: broker._serial == 3)
            known.set()
            assert [(await each).code for each in (registered, left, sent)] == [200, 200, 200]
            assert (await broker.register("g", "orders", "another")).code == 200, "nobody has it"
            assert not found.nodes[0].gateways[1]._shared.port._looking  # type: ignore[attr-defined]

    asyncio.run(run())


def test_who_is_not_known_is_answered_also_when_zookeeper_is_away() -> None:
    async def run() -> None:
        async with actors(1) as found:
            await found.create("orders", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            duties = found.nodes[0].duties

            async def away() -> None:
                raise CoordinationError("ZooKeeper is away")

            access = TopicAccess(AccessRules(authenticate=True))
            duties.access, duties.access_again = lambda: access, away
            broker = await found.broker(1)
            for asked in (broker.produce("orders", b"x"), broker.register("g", "orders")):
                assert (await asyncio.wait_for(asked, 10.0)).code == 401

    asyncio.run(run())
