"""Consumers of slots over a log in memory: what they are given, what comes again, who is let in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.topics.actors import LIMIT_S, TopicActors, actors
from tests.topics.foreign_client import ForeignClient, payloads_of, text
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.messages_consumer import ProgressRequestC2B
from waltz_ray.topics.offset_item import OffsetItem
from waltz_ray.topics.records import OWNERSHIP_HEADER, encode_messages, header_of_type
from waltz_ray.topics.serving import deliveries as deliveries_module
from waltz_ray.topics.serving import slot_partition
from waltz_ray.topics.wire import encode_request

KEY = ("g", "orders", 0)


@asynccontextmanager
async def one_slot(**options: Any) -> AsyncIterator[tuple[TopicActors, ForeignClient]]:
    async with actors(1, **options) as found:
        await found.create("orders", 1)
        found.arrange(lambda slot: 0, 1)
        await found.until_served(1)
        yield found, await found.broker(1)


async def sent(broker: ForeignClient, *datas: bytes, msg_type: str = "") -> list[int]:
    replies = [await broker.produce("orders", data, msg_type) for data in datas]
    assert {reply.code for reply in replies} <= {200}
    return [reply.number(5) for reply in replies]


async def pulled(broker: ForeignClient, group: str = "g", consumer: str = "one", **options: bool) -> list[bytes]:
    """One pull's messages."""
    reply = await broker.pull(group, "orders", consumer, **options)
    assert reply.code in (200, 404), reply.fields
    return payloads_of(reply)


def test_t25_what_was_produced_is_pulled_with_where_it_is() -> None:
    async def run() -> None:
        async with one_slot() as (found, broker):
            numbers = await sent(broker, b"a", b"b", b"c")
            registered = await broker.register("g", "orders")
            assert (registered.code, registered.number(4), registered.number(5)) == (200, 0, numbers[-1] + 1)
            reply = await broker.pull("g", "orders")
            assert [part.number(1) for part in reply.parts(4)] == numbers
            assert payloads_of(reply) == [b"a", b"b", b"c"]
            assert (reply.code, reply.number(5), reply.number(10)) == (200, 0, numbers[-1] + 1)
            assert (await broker.pull("g", "orders")).code == 404
            assert found.offsets.items[KEY].offset == numbers[-1] + 1

    asyncio.run(run())


def test_t26_what_is_confirmed_moves_the_offset_and_what_is_not_comes_again() -> None:
    async def run() -> None:
        async with one_slot() as (found, broker):
            await sent(broker, b"a")
            await broker.register("g", "orders")
            assert await pulled(broker) == [b"a"]
            await sent(broker, b"b")
            assert await pulled(broker, consumed=False) == [b"a"], "the same batch"
            assert (await broker.confirm("g", "orders", consumed=False)).code == 200
            assert await pulled(broker, consumed=False) == [b"a"]
            confirmed = await broker.confirm("g", "orders")
            assert confirmed.code == 200
            assert found.offsets.items[KEY].offset == confirmed.number(4) == 2
            assert await pulled(broker) == [b"b"]

    asyncio.run(run())


def test_t23_a_partition_has_one_consumer_of_a_group() -> None:
    async def run() -> None:
        async with one_slot() as (_, broker):
            await sent(broker, b"a")
            assert (await broker.register("g", "orders", "one")).code == 200
            occupied = await broker.register("g", "orders", "two")
            assert (occupied.code, occupied.why[:13]) == (410, "consumer one ")
            assert (await broker.register("other", "orders", "two")).code == 200
            assert await pulled(broker, "other", "two") == [b"a"]
            assert (await broker.pull("g", "orders", "two")).code == 412
            assert (await broker.register("g", "orders", "one", out=True)).code == 200
            assert (await broker.pull("g", "orders", "one")).code == 411
            assert (await broker.register("g", "orders", "two")).code == 200
            assert await pulled(broker, "g", "two") == [b"a"]

    asyncio.run(run())


