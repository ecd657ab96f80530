"""The manager's shell over a real ZooKeeper; servers are listening sockets, Ray is a counter."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest

from waltz_ray import compat
from waltz_ray.actors import cluster_manager
from waltz_ray.actors.cluster_manager import ClusterManager, ManagerHost
from waltz_ray.actors.endpoint_probe import GreetedProbe, probe_endpoint
from waltz_ray.actors.settings import Settings, from_json, to_json
from waltz_ray.config import ClusterConfig, KvConfig, ServerConfig, StorageConfig
from waltz_ray.coordination.api import EphemeralNode
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.cursor_store import CursorStore
from waltz_ray.coordination.layer_store import LayerStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import ClusterNotFound, ConfigError, CoordinationError, ZooKeeperUnreachable
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment, Owner
from waltz_ray.protocol.replica_sets import ReplicaPlace
from waltz_ray.protocol.roster import ReplicaEntry, Roster
from waltz_ray.runtime.status import ClusterStatus, PartitionAssignment, ZooKeeperView


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"not within 20 s: {what}"
        time.sleep(0.005)


class FakeServer:
    """A listening socket and its registration, by a ZooKeeper session of its own."""

    def __init__(self, zookeeper: str, cluster: str, server_id: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint("127.0.0.1", self.listener.getsockname()[1])
        self.client = KazooZooKeeper(zookeeper, 10_000)
        self.registration: EphemeralNode = ClusterStore(self.client, cluster).register_server(server_id, self.endpoint)
        self.accepted: list[socket.socket] = []

    def accept(self) -> None:
        self.accepted.append(self.listener.accept()[0])

    def die(self) -> None:
        """As by SIGKILL: the kernel closes the sockets, ZooKeeper knows nothing."""
        self.registration._end()  # nobody is left who would register again
        self.listener.close()
        for connection in self.accepted:
            connection.close()

    def close(self) -> None:
        self.die()
        self.client.close()


class CountingSupervisor:
    def __init__(self) -> None:
        self.calls = 0
        self.kv_actors = -1
        self.failure: Exception | None = None

    def ensure(self, settings: Settings) -> None:
        self.calls += 1
        self.kv_actors = settings.config.kv.actors
        if self.failure is not None:
            raise self.failure


def seen_by(view: ClusterStatus) -> ZooKeeperView:
    assert view.zookeeper_state is not None
    return view.zookeeper_state


def age_of(view: ClusterStatus) -> float:
    age_s = seen_by(view).view_age_s
    assert age_s is not None
    return age_s


class Rig:
    def __init__(self, zookeeper: str, stack: ExitStack) -> None:
        self.zookeeper, self._stack = zookeeper, stack
        self.cluster = f"manager-{uuid.uuid4().hex[:8]}"
        self.store = self.new_store()
        config = ClusterConfig(name=self.cluster, directory="/nowhere", partitions=4, replicas=1, servers=2)
        self.store.initialize(4, [0], to_json(Settings(config, {0: "node:127.0.0.1"})))
        self.supervisor = CountingSupervisor()

    def new_client(self) -> KazooZooKeeper:
        client = KazooZooKeeper(self.zookeeper, 2000)
        self._stack.callback(client.close)
        return client

    def new_store(self) -> ClusterStore:
        return ClusterStore(self.new_client(), self.cluster)

    def manager(self, settle_s: float = 20.0) -> ManagerHost:
        manager = ManagerHost(self.new_client(), self.cluster, self.supervisor, settle_s)
        self._stack.callback(manager.close)
        return manager

    def server(self, server_id: int) -> FakeServer:
        server = FakeServer(self.zookeeper, self.cluster, server_id)
        self._stack.callback(server.close)
        return server

    def owners(self) -> list[int]:
        return sorted(owner.server_id for owner in self.store.assignment()[0].owners.values())


@pytest.fixture
def rig(zookeeper_server: str) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(zookeeper_server, stack)


def test_a_killed_servers_partitions_move_long_before_its_session_ends(rig: Rig) -> None:
    rig.manager()
    servers = [rig.server(0), rig.server(1)]
    until(lambda: rig.owners() == [0, 0, 1, 1], "both servers have their share")
    servers[0].accept()
    before = time.monotonic()
    servers[0].die()
    until(lambda: rig.owners() == [1, 1, 1, 1], "the other one has everything")
    assert time.monotonic() - before < 5.0, "its session has 10 s"
    assert set(rig.store.servers()) == {1}


def test_a_silent_server_is_left_to_its_session(rig: Rig) -> None:
    manager = rig.manager()
    rig.server(0)
    silent = rig.server(1)  # accepts into its backlog and never says a word, like a stopped process
    until(lambda: rig.owners() == [0, 0, 1, 1], "both servers have their share")
    until(lambda: 1 in manager.manager.probes, "the manager watches it")
    assert set(rig.store.servers()) == {0, 1}
    silent.client.close()  # its session ends
    until(lambda: rig.owners() == [0, 0, 0, 0], "the other one has everything")


def test_a_successor_goes_on_where_the_manager_died(rig: Rig) -> None:
    first, second = rig.manager(), rig.manager()
    servers = [rig.server(0), rig.server(1)]
    until(lambda: rig.owners() == [0, 0, 1, 1], "both servers have their share")
    assert [first.leading, second.leading].count(True) == 1
    before = rig.store.assignment()
    leader, other = (first, second) if first.leading else (second, first)
    leader.close()
    until(lambda: other.leading, "the other manager leads")
    assert rig.store.assignment() == before, "a new leader changes nothing that is right"
    servers[1].die()
    until(lambda: rig.owners() == [0, 0, 0, 0], "it does its work")


def test_who_asks_a_manager_that_closes_is_told_so(rig: Rig) -> None:
    manager = rig.manager()
    manager.close()
    with pytest.raises(ClusterNotFound, match="is closing"):
        manager.view(20)


def test_after_the_settle_time_one_server_gets_everything(rig: Rig) -> None:
    rig.manager(settle_s=0.2)
    rig.server(1)
    until(lambda: rig.owners() == [1, 1, 1, 1], "whoever is there has everything")


def test_an_assignment_that_somebody_else_wrote_is_read_again(rig: Rig) -> None:
    manager = rig.manager()
    until(lambda: manager.manager.machine.assignment is not None, "the manager has read")
    _, version = rig.store.assignment()
    rig.store.set_assignment(Assignment({0: Owner(1, 9)}), version)  # behind its back: its write must lose
    servers = [rig.server(0), rig.server(1)]
    until(lambda: rig.owners() == [0, 0, 1, 1], "all is assigned in spite of the lost compare-and-set")
    assert rig.store.assignment()[0].owners[0] == Owner(1, 9), "what was right is kept"
    assert set(rig.store.servers()) == set(range(len(servers)))


def test_supervision_goes_on_after_failures_and_shows_them(rig: Rig) -> None:
    rig.supervisor.failure = RuntimeError("Ray said no")
    manager = rig.manager()
    until(lambda: manager.manager.supervision_error == "Ray said no", "the failure is shown")
    rig.supervisor.failure = None
    until(lambda: manager.manager.supervision_error == "", "the failure is over")
    assert rig.supervisor.calls >= 2


def test_where_a_removed_replica_listened_is_forgotten_whoever_was_killed_removing_it(rig: Rig) -> None:
    """Replica 1 was drained; the change of the members was made, and nothing behind it."""
    for _ in range(3):
        rig.store.members.change(lambda members: replace(members, replication=3).with_replica("CPU", ReplicaPlace()))
    for replica_id in range(4):
        rig.store.announce_replica(replica_id, Endpoint("127.0.0.1", 9), "x")
    rig.store.members.change(lambda members: members.draining_replica(1, 3))
    rig.store.members.change(lambda members: members.without_replica(1, 0))
    assert set(rig.store.replicas()) == {0, 1, 2, 3}
    rig.manager(settle_s=0.1)
    until(lambda: set(rig.store.replicas()) == {0, 2, 3}, "nobody looks for it any more")


def test_as_many_kv_actors_are_looked_after_as_there_are_to_be_by_now(rig: Rig) -> None:
    """Also while ZooKeeper does not say how many: then as many as before."""
    layers = LayerStore(rig.new_client(), rig.cluster)
    manager = rig.manager()
    until(lambda: rig.supervisor.kv_actors == 0, "there are none yet")
    layers.raise_actors("kv", 2)
    until(lambda: rig.supervisor.kv_actors == 2, "waltz up --kv 2")
    manager._layer_store.actors = no_answer  # type: ignore[method-assign]
    before = rig.supervisor.calls
    until(lambda: rig.supervisor.calls > before, "it goes on")
    assert (rig.supervisor.kv_actors, manager.manager.supervision_error) == (2, "")


def no_answer(layer: str) -> int:
    raise CoordinationError("no answer")


def test_the_view_is_what_zookeeper_says(rig: Rig) -> None:
    manager = rig.manager()
    servers = [rig.server(0), rig.server(1)]
    until(lambda: rig.owners() == [0, 0, 1, 1], "both servers have their share")
    cursors = CursorStore(rig.new_client(), rig.cluster, rig.store.spaces.get("log"), "me")
    cursors.create("audit", {1: 5}, hold=False)
    view = manager.view(20)
    (cursor,) = view.cursors
    assert (cursor.space, cursor.name, cursor.positions, cursor.lag) == ("log", "audit", {1: 5}, None)
    assert view.registered_servers == {s: servers[s].endpoint for s in range(2)}
    assert [each.partition for each in view.partitions] == [0, 1, 2, 3]
    assert view.partitions[0].generation == 1
    assert view.placement == {0: "node:127.0.0.1"}


def test_a_probe_takes_a_wrong_suspicion_back() -> None:
    async def run(endpoint: Endpoint) -> None:
        reports = asyncio.Queue[str]()
        refused, answered = partial(reports.put_nowait, "refused"), partial(reports.put_nowait, "answered")
        probe = partial(GreetedProbe, lambda: None)
        held = asyncio.create_task(probe_endpoint(probe, endpoint, refused, answered))
        async with compat.timeout(20):
            assert await reports.get() == "refused"
            with socket.create_server(endpoint):
                assert await reports.get() == "answered"
                held.cancel()
                await asyncio.wait([held])
        assert reports.empty(), "each is reported once"

    with socket.create_server(("127.0.0.1", 0)) as reserved:
        endpoint = Endpoint("127.0.0.1", reserved.getsockname()[1])
    asyncio.run(run(endpoint))


def test_settings_survive_zookeeper_and_say_what_is_wrong() -> None:
    config = ClusterConfig(
        name="x",
        directory="/d",
        partitions=7,
        server=ServerConfig(lock_table_size=5),
        storage=StorageConfig(9),
        kv=KvConfig(actors=2, dialect="2012"),
    )
    settings = Settings(config, {0: "a", 1: "b"})
    assert from_json(to_json(settings)) == settings
    older = to_json(settings)
    del older["config"]["kv"]  # of a cluster from before there were any
    assert from_json(older).config.kv == KvConfig()
    with pytest.raises(CoordinationError, match="waltz up"):
        from_json({})
    with pytest.raises(ConfigError, match="did you mean 'partitions'"):
        from_json({"config": {"partition": 3}, "placement": {}})


def test_the_view_comes_in_time_also_when_zookeeper_hangs(rig: Rig) -> None:
    client = rig.new_client()
    manager = ManagerHost(client, rig.cluster, rig.supervisor, 20.0)
    release = threading.Event()
    try:
        known = manager.view(20)
        assert 0 <= age_of(known) < 20

        def hanging(path: str) -> tuple[bytes, int]:
            assert release.wait(20)
            raise CoordinationError("it hung")

        client.get = hanging  # type: ignore[method-assign]
        before = time.monotonic()
        view = manager.view(0.05)
        assert time.monotonic() - before < 5
        assert view.partitions == known.partitions, "what is known is shown"
        assert age_of(view) >= 0
        assert seen_by(view).view_error == ""
        release.set()
        until(lambda: seen_by(manager.view(1)).view_error == "it hung", "the reason is shown")
    finally:
        release.set()
        manager.close()


def test_a_node_that_makes_no_sense_is_named_and_the_rest_is_shown_as_it_was(rig: Rig) -> None:
    manager = rig.manager()
    known = manager.view(20)
    path = f"/{rig.cluster}/store/cursors/log/audit"
    rig.new_client().create(path, b"{", make_parents=True)
    view = manager.view(20)
    assert path in seen_by(view).view_error
    assert view.partitions == known.partitions


def test_a_view_before_anything_was_read_has_the_clusters_shape(rig: Rig) -> None:
    client = rig.new_client()
    manager = ManagerHost(client, rig.cluster, rig.supervisor, 20.0)
    release = threading.Event()
    client.get = lambda path: (b"", int(release.wait(20)))  # type: ignore[method-assign]
    try:
        view = manager.view(0.05)
        assert view.partitions == tuple(PartitionAssignment(partition) for partition in range(4))
        assert seen_by(view).view_age_s is None
    finally:
        release.set()
        manager.close()


def test_who_looks_again_and_again_does_not_read_every_partition_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more partitions than a few. What has moved is read, and who asks once is told how it is now."""
    monkeypatch.setattr(cluster_manager, "_READ_ALWAYS", 2)
    manager, read = rig.manager(), list[int]()
    for server_id in (0, 1):
        rig.server(server_id)
    until(lambda: rig.owners() == [0, 0, 1, 1], "both servers have their share")
    original = ClusterStore.roster

    def roster(store: ClusterStore, partition_id: int) -> tuple[Roster, int]:
        read.append(partition_id)
        found, version = original(store, partition_id)
        return replace(found, replicas={0: ReplicaEntry(3, None)}), version

    monkeypatch.setattr(ClusterStore, "roster", roster)
    assert [each.members for each in manager.view(20).partitions] == [(0,)] * 4
    assert sorted(read) == [0, 1, 2, 3]
    read.clear()
    assert len(manager.view(20, sparing=True).partitions) == 4
    assert read == []
    assert len(manager.view(20).partitions) == 4
    assert sorted(read) == [0, 1, 2, 3]


