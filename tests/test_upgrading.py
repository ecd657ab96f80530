"""A rolling upgrade on a cluster that is only imagined: what is done when, and what an interruption leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from waltz_ray import upgrading
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.coordination.upgrade_store import UpgradeStore
from waltz_ray.errors import CoordinationError, PartitionNotReady
from waltz_ray.protocol.cluster_members import ClusterMembers
from waltz_ray.protocol.rolling import UNSEEN, RollingUpgrade
from waltz_ray.runtime.status import (
    ActorState,
    ClusterStatus,
    ManagerStatus,
    PartitionAssignment,
    ReplicaStatus,
    ServerStatus,
)
from waltz_ray.upgrading import change_settings, change_settings_of_stuck, upgrade_plan, upgrade_rolling

ORDER = ["server/0", "server/1", "replica/0", "replica/1", "replica/2", "cluster-manager"]


class Interrupted(Exception):
    """Somebody has pressed Ctrl-C, or the machine of the operator has gone."""


@dataclass
class Cluster:
    """Two servers, three replicas; what is started again needs some looks until it serves."""

    pids: dict[str, int] = field(default_factory=lambda: {name: n for n, name in enumerate(ORDER, 1)})
    drained: set[int] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    servers: tuple[int, ...] = (0, 1)
    interrupt_at: int = 10**9
    lock_lost_at: int = 10**9
    broken: str = ""
    on_change: Callable[[], object] = lambda: None
    _starting: dict[str, int] = field(default_factory=dict)
    _moves: int = 0

    def look(self) -> ClusterStatus | None:
        self._starting = {name: looks - 1 for name, looks in self._starting.items() if looks > 1}
        self._moves = max(0, self._moves - 1)
        if "cluster-manager" in self._starting:
            return None

        def state(name: str) -> ActorState:
            return ActorState.STARTING if name in {*self._starting, self.broken} else ActorState.SERVING

        has = [s for s in self.servers if s not in self.drained] or list(self.servers)
        owner = None if self._moves > 2 else sorted(self.drained or {0})[0] if self._moves else has[0]
        return ClusterStatus(
            cluster="c",
            manager=ManagerStatus(pid=self.pids["cluster-manager"], leading=True),
            partitions=() if owner is None else (PartitionAssignment(0, owner, 1, 1, (0, 1, 2), (0, 1, 2)),),
            servers={s: ServerStatus(state=state(f"server/{s}"), pid=self.pids[f"server/{s}"]) for s in self.servers},
            replicas={r: ReplicaStatus(state=state(f"replica/{r}"), pid=self.pids[f"replica/{r}"]) for r in range(3)},
        )

    def _does(self, what: str) -> None:
        if len(self.done) == self.interrupt_at:
            raise Interrupted
        assert not self._starting, f"{what} while {self._starting} is being started"
        self.done.append(what)

    def changes(self, settings: str) -> None:
        self.on_change()

    def restart(self, actor: str) -> None:
        self._does(actor)
        self.pids[actor] += 100
        self._starting[actor] = 3

    def members(self) -> ClusterMembers:
        return ClusterMembers({}, 3, frozenset(self.servers), draining_servers=frozenset(self.drained))

    def drain(self, server: int) -> None:
        if server not in self.drained:
            self._does(f"drain {server}")
            self.drained.add(server)
            self._moves = 2

    def keep(self, server: int) -> None:
        self.members().check_server(server)
        if len(self.done) == self.interrupt_at:
            raise Interrupted
        self.done.append(f"keep {server}")
        self.drained.discard(server)

    @contextmanager
    def lock(self) -> Iterator[Callable[[], None]]:
        if self.broken == "lock":
            raise CoordinationError("the admin lock is held by rebalance, pid 7")
        yield self.check_lock

    def check_lock(self) -> None:
        if len(self.done) >= self.lock_lost_at:
            raise CoordinationError("the admin lock was lost")


@pytest.fixture(autouse=True)
def only_who_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is whole of a real cluster is told by its statuses; here actors that serve are enough."""

    def not_whole(view: ClusterStatus) -> list[str]:
        actors = [*view.servers.items(), *view.replicas.items()]
        return [f"{number} is {each.state}" for number, each in actors if not each.serving]

    monkeypatch.setattr(upgrading, "what_is_not_whole", not_whole)


@pytest.fixture
def store() -> UpgradeStore:
    client = MemoryZooKeeperServer().client()
    client.create("/c", b"")
    client.create("/c/store", b"")
    return UpgradeStore(client, "c")


def run(store: UpgradeStore, cluster: Cluster) -> upgrading.UpgradeResult:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    return upgrade_rolling(store, cluster, lambda text: None, 60, sleep, lambda: now)


WHOLE = ["drain 0", "server/0", "keep 0", "drain 1", "server/1", "keep 1", *ORDER[2:]]