def test_t22_t24_heartbeats_say_what_is_lost() -> None:
    async def run() -> None:
        async with one_slot() as (_, broker):
            place = "1:127.0.0.1:8123#orders:0"
            lost = await broker.beat("g", [place])
            assert (lost.code, lost.number(4), lost.texts(5)) == (200, 1, [f"411:{place}"])
            await broker.register("g", "orders")
            kept = await broker.beat("g", [place])
            assert (kept.code, kept.number(4), kept.texts(5)) == (200, 0, [])
            others = await broker.beat("g", [place, "1:127.0.0.1:8123#nothing:0"], "two")
            assert others.texts(5) == [f"412:{place}", "403:1:127.0.0.1:8123#nothing:0"]
            assert (await broker.beat("g", ["nonsense"])).code == 400

    asyncio.run(run())


def test_t29_where_a_group_begins() -> None:
    async def run() -> None:
        async with one_slot() as (_, broker):
            numbers = await sent(broker, b"a", b"b")
            for group, read, begins in (("zero", 0, 0), ("one", 1, 3), ("two", 2, 3)):
                assert (await broker.register(group, "orders", read=read)).number(4) == begins
            await sent(broker, b"c")
            assert await pulled(broker, "one") == await pulled(broker, "two") == [b"c"]
            assert await pulled(broker, "zero") == [b"a", b"b", b"c"]
            at = await broker.register("at", "orders", offset=numbers[1])
            assert at.number(4) == numbers[1]
            assert await pulled(broker, "at") == [b"b", b"c"]
            assert (await broker.register("beyond", "orders", offset=99)).code == 400
            assert (await broker.register("g", "orders", read=3)).code == 400

    asyncio.run(run())


def test_t44_a_filter_lets_its_types_through_and_no_other_with_the_same_hash() -> None:
    async def run() -> None:
        async with one_slot() as (found, broker):
            for msg_type in ("Aa", "BB", "", "ccc"):
                await sent(broker, msg_type.encode() or b"none", msg_type=msg_type)
            for wanted, got in ((["Aa"], [b"Aa"]), (["BB", "ccc"], [b"BB", b"ccc"]), (["zzz"], [])):
                group = "-".join(wanted)
                await broker.register(group, "orders", filters=wanted)
                assert await pulled(broker, group) == got
            assert found.nodes[0].duties.deliveries.status()["orders", 0, "zzz"].delivered == 5

    asyncio.run(run())


