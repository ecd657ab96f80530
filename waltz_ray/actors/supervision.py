"""The cluster's actors by name: making sure they exist, finding them, ending them. All of it is idempotent.

Detached actors with ``max_restarts=-1``: Ray starts a crashed one again by itself; one that Ray gave up on (its node
was away too long, its creation failed) has lost its name and is simply made anew. Nothing is built on there being
only one actor of a name: two replicas cannot hold one directory's lock, two servers cannot both hold a session.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    RayActorError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
)

from waltz_ray.actors.pulse import ActorPulse
from waltz_ray.actors.settings import Settings
from waltz_ray.coordination.embedded import zookeeper_directory
from waltz_ray.coordination.zookeeper_access import ZOOKEEPER_VARIABLES
from waltz_ray.errors import ClusterNotFound, RuntimeEnvFailed
from waltz_ray.finding.ray_lookup import MANAGER, find_actor, named_actors, namespace_of
from waltz_ray.protocol.placement import NodeView
from waltz_ray.runtime.status import (
    ActorState,
    ActorStatus,
    EmbeddedZooKeeperStatus,
    KvActorStatus,
    ReplicaStatus,
    ServerStatus,
    TopicActorStatus,
)

__all__ = [
    "MANAGER",
    "ZOOKEEPER",
    "ActorAnswers",
    "RaySupervisor",
    "alive_nodes",
    "close_and_restart_actor",
    "ask",
    "end_actor",
    "ensure_actor",
    "ensure_data_plane",
    "ensure_keeper",
    "kv_name",
    "pulse_of",
    "replica_name",
    "restart_actor",
    "running_actors",
    "server_name",
    "statuses",
    "topic_name",
]

StatusT = TypeVar("StatusT", bound=ActorStatus)

Handle = Any  # an actor handle; Ray's own type knows nothing of the methods

ZOOKEEPER = "zookeeper"

_ZONE = "ray.io/availability-zone"

# A node with this label gets no actor but those that are tied to it: a head that is to come and go. That it has no CPUs
# does not keep them away, for they ask for none. Nodes without the label match.
_NOT_HERE = {"waltz-actors": "!none"}

# A replica or server asks for a sliver of its resource: the point is where it runs, not how many fit.
_SLIVER = 0.001


def server_name(server_id: int) -> str:
    return f"server/{server_id}"


def kv_name(actor_id: int) -> str:
    return f"kv/{actor_id}"


def topic_name(actor_id: int) -> str:
    return f"topic/{actor_id}"


def replica_name(replica_id: int) -> str:
    return f"replica/{replica_id}"


def ensure_actor(
    kind: type[Any], name: str, namespace: str, arguments: tuple[Any, ...], *, threads: int | None, resource: str = ""
) -> Handle:
    """The detached actor of that name, made if it is not there. ``threads`` None: an async actor. It runs where
    ``resource`` is offered; "": on any node that is not labelled ``waltz-actors=none``."""
    options: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "get_if_exists": True,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_task_retries": 0,  # a call whose outcome is unknown is the caller's to judge
        "num_cpus": 0,
    }
    known_by = {each: os.environ[each] for each in ZOOKEEPER_VARIABLES if os.environ.get(each)}
    if known_by:  # also where Ray was not started by us; paths, not what is in the files
        options["runtime_env"] = {"env_vars": known_by}
    if threads is not None:
        options["max_concurrency"] = threads
    if resource:
        options["resources"] = {resource: _SLIVER}
    else:
        options["label_selector"] = _NOT_HERE
    handle: Handle = ray.remote(kind).options(**options).remote(*arguments)
    return handle


def ensure_data_plane(settings: Settings, zookeeper: str) -> None:
    """Every replica and every server of the cluster exists, or is being made by Ray. What else it needs to know each
    reads from ZooKeeper when its process starts (``settings.own_settings``)."""
    # Here, because the command line needs the names above and none of the data plane's imports.
    from waltz_ray.actors.partition_server import PartitionServer
    from waltz_ray.actors.storage_replica import StorageReplica

    config, namespace = settings.config, namespace_of(settings.config.name)
    for replica_id, resource in sorted(settings.placement.items()):
        directory = settings.directory_of(replica_id)
        arguments = (config.name, zookeeper, replica_id, directory, config.secret_path)
        ensure_actor(StorageReplica, replica_name(replica_id), namespace, arguments, threads=4, resource=resource)
    for server_id in settings.server_ids:
        name, arguments_of_server = server_name(server_id), (config.name, zookeeper, server_id)
        ensure_actor(PartitionServer, name, namespace, arguments_of_server, threads=None)
    for layer, name_of, actors in (("kv", kv_name, config.kv.actors), ("topic", topic_name, config.topics.actors)):
        for actor_id in range(actors):
            arguments_of_layer = (config.name, zookeeper, actor_id)
            ensure_actor(_layer_actor(layer), name_of(actor_id), namespace, arguments_of_layer, threads=None)


def ensure_keeper(cluster: str, directory: str, start_timeout_s: float = 30.0) -> None:
    """The actor that starts the embedded ZooKeeper of a cluster's ``directory``, or adopts it, and looks after it: on
    the head."""
    from waltz_ray.actors.zookeeper_host import ZooKeeperHost

    arguments, resource = (zookeeper_directory(directory), start_timeout_s), "node:__internal_head__"
    ensure_actor(ZooKeeperHost, ZOOKEEPER, namespace_of(cluster), arguments, threads=4, resource=resource)


_LAYER_ACTORS = {
    "kv": "waltz_ray.kv.serving.actor:KvActor",
    "topic": "waltz_ray.topics.serving.actor:TopicActor",
}
"""Layers are applications of the log: it knows their actors by name, and imports nothing of them."""


def _layer_actor(layer: str) -> type[Any]:
    module, _, name = _LAYER_ACTORS[layer].partition(":")
    found: type[Any] = getattr(importlib.import_module(module), name)
    return found


class RaySupervisor:
    """The manager's hand in Ray. A server or layer's actor that Ray has started again begins to serve when it is told
    to ``start``."""

    def __init__(self, zookeeper: str) -> None:
        self._zookeeper = zookeeper
        self._starts: dict[str, Any] = {}  # actor -> the call that has no answer yet

    def ensure(self, settings: Settings) -> None:
        """All of them exist, the one that looks after an embedded ZooKeeper, too, and nobody who was removed; servers
        and layers have been told to start. Raises what one of these answered."""
        ensure_data_plane(settings, self._zookeeper)
        if not settings.config.zookeeper:
            ensure_keeper(settings.config.name, settings.config.directory)
        for name in settings.gone:
            end_actor(settings.config.name, name)
        config = settings.config
        of_layers = (*map(kv_name, range(config.kv.actors)), *map(topic_name, range(config.topics.actors)))
        names = [*map(server_name, settings.server_ids), *of_layers]
        failures = [
            f"{name.replace('/', ' ')}: {failure}" for name in names if (failure := self._start(settings, name))
        ]
        if failures:
            raise ClusterNotFound("; ".join(failures))

    def _start(self, settings: Settings, name: str) -> str:
        handle = find_actor(settings.config.name, name)
        if name not in self._starts and handle is not None:
            self._starts[name] = handle.start.remote()
        call = self._starts.get(name)
        if call is None or not ray.wait([call], timeout=0.5)[0]:
            return ""  # still starting
        del self._starts[name]
        try:
            ray.get(call)
        except (ActorUnavailableError, ActorDiedError):
            return ""  # Ray is starting it again; told the next time
        except Exception as error:  # noqa: BLE001 - the server's own words, whatever they are
            return _last_line(error)
        return ""


def ask(cluster: str, name: str, method: str, timeout_s: float, *arguments: object) -> Any:
    """Call an actor's method; its errors are raised here as they were there.

    ClusterNotFound, saying why, if it gives no answer in time; RuntimeEnvFailed if Ray could not even begin it.
    RayNotRunning if Ray's head gives none.
    """
    handle = find_actor(cluster, name)
    if handle is None:
        raise ClusterNotFound(f"the Ray cluster has no actor {name} of a cluster {cluster!r}; start it with: waltz up")
    try:
        return ray.get(getattr(handle, method).remote(*arguments), timeout=timeout_s)
    except GetTimeoutError as error:
        raise ClusterNotFound(f"{name} of cluster {cluster!r} does not answer within {timeout_s:g} s") from error
    except RayTaskError as error:
        raise error.cause from error  # the actor's own error, without the traceback that Ray writes into its text
    except RayActorError as error:
        raise ClusterNotFound(f"{name} of cluster {cluster!r} has died: {_last_line(error)}") from error
    except RuntimeEnvSetupError as error:
        raise RuntimeEnvFailed(
            f"Ray cannot set up the runtime_env with which {name} of cluster {cluster!r} was made: "
            f"{_last_line(error)}; change it where Ray is joined, or the job submitted, and try again"
        ) from error


def restart_actor(cluster: str, name: str) -> None:
    """End the actor's process; Ray starts it again. Nothing happens if there is no such actor."""
    handle = find_actor(cluster, name)
    if handle is not None:
        ray.kill(handle, no_restart=False)


