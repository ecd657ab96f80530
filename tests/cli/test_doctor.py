"""What ``waltz doctor`` finds, what it says is to be done, and its exit codes."""

from __future__ import annotations

import json
import platform
import resource
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import run
from tests.cli.test_status import CLUSTER, SERVED, SERVER, SICK, answer, with_replica, with_server
from waltz_ray.config import ClusterConfig, HttpConfig, KvConfig, ServerConfig, StorageConfig
from waltz_ray.coordination import java
from waltz_ray.errors import ClusterNotFound, CoordinationError
from waltz_ray.protocol.session_replica import Phase
from waltz_ray.runtime.findings import NEARLY_FULL_BYTES, examine
from waltz_ray.runtime.process import about_process
from waltz_ray.runtime.status import (
    ClusterStatus,
    CursorStatus,
    LinkStatus,
    ManagerStatus,
    ProcessStatus,
    ReplicaProgress,
    ScrubStatus,
)
from waltz_ray.security.certificates import make_certificates

__all__ = ["answer"]

COPYING = {0: ReplicaProgress(Phase.MEMBER, 7), 1: ReplicaProgress(Phase.COPYING, 5)}

VERSION = about_process().version
PROCESS = ProcessStatus(version=VERSION, python="3.11.7", now_ms=98_000, open_files=700, open_files_limit=1000)
MANAGER = ManagerStatus(1, True, process=PROCESS)
HOLDING = CursorStatus(space="log", name="audit", positions={}, holds_retention=True, epoch=1, lag=9)

WORSE: list[tuple[ClusterStatus, str]] = [
    (
        with_server(links={0: LinkStatus(False, None, {}), 7: LinkStatus(False, None, {})}),
        "server 1: does not reach replica 0, which serves",
    ),
    (with_replica(slow="its disk is slow: a sync takes 300 ms"), "replica 0: its disk is slow: a sync takes 300 ms"),
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
    (
        with_replica(scrub=ScrubStatus(ended="KeyError: 7")),
        "replica 0: its files are not checked or repaired any more: KeyError: 7",
    ),
    (
        replace(with_replica(scrub=ScrubStatus(last_pass_ms=0)), at_ms=20 * 86_400_000),
        "replica 0: its files were not checked for 20 days",
    ),
    (
        replace(with_replica(scrub=ScrubStatus(5, 9, began_ms=0)), at_ms=21 * 86_400_000),
        "replica 0: its files were not checked for 21 days",
    ),
    (
        replace(with_server(process=replace(PROCESS, now_ms=94_000)), at_ms=100_000),
        "server 1: its clock is 6 s behind the manager's",
    ),
    (
        replace(with_replica(process=replace(PROCESS, now_ms=160_000)), at_ms=100_000),
        "replica 0: its clock is 60 s ahead of the manager's",
    ),
    (
        replace(with_replica(process=replace(PROCESS, version="0.0.9")), manager=MANAGER),
        f"replica 0: runs 0.0.9 on Python 3.11.7, the manager {VERSION} on 3.11.7",
    ),
    (
        with_server(process=replace(PROCESS, open_files=900)),
        "server 1: has 900 files open of the 1000 that it may have",
    ),
    (
        replace(CLUSTER, at_ms=3 * 86_400_000, cursors=(HOLDING,)),
        "cursor audit of space log: holds 9 transactions back from retention, and nobody has had it for 3 days",
    ),
    (
        replace(CLUSTER, upgrading=True),
        "cluster: an upgrade, or a change of settings, is under way, or was interrupted: some run as before",
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


def test_what_differs_little_is_no_problem() -> None:
    scrub = ScrubStatus(last_pass_ms=0)
    view = replace(with_replica(process=PROCESS, scrub=scrub), manager=MANAGER, at_ms=100_000)
    assert examine(replace(view, servers={1: replace(SERVER, process=PROCESS)})) == []
    owned = replace(HOLDING, owner="me")
    fresh = replace(HOLDING, changed_ms=2 * 86_400_000 + 1)
    done = replace(HOLDING, lag=0)
    assert examine(replace(CLUSTER, at_ms=3 * 86_400_000, cursors=(owned, fresh, done))) == []


def test_a_waltz_of_another_version_says_so(
    answer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = about_process()
    answer(replace(CLUSTER, manager=replace(MANAGER, process=own)))
    assert run("doctor") == 0
    answer(replace(CLUSTER, manager=replace(MANAGER, process=replace(own, version="9.9"))))
    assert run("doctor", "--json") == 1
    (problem,) = json.loads(capsys.readouterr().out.partition("\n")[2])["problems"]
    assert problem["problem"] == f"the waltz that says this is version {own.version}, the cluster's manager 9.9"


def test_a_process_says_what_it_runs_with() -> None:
    own = about_process()
    assert (own.python, own.version != "") == (platform.python_version(), True)
    assert abs(own.now_ms / 1000 - time.time()) < 60
    assert own.open_files is None or 0 < own.open_files <= own.open_files_limit


def test_a_replica_that_is_full_is_not_called_nearly_full_as_well() -> None:
    full = with_replica(problem="no space left", disk_free_bytes=0)
    assert [str(finding) for finding in examine(full)] == ["replica 0: no space left"]


def test_room_is_asked_for_only_where_that_is_what_a_replica_lacks() -> None:
    follows = "it does not follow spaces and trim marks yet:"
    remedies = [
        examine(with_replica(problem=problem))[0].remedy
        for problem in (
            f"{follows} /data/r/0: no space left on the disk; make room, nothing was acknowledged",
            f"{follows} /data/r/0: cannot be opened or read just now (Too many open files); raise (ulimit -n)",
            f"{follows} ZooKeeper node /c/store/spaces cannot be understood",
        )
    ]
    assert ["make room" in remedy for remedy in remedies] == [True, False, False]


def test_no_cluster_is_exit_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def nothing(name: str, directory: str, address: str) -> tuple[str, str]:
        raise ClusterNotFound("no cluster runs here")

    monkeypatch.setattr("waltz_ray.finding.find.find_on_ray", nothing)
    assert run("doctor") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "waltz: no cluster runs here\n"


def test_this_machine_is_looked_at_too(
    answer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
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
    make_certificates(tmp_path / "ends", [], [], 3)
    make_certificates(tmp_path / "good", [], [], 30)
    files = [dict[str, Any](tls_certificate=f"{tmp_path}/{name}/server.pem", tls_key="k") for name in ("ends", "good")]
    config = ClusterConfig(server=ServerConfig(**files[0]), kv=KvConfig(**files[0]), http=HttpConfig(**files[1]))
    answer(replace(CLUSTER, config=replace(config, storage=StorageConfig(tls_certificate="/elsewhere", tls_key="k"))))
    assert run("doctor", "--json") == 1
    (ends,) = json.loads(capsys.readouterr().out)["problems"][2:]
    assert f"the certificate {tmp_path}/ends/server.pem ends on 20" in ends["problem"]
    answer(replace(CLUSTER, zookeeper_server=None))  # somebody else's ZooKeeper, somebody else's Java
    monkeypatch.setattr(resource, "getrlimit", lambda what: (4096, 4096))
    assert run("doctor") == 0