def test_t44_filters_read_of_the_data_little_but_what_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is not in memory any more: headers first, then what may be wanted. "Aa" has the hash of "BB"."""
    monkeypatch.setattr("tests.topics.actors.TAIL_BYTES", 1)

    def produce(found: TopicActors) -> None:
        with found.cluster.connect(space="orders") as client:
            for number in range(100):
                for msg_type, datas in (("other", [bytes(1000)] * 199), ("BB", [b"%03d" % number + bytes(1000)])):
                    records = encode_messages(datas, msg_type, 0, 0)
                    client.append_many(0, records, header_of_type(msg_type)).result()
            client.append_many(0, encode_messages([bytes(1000)] * 2, "Aa", 0, 0), header_of_type("Aa")).result()

    async def run() -> None:
        async with one_slot() as (found, broker):
            await asyncio.to_thread(produce, found)
            partition, read = found.nodes[0].topics["orders"].partitions[0], list[int]()
            original = partition.read

            async def counted(first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
                batch = await original(first_id, end_id, max_bytes)
                read.append(batch.size_bytes)
                return batch

            partition.read = counted  # type: ignore[method-assign]
            await found.until(lambda: partition.end > 20_000)
            await broker.register("g", "orders", filters=["BB"])
            got: list[bytes] = []
            while len(got) < 100:
                got += [each[:3] for each in await pulled(broker)]
            assert got == [b"%03d" % number for number in range(100)]
            assert await pulled(broker) == []
            assert sum(read) < 0.05 * 20_000 * 1000

    asyncio.run(run())


def test_t44_a_filter_goes_on_where_nothing_is_wanted_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.topics.actors.TAIL_BYTES", 1)
    monkeypatch.setattr("waltz_ray.topics.serving.header_window._HEADERS", 7)

    async def run() -> None:
        async with one_slot() as (_, broker):
            for number in range(30):
                await sent(broker, b"%d" % number, msg_type="a" if number % 10 == 9 else "b")
            await broker.register("g", "orders", filters=["a"])
            got: list[bytes] = []
            while len(got) < 3:
                got += await pulled(broker)
            assert got == [b"9", b"19", b"29"]
            assert await pulled(broker) == []

    asyncio.run(run())


def test_t28_several_pulls_and_one_confirm() -> None:
    async def run() -> None:
        async with one_slot() as (found, broker):
            await broker.register("g", "orders")
            for data in (b"a", b"b", b"c"):
                await sent(broker, data)
                assert await pulled(broker, by_hand=True) == [data]
            assert found.offsets.items[KEY].offset in (-1, 0, 1)
            assert (await broker.confirm("g", "orders")).number(4) == 4
            assert found.offsets.items[KEY].offset == 4

    asyncio.run(run())


def test_t27_who_vanishes_leaves_what_was_not_confirmed_to_the_next() -> None:
    async def run() -> None:
        async with one_slot() as (found, broker):
            deliveries = found.nodes[0].duties.deliveries
            begun = deliveries.now_ms()
            now = begun
            deliveries.now_ms = lambda: now
            await sent(broker, b"a")
            await broker.register("g", "orders", "one")
            assert await pulled(broker) == [b"a"]
            assert await pulled(broker) == [], "which confirms"
            await sent(broker, b"b")
            assert await pulled(broker) == [b"b"]
            now = begun + 29_000
            assert (await broker.register("g", "orders", "two")).code == 410
            now = begun + 60_000
            assert (await broker.register("g", "orders", "two")).code == 200
            assert await pulled(broker, "g", "two") == [b"b"]
            assert (await broker.confirm("g", "orders", "one")).code == 412

    asyncio.run(run())


def test_a_clock_that_is_set_ends_no_lease_and_counts_for_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    set_ns = 0
    clock = SimpleNamespace(time_ns=lambda: time.time_ns() + set_ns, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(deliveries_module, "time", clock)
    eighty_years_ns = 80 * 365 * 86_400 * 1_000_000_000

    async def run() -> None:
        nonlocal set_ns
        async with one_slot() as (_, broker):
            await broker.register("g", "orders", "one")
            for ahead_ns in (3_600_000_000_000, eighty_years_ns, 0, -eighty_years_ns // 2):
                set_ns = ahead_ns
                reply = await broker.produce("orders", b"a")
                assert abs(reply.number(6) - clock.time_ns() // 1_000_000) < 60_000, "when it was appended"
                assert await pulled(broker) == [b"a"], "who has it has it still"
                assert (await broker.register("g", "orders", "two")).code == TopicCode.PARTITION_OCCUPIED

    asyncio.run(run())


def test_a_group_goes_on_where_it_was_when_its_slot_moves() -> None:
    async def run() -> None:
        async with actors(2) as found:
            await found.create("orders", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            broker = await found.broker(1)
            await sent(broker, b"a", b"b")
            await broker.register("g", "orders")
            assert await pulled(broker) == [b"a", b"b"]
            assert (await broker.confirm("g", "orders")).code == 200
            found.arrange(lambda slot: 1, 1)
            await found.until_served(1)
            broker = await found.broker(1)
            assert (await broker.pull("g", "orders")).code == 411
            await broker.register("g", "orders", "another")
            await sent(broker, b"c")
            assert await pulled(broker, "g", "another") == [b"c"]
            kept = found.offsets.items[KEY]
            assert (kept.epoch, kept.actor, kept.slot_epoch) == (2, 1, found.places[1].epoch)

    asyncio.run(run())


def test_a_zombies_confirm_is_refused() -> None:
    """Actor 0 believes that it serves the slot; actor 1 does, and its consumer has taken the offset."""

    async def run() -> None:
        async with actors(2) as found:
            await found.create("orders", 1)
            found.arrange(lambda slot: 0, 1)
            await found.until_served(1)
            old = await found.broker(1)
            await sent(old, b"a", b"b")
            await old.register("g", "orders", "asleep")
            assert await pulled(old, "g", "asleep") == [b"a", b"b"]
            partition = found.nodes[0].topics["orders"].of_slot(1)
            assert partition is not None
            partition.fold.fold = lambda batch: None  # type: ignore[method-assign]
            del found.incarnations[0]
            found.tell_members(0)
            found.arrange(lambda slot: 1, 1, but=(0,))
            await found.until(lambda: found.serves(1, "orders", 1))
            new = await found.broker(1)
            await new.register("g", "orders", "awake")
            before = found.offsets.items[KEY]
            fenced = await old.confirm("g", "orders", "asleep")
            assert fenced.code == 301
            assert found.offsets.items[KEY] == before
            again = await old.register("g", "orders", "asleep")
            assert (again.code, "newer epoch" in again.why) == (503, True)
            assert found.offsets.items[KEY] == before
            assert await pulled(new, "g", "awake") == [b"a", b"b"]

    asyncio.run(run())


def test_offsets_that_are_away_hold_nobody_up_and_lose_nothing() -> None:
    async def run() -> None:
        async with one_slot() as (found, broker):
            await sent(broker, b"a")
            await broker.register("g", "orders")
            assert await pulled(broker) == [b"a"]
            found.offsets.away = True
            assert (await broker.confirm("g", "orders")).code == 503
            assert (await broker.register("other", "orders")).code == 503
            found.offsets.away = False
            assert await pulled(broker) == []
            assert found.offsets.items[KEY] == OffsetItem(2, 1, found.places[1].epoch, 0)

    asyncio.run(run())


def test_what_is_not_in_memory_is_read_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """And in the order it is in, whatever the pieces."""
    monkeypatch.setattr("tests.topics.actors.TAIL_BYTES", 1)

    async def run() -> None:
        async with one_slot(most_bytes=1 << 20) as (_, broker):
            datas = [bytes([number]) * 9000 for number in range(200)]
            await asyncio.gather(*(sent(broker, data) for data in datas))
            await broker.register("g", "orders")
            got: list[bytes] = []
            while len(got) < len(datas):
                batch = await pulled(broker)
                assert 1 <= len(batch) <= 117, "of at most 1 MB"
                got += batch
            assert sorted(got) == datas
            assert await pulled(broker) == []

    asyncio.run(run())


def test_t26_a_group_that_was_further_than_the_log_is_goes_on_at_its_end() -> None:
    """As in a cluster restored from a backup, which has the offsets of a little later than the messages."""

    async def run() -> None:
        async with one_slot() as (found, broker):
            await sent(broker, b"a")
            found.offsets.items[KEY] = OffsetItem(9, 1, 0, 0)
            registered = await broker.register("g", "orders")
            assert (registered.number(4), registered.number(5)) == (2, 2)
            assert found.offsets.items[KEY].offset == 2
            await sent(broker, b"b", b"c")
            assert await pulled(broker) == [b"b", b"c"]
            assert await pulled(broker) == []
            assert found.offsets.items[KEY].offset == 4

    asyncio.run(run())


async def more_than_is_folded(found: TopicActors, last: int) -> tuple[list[int], Callable[[], Awaitable[None]]]:
    """(where three messages behind ``last`` are, of which the slot does not know; what lets it know them)."""
    partition = found.nodes[0].topics["orders"].partitions[0]
    await found.until(lambda: partition.end > last)
    held: list[RecordBatch] = []
    folded = partition.fold.fold
    partition.fold.fold = held.append  # type: ignore[method-assign, assignment]
    with found.cluster.connect(space="orders") as client:
        ends = [await asyncio.to_thread(client.append(0, b"\x02").result, 10) for _ in range(3)]

    async def fold() -> None:
        await found.until(lambda: sum(map(len, held)) >= 3)
        for batch in held:
            folded(batch)

    return ends, fold


def test_t26_a_group_further_than_what_is_known_of_the_log_waits() -> None:
    """It is the actor that is behind, not the log: nothing is set back."""

    async def run() -> None:
        async with one_slot() as (found, broker):
            numbers = await sent(broker, b"a")
            ends, fold = await more_than_is_folded(found, numbers[0])
            found.offsets.items[KEY] = OffsetItem(ends[-1] + 1, 1, 0, 0)
            waiting = await broker.register("g", "orders")
            assert (waiting.code, "not known here yet" in waiting.why) == (503, True)
            assert found.offsets.items[KEY].offset == ends[-1] + 1
            await fold()
            assert (await broker.register("g", "orders")).number(4) == ends[-1] + 1

    asyncio.run(run())


def test_who_has_read_more_than_is_known_of_the_log_keeps_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a move of the log's server, when the consumer's feed is back before the actor's."""
    monkeypatch.setattr(slot_partition, "_SETTLED_S", 0.01)

    async def run() -> None:
        async with one_slot() as (found, broker):
            numbers = await sent(broker, b"a")
            await broker.register("g", "orders")
            ends, fold = await more_than_is_folded(found, numbers[0])

            async def said(offset: int) -> int:
                told = ProgressRequestC2B("one", "g", "orders", 0, offset, 0)
                return (await asyncio.wait_for(broker.ask(*encode_request(told)), LIMIT_S)).code

            assert await said(ends[-1] + 1) == TopicCode.UNAVAILABLE
            assert await said(ends[-1] + 2) == TopicCode.BAD_REQUEST, "which is not in the log either"
            assert found.offsets.items[KEY].offset <= numbers[0]
            await fold()
            assert await said(ends[-1] + 1) == TopicCode.OK
            assert found.offsets.items[KEY].offset == ends[-1] + 1

    asyncio.run(run())


