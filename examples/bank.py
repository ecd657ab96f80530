"""A bank on the log: ``python examples/bank.py --accounts 1000 --transfers 100000 --kill``.

It brings up a cluster of its own (or uses ``--cluster NAME``). Accounts belong to partitions. Money that stays within a
partition moves in one transaction, under a lock on the account it comes from. Between partitions it takes three, of
which each may be tried by anybody at any time and has its effect once:

1. *withdraw*, in the partition of the one account: the money is in transit, which is a row of the database;
2. *deposit*, in that of the other one, unless a deposit of that number has been made there;
3. *settle*, in the first one: it is in transit no more.

A courier does 2 and 3 for every row it finds in transit, whoever has withdrawn the money, and whether or not he lives.

The balances are kept in SQLite, from which the decisions are read, and in a PostgreSQL that follows on its own. At the
end both must say what the log says, and no money may have come or gone. ``--kill``: servers and replicas are killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from waltz_ray import SQLAlchemyCallbacks, Transaction, TransactionBuilder, TransactionContext, WaltzClient, connect
from waltz_ray.bring_up import bring_up
from waltz_ray.config import ClusterConfig
from waltz_ray.errors import PartitionNotReady, WaltzError
from waltz_ray.interruption import undisturbed
from waltz_ray.readiness import cluster_status, missing
from waltz_ray.take_down import take_down_in
from waltz_ray.testing import local_postgres

OPENING_BALANCE = 1000
TELLERS = 48
ACROSS = 0.1  # share of the transfers whose accounts need not be in one partition
PATIENCE_S = 120.0

Connect = Callable[..., WaltzClient]

metadata = sa.MetaData()
accounts = sa.Table(
    "accounts",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("balance", sa.BigInteger, nullable=False),
)
in_transit = sa.Table(
    "in_transit",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("source", sa.Integer, nullable=False),
    sa.Column("target", sa.Integer, nullable=False),
    sa.Column("amount", sa.BigInteger, nullable=False),
)
deposits = sa.Table("deposits", metadata, sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False))


@dataclass
class Changes:
    """What some transactions do, added up."""

    balances: Counter[int] = field(default_factory=Counter)
    withdrawn: list[dict[str, int]] = field(default_factory=list)
    deposited: list[dict[str, int]] = field(default_factory=list)
    settled: list[dict[str, int]] = field(default_factory=list)

    def add(self, data: bytes) -> None:
        """One transaction's."""
        step: dict[str, Any] = json.loads(data)
        kind = step.pop("kind")
        if kind in ("transfer", "withdraw"):
            self.balances[step["source"]] -= step["amount"]
        if kind in ("transfer", "deposit"):
            self.balances[step["target"]] += step["amount"]
        if kind == "withdraw":
            self.withdrawn.append(step)
        elif kind == "deposit":
            self.deposited.append({"number": step["number"]})
        elif kind == "settle":
            self.settled.append({"settled": step["number"]})