def test_what_a_manager_is_called_that_could_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray asks for it, and an error of the name would be all that anybody hears of what has happened."""

    def unreachable(*arguments: object, **options: object) -> None:
        raise CoordinationError("no ZooKeeper server answers")

    monkeypatch.setattr("waltz_ray.coordination.zookeeper.KazooZooKeeper", unreachable)
    manager = ClusterManager.__new__(ClusterManager)
    with pytest.raises(CoordinationError):
        manager.__init__("c", "127.0.0.1:1")  # type: ignore[misc]
    assert repr(manager) == "waltz c (no HTTP port)"


def test_a_manager_that_is_started_again_while_zookeeper_is_away_is_started_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By Ray, which does so when a process has ended, and gives an actor up whose constructor has raised an error."""
    told: list[str] = []

    def unreachable(*arguments: object, **options: object) -> None:
        raise ZooKeeperUnreachable("no ZooKeeper server answers")

    monkeypatch.setattr("waltz_ray.coordination.zookeeper.KazooZooKeeper", unreachable)
    monkeypatch.setattr("waltz_ray.actors.cluster_manager.end_manager", told.append)
    ClusterManager("c", "127.0.0.1:1")
    assert told == ["manager: it cannot begin: no ZooKeeper server answers"]


@pytest.mark.parametrize(
    "scarce", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("no thread"), MemoryError()]
)
def test_a_manager_that_lacks_what_it_needs_to_begin_is_started_once_more(
    scarce: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def fails(*arguments: object, **options: object) -> None:
        raise scarce

    monkeypatch.setattr("waltz_ray.coordination.zookeeper.KazooZooKeeper", fails)
    monkeypatch.setattr("waltz_ray.actors.cluster_manager.end_manager", told.append)
    ClusterManager("c", "127.0.0.1:1")
    assert told == [f"manager: it cannot begin: {str(scarce) or 'no memory'}"]
