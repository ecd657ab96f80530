"""Several Ray nodes on one machine: bring-up by `ray job submit`, replicas tied to nodes, a node lost and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.cluster.harness import wait_until
from waltz_ray.actors import local_ray
from waltz_ray.actors.local_ray import LocalRay
from waltz_ray.client.ray_lookup import LOOPBACK_ONLY
from waltz_ray.connect import connect

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parent.parent.parent


class Node:
    """A raylet of its own with the custom resource of one replica's disk."""

    def __init__(self, head: LocalRay, replica_id: int, log: Path) -> None:
        resources = json.dumps({f"waltz-replica-{replica_id}": 1})
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={head.address}", "--block"),
                    *("--node-ip-address=127.0.0.1", f"--resources={resources}", "--num-cpus=1"),
                    *("--object-store-memory=80000000", "--disable-usage-stats"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
                | {LOOPBACK_ONLY: "0", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"},
            )

    def kill(self) -> None:
        """The whole node at once, as a power cut would."""
        family = [p for p in psutil.process_iter() if _session(p.pid) == self._process.pid]
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue  # was faster
        self._process.wait(20)
        psutil.wait_procs(family, timeout=20)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[LocalRay, dict[int, Node]]]:
    head = local_ray.start(tmp_path / "ray")
    running: dict[int, Node] = {}
    try:
        for replica_id in range(3):
            running[replica_id] = Node(head, replica_id, tmp_path / f"node-{replica_id}.log")
        yield head, running
    finally:
        for node in running.values():
            node.kill()
        local_ray.stop(head)


def waltz(*arguments: str) -> str:
    command = [sys.executable, "-m", "waltz_ray", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_a_cluster_of_several_nodes_survives_the_loss_of_one(
    tmp_path: Path, nodes: tuple[LocalRay, dict[int, Node]]
) -> None:
    head, running = nodes
    directory = tmp_path / "cluster"
    submitted = subprocess.run(
        [str(ROOT / "deploy" / "job.sh"), str(directory), "", "--cluster", "nodes", "--partitions", "2"],
        env={
            **os.environ,
            "RAY_API_SERVER_ADDRESS": f"http://{head.dashboard}",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    address = ["--cluster", "nodes", "--address", head.address]

    zookeeper = str(json.loads(waltz("status", *address, "--json"))["zookeeper"])
    with connect("nodes", zookeeper=zookeeper) as client:
        assert client.append_many(0, [b"before"] * 100).result(30)[-1] == 99
        running.pop(1).kill()
        assert client.append_many(0, [b"without"] * 100).result(60)[-1] == 199
        running[1] = Node(head, 1, tmp_path / "node-1.log")

        def back() -> bool:
            replica = json.loads(waltz("status", *address, "--json"))["replicas"]["1"]
            return bool(replica.get("partitions", {}).get("0", {}).get("last_id", -1) >= 199)

        wait_until(back, "replica 1 is back on its node and has caught up", 90)
        assert client.append(0, b"after").result(30) == 200
    assert waltz("down", *address)
