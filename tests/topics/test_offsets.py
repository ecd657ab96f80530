"""Where groups are, in a key/value space: who has taken an offset last may move it, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.kv.fake_cluster import FakeKvCluster
from waltz_ray.errors import BadPayload, InvalidInput, KvNotReady
from waltz_ray.kv import AsyncKvClient
from waltz_ray.kv.routing import fnv1a_32
from waltz_ray.topics.offset_item import OffsetItem, decode_offset, encode_offset, named_offset, offset_name
from waltz_ray.topics.serving.offsets import KvOffsets, OffsetPlace, OffsetsAway, TakenOffset

NAME = offset_name("g", "orders", 3)
MINE, OTHERS = OffsetPlace("g", "orders", 3, 0, 5), OffsetPlace("g", "orders", 3, 1, 6)


def over(work: Callable[[FakeKvCluster, AsyncKvClient], Coroutine[Any, Any, None]]) -> None:
    async def run(cluster: FakeKvCluster) -> None:
        async with AsyncKvClient(cluster.place()) as items:
            await work(cluster, items)

    with FakeKvCluster(2) as cluster:
        asyncio.run(run(cluster))


def test_an_offset_is_taken_stored_and_there_for_the_next() -> None:
    async def work(_: FakeKvCluster, items: AsyncKvClient) -> None:
        offsets = KvOffsets(items)
        assert await offsets.take(MINE) == TakenOffset(None, 1)
        assert await offsets.store(MINE, 10, 1, 0)
        assert await offsets.store(MINE, 12, 1, 4)
        assert await offsets.take(MINE) == TakenOffset(12, 2, 4)
        assert not await offsets.store(MINE, 13, 1, 0), "an epoch of before"
        assert await KvOffsets(items).take(OTHERS) == TakenOffset(12, 3, 4)
        assert decode_offset(await items.get(NAME)) == OffsetItem(12, 3, 6, 1, 4)

    over(work)


def test_a_zombie_can_neither_store_nor_take() -> None:
    async def work(_: FakeKvCluster, items: AsyncKvClient) -> None:
        zombie, owner = KvOffsets(items), KvOffsets(items)
        await zombie.take(MINE)
        assert await zombie.store(MINE, 10, 1, 0)
        assert await owner.take(OTHERS) == TakenOffset(10, 2)
        assert not await zombie.store(MINE, 11, 1, 0)
        assert await zombie.take(MINE) == OffsetsAway("actor 1 has the slot by a newer epoch")
        assert await owner.store(OTHERS, 12, 2, 0)
        assert decode_offset(await items.get(NAME)) == OffsetItem(12, 2, 6, 1)

    over(work)


def test_a_write_of_which_nothing_was_heard_is_found_again() -> None:
    """The write is in, its answer is lost: the next one is made on what is there, which is ours."""

    async def work(_: FakeKvCluster, items: AsyncKvClient) -> None:
        offsets = KvOffsets(items)
        await offsets.take(MINE)
        await items.set(NAME, encode_offset(OffsetItem(10, 1, 5, 0)))
        assert await offsets.store(MINE, 12, 1, 0)
        assert decode_offset(await items.get(NAME)).offset == 12

    over(work)


def test_it_says_that_no_group_can_begin_or_confirm_until_one_can_or_nobody_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []

    async def work(_: FakeKvCluster, items: AsyncKvClient) -> None:
        offsets, loop = KvOffsets(items), asyncio.get_running_loop()
        await offsets.take(MINE)
        told.append(offsets.trouble)

        async def fails(*_: object, **__: object) -> None:
            raise KvNotReady("nobody serves it")

        with monkeypatch.context() as away:
            away.setattr(items, "get_item", fails)
            assert isinstance(await offsets.take(MINE), OffsetsAway)
        told.append(offsets.trouble)
        with monkeypatch.context() as later:
            now = loop.time() + 31
            later.setattr(loop, "time", lambda: now)
            told.append(offsets.trouble)
        told.append(offsets.trouble)
        assert isinstance(await offsets.take(MINE), TakenOffset)
        told.append(offsets.trouble)

    over(work)
    why = "no group can begin or confirm: nobody serves it"
    assert told == ["", why, "", why, ""], "at first, then, when nobody has tried since, in time, and in the end"


@pytest.mark.parametrize("in_time", [True, False])
def test_a_late_end_of_a_write_takes_nothing_from_who_has_taken_the_offset_since(in_time: bool) -> None:
    """The slot has gone and come back to the same actor while the write was under way."""

    async def work(_: FakeKvCluster, items: AsyncKvClient) -> None:
        offsets = KvOffsets(items)
        await offsets.take(MINE)
        write, begun, late = offsets._write, asyncio.Event(), asyncio.Event()

        async def held_up(name: str, item: OffsetItem, version: int) -> int | None:
            offsets._write = write  # type: ignore[method-assign]
            at = await write(name, item, version) if in_time else None
            begun.set()
            await late.wait()
            return at if in_time else await write(name, item, version)

        offsets._write = held_up  # type: ignore[method-assign]
        storing = asyncio.create_task(offsets.store(MINE, 10, 1, 0))
        await begun.wait()
        taken = await offsets.take(MINE)
        assert isinstance(taken, TakenOffset)
        late.set()
        assert await storing == in_time
        assert await offsets.store(MINE, 12, taken.epoch, 0)
        assert decode_offset(await items.get(NAME)).offset == 12

    over(work)


def test_nobody_is_there_to_ask() -> None:
    async def work(cluster: FakeKvCluster, items: AsyncKvClient) -> None:
        offsets = KvOffsets(items, timeout_s=0.2)
        await offsets.take(MINE)
        bucket = fnv1a_32(NAME.encode()) & 15
        await asyncio.to_thread(cluster.move, bucket, -1)
        assert isinstance(await offsets.store(MINE, 1, 1, 0), OffsetsAway)
        assert isinstance(await offsets.take(MINE), OffsetsAway)
        await asyncio.to_thread(cluster.move, bucket, 0)
        assert await KvOffsets(items).take(MINE) == TakenOffset(None, 2)

    over(work)


def test_what_somebody_else_has_written_is_not_taken_for_an_offset() -> None:
    async def work(_: FakeKvCluster, items: AsyncKvClient) -> None:
        for wrong in (b"17", 17):
            await items.set(NAME, wrong)
            said = await KvOffsets(items).take(MINE)
            assert isinstance(said, OffsetsAway)
            assert "is no offset of a group" in said.reason

    over(work)


def test_names_and_bytes() -> None:
    assert named_offset(offset_name("a group", "orders", 12)) == ("a group", "orders", 12)
    item = OffsetItem(-1, 2, 3, 4, 5)
    assert encode_offset(item).hex() == "00" + "ff" * 8 + "00" * 7 + "02" + "00" * 7 + "0300000004" + "00" * 7 + "05"
    with pytest.raises(InvalidInput, match="480 bytes are the most"):
        offset_name("g" * 480, "orders", 0)
    with pytest.raises(BadPayload, match="no offset of a group"):
        decode_offset(b"")
    for name in ("g", "g\norders", "g\norders\nx", "a\ng\norders\n0"):
        with pytest.raises(BadPayload, match="no name of a group's offset"):
            named_offset(name)


def test_who_has_the_word_no_more_puts_nothing() -> None:
    """Also if he had it when he first asked, and others have written since."""

    async def work(_: FakeKvCluster, items: AsyncKvClient) -> None:
        old, new = KvOffsets(items), KvOffsets(items)
        assert "for others" in await old.put("g", "orders", 3, 5, lambda: False)
        assert await items.get(NAME) is None
        words = iter([True, False])
        original = old._read

        async def read_and_wait(name: str) -> tuple[OffsetItem, int]:
            found = await original(name)
            assert await new.put("g", "orders", 3, 9) == ""
            return found

        old._read = read_and_wait  # type: ignore[method-assign]
        assert "for others" in await old.put("g", "orders", 3, 5, lambda: next(words))
        assert decode_offset(await items.get(NAME)).offset == 9

    over(work)
