"""Frames of which only a part has come: they have to get on, and of all together only so much is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.actors.bench_server import Wire
from tests.actors.test_feed_pace import in_loop
from waltz_ray.net.half_frames import HalfFrame, HalfFrames
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.stream import GreetedStream
from waltz_ray.wire.framing import MAGIC_CLIENT, Hello, encode_frame, encode_hello, frame_header

STALL_MS = 60_000
LEAST = 60 * 1024


class Clock:
    """Stands for the loop's: a check is due when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due: list[Callable[[], None]] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", self.call_later)

    def call_later(self, delay: float, call: Callable[[], None], *arguments: Any) -> asyncio.TimerHandle:
        assert delay == STALL_MS / 1000
        self.due.append(call)
        return asyncio.TimerHandle(0, call, arguments, asyncio.get_running_loop())

    def strike(self) -> None:
        [call], self.due = self.due, []
        call()


class Side(GreetedStream):
    def __init__(self, shared: HalfFrames) -> None:
        super().__init__(MAGIC_CLIENT, (5,), 1 << 20, "test", Outgoing())
        self.half = HalfFrame(shared, self._greeted, self)
        self.frames: list[int] = []
        self.wire = Wire()
        self.wire.protocol = self
        self.connection_made(self.wire)
        self.data_received(encode_hello(Hello((5,), "test")))

    def on_frame(self, frame: memoryview) -> None:
        self.frames.append(len(frame))

    def on_turn_end(self) -> None:
        self.half.look()

    def release_input(self, why: str) -> None:
        if not self.reads:
            self.half.read_again()
        super().release_input(why)

    def on_closed(self, error: Exception) -> None:
        self.half.gone()

    def begin(self, came: int = 1) -> None:
        self.data_received(frame_header(MAGIC_CLIENT, 5, 1 << 20) + bytes(came))


def shared() -> HalfFrames:
    return HalfFrames(1 << 30, STALL_MS)


@pytest.mark.usefixtures("whole_turns")
@in_loop
async def test_whole_frames_set_no_clock_and_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    all_of_them = shared()
    clock, side = Clock(monkeypatch), Side(all_of_them)
    side.data_received(encode_frame(MAGIC_CLIENT, 5, bytes(10)) * 3)
    assert (side.frames, clock.due, all_of_them.used_bytes) == ([10] * 3, [], 0)


@in_loop
async def test_a_frame_that_gets_on_slowly_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, side = Clock(monkeypatch), Side(shared())
    side.begin(came=0)
    for _ in range((1 << 20) // LEAST):
        side.data_received(bytes(LEAST))
        clock.strike()
    side.data_received(bytes((1 << 20) % LEAST))
    assert side.frames == [1 << 20]
    assert not side.wire.ended
    clock.strike()
    assert clock.due == [], "nothing is waited for any more"


@in_loop
async def test_a_frame_that_gets_on_by_too_little_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, side = Clock(monkeypatch), Side(shared())
    side.begin()
    side.data_received(bytes(LEAST - 1))
    clock.strike()
    assert side.wire.ended == "aborted"


@in_loop
async def test_another_frame_is_no_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the one before strikes soon after it has begun."""
    clock, side = Clock(monkeypatch), Side(shared())
    side.begin()
    side.data_received(bytes((1 << 20) - 1))
    side.begin()
    clock.strike()
    open_still = not side.wire.ended
    assert open_still
    clock.strike()
    assert side.wire.ended == "aborted"


@in_loop
async def test_while_nothing_is_read_the_peer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, side = Clock(monkeypatch), Side(shared())
    side.begin()
    side.hold_input("test")
    clock.strike()
    clock.strike()
    side.release_input("test")
    clock.strike()
    open_still = not side.wire.ended
    assert open_still, "it has had no time since"
    clock.strike()
    assert side.wire.ended == "aborted"


@in_loop
async def test_of_too_much_the_frame_that_began_first_goes() -> None:
    all_of_them = HalfFrames(1000, STALL_MS)
    first, second, third = (Side(all_of_them) for _ in range(3))
    first.begin(300)
    second.begin(300)
    first.data_received(bytes((1 << 20) - 300))
    first.begin(300)  # which is younger than the second's now
    third.begin(500)
    assert [side.wire.ended for side in (first, second, third)] == ["", "aborted", ""]
    assert all_of_them.used_bytes == 800
    for side in (first, third):
        side.wire.abort()
    await asyncio.sleep(0)
    assert all_of_them.used_bytes == 0
