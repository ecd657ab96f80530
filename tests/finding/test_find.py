"""Which cluster is meant: what is given, what the environment says, the Ray one is in, the only one of this machine."""

from __future__ import annotations

import socket
import sys
import threading
import types
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import pytest

from waltz_ray.errors import ClusterNotFound, InvalidInput, RayNotRunning, SecretUnusable
from waltz_ray.finding import cluster_file, ray_lookup
from waltz_ray.finding.cluster_file import ClusterFile
from waltz_ray.finding.find import FoundCluster, find_cluster, find_on_ray, join_cluster, local_file

KEY = uuid.UUID(int=5)


class Rays(types.ModuleType):
    """As much of ray as the look-up touches: several Rays, each with the managers of some clusters."""

    class _TimedOut(Exception):
        pass

    class _FailedThere(Exception):
        """``RayTaskError``, whose text is a traceback."""

        def __init__(self, cause: Exception) -> None:
            super().__init__(f"ray::ClusterManager.location()\n  File\n{cause}")
            self.cause = cause

    def __init__(self, clusters: dict[str, list[str]]) -> None:
        super().__init__("ray")
        self.clusters = clusters
        self.joined = ""
        self.silent = False
        self.util = self
        self.headless = False
        self.fails: Exception | None = None
        self.exceptions = types.SimpleNamespace(
            RayActorError=RuntimeError,
            GetTimeoutError=self._TimedOut,
            RayError=self._TimedOut,
            RayTaskError=self._FailedThere,
        )

    def is_initialized(self) -> bool:
        return bool(self.joined)

    def get_runtime_context(self) -> Any:
        return types.SimpleNamespace(gcs_address=self.joined)

    def init(self, address: str, **options: Any) -> None:
        self.joined = address

    def list_named_actors(self, all_namespaces: bool) -> list[dict[str, str]]:
        if self.headless:
            raise self._TimedOut
        return [{"namespace": f"waltz-{name}", "name": "cluster-manager"} for name in self.clusters[self.joined]]

    def get_actor(self, name: str, namespace: str) -> Any:
        if self.headless:
            raise self._TimedOut
        if namespace.removeprefix("waltz-") not in self.clusters[self.joined] or name != "cluster-manager":
            raise ValueError(f"no actor {name}")
        return types.SimpleNamespace(location=types.SimpleNamespace(remote=lambda: f"zk of {self.joined}"))

    def get(self, zookeeper: str, timeout: float) -> dict[str, str]:
        if self.silent:
            raise self._TimedOut
        if self.fails is not None:
            raise self._FailedThere(self.fails)
        return {"zookeeper": zookeeper, "cluster_key": str(KEY)}


