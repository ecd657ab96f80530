"""The middle of the demo: four clients submit every flight while a replica's and a server's process are killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from waltz_ray.demo.failures import Failure, felt_ms, kill_process, wait_until
from waltz_ray.demo.flight_client import ClientReport, start_client
from waltz_ray.demo.report import DemoResult
from waltz_ray.errors import PartitionNotReady
from waltz_ray.readiness import cluster_status

__all__ = ["LoadPhase"]

_POLL_S = 0.1
_NO_PROGRESS_S = 60.0
_COME_BACK_S = 90.0
_CALL_TIMEOUT_S = 120.0
_FELT_WINDOW_S = 15.0


class LoadPhase:
    """``run`` submits everything; ``reports`` follow when all is applied; ``close`` ends the actors.

    ``committed(n)`` is told how many flights have been committed so far, ``say(text)`` what is going on.
    """

    def __init__(
        self, cluster: str, directory: Path, flights: int, clients: int, committed: Callable[[int], None], say: Any
    ) -> None:
        self._cluster = cluster
        self._directory = directory
        self._flights = flights
        self._count = clients
        self._committed = committed
        self._say = say
        self._clients: list[Any] = []
        self._events: list[tuple[str, int, float]] = []  # what, at transaction, moment
        self._killed: dict[str, tuple[int, int]] = {}  # "replica" or "server" -> its ID and the pid that was killed

    def run(self, result: DemoResult) -> None:
        """Submit every flight, with the two failures on the way."""
        self._clients = [
            start_client(self._cluster, str(self._directory), number, self._count, self._flights)
            for number in range(self._count)
        ]
        ray.get([client.wait_ready.remote() for client in self._clients], timeout=_CALL_TIMEOUT_S)
        begin = time.monotonic()
        ray.get([client.start.remote() for client in self._clients], timeout=_CALL_TIMEOUT_S)
        self._until_all_have_fates()
        seconds = time.monotonic() - begin
        result.seconds["submitting"] = seconds
        result.append_rate_per_s = self._flights / seconds

    def _until_all_have_fates(self) -> None:
        due = [(self._flights // 3, self._kill_replica), (2 * self._flights // 3, self._kill_server)]
        last, moved = -1, time.monotonic()
        while True:
            answers = ray.get([client.progress.remote() for client in self._clients], timeout=_CALL_TIMEOUT_S)
            total = sum(committed for committed, _ in answers)
            self._committed(total)
            if total > last:
                last, moved = total, time.monotonic()
            while due and total >= due[0][0]:
                due.pop(0)[1](total)
            if all(done for _, done in answers):
                return
            if time.monotonic() - moved > _NO_PROGRESS_S:
                raise PartitionNotReady(
                    f"the clients have been standing at {total} of {self._flights} flights for {_NO_PROGRESS_S:g} s; "
                    f"see the logs in {self._directory}"
                )
            time.sleep(_POLL_S)

    def _kill_replica(self, at_transaction: int) -> None:
        replicas = cluster_status(self._cluster).replicas
        replica_id = max(replicas)
        self._kill("replica", replica_id, replicas[replica_id].pid, at_transaction)

    def _kill_server(self, at_transaction: int) -> None:
        status = cluster_status(self._cluster)
        owners = [each.server for each in status.partitions if each.server is not None]
        server_id = max(set(owners), key=owners.count)
        self._kill("server", server_id, status.servers[server_id].pid, at_transaction)

    def _kill(self, kind: str, number: int, pid: int | None, at_transaction: int) -> None:
        if pid is None:
            raise PartitionNotReady(f"{kind} {number} does not tell its process, so it cannot be killed; run it again")
        what = {"replica": "storage replica", "server": "partition server"}[kind] + f" {number} killed"
        self._events.append((what, at_transaction, kill_process(pid)))
        self._killed[kind] = number, pid
        self._say(f"{what} (SIGKILL to process {pid}) at transaction {at_transaction:,}")

    def came_back(self, kind: str) -> bool:
        """Whether the killed one ("replica" or "server") is there again in a new process, doing all of its work."""
        if kind not in self._killed:
            return False
        number, pid = self._killed[kind]
        return wait_until(lambda: self._is_back(kind, number, pid), _COME_BACK_S)

    def _is_back(self, kind: str, number: int, killed_pid: int) -> bool:
        status = cluster_status(self._cluster)
        if kind == "server":
            return status.servers[number].pid not in (None, killed_pid) and number in status.registered_servers
        replica = status.replicas[number]
        members = all(number in each.members for each in status.partitions)
        return replica.pid not in (None, killed_pid) and replica.serving and members

    def reports(self, high_water_marks: dict[int, int], timeout_s: float) -> list[ClientReport]:
        """Of every client, once it has applied the whole log."""
        calls = [client.report.remote(high_water_marks, timeout_s) for client in self._clients]
        reports: list[ClientReport] = ray.get(calls, timeout=timeout_s + _CALL_TIMEOUT_S)
        return reports

    def failures(self, reports: list[ClientReport]) -> list[Failure]:
        """How long each failure was felt, from what the clients saw."""
        moments = [moment for _, _, moment in self._events]
        found = []
        for index, (what, at_transaction, moment) in enumerate(self._events):
            end = min([moment + _FELT_WINDOW_S, *moments[index + 1 :]])
            felt = felt_ms([report.seen for report in reports], moment, end)
            found.append(Failure(what, at_transaction, felt))
        return found

    def close(self) -> None:
        """Close the clients and end their actors."""
        ray.get([client.close.remote() for client in self._clients], timeout=_CALL_TIMEOUT_S)
        for client in self._clients:
            ray.kill(client)
        self._clients = []
