"""A whole cluster by its commands: real Ray, ZooKeeper, actors, files; kills; and that nothing is left behind.

The tests build on each other, in order: a cluster costs ten seconds to start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

import waltz_ray
from waltz_ray.actors import local_ray
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.embedded import EmbeddedZooKeeper
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.finding import cluster_file

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]  # each command is a process that loads Ray


def until(condition: Callable[[], bool], what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended; a zombie has, its parent has just not asked yet."""

    def lives(process: psutil.Process) -> bool:
        try:
            return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:  # it has ended between the two
            return False

    return [process for process in processes if lives(process)]


def connections(process: psutil.Process) -> list[tuple[str, Any]]:
    """Of TCP, each with the process; none of one that has ended meanwhile, as Ray's workers do when a driver leaves."""
    try:
        who = " ".join(process.cmdline())[:60]
        return [(who, connection) for connection in process.net_connections("tcp")]
    except psutil.NoSuchProcess:  # also a zombie
        return []


class Lifecycle:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.payloads = [f"record {n}".encode() for n in range(200)]

    def waltz(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "waltz_ray", *arguments], capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def waltz_code(self, command: str) -> int:
        """The exit code of a command that may go either way."""
        arguments = [sys.executable, "-m", "waltz_ray", command, "--dir", str(self.directory)]
        return subprocess.run(arguments, capture_output=True, timeout=200, check=False).returncode

    def status(self) -> dict[str, Any]:
        """What it says, whatever its exit code says of it."""
        command = [sys.executable, "-m", "waltz_ray", "status", "--dir", str(self.directory), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.stdout, done.stderr
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def file(self) -> cluster_file.ClusterFile:
        found = cluster_file.read(self.directory)
        assert found is not None
        return found

    def processes(self) -> list[psutil.Process]:
        """Everything that belongs to this directory's cluster."""
        head = self.file().ray
        found = local_ray._family(head) if head else []
        pid = EmbeddedZooKeeper(self.directory / "zookeeper").pid
        return found + ([psutil.Process(pid)] if pid else [])

    def end(self) -> None:
        """Whatever happened: nothing of ours stays."""
        found = cluster_file.read(self.directory)
        if found is not None and found.ray is not None:
            local_ray.stop(found.ray)
        EmbeddedZooKeeper(self.directory / "zookeeper").stop()


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lifecycle]:
    life = Lifecycle(tmp_path_factory.mktemp("lifecycle"))
    try:
        life.waltz("up", "--dir", str(life.directory), "--cluster", "life", "--partitions", "2")
        yield life
    finally:
        life.end()


@pytest.fixture
def store(life: Lifecycle) -> Iterator[ClusterStore]:
    zookeeper = KazooZooKeeper(life.file().zookeeper)
    yield ClusterStore(zookeeper, "life")
    zookeeper.close()


def test_everything_is_ready_when_up_returns(life: Lifecycle) -> None:
    status = life.status()
    assert {p["state"] for s in status["servers"].values() for p in s["partitions"].values()} == {"READY"}
    assert {r["state"] for r in status["replicas"].values()} == {"SERVING"}
    # A quorum is enough to be ready: a replica that was slow to start joins later.
    until(lambda: [p["members"] for p in life.status()["partitions"]] == [[0, 1, 2]] * 2, "all replicas are members")
    table = life.waltz("status", "--cluster", "life").stdout
    assert "cluster life" in table
    assert "READY" in table


def test_it_listens_on_loopback_only(life: Lifecycle) -> None:
    # Ray's metrics agent listens on every address whatever it is told; everything that takes orders must not.
    open_to_all = [
        (who, connection.laddr)
        for process in life.processes()
        for who, connection in connections(process)
        if connection.status == psutil.CONN_LISTEN and not connection.laddr.ip.endswith("127.0.0.1")
    ]
    assert open_to_all == []


def test_up_again_changes_nothing_and_another_shape_is_refused(life: Lifecycle) -> None:
    before = life.status()
    again = life.waltz("up", "--dir", str(life.directory))
    assert "was running already" in again.stdout
    refused = life.waltz("up", "--dir", str(life.directory), "--partitions", "8", code=1)
    assert "partitions 2, not 8" in refused.stderr.splitlines()[-1]
    after = life.status()
    for actors in ("servers", "replicas"):
        assert {k: a["pid"] for k, a in before[actors].items()} == {k: a["pid"] for k, a in after[actors].items()}


def test_appends_survive_a_killed_server_and_a_killed_replica(life: Lifecycle, store: ClusterStore) -> None:
    status = life.status()
    with waltz_ray.connect("life", zookeeper=life.file().zookeeper) as client:
        for payload in life.payloads[:100]:
            client.append(0, payload).result(30)
        victim = store.assignment()[0].owners[0].server_id
        incarnation = store.replicas()[1].incarnation
        os.kill(status["servers"][str(victim)]["pid"], signal.SIGKILL)
        before = time.monotonic()
        until(lambda: store.assignment()[0].owners[0].server_id != victim, "the partition is assigned elsewhere")
        assert time.monotonic() - before < 4.0, "not left to the ZooKeeper session, which has 6 s"
        os.kill(status["replicas"]["1"]["pid"], signal.SIGKILL)
        for payload in life.payloads[100:]:
            client.append(0, payload).result(30)
    until(lambda: store.replicas()[1].incarnation != incarnation, "the replica is back at a new endpoint")
    until(lambda: victim in store.servers(), "the server is back")


