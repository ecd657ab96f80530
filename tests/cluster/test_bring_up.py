"""A bring-up that does not come to its end: what is taken down again, and what was never its own."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from waltz_ray import bring_up as bringing_up
from waltz_ray import readiness, recording
from waltz_ray import take_down as taking_down
from waltz_ray.actors import local_ray
from waltz_ray.actors.settings import Settings, to_json
from waltz_ray.bring_up import bring_up
from waltz_ray.config import ClusterConfig, HttpConfig, KvConfig, ServerConfig, StorageConfig, TopicConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.layer_store import LayerStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.space_store import SpaceStore
from waltz_ray.errors import (
    ClusterMismatch,
    ClusterNotFound,
    ConfigError,
    PartitionNotReady,
    RayNotRunning,
    RuntimeEnvFailed,
    VersionMismatch,
    ZooKeeperRefused,
)
from waltz_ray.finding import cluster_file, ray_lookup
from waltz_ray.finding.cluster_file import ClusterFile, LocalRay
from waltz_ray.guarding import guards_of_file
from waltz_ray.protocol.placement import NodeView
from waltz_ray.readiness import cluster_status
from waltz_ray.runtime.status import ClusterStatus, ManagerStatus
from waltz_ray.startup_checks import troubles, unused_settings
from waltz_ray.take_down import take_down_in


class SomebodysRay:
    """A Ray at "h:1" that is joined at once; the bring-up ends where ZooKeeper is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, actors: list[str], end: BaseException) -> None:
        self.taken_down: list[str] = []

        def fail(*arguments: Any) -> None:
            raise end

        def take_down(known: ClusterFile, progress: Callable[[str], None]) -> None:
            self.taken_down.append(known.address)

        self.nodes = ["127.0.0.1"]
        monkeypatch.setattr(ray_lookup, "join", lambda address: address)
        monkeypatch.setattr(bringing_up, "_addresses", lambda: self.nodes)
        for each in (bringing_up, taking_down):
            monkeypatch.setattr(each, "running_actors", lambda cluster: actors)
            monkeypatch.setattr(each, "end_cluster", take_down)
        monkeypatch.setattr(bringing_up, "find_actor", lambda cluster, name: None)
        monkeypatch.setattr(bringing_up, "ensure_actor", lambda *arguments, **options: None)
        monkeypatch.setattr(bringing_up, "ensure_keeper", lambda *arguments: None)
        monkeypatch.setattr(bringing_up, "ask", fail)


@pytest.mark.parametrize(
    ("end", "raised"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (SystemExit(15), KeyboardInterrupt),  # what Ray makes of SIGTERM
        (ClusterMismatch("another"), ClusterMismatch),
        (RuntimeEnvFailed("no such package"), RuntimeEnvFailed),  # and not that ZooKeeper does not start
    ],
)
def test_actors_that_were_made_on_somebodys_ray_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException, raised: type[BaseException]
) -> None:
    rays = SomebodysRay(monkeypatch, [], end)
    with pytest.raises(raised):
        bring_up(ClusterConfig("c", str(tmp_path)), "h:1")
    assert rays.taken_down == ["h:1"]
    assert cluster_file.read(tmp_path) is None, "there never was such a cluster"


