"""What a cluster says of itself, with its manager or without, and what it still lacks before everything serves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from waltz_ray.actors.supervision import ZOOKEEPER, ask, running_actors, statuses
from waltz_ray.errors import VersionMismatch
from waltz_ray.finding.ray_lookup import MANAGER
from waltz_ray.runtime.process import installed_version
from waltz_ray.runtime.status import (
    ActorState,
    ActorStatus,
    ClusterStatus,
    ManagerStatus,
    PartitionAssignment,
    Readiness,
)

__all__ = ["cluster_status", "missing", "status_without_manager"]


def cluster_status(name: str, timeout_s: float = 20.0) -> ClusterStatus:
    """What the manager says (``ClusterManager.status``). ClusterNotFound if there is no manager or it is silent,
    VersionMismatch if what it says cannot be understood here."""
    status: ClusterStatus = ask(name, MANAGER, "status", timeout_s)
    if not hasattr(status, "version"):  # it has come by the order of its fields, which is another one here
        raise VersionMismatch(
            f"cluster {name!r} runs an earlier version of waltz_ray, whose status version {installed_version()} here "
            "does not understand: use the one that is installed there, or start the cluster with this one: waltz down, "
            "then waltz up"
        )
    return status


def status_without_manager(name: str, reason: str) -> ClusterStatus:
    """What servers and replicas say themselves, in the same form, while the manager is silent for ``reason``."""
    actors = running_actors(name)
    servers, replicas, kv, topics = (_numbers(actors, kind) for kind in ("server", "replica", "kv", "topic"))
    answers = statuses(name, servers, replicas, ZOOKEEPER in actors, kv=kv, topics=topics)
    partitions = [
        PartitionAssignment(partition_id, server_id, served.generation, served.session, served.members)
        for server_id, server in answers.servers.items()
        for partition_id, served in server.partitions.items()
    ]
    return ClusterStatus(
        cluster=name,
        zookeeper_server=answers.zookeeper,
        manager=ManagerStatus(pid=None, leading=None, reason=reason),
        partitions=tuple(sorted(partitions, key=lambda each: each.partition)),
        servers=answers.servers,
        replicas=answers.replicas,
        kv=answers.kv,
        topics=answers.topics,
    )


def _numbers(actors: Sequence[str], kind: str) -> list[int]:
    return [int(actor.removeprefix(f"{kind}/")) for actor in actors if actor.startswith(f"{kind}/")]


def missing(status: ClusterStatus, kv: int = 0, topics: int = 0) -> list[str]:
    """What a starting cluster with so many kv and topic actors still lacks. A replica that refuses to start is not
    waited for: see ``startup_checks.troubles``."""
    replicas = [
        f"replica {replica_id} ({replica.reason or replica.state})"
        for replica_id, replica in status.replicas.items()
        if replica.state not in (ActorState.SERVING, ActorState.REFUSED)
    ]
    ready = {
        partition_id
        for server in status.servers.values()
        for partition_id, served in server.partitions.items()
        if served.state is Readiness.READY
    }
    trouble = status.manager.supervision_error
    return (
        ([f"actors ({trouble})"] if trouble else [])
        + replicas
        + [f"partition {each.partition}" for each in status.partitions if each.partition not in ready]
        + _missing_of_layer("kv", status.kv, kv, _unserved_buckets(status))
        + _missing_of_layer("topic", status.topics, topics, _unserved_slots(status))
    )


def _missing_of_layer(kind: str, actors: Mapping[int, ActorStatus], count: int, of_spaces: Iterable[str]) -> list[str]:
    """Actors that do not serve; ``of_spaces``: what is served by none of them, once they all are there."""
    absent = ActorStatus(state=ActorState.ABSENT)
    found = [(n, actors.get(n, absent)) for n in range(count)]
    waiting = [f"{kind} {n} ({actor.reason or actor.state})" for n, actor in found if not actor.serving]
    return waiting or (list(of_spaces) if count else [])


def _unserved_buckets(status: ClusterStatus) -> Iterator[str]:
    for space in status.spaces:
        if space.kind == "kv" and (unserved := status.unserved_buckets(space.name)) > 0:
            yield f"space {space.name} ({unserved} of its buckets)"


def _unserved_slots(status: ClusterStatus) -> Iterator[str]:
    for space in status.spaces:
        if space.kind == "topic" and (unserved := status.unserved_slots(space)) > 0:
            yield f"topic {space.name} ({unserved} of its partitions)"
