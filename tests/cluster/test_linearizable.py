"""What clients see of the log while servers and replicas are cut off, hang on to what they had, and come back: is it
what one copy could have shown? The histories are of real servers, replicas, sockets, files, and a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.cluster.harness import Cluster, wait_until
from tests.linearizability.log import Append, Appended, Caller, LogCall, log_model, resolved
from tests.linearizability.search import NotLinearizable, check
from tests.simulation.mutations_partition import (
    locks_are_forgotten_at_a_hand_over,
    locks_are_not_updated,
    ready_without_what_is_in_flight,
)
from waltz_ray.connecting import connect

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

PARTITIONS, CALLERS, CALLS = 2, 4, 40


class Scene:
    """Faults of ``cluster``, each while the callers go on."""

    def __init__(self, cluster: Cluster, callers: list[Caller], seed: int) -> None:
        self.cluster, self.callers, self.chance = cluster, callers, Random(seed)
        self.last_server = 1

    def go_on(self) -> None:
        """Until each caller has had a few more calls. What failed is raised at the end."""
        wanted = [len(each.calls) + CALLS for each in self.callers]

        def enough() -> bool:
            pairs = zip(self.callers, wanted, strict=True)
            return all(len(each.calls) >= count or each.errors for each, count in pairs)

        wait_until(enough, "calls going on", 60.0)

    def successor(self) -> int:
        self.last_server += 1
        self.cluster.start_server(self.last_server)
        return self.last_server

    def a_replica_is_cut_off(self) -> None:
        replica = self.chance.randrange(3)
        self.cluster.stop_replica(replica)
        self.go_on()
        self.cluster.start_replica(replica)

    def the_server_is_cut_off(self) -> None:
        self.cluster.stop_server(self.last_server)
        self.cluster.place([self.successor()])

    def the_partitions_move(self) -> None:
        old = self.last_server
        self.cluster.place([self.successor()])
        self.go_on()
        self.cluster.stop_server(old)

    def the_server_hears_nothing_of_its_successor(self) -> None:
        """It goes on believing that it has the partitions, and clients are connected to it."""
        zombie = self.last_server
        for watch in self.cluster.servers[zombie].watches:
            watch.cancel()
        self.cluster.place([self.successor()])
        self.go_on()
        self.cluster.stop_server(zombie)

    def everything_at_once(self) -> None:
        replica = self.chance.randrange(3)
        self.cluster.stop_replica(replica)
        self.the_server_is_cut_off()
        self.cluster.start_replica(replica)


FAULTS = [
    Scene.a_replica_is_cut_off,
    Scene.the_server_is_cut_off,
    Scene.the_partitions_move,
    Scene.the_server_hears_nothing_of_its_successor,
    Scene.everything_at_once,
]


def recorded(directory: Path, zookeeper: str, seed: int) -> list[LogCall]:
    """All faults, in any order, under all callers; in the end everything is read."""
    with Cluster(directory, zookeeper, partitions=PARTITIONS) as cluster:
        for partition in range(PARTITIONS):
            cluster.wait_members(partition, {0, 1, 2})
        clients = [connect(cluster.name, zookeeper=zookeeper) for _ in range(CALLERS)]
        seeds = enumerate(clients, 100 * seed)
        callers = [Caller(f"{number}", client, PARTITIONS, number) for number, client in seeds]
        try:
            scene = Scene(cluster, callers, seed)
            scene.go_on()
            for fault in scene.chance.sample(FAULTS, len(FAULTS)):
                fault(scene)
                scene.go_on()
        finally:
            for caller in callers:
                caller.stop()
        for partition in range(PARTITIONS):
            callers[0].read(partition, 0)
        for client in clients:
            client.close()
        return [call for caller in callers for call in caller.calls]


def shown_linearizable(calls: list[LogCall]) -> None:
    found = resolved(calls)
    assert check(found, log_model()) > 0
    appended = [call for call in found if isinstance(call.asked, Append) and isinstance(call.result, Appended)]
    assert len(appended) > CALLERS * CALLS, "there was something to see"
    assert {call.key for call in appended} == set(range(PARTITIONS))


def test_what_clients_see_is_what_one_log_could_have_shown(tmp_path: Path, zookeeper_server: str) -> None:
    shown_linearizable(recorded(tmp_path, zookeeper_server, 1))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 22))
def test_what_clients_see_under_many_orders_of_faults(tmp_path: Path, zookeeper_server: str, seed: int) -> None:
    shown_linearizable(recorded(tmp_path, zookeeper_server, seed))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "rule", [locks_are_not_updated, locks_are_forgotten_at_a_hand_over, ready_without_what_is_in_flight]
)
def test_a_broken_rule_is_noticed(
    tmp_path: Path,
    zookeeper_server: str,
    monkeypatch: pytest.MonkeyPatch,
    rule: Callable[[pytest.MonkeyPatch], None],
    seed: int,
) -> None:
    rule(monkeypatch)
    calls = recorded(tmp_path, zookeeper_server, seed)
    with pytest.raises(NotLinearizable):
        shown_linearizable(calls)