class Bank(SQLAlchemyCallbacks):
    """The balances in one database."""

    def __init__(self, url: str, count: int) -> None:
        super().__init__(sa.create_engine(url, pool_size=TELLERS, connect_args=_arguments(url)))
        self.applied = threading.Condition()
        metadata.create_all(self.engine)
        with self.engine.begin() as connection:
            if connection.execute(sa.select(accounts.c.id).limit(1)).first() is None:
                connection.execute(sa.insert(accounts), [{"id": n, "balance": OPENING_BALANCE} for n in range(count)])

    def apply(self, session: Session, transaction: Transaction) -> None:
        self.apply_many(session, transaction.partition_id, [transaction])

    def apply_many(self, session: Session, partition_id: int, transactions: Sequence[Transaction]) -> None:
        """One statement for all changes of a kind."""
        changes = Changes()
        for transaction in transactions:
            changes.add(transaction.data)
        connection = session.connection()
        moved = [{"account": account, "change": change} for account, change in sorted(changes.balances.items())]
        more = sa.update(accounts).where(accounts.c.id == sa.bindparam("account"))
        for statement, rows in (
            (more.values(balance=accounts.c.balance + sa.bindparam("change")), moved),
            (sa.insert(in_transit), changes.withdrawn),
            (sa.insert(deposits), changes.deposited),
            (sa.delete(in_transit).where(in_transit.c.number == sa.bindparam("settled")), changes.settled),
        ):
            if rows:
                connection.execute(statement, rows)

    def apply_transactions(self, partition_id: int, transactions: Sequence[Transaction]) -> None:
        super().apply_transactions(partition_id, transactions)
        with self.applied:
            self.applied.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until something applied has made it true."""
        with self.applied:
            if not self.applied.wait_for(condition, PATIENCE_S):
                raise TimeoutError(f"{self.engine.url!r} was not up to date within {PATIENCE_S:g} s")

    def balance(self, account: int) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(sa.select(accounts.c.balance).where(accounts.c.id == account)).scalar_one())

    def balances(self) -> dict[int, int]:
        with self.engine.connect() as connection:
            return {number: int(balance) for number, balance in connection.execute(sa.select(accounts))}

    def money_in_transit(self) -> list[dict[str, int]]:
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(sa.select(in_transit)).mappings()]

    def has(self, table: sa.Table, number: int) -> bool:
        with self.engine.connect() as connection:
            return connection.execute(sa.select(table.c.number).where(table.c.number == number)).first() is not None


def _arguments(url: str) -> dict[str, Any]:
    return {"timeout": 60} if url.startswith("sqlite") else {}


# ---- what is appended ------------------------------------------------------------------------------------------------


class _Step(TransactionContext):
    def __init__(self, bank: Bank, step: dict[str, int]) -> None:
        self.bank, self.step = bank, step


class Withdraw(_Step):
    """Takes money that is there: for an account of the same partition ("transfer"), or in transit ("withdraw")."""

    def partition_id(self, partitions: int) -> int:
        self.within = self.step["source"] % partitions == self.step["target"] % partitions
        return self.step["source"] % partitions

    def execute(self, builder: TransactionBuilder) -> bool:
        if self.bank.balance(self.step["source"]) < self.step["amount"]:
            return False
        # Nobody may have taken from it since. Who adds to it need not be kept away: more money is no harm.
        builder.write_lock("account", self.step["source"])
        builder.data = json.dumps({"kind": "transfer" if self.within else "withdraw"} | self.step).encode()
        return True


class Deposit(_Step):
    """The second step: once for each number, whoever tries."""

    def partition_id(self, partitions: int) -> int:
        return self.step["target"] % partitions

    def execute(self, builder: TransactionBuilder) -> bool:
        if self.bank.has(deposits, self.step["number"]):
            return False
        builder.write_lock("deposit", self.step["number"])  # refused if there is one that is not in the database yet
        builder.data = json.dumps({"kind": "deposit"} | self.step).encode()
        return True


class Settle(_Step):
    """The third step, when the second is in the log."""

    def partition_id(self, partitions: int) -> int:
        return self.step["source"] % partitions

    def execute(self, builder: TransactionBuilder) -> bool:
        if not self.bank.has(in_transit, self.step["number"]):
            return False
        builder.write_lock("settlement", self.step["number"])
        builder.data = json.dumps({"kind": "settle", "number": self.step["number"]}).encode()
        return True


class Courier:
    """Brings what is in transit to where it belongs; any number of them may be at work, in any process."""

    def __init__(self, bank: Bank, client: WaltzClient) -> None:
        self._bank, self._client = bank, client
        self._taken: set[int] = set()  # only not to do things twice in vain
        self._brought: list[Future[None]] = []
        self._stopped = False
        self._pool = ThreadPoolExecutor(TELLERS // 4)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            for step in self._bank.money_in_transit():
                if step["number"] not in self._taken:
                    self._taken.add(step["number"])
                    self._brought.append(self._pool.submit(self._bring, step))
            with self._bank.applied:
                self._bank.applied.wait(0.1)

    def _bring(self, step: dict[str, int]) -> None:
        try:
            self._client.submit(Deposit(self._bank, step)).result()
            self._client.submit(Settle(self._bank, step)).result()
        except PartitionNotReady as error:
            print(f"transfer {step['number']} stays in transit for now: {error}", flush=True)
            self._taken.discard(step["number"])

    def close(self) -> None:
        """When nothing is in transit any more."""
        try:
            self._bank.wait_for(lambda: not self._bank.money_in_transit())
        finally:
            self._stopped = True
            self._thread.join()
            self._pool.shutdown()
        for brought in self._brought:
            brought.result()


# ---- a day at the bank -----------------------------------------------------------------------------------------------


class Day:
    """Transfers by chance, ``TELLERS`` at a time; ``done`` of them have been decided."""

    def __init__(self, bank: Bank, client: WaltzClient, count: int, seed: int) -> None:
        self.bank, self.client, self.count = bank, client, count
        self.done = 0
        self.outcomes: Counter[bool] = Counter()
        self.decided = threading.Condition()
        self._random = random.Random(seed)
        # Of no other day, whatever its seed: a deposit of a number that had one before would not be made.
        self._first_number = secrets.randbits(40) << 22

    def _step(self, number: int) -> dict[str, int]:
        source = self._random.randrange(self.count)
        distance = self.client.partitions * self._random.randint(1, max(1, self.count // self.client.partitions - 1))
        if self._random.random() < ACROSS:
            distance = self._random.randrange(1, self.count)
        target = (source + distance) % self.count
        amount = self._random.randint(1, OPENING_BALANCE // 2)
        return {"number": self._first_number + number, "source": source, "target": target, "amount": amount}

    def _transfer(self, step: dict[str, int]) -> None:
        outcome = self.client.submit(Withdraw(self.bank, step)).result()
        with self.decided:
            self.done += 1
            self.outcomes[bool(outcome)] += 1
            self.decided.notify_all()

    def run(self, transfers: int) -> None:
        """All of them, each decided when it returns; what is in transit may still be."""
        with ThreadPoolExecutor(TELLERS) as tellers:
            for _ in tellers.map(self._transfer, [self._step(number) for number in range(transfers)]):
                pass


def balances_of_the_log(client: WaltzClient, count: int) -> dict[int, int]:
    """What all transactions of all partitions add up to."""
    changes = Changes(Counter(dict.fromkeys(range(count), OPENING_BALANCE)))
    for partition_id in range(client.partitions):
        for transaction in client.feed(partition_id):
            changes.add(transaction.data)
    return dict(changes.balances)


def differences(client: WaltzClient, banks: Sequence[Bank], count: int) -> list[str]:
    """What the databases and the log do not agree about; each database is waited for."""
    marks = {partition_id: client.server_high_water_mark(partition_id) for partition_id in range(client.partitions)}
    expected = balances_of_the_log(client, count)
    found = [] if sum(expected.values()) == count * OPENING_BALANCE else ["money has come or gone"]
    for bank in banks:
        bank.wait_for(lambda bank=bank: all(bank.client_high_water_mark(p) >= mark for p, mark in marks.items()))  # type: ignore[misc]
        if bank.balances() != expected:
            found.append(f"{bank.engine.dialect.name} differs from the log")
        if bank.money_in_transit():
            found.append(f"{bank.engine.dialect.name} has money in transit")
    return found


def run(
    connected: Connect, urls: Sequence[str], count: int, transfers: int, seed: int, killer: Killer | None = None
) -> list[str]:
    """A day; what is wrong at its end. The first of ``urls`` is the database that decisions are read from."""
    banks = [Bank(url, count) for url in urls]
    with ExitStack() as stack:
        for bank in banks:
            stack.callback(bank.engine.dispose)
        client, *_ = [stack.enter_context(connected(callbacks=bank)) for bank in banks]
        client.wait_ready(PATIENCE_S)
        day, courier = Day(banks[0], client, count, seed), Courier(banks[0], client)
        try:
            with killer.during(day, transfers) if killer is not None else ExitStack():
                day.run(transfers)
        finally:
            courier.close()
        wrong = differences(client, banks, count)
        statistics = client.statistics()
        print(f"{day.outcomes[True]} transfers, {day.outcomes[False]} lacked the money; in the log and in", end=" ")
        print(", ".join(bank.engine.dialect.name for bank in banks), "the same" if not wrong else f"NOT: {wrong}")
        conflicts, retries = statistics["lock_conflicts"], statistics["retries"]
        print(f"{conflicts} conflicts, {retries} appends sent again, {statistics['reconnects']} times mounted again")
        print(f"all accounts together: {sum(banks[0].balances().values())}, opened with {count * OPENING_BALANCE}")
    return wrong


# ---- the cluster -----------------------------------------------------------------------------------------------------


class Killer:
    """SIGKILLs a server and a replica in turns, each time all are well, after each of some parts of the day."""

    def __init__(self, cluster: str, kills: int = 5) -> None:
        self._cluster, self._kills = cluster, kills
        self._over = False

    @contextmanager
    def during(self, day: Day, transfers: int) -> Iterator[None]:
        thread = threading.Thread(target=self._run, args=(day, transfers))
        thread.start()
        try:
            yield
        finally:
            with day.decided:
                self._over = True
                day.decided.notify_all()
            thread.join()

    def _run(self, day: Day, transfers: int) -> None:
        for number in range(self._kills):
            due = transfers * (number + 1) // (self._kills + 1)
            with day.decided:
                day.decided.wait_for(partial(self._is_due, day, due))
            status = cluster_status(self._cluster)
            while missing(status) and not self._over:
                status = cluster_status(self._cluster)
            if self._over:
                return
            kind, running = ("replica", status.replicas) if number % 2 else ("server", status.servers)
            who, pid = random.choice([(who, each.pid) for who, each in running.items()])
            assert pid is not None, "nothing is missing, so it runs"
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has just ended by itself
            print(f"killed {kind} {who} (process {pid}) after {day.done} transfers", flush=True)

    def _is_due(self, day: Day, due: int) -> bool:
        return self._over or day.done >= due


_OWN = "bank"  # the name of our own cluster


@contextmanager
def own_cluster() -> Iterator[str]:
    """The directory of one of our own, on a Ray of our own; gone with all its files at the end."""
    with tempfile.TemporaryDirectory(prefix="waltz-bank-") as directory:
        config = ClusterConfig(name=_OWN, directory=directory, partitions=4, replicas=3, servers=2)
        try:
            print("bringing up a cluster", flush=True)
            bring_up(config)
            yield directory
        finally:
            with undisturbed():  # a second ^C leaves no processes behind
                take_down_in(Path(directory))


def main(arguments: argparse.Namespace) -> int:
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="waltz-balances-"))
        urls = arguments.database or [
            f"sqlite:///{scratch}/bank.db",
            stack.enter_context(local_postgres()).create_database("bank"),
        ]
        if arguments.cluster:
            connected = partial(connect, arguments.cluster)
        else:
            connected = partial(connect, directory=stack.enter_context(own_cluster()))
        killer = Killer(_OWN) if arguments.kill else None
        return bool(run(connected, urls, arguments.accounts, arguments.transfers, arguments.seed, killer))


def _arguments_of_command() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A bank on the log.")
    parser.add_argument("--accounts", type=int, default=1000)
    parser.add_argument("--transfers", type=int, default=2000)
    parser.add_argument("--kill", action="store_true", help="kill servers and replicas of its own cluster")
    parser.add_argument(
        "--cluster", help="use this one, which has nothing but this bank in it; default: one of its own"
    )
    parser.add_argument("--database", action="append", help="SQLAlchemy URL; default: a SQLite and a PostgreSQL")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.kill and arguments.cluster:
        parser.error("--kill is for its own cluster; leave --cluster out")
    if arguments.accounts < 2 or arguments.transfers < 1:
        parser.error("a bank has two accounts and one transfer at least")
    return arguments


if __name__ == "__main__":
    try:
        sys.exit(main(_arguments_of_command()))
    except KeyboardInterrupt:
        sys.exit(130)
    except (WaltzError, sa.exc.SQLAlchemyError) as error:  # the latter of --database
        sys.exit(f"error: {error}")
