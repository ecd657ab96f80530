"""Pauses between attempts: double, capped, spread by chance, first again after success."""

from __future__ import annotations

import pytest

from waltz_ray.net.backoff import Backoff


def test_pauses_double_up_to_the_longest_and_begin_again() -> None:
    backoff = Backoff(0.02, 0.1, spread=0.0)
    assert [backoff.next_s() for _ in range(5)] == [0.02, 0.04, 0.08, 0.1, 0.1]
    backoff.reset()
    assert backoff.next_s() == 0.02


@pytest.mark.parametrize(("drawn", "expected"), [(0.0, [0.5, 1.0, 1.5]), (1.0, [1.0, 2.0, 3.0])])
def test_chance_takes_up_to_a_share_of_each(drawn: float, expected: list[float]) -> None:
    backoff = Backoff(1.0, 3.0, uniform=lambda low, high: low + drawn * (high - low))
    assert [backoff.next_s() for _ in range(3)] == expected


def test_chance_is_drawn_for_each_pause_anew() -> None:
    backoff = Backoff(1.0, 1.0)
    assert len({backoff.next_s() for _ in range(20)}) > 1
