"""Log, SQLite and Spark against what the CSV says: one named yes or no each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from waltz_ray.demo.expectations import Expectations

__all__ = ["SparkFacts", "Tally", "compare_spark", "compare_tally", "tally"]

Leg = tuple[int, str, int, str, int]  # (row of the CSV, tail, leg number, carrier, miles)


@dataclass
class Tally:
    """One source of legs, counted."""

    transactions: int = 0
    rows: Counter[int] = field(default_factory=Counter)
    carrier_legs: Counter[str] = field(default_factory=Counter)
    carrier_miles: Counter[str] = field(default_factory=Counter)
    tail_legs: dict[str, list[int]] = field(default_factory=dict)

    @property
    def distinct_flights(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class SparkFacts:
    """What Spark computed. ``tails``: tail -> (legs, distinct leg numbers, lowest, highest)."""

    transactions: int
    distinct_flights: int
    carrier_legs: dict[str, int]
    carrier_miles: dict[str, int]
    tails: dict[str, tuple[int, int, int, int]]


def tally(legs: Iterable[Leg]) -> Tally:
    """The counts and sums of one source's flights."""
    counted = Tally()
    for row, tail, leg, carrier, miles in legs:
        counted.transactions += 1
        counted.rows[row] += 1
        counted.carrier_legs[carrier] += 1
        counted.carrier_miles[carrier] += miles
        counted.tail_legs.setdefault(tail, []).append(leg)
    return counted


def compare_tally(source: str, counted: Tally, expected: Expectations) -> dict[str, bool]:
    """The four checks of a source that holds every leg."""
    every_row = all(counted.rows[row] == 1 for row in range(expected.flights))
    dense = all(sorted(legs) == list(range(1, len(legs) + 1)) for legs in counted.tail_legs.values())
    legs_of = {tail: len(legs) for tail, legs in counted.tail_legs.items()}
    return {
        f"{source}_every_flight_once": every_row and counted.transactions == expected.flights,
        f"{source}_leg_numbers": dense and legs_of == expected.tail_legs,
        f"{source}_legs_per_carrier": dict(counted.carrier_legs) == expected.carrier_legs,
        f"{source}_miles_per_carrier": dict(counted.carrier_miles) == expected.carrier_miles,
    }


def compare_spark(facts: SparkFacts, expected: Expectations) -> dict[str, bool]:
    """The four checks of what Spark made of the feed.

    n legs with n distinct numbers of which the lowest is 1 and the highest n are the numbers 1..n.
    """
    dense = all(legs == distinct == high and low == 1 for legs, distinct, low, high in facts.tails.values())
    legs_of = {tail: legs for tail, (legs, *_) in facts.tails.items()}
    return {
        "spark_every_flight_once": facts.transactions == facts.distinct_flights == expected.flights,
        "spark_leg_numbers": dense and legs_of == expected.tail_legs,
        "spark_legs_per_carrier": facts.carrier_legs == expected.carrier_legs,
        "spark_miles_per_carrier": facts.carrier_miles == expected.carrier_miles,
    }
