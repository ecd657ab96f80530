"""When what the feed brings is folded: gathered, or at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from waltz_ray.client.subscription import FeedItem
from waltz_ray.errors import ProjectionFailed, Trimmed, ZooKeeperUnreachable
from waltz_ray.kv.model import BARRIER, ItemKey, Own, Record, Set
from waltz_ray.kv.records import encode_record
from waltz_ray.kv.routing import Unit
from waltz_ray.kv.serving import folding as module
from waltz_ray.kv.serving.folding import Folding, forget_what_is_lost
from waltz_ray.kv.serving.space_log import SpaceLog
from waltz_ray.kv.state import MemoryState
from waltz_ray.protocol.checksum import crc32
from waltz_ray.protocol.records import few_records

NEVER_S = 10_000.0


class OneFeed:
    """A log of one partition, whose feed is what the test says; also its subscription."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.used_frames = 0
        self.away = 0
        """So often ZooKeeper does not answer who wants to follow."""
        self.followed: list[tuple[Mapping[int, int], bool]] = []
        self.put: Callable[[FeedItem], None] = lambda item: None

    async def high_water_marks(self, partitions: int) -> dict[int, int]:
        return {0: self.end}

    async def follow(self, first_ids: Mapping[int, int], put: Callable[[FeedItem], None], earliest: bool) -> OneFeed:
        if self.away:
            self.away -= 1
            raise ZooKeeperUnreachable("ZooKeeper is away")
        self.followed.append((first_ids, earliest))
        self.put = put
        return self

    async def unfollow(self, subscription: OneFeed) -> None:
        pass

    def used(self, item: FeedItem) -> None:
        self.used_frames += 1


class Folded:
    """A state that is fed; ``pieces``: where its mark was after each."""

    def __init__(self, end: int = -1) -> None:
        self.feed = OneFeed(end)
        self.state = MemoryState()
        self.pieces: list[int] = []
        self.emptied: list[int] = []
        self._more = asyncio.Event()
        log = cast(SpaceLog, self.feed)
        self.folding = Folding(log, {0: self.state}, self._folded, lambda: None, self.emptied.append, self._failed)
        self._next_id = 0

    def _folded(self, partition: int, owners: Sequence[bytes]) -> None:
        self.pieces.append(self.state.mark)
        self._more.set()

    def _failed(self, error: ProjectionFailed) -> None:
        raise error

    def comes(self, *records: Record) -> None:
        """A frame."""
        datas = [encode_record(record) for record in records]
        rows: list[Any] = [(7, 0, number, 0, crc32(data), data) for number, data in enumerate(datas)]
        self.feed.put((few_records(0, self._next_id, rows), 100))
        self._next_id += len(records)

    async def piece(self) -> int:
        """The mark after the next piece."""
        self._more.clear()
        await asyncio.wait_for(self._more.wait(), 10)
        return self.pieces[-1]

    async def nothing(self) -> None:
        """Whatever is folded at once is."""
        before = len(self.pieces)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(self.pieces) == before


A_SET = Set(ItemKey(0, 1, b"a"), 4, b"v")
AN_OWN = Own(Unit(0xF, 0), 1, "incarnation", 1)


def run(test: Callable[[], Any]) -> None:
    asyncio.run(test())


def test_what_comes_within_a_moment_is_folded_together() -> None:
    async def together() -> None:
        folded = Folded()
        await folded.folding.start()
        for _ in range(3):
            folded.comes(A_SET)
        await folded.nothing()
        assert folded.feed.used_frames == 0
        assert await folded.piece() == 2
        assert folded.pieces == [2]
        assert folded.feed.used_frames == 3
        folded.comes(A_SET, A_SET)
        assert await folded.piece() == 4
        await folded.folding.stop()

    run(together)


def test_who_owns_what_is_folded_at_once_with_all_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GATHERED_S", NEVER_S)

    async def at_once() -> None:
        folded = Folded()
        await folded.folding.start()
        folded.comes(A_SET)
        folded.comes(BARRIER, AN_OWN)
        assert await folded.piece() == 2
        assert folded.state.ownership(AN_OWN.unit) is not None
        folded.comes(A_SET)
        await folded.nothing()
        await folded.folding.stop()

    run(at_once)


