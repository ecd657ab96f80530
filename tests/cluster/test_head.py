"""Ray's head is lost: who appends notices nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.cluster.network import Felt
from tests.cluster.test_nodes import Nodes, several_nodes
from waltz_ray.bring_up import bring_up
from waltz_ray.config import ClusterConfig
from waltz_ray.connecting import connect
from waltz_ray.readiness import cluster_status

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    yield from several_nodes(tmp_path, monkeypatch, (0,), (1,), (2,))


def test_appends_go_on_without_rays_control_service(tmp_path: Path, nodes: Nodes) -> None:
    config = ClusterConfig(name="head", directory=str(tmp_path / "cluster"), partitions=2)
    zookeeper = bring_up(config, nodes.address, deadline_s=120).zookeeper
    view = cluster_status("head")
    pids = {actor.pid for actor in (*view.servers.values(), *view.replicas.values())}
    with connect("head", zookeeper=zookeeper) as client, Felt(client) as felt:
        felt.goes_on(500)
        print(f"nothing: {felt.longest_s():.3f} s")
        nodes.kill_gcs()
        until_s = time.monotonic() + 20.0
        while time.monotonic() < until_s:
            felt.goes_on(100)
        longest = felt.longest_s()
        print(f"20 s without the GCS: {longest:.3f} s")
        assert longest < 1.0
        assert all(pid is not None and psutil.pid_exists(pid) for pid in pids)
