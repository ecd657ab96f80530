"""Joining a Ray cluster, and finding a waltz_ray cluster through Ray's named actors.

With ``zookeeper=`` given to ``connect`` none of this is needed.

Ray turns "127.0.0.1" into the machine's outside address unless RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 (its switch for
"loopback only"), in the head and in every driver: hence ``join``.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from waltz_ray.errors import ClusterNotFound, RayNotRunning

__all__ = [
    "LOOPBACK_ONLY",
    "MANAGER_NAME",
    "find_zookeeper",
    "join",
    "leave",
    "namespace_of",
    "running_clusters",
    "server_handles",
]

MANAGER_NAME = "cluster-manager"

LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_NAMESPACE_PREFIX = "waltz-"
_ANSWER_TIMEOUT_S = 30.0


def namespace_of(cluster: str) -> str:
    """The Ray namespace of a cluster's actors."""
    return _NAMESPACE_PREFIX + cluster


def _ray(cluster: str) -> Any:
    import ray  # not at import time: an application that names its ZooKeeper needs no Ray

    if not ray.is_initialized():
        try:
            join("auto")
        except RayNotRunning as error:
            raise ClusterNotFound(
                f"cluster {cluster!r} cannot be looked up: {error}; or give connect() the zookeeper= of the cluster"
            ) from error
    return ray


def leave() -> None:
    """Disconnect this process from Ray. Idempotent."""
    import ray

    ray.shutdown()


def join(address: str) -> str:
    """Connect this process to the Ray at ``address`` ("host:port" or "auto"); the address that was meant.

    Idempotent. RayNotRunning, within seconds, if nobody answers there.
    """
    import ray

    address = _resolved(address)
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if here != address:
            raise RayNotRunning(f"this process is connected to the Ray at {here}, not {address}; ray.shutdown() first")
        return address
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise RayNotRunning(f"no Ray answers at {address} ({error}); is it running?") from error
    options: dict[str, Any] = {}
    if _is_loopback(host):
        os.environ[LOOPBACK_ONLY] = "0"
        ray._private.ray_constants.ENABLE_RAY_CLUSTER = False  # read from the environment at import: too late for that
        options["_node_ip_address"] = "127.0.0.1"
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.WARNING, **options)
    except (ConnectionError, RuntimeError) as error:
        raise RayNotRunning(f"Ray at {address} cannot be joined: {str(error).splitlines()[0]}") from error
    return address


def _resolved(address: str) -> str:
    if address != "auto":
        return address
    # Not canonicalize_bootstrap_address: that one turns 127.0.0.1 into the outside address.
    from ray._private.services import get_ray_address_from_environment

    try:
        return str(get_ray_address_from_environment("auto", None))
    except ConnectionError as error:
        raise RayNotRunning("no Ray runs on this machine; give its --address, or leave it out to start one") from error


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def running_clusters(ray: Any) -> list[str]:
    """Names of the clusters whose manager is known to Ray."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return sorted(
        actor["namespace"].removeprefix(_NAMESPACE_PREFIX)
        for actor in named
        if actor["name"] == MANAGER_NAME and actor["namespace"].startswith(_NAMESPACE_PREFIX)
    )


def find_zookeeper(cluster: str) -> str:
    """The connect string of the cluster's ZooKeeper, asked from its manager.

    Ray is initialised with the local Ray cluster if it is not initialised. ClusterNotFound names what does run.
    """
    ray = _ray(cluster)
    try:
        manager = ray.get_actor(MANAGER_NAME, namespace=namespace_of(cluster))
    except ValueError:
        running = running_clusters(ray)
        raise ClusterNotFound(
            f"no cluster {cluster!r} runs on this Ray cluster; "
            + (f"running: {', '.join(running)}" if running else "none does; start one with `waltz up`")
        ) from None
    try:
        return str(ray.get(manager.zookeeper.remote(), timeout=_ANSWER_TIMEOUT_S))
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
        raise ClusterNotFound(
            f"the manager of cluster {cluster!r} does not answer ({type(error).__name__}); "
            f"try again when it has restarted, or give connect() the zookeeper= of the cluster"
        ) from error


def server_handles(cluster: str) -> Callable[[int], Any]:
    """Handles of the partition servers' actors by server ID, for the actor transport."""
    ray = _ray(cluster)

    def handle_of(server_id: int) -> Any:
        try:
            return ray.get_actor(f"server/{server_id}", namespace=namespace_of(cluster))
        except ValueError as error:
            raise ConnectionError(f"there is no actor server/{server_id} of cluster {cluster!r}") from error

    return handle_of
