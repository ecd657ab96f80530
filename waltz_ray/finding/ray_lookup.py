"""Joining a Ray cluster, and what its named actors say of the clusters on it.

Ray turns "127.0.0.1" and "localhost" into the machine's outside address before it connects, so neither ``ray.init`` nor
``ray status`` ever reaches a Ray that listens on loopback alone. A name in capitals is the same name to every
resolver and none to that rule: such a Ray is called LOCALHOST, here and wherever its address is shown.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from waltz_ray.errors import ClusterNotFound, InvalidInput, RayNotRunning
from waltz_ray.protocol.authentication import Credential

__all__ = [
    "MANAGER",
    "answers",
    "ask_for_ticket",
    "ask_manager",
    "cluster_names",
    "find_actor",
    "here",
    "is_loopback",
    "join",
    "joined_here",
    "leave",
    "named_actors",
    "namespace_of",
    "reachable",
    "runtime_env",
    "server_handles",
]

MANAGER = "cluster-manager"

_LOOPBACK = "LOCALHOST"
_NAMESPACE_PREFIX = "waltz-"
_CONNECT_S = 5.0
_ANSWER_TIMEOUT_S = 30.0

_joined = set[str]()  # the address of the Ray that ``join`` has connected this process to


def namespace_of(cluster: str) -> str:
    """The Ray namespace of a cluster's actors."""
    return _NAMESPACE_PREFIX + cluster


def is_loopback(address: str) -> bool:
    """Whether the Ray at ``address`` ("host:port") can be reached from its own machine only."""
    host = address.rpartition(":")[0].strip("[]").lower()
    return host in ("localhost", "::1") or host.startswith("127.")


def reachable(address: str) -> str:
    """``address`` ("host:port") as Ray takes it; see the top."""
    return f"{_LOOPBACK}:{address.rpartition(':')[2]}" if is_loopback(address) else address


def here() -> str:
    """The address of the Ray that this process belongs to (job, task, actor or driver), "" if to none."""
    if "ray" not in sys.modules:
        return ""
    import ray

    return reachable(ray.get_runtime_context().gcs_address) if ray.is_initialized() else ""


def runtime_env() -> list[str]:
    """What the ``runtime_env`` has that actors inherit which this process makes: its keys, [] if there is none."""
    import ray

    return sorted(ray.get_runtime_context().runtime_env)


def joined_here() -> bool:
    """Whether it was ``join`` that has connected this process to its Ray, and not its program."""
    return here() in _joined


def leave() -> None:
    """Disconnect this process from Ray. Idempotent."""
    import ray

    _joined.clear()
    ray.shutdown()


def join(address: str, **options: Any) -> str:
    """Connect this process to the Ray at ``address`` ("host:port" or "auto"); the address that was meant.

    ``options`` are ``ray.init``'s. Idempotent. RayNotRunning, within seconds, if nobody answers there; InvalidInput if
    several Rays run here and "auto" is to choose.
    """
    import ray

    address = reachable(address if address != "auto" else _only_one())
    if now := here():
        if now != address:
            raise RayNotRunning(f"this process is connected to the Ray at {now}, not {address}; ray.shutdown() first")
        return address
    _check_port(address)
    _check_ray(address)
    try:
        ray.init(address, **{"log_to_driver": False, "logging_level": logging.WARNING} | options)
    except (ConnectionError, RuntimeError) as error:
        raise RayNotRunning(f"Ray at {address} cannot be joined: {str(error).splitlines()[0]}") from error
    _joined.add(address)
    return address


def answers(address: str) -> bool:
    """Whether a Ray can be joined at ``address``; takes seconds if not."""
    address = reachable(address)
    try:
        if here() != address:
            _check_port(address)
            _check_ray(address)
    except RayNotRunning:
        return False
    return True


def _check_port(address: str) -> None:
    scheme, is_url, _ = address.partition("://")
    if is_url:
        whose = "Ray's client" if scheme == "ray" else "Ray's dashboard, as for jobs"
        raise RayNotRunning(
            f"{address} is an address of {whose}; that of Ray's head is wanted, host:port (RAY_ADDRESS, --address)"
        )
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        named = reachable(os.environ.get("RAY_ADDRESS", "")) == address
        hint = "RAY_ADDRESS names it: unset that if it is an old one" if named else "is it running?"
        raise RayNotRunning(f"no Ray answers at {address} ({error}); {hint}") from error


def _check_ray(address: str) -> None:
    """``ray.init`` would ask whatever listens there for two minutes, and print what it thinks meanwhile."""
    import grpc
    from ray._private.gcs_utils import create_gcs_channel
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
    from ray.exceptions import AuthenticationError

    how = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file with it"
    messages: Any = gcs_service_pb2
    services: Any = gcs_service_pb2_grpc
    channel = create_gcs_channel(address)
    try:
        services.NodeInfoGcsServiceStub(channel).CheckAlive(messages.CheckAliveRequest(), timeout=_CONNECT_S)
    except AuthenticationError as error:  # of this process: it is told to show a token
        raise RayNotRunning(
            f"Ray at {address} cannot be asked: RAY_AUTH_MODE is token, and there is none; {how}"
        ) from error
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:  # this sends the token that ``ray.init`` would
            raise RayNotRunning(f"the Ray at {address} lets in only who shows its token; {how}") from error
        raise RayNotRunning(
            f"what listens at {address} does not answer as Ray does ({error.code().name}); is it the port of its "
            "head (6379 where nothing else was said), not that of the dashboard or of Ray's client?"
        ) from error
    finally:
        channel.close()


