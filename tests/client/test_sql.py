"""Callbacks over SQLAlchemy on SQLite and PostgreSQL: data and mark together, once, whoever applies, whatever fails."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    Engine,
    ForeignKey,
    create_engine,
    delete,
    event,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import StaticPool

from tests.client.sql_ledger import PATIENCE_S, Ledger, apply_all, entries, made, metadata, totals
from tests.postgres_fixture import postgres_server
from waltz_ray import Transaction, TransactionBuilder, TransactionContext, WaltzClient
from waltz_ray.errors import ClientError, ConfigError, InvalidInput
from waltz_ray.testing import Faults, InMemoryCluster, LocalPostgres

__all__ = ["postgres_server"]

_numbers = itertools.count()


def state(engine: Engine) -> tuple[list[int], int, int]:
    """The rows' numbers, their total, and the mark of partition 0."""
    with engine.connect() as connection:
        numbers = list(connection.scalars(select(entries.c.number).order_by(entries.c.number)))
        total = connection.scalar(select(totals.c.value))
        mark = connection.scalar(text("SELECT transaction_id FROM waltz_marks WHERE partition_id = 0"))
    return numbers, int(total or 0), int(mark)


def whole(count: int) -> tuple[list[int], int, int]:
    """What ``state`` is when the first ``count`` transactions have been applied once."""
    return list(range(count)), sum(range(count)), count - 1


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a new, empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/application.db"
    server: LocalPostgres = request.getfixturevalue("postgres_server")
    return server.create_database(f"test_{next(_numbers)}")


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = create_engine(url)
    metadata.create_all(made)
    with made.begin() as connection:
        connection.execute(insert(totals).values(id=1, value=0))
    yield made
    made.dispose()


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as running:
        yield running


def fill(client: WaltzClient, count: int) -> None:
    client.append_many(0, [b"%d" % number for number in range(count)]).result(PATIENCE_S)


def test_data_and_mark_are_one_transaction(engine: Engine, cluster: InMemoryCluster) -> None:
    ledger = Ledger(engine)
    with cluster.connect(ledger) as client:
        fill(client, 50)
        ledger.wait_for_mark(49)
    assert state(engine) == whole(50)
    again = Ledger(engine)  # a new process: nothing comes twice
    with cluster.connect(again) as client:
        client.append(0, b"50").result(PATIENCE_S)
        again.wait_for_mark(50)
    assert again.calls == [50]
    assert state(engine) == whole(51)


def test_two_clients_on_one_database(engine: Engine, cluster: InMemoryCluster) -> None:
    """Every transaction reaches both; each is applied by one of them."""
    one, other = Ledger(engine), Ledger(create_engine(engine.url))
    with cluster.connect(one) as client, cluster.connect(other) as second:
        for number in range(100):
            client.append(0, b"%d" % number).result(PATIENCE_S)
        for ledger, each in ((one, client), (other, second)):
            ledger.wait_for_mark(99)
            each.append(0, b"end").result(PATIENCE_S)
        one.wait_for_mark(101)
        other.wait_for_mark(101)
    other.engine.dispose()
    assert state(engine) == whole(102)
    assert one.uncaught == other.uncaught == []


def test_who_comes_second_goes_on_from_the_mark(engine: Engine) -> None:
    """Without a client: transactions that the database has, has in part, and that are ahead of it."""
    ledger = Ledger(engine)
    assert ledger.client_high_water_mark(0) == -1
    ledger.apply_transactions(0, made(0, 5))
    ledger.apply_transactions(0, made(0, 3))
    ledger.apply_transactions(0, made(2, 8))
    assert state(engine) == whole(8)
    assert ledger.calls == list(range(8))
    with pytest.raises(ClientError, match="the database's mark is 7, although 8 was applied: it has been set back"):
        ledger.apply_transactions(0, made(9, 11))
    assert state(engine) == whole(8)