def test_the_manager_and_zookeeper_come_back(life: Lifecycle, store: ClusterStore) -> None:
    pid = life.status()["manager"]["pid"]
    os.kill(pid, signal.SIGKILL)
    zookeeper = EmbeddedZooKeeper(life.directory / "zookeeper")
    first = zookeeper.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: zookeeper.pid not in (None, first), "ZooKeeper is started again")
    life.waltz("up", "--dir", str(life.directory))  # waits until everything is well
    manager = life.status()["manager"]
    assert manager["pid"] != pid


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """These processes hang, as far as anybody can tell."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_status_says_in_time_who_hangs(life: Lifecycle) -> None:
    def told(whom: str) -> str:
        before = time.monotonic()
        text = life.waltz("status", "--dir", str(life.directory), code=1).stdout
        assert time.monotonic() - before < 15 + 3 * usual_s, f"10 s, and room for a loaded machine: {text}"
        assert whom in text
        return text

    begin_s = time.monotonic()
    status = life.status()
    usual_s = time.monotonic() - begin_s  # most of it to import what it needs, which a loaded machine is long about
    zookeeper = EmbeddedZooKeeper(life.directory / "zookeeper").pid
    assert zookeeper is not None
    with stopped(zookeeper, status["servers"]["0"]["pid"], status["replicas"]["0"]["pid"]):
        text = told("server 0: NO ANSWER: does not answer for")
        assert "replica 0: NO ANSWER: does not answer for" in text
        until(lambda: "ZooKeeper: does not answer for" in told("replica 0"), "ZooKeeper's silence is told")
    until(lambda: life.waltz_code("status") == 0, "everything serves again", 90)
    with stopped(life.status()["manager"]["pid"]):
        text = told("manager: cluster-manager of cluster 'life' does not answer within")
        assert "SERVING" in text, "the others are asked without it"
    until(lambda: life.waltz_code("status") == 0, "everything serves again", 90)


def test_an_unknown_replica_cannot_be_replaced_nor_a_member(life: Lifecycle) -> None:
    unknown = life.waltz("replace-replica", "7", "--yes", "--dir", str(life.directory), code=1)
    assert "has no replica 7" in unknown.stderr
    until(lambda: all(p["members"] == [0, 1, 2] for p in life.status()["partitions"]), "all replicas are members")
    member = life.waltz("replace-replica", "1", "--yes", "--dir", str(life.directory), code=1)
    assert len(member.stderr.splitlines()) == 1


def test_a_replica_that_lost_its_disk_is_refused_until_replaced_and_then_copied(life: Lifecycle) -> None:
    (life.directory / "replica-2").rename(life.directory / "lost")  # its process ends by itself
    until(lambda: life.status()["replicas"]["2"]["state"] == "REFUSED", "the empty replica is refused")
    assert "waltz replace-replica 2" in life.waltz("status", "--dir", str(life.directory), code=1).stdout
    until(lambda: all(p["members"] == [0, 1] for p in life.status()["partitions"]), "sessions go on without it")
    life.waltz("replace-replica", "2", "--yes", "--dir", str(life.directory))
    until(lambda: all(p["members"] == [0, 1, 2] for p in life.status()["partitions"]), "it is a member again")
    replicas = life.status()["replicas"]
    last_ids = [replicas[n]["partitions"]["0"]["last_id"] for n in "012"]
    assert last_ids == [len(life.payloads) - 1] * 3


def test_a_damaged_control_file_is_told_by_replace_replica_and_can_be_set_aside(life: Lifecycle) -> None:
    control = life.directory / "replica-1" / "waltz-storage.ctl"
    control.write_bytes(b"\xff" * 300)
    os.kill(life.status()["replicas"]["1"]["pid"], signal.SIGKILL)
    until(lambda: life.status()["replicas"]["1"]["state"] == "REFUSED", "the damaged replica is refused")
    until(lambda: all(p["members"] == [0, 2] for p in life.status()["partitions"]), "sessions go on without it")
    refused = life.waltz("replace-replica", "1", "--yes", "--dir", str(life.directory), code=1).stderr.splitlines()[-1]
    assert "replica 1 was declared replaceable, but it is REFUSED" in refused
    assert str(control) in refused
    assert "--set-files-aside" in refused
    life.waltz("replace-replica", "1", "--yes", "--dir", str(life.directory), "--set-files-aside")
    until(lambda: all(p["members"] == [0, 1, 2] for p in life.status()["partitions"]), "it is a member again")
    (aside,) = life.directory.glob("aside-replica-1-*")
    assert (aside / "waltz-storage.ctl").read_bytes() == b"\xff" * 300


def test_down_ends_everything_and_up_has_it_all_again(life: Lifecycle) -> None:
    family = life.processes()
    assert len(family) > 8
    life.waltz("down", "--dir", str(life.directory))
    assert alive(family) == []
    assert "not running" in life.waltz("status", "--dir", str(life.directory), code=1).stderr
    life.waltz("verify", str(life.directory))
    life.waltz("up", "--dir", str(life.directory))
    with waltz_ray.connect("life", zookeeper=life.file().zookeeper) as client:
        assert [bytes(t.data) for t in client.read(0, 0, len(life.payloads))] == life.payloads


def test_what_a_killed_head_leaves_behind_is_ended_by_down(life: Lifecycle) -> None:
    family = life.processes()
    head = life.file().ray
    assert head is not None
    os.kill(head.pid, signal.SIGKILL)
    until(lambda: head.process() is None, "the head has died")
    assert len(life.processes()) > 3, "its children live on"
    life.waltz("down", "--dir", str(life.directory))
    assert alive(family) == []
