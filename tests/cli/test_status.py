"""What ``waltz status`` says is wrong, and its exit code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.test_commands import run
from waltz_ray import bring_up
from waltz_ray.actors import supervision
from waltz_ray.cli.status import troubles
from waltz_ray.errors import ClusterNotFound

CONNECTED = {"state": "connected", "silent_s": 1.2, "error": ""}


def a_view() -> dict[str, Any]:
    """One partition, server and replica; all is well."""
    return {
        "cluster": "c",
        "zookeeper": "127.0.0.1:1",
        "zookeeper_state": CONNECTED | {"view_age_s": 0.0, "view_error": ""},
        "zookeeper_server": {"state": "SERVING", "reason": "", "problem": ""},
        "manager": {"pid": 1, "leading": True, "supervision_error": ""},
        "partitions": [{"partition": 0, "server": 1, "generation": 1, "session": 3, "members": [0]}],
        "servers": {
            "1": {
                "state": "SERVING",
                "endpoint": "127.0.0.1:2",
                "connections": 0,
                "zookeeper": dict(CONNECTED),
                "partitions": {"0": {"state": "READY", "session": 3, "high_water_mark": 7}},
            }
        },
        "replicas": {
            "0": {
                "state": "SERVING",
                "reason": "",
                "problem": "",
                "since_ms": 0,
                "partitions": {"0": {"last_id": 7, "low_water_mark": 5, "damaged": None}},
            }
        },
    }


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the manager will answer."""
    view = a_view()
    monkeypatch.setattr("waltz_ray.finding.find.find_on_ray", lambda name, directory, address: ("c", "LOCALHOST:9"))
    monkeypatch.setattr(bring_up, "cluster_status", lambda name, timeout_s: view)
    return view


def test_all_is_well(view: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert troubles(view) == []
    assert run("status") == 0
    assert "ZooKeeper 127.0.0.1:1 (connected)" in capsys.readouterr().out


def test_nothing_is_cut_on_a_narrow_terminal(
    view: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    view["servers"]["1"]["endpoint"] = "node-17.of-some-data-centre.example.org:51234"
    view["servers"]["1"]["partitions"] |= {str(p): {"state": "READY"} for p in range(1, 30)}
    assert run("status") == 0
    table = capsys.readouterr().out
    assert "…" not in table
    assert max(map(len, table.splitlines())) <= 80


SICK: list[tuple[str, dict[str, Any], str]] = [
    ("zookeeper_server", {"problem": "the disk of d is full"}, "ZooKeeper's server: the disk of d is full"),
    (
        "zookeeper_server",
        {"state": "DOWN", "reason": "No space left"},
        "ZooKeeper's server: DOWN: No space left",
    ),
    ("replicas.0", {"state": "REFUSED", "reason": "no"}, "replica 0: REFUSED since 1970-01-01 00:00:00 UTC: no"),
    ("replicas.0", {"problem": "no space left"}, "replica 0: no space left"),
    ("replicas.0.partitions.0", {"damaged": "rot", "last_id": None}, "replica 0, partition 0: rot"),
    (
        "servers.1",
        {"state": "NO ANSWER", "silent_s": 41.0, "reason": "hung"},
        "server 1: NO ANSWER: does not answer for 41 s: hung",
    ),
    ("servers.1.zookeeper", {"silent_s": 8.0}, "server 1: ZooKeeper: does not answer for 8 s (connected)"),
    ("servers.1.partitions.0", {"state": "NOT_READY"}, "partition 0: not ready, server 1 has it"),
    ("manager", {"supervision_error": "Ray said no"}, "manager: Ray said no"),
    (
        "zookeeper_state",
        {"state": "suspended", "silent_s": 9.0, "error": "gone", "view_age_s": 11.0},
        "ZooKeeper: does not answer for 9 s (suspended: gone); what is shown of it was read 11 s ago",
    ),
]


@pytest.mark.parametrize(("where", "change", "line"), SICK, ids=[line for _, _, line in SICK])
def test_whatever_does_not_serve_is_a_line_and_exit_code_1(
    view: dict[str, Any], capsys: pytest.CaptureFixture[str], where: str, change: dict[str, Any], line: str
) -> None:
    at = view
    for key in where.split("."):
        at = at[key]
    at.update(change)
    assert troubles(view) == [line]
    assert run("status") == 1
    assert line in capsys.readouterr().out
    assert run("status", "--json") == 1
    assert json.loads(capsys.readouterr().out) == view


def test_a_partition_that_nobody_has(view: dict[str, Any]) -> None:
    view["partitions"][0]["server"] = None
    assert troubles(view) == ["partition 0: not ready, no server has it"]


def silent_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(name: str, timeout_s: float) -> dict[str, Any]:
        raise ClusterNotFound("cluster-manager of cluster 'c' does not answer within 5 s")

    monkeypatch.setattr(bring_up, "cluster_status", nobody)


def test_a_silent_manager_hides_nothing_that_can_be_learned_without_it(
    view: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent_manager(monkeypatch)
    server = view["servers"]["1"]
    server["partitions"]["0"] |= {"generation": 4, "members": [0]}
    view["zookeeper_server"]["problem"] = "the disk of d is full"
    answers = {"server/1": server, "replica/0": view["replicas"]["0"], "zookeeper": view["zookeeper_server"]}
    running = ["cluster-manager", "server/1", "replica/0", "zookeeper"]
    monkeypatch.setattr(supervision, "running_actors", lambda name: running)
    monkeypatch.setattr(bring_up, "running_actors", lambda name: running)
    monkeypatch.setattr(bring_up, "statuses", lambda name, names: {name: answers[name] for name in names})
    assert run("status") == 1
    told = capsys.readouterr().out
    assert "manager: cluster-manager of cluster 'c' does not answer within 5 s" in told
    assert "READY" in told
    assert "127.0.0.1:2" in told
    assert "ZooKeeper's server: the disk of d is full" in told


def test_no_actors_at_all_is_no_cluster(
    view: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent_manager(monkeypatch)
    monkeypatch.setattr(supervision, "running_actors", lambda name: [])
    assert run("status") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "does not answer" in captured.err