def test_t30_where_a_group_is_to_go_on_may_be_known_to_the_log_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_partition, "_SETTLED_S", 0.01)

    async def run() -> None:
        async with one_slot() as (found, broker):
            numbers = await sent(broker, b"a")
            ends, fold = await more_than_is_folded(found, numbers[0])
            waiting = await broker.register("g", "orders", offset=ends[-1] + 1)
            assert (waiting.code, "not known here yet" in waiting.why) == (503, True)
            assert (await broker.register("g", "orders", offset=ends[-1] + 2)).code == 400
            monkeypatch.setattr(slot_partition, "_SETTLED_S", LIMIT_S)
            taking = asyncio.ensure_future(broker.register("g", "orders", offset=ends[-1] + 1))
            partition = found.nodes[0].topics["orders"].partitions[0]
            await found.until(lambda: bool(partition.fold._waiting))
            await fold()
            assert (await taking).number(4) == ends[-1] + 1

    asyncio.run(run())


def test_what_was_trimmed_is_passed_over() -> None:
    async def run() -> None:
        async with one_slot() as (found, broker):
            numbers = await sent(broker, b"a", b"b", b"c")
            await asyncio.to_thread(found.cluster.trim, 0, numbers[1], "orders")
            assert (await broker.register("g", "orders")).number(4) == numbers[1]
            assert await pulled(broker) == [b"b", b"c"]

    asyncio.run(run())


