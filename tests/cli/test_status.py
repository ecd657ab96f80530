"""What ``waltz status`` says is wrong, and its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.cli.test_commands import run
from waltz_ray import readiness
from waltz_ray.actors import supervision
from waltz_ray.errors import ClusterNotFound
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.replica import RefusalCode
from waltz_ray.protocol.partition.state import Stage
from waltz_ray.protocol.session_replica import Phase
from waltz_ray.protocol.spaces import Space, SpaceState
from waltz_ray.runtime.findings import what_does_not_serve
from waltz_ray.runtime.status import (
    ActorState,
    ClusterStatus,
    CursorStatus,
    EmbeddedZooKeeperStatus,
    KvActorStatus,
    KvSpaceStatus,
    LinkStatus,
    ManagerStatus,
    PartitionAssignment,
    Readiness,
    ReplicaProgress,
    ReplicaStatus,
    RottenSegment,
    ScrubStatus,
    ServedPartition,
    ServerStatus,
    StoredPartition,
    ZooKeeperStatus,
    ZooKeeperView,
    to_json,
)

SERVED = ServedPartition(
    generation=4,
    state=Readiness.READY,
    stage=Stage.OPEN,
    session=3,
    low_water_mark=5,
    high_water_mark=7,
    members=(0,),
    replicas={0: ReplicaProgress(Phase.MEMBER, 7)},
    in_flight_bytes=0,
    subscribers=0,
)
SERVER = ServerStatus(
    state=ActorState.SERVING,
    pid=11,
    server_id=1,
    endpoint=Endpoint("127.0.0.1", 2),
    connections=0,
    links={0: LinkStatus(True, Endpoint("127.0.0.1", 3), {RefusalCode.NOT_CONTIGUOUS: 2})},
    partitions={0: SERVED},
    zookeeper=ZooKeeperStatus("connected", 1.2, ""),
)
REPLICA = ReplicaStatus(
    state=ActorState.SERVING,
    pid=12,
    replica=0,
    since_ms=0,
    endpoint=Endpoint("127.0.0.1", 3),
    partitions={0: StoredPartition(session=3, last_id=7, low_water_mark=5)},
)
ZOOKEEPER = EmbeddedZooKeeperStatus(state=ActorState.SERVING, pid=13)
CLUSTER = ClusterStatus(
    cluster="c",
    zookeeper="127.0.0.1:1",
    zookeeper_state=ZooKeeperView("connected", 1.2, "", 0.0, ""),
    zookeeper_server=ZOOKEEPER,
    manager=ManagerStatus(1, True),
    partitions=(PartitionAssignment(0, 1, 4, 3, (0,)),),
    servers={1: SERVER},
    replicas={0: REPLICA},
)
"""One partition, server and replica; all is well."""


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[ClusterStatus], None]:
    """Sets what the manager will answer."""
    monkeypatch.setattr("waltz_ray.finding.find.find_on_ray", lambda name, directory, address: ("c", "LOCALHOST:9"))

    def with_view(view: ClusterStatus) -> None:
        monkeypatch.setattr(readiness, "cluster_status", lambda name, timeout_s: view)

    return with_view


def test_all_is_well(answer: Callable[[ClusterStatus], None], capsys: pytest.CaptureFixture[str]) -> None:
    answer(CLUSTER)
    assert what_does_not_serve(CLUSTER) == []
    assert run("status") == 0
    assert "ZooKeeper 127.0.0.1:1 (connected)" in capsys.readouterr().out


def with_server(**changes: Any) -> ClusterStatus:
    return replace(CLUSTER, servers={1: replace(SERVER, **changes)})


def with_replica(**changes: Any) -> ClusterStatus:
    return replace(CLUSTER, replicas={0: replace(REPLICA, **changes)})


def test_nothing_is_cut_on_a_narrow_terminal(
    answer: Callable[[ClusterStatus], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("waltz_ray.cli.common.plain", lambda: False)  # as on a terminal
    far = Endpoint("node-17.of-some-data-centre.example.org", 51234)
    answer(with_server(endpoint=far, partitions=dict.fromkeys(range(30), SERVED)))
    assert run("status") == 0
    table = capsys.readouterr().out
    assert "…" not in table
    assert max(map(len, table.splitlines())) <= 80


def test_cursors_are_told_where_there_are_some(
    answer: Callable[[ClusterStatus], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("waltz_ray.cli.common.plain", lambda: False)  # as on a terminal
    cursor = CursorStatus(
        space="log", name="audit", positions={0: 5}, holds_retention=True, epoch=2, owner="pid 7", since_ms=0, lag=1234
    )
    answer(replace(CLUSTER, cursors=(cursor, replace(cursor, name="mail", owner=None, since_ms=None, lag=None))))
    assert run("status") == 0
    audit, mail = [line.replace(" ", "") for line in capsys.readouterr().out.splitlines() if "log" in line]
    assert audit == "│audit│log│1234│pid7│1970-01-0100:00:00UTC│yes│1970-01-0100:00:00UTC│"
    assert mail == "│mail│log│?│-│-│yes│1970-01-0100:00:00UTC│"


HALF = ScrubStatus(done_bytes=50, total_bytes=100, began_ms=1)
RUNNING = RottenSegment(0, "f", "f: damaged", "")


@pytest.mark.parametrize(
    ("scrub", "told"),
    [
        (ScrubStatus(), "never"),
        (HALF, "50 %"),
        (replace(HALF, last_pass_ms=86_400_000), "1970-01-02 00:00 UTC"),
        (replace(HALF, unrepaired=(RUNNING,)), "50 %, 1 damaged"),
    ],
)
def test_how_far_the_scrub_is(
    answer: Callable[[ClusterStatus], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    scrub: ScrubStatus,
    told: str,
) -> None:
    """What is being repaired is no trouble yet."""
    monkeypatch.setenv("COLUMNS", "200")
    answer(with_replica(scrub=scrub))
    assert run("status") == 0
    assert told in capsys.readouterr().out


KV_SPACE_SAID = KvSpaceStatus(
    endpoint=Endpoint("127.0.0.1", 4),
    incarnation="i",
    mask=0xF,
    primaries=8,
    secondaries=8,
    lease=True,
    marks={0: 7},
    connections=3,
    commands=9,
    waiting=0,
    live_bytes=5,
    tail_bytes=6,
    snapshots=0,
)
KV = KvActorStatus(state=ActorState.SERVING, actor=0, spaces={"items": KV_SPACE_SAID})
WITH_KV = replace(
    CLUSTER,
    kv={0: KV, 1: replace(KV, actor=1)},
    spaces=(Space("log", "log", 0, 1, SpaceState.READY), Space("items", "kv", 1, 16, SpaceState.READY)),
)


def with_kv(**changes: Any) -> ClusterStatus:
    return replace(WITH_KV, kv={**WITH_KV.kv, 0: replace(KV, **changes)})


def test_kv_actors_and_what_they_serve_are_shown(
    answer: Callable[[ClusterStatus], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("waltz_ray.cli.common.plain", lambda: False)  # as on a terminal
    asks = replace(KV_SPACE_SAID, lease=False)
    answer(replace(WITH_KV, kv={**WITH_KV.kv, 1: replace(KV, spaces={"items": asks})}))
    assert run("status") == 0
    first, second = [
        line.replace(" ", "") for line in capsys.readouterr().out.splitlines() if "items" in line and ":4" in line
    ]
    assert first == "│0│SERVING│items│127.0.0.1:4│F│8│8│yes│3│"
    assert second == "│1│SERVING│items│127.0.0.1:4│F│8│8│no│3│"


def test_a_kv_actor_that_has_opened_nothing_is_shown_too(
    answer: Callable[[ClusterStatus], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("waltz_ray.cli.common.plain", lambda: False)  # as on a terminal
    answer(with_kv(state=ActorState.STARTING, reason="space items is being opened", spaces={}))
    assert run("status") == 1
    told = capsys.readouterr().out
    assert "│0│STARTING│-│-│" in told.replace(" ", "")
    assert "kv 0: STARTING: space items is being opened" in told


SICK: list[tuple[ClusterStatus, str]] = [
    (
        with_kv(state=ActorState.NO_ANSWER, silent_s=9.0, reason="hung"),
        "kv 0: NO ANSWER: does not answer for 9 s: hung",
    ),
    (
        with_kv(zookeeper=ZooKeeperStatus("suspended", 8.0, "")),
        "kv 0: ZooKeeper: does not answer for 8 s (suspended)",
    ),
    (
        with_kv(spaces={"items": replace(KV_SPACE_SAID, primaries=6)}),
        "space items: 2 of its buckets are served by nobody",
    ),
    (
        with_kv(spaces={"items": replace(KV_SPACE_SAID, outrun="bucket 3/F: the table is older")}),
        "kv 0, space items: cannot take bucket 3/F: the table is older",
    ),
    (
        replace(CLUSTER, zookeeper_server=replace(ZOOKEEPER, problem="the disk of d is full")),
        "ZooKeeper's server: the disk of d is full",
    ),
    (
        replace(CLUSTER, zookeeper_server=replace(ZOOKEEPER, state=ActorState.DOWN, reason="No space left")),
        "ZooKeeper's server: DOWN: No space left",
    ),
    (
        with_replica(state=ActorState.REFUSED, reason="no"),
        "replica 0: REFUSED since 1970-01-01 00:00:00 UTC: no",
    ),
    (with_replica(problem="no space left"), "replica 0: no space left"),
    (with_replica(lost="takes no part in partition 0"), "replica 0: takes no part in partition 0"),
    (with_replica(partitions={0: StoredPartition(damaged="rot")}), "replica 0, partition 0: rot"),
    (
        with_replica(scrub=ScrubStatus(unrepaired=(RottenSegment(3, "f", "f: damaged", "nobody answers"),))),
        "replica 0, partition 3: f: damaged; not repaired: nobody answers",
    ),
    (
        with_server(state=ActorState.NO_ANSWER, silent_s=41.0, reason="hung"),
        "server 1: NO ANSWER: does not answer for 41 s: hung",
    ),
    (
        with_server(zookeeper=ZooKeeperStatus("connected", 8.0, "")),
        "server 1: ZooKeeper: does not answer for 8 s (connected)",
    ),
    (
        with_server(partitions={0: replace(SERVED, state=Readiness.NOT_READY)}),
        "partition 0: not ready, server 1 has it",
    ),
    (with_server(partitions={}), "partition 0: not ready, server 1 has it"),
    (
        with_server(partitions={0: replace(SERVED, hindrance="replica 0: no space left")}),
        "partition 0: takes no appends: replica 0: no space left",
    ),
    (
        replace(CLUSTER, partitions=(PartitionAssignment(0),)),
        "partition 0: not ready, no server has it",
    ),
    (replace(CLUSTER, manager=ManagerStatus(1, True, "Ray said no")), "manager: Ray said no"),
    (
        replace(CLUSTER, zookeeper_state=ZooKeeperView("suspended", 9.0, "gone", 11.0, "")),
        "ZooKeeper: does not answer for 9 s (suspended: gone); what is shown of it was read 11 s ago",
    ),
    (
        replace(CLUSTER, zookeeper_state=ZooKeeperView("connected", 1.2, "", 70.0, "/c/store/cursors/log/a: no JSON")),
        "ZooKeeper: cannot be read (/c/store/cursors/log/a: no JSON); what is shown of it was read 70 s ago",
    ),
    (
        replace(CLUSTER, zookeeper_state=ZooKeeperView("connected", 1.2, "", None, "/c/store/moves: no JSON")),
        "ZooKeeper: cannot be read (/c/store/moves: no JSON); nothing of it is shown",
    ),
]


def test_one_look_that_failed_is_no_trouble() -> None:
    state = ZooKeeperView("connected", 1.2, "", 2.5, "no answer within 1 s")
    assert what_does_not_serve(replace(CLUSTER, zookeeper_state=state)) == []


@pytest.mark.parametrize(("view", "line"), SICK, ids=[line for _, line in SICK])
def test_whatever_does_not_serve_is_a_line_and_exit_code_1(
    answer: Callable[[ClusterStatus], None], capsys: pytest.CaptureFixture[str], view: ClusterStatus, line: str
) -> None:
    answer(view)
    assert [str(finding) for finding in what_does_not_serve(view)] == [line]
    assert run("status") == 1
    assert line in capsys.readouterr().out
    assert run("status", "--json") == 1
    assert json.loads(capsys.readouterr().out) == to_json(view)


def silent_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(name: str, timeout_s: float) -> ClusterStatus:
        raise ClusterNotFound("cluster-manager of cluster 'c' does not answer within 5 s")

    monkeypatch.setattr(readiness, "cluster_status", nobody)


def test_a_silent_manager_hides_nothing_that_can_be_learned_without_it(
    answer: Callable[[ClusterStatus], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent_manager(monkeypatch)
    answers = supervision.ActorAnswers({1: SERVER}, {0: REPLICA}, replace(ZOOKEEPER, problem="the disk of d is full"))
    asked: list[tuple[list[int], list[int]]] = []

    def statuses(
        name: str, servers: list[int], replicas: list[int], zookeeper: bool, kv: list[int], topics: list[int]
    ) -> supervision.ActorAnswers:
        assert zookeeper
        assert kv == topics == []
        asked.append((servers, replicas))
        return answers

    running = ["cluster-manager", "server/1", "replica/0", "zookeeper"]
    monkeypatch.setattr(supervision, "running_actors", lambda name: running)
    monkeypatch.setattr(readiness, "running_actors", lambda name: running)
    monkeypatch.setattr(readiness, "statuses", statuses)
    assert run("status") == 1
    assert asked == [([1], [0])]
    told = capsys.readouterr().out
    assert "manager: cluster-manager of cluster 'c' does not answer within 5 s" in told
    assert "READY" in told
    assert "127.0.0.1:2" in told
    assert "ZooKeeper's server: the disk of d is full" in told


def test_no_actors_at_all_is_no_cluster(
    answer: Callable[[ClusterStatus], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent_manager(monkeypatch)
    monkeypatch.setattr(supervision, "running_actors", lambda name: [])
    assert run("status") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "does not answer" in captured.err
