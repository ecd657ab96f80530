"""What a user of the log writes: a database derived from the log, callbacks that fill it, a transaction context.

The database is a cache of the log. ``AircraftBook.apply`` writes many transactions and the high-water mark in one SQL
transaction, so after a crash at any point the database is some prefix of each partition, the mark says which, and the
feed goes on behind it: nothing is skipped, nothing counted twice. SQLite runs with ``synchronous=NORMAL``: a power
failure may lose the last SQL transactions whole, mark included, and they are fed again.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from waltz_ray import Callbacks, Transaction, TransactionBuilder, TransactionContext
from waltz_ray.demo.flights import Flight, number_of_tail

__all__ = ["AircraftBook", "BookCallbacks", "FlightContext", "decode_leg", "encode_leg", "partition_of_tail"]

_TABLES = """
CREATE TABLE IF NOT EXISTS legs (
    partition INTEGER, transaction_id INTEGER, flight INTEGER, aircraft INTEGER, leg INTEGER, carrier TEXT,
    miles INTEGER, PRIMARY KEY (partition, transaction_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS aircraft (number INTEGER PRIMARY KEY, tail TEXT, legs INTEGER);
CREATE TABLE IF NOT EXISTS marks (partition INTEGER PRIMARY KEY, mark INTEGER);
"""


def encode_leg(flight: Flight, leg: int) -> bytes:
    """The data of a flight's transaction: compact JSON."""
    return json.dumps(flight._asdict() | {"leg": leg}, separators=(",", ":")).encode()


def decode_leg(data: bytes) -> tuple[Flight, int]:
    """Back from the data: the flight and its leg number."""
    values = json.loads(data)
    leg = int(values.pop("leg"))
    return Flight(**values), leg


def partition_of_tail(tail: str, partitions: int) -> int:
    """All flights of one aircraft are in one partition: locks are scoped to it."""
    return zlib.crc32(tail.encode()) % partitions


class AircraftBook:
    """The application's SQLite database. Written by one thread at a time, read by any."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._readers: list[sqlite3.Connection] = []
        self._local = threading.local()
        self._lock = threading.Lock()
        self._writer = self._open()
        self._writer.executescript(_TABLES)

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=30)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    def _reader(self) -> sqlite3.Connection:
        reader: sqlite3.Connection | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = self._open()
            with self._lock:
                self._readers.append(reader)
        return reader

    def legs_so_far(self, aircraft: int) -> int:
        """How many legs of the aircraft with this number have been applied."""
        found = self._reader().execute("SELECT legs FROM aircraft WHERE number = ?", (aircraft,)).fetchone()
        return int(found[0]) if found else 0

    def mark(self, partition_id: int) -> int:
        """ID of the last transaction applied, -1 = none."""
        found = self._reader().execute("SELECT mark FROM marks WHERE partition = ?", (partition_id,)).fetchone()
        return int(found[0]) if found else -1

    def apply(self, partition_id: int, transactions: Sequence[Transaction]) -> None:
        """Consecutive transactions of one partition and the new mark, all or nothing."""
        legs = []
        aircraft = []
        for transaction in transactions:
            flight, leg = decode_leg(transaction.data)
            number = number_of_tail(flight.tail)
            legs.append(
                (partition_id, transaction.transaction_id, flight.row, number, leg, flight.carrier, flight.miles)
            )
            aircraft.append((number, flight.tail, leg))
        with self._writer:  # commits, or rolls back on an exception
            self._writer.execute("BEGIN IMMEDIATE")
            self._writer.executemany("INSERT INTO legs VALUES (?, ?, ?, ?, ?, ?, ?)", legs)
            self._writer.executemany(
                "INSERT INTO aircraft VALUES (?, ?, ?) ON CONFLICT (number) DO UPDATE SET legs = excluded.legs",
                aircraft,
            )
            self._writer.execute(
                "INSERT INTO marks VALUES (?, ?) ON CONFLICT (partition) DO UPDATE SET mark = excluded.mark",
                (partition_id, transactions[-1].transaction_id),
            )

    def close(self) -> None:
        """Close every connection; no thread may use the book any more."""
        for connection in [self._writer, *self._readers]:
            connection.close()


def read_legs(path: Path) -> Iterator[tuple[int, str, int, str, int]]:
    """(row, tail, leg, carrier, miles) of everything a book has applied; for the comparison at the end."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        yield from connection.execute(
            "SELECT flight, tail, leg, carrier, miles FROM legs JOIN aircraft ON aircraft.number = legs.aircraft"
        )
    finally:
        connection.close()


class BookCallbacks(Callbacks):
    """Applies the feed to the book and remembers when commits were seen, to tell how long a failure was felt."""

    def __init__(self, book: AircraftBook) -> None:
        self._book = book
        self.errors: list[str] = []
        self.seen: dict[int, list[float]] = {}
        """Partition -> moments (``time.monotonic``, one clock for all processes of a machine) with new commits."""

    def client_high_water_mark(self, partition_id: int) -> int:
        return self._book.mark(partition_id)

    def apply_transaction(self, transaction: Transaction) -> None:
        self.apply_transactions(transaction.partition_id, [transaction])

    def apply_transactions(self, partition_id: int, transactions: Sequence[Transaction]) -> None:
        self.seen.setdefault(partition_id, []).append(time.monotonic())
        self._book.apply(partition_id, transactions)

    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        self.errors.append(f"partition {partition_id}, transaction {transaction_id}: {error!r}")


class FlightContext(TransactionContext):
    """One flight becomes the next leg of its aircraft.

    ``execute`` reads how many legs the aircraft has; another client may be doing the same now. The write lock makes
    the log refuse whoever has not seen the other's leg, and the client runs ``execute`` again when it has.
    """

    def __init__(self, book: AircraftBook, flight: Flight, done: Callable[[BaseException | None], None]) -> None:
        self._book = book
        self._flight = flight
        self._done = done

    def partition_id(self, partitions: int) -> int:
        return partition_of_tail(self._flight.tail, partitions)

    def execute(self, builder: TransactionBuilder) -> bool:
        number = number_of_tail(self._flight.tail)
        leg = self._book.legs_so_far(number) + 1
        builder.header = leg
        builder.data = encode_leg(self._flight, leg)
        builder.write_lock("aircraft", number)
        return True

    def on_completion(self, committed: bool) -> None:
        self._done(None if committed else RuntimeError(f"flight {self._flight.row} gave up"))

    def on_exception(self, error: BaseException) -> None:
        self._done(error)
