"""Twelve replicas and six servers on a Ray of several nodes: comes up, serves, loses two of them, moves, drains.

``make scale`` prints the figures, which are in docs/performance.md.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.harness import wait_until
from tests.cluster.network import Felt
from tests.cluster.test_nodes import Nodes, several_nodes
from waltz_ray.bring_up import bring_up
from waltz_ray.client import WaltzClient
from waltz_ray.config import ClusterConfig
from waltz_ray.connecting import connect
from waltz_ray.members import Members
from waltz_ray.readiness import cluster_status, missing
from waltz_ray.runtime.status import ActorStatus
from waltz_ray.take_down import take_down_in

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(600)]

REPLICAS, SERVERS, PARTITIONS = 12, 6, 96
NAME = "scale"
PATIENCE_S = 150.0


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    groups = [tuple(range(first, first + 4)) for first in range(0, REPLICAS, 4)]
    yield from several_nodes(tmp_path, monkeypatch, *groups)


@contextmanager
def timed(what: str) -> Iterator[None]:
    begin_s = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - begin_s:.1f} s (load {os.getloadavg()[0]:.1f})", flush=True)


def everywhere(client: WaltzClient, data: bytes) -> None:
    """An append in every partition, all at once."""
    for future in [client.append(partition, data) for partition in range(PARTITIONS)]:
        future.result(PATIENCE_S)


def kill(actor: ActorStatus) -> None:
    assert actor.pid is not None
    os.kill(actor.pid, signal.SIGKILL)


def all_there() -> bool:
    return not missing(cluster_status(NAME, 60.0))


def test_twelve_replicas_and_six_servers(tmp_path: Path, nodes: Nodes) -> None:
    directory = tmp_path / "cluster"
    config = ClusterConfig(
        name=NAME, directory=str(directory), partitions=PARTITIONS, replicas=REPLICAS, servers=SERVERS, replication=3
    )
    with timed("up"):
        bring_up(config, nodes.address, deadline_s=300)
    try:
        with connect(NAME, directory=str(directory)) as client, Members(NAME, directory=str(directory)) as members:
            for data in (b"first", b"second"):
                with timed(f"an append in each of {PARTITIONS} partitions, the {data.decode()}"):
                    everywhere(client, data)
            killed_and_back(client)
            moved_and_drained(client, members)
            assert all(client.server_high_water_mark(partition) >= 4 for partition in range(1, PARTITIONS))
    finally:
        take_down_in(directory)


def killed_and_back(client: WaltzClient) -> None:
    """A replica and a server of partition 0."""
    view = cluster_status(NAME, 60.0)
    (first,) = (each for each in view.partitions if each.partition == 0)
    assert first.server is not None
    with Felt(client) as felt:
        for who, actor in (
            (f"replica {first.members[0]}", view.replicas[first.members[0]]),
            (f"server {first.server}", view.servers[first.server]),
        ):
            felt.goes_on()
            felt.longest_s()
            kill(actor)
            felt.goes_on()
            with timed(f"SIGKILL of {who}, until it is back"):
                wait_until(all_there, f"{who} is back", PATIENCE_S)
            print(f"felt: {felt.longest_s():.2f} s")
            everywhere(client, who.encode())


def moved_and_drained(client: WaltzClient, members: Members) -> None:
    with Felt(client, 1) as felt:
        felt.goes_on()
        wanted = sorted(set(range(REPLICAS)) - members.sets()[1])[:3]
        with timed("partition 1 to three other replicas"):
            members.wait_until_moved(members.move([1], wanted), print, PATIENCE_S)
        assert members.sets()[1] == set(wanted)
        with timed(f"a drain of replica 0, which has a part in {sum(0 in each for each in members.sets().values())}"):
            members.wait_until_moved(members.drain_replica(0), print, PATIENCE_S)
        assert not any(0 in each for each in members.sets().values())
        with timed("a drain of server 0"):
            members.drain_server(0)
            members.wait_until_server_has_none(0, print, PATIENCE_S)
        felt.goes_on()
        print(f"felt of the moves: {felt.longest_s():.2f} s")
    everywhere(client, b"last")
