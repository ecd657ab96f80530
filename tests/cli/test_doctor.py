"""What ``waltz doctor`` finds, what it says is to be done, and its exit codes."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from typing import Any

import pytest

from tests.cli.test_commands import run
from tests.cli.test_status import CLUSTER, SERVED, SERVER, SICK, answer, with_replica, with_server
from waltz_ray.coordination import java
from waltz_ray.errors import ClusterNotFound, CoordinationError
from waltz_ray.protocol.session_replica import Phase
from waltz_ray.runtime.findings import NEARLY_FULL_BYTES, examine
from waltz_ray.runtime.status import ClusterStatus, ReplicaProgress

__all__ = ["answer"]

COPYING = {0: ReplicaProgress(Phase.MEMBER, 7), 1: ReplicaProgress(Phase.COPYING, 5)}

WORSE: list[tuple[ClusterStatus, str]] = [
    (
        with_replica(disk_free_bytes=NEARLY_FULL_BYTES - 1, directory="/data/r"),
        "replica 0: its disk is nearly full: 1023 MB are left in /data/r",
    ),
    (
        with_server(partitions={0: replace(SERVED, replicas=COPYING)}),
        "partition 0: commits on 1 of 2 replicas: replica 1 is copying and 2 behind",
    ),
    (
        replace(
            CLUSTER, servers={1: replace(SERVER, partitions={0: SERVED, 1: SERVED}), 2: replace(SERVER, partitions={})}
        ),
        "server 2: has no partition while others have several",
    ),
]
"""It serves, and will not for long, or not as well as it could."""


@pytest.mark.parametrize(("view", "line"), SICK + WORSE, ids=[line for _, line in SICK + WORSE])
def test_every_problem_has_a_remedy(
    answer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], view: ClusterStatus, line: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    answer(view)
    found = examine(view)
    assert [str(finding) for finding in found] == [line]
    assert all(finding.remedy for finding in found)
    assert run("doctor") == 1
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    assert "".join(line.split()) in "".join(told.split())
    assert "".join(found[0].remedy.split()) in "".join(told.split())
    assert run("doctor", "--json") == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [f"{each['about']}: {each['problem']}" for each in problems] == [line]


def test_a_healthy_cluster_has_no_problem(answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answer(with_replica(disk_free_bytes=NEARLY_FULL_BYTES))
    assert run("doctor") == 0
    assert capsys.readouterr().out == "cluster c: no problem (1 partitions, 1 replicas, 1 servers)\n"


def test_a_replica_that_is_full_is_not_called_nearly_full_as_well() -> None:
    full = with_replica(problem="no space left", disk_free_bytes=0)
    assert [str(finding) for finding in examine(full)] == ["replica 0: no space left"]


def test_no_cluster_is_exit_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def nothing(name: str, directory: str, address: str) -> tuple[str, str]:
        raise ClusterNotFound("no cluster runs here")

    monkeypatch.setattr("waltz_ray.finding.find.find_on_ray", nothing)
    assert run("doctor") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "waltz: no cluster runs here\n"


def test_this_machine_is_looked_at_too(
    answer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_java() -> str:
        raise CoordinationError("no Java 17")

    monkeypatch.setattr(java, "find_java", no_java)
    monkeypatch.setattr(resource, "getrlimit", lambda what: (256, 4096))
    answer(CLUSTER)
    assert run("doctor", "--json") == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [each["problem"] for each in problems] == [
        "no Java 17",
        "a process may open 256 files; a replica of 1 partitions needs 515",
    ]
    answer(replace(CLUSTER, zookeeper_server=None))  # somebody else's ZooKeeper, somebody else's Java
    monkeypatch.setattr(resource, "getrlimit", lambda what: (4096, 4096))
    assert run("doctor") == 0
