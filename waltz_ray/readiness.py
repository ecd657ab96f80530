"""What a cluster says of itself, with its manager or without, and what it still lacks before everything serves."""

from __future__ import annotations

from collections.abc import Sequence

from waltz_ray.actors.supervision import ZOOKEEPER, ask, running_actors, statuses
from waltz_ray.errors import VersionMismatch
from waltz_ray.finding.ray_lookup import MANAGER
from waltz_ray.runtime.process import installed_version
from waltz_ray.runtime.status import (
    ActorState,
    ClusterStatus,
    KvActorStatus,
    ManagerStatus,
    PartitionAssignment,
    Readiness,
    TopicActorStatus,
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
        + _missing_of_kv(status, kv)
        + _missing_of_topics(status, topics)
    )


def _missing_of_kv(status: ClusterStatus, actors: int) -> list[str]:
    answers = {actor_id: status.kv.get(actor_id, KvActorStatus(state=ActorState.ABSENT)) for actor_id in range(actors)}
    absent = [f"kv {n} ({actor.reason or actor.state})" for n, actor in answers.items() if not actor.serving]
    if absent or not actors:
        return absent
    return [
        f"space {space.name} ({unserved} of its buckets)"
        for space in status.spaces
        if space.kind == "kv" and (unserved := status.unserved_buckets(space.name)) > 0
    ]


def _missing_of_topics(status: ClusterStatus, actors: int) -> list[str]:
    absent = TopicActorStatus(state=ActorState.ABSENT)
    answers = {actor_id: status.topics.get(actor_id, absent) for actor_id in range(actors)}
    waiting = [f"topic {n} ({actor.reason or actor.state})" for n, actor in answers.items() if not actor.serving]
    if waiting or not actors:
        return waiting
    return [
        f"topic {space.name} ({unserved} of its partitions)"
        for space in status.spaces
        if space.kind == "topic" and (unserved := status.unserved_slots(space)) > 0
    ]
