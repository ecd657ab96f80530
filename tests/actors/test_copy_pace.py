"""How fast a server copies to replicas that are behind: a clock is given, so nothing is waited for but once."""

from __future__ import annotations

import asyncio

import pytest

from waltz_ray.actors.copy_pace import CopyPace

MIB = 1 << 20


class Copying:
    """Copies of pieces, one after the other, each as soon as it may be read; ``now_s`` is the clock."""

    def __init__(self, rate: int) -> None:
        self.pace = CopyPace(rate)
        self.now_s = 1000.0  # of a loop that has run for long

    def copy(self, pieces: int, size_bytes: int, reading_s: float = 0.0) -> float:
        """How long all of it takes."""
        begin_s = self.now_s
        for _ in range(pieces):
            self.now_s += self.pace.pause_s(self.now_s)
            self.now_s += reading_s
            self.pace.copied(size_bytes, self.now_s)
        return self.now_s - begin_s


def test_no_limit_never_waits() -> None:
    assert Copying(0).copy(1000, 100 * MIB) == 0.0


def test_one_second_worth_is_had_at_once_and_the_rest_at_the_rate() -> None:
    copying = Copying(128 * MIB)
    assert copying.copy(32 + 1, 4 * MIB) == pytest.approx(0.0), "a second's worth, and the piece that passes it"
    assert copying.copy(320, 4 * MIB) == pytest.approx(10.0)


@pytest.mark.parametrize("size_bytes", [1, 1000, 4 * MIB, 300 * MIB])
def test_over_a_long_time_it_is_the_rate_whatever_the_pieces(size_bytes: int) -> None:
    rate = 100 * size_bytes
    took_s = Copying(rate).copy(10_000, size_bytes)
    assert 10_000 * size_bytes / took_s == pytest.approx(rate, rel=0.02)


def test_a_piece_that_is_larger_than_the_rate_is_paid_for_by_the_next() -> None:
    copying = Copying(MIB)
    assert copying.copy(1, 10 * MIB) == 0.0
    assert copying.pace.pause_s(copying.now_s) == pytest.approx(9.0)


def test_no_more_than_a_second_is_saved_up() -> None:
    copying = Copying(MIB)
    copying.copy(1, MIB)
    copying.now_s += 3600.0
    assert copying.copy(1, 4 * MIB) == 0.0
    assert copying.pace.pause_s(copying.now_s) == pytest.approx(3.0)


def test_a_disk_that_is_slower_than_the_rate_is_not_slowed_down() -> None:
    assert Copying(128 * MIB).copy(100, MIB, reading_s=0.1) == pytest.approx(10.0)


def test_partitions_of_a_server_share_the_rate() -> None:
    pace, now_s, copied = CopyPace(MIB), 1000.0, [0, 0]
    for turn in range(200):
        now_s += pace.pause_s(now_s)
        pace.copied(MIB // 4, now_s)
        copied[turn % 2] += MIB // 4
    assert sum(copied) / (now_s - 1000.0) == pytest.approx(MIB, rel=0.03)


def test_who_waits_goes_on_when_its_time_has_come() -> None:
    async def run() -> float:
        loop, pace = asyncio.get_running_loop(), CopyPace(MIB)
        pace.copied(MIB + MIB // 20, loop.time())
        begin_s = loop.time()
        await pace.wait()
        pace.copied(0, loop.time())
        await pace.wait()
        return loop.time() - begin_s

    assert 0.04 < asyncio.run(run()) < 1.0
