"""The model of the log: histories that one copy could have shown, and such that it could not."""

from __future__ import annotations

import math

import pytest

from tests.linearizability.log import (
    Append,
    Appended,
    Conflict,
    HighWater,
    LogCall,
    Mark,
    ReadFrom,
    Records,
    log_model,
    resolved,
)
from tests.linearizability.search import NotLinearizable, check


def call(begin: float, end: float, asked: Append | ReadFrom | HighWater, result: object) -> LogCall:
    return LogCall(0, asked, result, begin, end)  # type: ignore[arg-type]


A, B, C = (Append(data) for data in "abc")
LOCKED = Append("l", (1,), -1)

POSSIBLE = {
    "nothing": [],
    "one after the other": [call(0, 1, A, Appended(0)), call(2, 3, B, Appended(1)), call(4, 5, HighWater(), Mark(1))],
    "at the same time": [call(0, 3, A, Appended(1)), call(0, 3, B, Appended(0))],
    "of no known fate, and there": [call(0, 1, A, None), call(2, 3, B, Appended(1))],
    "of no known fate, and not there": [call(0, 1, A, None), call(2, 3, B, Appended(0))],
    "late": [call(0, 1, A, None), call(2, 3, B, Appended(0)), call(4, 5, ReadFrom(0), Records(("b", "a")))],
    "read while it is appended": [call(0, 9, A, Appended(0)), call(1, 2, HighWater(), Mark(-1))],
    "refused by a lock": [call(0, 1, A, Appended(0)), call(2, 3, LOCKED, Conflict(0))],
    "under a lock that others took before": [
        call(0, 1, LOCKED, Appended(0)),
        call(2, 3, Append("m", (1,), 0), Appended(1)),
        call(4, 5, Append("n", (2,), -1), Appended(2)),
    ],
}

IMPOSSIBLE = {
    "against the order of time": [call(0, 1, A, Appended(1)), call(2, 3, B, Appended(0))],
    "an ID twice": [call(0, 1, A, Appended(0)), call(0, 1, B, Appended(0))],
    "an ID that nobody has": [call(0, 1, A, Appended(0)), call(0, 1, B, Appended(2))],
    "lost": [call(0, 1, A, Appended(0)), call(2, 3, HighWater(), Mark(-1))],
    "others' data": [call(0, 1, A, Appended(0)), call(2, 3, ReadFrom(0), Records(("b",)))],
    "a stale read": [call(0, 1, A, Appended(0)), call(2, 3, B, Appended(1)), call(4, 5, ReadFrom(0), Records(("a",)))],
    "seen, and gone": [
        call(0, 9, A, None),
        call(1, 2, ReadFrom(0), Records(("a",))),
        call(3, 4, HighWater(), Mark(-1)),
    ],
    "twice": [call(0, 1, A, None), call(2, 3, ReadFrom(0), Records(("a", "a")))],
    "through a lock": [call(0, 1, LOCKED, Appended(0)), call(2, 3, Append("m", (1,), -1), Appended(1))],
    "refused for what is not there": [call(0, 1, A, Appended(0)), call(2, 3, LOCKED, Conflict(1))],
    "refused for what it knew": [call(0, 1, A, Appended(0)), call(2, 3, Append("m", (1,), 0), Conflict(0))],
    "refused, and there": [
        call(0, 1, C, Appended(0)),
        call(2, 3, LOCKED, Conflict(0)),
        call(4, 5, ReadFrom(0), Records(("c", "l"))),
    ],
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_what_one_copy_could_have_shown(name: str) -> None:
    assert check(resolved(POSSIBLE[name]), log_model()) >= 0


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_it_could_not(name: str) -> None:
    with pytest.raises(NotLinearizable):
        check(resolved(IMPOSSIBLE[name]), log_model())


def test_a_read_tells_the_fate_of_who_was_told_none() -> None:
    history = [call(0, 1, A, None), call(0, 1, B, None), call(2, 3, ReadFrom(1), Records(("a",)))]
    assert [(each.result, each.returned) for each in resolved(history)[:2]] == [(Appended(1), math.inf), (None, 1)]


def test_a_long_history_takes_a_step_for_about_each_call() -> None:
    history = [call(n, n + 5, Append(str(n)), Appended(n)) for n in range(1000)]
    assert check(history, log_model()) < 10_000
