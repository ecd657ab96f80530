"""Several Ray nodes on one machine: bring-up by `ray job submit`, replicas tied to nodes, a node lost and back."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.cluster.harness import wait_until
from waltz_ray.actors.local_ray import LOOPBACK_ONLY
from waltz_ray.actors.supervision import alive_nodes
from waltz_ray.connecting import connect
from waltz_ray.coordination.embedded import EmbeddedZooKeeper
from waltz_ray.finding import ray_lookup

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parent.parent.parent
_SMALL: dict[str, Any] = {"object_store_memory": 80_000_000, "node_ip_address": "127.0.0.1"}


class Nodes:
    """A Ray head with a dashboard, and raylets that alone offer the resources of their replicas' disks."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        head = {"num_cpus": 2, "include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": port}
        self._cluster = Cluster(initialize_head=True, connect=False, head_node_args=head | _SMALL)
        self._nodes: dict[int, Any] = {}
        self._added = 0
        self.address = str(self._cluster.address)
        self.dashboard = f"http://127.0.0.1:{port}"

    def add(self, replica_id: int, *further: int) -> None:
        """A node with the disk of this replica, and of others; it is called after the first."""
        resources = {f"waltz-replica-{each}": 1 for each in (replica_id, *further)}
        # A node's agent of Ray deletes a job's working directory and unpacks it anew when it first needs it. Machines
        # have one each; these nodes share a session's, and one would delete what a worker of another imports.
        self._added += 1
        own = {"runtime_env_dir_name": f"runtime_resources_{self._added}"}
        self._nodes[replica_id] = self._cluster.add_node(num_cpus=1, resources=resources, wait=False, **own, **_SMALL)

    def kill(self, replica_id: int) -> None:
        """The whole node at once, as a power cut would."""
        self._cluster.remove_node(self._nodes.pop(replica_id), allow_graceful=False)

    def kill_gcs(self) -> None:
        """The head's control service, which knows all actors; what it knew is lost."""
        head: Any = self._cluster.head_node
        head.kill_gcs_server(check_alive=False)

    def start_gcs(self) -> None:
        """Again, empty, at the same port."""
        head: Any = self._cluster.head_node
        head.start_gcs_server()

    def close(self) -> None:
        self._cluster.shutdown()  # type: ignore[no-untyped-call]


def several_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *replicas: tuple[int, ...]) -> Iterator[Nodes]:
    """One for each group of replicas, and the head."""
    monkeypatch.setenv(LOOPBACK_ONLY, "0")
    monkeypatch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    running = Nodes()
    try:
        for group in replicas:
            running.add(*group)
        ray_lookup.join(running.address)
        wait_until(lambda: len(alive_nodes()) == 1 + len(replicas), "all nodes have joined", 60)
        yield running
    finally:
        ray_lookup.leave()
        running.close()
        EmbeddedZooKeeper(tmp_path / "cluster" / "zookeeper").stop()  # is still there where the test failed


def take_jobs(nodes: int) -> bool:
    """Whether Ray's agents of so many nodes have said where they are: who submits a job waits ten seconds for one."""
    from ray.dashboard.consts import DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX
    from ray.experimental.internal_kv import _internal_kv_list

    return len(_internal_kv_list(DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX, namespace=b"dashboard")) >= nodes


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    yield from several_nodes(tmp_path, monkeypatch, (0,), (1,), (2,))


def waltz(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "waltz_ray", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_a_cluster_of_several_nodes_survives_the_loss_of_one(tmp_path: Path, nodes: Nodes) -> None:
    directory = tmp_path / "cluster"
    file = tmp_path / "nodes.yaml"
    file.write_text(f"name: nodes\ndirectory: {directory}\npartitions: 2\n")
    job = ("python", "deploy/bring_up.py", "--config", str(file))
    wait_until(lambda: take_jobs(4), "Ray's agents take jobs", 120)
    submitted = subprocess.run(
        ["ray", "job", "submit", "--working-dir", str(ROOT), "--", *job],
        env={**os.environ, "RAY_API_SERVER_ADDRESS": nodes.dashboard},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    address = ["--cluster", "nodes", "--address", nodes.address]

    first = json.loads(waltz("status", *address, "--json").stdout)
    logged = [json.loads(line) for line in waltz("log", *address, "--json").stdout.splitlines()]
    assert {"cluster-manager", "replica/0", "replica/1", "replica/2", "server/0"} <= {each["actor"] for each in logged}
    assert len({(each["at_ms"], each["actor"], each["text"]) for each in logged}) > 0.9 * len(logged), "each once"
    with urlopen(f"{nodes.dashboard}/logical/actors", timeout=60) as answer:
        shown = json.load(answer)["data"]["actors"].values()
    assert f"waltz nodes http://{first['manager']['http']}/" in [each["reprName"] for each in shown]
    zookeeper = str(first["zookeeper"])
    assert len({replica["node"] for replica in first["replicas"].values()}) == 3, "each replica is on its own node"
    with connect("nodes", zookeeper=zookeeper) as client:
        assert client.append_many(0, [b"before"] * 100).result(30)[-1] == 99
        nodes.kill(1)
        assert client.append_many(0, [b"without"] * 100).result(60)[-1] == 199
        nodes.add(1)

        def back() -> bool:
            status = waltz("status", *address, "--json")
            if not status.stdout:  # Ray may have placed the manager on the node that was lost: it is moving
                assert "cluster-manager" in status.stderr
                return False
            replica = json.loads(status.stdout)["replicas"].get("1", {})
            return bool(replica.get("partitions", {}).get("0", {}).get("last_id", -1) >= 199)

        wait_until(back, "replica 1 is back on its node and has caught up", 90)
        assert client.append(0, b"after").result(30) == 200
    assert waltz("down", *address).returncode == 0
