"""Replicas and servers that come and go by the commands, under load: real Ray, ZooKeeper, actors and files.

The tests build on each other, in order: a cluster costs ten seconds to start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import waltz_ray
from tests.cli.test_lifecycle import Lifecycle, until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(400)]

PARTITIONS = 6


class Load:
    """A client that appends to all partitions, one append of each outstanding; what was committed, where and when."""

    def __init__(self, life: Lifecycle) -> None:
        self.client = waltz_ray.connect(directory=str(life.directory))
        self.committed: dict[int, dict[int, bytes]] = {p: {} for p in range(PARTITIONS)}
        self.longest_s = 0.0
        self.failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number, last = 0, [time.monotonic()] * PARTITIONS
        try:
            while not self._stop.is_set():
                pending: list[tuple[int, bytes, Future[int]]] = []
                for p in range(PARTITIONS):
                    data = f"{p}:{number}".encode()
                    pending.append((p, data, self.client.append(p, data)))
                for p, data, future in pending:
                    self.committed[p][future.result(60)] = data
                    now = time.monotonic()
                    self.longest_s, last[p] = max(self.longest_s, now - last[p]), now
                number += 1
        except Exception as error:  # noqa: BLE001 - raised by ``end``
            self.failure = error

    def felt_s(self) -> float:
        """The longest pause since it was asked last."""
        longest, self.longest_s = self.longest_s, 0.0
        return longest

    def end(self) -> None:
        self._stop.set()
        self._thread.join(70)
        self.client.close()
        if self.failure is not None:
            raise self.failure


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lifecycle]:
    life = Lifecycle(tmp_path_factory.mktemp("members"))
    try:
        life.waltz("up", "--dir", str(life.directory), "--cluster", "members", "--partitions", str(PARTITIONS))
        yield life
    finally:
        life.end()


@pytest.fixture(scope="module")
def load(life: Lifecycle) -> Iterator[Load]:
    load = Load(life)
    yield load
    if load._thread.is_alive():
        load.end()


def at(life: Lifecycle) -> list[str]:
    return ["--dir", str(life.directory)]


def replicas(life: Lifecycle) -> dict[int, dict[str, Any]]:
    return {row["replica"]: row for row in json.loads(life.waltz("replica", "list", "--json", *at(life)).stdout)}


def servers(life: Lifecycle) -> dict[int, dict[str, Any]]:
    return {row["server"]: row for row in json.loads(life.waltz("server", "list", "--json", *at(life)).stdout)}


def test_three_replicas_become_five(life: Lifecycle, load: Load) -> None:
    for number in (3, 4):
        assert f"replica {number} of cluster members serves" in life.waltz("replica", "add", *at(life)).stdout
    assert replicas(life)[4]["partitions"] == []
    before = {n: row["partitions"] for n, row in replicas(life).items()}
    dry = json.loads(life.waltz("rebalance", "--dry-run", "--json", *at(life)).stdout)
    assert {n: row["partitions"] for n, row in replicas(life).items()} == before
    assert f"{len(dry)} partitions were moved" in life.waltz("rebalance", *at(life)).stdout
    after = [len(row["partitions"]) for row in replicas(life).values()]
    assert (sum(after), max(after) - min(after)) == (3 * PARTITIONS, 1)
    assert "nothing has to move" in life.waltz("rebalance", *at(life)).stdout


def test_a_drain_goes_on_through_the_death_of_the_manager_and_of_the_command(life: Lifecycle, load: Load) -> None:
    command = [sys.executable, "-m", "waltz_ray", "replica", "drain", "0", *at(life)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as draining:
        until(lambda: replicas(life)[0]["draining"], "the drain has begun")
        os.kill(life.status()["manager"]["pid"], signal.SIGKILL)
        draining.send_signal(signal.SIGINT)
        draining.communicate(timeout=60)
    told = life.waltz("replica", "drain", "0", *at(life)).stdout
    assert "replica 0 of cluster members has no partitions any more" in told
    assert replicas(life)[0]["partitions"] == []
    until(lambda: life.status()["replicas"]["0"]["partitions"] == {}, "it gives up what it had")
    assert not any(life.directory.glob("replica-0/*/*.idx.tmp"))


def test_a_drained_replica_is_removed_and_one_that_is_needed_is_not(life: Lifecycle, load: Load) -> None:
    refused = life.waltz("replica", "remove", "1", "--yes", *at(life), code=1).stderr
    assert "waltz replica drain 1" in refused
    life.waltz("replica", "remove", "0", "--yes", *at(life))
    until(lambda: "0" not in life.status()["replicas"], "the manager knows it no more")
    life.waltz("replica", "drain", "1", *at(life))
    life.waltz("replica", "remove", "1", "--yes", *at(life))
    assert all(row["partitions"] == list(range(PARTITIONS)) for row in replicas(life).values())
    assert "3 replicas hold a partition" in life.waltz("replica", "drain", "2", *at(life), code=1).stderr


def test_servers_come_and_go_and_partitions_move_to_them(life: Lifecycle, load: Load) -> None:
    assert "server 2 of cluster members serves" in life.waltz("server", "add", *at(life)).stdout
    until(lambda: servers(life)[2]["partitions"] != [], "it is given its share")
    load.felt_s()
    life.waltz("move", "-p", "0", "-p", "1", "--to", "server/2", *at(life))
    assert {0, 1} <= set(servers(life)[2]["partitions"])
    life.waltz("server", "drain", "0", *at(life))
    life.waltz("server", "remove", "0", "--yes", *at(life))
    until(lambda: "0" not in life.status()["servers"], "the manager knows it no more")
    assert sorted(servers(life)) == [1, 2]
    assert load.felt_s() < 2.0
    assert "is drained" not in life.waltz("move", "-p", "2", "--to", "server/1", *at(life)).stdout


def test_a_node_is_lost_under_load_and_made_up_for(life: Lifecycle, load: Load) -> None:
    """Its replica for good: the directory goes with it; Ray starts the server again."""
    assert "replica 5 of" in life.waltz("replica", "add", *at(life)).stdout
    status = life.status()
    os.kill(status["replicas"]["3"]["pid"], signal.SIGKILL)
    (life.directory / "replica-3").rename(life.directory / "lost")
    os.kill(status["servers"]["1"]["pid"], signal.SIGKILL)
    life.waltz("replica", "drain", "3", *at(life))
    life.waltz("replica", "remove", "3", "--yes", *at(life))
    assert sorted(replicas(life)) == [2, 4, 5]
    until(lambda: "3" not in life.status()["replicas"], "the manager knows it no more")
    life.waltz("move", "-p", "0", "--replicas", "2,4,5", *at(life))


def test_nothing_is_lost_and_everybody_is_there_after_a_restart(life: Lifecycle, load: Load) -> None:
    load.end()
    kept = servers(life)
    life.waltz("down", *at(life))
    compared = life.waltz("verify", str(life.directory)).stdout
    assert "WRONG" not in compared
    life.waltz("up", *at(life))
    status = life.status()
    assert sorted(status["replicas"]) == ["2", "4", "5"]
    assert sorted(status["servers"]) == ["1", "2"]
    assert {n: row["preferred"] for n, row in servers(life).items()} == {n: row["preferred"] for n, row in kept.items()}
    assert {0, 1} <= set(servers(life)[2]["partitions"])
    with waltz_ray.connect(directory=str(life.directory)) as client:
        for p, committed in load.committed.items():
            assert len(committed) > 100
            found = [transaction.data for transaction in client.feed(p, follow=False)]
            assert {n: found[n] for n in committed} == committed
            assert len(found) == len(set(found)), "nothing is there twice"
