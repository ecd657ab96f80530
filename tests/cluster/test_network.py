"""Broken networks between the parts of a real cluster: who owns what, which fates are told, and what is felt.

Targets (docs/operations.md, "When the network breaks") are asserted with room for a busy machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.cluster.harness import wait_until
from tests.cluster.network import Felt, NetworkCluster
from tests.cluster.test_linearizable import shown_linearizable
from tests.cluster.test_log import final_numbers, records_on_disk, wait_converged
from tests.linearizability.log import Caller
from tests.net.cutting_proxy import CuttingProxy, Way

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

Fault = Callable[[CuttingProxy], None]

FAULTS: dict[str, Fault] = {
    "cut": CuttingProxy.cut,
    "stalled": CuttingProxy.stall,
    "lost there": lambda link: link.lose(Way.THERE),
    "lost back": lambda link: link.lose(Way.BACK),
}


def quick(*names: str) -> list[Any]:
    """All faults; those that are not named only where there is time."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.long) for name in FAULTS]


@pytest.fixture
def cluster(tmp_path: Path, zookeeper_server: str) -> Iterator[NetworkCluster]:
    with NetworkCluster(tmp_path, zookeeper_server) as running:
        running.wait_members(0, {0, 1, 2})
        yield running


@pytest.fixture
def two(tmp_path: Path, zookeeper_server: str) -> Iterator[NetworkCluster]:
    """With two servers, of which the first has the partition."""
    with NetworkCluster(tmp_path, zookeeper_server, servers=2) as running:
        running.store.set_preferred(1, [0])
        running.wait_members(0, {0, 1, 2})
        wait_until(lambda: 0 in running.servers[1].assigned, "the first server has it")
        yield running


def shown_whole(cluster: NetworkCluster, *felt: Felt) -> None:
    """Everything that was told is in the log, once, and all replicas have the same bytes."""
    cluster.wait_members(0, {0, 1, 2})
    with cluster.client("reader") as reader:
        log = list(final_numbers(reader, 0))
    for each in felt:
        each.check(log)
    assert len(log) == sum(len(each.ids) for each in felt)
    wait_converged(cluster, 0, len(log) - 1)
    assert len({records_on_disk(cluster, replica, 0) for replica in (0, 1, 2)}) == 1


@pytest.mark.parametrize("fault", quick("cut", "lost back"))
def test_a_server_loses_a_minority_of_its_replicas(cluster: NetworkCluster, fault: str) -> None:
    with cluster.client("client") as client, Felt(client) as felt:
        felt.goes_on()
        felt.longest_s()
        (link,) = cluster.between("server 1", "replica 2")
        FAULTS[fault](link)
        felt.goes_on(200)
        cluster.wait_members(0, {0, 1})
        felt.goes_on(200)
        assert felt.longest_s() < 2.0
        link.heal()
        cluster.wait_members(0, {0, 1, 2})
        felt.goes_on()
        assert felt.longest_s() < 2.0
    shown_whole(cluster, felt)


def owner(cluster: NetworkCluster) -> int:
    found = cluster.store.assignment()[0].owner(0)
    assert found is not None
    return found.server_id


@pytest.mark.parametrize("fault", quick("cut", "lost there"))
def test_a_server_loses_a_majority_of_its_replicas_and_another_one_takes_over(two: NetworkCluster, fault: str) -> None:
    """What hangs is noticed after ``replica_timeout_ms`` (2 s here); what is cut at once."""
    with two.client("client") as client, Felt(client) as felt:
        felt.goes_on()
        felt.longest_s()
        links = two.between("server 1", "replica 1", "replica 2")
        for link in links:
            FAULTS[fault](link)
        wait_until(lambda: owner(two) == 2, "the other server is given the partition")
        felt.goes_on()
        assert felt.longest_s() < (3.0 if fault == "cut" else 6.0)
        for link in links:
            link.heal()
        wait_until(lambda: owner(two) == 1, "it is well again, and preferred")
        felt.goes_on()
        assert felt.longest_s() < 2.0
    shown_whole(two, felt)


def test_where_all_servers_lose_the_replicas_nothing_moves(two: NetworkCluster) -> None:
    with two.client("client") as client, Felt(client) as felt:
        felt.goes_on()
        links = two.network.links(lambda who, whom: whom in ("replica 1", "replica 2"))
        assert len(links) == 4
        generation, used = two.served(0).generation, two.network.link("client", "server 1").accepted
        for link in links:
            link.cut()
        felt.stands(3.0)
        assert two.network.link("client", "server 1").accepted <= used + 1, (
            "its server answers, though it cannot commit"
        )
        for link in links:
            link.heal()
        felt.goes_on()
        assert two.served(0).generation <= generation + 2, "one server is seen a look later than the other, at most"
    shown_whole(two, felt)


@pytest.mark.parametrize("fault", quick("lost back"))
def test_a_client_alone_is_cut_off_from_everybody(cluster: NetworkCluster, fault: str) -> None:
    with (
        cluster.client("alone") as alone,
        cluster.client("other") as other,
        Felt(alone, name="alone") as cut_off,
        Felt(other, name="other") as felt,
    ):
        cut_off.goes_on()
        felt.goes_on()
        felt.longest_s()
        links = cluster.network.of("alone")
        assert len(links) == 2
        for link in links:
            FAULTS[fault](link)
        cut_off.stands(2.5)
        felt.goes_on()
        assert felt.longest_s() < 1.0
        for link in links:
            link.heal()
        cut_off.goes_on()
        assert felt.longest_s() < 1.0
    shown_whole(cluster, cut_off, felt)


