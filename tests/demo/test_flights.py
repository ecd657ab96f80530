from __future__ import annotations

from collections import Counter

import pytest

from waltz_ray.demo.application import decode_leg, encode_leg, partition_of_tail
from waltz_ray.demo.expectations import expect
from waltz_ray.demo.flights import FLIGHTS_IN_PACKAGE, Flight, flights_archive, number_of_tail, read_flights
from waltz_ray.errors import InvalidInput


def test_whole_package_agrees_with_the_independent_count() -> None:
    """Two readers that share no code: the pipeline's and the judge's."""
    tails: Counter[str] = Counter()
    miles: Counter[str] = Counter()
    last = -1
    for flight in read_flights():
        assert flight.row == last + 1
        last = flight.row
        tails[flight.tail] += 1
        miles[flight.carrier] += flight.miles
    expected = expect(flights_archive(), FLIGHTS_IN_PACKAGE)
    assert last + 1 == expected.flights == FLIGHTS_IN_PACKAGE
    assert dict(tails) == expected.tail_legs
    assert dict(miles) == expected.carrier_miles
    assert sum(count for tail, count in tails.items() if tail.startswith("?")) == 2512
    numbers = {number_of_tail(tail) for tail in tails}
    assert len(numbers) == len(tails)
    assert max(numbers) < 1 << 63


def test_limit() -> None:
    assert [flight.row for flight in read_flights(3)] == [0, 1, 2]
    assert expect(flights_archive(), 3).flights == 3


def test_flight_without_a_tail_has_a_pseudo_aircraft() -> None:
    flight = next(flight for flight in read_flights() if flight.tail.startswith("?"))
    assert flight.tail == f"?{flight.carrier}{flight.flight}"


@pytest.mark.parametrize(("one", "other"), [("A", "0A"), ("0", "00"), ("N1", "N10"), ("?AA1", "AA1")])
def test_different_tails_have_different_numbers(one: str, other: str) -> None:
    assert number_of_tail(one) != number_of_tail(other)


@pytest.mark.parametrize("tail", ["", "n14228", "N 1", "N12345678901"])
def test_no_number_of_a_tail(tail: str) -> None:
    with pytest.raises(InvalidInput, match="is not the number of a tail"):
        number_of_tail(tail)


def test_data_round_trip() -> None:
    flight = Flight(7, "N14228", "UA", "1545", "EWR", "IAH", 1400)
    assert decode_leg(encode_leg(flight, 3)) == (flight, 3)
    assert 0 <= partition_of_tail(flight.tail, 4) < 4