def test_several_processes_apply_each_transaction_once(engine: Engine, url: str) -> None:
    """Processes that are given the same transactions at the same time; the table of marks is not there yet."""
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(2)
    processes = [context.Process(target=apply_all, args=(url, 60, gate)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert state(engine) == whole(60)


class Refused(Ledger):
    """Tries to end the transaction at one transaction, in one of the ways there are."""

    how = ""

    def apply(self, session: Session, transaction: Transaction) -> None:
        super().apply(session, transaction)
        if transaction.transaction_id == 3 and self.how:
            connection = session.connection()
            ways: dict[str, Callable[[], object]] = {
                "session.commit": session.commit,
                "session.rollback": session.rollback,
                "session.close": session.close,
                "connection.commit": connection.commit,
                "connection.rollback": connection.rollback,
                "text commit": lambda: session.execute(text("commit")),
                "text rollback": lambda: connection.exec_driver_sql(" ROLLBACK"),
            }
            ways[self.how]()


@pytest.mark.parametrize(
    "how",
    [
        "session.commit",
        "session.rollback",
        "session.close",
        "connection.commit",
        "connection.rollback",
        "text commit",
        "text rollback",
    ],
)
def test_apply_may_not_end_the_transaction(engine: Engine, how: str) -> None:
    ledger = Refused(engine)
    ledger.client_high_water_mark(0)
    ledger.how = how
    with pytest.raises(InvalidInput, match=r"apply\(\) must not .*; use session.begin_nested\(\)"):
        ledger.apply_transactions(0, made(0, 6))
    assert state(engine) == whole(3)  # what came before it
    ledger.how = ""
    ledger.apply_transactions(0, made(3, 6))
    assert state(engine) == whole(6)


def test_a_savepoint_is_allowed(engine: Engine) -> None:
    class Tolerant(Ledger):
        def apply(self, session: Session, transaction: Transaction) -> None:
            super().apply(session, transaction)
            with pytest.raises(IntegrityError), session.begin_nested():
                session.execute(insert(entries).values(number=transaction.transaction_id, data=""))

    ledger = Tolerant(engine)
    ledger.client_high_water_mark(0)
    ledger.apply_transactions(0, made(0, 3))
    assert state(engine) == whole(3)


def test_an_error_of_the_database_that_apply_hides(engine: Engine) -> None:
    """PostgreSQL would make a rollback of the commit, and say nothing."""

    class Hiding(Ledger):
        def apply(self, session: Session, transaction: Transaction) -> None:
            super().apply(session, transaction)
            try:
                session.execute(insert(entries).values(number=transaction.transaction_id, data=""))
            except IntegrityError:
                return

    ledger = Hiding(engine)
    ledger.client_high_water_mark(0)
    if engine.dialect.name == "sqlite":  # a statement that fails undoes itself, and nothing else
        ledger.apply_transactions(0, made(0, 1))
        assert state(engine) == whole(1)
    else:
        with pytest.raises(Exception, match="current transaction is aborted"):
            ledger.apply_transactions(0, made(0, 1))
        assert state(engine) == whole(0)


def test_an_error_comes_to_the_application_and_the_transaction_comes_again(
    engine: Engine, cluster: InMemoryCluster
) -> None:
    """A row that is in the way: those before it are applied, those after it wait, and nothing is lost when it goes."""
    with engine.begin() as connection:
        connection.execute(insert(entries).values(number=7, data="in the way"))
    ledger = Ledger(engine)
    with cluster.connect(ledger) as client:
        fill(client, 20)
        transaction_id, error = ledger.wait_for_trouble()
        assert transaction_id == 7
        assert isinstance(error, IntegrityError)
        assert state(engine) == ([0, 1, 2, 3, 4, 5, 6, 7], sum(range(7)), 6)
        with engine.begin() as connection:
            connection.execute(delete(entries).where(entries.c.data == "in the way"))
        ledger.wait_for_mark(19)
    assert state(engine) == whole(20)


def test_skip_gives_a_transaction_up(engine: Engine, cluster: InMemoryCluster) -> None:
    class Skipping(Ledger):
        def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
            self.skip(partition_id, transaction_id)

    with engine.begin() as connection:
        connection.execute(insert(entries).values(number=7, data="stays"))
    ledger = Skipping(engine)
    with cluster.connect(ledger) as client:
        fill(client, 20)
        ledger.wait_for_mark(19)
    assert state(engine) == (list(range(20)), sum(range(20)) - 7, 19)
    with pytest.raises(InvalidInput, match="transaction 30 is not the next"):
        ledger.skip(0, 30)


def test_a_commit_without_an_answer(engine: Engine, cluster: InMemoryCluster) -> None:
    """It is in the database, and the driver says it is not: the mark tells."""
    ledger = Ledger(engine)
    with cluster.connect(ledger) as client:
        client.append(0, b"0").result(PATIENCE_S)
        ledger.wait_for_mark(0)
        lost = [2]

        def commit(connection: Any) -> None:
            connection.dialect.do_commit(connection.connection)
            if lost[0]:
                lost[0] -= 1
                raise OperationalError("COMMIT", {}, ConnectionError("the connection was lost"))

        event.listen(engine, "commit", commit)
        client.append(0, b"1").result(PATIENCE_S)
        assert isinstance(ledger.wait_for_trouble()[1], OperationalError)
        fill(client, 5)
        ledger.wait_for_mark(6)
    assert lost == [0]
    assert state(engine) == whole(7)


def test_a_database_that_was_set_back(engine: Engine, cluster: InMemoryCluster) -> None:
    ledger = Ledger(engine)
    with cluster.connect(ledger) as client:
        fill(client, 10)
        ledger.wait_for_mark(9)
        with engine.begin() as connection:  # an older copy is restored
            connection.execute(delete(entries).where(entries.c.number > 3))
            connection.execute(update(totals).values(value=sum(range(4))))
            connection.execute(text("UPDATE waltz_marks SET transaction_id = 3"))
        client.append(0, b"10").result(PATIENCE_S)
        ledger.wait_for_mark(10)
    assert isinstance(ledger.uncaught[0][1], ClientError)
    assert state(engine) == whole(11)


class Increment(TransactionContext):
    """Appends the number of rows there are; under a lock, so that nobody else appends the same."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def partition_id(self, partitions: int) -> int:
        return 0

    def execute(self, builder: TransactionBuilder) -> bool:
        with self.ledger.engine.connect() as connection:
            count = connection.scalar(select(func.count()).select_from(entries))
        builder.write_lock("count", 0)
        builder.data = str(count).encode()
        return True


def test_contexts_of_two_clients_that_read_the_database(engine: Engine) -> None:
    """A client whose database is ahead of it (the other has applied) claims less than it has read, never more."""
    faults = Faults(append_failures=0.05, connections_lost=0.05, answers_lost=0.05, lock_failures=0.1)
    with InMemoryCluster(faults=faults, seed=5) as cluster:
        one, other = Ledger(engine), Ledger(engine)
        with cluster.connect(one) as client, cluster.connect(other) as second:
            outcomes = [(client, second)[n % 2].submit(Increment((one, other)[n % 2])) for n in range(40)]
            assert all(outcome.result(PATIENCE_S) for outcome in outcomes)
            one.wait_for_mark(39)
            data = [int(transaction.data) for transaction in client.feed(0)]
    assert data == list(range(40))
    assert state(engine) == whole(40)


class Base(DeclarativeBase):
    """Of mapped classes."""


class Owner(Base):
    __tablename__ = "owners"
    id: Mapped[int] = mapped_column(primary_key=True)


class Account(Base):
    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]
    owner_id: Mapped[int | None] = mapped_column(ForeignKey("owners.id"))


def test_mapped_objects(engine: Engine, cluster: InMemoryCluster) -> None:
    Base.metadata.create_all(engine)

    class Accounts(Ledger):
        def apply(self, session: Session, transaction: Transaction) -> None:
            account = session.get(Account, 1) or Account(id=1, balance=0)
            account.balance += int(transaction.data)
            session.add(account)

    accounts = Accounts(engine)
    with cluster.connect(accounts) as client:
        client.append_many(0, [b"5", b"7", b"-2"]).result(PATIENCE_S)
        accounts.wait_for_mark(2)
    with Session(engine) as session:
        assert session.get_one(Account, 1).balance == 10


def test_sqlite_in_memory_needs_one_connection() -> None:
    wrong = create_engine("sqlite://")
    with pytest.raises(ConfigError, match="another, empty database for each thread; use a file, or"):
        Ledger(wrong)
    wrong.dispose()
    one = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    metadata.create_all(one)
    ledger = Ledger(one)
    assert ledger.client_high_water_mark(3) == -1
    ledger.apply_transaction(made(0, 1)[0])
    assert ledger.client_high_water_mark(0) == 0
    one.dispose()


@pytest.mark.parametrize("how", ["of the engine", "of its options", "of the driver"])
def test_an_engine_without_transactions_is_refused(url: str, how: str) -> None:
    engine = create_engine(url)
    driver = {"isolation_level": None} if engine.name == "sqlite" else {"autocommit": True}
    wrong = {
        "of the engine": create_engine(url, isolation_level="AUTOCOMMIT"),
        "of its options": engine.execution_options(isolation_level="AUTOCOMMIT"),
        "of the driver": create_engine(url, connect_args=driver),
    }[how]
    with pytest.raises(ConfigError, match="commits each statement at once and cannot roll it back"):
        Ledger(wrong)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM waltz_marks")) == 0
    wrong.dispose()
    engine.dispose()


def test_an_engine_that_begins_transactions_itself_is_not(tmp_path: Path) -> None:
    """As SQLAlchemy's documentation has it for SQLite, for savepoints and SERIALIZABLE."""
    engine = create_engine(f"sqlite:///{tmp_path}/a.db", connect_args={"isolation_level": None})
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    assert Ledger(engine).client_high_water_mark(0) == -1
    engine.dispose()
