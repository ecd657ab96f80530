"""What a group has still to consume, and what was trimmed before it came to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.topics.actors import TopicActors
from tests.topics.test_consuming import KEY, one_slot, pulled, sent
from waltz_ray.errors import Trimmed
from waltz_ray.topics.client.lag import Behind, behind, messages_end
from waltz_ray.topics.offset_item import OffsetItem


class Records:
    """``m``: a message, ``o``: who owns the partition; from ``first`` on."""

    def __init__(self, kinds: str, first: int = 0) -> None:
        self.kinds, self.first = kinds, first
        self.read_count = 0

    def read(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        if begin < self.first:
            raise Trimmed(0, begin, self.first)
        self.read_count += end - begin
        return ((number, b"\x01" if self.kinds[number] == "m" else b"\x02") for number in range(begin, end))


@pytest.mark.parametrize(
    ("kinds", "begin", "found"),
    [("", 0, 0), ("o", 0, 0), ("ooom", 0, 4), ("mooo", 0, 1), ("moooooo", 1, 1), ("mmoo", 1, 2), ("o" * 5000, 0, 0)],
)
def test_the_last_message_is_looked_for(kinds: str, begin: int, found: int) -> None:
    records = Records(kinds)
    assert messages_end(records.read, begin, len(kinds)) == found
    assert records.read_count <= len(kinds), "nothing is read twice"


def test_mostly_one_record_is_read() -> None:
    records = Records("m" * 1000)
    assert messages_end(records.read, 0, 1000) == 1000
    assert records.read_count == 1


def test_what_is_trimmed_meanwhile_is_passed_over() -> None:
    assert messages_end(Records("mmmmoooo", 3).read, 0, 8) == 4
    assert messages_end(Records("mmmmoooo", 6).read, 0, 8) == 6


@pytest.mark.parametrize(
    ("item", "first", "found"),
    [
        (OffsetItem(-1, 1, 1, 0), 0, Behind(6, 0)),
        (OffsetItem(-1, 1, 1, 0), 4, Behind(2, 0)),
        (OffsetItem(1, 1, 1, 0), 0, Behind(5, 0)),
        (OffsetItem(1, 1, 1, 0, 7), 4, Behind(2, 10)),
        (OffsetItem(6, 1, 1, 0), 0, Behind(0, 0)),
        (OffsetItem(8, 1, 1, 0), 0, Behind(0, 0)),
        (OffsetItem(2, 1, 1, 0), 8, Behind(0, 6)),
    ],
)
def test_behind(item: OffsetItem, first: int, found: Behind) -> None:
    assert behind(item, first, 8, Records("ommmmmoo", first).read) == found


async def lag(found: TopicActors) -> Behind:
    """As ``waltz topic lag`` has it."""
    records = await asyncio.to_thread(found.log_of, "orders", 0)
    first = records[0][0] if records else found.nodes[0].topics["orders"].partitions[0].end
    known = Records("", first)
    known.read = lambda begin, end: ((n, data) for n, _, data in records if begin <= n < end)  # type: ignore[method-assign]
    return behind(found.offsets.items[KEY], first, records[-1][0] + 1, known.read)


def test_an_empty_partition_has_no_lag_and_who_has_consumed_all_has_none() -> None:
    async def run() -> None:
        async with one_slot() as (found, broker):
            await broker.register("g", "orders")
            assert await lag(found) == Behind(0, 0)
            await sent(broker, b"a", b"b")
            assert await lag(found) == Behind(3, 0), "with the OWN before them"
            assert await pulled(broker) == [b"a", b"b"]
            assert await pulled(broker) == []
            assert await lag(found) == Behind(0, 0)

    asyncio.run(run())


def test_a_consumer_below_the_trim_mark_goes_on_and_its_loss_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.topics.actors.TAIL_BYTES", 1)

    async def run() -> None:
        async with one_slot() as (found, broker):
            numbers = await sent(broker, b"0", b"1")
            found.offsets.items[KEY] = OffsetItem(-1, 1, 0, 0, 5)  # another owner of the slot has counted those
            await broker.register("g", "orders")
            assert await pulled(broker) == [b"0", b"1"]
            assert await pulled(broker) == [], "which confirms"
            numbers += await sent(broker, *(b"%d" % number for number in range(2, 8)))
            await found.until(lambda: found.nodes[0].topics["orders"].partitions[0].end > numbers[-1])
            numbers += await sent(broker, b"8")  # a frame of its own, and the only one in memory
            await asyncio.to_thread(found.cluster.trim, 0, numbers[5], "orders")
            number = found.cluster._store.spaces.get("orders").first
            await asyncio.to_thread(found.cluster.move, number)  # its server had them in memory
            assert await lag(found) == Behind(4, 8), "2, 3 and 4 are gone"
            reply = await broker.pull("g", "orders")
            assert [part.number(1) for part in reply.parts(4)] == numbers[5:]
            assert reply.number(5) == numbers[5], "it is told where that is"
            assert (await broker.confirm("g", "orders")).code == 200
            assert await lag(found) == Behind(0, 8)
            assert found.offsets.items[KEY].lost == 8
            await sent(broker, b"9")
            await asyncio.to_thread(found.cluster.trim, 0, numbers[-1] + 2, "orders")
            again = await broker.register("g", "orders")
            assert again.number(4) == numbers[-1] + 2, "it registers anew below the mark"
            assert found.offsets.items[KEY].lost == 9

    asyncio.run(run())


def test_a_loss_that_is_not_stored_yet_counts_also_when_the_consumer_registers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.topics.actors.TAIL_BYTES", 1)

    async def run() -> None:
        async with one_slot() as (found, broker):
            numbers = await sent(broker, *(b"%d" % number for number in range(4)))
            await broker.register("g", "orders")
            await found.until(lambda: found.nodes[0].topics["orders"].partitions[0].end > numbers[-1])
            numbers += await sent(broker, b"4")  # a frame of its own, and the only one in memory
            await asyncio.to_thread(found.cluster.trim, 0, numbers[4], "orders")
            await asyncio.to_thread(found.cluster.move, found.cluster._store.spaces.get("orders").first)
            assert await lag(found) == Behind(1, 5), "with the OWN before them"
            assert await pulled(broker) == [b"4"]
            assert found.offsets.items[KEY].lost == 0, "nothing was confirmed"
            assert (await broker.register("g", "orders")).number(4) == numbers[4]
            assert await lag(found) == Behind(1, 5)
            assert found.offsets.items[KEY].lost == 5

    asyncio.run(run())
