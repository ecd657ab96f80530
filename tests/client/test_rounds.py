"""What a client sends to several partitions in one turn of its loop leaves together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.client.fake_server import FakeDirectory, FakeServer
from tests.client.test_aio import run
from waltz_ray.client import AsyncWaltzClient
from waltz_ray.client.rounds import Rounds
from waltz_ray.client.tcp import TcpTransport

PARTITIONS = 16


@pytest.fixture
def wide() -> Iterator[FakeServer]:
    """A server of many partitions."""
    with FakeServer(partitions=PARTITIONS) as running:
        yield running


class Loop:
    """Keeps what is posted until ``turn``; ``told`` is what has happened, in its order."""

    def __init__(self) -> None:
        self.posted: list[Callable[[], None]] = []
        self.told: list[str] = []
        self.rounds = Rounds(self.posted.append, self)

    def hold(self) -> None:
        self.told.append("hold")

    def let_go(self) -> None:
        self.told.append("let go")

    def look(self, name: str) -> Callable[[], None]:
        return partial(self.told.append, name)

    def turn(self) -> list[str]:
        """What happens in one turn."""
        posted, self.posted[:] = self.posted[:], []
        self.told.clear()
        for each in posted:
            each()
        return list(self.told)


def test_who_asks_in_one_turn_is_in_one_round() -> None:
    loop = Loop()
    for name in "abc":
        loop.rounds.ask(loop.look(name))
    assert len(loop.posted) == 1
    assert loop.turn() == ["hold", "a", "b", "c", "let go"]
    loop.rounds.ask(loop.look("d"))
    assert loop.turn() == ["d"]  # alone it is not held
    assert loop.turn() == []


def test_who_asks_in_a_round_is_in_the_next_one() -> None:
    loop = Loop()
    loop.rounds.ask(lambda: loop.rounds.ask(loop.look("later")))
    loop.rounds.ask(loop.look("now"))
    assert loop.turn() == ["hold", "now", "let go"]
    assert loop.turn() == ["later"]


def test_one_that_fails_keeps_nobody_else_from_being_looked_at() -> None:
    loop = Loop()

    def fail() -> None:
        raise AssertionError("a bug")

    for look in (loop.look("a"), fail, loop.look("b"), loop.look("c")):
        loop.rounds.ask(look)
    with pytest.raises(AssertionError, match="a bug"):
        loop.turn()
    assert loop.told == ["hold", "a", "let go"]
    assert loop.turn() == ["hold", "b", "c", "let go"]


def test_appends_to_many_partitions_leave_together(wide: FakeServer) -> None:
    async def test() -> None:
        directory = FakeDirectory(dict.fromkeys(range(PARTITIONS), wide))
        async with AsyncWaltzClient(directory, TcpTransport()) as client:
            await asyncio.gather(*[client.append(p, b"first") for p in range(PARTITIONS)])
            [connection] = wide.connections
            before = connection.pieces
            await asyncio.gather(*[client.append(p, b"x") for p in range(PARTITIONS)])
            assert connection.pieces - before <= 2  # sixteen, if each were sent by itself

    run(test)


def test_large_and_small_frames_of_one_turn_all_arrive(wide: FakeServer) -> None:
    async def test() -> None:
        directory = FakeDirectory(dict.fromkeys(range(PARTITIONS), wide))
        async with AsyncWaltzClient(directory, TcpTransport()) as client:
            datas = [bytes([n]) * (100_000 if n % 3 == 0 else 10) for n in range(4 * PARTITIONS)]
            places = [n % PARTITIONS for n in range(len(datas))]
            ids = await asyncio.gather(*[client.append(p, data) for p, data in zip(places, datas, strict=True)])
            found = [wide.logs[p].data()[i] for p, i in zip(places, ids, strict=True)]
            assert found == datas

    run(test)
