"""The head of a Ray whose control service has a Redis dies and comes back: who appends notices nothing, and what dies
afterwards is started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import wait_until
from tests.cluster.network import Felt
from tests.operate.heads import HeadAndNode, head_and_node, needs_redis
from waltz_ray.connecting import connect

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300), needs_redis]

RESOURCES = {f"waltz-replica-{n}": 1 for n in range(3)}
ACTORS_OF_OURS = {"cluster-manager", "server/0", "server/1", "replica/0", "replica/1", "replica/2"}
LONGEST_S = 1.0
# Which actors Ray knows, by their names: an actor made anew would have another ID.
ACTORS = """
import json, sys
import ray
from waltz_ray.finding import ray_lookup
ray_lookup.join(sys.argv[1])
named = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True) if each["namespace"] == sys.argv[2]]
print(json.dumps({name: ray.get_actor(name, namespace=sys.argv[2])._actor_id.hex() for name in named}))
"""


class OnThisRay:
    def __init__(self, ray: HeadAndNode, name: str) -> None:
        self.ray, self.name = ray, name

    def waltz(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.ray.run("-m", "waltz_ray", *arguments, "--cluster", self.name, "--address", self.ray.address)

    def status(self) -> dict[str, Any]:
        done = self.waltz("status", "--json")
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def healthy(self) -> bool:
        return self.waltz("status").returncode == 0

    def actors(self) -> dict[str, str]:
        done = self.ray.run("-c", ACTORS, self.ray.address, f"waltz-{self.name}")
        assert done.returncode == 0, done.stderr
        found: dict[str, str] = json.loads(done.stdout)
        return found

    def pids(self) -> dict[str, int]:
        view = self.status()
        found = {f"{kind[:-1]}/{n}": each["pid"] for kind in ("servers", "replicas") for n, each in view[kind].items()}
        return found | {"cluster-manager": view["manager"]["pid"]}


@pytest.fixture
def ray() -> Iterator[HeadAndNode]:
    directory = Path(tempfile.mkdtemp(prefix="waltz-gcs-"))  # short: Ray has sockets in it
    try:
        with head_and_node(directory, json.dumps(RESOURCES)) as running:
            yield running
    finally:
        shutil.rmtree(directory)


def kill_gcs(ray: HeadAndNode) -> None:
    assert ray.head is not None
    ray.head.kill_gcs()


def kill_head(ray: HeadAndNode) -> None:
    assert ray.head is not None
    ray.head.kill()


@pytest.mark.parametrize("kill", [kill_gcs, kill_head])
def test_nobody_notices_that_the_head_dies_and_comes_back(
    tmp_path: Path, zookeeper_server: str, ray: HeadAndNode, kill: Callable[[HeadAndNode], None]
) -> None:
    file = tmp_path / "cluster.yaml"
    name = kill.__name__.replace("_", "-")
    file.write_text(f"""
name: {name}
directory: {tmp_path}/cluster
partitions: 2
servers: 2
zookeeper: {zookeeper_server}
""")
    done = ray.run("-m", "waltz_ray", "apply", "--config", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    operated = OnThisRay(ray, name)
    actors, pids = operated.actors(), operated.pids()
    assert actors.keys() == pids.keys() == ACTORS_OF_OURS
    assert ray.node is not None
    assert all(ray.node.carries(pid) for pid in pids.values()), "none of them is on the head"

    with connect(name, zookeeper=zookeeper_server) as client, Felt(client) as felt:
        felt.goes_on(500)
        felt.longest_s()
        kill(ray)
        felt.goes_on(500)
        away_s = felt.longest_s()
        ray.start_head()
        wait_until(operated.healthy, "waltz status has nothing to say", 60)
        felt.goes_on(500)
        back_s = felt.longest_s()
        print(f"longest append without the head {away_s:.3f} s, while it came back {back_s:.3f} s")
        assert max(away_s, back_s) < LONGEST_S
        assert operated.actors() == actors, "the same, none made anew"
        assert operated.pids() == pids, "and none was started again"

        os.kill(pids["server/1"], signal.SIGKILL)
        wait_until(lambda: operated.status()["servers"]["1"]["pid"] not in (None, pids["server/1"]), "server 1", 60)
        wait_until(operated.healthy, "everything serves", 60)
        felt.goes_on(500)
    assert operated.actors() == actors, "Ray has started it again: it was not made anew"
    assert operated.waltz("down").returncode == 0