def close_and_restart_actor(cluster: str, name: str, timeout_s: float = 10.0) -> None:
    """Ask the actor to shut down, then end its process; Ray starts it again. One that does not answer is just ended."""
    _close_and_end(cluster, name, timeout_s, for_good=False)


def alive_nodes() -> list[NodeView]:
    """The Ray cluster's nodes; the zone of one is its Ray label ``ray.io/availability-zone``."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [
        NodeView(node["NodeManagerAddress"], frozenset(node["Resources"]), node.get("Labels", {}).get(_ZONE, ""))
        for node in nodes
        if node["Alive"]
    ]


def running_actors(cluster: str) -> list[str]:
    """Names of the cluster's actors, the manager first, ZooKeeper last: the order to end them in."""
    names = [entry["name"] for entry in named_actors() if entry["namespace"] == namespace_of(cluster)]
    return sorted(names, key=lambda name: (name != MANAGER, name == ZOOKEEPER, *_order_of_ending(name)))


def _order_of_ending(name: str) -> tuple[bool, bool, bool, str]:
    """Layers before what they use, servers before replicas."""
    return not name.startswith("topic/"), not name.startswith("kv/"), not name.startswith("server/"), name


def end_actor(cluster: str, name: str, timeout_s: float = 10.0) -> None:
    """Ask the actor to shut down, then end it for good. Idempotent; one that does not answer is just ended."""
    _close_and_end(cluster, name, timeout_s, for_good=True)