def test_one_at_a_time_and_servers_give_up_their_partitions_before(store: UpgradeStore) -> None:
    cluster = Cluster()
    assert upgrade_plan(store, cluster) == ORDER
    result = run(store, cluster)
    assert cluster.done == WHOLE
    assert list(result.restarted) == ORDER
    assert store.read() is None
    assert upgrade_plan(store, cluster) == ORDER, "and another one begins anew"


@pytest.mark.parametrize("at", range(len(WHOLE)))
def test_interrupted_anywhere_it_goes_on_with_what_is_left(store: UpgradeStore, at: int) -> None:
    cluster = Cluster(interrupt_at=at)
    with pytest.raises(Interrupted):
        run(store, cluster)
    assert store.read() is not None
    done = [each for each in cluster.done if "/" in each or each == "cluster-manager"]
    assert upgrade_plan(store, cluster) == ORDER[len(done) :]
    cluster.interrupt_at = 10**9
    run(store, cluster)
    assert cluster.done == WHOLE
    assert (cluster.drained, store.read()) == (set(), None)


def test_a_server_that_is_removed_while_an_interrupted_upgrade_has_it_drained_is_let_go(store: UpgradeStore) -> None:
    """It may be: it is drained. Neither an upgrade nor a change of settings would come to its end else."""
    cluster = Cluster(interrupt_at=1)
    with pytest.raises(Interrupted):
        run(store, cluster)
    under_way = store.read()
    assert under_way is not None
    assert under_way.drained == 0
    cluster.interrupt_at, cluster.servers = 10**9, (1,)
    cluster.drained.clear()
    run(store, cluster)
    assert cluster.done == ["drain 0", *ORDER[1:]]
    assert store.read() is None


def test_a_server_that_is_alone_or_was_drained_already_is_not_drained(store: UpgradeStore) -> None:
    alone = Cluster(servers=(0,))
    run(store, alone)
    assert alone.done[0] == "server/0"
    drained = Cluster(drained={1})
    run(store, drained)
    assert "drain 1" not in drained.done
    assert "keep 1" not in drained.done
    assert drained.done[:1] == ["server/0"], "no other one could take its partitions"
    assert drained.drained == {1}


def test_nothing_is_started_again_while_something_does_not_serve(store: UpgradeStore) -> None:
    cluster = Cluster(broken="replica/1")
    with pytest.raises(PartitionNotReady, match=r"stands still at beginning: 1 is STARTING, for 60 s; .* goes on"):
        run(store, cluster)
    assert cluster.done == []
    cluster.broken = ""
    store.write(RollingUpgrade({**cluster.pids}))
    cluster.broken = "replica/1"
    with pytest.raises(PartitionNotReady, match="stands still at 0 of 6: server/0"):
        run(store, cluster)
    assert cluster.done == []


def test_one_upgrade_at_a_time(store: UpgradeStore) -> None:
    with pytest.raises(CoordinationError, match="held by rebalance"):
        run(store, Cluster(broken="lock"))


@pytest.mark.parametrize("at", range(len(WHOLE) + 1))
def test_who_has_lost_the_lock_does_nothing_more(store: UpgradeStore, at: int) -> None:
    """Stopped for longer than its session: somebody else goes on by then, and two would be down at a time."""
    cluster = Cluster(lock_lost_at=at)
    with pytest.raises(CoordinationError, match="was lost"):
        run(store, cluster)
    assert cluster.done == WHOLE[:at]
    left = store.read()
    assert (left is None) == (at == 0)
    cluster.lock_lost_at = 10**9
    run(store, cluster)
    assert list(dict.fromkeys(cluster.done)) == WHOLE, "a server that was kept already is kept"
    assert (cluster.drained, store.read()) == (set(), None)


def test_who_has_lost_the_lock_while_it_waited_for_the_stuck_does_nothing(store: UpgradeStore) -> None:
    cluster, now = Cluster(broken="server/0", lock_lost_at=0), iter(range(10_000))

    def begin(upgrade: RollingUpgrade) -> None:
        raise AssertionError("somebody else has begun something")

    with pytest.raises(CoordinationError, match="was lost"):
        change_settings_of_stuck(
            store, cluster, {"server"}, begin, lambda text: None, 5, lambda s: None, lambda: next(now)
        )
    assert cluster.done == []


Kinds = frozenset[str]
CHANGES: list[tuple[str, Kinds]] = [
    ("takes TLS", frozenset({"server", "cluster-manager"})),
    ("speaks it", frozenset({"replica"})),
]


def changed(store: UpgradeStore, cluster: Cluster, changes: list[tuple[str, Kinds]]) -> list[str]:
    """``changes`` carried out: settings are a line in what is done."""

    def begin(name: str, upgrade: RollingUpgrade) -> None:
        assert store.read() is None
        store.write(upgrade)
        cluster.done.append(name)
        cluster.changes(name)

    now = iter(range(10_000))
    plan = [(kinds, partial(begin, name)) for name, kinds in changes]
    return change_settings(store, cluster, plan, lambda text: None, 60, lambda s: None, lambda: next(now) / 100)