def test_what_somebody_waits_for_is_folded_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is before it: the next frame is not sent before that."""
    monkeypatch.setattr(module, "_GATHERED_S", NEVER_S)

    async def wanted() -> None:
        folded = Folded()
        await folded.folding.start()
        folded.comes(A_SET)
        folded.folding.wanted(0, 2)
        assert await folded.piece() == 0
        folded.comes(A_SET, A_SET)
        assert await folded.piece() == 2
        folded.comes(A_SET)
        folded.folding.wanted(0, 2)
        await folded.nothing()
        await folded.folding.stop()

    run(wanted)


def test_while_units_move_nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GATHERED_S", NEVER_S)

    async def hurried() -> None:
        folded = Folded()
        await folded.folding.start()
        folded.comes(A_SET)
        await folded.nothing()
        folded.folding.hurry()
        assert await folded.piece() == 0
        folded.comes(A_SET)
        assert await folded.piece() == 1
        await folded.folding.stop()

    run(hurried)


def test_much_is_folded_at_once_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GATHERED_S", NEVER_S)

    async def much() -> None:
        folded = Folded()
        await folded.folding.start()
        folded.comes(*[A_SET] * 700)
        folded.comes(*[A_SET] * 10)
        while folded.state.mark < 709:
            await folded.piece()
        assert folded.pieces == [499, 709]
        assert folded.feed.used_frames == 2
        await folded.folding.stop()

    run(much)


def test_until_it_is_at_the_end_of_the_log_nothing_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GATHERED_S", NEVER_S)

    async def behind() -> None:
        folded = Folded(end=1)
        await folded.folding.start()
        folded.comes(A_SET)
        assert await folded.piece() == 0
        folded.comes(A_SET)
        assert await folded.piece() == 1
        folded.comes(A_SET)
        await folded.nothing()
        await folded.folding.stop()

    run(behind)


def test_what_was_folded_already_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two frames of different mounts may overlap."""
    monkeypatch.setattr(module, "_GATHERED_S", 0.001)

    async def twice() -> None:
        folded = Folded()
        await folded.folding.start()
        folded.comes(A_SET, A_SET, A_SET)
        folded._next_id = 1
        folded.comes(A_SET, A_SET, A_SET)
        assert await folded.piece() == 3
        assert folded.feed.used_frames == 2
        await folded.folding.stop()

    run(twice)


def test_what_was_overtaken_is_folded_anew_also_if_zookeeper_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed's client has an ID from there. Losing ZooKeeper ends no service."""
    monkeypatch.setattr(module, "_AGAIN_S", 0.001)

    async def anew() -> None:
        folded = Folded()
        await folded.folding.start()
        folded.comes(AN_OWN, A_SET)
        assert await folded.piece() == 1
        folded.feed.away = 3
        folded.feed.put(Trimmed(0, 2, 40))
        while len(folded.feed.followed) < 2:
            await asyncio.sleep(0.001)
        assert folded.feed.followed == [({0: 0}, True)] * 2
        assert folded.emptied == [0]
        folded._next_id = 40
        folded.comes(AN_OWN)
        assert await folded.piece() == 40
        await folded.folding.stop()

    run(anew)


def test_a_bug_of_ours_ends_it_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames are gone by then: without a word the actor would serve what it has for ever."""
    told: list[str] = []

    def broken(transactions: object) -> None:
        raise TypeError("a bug")

    async def ends() -> None:
        state = MemoryState()
        monkeypatch.setattr(state, "apply", broken)
        feed = OneFeed(-1)
        folding = Folding(
            cast(SpaceLog, feed),
            {0: state},
            lambda *_: None,
            lambda: None,
            print,
            lambda error: told.append(str(error)),
        )
        errors: list[BaseException] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        await folding.start()
        data = encode_record(AN_OWN)
        feed.put((few_records(0, 0, [(7, 0, 0, 0, crc32(data), data)]), 100))
        for _ in range(10):
            await asyncio.sleep(0)
        assert [type(error) for error in errors] == [TypeError]
        await folding.stop()

    run(ends)
    assert told == ["partition 0 cannot be folded: TypeError('a bug'), a bug of this actor"]


def test_a_state_that_has_more_than_the_log_is_emptied() -> None:
    """What it has beyond that was lost with disks; the log has other transactions of these numbers, or will."""

    async def lost() -> None:
        datas = [encode_record(A_SET)] * 4
        kept, ahead = MemoryState(), MemoryState()
        kept.apply(enumerate(datas[:3]))
        ahead.apply(enumerate(datas))
        log = OneFeed(2)
        await forget_what_is_lost(cast(SpaceLog, log), {0: kept})
        assert kept.mark == 2
        await forget_what_is_lost(cast(SpaceLog, log), {0: ahead})
        assert ahead.mark == -1
        assert ahead.item(A_SET.key) is None

    run(lost)
