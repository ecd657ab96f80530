"""``waltz upgrade --rolling`` on a real cluster under load: every process another one, no error, nothing lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import waltz_ray
from tests.cli.test_lifecycle import Lifecycle, until
from tests.cli.test_members import PARTITIONS, Load, at
from waltz_ray import kv

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture
def life(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Lifecycle]:
    life = Lifecycle(tmp_path_factory.mktemp("upgrade"))
    layers = request.param
    try:
        size = ["--partitions", str(PARTITIONS), *layers]
        life.waltz("up", "--dir", str(life.directory), "--cluster", "upgraded", *size)
        yield life
    finally:
        life.end()


def pids(life: Lifecycle) -> dict[str, int]:
    """Of all processes; who does not answer just now, as on a busy machine, is asked again."""
    found: dict[str, int | None] = {}

    def told() -> bool:
        status = life.status()
        found["cluster-manager"] = status["manager"]["pid"]
        for kind, actors in (("server", "servers"), ("replica", "replicas"), ("kv", "kv"), ("topic", "topics")):
            found.update({f"{kind}/{number}": each["pid"] for number, each in status[actors].items()})
        return None not in found.values()

    until(told, "every process says its pid")
    return {name: int(pid or 0) for name, pid in found.items()}


def ended_well(life: Lifecycle, load: Load, before: dict[str, int]) -> None:
    """Everybody is another process, and what was committed is in the log, each once, in the order of its IDs."""
    life.waltz("status", *at(life))  # all is well
    after = pids(life)
    assert set(after) == set(before)
    assert [name for name, pid in after.items() if pid == before[name]] == []
    load.end()
    assert min(map(len, load.committed.values())) > 0
    with waltz_ray.connect(directory=str(life.directory)) as client:
        for p, committed in load.committed.items():
            found = {each.transaction_id: each.data for each in client.feed(p)}
            assert committed.items() <= found.items()
            assert len(set(found.values())) == len(found)


@pytest.mark.long
@pytest.mark.parametrize("life", [()], indirect=True)
def test_every_process_is_another_one_under_load_and_nothing_is_lost(life: Lifecycle) -> None:
    before = pids(life)
    planned = life.waltz("upgrade", "--rolling", "--dry-run", *at(life)).stdout
    order = "server/0, server/1, replica/0, replica/1, replica/2, cluster-manager"
    assert planned == f"nothing was changed; without --dry-run, in this order: {order}\n"
    assert pids(life) == before
    load = Load(life)
    done = life.waltz("upgrade", "--rolling", *at(life))
    assert "cluster upgraded: 6 processes were started again; there are 6 of version" in done.stdout
    assert "0 of 6: server/0: is started again" in done.stderr
    ended_well(life, load, before)


@pytest.mark.long
@pytest.mark.parametrize("life", [("--kv", "2", "--topics", "1")], indirect=True)
def test_with_layers_and_interrupted_it_goes_on(life: Lifecycle) -> None:
    before = pids(life)
    load = Load(life)
    with kv.connect("upgraded", directory=str(life.directory)) as items:
        items.set("before", 1)
        command = [sys.executable, "-m", "waltz_ray", "upgrade", "--rolling", *at(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as upgrading:
            until(lambda: pids(life)["server/0"] != before["server/0"], "the first is another one", 90)
            upgrading.send_signal(signal.SIGINT)
            upgrading.communicate(timeout=60)
            assert upgrading.returncode == 130
        told = json.loads(life.waltz("upgrade", "--rolling", "--json", *at(life)).stdout)
        assert "server/0" not in told["restarted"]
        assert told["restarted"][-4:] == ["kv/0", "kv/1", "topic/0", "cluster-manager"]
        assert sum(told["versions"].values()) == len(before)
        assert items.get("before") == 1
        items.set("after", 2)
    assert not any(row["draining"] for row in json.loads(life.waltz("server", "list", "--json", *at(life)).stdout))
    ended_well(life, load, before)
