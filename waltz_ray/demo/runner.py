"""The whole demo in order. Whatever happens, Spark, the cluster and its Ray are ended; the data stays."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from waltz_ray import connect
from waltz_ray.bring_up import Cluster, bring_up
from waltz_ray.cluster_directory import holds_cluster
from waltz_ray.config import ClusterConfig
from waltz_ray.demo.application import decode_leg, read_legs
from waltz_ray.demo.checks import compare_spark, compare_tally, tally
from waltz_ray.demo.expectations import Expectations, expect
from waltz_ray.demo.flight_client import ClientReport
from waltz_ray.demo.flights import flights_archive
from waltz_ray.demo.load_phase import LoadPhase
from waltz_ray.demo.report import DemoResult
from waltz_ray.demo.segments import holds_committed
from waltz_ray.demo.spark_side import analyse
from waltz_ray.errors import InvalidInput, StorageError
from waltz_ray.interruption import interruptible, undisturbed
from waltz_ray.take_down import take_down_in

__all__ = ["CLIENTS", "Screen", "run_demo"]

CLIENTS = 4
_CLUSTER = "demo"
_PARTITIONS, _REPLICAS, _SERVERS = 4, 3, 2
_QUORUM = 2
_APPLY_TIMEOUT_S = 120.0


class Screen(Protocol):
    """What the demo shows its doings on."""

    def say(self, text: str) -> None:
        """One line that stays."""

    def stage(self, text: str) -> None:
        """What is going on now."""

    def committed(self, flights: int) -> None:
        """Progress of the submitting."""


def run_demo(directory: Path, flights: int, screen: Screen) -> DemoResult:
    """Everything, on a new cluster in ``directory``. InvalidInput if that holds a cluster already."""
    if holds_cluster(directory):
        raise InvalidInput(f"{directory} holds a cluster already; give a new directory, the demo begins with no log")
    expected = expect(flights_archive(), flights)
    result = DemoResult(flights=expected.flights)
    with interruptible(), _cluster(directory, result, screen) as cluster, interruptible():
        marks = _submit(cluster, directory, expected, result, screen)
        _ask_spark(cluster, expected, result, screen)
    _judge_storage(directory, marks, result, screen)
    return result


@contextmanager
def _cluster(directory: Path, result: DemoResult, screen: Screen) -> Iterator[Cluster]:
    from waltz_spark import stop_spark, use_java

    use_java()
    begin = time.monotonic()
    config = ClusterConfig(_CLUSTER, str(directory.resolve()), _PARTITIONS, _REPLICAS, _SERVERS)
    try:
        cluster = bring_up(config, progress=screen.stage)
        result.seconds["bringing the cluster up"] = time.monotonic() - begin
        result.storage_dirs = [str(Path(cluster.directory, f"replica-{n}")) for n in range(_REPLICAS)]
        yield cluster
    finally:
        screen.stage("taking everything down")
        with undisturbed():
            try:
                stop_spark()
            finally:
                take_down_in(directory, screen.stage)


def _submit(
    cluster: Cluster, directory: Path, expected: Expectations, result: DemoResult, screen: Screen
) -> dict[int, int]:
    """Every flight into the log and out of it; the servers' high-water marks at the end."""
    screen.stage("four clients submit the flights")
    phase = LoadPhase(cluster.name, directory, expected.flights, CLIENTS, screen.committed, screen.say)
    phase.run(result)
    screen.stage("waiting until everybody has applied everything")
    # By its ZooKeeper: WALTZ_DIR, or the context in use, may say another cluster.
    with connect(cluster.name, zookeeper=cluster.zookeeper) as client:
        marks = {p: client.server_high_water_mark(p) for p in range(client.partitions)}
        reports = phase.reports(marks, _APPLY_TIMEOUT_S)
        _count(reports, phase, result)
        for kind in ("replica", "server"):
            screen.stage(f"waiting until the killed {kind} is back")
            result.checks[f"{kind}_came_back"] = phase.came_back(kind)
        phase.close()
        screen.stage("comparing the log with the CSV")
        _compare_log(client, marks, expected, result)
    screen.stage("comparing SQLite with the CSV")
    _compare_books(reports, expected, result)
    return marks


def _count(reports: list[ClientReport], phase: LoadPhase, result: DemoResult) -> None:
    result.lock_conflicts = sum(report.statistics["lock_conflicts"] for report in reports)
    result.retries = sum(report.statistics["retries"] for report in reports)
    result.reconnects = sum(report.statistics["reconnects"] for report in reports)
    result.failures = phase.failures(reports)
    errors = [error for report in reports for error in report.errors]
    result.notes += errors[:5]
    result.checks["clients_without_errors"] = not errors


def _compare_log(client: Any, marks: dict[int, int], expected: Expectations, result: DemoResult) -> None:
    def legs() -> Iterator[tuple[int, str, int, str, int]]:
        for partition_id, mark in marks.items():
            for transaction in client.read(partition_id, 0, mark + 1):
                flight, leg = decode_leg(transaction.data)
                yield flight.row, flight.tail, leg, flight.carrier, flight.miles

    log = tally(legs())
    result.transactions_in_log = log.transactions
    result.distinct_flights_in_log = log.distinct_flights
    result.checks |= compare_tally("log", log, expected)


def _compare_books(reports: list[ClientReport], expected: Expectations, result: DemoResult) -> None:
    """Each of the clients' databases must hold everything; a check holds if it holds for all of them."""
    books = [compare_tally("sqlite", tally(read_legs(Path(report.database))), expected) for report in reports]
    result.checks |= {name: all(book[name] for book in books) for name in books[0]}


def _ask_spark(cluster: Cluster, expected: Expectations, result: DemoResult, screen: Screen) -> None:
    import ray
    from waltz_spark import read_feed, start_spark

    screen.stage("RayDP starts Spark")
    begin = time.monotonic()
    cores = max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
    spark = start_spark("waltz-demo", executor_cores=cores)
    started = time.monotonic()
    result.seconds["starting Spark"] = started - begin
    screen.stage("Spark reads the feed")
    with interruptible():
        facts = analyse(spark, read_feed(spark, cluster.name, zookeeper=cluster.zookeeper))
    result.seconds["Spark's answers"] = time.monotonic() - started
    result.checks |= compare_spark(facts, expected)


def _judge_storage(directory: Path, marks: dict[int, int], result: DemoResult, screen: Screen) -> None:
    """After the end of all processes: the storage directories, by ``waltz verify`` and by an independent reader."""
    screen.stage("verifying the storage directories")
    replicas = [Path(each) for each in result.storage_dirs]
    reports = _verified(directory)
    result.notes += [
        f"{damage['file']}: damaged at byte {damage['offset']}: {damage['reason']}"
        for report in reports
        for damage in report["damages"]
    ]
    result.checks["storage_verified"] = len(reports) == _REPLICAS and all(report["ok"] for report in reports)
    holding = holds_committed(replicas, marks)
    result.notes += [] if holding == _REPLICAS else [f"{holding} of {_REPLICAS} replicas hold every transaction"]
    result.checks["quorum_holds_identical_bytes"] = holding >= _QUORUM


def _verified(directory: Path) -> list[dict[str, Any]]:
    """What ``waltz verify`` reports of each replica."""
    command = [sys.executable, "-m", "waltz_ray", "verify", "--json", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise StorageError(done.stderr.strip())
    reports: list[dict[str, Any]] = json.loads(done.stdout)
    return reports