def test_ownership_is_never_delivered_and_what_is_no_message_is_passed_over() -> None:
    async def run() -> None:
        async with one_slot() as (found, broker):
            await sent(broker, b"a")
            with found.cluster.connect(space="orders") as client:
                for data in (b"", b"somebody's", b"\x01\x00cut"):
                    await asyncio.to_thread(client.append(0, data, OWNERSHIP_HEADER).result, 10)
            await sent(broker, b"b")
            await broker.register("g", "orders")
            got: list[bytes] = []
            for _ in range(2):
                got += await pulled(broker)
            assert got == [b"a", b"b"]

    asyncio.run(run())


def test_a_pull_waits_for_a_moment_and_is_answered_when_something_comes() -> None:
    async def run() -> None:
        async with one_slot(hold_s=10.0) as (_, broker):
            await broker.register("g", "orders")
            answer = asyncio.ensure_future(pulled(broker))
            await sent(broker, b"a")
            assert await answer == [b"a"]

    asyncio.run(run())


def test_t25_a_pull_that_was_given_up_takes_nothing() -> None:
    """Its client has lost the connection while it was held back: what it brought would be lost, and be confirmed."""

    async def run() -> None:
        async with one_slot(hold_s=10.0) as (found, broker):
            assert (await broker.register("g", "orders")).code == 200
            _, lost = broker.send(17, {1: text("one"), 2: 0, 3: text("g"), 4: text("orders"), 5: 1, 6: 1})
            assert (await broker.beat("g", [])).code == 200, "it has come before this"
            again = await found.broker(1)
            _, held = again.send(17, {1: text("one"), 2: 0, 3: text("g"), 4: text("orders"), 5: 1, 6: 1})
            assert broker._answer(await lost, 17).code == 404
            await sent(broker, b"a")
            assert payloads_of(again._answer(await held, 17)) == [b"a"]

    asyncio.run(run())