def _close_and_end(cluster: str, name: str, timeout_s: float, for_good: bool) -> None:
    handle = find_actor(cluster, name)
    if handle is None:
        return
    try:
        ray.get(handle.shutdown.remote(), timeout=timeout_s)
    except RayError:
        pass  # dead, hung (GetTimeoutError) or failing: what it had on disk is recovered at the next start
    finally:
        ray.kill(handle, no_restart=for_good)


@dataclass(frozen=True, slots=True)
class ActorAnswers:
    """What servers and replicas say of themselves, by number; of who says nothing NO_ANSWER or ABSENT, and why."""

    servers: Mapping[int, ServerStatus]
    replicas: Mapping[int, ReplicaStatus]
    zookeeper: EmbeddedZooKeeperStatus | None = None  # None: it was not asked
    kv: Mapping[int, KvActorStatus] = field(default_factory=dict)
    topics: Mapping[int, TopicActorStatus] = field(default_factory=dict)


def statuses(
    cluster: str,
    servers: Iterable[int],
    replicas: Iterable[int],
    zookeeper: bool = False,
    timeout_s: float = 2.0,
    kv: Iterable[int] = (),
    topics: Iterable[int] = (),
) -> ActorAnswers:
    """Ask all of them, and ZooKeeper's keeper, at once for their ``status()``; wait no longer than ``timeout_s``."""
    of_servers = {number: _call_status(cluster, server_name(number)) for number in servers}
    of_replicas = {number: _call_status(cluster, replica_name(number)) for number in replicas}
    of_kv = {number: _call_status(cluster, kv_name(number)) for number in kv}
    of_topics = {number: _call_status(cluster, topic_name(number)) for number in topics}
    of_keeper = _call_status(cluster, ZOOKEEPER) if zookeeper else None
    of_all = (of_servers, of_replicas, of_kv, of_topics, {0: of_keeper})
    calls = [call for calls in of_all for call in calls.values() if call is not None]
    ready = _ready(calls, timeout_s)
    return ActorAnswers(
        {number: _answer(call, ready, ServerStatus) for number, call in of_servers.items()},
        {number: _answer(call, ready, ReplicaStatus) for number, call in of_replicas.items()},
        _answer(of_keeper, ready, EmbeddedZooKeeperStatus) if zookeeper else None,
        {number: _answer(call, ready, KvActorStatus) for number, call in of_kv.items()},
        {number: _answer(call, ready, TopicActorStatus) for number, call in of_topics.items()},
    )


def _call_status(cluster: str, name: str) -> Any:
    handle = find_actor(cluster, name)
    return None if handle is None else handle.status.remote()


def _ready(calls: list[Any], timeout_s: float) -> set[Any]:
    if not calls:
        return set()
    return set(ray.wait(calls, num_returns=len(calls), timeout=timeout_s, fetch_local=False)[0])


def _answer(call: Any, ready: set[Any], kind: type[StatusT]) -> StatusT:
    if call is None:
        return kind(state=ActorState.ABSENT, reason="Ray knows no actor of that name")
    if call not in ready:
        reason = "starting, hung, or no node offers the resource it is tied to"
        return kind(state=ActorState.NO_ANSWER, reason=reason)
    try:
        answer: StatusT = ray.get(call, timeout=1)
        return answer
    except RayError as error:
        return kind(state=ActorState.NO_ANSWER, reason=_last_line(error))


def pulse_of(cluster: str, names: list[str]) -> ActorPulse:
    """How long ago each of these actors answered."""

    def send(name: str) -> Any:
        handle = find_actor(cluster, name)
        return None if handle is None else handle.health.remote()

    def ended(calls: Mapping[str, Any], timeout_s: float) -> dict[str, bool]:
        ready = _ready(list(calls.values()), timeout_s)
        return {name: _answered(call) for name, call in calls.items() if call in ready}

    return ActorPulse(names, send, ended)


def _answered(call: Any) -> bool:
    try:
        ray.get(call, timeout=1)
    except RayTaskError:
        return True  # with an error, but it lives
    except RayError:
        return False
    return True


def _last_line(error: Exception) -> str:
    """Of Ray's many lines the last one is the cause."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
