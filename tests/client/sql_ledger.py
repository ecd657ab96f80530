"""An application over SQLAlchemy for tests, and the process of one that applies what it is given."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert, update
from sqlalchemy.orm import Session

from waltz_ray import SQLAlchemyCallbacks, Transaction

__all__ = ["PATIENCE_S", "Ledger", "apply_all", "entries", "made", "metadata", "totals"]

PATIENCE_S = 20.0

metadata = MetaData()
entries = Table(
    "entries",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("data", String, nullable=False),
)
totals = Table("totals", metadata, Column("id", Integer, primary_key=True), Column("value", Integer, nullable=False))


class Ledger(SQLAlchemyCallbacks):
    """Each transaction is a row, and adds its number to a total: done twice, it would show."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.changed = threading.Condition()
        self.uncaught: list[tuple[int, BaseException]] = []
        self.calls: list[int] = []

    def apply(self, session: Session, transaction: Transaction) -> None:
        self.calls.append(transaction.transaction_id)
        session.execute(insert(entries).values(number=transaction.transaction_id, data=transaction.data.decode()))
        session.execute(update(totals).values(value=totals.c.value + transaction.transaction_id))

    def apply_transactions(self, partition_id: int, transactions: Sequence[Transaction]) -> None:
        super().apply_transactions(partition_id, transactions)
        with self.changed:
            self.changed.notify_all()

    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        with self.changed:
            self.uncaught.append((transaction_id, error))
            self.changed.notify_all()

    def wait_for_mark(self, mark: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.client_high_water_mark(0) >= mark, PATIENCE_S), self.uncaught

    def wait_for_trouble(self) -> tuple[int, BaseException]:
        with self.changed:
            assert self.changed.wait_for(lambda: bool(self.uncaught), PATIENCE_S)
        return self.uncaught[0]


def made(first_id: int, end_id: int) -> list[Transaction]:
    class Source:
        def req_id(self, index: int) -> Any:
            raise AssertionError

        def data(self, index: int) -> bytes:
            return b"%d" % index

        def appended_at(self, index: int) -> datetime | None:
            return None

    return [Transaction(0, number, 0, Source(), number) for number in range(first_id, end_id)]


def apply_all(url: str, count: int, gate: Any) -> None:
    engine = create_engine(url, connect_args={"timeout": 30} if url.startswith("sqlite") else {})
    ledger = Ledger(engine)
    gate.wait()
    for number in range(0, count, 3):
        ledger.apply_transactions(0, made(number, min(count, number + 3)))
    engine.dispose()
