"""Broken networks between the parts of a real cluster: who owns what, which fates are told, and what is felt.

Targets (docs/operations.md, "When the network breaks") are asserted with room for a busy machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import wait_until
from tests.cluster.network import Felt, NetworkCluster
from tests.cluster.test_log import final_numbers, records_on_disk, wait_converged
from tests.net.cutting_proxy import CuttingProxy, Way

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

Fault = Callable[[CuttingProxy], None]

FAULTS: dict[str, Fault] = {
    "cut": CuttingProxy.cut,
    "stalled": CuttingProxy.stall,
    "lost there": lambda link: link.lose(Way.THERE),
    "lost back": lambda link: link.lose(Way.BACK),
}


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


@pytest.mark.parametrize("fault", FAULTS)
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
