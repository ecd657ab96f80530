"""``SQLAlchemyCallbacks``: a base class for applications that keep what they derive in an SQL database.

The client's high-water mark is a row of the same database, and moves in the same SQL transaction as the data::

    UPDATE waltz_marks SET transaction_id = :last WHERE partition_id = :p AND transaction_id = :first - 1

comes first. It locks the row, so of several processes on one database one applies and the others wait; a row count of
0 then says that somebody else has applied these already, and they go on from the database's mark. Whatever ends a
process or its connection, a commit without an answer among it: the mark says what is in the database.

Needs the extra ``sql``; the database's driver is the application's to choose.
"""

from __future__ import annotations

import logging
import re
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    CursorResult,
    Engine,
    Integer,
    MetaData,
    Table,
    delete,
    event,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.pool import SingletonThreadPool

from waltz_ray.client.application import Callbacks, Transaction
from waltz_ray.errors import ClientError, ConfigError, InvalidInput
from waltz_ray.protocol.ids import NO_TRANSACTION

__all__ = ["SQLAlchemyCallbacks"]

logger = logging.getLogger(__name__)

_ENDS_IT = re.compile(r"\s*(commit|rollback(?!\s+(work\s+|transaction\s+)?to\b)|abort|end)\b", re.IGNORECASE)


class SQLAlchemyCallbacks(Callbacks):
    """Subclass it and write ``apply``. Any number of processes may share a database; each transaction is applied once.

    With SQLite use a file, or for one in memory ``poolclass=StaticPool``: callbacks run on a thread of the client's.
    With several processes any isolation level will do that has transactions (AUTOCOMMIT has none); where it makes the
    database refuse (a serialization failure), the transactions are applied again, as after every error.
    """

    def __init__(self, engine: Engine, mark_table: str = "waltz_marks") -> None:
        """Makes the table of marks if it is not there. ConfigError if the engine cannot be used like that.

        ``mark_table``: another one for each application that derives something of its own from the same log.
        """
        _check(engine)
        self.engine = engine
        self._marks = Table(
            mark_table,
            MetaData(),
            Column("partition_id", Integer, primary_key=True, autoincrement=False),
            Column("transaction_id", BigInteger, nullable=False),
        )
        self._make_table()
        self._check_rollback()

    @abstractmethod
    def apply(self, session: Session, transaction: Transaction) -> None:
        """Apply one transaction. It is committed by the caller, with others and the mark; commit and rollback are
        refused (InvalidInput), savepoints (``session.begin_nested()``) are not.

        Whatever it raises: nothing of this transaction is in the database, ``uncaught_exception`` is told, and it is
        applied again after a pause.
        """

    def apply_many(self, session: Session, partition_id: int, transactions: Sequence[Transaction]) -> None:
        """Apply consecutive transactions of one partition; override to do many with few statements.

        As ``apply``, but when it raises they come again one at a time: those before the one that cannot be applied are.
        """
        for transaction in transactions:
            self.apply(session, transaction)

    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        """Log that a transaction was not applied. ``skip`` here gives a transaction up that can never be applied."""
        logger.error("partition %d: transaction %d was not applied: %s", partition_id, transaction_id, error)

    def skip(self, partition_id: int, transaction_id: int) -> None:
        """Move the mark to ``transaction_id`` without applying it. InvalidInput if that is not the next one."""
        with self.engine.begin() as connection:
            if not self._move(connection, partition_id, transaction_id - 1, transaction_id):
                raise InvalidInput(
                    f"partition {partition_id}: transaction {transaction_id} is not the next to be applied"
                )

    # ---- Callbacks

    def client_high_water_mark(self, partition_id: int) -> int:
        """The mark of a partition in the database, -1 = none."""
        marks = self._marks
        with self.engine.connect() as connection:
            mark = connection.scalar(select(marks.c.transaction_id).where(marks.c.partition_id == partition_id))
        if mark is not None:
            return int(mark)
        row = insert(marks).values(partition_id=partition_id, transaction_id=NO_TRANSACTION)
        try:
            with self.engine.begin() as connection:
                connection.execute(row)
        except IntegrityError:  # another process was quicker
            return self.client_high_water_mark(partition_id)
        return NO_TRANSACTION

    def apply_transaction(self, transaction: Transaction) -> None:
        """Apply one transaction and move the mark."""
        self.apply_transactions(transaction.partition_id, [transaction])

    def apply_transactions(self, partition_id: int, transactions: Sequence[Transaction]) -> None:
        """Apply all that the database does not have yet, in one SQL transaction if nothing is wrong with them."""
        first_id, last_id = transactions[0].transaction_id, transactions[-1].transaction_id
        next_id = first_id
        while next_id <= last_id:
            rest = transactions if next_id == first_id else transactions[next_id - first_id :]
            if self._applied(partition_id, rest):
                return
            next_id = self.client_high_water_mark(partition_id) + 1
            if next_id < first_id:
                raise ClientError(
                    f"partition {partition_id}: the database's mark is {next_id - 1}, although {first_id - 1} was "
                    f"applied: it has been set back, and is brought up again from there"
                )

    def _applied(self, partition_id: int, transactions: Sequence[Transaction]) -> bool:
        """False: the database is not where they begin, and nothing was changed."""
        try:
            return self._applied_together(partition_id, transactions)
        except Exception as error:
            if len(transactions) == 1:
                raise
            # One that cannot be applied must not hold up those before it, and it is to be named.
            logger.info("partition %d: %d transactions go one by one: %s", partition_id, len(transactions), error)
            for transaction in transactions:
                self.apply_transactions(partition_id, [transaction])
            return True

    def _applied_together(self, partition_id: int, transactions: Sequence[Transaction]) -> bool:
        before, last_id = transactions[0].transaction_id - 1, transactions[-1].transaction_id
        with self._one_transaction() as session:
            if not self._move(session.connection(), partition_id, before, last_id):
                return False
            self.apply_many(session, partition_id, transactions)
            session.flush()
            self._check_mark(session, partition_id, last_id)
        return True

    def _move(self, connection: Connection, partition_id: int, before: int, after: int) -> bool:
        marks = self._marks
        found = update(marks).where(marks.c.partition_id == partition_id, marks.c.transaction_id == before)
        result: CursorResult[Any] = connection.execute(found.values(transaction_id=after))
        return result.rowcount == 1

    def _check_mark(self, session: Session, partition_id: int, last_id: int) -> None:
        """Or, where ``apply`` has caught a database's error, a COMMIT could be a ROLLBACK that nobody hears of."""
        marks = self._marks
        mark = session.scalar(select(marks.c.transaction_id).where(marks.c.partition_id == partition_id))
        if mark != last_id:
            raise InvalidInput(f"partition {partition_id}: apply() has ended the SQL transaction, or changed the mark")

    @contextmanager
    def _one_transaction(self) -> Iterator[Session]:
        """Committed at the end if something was changed; nobody inside can do it before."""
        with self.engine.connect() as connection:
            transaction = connection.begin()
            guard, session = _Guard(connection), _GuardedSession(connection)
            try:
                yield session
            except BaseException:
                guard.open()
                if transaction.is_active:
                    transaction.rollback()
                elif not connection.invalidated:
                    # A refused commit or rollback: to SQLAlchemy it is over, and the pool would not roll it back.
                    self.engine.dialect.do_rollback(connection.connection)
                raise
            else:
                guard.open()
                transaction.commit()
            finally:
                session.leave()

    def _make_table(self) -> None:
        try:
            self._marks.create(self.engine, checkfirst=True)
        except DBAPIError:
            if not inspect(self.engine).has_table(self._marks.name):  # else another process was quicker
                raise

    def _check_rollback(self) -> None:
        """ConfigError if a statement is committed at once: the mark would move although ``apply`` fails.

        Tried out, since an engine, its options, a driver's own (sqlite3: ``autocommit=True``) and a kind of table can
        be so, and SQLAlchemy does not know of all.
        """
        partition_id = -1 - secrets.randbelow(1 << 31)  # nobody's, and another one for each process that tries it now
        marks = self._marks
        with self.engine.connect() as connection:
            connection.execute(insert(marks).values(partition_id=partition_id, transaction_id=NO_TRANSACTION))
            connection.rollback()
        with self.engine.begin() as connection:
            if connection.scalar(select(marks.c.transaction_id).where(marks.c.partition_id == partition_id)) is None:
                return
            connection.execute(delete(marks).where(marks.c.partition_id == partition_id))
        raise ConfigError(
            f"{self.engine.url!r} commits each statement at once and cannot roll it back (AUTOCOMMIT); use an engine "
            "with transactions, or data and mark would not be one"
        )