CHANGED = [
    *("takes TLS", "drain 0", "server/0", "keep 0", "drain 1", "server/1", "keep 1", "cluster-manager"),
    *("speaks it", "replica/0", "replica/1", "replica/2"),
]


def test_settings_are_changed_one_after_the_other_and_who_reads_them_started_again(store: UpgradeStore) -> None:
    cluster = Cluster()
    assert changed(store, cluster, CHANGES) == [each for each in CHANGED if "/" in each or each == "cluster-manager"]
    assert cluster.done == CHANGED
    assert store.read() is None


@pytest.mark.parametrize("at", [n for n, each in enumerate(CHANGED) if each not in dict(CHANGES)])
def test_a_change_that_was_interrupted_is_finished_before_the_next(store: UpgradeStore, at: int) -> None:
    """Who asks again plans anew, from the settings that are kept by then."""
    cluster = Cluster(interrupt_at=at)
    with pytest.raises(Interrupted):
        changed(store, cluster, CHANGES)
    assert store.read() is not None
    cluster.interrupt_at = 10**9
    kept = [name for name, _ in CHANGES if name in cluster.done]
    changed(store, cluster, [change for change in CHANGES if change[0] not in kept])
    assert cluster.done == CHANGED
    assert (cluster.drained, store.read()) == (set(), None)


def test_a_change_that_has_just_been_kept_has_everything_left(store: UpgradeStore) -> None:
    """The machine of the operator is lost right after."""
    store.write(RollingUpgrade(dict.fromkeys(["server/1", "replica/0"], UNSEEN)))
    cluster = Cluster()
    assert upgrade_plan(store, cluster) == ["server/1", "replica/0"]
    run(store, cluster)
    assert cluster.done == ["drain 1", "server/1", "keep 1", "replica/0"]


def test_a_process_that_may_have_read_the_old_settings_is_started_again(store: UpgradeStore) -> None:
    """It crashed after the look with which the change began, and before the settings were kept."""
    cluster = Cluster()
    cluster.on_change = lambda: cluster.pids.update({"replica/1": 77})
    changed(store, cluster, CHANGES[1:])
    assert cluster.pids["replica/1"] == 177


def freed(store: UpgradeStore, cluster: Cluster, kinds: Kinds) -> list[str]:
    """A change of settings that whoever does not serve is waiting for."""

    def begin(upgrade: RollingUpgrade) -> None:
        store.write(upgrade)
        cluster.done.append("other settings")
        cluster.broken = ""

    now = iter(range(10_000))
    return change_settings_of_stuck(
        store, cluster, kinds, begin, lambda text: None, 20, lambda s: None, lambda: next(now)
    )


def test_settings_with_which_an_actor_cannot_begin_are_changed_before_it_serves(store: UpgradeStore) -> None:
    """It and the restart that has brought it there would wait for each other."""
    cluster = Cluster(broken="server/1", drained={1})
    store.write(RollingUpgrade({"server/0": 101, "server/1": 2, "replica/0": 3, "replica/1": 104}, 1))
    cluster.pids.update({"server/0": 101, "replica/1": 4})
    assert freed(store, cluster, frozenset({"server", "cluster-manager"})) == ["server/1"]
    assert cluster.done == ["keep 1", "other settings", "server/1"]
    left = ["server/0", "server/1", "replica/0", "cluster-manager"]  # replica 1 had been started again already
    assert store.read() == RollingUpgrade(dict.fromkeys(left, UNSEEN))
    run(store, cluster)
    assert [each for each in cluster.done[3:] if "/" in each or each == "cluster-manager"] == left
    assert (cluster.drained, store.read()) == (set(), None)


def test_settings_are_changed_in_turn_where_all_serve_or_others_do_not(store: UpgradeStore) -> None:
    starting = Cluster()
    starting.restart("server/0")  # a moment later it serves
    for cluster in (Cluster(), Cluster(broken="replica/0"), starting):
        before = list(cluster.done)
        assert freed(store, cluster, frozenset({"server", "cluster-manager"})) == []
        assert (cluster.done, store.read()) == (before, None)


def test_a_damaged_node_is_named(store: UpgradeStore) -> None:
    store.write(RollingUpgrade({"server/0": 1}, 0))
    assert store.read() == RollingUpgrade({"server/0": 1}, 0)
    store._zookeeper.set("/c/store/upgrade", b'{"version": 1, "before": 3, "drained": null}', -1)
    with pytest.raises(CoordinationError, match="/c/store/upgrade"):
        store.read()
    store.end()
    store.end()
    assert store.read() is None


def test_what_was_there_is_replaced(store: UpgradeStore) -> None:
    upgrade = RollingUpgrade({"server/0": 1})
    store.write(upgrade)
    store.write(replace(upgrade, drained=0))
    assert store.read() == replace(upgrade, drained=0)
