"""The application of the demo against a log in memory: books, marks, contexts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from waltz_ray.client.application import Transaction, TransactionBuilder
from waltz_ray.demo.application import AircraftBook, BookCallbacks, FlightContext, encode_leg, read_legs
from waltz_ray.demo.flights import Flight, number_of_tail
from waltz_ray.protocol.ids import LockId, ReqId

FLIGHT = Flight(0, "N14228", "UA", "1545", "EWR", "IAH", 1400)


class OneTransaction:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def req_id(self, index: int) -> ReqId:
        return ReqId(1, 1, 0, index)

    def data(self, index: int) -> bytes:
        return self._data

    def appended_at(self, index: int) -> datetime | None:
        return None


def transaction(transaction_id: int, data: bytes) -> Transaction:
    return Transaction(2, transaction_id, 0, OneTransaction(data), 0)


@pytest.fixture
def book(tmp_path: Path) -> Iterator[AircraftBook]:
    book = AircraftBook(tmp_path / "book.db")
    yield book
    book.close()


def test_legs_and_mark_move_together(book: AircraftBook, tmp_path: Path) -> None:
    assert (book.legs_so_far(number_of_tail("N14228")), book.mark(2)) == (0, -1)
    book.apply(2, [transaction(0, encode_leg(FLIGHT, 1)), transaction(1, encode_leg(FLIGHT._replace(row=9), 2))])
    assert (book.legs_so_far(number_of_tail("N14228")), book.mark(2)) == (2, 1)
    assert list(read_legs(tmp_path / "book.db")) == [(0, "N14228", 1, "UA", 1400), (9, "N14228", 2, "UA", 1400)]


def test_a_batch_is_applied_whole_or_not_at_all(book: AircraftBook) -> None:
    book.apply(2, [transaction(0, encode_leg(FLIGHT, 1))])
    with pytest.raises(ValueError, match="Expecting value"):
        book.apply(2, [transaction(1, encode_leg(FLIGHT, 2)), transaction(2, b"no JSON")])
    with pytest.raises(sqlite3.IntegrityError):  # ID 0 again
        book.apply(2, [transaction(1, encode_leg(FLIGHT, 2)), transaction(0, encode_leg(FLIGHT, 3))])
    assert (book.legs_so_far(number_of_tail("N14228")), book.mark(2)) == (1, 0)


def test_a_reopened_book_goes_on_behind_its_mark(tmp_path: Path) -> None:
    first = AircraftBook(tmp_path / "book.db")
    first.apply(2, [transaction(0, encode_leg(FLIGHT, 1))])
    first.close()
    second = AircraftBook(tmp_path / "book.db")
    callbacks = BookCallbacks(second)
    assert callbacks.client_high_water_mark(2) == 0
    callbacks.apply_transaction(transaction(1, encode_leg(FLIGHT, 2)))
    assert second.legs_so_far(number_of_tail("N14228")) == 2
    assert len(callbacks.seen[2]) == 1
    second.close()


def test_context_takes_the_next_leg_and_the_aircraft_lock(book: AircraftBook) -> None:
    outcomes: list[BaseException | None] = []
    context = FlightContext(book, FLIGHT, outcomes.append)
    book.apply(context.partition_id(4), [transaction(0, encode_leg(FLIGHT, 1))])
    builder = TransactionBuilder()
    assert context.execute(builder)
    assert builder.header == 2
    assert builder.data == encode_leg(FLIGHT, 2)
    assert builder.write_locks == [LockId("aircraft", number_of_tail("N14228"))]
    context.on_completion(True)
    context.on_completion(False)
    error = ValueError("no")
    context.on_exception(error)
    assert outcomes[0] is None
    assert "gave up" in str(outcomes[1])
    assert outcomes[2] is error
