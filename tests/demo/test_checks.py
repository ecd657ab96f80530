"""Each check of the demo fails when the rule it guards is broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from waltz_ray.demo.checks import Leg, SparkFacts, compare_spark, compare_tally, tally
from waltz_ray.demo.expectations import Expectations

EXPECTED = Expectations(
    flights=5,
    carrier_legs={"AA": 3, "UA": 2},
    carrier_miles={"AA": 600, "UA": 1500},
    tail_legs={"N1": 3, "N2": 1, "?UA7": 1},
)
LEGS: list[Leg] = [
    (0, "N1", 1, "AA", 100),
    (1, "N2", 1, "UA", 700),
    (2, "N1", 3, "AA", 300),
    (3, "N1", 2, "AA", 200),
    (4, "?UA7", 1, "UA", 800),
]
EVERY, NUMBERS, CARRIER_LEGS, MILES = (
    "log_every_flight_once",
    "log_leg_numbers",
    "log_legs_per_carrier",
    "log_miles_per_carrier",
)


def broken(legs: list[Leg]) -> set[str]:
    checks = compare_tally("log", tally(legs), EXPECTED)
    assert set(checks) == {EVERY, NUMBERS, CARRIER_LEGS, MILES}
    return {name for name, holds in checks.items() if not holds}


def test_right_in_any_order() -> None:
    assert broken(LEGS) == set()
    assert broken(LEGS[::-1]) == set()


@pytest.mark.parametrize(
    ("legs", "expected"),
    [
        (LEGS[:-1], {EVERY, NUMBERS, CARRIER_LEGS, MILES}),  # a missing flight
        ([*LEGS, LEGS[0]], {EVERY, NUMBERS, CARRIER_LEGS, MILES}),  # a duplicate
        ([*LEGS[:4], (3, "?UA7", 1, "UA", 800)], {EVERY}),  # one twice, another not at all
        ([*LEGS[:4], (5, "?UA7", 1, "UA", 800)], {EVERY}),  # a flight the CSV does not have
        ([*LEGS[:2], (2, "N1", 4, "AA", 300), *LEGS[3:]], {NUMBERS}),  # a gap: 1, 2, 4
        ([*LEGS[:2], (2, "N1", 2, "AA", 300), *LEGS[3:]], {NUMBERS}),  # the same number twice: what locks prevent
        ([*LEGS[:4], (4, "N3", 1, "UA", 800)], {NUMBERS}),  # a leg of another aircraft
        ([*LEGS[:4], (4, "?UA7", 1, "UA", 801)], {MILES}),
        ([*LEGS[:4], (4, "?UA7", 1, "AA", 800)], {CARRIER_LEGS, MILES}),
        ([], {EVERY, NUMBERS, CARRIER_LEGS, MILES}),
    ],
)
def test_broken_rule_fails_its_check(legs: list[Leg], expected: set[str]) -> None:
    assert broken(legs) == expected


def facts(
    transactions: int = 5,
    distinct: int = 5,
    miles: int = 1500,
    n1: tuple[int, int, int, int] = (3, 3, 1, 3),
    legs: int = 2,
) -> SparkFacts:
    return SparkFacts(
        transactions,
        distinct,
        {"AA": 3, "UA": legs},
        {"AA": 600, "UA": miles},
        {"N1": n1, "N2": (1, 1, 1, 1), "?UA7": (1, 1, 1, 1)},
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: facts(), set()),
        (lambda: facts(transactions=4), {"spark_every_flight_once"}),
        (lambda: facts(distinct=4), {"spark_every_flight_once"}),
        (lambda: facts(transactions=6), {"spark_every_flight_once"}),
        (lambda: facts(n1=(3, 3, 1, 4)), {"spark_leg_numbers"}),
        (lambda: facts(n1=(3, 2, 1, 3)), {"spark_leg_numbers"}),
        (lambda: facts(n1=(3, 3, 0, 2)), {"spark_leg_numbers"}),
        (lambda: facts(n1=(2, 2, 1, 2)), {"spark_leg_numbers"}),
        (lambda: facts(miles=1501), {"spark_miles_per_carrier"}),
        (lambda: facts(legs=3), {"spark_legs_per_carrier"}),
    ],
)
def test_spark_checks(make: Callable[[], SparkFacts], expected: set[str]) -> None:
    assert {name for name, holds in compare_spark(make(), EXPECTED).items() if not holds} == expected
