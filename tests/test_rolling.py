"""A rolling restart, decided: in which order, what is waited for, and that nothing is ended when something lacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from waltz_ray import rolling
from waltz_ray.errors import ClusterNotFound, InvalidInput, PartitionNotReady
from waltz_ray.members import Members
from waltz_ray.protocol.cluster_members import ClusterMembers
from waltz_ray.rolling import RollingRestart

NAMES = ["cluster-manager", "kv/0", "replica/0", "replica/1", "replica/10", "server/0", "server/1", "zookeeper"]
IN_ORDER = ["kv/0", "server/0", "server/1", "replica/0", "replica/1", "replica/10", "cluster-manager"]


@dataclass
class Stage:
    """A cluster that does at once what it is told, and the story of it."""

    story: list[str] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 1))
    lacks: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    draining: set[int] = field(default_factory=set)
    servers_there: frozenset[int] = frozenset((0, 1))
    comes_back: bool = True
    cluster: str = "stage"

    # ---- as Members

    @property
    def membership(self) -> Any:
        return SimpleNamespace(servers=self.servers_there, draining_servers=frozenset(self.draining))

    def servers(self) -> list[Any]:
        return [SimpleNamespace(server=s, partitions=() if s in self.draining else (s,)) for s in self.servers_there]

    def drain_server(self, number: int) -> None:
        self.draining.add(number)
        self.story.append(f"drain {number}")

    def keep_server(self, number: int) -> None:
        self.draining.discard(number)
        self.story.append(f"keep {number}")

    def wait_until_server_has_none(self, number: int, progress: Any, timeout: float) -> None:
        assert number in self.draining

    def lacking(self) -> list[str]:
        return self.lacks

    # ---- as Ray

    def restart(self, cluster: str, name: str) -> None:
        self.story.append(name)
        if self.comes_back:
            self.pids[name] += 1

    def answers(self, cluster: str, servers: Any, replicas: Any, kv: Any, topics: Any) -> Any:
        def of(kind: str, numbers: list[int]) -> dict[int, Any]:
            return {n: SimpleNamespace(pid=self.pids[f"{kind}/{n}"], serving=True) for n in numbers}

        return SimpleNamespace(
            servers=of("server", servers), replicas=of("replica", replicas), kv=of("kv", kv), topics=of("topic", topics)
        )

    def status(self, cluster: str, timeout_s: float) -> Any:
        if self.pids["cluster-manager"] == 0:
            raise ClusterNotFound("it does not answer")
        return SimpleNamespace(manager=SimpleNamespace(pid=self.pids["cluster-manager"]), kv={0: 1}, topics={})


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()
    monkeypatch.setattr(rolling, "running_actors", lambda cluster: list(NAMES))
    monkeypatch.setattr(rolling, "restart_actor", stage.restart)
    monkeypatch.setattr(rolling, "statuses", stage.answers)
    monkeypatch.setattr(rolling, "cluster_status", stage.status)
    monkeypatch.setattr(rolling, "missing", lambda status, kv, topics: stage.missing)
    return stage


def of(stage: Stage, timeout_s: float = 5.0) -> RollingRestart:
    return RollingRestart(cast(Members, stage), timeout_s=timeout_s)


def test_everything_but_zookeeper_in_its_order_and_servers_drained(stage: Stage) -> None:
    assert of(stage).run() == IN_ORDER
    drained = ["kv/0", "drain 0", "server/0", "keep 0", "drain 1", "server/1", "keep 1"]
    assert stage.story == [*drained, *IN_ORDER[3:]]
    assert all(pid == 2 for name, pid in stage.pids.items() if name != "zookeeper")


def test_only_those_that_are_named(stage: Stage) -> None:
    assert of(stage).run(["replica/10", "kv/0"]) == ["kv/0", "replica/10"]
    with pytest.raises(InvalidInput, match="runs no 'replica/7'; there are: kv/0, server/0"):
        of(stage).run(["replica/7"])
    with pytest.raises(InvalidInput, match="runs no 'zookeeper'"):
        of(stage).run(["zookeeper"])


@pytest.mark.parametrize("what", ["lacks", "missing"])
def test_nothing_is_ended_while_something_lacks(stage: Stage, what: str) -> None:
    setattr(stage, what, ["partition 3 lacks replica 1"])
    with pytest.raises(PartitionNotReady, match=r"stops at kv/0: partition 3 lacks replica 1, for 0\.1 s"):
        of(stage, 0.1).run()
    assert stage.story == []


def test_who_does_not_come_back_is_the_last_to_be_ended(stage: Stage) -> None:
    stage.comes_back = False
    with pytest.raises(PartitionNotReady, match="stops at server/0: server/0 has not begun again"):
        of(stage, 0.1).run(["server/0", "replica/0"])
    assert stage.story == ["drain 0", "server/0", "keep 0"], "it is given partitions when it is back"


def test_a_server_that_is_drained_anyway_stays_so_and_the_only_one_is_just_restarted(stage: Stage) -> None:
    stage.draining = {0}
    of(stage).run(["server/0"])
    assert (stage.story, stage.draining) == (["server/0"], {0})
    of(stage).run(["server/1"])
    assert stage.story == ["server/0", "server/1"], "there is nobody else to serve what it has"


def test_the_stage_says_what_members_say() -> None:
    """Else these tests would go on when the real ones are called otherwise."""
    assert all(hasattr(Members, name) for name in ("drain_server", "keep_server", "lacking", "servers", "membership"))
    assert {"servers", "draining_servers"} <= {*ClusterMembers.__dataclass_fields__, *dir(ClusterMembers)}