def _only_one() -> str:
    """What "auto" means. Ray itself would take the one that was started last, whoever did it."""
    named = os.environ.get("RAY_ADDRESS", "auto")
    if named not in ("", "auto"):
        return named
    if now := here():
        return now
    from ray._private.services import find_gcs_addresses

    find_gcs_addresses.cache_clear()  # type: ignore[attr-defined]
    running = sorted(map(reachable, find_gcs_addresses()))  # type: ignore[no-untyped-call]
    if not running:
        raise RayNotRunning("no Ray runs on this machine; give its address, or start one")
    if len(running) > 1:
        raise InvalidInput(f"several Rays run on this machine: {', '.join(running)}; say which by its address")
    return running[0]


def cluster_names() -> list[str]:
    """The clusters that have a manager on the Ray that this process has joined. RayNotRunning if that is silent."""
    return sorted(
        actor["namespace"].removeprefix(_NAMESPACE_PREFIX)
        for actor in named_actors()
        if actor["name"] == MANAGER and actor["namespace"].startswith(_NAMESPACE_PREFIX)
    )


def named_actors() -> list[dict[str, str]]:
    """``name`` and ``namespace`` of each actor that has a name. RayNotRunning if Ray's head does not answer."""
    import ray

    _check_joined()
    try:
        found: list[dict[str, str]] = ray.util.list_named_actors(all_namespaces=True)
    except ray.exceptions.RayError as error:
        raise _head_is_silent(error) from error
    return found


def find_actor(cluster: str, name: str) -> Any | None:
    """The handle of an actor of the cluster, None if there is none of that name (it may have been given up).

    RayNotRunning if Ray's head does not answer, for which Ray waits a minute, or this process has left Ray.
    """
    import ray

    _check_joined()
    try:
        return ray.get_actor(name, namespace=namespace_of(cluster))
    except ValueError:
        return None
    except ray.exceptions.RayError as error:
        raise _head_is_silent(error) from error


def _check_joined() -> None:
    """Asked by who has left it, Ray would join any that it finds, or start one: also out of a client's thread."""
    import ray

    if not ray.is_initialized():
        raise RayNotRunning("this process has left Ray (ray.shutdown()); waltz_ray.init_ray() joins it again")


def _head_is_silent(error: Exception) -> RayNotRunning:
    return RayNotRunning(f"the head of the Ray at {here()} does not answer ({type(error).__name__}); is it running?")


def ask_manager(cluster: str) -> dict[str, str]:
    """What ``ClusterManager.location`` says, of the Ray that this process has joined.

    ClusterNotFound, naming what does run there, if there is no such manager or it is silent; RayNotRunning.
    """
    return dict(_asked(cluster, "location"))


def ask_for_ticket(cluster: str) -> Credential:
    """A ticket to read from the cluster's replicas, of its manager. Errors as of ``ask_manager``; SecretUnusable."""
    ticket: Credential = _asked(cluster, "reading_ticket")
    return ticket


def _asked(cluster: str, method: str) -> Any:
    import ray

    manager = find_actor(cluster, MANAGER)
    if manager is None:
        running = ", ".join(cluster_names())
        raise ClusterNotFound(
            f"no cluster {cluster!r} runs on the Ray at {here()}; "
            + (f"running there: {running}" if running else "none does; start one with `waltz up`")
        )
    try:
        return ray.get(getattr(manager, method).remote(), timeout=_ANSWER_TIMEOUT_S)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error  # the manager's own error, without the traceback that Ray writes into its text
    except ray.exceptions.RayError as error:
        raise ClusterNotFound(
            f"the manager of cluster {cluster!r} on the Ray at {here()} does not answer ({type(error).__name__}); "
            f"try again when it has restarted, or give the cluster's zookeeper"
        ) from error


def server_handles(cluster: str) -> Callable[[int], Any]:
    """Handles of the partition servers' actors by server ID, for the actor transport; this process has joined Ray.
    Their methods, too, are a ConnectionError when it has left."""

    def handle_of(server_id: int) -> Any:
        try:
            handle = find_actor(cluster, f"server/{server_id}")
        except RayNotRunning as error:
            raise ConnectionError(str(error)) from error
        if handle is None:
            raise ConnectionError(f"there is no actor server/{server_id} of cluster {cluster!r}")
        return _WhileJoined(handle)

    return handle_of


class _WhileJoined:
    """An actor's handle, of a client that may live on when its process has left Ray."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        try:
            _check_joined()
        except RayNotRunning as error:
            raise ConnectionError(str(error)) from error
        return getattr(self._handle, name)