def test_actors_that_were_there_before_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rays = SomebodysRay(monkeypatch, ["cluster-manager"], KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        bring_up(ClusterConfig("c", str(tmp_path)), "h:1")
    assert rays.taken_down == []


def test_who_takes_down_waits_for_who_brings_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would make anew what is ended, and wait for what it made; what is ended is what there is then."""
    rays = SomebodysRay(monkeypatch, [], KeyboardInterrupt())
    waits = threading.Event()
    other = threading.Thread(target=take_down_in, args=(tmp_path, lambda text: waits.set()), daemon=True)
    ended: list[list[str]] = []

    def slow(*arguments: Any) -> None:
        other.start()
        assert waits.wait(20), "it does not wait"
        ended.append([*rays.taken_down])
        raise PartitionNotReady("still waiting")

    monkeypatch.setattr(bringing_up, "ask", slow)
    with pytest.raises(PartitionNotReady):
        bring_up(ClusterConfig("c", str(tmp_path)), "h:1")
    other.join(20)
    assert ended == [[]]
    assert rays.taken_down == ["h:1"]


def test_a_directory_without_a_lock_keeps_nobody_from_taking_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rays = SomebodysRay(monkeypatch, [], KeyboardInterrupt())
    cluster_file.write(ClusterFile("c", str(tmp_path), 4, 3, 2, address="h:1"))
    take_down_in(tmp_path)
    assert rays.taken_down == ["h:1"]
    assert not (tmp_path / "cluster.lock").exists()


def test_what_is_only_slow_is_left_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rays = SomebodysRay(monkeypatch, [], PartitionNotReady("still waiting"))
    with pytest.raises(PartitionNotReady):
        bring_up(ClusterConfig("c", str(tmp_path)), "h:1")
    assert rays.taken_down == []
    known = cluster_file.read(tmp_path)
    assert known is not None
    assert known.address == "h:1"


class OwnRay:
    """The Ray that this process is connected to, "" for none, by its program or by us."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, address: str, by_us: bool = False) -> None:
        self.address = address
        monkeypatch.setattr(ray_lookup, "joined_here", lambda: by_us)
        monkeypatch.setattr(ray_lookup, "here", lambda: self.address)
        monkeypatch.setattr(ray_lookup, "join", self._join)
        monkeypatch.setattr(ray_lookup, "leave", lambda: setattr(self, "address", ""))

    def _join(self, address: str) -> str:
        self.address = address
        return address


def test_a_program_on_a_ray_stays_there_when_it_cannot_have_a_cluster_with_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it does there would end with that."""
    launched: list[Path] = []
    monkeypatch.setattr(local_ray, "launch", launched.append)
    ray = OwnRay(monkeypatch, "LOCALHOST:9")
    with pytest.raises(RayNotRunning, match="connected to the Ray at LOCALHOST:9, and the cluster would have one"):
        bring_up(ClusterConfig("c", str(tmp_path)))
    assert ray.address == "LOCALHOST:9"
    assert launched == []
    assert cluster_file.read(tmp_path) is None


@pytest.mark.parametrize("before", ["h:1", ""])
def test_a_process_is_on_the_ray_that_it_was_on_after_a_failure(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SomebodysRay(monkeypatch, [], ClusterMismatch("another"))
    ray = OwnRay(monkeypatch, before)
    with pytest.raises(ClusterMismatch):
        bring_up(ClusterConfig("c", str(tmp_path)), "h:1")
    assert ray.address == before


@pytest.mark.parametrize(("before", "by_us", "after"), [("h:1", False, "h:1"), ("", False, ""), ("h:1", True, "")])
def test_who_takes_a_cluster_down_on_his_own_ray_stays_there(
    before: str, by_us: bool, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whom ``bring_up`` has connected does not, or he could have no cluster with another Ray afterwards."""
    ray = OwnRay(monkeypatch, before, by_us)
    monkeypatch.setattr(taking_down, "running_actors", lambda cluster: [])
    cluster_file.write(ClusterFile("c", str(tmp_path), 4, 3, 2, address="h:1", zookeeper="z:1", embedded=False))
    take_down_in(tmp_path)
    assert ray.address == after
    known = cluster_file.read(tmp_path)
    assert known is not None
    assert not known.running


@pytest.mark.parametrize("address", ["h:1", ""])
def test_a_mistake_with_the_zookeeper_leaves_the_file_of_a_cluster_as_it_was(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of one that runs would look there; and one that is down would name another one's Ray, which is ended."""
    rays = SomebodysRay(monkeypatch, ["cluster-manager"], KeyboardInterrupt())
    monkeypatch.setattr(recording, "KazooZooKeeper", lambda hosts: MemoryZooKeeper(MemoryZooKeeperServer()))
    before = ClusterFile("c", str(tmp_path), 4, 3, 2, address, "z:1", embedded=False, key=str(uuid.uuid4()))
    cluster_file.write(before)
    config = ClusterConfig("c", str(tmp_path), before.partitions, before.replicas, before.servers, zookeeper="z:2")
    with pytest.raises(ClusterMismatch, match="is it the right one"):
        bring_up(config, "h:1")
    assert rays.taken_down == []
    assert cluster_file.read(tmp_path) == before


@pytest.mark.parametrize("lives", [True, False])
def test_a_ray_of_others_that_was_started_again_elsewhere_takes_its_clusters_up(
    lives: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of before can be there: no ``waltz up`` or ``down`` ever reached the old one, for it has ended."""
    rays = SomebodysRay(monkeypatch, [], KeyboardInterrupt())
    monkeypatch.setattr(ray_lookup, "answers", lambda address: lives)
    before = ClusterFile("c", str(tmp_path), 4, 3, 2, "h:1", "z:1", key=str(uuid.uuid4()))
    cluster_file.write(before)
    with pytest.raises(ClusterMismatch if lives else KeyboardInterrupt):  # where ZooKeeper is asked for
        bring_up(ClusterConfig("c", str(tmp_path), 4, 3, 2), "h:2")
    assert rays.taken_down == ([] if lives else ["h:2"])
    assert cluster_file.read(tmp_path) == (before if lives else before.stopped())


class AnotherCluster:
    """Of the same name, on the same Ray at "h:1", in the ZooKeeper "z:1"; "z:2" has none yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        SomebodysRay(monkeypatch, ["cluster-manager", "replica/0"], KeyboardInterrupt())
        self.servers = {"z:1": MemoryZooKeeperServer(), "z:2": MemoryZooKeeperServer()}
        store = ClusterStore(MemoryZooKeeper(self.servers["z:1"]), "c")
        self.key = str(store.initialize(4, (0, 1, 2), to_json(Settings(ClusterConfig("c", "/d"), {}))).cluster_key)
        self.ended: list[str] = []
        location = {"zookeeper": "z:1", "cluster_key": self.key}
        monkeypatch.setattr(recording, "KazooZooKeeper", lambda hosts: MemoryZooKeeper(self.servers[hosts]))
        monkeypatch.setattr(bringing_up, "find_actor", lambda cluster, name: object())
        for each in (bringing_up, taking_down):
            monkeypatch.setattr(each, "ask", lambda *arguments: location)
        monkeypatch.setattr(taking_down, "end_actor", lambda cluster, name: self.ended.append(name))


@pytest.mark.parametrize("key", ["", "4c1b2a5e-3f6d-4a8b-9c7e-0d1f2a3b4c5d"])
def test_a_cluster_whose_name_another_one_on_the_ray_has_does_not_come_up(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one's actors were taken for its own: it was said to be up, and nobody served it."""
    another = AnotherCluster(monkeypatch)
    before = ClusterFile("c", str(tmp_path), 4, 3, 2, "", "z:2", embedded=False, key=key)
    if key:
        cluster_file.write(before)
    with pytest.raises(ClusterMismatch, match="another cluster 'c' runs on the Ray at h:1"):
        bring_up(ClusterConfig("c", str(tmp_path), 4, 3, 2, zookeeper="z:2"), "h:1")
    assert another.ended == []
    assert cluster_file.read(tmp_path) == (before if key else None)
    with pytest.raises(ClusterNotFound):
        ClusterStore(MemoryZooKeeper(another.servers["z:2"]), "c").info()


def test_a_directory_that_has_lost_its_file_knows_its_cluster_by_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    another = AnotherCluster(monkeypatch)
    known = ClusterFile("c", "/d", 4, 3, 2, "h:1", "z:1", embedded=False)
    recording.check_same(known, another.key)
    with pytest.raises(ClusterMismatch):
        recording.check_same(known, str(uuid.uuid4()))


@pytest.mark.parametrize("mine", [True, False])
def test_who_takes_a_cluster_down_ends_no_actors_of_another_one_of_its_name(
    mine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file says that it runs on a Ray that was started anew since."""
    end_cluster = taking_down.end_cluster
    another = AnotherCluster(monkeypatch)
    monkeypatch.setattr(taking_down, "end_cluster", end_cluster)
    key = another.key if mine else str(uuid.uuid4())
    cluster_file.write(ClusterFile("c", str(tmp_path), 4, 3, 2, "h:1", "z:1", embedded=False, key=key))
    take_down_in(tmp_path)
    assert another.ended == (["cluster-manager", "replica/0"] if mine else [])
    known = cluster_file.read(tmp_path)
    assert known is not None
    assert not known.running


def test_strangers_are_not_let_in_unless_somebody_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been started, not even ZooKeeper, and the next try may be another cluster."""
    rays = SomebodysRay(monkeypatch, [], KeyboardInterrupt())
    rays.nodes = ["127.0.0.1", "192.0.2.7"]
    with pytest.raises(
        ConfigError, match=r"would listen on 192\.0\.2\.7 \(replicas, servers, the embedded ZooKeeper\)"
    ):
        bring_up(ClusterConfig("c", str(tmp_path)), "h:1")
    assert cluster_file.read(tmp_path) is None
    with pytest.raises(KeyboardInterrupt):  # where ZooKeeper is asked for
        bring_up(ClusterConfig("c", str(tmp_path), insecure=True), "h:1")


def test_the_data_plane_begins_as_the_manager_would_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the members that there are by now, and as many actors of layers as are wanted."""
    made: list[tuple[Settings, str]] = []
    monkeypatch.setattr(
        bringing_up, "ensure_data_plane", lambda settings, zookeeper: made.append((settings, zookeeper))
    )
    zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
    store = ClusterStore(zookeeper, "c")
    placement = dict.fromkeys(range(3), "")
    store.initialize(2, (0, 1, 2), to_json(Settings(ClusterConfig("c", "/d"), placement)))
    store.members.change(lambda members: members.with_server().draining_server(0).without_server(0, 0))
    bringing_up._begin_data_plane(
        ClusterFile("c", "/d", 2, 3, 2, zookeeper="z:1"), ClusterStore(zookeeper, "c").info(), 2, 1
    )
    ((settings, where),) = made
    assert (settings.server_ids, sorted(settings.placement), where) == ([1, 2], [0, 1, 2], "z:1")
    assert (settings.config.kv.actors, settings.config.topics.actors) == (2, 1)


def test_layers_that_came_later_are_looked_at_by_each_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a ``waltz up`` that does not ask for them; and they listen where the settings that are kept say."""
    zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
    ClusterStore(zookeeper, "c").initialize(2, (0, 1, 2), {})
    LayerStore(zookeeper, "c").raise_actors("kv", 2)
    monkeypatch.setattr(recording, "KazooZooKeeper", lambda hosts: zookeeper)
    known = ClusterFile("c", "/d", 2, 3, 2, zookeeper="z:1")
    recorded = ClusterConfig("c", "/d", kv=KvConfig(host="192.0.2.7"))
    found = recording.with_all_layers(known, recorded, ClusterConfig("c", "/d", topics=TopicConfig(actors=1)))
    assert found == replace(
        recorded, kv=KvConfig(actors=2, host="192.0.2.7"), topics=replace(recorded.topics, actors=1)
    )


@pytest.mark.parametrize("deleted", ["kv", "topic-offsets"])
def test_a_space_of_a_layer_that_was_deleted_keeps_no_cluster_from_coming_up(
    deleted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is not used again; ``waltz apply`` asks for the same actors each time."""
    server = MemoryZooKeeperServer()
    monkeypatch.setattr(recording, "KazooZooKeeper", lambda hosts: server.client())
    config = ClusterConfig("c", "/d", 1, 3, 1, kv=KvConfig(actors=2), topics=TopicConfig(actors=1))
    store = ClusterStore(server.client(), "c")
    store.initialize(1, range(3), to_json(Settings(config, {})))
    known = ClusterFile("c", "/d", 1, 3, 1, zookeeper="h:1")
    assert recording.with_layers(known, config) == (2, 1)
    before = [space.name for space in store.spaces.table().present()]
    if deleted == "kv":
        store.spaces.delete(deleted, deleted)
    else:  # of a version that let it go
        node = f"/c/store/spaces/{deleted}"
        client = server.client()
        data, version = client.get(node)
        client.set(node, data.replace(b'"making"', b'"gone"'), version)
    assert recording.with_layers(known, config) == (2, 1)
    assert [space.name for space in store.spaces.table().present()] == [name for name in before if name != deleted]


def test_a_space_of_a_layer_that_another_has_just_made_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where two ``waltz apply`` begin the same actors."""
    server = MemoryZooKeeperServer()
    monkeypatch.setattr(recording, "KazooZooKeeper", lambda hosts: server.client())
    config = ClusterConfig("c", "/d", 1, 3, 1, kv=KvConfig(actors=2), topics=TopicConfig(actors=1))
    store = ClusterStore(server.client(), "c")
    store.initialize(1, range(3), to_json(Settings(config, {})))
    create = SpaceStore.create

    def create_too_late(spaces: SpaceStore, *given: Any) -> Any:
        create(spaces, *given)
        return create(spaces, *given)

    monkeypatch.setattr(SpaceStore, "create", create_too_late)
    assert recording.with_layers(ClusterFile("c", "/d", 1, 3, 1, zookeeper="h:1"), config) == (2, 1)
    assert [space.name for space in store.spaces.table().present()] == ["log", "kv", "topic-offsets"]


def test_a_directory_whose_cluster_file_is_lost_gets_no_second_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cluster is called otherwise than the directory, and what the replicas have is that one's."""
    server = MemoryZooKeeperServer()
    monkeypatch.setattr(recording, "KazooZooKeeper", lambda hosts: server.client())
    monkeypatch.setattr(recording, "alive_nodes", lambda: [NodeView("127.0.0.1", frozenset(), "")])
    config = ClusterConfig("prod", "/c")
    here = ClusterFile("prod", "/c", 4, 3, 2, zookeeper="zk")
    prod = recording.initialise(here, config)
    data, other = replace(here, name="data"), replace(config, name="data")
    with pytest.raises(ClusterMismatch, match=r"/c holds cluster 'prod', .* waltz up --dir /c --cluster prod"):
        recording.initialise(data, other)
    assert server.client().exists("/data") is None
    assert recording.initialise(here, config).cluster_key == prod.cluster_key
    elsewhere = recording.initialise(replace(data, directory="/d"), replace(other, directory="/d"))
    assert elsewhere.cluster_key != prod.cluster_key, "a cluster of another directory, which has its data there"
    of_all = replace(here, name="more", embedded=False)
    assert recording.initialise(of_all, replace(config, name="more")), "the ensemble of several"


def test_nobody_waits_for_the_actor_that_looks_after_a_zookeeper_which_runs_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a Ray of our own: a Python that begins takes seconds, just then. In the end it must have begun, too."""
    order: list[str] = []
    zookeeper = MemoryZooKeeperServer()

    class Process:
        def __init__(self, directory: str) -> None:
            assert directory == str(tmp_path / "zookeeper")

        def check_directory(self) -> None:
            order.append("its directory")

        def launch(self) -> None:
            order.append("ZooKeeper's process")

        def start(self, timeout_s: float) -> str:
            return "z:1"

    def ensure(kind: type, name: str, *arguments: Any, **options: Any) -> None:
        order.append(name)

    def ask(cluster: str, name: str, method: str, *arguments: Any) -> str:
        order.append(f"{name}: {method}")
        return "z:1"

    def wait(*arguments: Any) -> ClusterStatus:
        order.append("everything serves")
        return ClusterStatus(cluster="c", manager=ManagerStatus(1, True), partitions=())

    head = LocalRay("h:1", "", os.getpid(), psutil.Process().create_time(), str(tmp_path))
    fakes: dict[str, Any] = {
        "EmbeddedZooKeeper": Process,
        "KazooZooKeeper": lambda hosts: MemoryZooKeeper(zookeeper),
        "alive_nodes": lambda: [NodeView("127.0.0.1", frozenset())],
        "ask": ask,
        "ensure_actor": ensure,
        "ensure_keeper": lambda *arguments: order.append("zookeeper"),
        "ensure_data_plane": lambda settings, hosts: order.append("replicas and servers"),
        "running_actors": lambda cluster: [],
        "find_actor": lambda cluster, name: None,
        "guards_with_rights": lambda hosts, config: guards_of_file(config),
        "_start_and_wait": wait,
    }
    for name, fake in fakes.items():
        for module in (bringing_up, recording):
            monkeypatch.setattr(module, name, fake, raising=False)
    monkeypatch.setattr(ray_lookup, "join", lambda address: order.append("Ray"))
    monkeypatch.setattr(local_ray, "launch", lambda directory: head)
    monkeypatch.setattr(local_ray, "wait_until_started", lambda head, deadline_s: None)
    monkeypatch.setattr(local_ray, "stop", lambda head: order.append("it ends"))  # its process is this one
    assert bring_up(ClusterConfig("c", str(tmp_path))).zookeeper == "z:1"
    assert order == [
        *("its directory", "ZooKeeper's process", "Ray", "cluster-manager", "replicas and servers", "zookeeper"),
        *("everything serves", "zookeeper: connect_string"),
    ]


def test_who_may_only_read_the_nodes_is_told_before_anything_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``waltz up`` from a shell without the name and password: its actors would be as little known, and never serve."""

    class Reader(MemoryZooKeeper):
        def set(self, path: str, data: bytes, version: int) -> int:
            raise ZooKeeperRefused("only who knows the password may do that")

    config, server = ClusterConfig("c", str(tmp_path), zookeeper="z:1"), MemoryZooKeeperServer()
    settings = to_json(Settings(config, dict.fromkeys(range(config.replicas), "CPU")))
    ClusterStore(server.client(), "c").initialize(config.partitions, range(config.replicas), settings)
    monkeypatch.setattr(recording, "KazooZooKeeper", lambda hosts: Reader(server))
    rays = SomebodysRay(monkeypatch, [], KeyboardInterrupt())
    began: list[str] = []
    monkeypatch.setattr(bringing_up, "_ensure_manager", lambda known: began.append("the manager"))
    with pytest.raises(ZooKeeperRefused, match="cluster 'c' cannot be started from here: only who knows"):
        bring_up(config, "h:1")
    assert (began, rays.taken_down) == ([], ["h:1"])


def test_a_port_that_is_not_used_is_warned_of() -> None:
    first, now = ClusterConfig("c"), ClusterConfig("c", http=HttpConfig(port=9464))
    status = ClusterStatus(cluster="c", manager=ManagerStatus(1, True), partitions=(), config=first)
    assert unused_settings(status, first) == []
    (warning,) = unused_settings(status, now)
    by = "waltz apply changes settings of a cluster that runs (docs/deployment.md)"
    assert warning == f"the HTTP port is what it was (any free one): 9464 is not used; {by}"
    assert unused_settings(replace(status, config=now), now) == []
    taken = replace(status, manager=replace(status.manager, http_error="cannot listen"))
    assert troubles(taken) == ["the manager cannot listen; it tries again"]


def test_tls_that_came_too_late_is_warned_of_for_each_who_listens() -> None:
    server = ServerConfig(tls_certificate="/a.pem", tls_key="/a.key", tls_authority="/b.pem")
    first = ClusterConfig("c", server=server)  # of before replicas took TLS
    status = ClusterStatus(cluster="c", manager=ManagerStatus(1, True), partitions=(), config=first)
    storage = StorageConfig(tls_certificate="/a.pem", tls_key="/a.key", tls_authority="/b.pem")
    now = replace(first, storage=storage)
    (warning,) = unused_settings(status, now)
    assert warning.startswith("TLS of replicas is what it was (none): /a.pem is not used for them; waltz apply")
    assert unused_settings(replace(status, config=now), now) == []
    assert unused_settings(status, first) == []


def test_what_an_earlier_version_says_of_a_cluster_is_not_read_by_its_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """It came as a list of values, which were given to other fields: `waltz status` ended in a traceback."""
    status = ClusterStatus(cluster="c", manager=ManagerStatus(pid=1, leading=True), partitions=())
    came = ClusterStatus.__new__(ClusterStatus)
    for name in ClusterStatus.__dataclass_fields__:
        if name != "version":
            object.__setattr__(came, name, getattr(status, name))
    monkeypatch.setattr(readiness, "ask", lambda *arguments: came)
    with pytest.raises(VersionMismatch, match=r"an earlier version of .*: waltz down, then waltz up"):
        cluster_status("c")
    monkeypatch.setattr(readiness, "ask", lambda *arguments: status)
    assert cluster_status("c") is status


def test_a_ray_of_its_own_that_ends_meanwhile_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks it then waits until Ray ends this process, a minute later, and ZooKeeper would be left running."""
    asked: list[str] = []
    monkeypatch.setattr(bringing_up, "_ensure_manager", lambda known: asked.append(known.name))
    ended = LocalRay("LOCALHOST:1", "", 2**22 + 1, 0.0, "/d/ray")  # no process has that number
    known = ClusterFile("c", "/d", 1, 3, 1, address="LOCALHOST:1", ray=ended)
    with pytest.raises(RayNotRunning, match="Ray ended while the cluster was started; its logs are in /d/ray"):
        bringing_up._start_and_wait(known, 0, 0, print, 0.0)
    assert asked == []
