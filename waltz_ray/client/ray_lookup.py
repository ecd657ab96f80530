"""Finding a cluster through Ray's named actors. With ``zookeeper=`` given to ``connect`` none of this is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from waltz_ray.errors import ClusterNotFound

__all__ = ["MANAGER_NAME", "find_zookeeper", "namespace_of", "running_clusters", "server_handles"]

MANAGER_NAME = "cluster-manager"

_NAMESPACE_PREFIX = "waltz-"
_ANSWER_TIMEOUT_S = 30.0


def namespace_of(cluster: str) -> str:
    """The Ray namespace of a cluster's actors."""
    return _NAMESPACE_PREFIX + cluster


def _ray(cluster: str) -> Any:
    import ray  # not at import time: an application that names its ZooKeeper needs no Ray

    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError as error:
            raise ClusterNotFound(
                f"cluster {cluster!r} cannot be looked up: no Ray cluster runs here ({error}); "
                f"call ray.init(address=...) first or give connect() the zookeeper= of the cluster"
            ) from error
    return ray


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