def test_a_client_whose_connections_somebody_has_forgotten_notices_in_time(cluster: NetworkCluster) -> None:
    """Within the time-out of an append."""
    with cluster.client("client") as client, Felt(client) as felt:
        felt.goes_on()
        felt.longest_s()
        cluster.network.link("client", "server 1").forget()
        felt.goes_on()
        assert felt.longest_s() < 2.5, "2 s, with room for a busy machine"
    shown_whole(cluster, felt)


@pytest.mark.parametrize("fault", quick("stalled"))
def test_nobody_notices_that_the_manager_is_alone(two: NetworkCluster, fault: str) -> None:
    with two.client("client") as client, Felt(client) as felt:
        felt.goes_on()
        felt.longest_s()
        generation = two.served(0).generation
        for link in two.network.of("manager"):
            FAULTS[fault](link)
        until_s = time.monotonic() + 4.0  # longer than its session
        while time.monotonic() < until_s:
            felt.goes_on()
        assert felt.longest_s() < 1.0
        assert two.served(0).generation == generation, "who hears nobody is deaf himself"
        two.network.heal()
        felt.goes_on()
    shown_whole(two, felt)


@pytest.mark.parametrize("fault", quick()[1:])
def test_the_manager_alone_does_not_hear_a_server(two: NetworkCluster, fault: str) -> None:
    """It is given nothing although it lives, and knows: a move, and not two owners."""
    with two.client("client") as client, Felt(client) as felt:
        felt.goes_on()
        felt.longest_s()
        (link,) = two.between("manager", "server 1")
        FAULTS[fault](link)
        wait_until(lambda: owner(two) == 2, "the other server is given the partition")
        felt.goes_on()
        link.heal()
        wait_until(lambda: owner(two) == 1, "it is heard again, and preferred")
        felt.goes_on()
        assert felt.longest_s() < 2.0
    shown_whole(two, felt)


@pytest.mark.parametrize("fault", quick())
def test_a_server_cut_off_from_zookeeper_goes_on_until_another_one_has_its_partitions(
    two: NetworkCluster, fault: str
) -> None:
    """Its registration ends with its session. It is fenced off by the replicas, and its clients hear of the other."""
    with two.client("client") as client, Felt(client) as felt:
        felt.goes_on()
        felt.longest_s()
        (link,) = two.between("server 1", "zookeeper")
        FAULTS[fault](link)
        wait_until(lambda: owner(two) == 2, "its session has ended", 40.0)
        felt.goes_on()
        assert felt.longest_s() < 2.0
        link.heal()
        wait_until(lambda: owner(two) == 1, "it is there again, and preferred", 40.0)
        felt.goes_on()
        assert felt.longest_s() < 2.0
    shown_whole(two, felt)


def test_200_ms_each_way_are_slow_and_nothing_else(two: NetworkCluster) -> None:
    with two.client("client") as client, Felt(client) as felt:
        felt.goes_on()
        session, generation = two.served(0).session, two.served(0).generation
        for link in two.network.links(lambda who, whom: True):
            link.delay(0.2)
        felt.goes_on(2)
        felt.longest_s()
        felt.goes_on(5)
        assert 0.7 < felt.longest_s() < 2.5, "there, to the replicas, and back"
        now = two.served(0)
        assert (now.session, now.generation, now.members) == (session, generation, (0, 1, 2)), "it flaps"
        two.network.heal()
        felt.goes_on()
    shown_whole(two, felt)


WAYS = [Way.THERE], [Way.BACK], [Way.THERE, Way.BACK]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 9))
def test_what_clients_see_through_a_broken_network_is_what_one_log_could_have_shown(
    tmp_path: Path, zookeeper_server: str, seed: int
) -> None:
    """Any links, broken in any way, a few at a time, under callers with appends, locks and reads; then all is well."""
    chance = Random(seed)
    with NetworkCluster(tmp_path, zookeeper_server, partitions=2, servers=2) as cluster, ExitStack() as stack:
        for partition in range(2):
            cluster.wait_members(partition, {0, 1, 2})
        clients = [stack.enter_context(cluster.client(f"client {number}")) for number in range(4)]
        callers = [Caller(f"{number}", client, 2, 100 * seed + number) for number, client in enumerate(clients)]
        try:
            for _ in range(8):
                links = cluster.network.links(lambda who, whom: True)
                for link in chance.sample(links, chance.randrange(1, 5)):
                    lose, delay = (
                        partial(link.lose, *chance.choice(WAYS)),
                        partial(link.delay, chance.uniform(0.01, 0.2)),
                    )
                    faults: list[Callable[[], None]] = [link.cut, link.forget, lose, delay]
                    chance.choice(faults)()
                time.sleep(chance.uniform(0.1, 3.0))  # how long it lasts
                cluster.network.heal()
                before = [len(each.calls) for each in callers]
                wait_until(
                    lambda: all(len(c.calls) >= n + 20 or c.errors for c, n in zip(callers, before, strict=True)),  # noqa: B023
                    "calls going on",
                    60.0,
                )
        finally:
            for caller in callers:
                caller.stop()
        for partition in range(2):
            callers[0].read(partition, 0)
        shown_linearizable([call for caller in callers for call in caller.calls])
