"""The clock that deadlines go by."""

from __future__ import annotations

from waltz_ray.kv.serving.clock import SteadyClock

HOUR_MS = 3_600_000


class Machine:
    """Its two clocks."""

    def __init__(self) -> None:
        self.wall_ms, self.elapsed_s = 1_700_000_000_000.0, 50.0
        self.clock = SteadyClock(lambda: self.wall_ms, lambda: self.elapsed_s)

    def passes(self, seconds: float) -> int:
        self.wall_ms += 1000 * seconds
        self.elapsed_s += seconds
        return self.clock()


def test_it_follows_a_wall_clock_that_jumps_by_one_percent() -> None:
    machine = Machine()
    begin_ms = machine.clock()
    machine.wall_ms += HOUR_MS
    assert machine.passes(100) == begin_ms + 101_000
    machine.wall_ms -= 2 * HOUR_MS
    assert machine.passes(100) == begin_ms + 200_000, "and back, but never backwards"
    assert machine.passes(0) == begin_ms + 200_000


def test_it_is_never_earlier_than_what_was_decided_already() -> None:
    """A wall clock that was behind when the process began: time goes on from there, a bit slower, until they meet."""
    machine = Machine()
    begin_ms = machine.clock()
    assert machine.clock.at_least(begin_ms - 5) == 0
    assert machine.clock() == begin_ms
    assert machine.clock.at_least(begin_ms + HOUR_MS) == HOUR_MS
    assert machine.clock() == begin_ms + HOUR_MS
    assert machine.passes(100) == begin_ms + HOUR_MS + 99_000
    assert machine.passes(100 * 3600) - machine.wall_ms < 1