class _GuardedSession(Session):
    """The application's: what would end the SQL transaction is refused with what to do instead."""

    def commit(self) -> NoReturn:
        _refuse("commit")

    def rollback(self) -> NoReturn:
        _refuse("roll back")

    def close(self) -> NoReturn:
        _refuse("close the session")

    def leave(self) -> None:
        """Close the session, after ``apply``."""
        super().close()


class _Guard:
    """Refuses to let a connection's transaction be ended, until it is opened; whichever way that is tried."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._hooks: dict[str, Callable[..., None]] = {
            "commit": self._commit,
            "rollback": self._rollback,
            "before_cursor_execute": self._statement,
        }
        for name, hook in self._hooks.items():
            event.listen(connection, name, hook)

    def open(self) -> None:
        """Let the transaction be ended from now on."""
        for name, hook in self._hooks.items():
            event.remove(self._connection, name, hook)

    def _commit(self, connection: Connection) -> None:
        _refuse("commit")

    def _rollback(self, connection: Connection) -> None:
        _refuse("roll back")

    def _statement(
        self, connection: Connection, cursor: object, statement: str, parameters: object, context: object, many: bool
    ) -> None:
        if _ENDS_IT.match(statement):
            _refuse(f"execute {statement.strip()!r}")


def _refuse(what: str) -> NoReturn:
    raise InvalidInput(
        f"apply() must not {what}: its SQL transaction has the client's mark in it and is committed after it; "
        "use session.begin_nested() for a part that may fail"
    )


def _check(engine: Engine) -> None:
    if not engine.dialect.supports_sane_rowcount:
        raise ConfigError(f"the driver of {engine.url!r} does not say how many rows an UPDATE has met; use another one")
    if isinstance(engine.pool, SingletonThreadPool):
        raise ConfigError(
            f"{engine.url!r} is another, empty database for each thread; use a file, or "
            'create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})'
        )