def test_t25_what_a_connection_brings_late_is_not_done() -> None:
    """Neither a pull, which would bring what nobody gets, nor a confirm of what was delivered since."""

    async def run() -> None:
        async with one_slot() as (found, broker):
            await sent(broker, b"a", b"b")
            assert (await broker.register("g", "orders")).code == 200
            again = await found.broker(1)
            assert payloads_of(await again.pull("g", "orders", by_hand=True)) == [b"a", b"b"]
            await sent(broker, b"c")
            assert (await broker.pull("g", "orders", by_hand=True)).code == 400
            assert (await broker.confirm("g", "orders")).code == 400
            assert found.offsets.items[KEY].offset == 0
            assert (await again.confirm("g", "orders")).number(4) == 3
            assert payloads_of(await again.pull("g", "orders", by_hand=True)) == [b"c"]
            assert (await broker.register("g", "orders", "two")).code == 410, "another consumer is not meant"

    asyncio.run(run())


def test_what_a_reader_says_late_of_what_it_has_read_is_not_confirmed() -> None:
    """An operator has set the group back since, and the reader has registered again, over another connection."""

    async def run() -> None:
        async with one_slot() as (found, broker):
            await sent(broker, b"a", b"b", b"c")
            assert (await broker.register("g", "orders")).code == 200
            again = await found.broker(1)
            assert (await again.register("g", "orders")).number(4) == 0
            late = encode_request(ProgressRequestC2B("one", "g", "orders", 0, 3, 0))
            assert (await broker.ask(*late)).code == TopicCode.BAD_REQUEST
            assert found.offsets.items[KEY].offset == 0
            assert (await again.ask(*late)).code == 200
            assert found.offsets.items[KEY].offset == 3

    asyncio.run(run())


def test_what_a_reader_says_before_it_registers_again_is_not_confirmed_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits until what was read is known here."""

    async def run() -> None:
        async with one_slot() as (found, broker):
            monkeypatch.setattr(slot_partition, "_SETTLED_S", 3600.0)
            (first,) = await sent(broker, b"a")
            assert (await broker.register("g", "orders")).code == 200
            _, waits = broker.send(*encode_request(ProgressRequestC2B("one", "g", "orders", 0, first + 2, 0)))
            assert (await broker.register("g", "orders")).number(4) == 0
            await sent(broker, b"b")
            assert broker._answer(await asyncio.wait_for(waits, LIMIT_S), 101).code == TopicCode.HB_NO_NODE
            assert found.offsets.items[KEY].offset == 0
            assert await pulled(broker) == [b"a", b"b"]

    asyncio.run(run())


def test_connections_of_many_who_ask_in_vain_are_forgotten() -> None:
    async def run() -> None:
        async with one_slot() as (found, broker):
            assert (await broker.register("g", "orders")).code == 200
            for number in range(100):
                assert (await broker.register("g", "orders", f"other-{number}")).code == 410
            partition = found.nodes[0].topics["orders"].partitions[0]
            delivery = found.nodes[0].duties.deliveries.of("orders", partition, "g")
            assert delivery is not None
            assert len(delivery._connections) <= 64

    asyncio.run(run())


def test_what_was_read_far_beyond_the_end_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has the partition is waited for, for a while; what a stranger says is not."""

    async def run() -> None:
        async with one_slot() as (found, broker):
            await sent(broker, b"a")
            await broker.register("g", "orders")
            fold = found.nodes[0].topics["orders"].partitions[0].fold

            async def said(consumer: str) -> int:
                told = ProgressRequestC2B(consumer, "g", "orders", 0, 1 << 60, 0)
                return (await asyncio.wait_for(broker.ask(*encode_request(told)), LIMIT_S)).code

            monkeypatch.setattr(slot_partition, "_SETTLED_S", 3600.0)
            assert await said("stranger") == TopicCode.DUPLICATE_PARTITION
            monkeypatch.setattr(slot_partition, "_SETTLED_S", 0.01)
            assert await said("one") == TopicCode.BAD_REQUEST
            assert fold._waiting == []

    asyncio.run(run())
