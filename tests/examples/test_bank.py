"""The bank: no money comes or goes, whatever is killed and whoever stops half way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from examples.bank import OPENING_BALANCE, Bank, Courier, Day, Withdraw, differences, run
from tests.postgres_fixture import postgres_server
from waltz_ray.testing import Faults, InMemoryCluster, LocalPostgres

__all__ = ["postgres_server"]

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 20.0


def sqlite(tmp_path: Path, name: str) -> str:
    return f"sqlite:///{tmp_path}/{name}.db"


def test_a_day_with_faults_and_kills(tmp_path: Path, postgres_server: LocalPostgres) -> None:
    faults = Faults(append_failures=0.02, connections_lost=0.02, answers_lost=0.02, lock_failures=0.02)
    urls = [sqlite(tmp_path, "bank"), postgres_server.create_database("bank")]
    with InMemoryCluster(partitions=3, servers=2, faults=faults, seed=3) as cluster:
        over = threading.Event()

        def kill() -> None:
            while not over.wait(0.2):
                cluster.kill_server(1)
                cluster.move(0)
                cluster.kill_server(2)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            assert run(cluster.connect, urls, 20, 300, seed=1) == []
        finally:
            over.set()
            killer.join()
        assert min(cluster.faults_met.get(kind, 0) for kind in ("connections_lost", "answers_lost")) > 0


def test_a_second_day_on_the_same_log_makes_its_own_deposits(tmp_path: Path) -> None:
    """The same seed, the default: numbers of the day before would not be deposited again, and their money be gone."""
    with InMemoryCluster(partitions=3) as cluster:
        for day in ("first", "second"):
            assert run(cluster.connect, [sqlite(tmp_path, day)], 20, 60, seed=0) == []


def test_what_is_in_transit_when_a_process_ends_is_delivered_by_another(tmp_path: Path) -> None:
    """After the first step, and again after the second: each of two couriers finds it, the deposit is made once."""
    step = {"number": 77, "source": 0, "target": 1, "amount": 5}
    with InMemoryCluster(partitions=2) as cluster:
        bank = Bank(sqlite(tmp_path, "one"), 2)
        with cluster.connect(callbacks=bank) as client:
            assert client.submit(Withdraw(bank, step)).result(PATIENCE_S)
            bank.wait_for(lambda: bool(bank.money_in_transit()))
        bank.engine.dispose()

        others = [Bank(sqlite(tmp_path, name), 2) for name in ("one", "two")]
        with cluster.connect(callbacks=others[0]) as first, cluster.connect(callbacks=others[1]) as second:
            second.wait_ready(PATIENCE_S)
            couriers = [Courier(others[0], first), Courier(others[1], second)]
            for courier in couriers:
                courier.close()
            assert differences(first, others, 2) == []
            assert [t.data.count(b'"deposit"') for t in first.feed(1)] == [1]
        assert others[0].balances() == {0: OPENING_BALANCE - 5, 1: OPENING_BALANCE + 5}
        for other in others:
            other.engine.dispose()


def test_money_that_is_not_in_the_log_is_found(tmp_path: Path) -> None:
    """The comparison has teeth."""
    with InMemoryCluster(partitions=2) as cluster:
        bank = Bank(sqlite(tmp_path, "bank"), 4)
        with cluster.connect(callbacks=bank) as client:
            Day(bank, client, 4, seed=0).run(5)
            Courier(bank, client).close()
            assert differences(client, [bank], 4) == []
            with bank.engine.begin() as connection:
                connection.exec_driver_sql("UPDATE accounts SET balance = balance + 1 WHERE id = 2")
            assert differences(client, [bank], 4) == ["sqlite differs from the log"]
        bank.engine.dispose()


@pytest.mark.cluster
def test_the_command_with_kills() -> None:
    """As in docs/client.md, small: a real cluster of its own, a server and a replica killed among others."""
    command = [sys.executable, "examples/bank.py", "--accounts", "40", "--transfers", "400", "--kill"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"in the log and in sqlite, postgresql the same", done.stdout), done.stdout
    assert re.search(r"killed server ", done.stdout), done.stdout
    assert f"all accounts together: {40 * OPENING_BALANCE}, opened with {40 * OPENING_BALANCE}" in done.stdout