@pytest.fixture
def rays(monkeypatch: pytest.MonkeyPatch) -> Rays:
    """Nothing of this machine, nor of this process's environment, is seen."""
    fake = Rays({"a:1": ["waltz"], "b:1": ["waltz", "other"], "c:1": [], "LOCALHOST:9": ["here"]})
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr("socket.create_connection", lambda address, timeout: types.SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(ray_lookup, "_check_ray", lambda address: None)
    monkeypatch.setattr(cluster_file, "running_clusters", list)
    for name in ("WALTZ_CLUSTER", "WALTZ_DIR", "WALTZ_ZOOKEEPER", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return fake


def stored(directory: Path, name: str, address: str = "d:1", zookeeper: str = "zk") -> ClusterFile:
    directory.mkdir(exist_ok=True)
    cluster_file.write(ClusterFile(name, str(directory), 1, 1, 1, address=address, zookeeper=zookeeper, key=str(KEY)))
    found = cluster_file.read(directory)
    assert found is not None
    return found


def test_a_directory_is_a_place_and_needs_no_ray(rays: Rays, tmp_path: Path) -> None:
    stored(tmp_path, "bank")
    assert find_cluster(directory=str(tmp_path)) == FoundCluster("bank", "zk", "d:1", str(tmp_path), KEY)
    with pytest.raises(ClusterNotFound, match="holds cluster 'bank', not 'waltz'"):
        find_cluster("waltz", str(tmp_path))
    assert not rays.joined


def test_an_address_beside_a_directory_confirms_it_or_is_refused(rays: Rays, tmp_path: Path) -> None:
    stored(tmp_path, "bank", "127.0.0.1:5")
    assert find_cluster(directory=str(tmp_path), address="localhost:5").ray == "LOCALHOST:5"
    with pytest.raises(InvalidInput, match=r"runs on the Ray at 127\.0\.0\.1:5, not at a:1; leave one of the two out"):
        find_cluster(directory=str(tmp_path), address="a:1")
    with pytest.raises(InvalidInput, match="a ZooKeeper finds a cluster alone"):
        find_cluster("bank", directory=str(tmp_path), zookeeper="z:1")


def test_an_address_names_a_ray_and_its_only_cluster(rays: Rays) -> None:
    assert find_cluster(address="a:1") == FoundCluster("waltz", "zk of a:1", "a:1", "", KEY)
    assert find_cluster("waltz", address="a:1").zookeeper == "zk of a:1"
    with pytest.raises(ClusterNotFound, match="no cluster 'shop' runs on the Ray at a:1; running there: waltz"):
        find_cluster("shop", address="a:1")
    assert ray_lookup.joined_here(), "and not its program"
    with pytest.raises(RayNotRunning, match=r"connected to the Ray at a:1, not b:1; ray\.shutdown\(\) first"):
        find_cluster(address="b:1")
    rays.joined = ""
    assert not ray_lookup.joined_here()
    with pytest.raises(ClusterNotFound, match="several clusters run on the Ray at b:1: other, waltz; say which"):
        find_cluster(address="b:1")
    rays.joined = ""
    with pytest.raises(ClusterNotFound, match="no cluster runs on the Ray at c:1; start one with: waltz up --address"):
        find_cluster(address="c:1")
    rays.joined, rays.silent = "a:1", True
    with pytest.raises(ClusterNotFound, match="the manager of cluster 'waltz' on the Ray at a:1 does not answer"):
        find_cluster("waltz")


def test_a_zookeeper_needs_a_name(rays: Rays, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_cluster("bank", zookeeper="z:1") == FoundCluster("bank", "z:1")
    with pytest.raises(InvalidInput, match="may have several clusters; give the cluster's name"):
        find_cluster(zookeeper="z:1")
    monkeypatch.setenv("WALTZ_CLUSTER", "bank")
    assert find_cluster(zookeeper="z:1").name == "bank"
    assert find_cluster("shop", zookeeper="z:1").name == "shop"


def test_the_environment_says_what_nobody_has(rays: Rays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path / "1", "one")
    stored(tmp_path / "2", "two")
    monkeypatch.setenv("WALTZ_DIR", str(tmp_path / "1"))
    monkeypatch.setenv("RAY_ADDRESS", "a:1")
    assert find_cluster().name == "one"
    assert find_cluster(directory=str(tmp_path / "2")).name == "two"
    assert find_cluster("x", zookeeper="z:1").zookeeper == "z:1"
    assert find_cluster(address="a:1").name == "waltz"
    monkeypatch.setenv("WALTZ_ZOOKEEPER", "z:1")
    with pytest.raises(InvalidInput, match="WALTZ_DIR and WALTZ_ZOOKEEPER are both set"):
        find_cluster()
    monkeypatch.delenv("WALTZ_DIR")
    assert find_cluster("x").zookeeper == "z:1"
    with pytest.raises(InvalidInput, match="knows no Ray"):
        find_on_ray("x")


def test_inside_of_a_ray_it_is_that_ray(rays: Rays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_file, "running_clusters", lambda: [stored(tmp_path, "waltz")])
    monkeypatch.setenv("RAY_ADDRESS", "b:1")
    rays.joined = "127.0.0.1:9"
    rays.clusters["127.0.0.1:9"] = ["here"]
    assert find_cluster().name == "here"
    with pytest.raises(ClusterNotFound, match="no cluster 'waltz' runs on the Ray at LOCALHOST:9; running there: here"):
        find_cluster("waltz")
    assert join_cluster("waltz") == "LOCALHOST:9"  # Spark may run where no cluster does


def test_ray_address_comes_before_the_clusters_of_this_machine(
    rays: Rays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_file, "running_clusters", lambda: [stored(tmp_path, "waltz")])
    assert find_cluster().zookeeper == "zk"
    monkeypatch.setenv("RAY_ADDRESS", "a:1")
    assert find_cluster().zookeeper == "zk of a:1"


def test_nobody_chooses_among_several(rays: Rays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterNotFound, match="no cluster runs on this machine; start one with: waltz up"):
        find_cluster()
    running = [stored(tmp_path / "1", "waltz"), stored(tmp_path / "2", "waltz"), stored(tmp_path / "3", "bank")]
    monkeypatch.setattr(cluster_file, "running_clusters", lambda: running)
    for name in (None, "waltz"):
        with pytest.raises(ClusterNotFound, match=r"several clusters run here: waltz \(.*1\), waltz \(.*2\), bank"):
            find_cluster(name)
        with pytest.raises(ClusterNotFound, match="several clusters run here"):
            join_cluster(name)
    assert find_cluster("bank").directory == str(tmp_path / "3")
    assert not rays.joined


def test_auto_is_the_only_ray_of_the_machine(rays: Rays, monkeypatch: pytest.MonkeyPatch) -> None:
    services: Any = types.ModuleType("ray._private.services")
    monkeypatch.setitem(sys.modules, "ray._private", types.ModuleType("ray._private"))
    monkeypatch.setitem(sys.modules, "ray._private.services", services)

    def running(*addresses: str) -> None:
        services.find_gcs_addresses = cache(lambda: set(addresses))

    running()
    with pytest.raises(RayNotRunning, match="no Ray runs on this machine"):
        find_cluster(address="auto")
    running("a:1", "127.0.0.1:9")
    with pytest.raises(InvalidInput, match="several Rays run on this machine: LOCALHOST:9, a:1; say which"):
        find_cluster(address="auto")
    running("127.0.0.1:9")
    assert find_cluster(address="auto").ray == "LOCALHOST:9"
    rays.joined = ""
    monkeypatch.setenv("RAY_ADDRESS", "a:1")
    assert find_cluster(address="auto").ray == "a:1"


def test_a_cluster_that_is_still_starting_says_so(rays: Rays, tmp_path: Path) -> None:
    stored(tmp_path, "waltz", zookeeper="")
    with pytest.raises(ClusterNotFound, match="still starting; wait for its waltz up"):
        find_cluster(directory=str(tmp_path))


def test_one_that_does_not_run_may_be_meant_by_its_directory(rays: Rays, tmp_path: Path) -> None:
    stored(tmp_path, "waltz", address="")
    known = local_file(None, str(tmp_path), None)
    assert known is not None
    assert not known.running
    with pytest.raises(ClusterNotFound, match="holds cluster 'waltz', not 'x'"):
        local_file("x", str(tmp_path), None)
    assert local_file(None, None, "a:1") is None


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("127.0.0.1:5", "LOCALHOST:5"),
        ("localhost:5", "LOCALHOST:5"),
        ("[::1]:5", "LOCALHOST:5"),
        ("LOCALHOST:5", "LOCALHOST:5"),
        ("10.0.0.1:5", "10.0.0.1:5"),
        ("ray.example:5", "ray.example:5"),
    ],
)
def test_loopback_is_written_as_ray_takes_it(given: str, taken: str) -> None:
    assert ray_lookup.reachable(given) == taken
    assert ray_lookup.is_loopback(given) == (taken == "LOCALHOST:5")


def test_what_is_no_ray_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_lookup, "here", lambda: "")  # tests before this one may have joined a Ray
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"LOCALHOST:{nobody.getsockname()[1]}"

        def answer() -> None:
            while True:
                try:
                    connection, _ = nobody.accept()
                except OSError:  # the end of the test
                    return
                connection.sendall(b"no Ray\n")
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(RayNotRunning, match=rf"what listens at {address} does not answer as Ray does"):
            ray_lookup.join(address)
        nobody.shutdown(socket.SHUT_RDWR)
    with pytest.raises(RayNotRunning, match=rf"no Ray answers at {address} \(.* refused\); is it running"):
        ray_lookup.join(address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(RayNotRunning, match="RAY_ADDRESS names it: unset that"):
        ray_lookup.join(address)


class _NotWithoutToken(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Ray's head, where tokens are asked for."""

    def service(self, details: Any) -> Any:
        def refuse(request: bytes, context: Any) -> None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "token is missing or incorrect")

        return grpc.unary_unary_rpc_method_handler(refuse)


def test_a_ray_that_asks_for_a_token_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ray.init`` tried for twenty seconds, and did not say why; or ended with an error of Ray's own."""
    from ray.core.generated import gcs_service_pb2_grpc
    from ray.exceptions import AuthenticationError

    monkeypatch.setattr(ray_lookup, "here", lambda: "")
    monkeypatch.setattr("ray.init", lambda *arguments, **options: pytest.fail("it is not asked"))
    head = grpc.server(ThreadPoolExecutor(1), [_NotWithoutToken()])
    address = f"LOCALHOST:{head.add_insecure_port('127.0.0.1:0')}"
    head.start()
    try:
        with pytest.raises(RayNotRunning, match=f"the Ray at {address} lets in only who shows its token; set RAY_AUTH"):
            ray_lookup.join(address)

        class Stub:
            def __init__(self, channel: Any) -> None:
                pass

            def CheckAlive(self, *arguments: Any, **options: Any) -> None:  # noqa: N802 - Ray's name
                raise AuthenticationError("there is no token")

        monkeypatch.setattr(gcs_service_pb2_grpc, "NodeInfoGcsServiceStub", Stub)
        with pytest.raises(RayNotRunning, match="RAY_AUTH_MODE is token, and there is none; set RAY_AUTH_MODE"):
            ray_lookup.join(address)
    finally:
        head.stop(None).wait()


@pytest.mark.parametrize(
    ("address", "whose"), [("ray://h:10001", "Ray's client"), ("http://h:8265", "Ray's dashboard")]
)
def test_an_address_of_another_kind_is_called_what_it_is(
    address: str, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RAY_ADDRESS is what ``ray job submit`` takes, too."""
    monkeypatch.setattr(ray_lookup, "here", lambda: "")
    with pytest.raises(RayNotRunning, match=f"{address} is an address of {whose}"):
        ray_lookup.join(address)


def test_the_servers_of_a_cluster(rays: Rays) -> None:
    ray_lookup.join("a:1")
    with pytest.raises(ConnectionError, match="no actor server/4 of cluster 'waltz'"):
        ray_lookup.server_handles("waltz")(4)


def test_who_has_left_ray_asks_no_ray(rays: Rays, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with transport="actor" goes on in its thread: Ray joined somebody's there, or started one."""
    asked: list[str] = []
    handle_of = ray_lookup.server_handles("waltz")
    ray_lookup.join("a:1")
    monkeypatch.setattr(rays, "get_actor", lambda name, namespace: types.SimpleNamespace(channel_send=name))
    held = handle_of(1)
    assert held.channel_send == "server/1"
    rays.joined = ""
    for call in ("get_actor", "list_named_actors"):
        monkeypatch.setattr(rays, call, lambda *arguments, **options: asked.append("Ray"))
    with pytest.raises(ConnectionError, match="this process has left Ray"):
        handle_of(0)
    with pytest.raises(RayNotRunning, match="this process has left Ray"):
        ray_lookup.cluster_names()
    with pytest.raises(ConnectionError, match="this process has left Ray"):
        _ = held.channel_send
    assert asked == []


def test_what_fails_at_the_manager_is_told_as_it_is_there(rays: Rays) -> None:
    """As that there is no secret, for who wants to read from replicas; Ray's text of it is a traceback."""
    rays.fails = SecretUnusable("the secret cannot be read")
    with pytest.raises(SecretUnusable) as told:
        find_cluster("waltz", address="a:1")
    assert told.value is rays.fails


@pytest.mark.parametrize("name", [None, "waltz"])
def test_a_head_that_does_not_answer_any_more_is_told_as_such(rays: Rays, name: str | None) -> None:
    """By a process that has joined its Ray: ``waltz status --watch``, or a task that connects."""
    ray_lookup.join("a:1")
    rays.headless = True
    with pytest.raises(RayNotRunning, match="the head of the Ray at a:1 does not answer"):
        find_cluster(name)
    with pytest.raises(ConnectionError, match="the head of the Ray at a:1 does not answer"):
        ray_lookup.server_handles("waltz")(0)


def test_every_way_in_is_the_same(rays: Rays) -> None:
    """They all ask ``find``: a cluster that is not there is not there for anybody."""
    import waltz_ray
    from waltz_ray.client.readers.locations import where_of

    for ask in (waltz_ray.connect, waltz_ray.init_ray, where_of):
        with pytest.raises(ClusterNotFound, match="no cluster 'x' of this machine runs"):
            ask("x")


@pytest.mark.parametrize("wrong", [5, True, b"x", 1.5, [1], object(), "a\0b"], ids=repr)
def test_what_is_no_text(wrong: Any) -> None:
    for name in ("cluster", "directory", "address", "zookeeper"):
        with pytest.raises(InvalidInput, match="must be a text, not"):
            find_cluster(**{name: wrong})
