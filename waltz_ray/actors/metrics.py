"""What Prometheus sees: gauges through ``ray.util.metrics``, set every few seconds from ``status()``.

Ray exports them at each node's metrics port with the prefix ``ray_`` (``deploy/prometheus.yml``).

Ray keeps about 11 KB for every gauge of every partition, in the process that sets it. So a process tells the first
``MOST_PARTITIONS`` that it has one by one, and counts all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ray.util.metrics import Gauge

from waltz_ray.runtime.status import (
    CursorStatus,
    EndpointStatistics,
    KvActorStatus,
    KvSpaceStatus,
    Readiness,
    ReplicaStatus,
    ScrubStatus,
    ServedPartition,
    ServerStatus,
    StoredPartition,
    TopicActorStatus,
)

__all__ = ["MOST_PARTITIONS", "CursorGauges", "Gauges", "KvGauges", "ServerGauges", "TopicGauges"]

MOST_PARTITIONS = 64
"""Of one process, that have gauges of their own; and as many cursors."""

S = TypeVar("S")


@dataclass(frozen=True)
class _Figure(Generic[S]):
    """A gauge's name, what it says, and how it is read off a status; None = not known now, the old value stays."""

    name: str
    text: str
    of: Callable[[S], float | None]


_REPLICA: tuple[_Figure[ReplicaStatus], ...] = (
    _Figure("waltz_replica_serving", "1 if the replica serves, else 0", lambda r: r.serving),
    _Figure("waltz_replica_disk_use_bytes", "bytes in the storage directory", lambda r: r.disk_use_bytes),
    _Figure("waltz_replica_disk_free_bytes", "bytes free on its disk", lambda r: r.disk_free_bytes),
    _Figure("waltz_replica_partitions", "partitions that the replica has", lambda r: len(r.partitions)),
    _Figure(
        "waltz_replica_partitions_damaged",
        "those of them that are damaged and not served",
        lambda r: sum(partition.damaged is not None for partition in r.partitions.values()),
    ),
)
_TRAFFIC: tuple[_Figure[EndpointStatistics], ...] = (
    _Figure(
        "waltz_replica_connections",
        "connections of partition servers since the replica started",
        lambda t: t.connections,
    ),
    _Figure(
        "waltz_replica_turns",
        "turns since the replica started; a turn with appends costs one sync",
        lambda t: t.turns,
    ),
    _Figure("waltz_replica_records", "records appended since the replica started", lambda t: t.records),
    _Figure(
        "waltz_replica_record_bytes", "bytes of records appended since the replica started", lambda t: t.record_bytes
    ),
)
_SCRUB: tuple[_Figure[ScrubStatus], ...] = (
    _Figure("waltz_replica_scrub_done_bytes", "bytes that the running pass has checked", lambda s: s.done_bytes),
    _Figure("waltz_replica_scrub_total_bytes", "bytes that it is to check", lambda s: s.total_bytes),
    _Figure(
        "waltz_replica_scrub_last_pass_seconds",
        "when the last full pass ended, Unix time",
        lambda s: None if s.last_pass_ms is None else s.last_pass_ms / 1000,
    ),
    _Figure(
        "waltz_replica_damages_found", "damaged closed segments found since the replica started", lambda s: s.found
    ),
    _Figure("waltz_replica_damages_repaired", "those of them that were repaired", lambda s: s.repaired),
    _Figure("waltz_replica_damages_unrepaired", "damaged closed segments now", lambda s: len(s.unrepaired)),
)
_STORED: tuple[_Figure[StoredPartition], ...] = (
    _Figure("waltz_replica_first_id", "ID with which the replica's log begins", lambda p: p.first_id),
    _Figure("waltz_replica_last_id", "ID of the replica's last valid transaction", lambda p: p.last_id),
    _Figure("waltz_replica_low_water_mark", "the replica's low-water mark", lambda p: p.low_water_mark),
    _Figure("waltz_replica_session", "highest session the replica has accepted", lambda p: p.session),
    _Figure("waltz_replica_damaged", "1 if the partition is damaged and not served", lambda p: p.damaged is not None),
)
_SERVER: tuple[_Figure[ServerStatus], ...] = (
    _Figure("waltz_server_connections", "connections of clients", lambda s: s.connections),
    _Figure(
        "waltz_server_slow_steps",
        "steps of the event loop that took longer than 20 ms since the server started",
        lambda s: s.slow_steps,
    ),
    _Figure("waltz_server_longest_step_ms", "the longest of them in milliseconds", lambda s: s.longest_step_ms),
    _Figure("waltz_server_partitions", "partitions that the server has", lambda s: len(s.partitions)),
    _Figure(
        "waltz_server_partitions_ready",
        "those of them that are open",
        lambda s: sum(partition.state is Readiness.READY for partition in s.partitions.values()),
    ),
)
_SERVED: tuple[_Figure[ServedPartition], ...] = (
    _Figure(
        "waltz_partition_ready",
        "1 if the partition is open on this server, else 0",
        lambda p: p.state is Readiness.READY,
    ),
    _Figure("waltz_partition_high_water_mark", "ID of the last committed transaction", lambda p: p.high_water_mark),
    _Figure("waltz_partition_trim_mark", "ID of the first transaction that must be there", lambda p: p.trim_mark),
    _Figure("waltz_partition_session", "session that is running", lambda p: p.session),
    _Figure("waltz_partition_generation", "generation of the assignment", lambda p: p.generation),
    _Figure("waltz_partition_members", "replicas whose acknowledgements count", lambda p: len(p.members)),
    _Figure(
        "waltz_partition_in_flight_bytes",
        "bytes of records that are admitted and not committed",
        lambda p: p.in_flight_bytes,
    ),
    _Figure("waltz_partition_subscribers", "mounted clients", lambda p: p.subscribers),
)
_KV: tuple[_Figure[KvSpaceStatus], ...] = (
    _Figure("waltz_kv_primaries", "buckets that the actor serves", lambda s: s.primaries),
    _Figure("waltz_kv_secondaries", "buckets that it keeps a second copy of", lambda s: s.secondaries),
    _Figure("waltz_kv_mask", "the mask of the space", lambda s: s.mask),
    _Figure("waltz_kv_lease", "1 if the actor may answer reads without asking the log, else 0", lambda s: s.lease),
    _Figure("waltz_kv_connections", "connections of clients and of other actors", lambda s: s.connections),
    _Figure("waltz_kv_commands", "data commands since the actor began to serve the space", lambda s: s.commands),
    _Figure("waltz_kv_waiting", "commands that wait for something else than the log", lambda s: s.waiting),
    _Figure("waltz_kv_live_bytes", "bytes of the live state, of all partitions", lambda s: s.live_bytes),
    _Figure("waltz_kv_tail_bytes", "bytes of the log since the last whole snapshots", lambda s: s.tail_bytes),
)
_TOPIC: tuple[_Figure[TopicActorStatus], ...] = (
    _Figure("waltz_topic_slots", "slots that the actor has", lambda s: len(s.slots)),
    _Figure("waltz_topic_unserved", "partitions of its slots where nothing can be appended", lambda s: len(s.unserved)),
    _Figure("waltz_topic_master", "1 if the actor is the master, else 0", lambda s: s.leads),
    _Figure("waltz_topic_connections", "connections of clients", lambda s: s.connections),
    _Figure("waltz_topic_produced", "messages appended since the actor began", lambda s: s.produced),
    _Figure("waltz_topic_refused", "messages refused since the actor began", lambda s: s.refused),
    _Figure("waltz_topic_delivered", "messages delivered since the actor began", lambda s: s.delivered),
    _Figure("waltz_topic_groups", "partitions that groups consume at the actor", lambda s: s.groups),
)
_CURSOR: tuple[_Figure[CursorStatus], ...] = (
    _Figure("waltz_cursor_lag", "transactions that are committed and still to come", lambda c: c.lag),
    _Figure("waltz_cursor_owned", "1 if somebody has the cursor, else 0", lambda c: c.owner is not None),
)


class _Set(Generic[S]):
    """The gauges of one kind of status. ``own``: tags that are the same for ever; ``more``: keys of those that vary."""

    def __init__(self, figures: Iterable[_Figure[S]], own: dict[str, str], *more: str) -> None:
        self._gauges = [(figure, Gauge(figure.name, figure.text, (*own, *more))) for figure in figures]
        for _, gauge in self._gauges:
            gauge.set_default_tags(own)

    def tell(self, status: S, **tags: str) -> None:
        for figure, gauge in self._gauges:
            value = figure.of(status)
            if value is not None:
                gauge.set(float(value), tags=tags)


class _OfPartitions(Generic[S]):
    """The gauges of partitions: of those that came first, as many as are told one by one."""

    def __init__(self, figures: Iterable[_Figure[S]], own: dict[str, str]) -> None:
        self._set = _Set(figures, own, "partition")
        self._told: set[int] = set()

    def tell(self, partitions: Mapping[int, S]) -> None:
        for partition_id, partition in partitions.items():
            if partition_id not in self._told and len(self._told) < MOST_PARTITIONS:
                self._told.add(partition_id)
            if partition_id in self._told:
                self._set.tell(partition, partition=str(partition_id))


class Gauges:
    """One replica's gauges, tagged with the cluster and the replica; works without a running Ray (sets nothing)."""

    def __init__(self, cluster: str, replica: str) -> None:
        own = {"cluster": cluster, "replica": replica}
        self._replica, self._traffic = _Set(_REPLICA, own), _Set(_TRAFFIC, own)
        self._scrub = _Set(_SCRUB, own)
        self._partitions = _OfPartitions(_STORED, own)

    def replica(self, status: ReplicaStatus) -> None:
        """Set everything that one ``ReplicaHost.status()`` knows."""
        self._replica.tell(status)
        if status.traffic is not None:
            self._traffic.tell(status.traffic)
        if status.scrub is not None:
            self._scrub.tell(status.scrub)
        self._partitions.tell(status.partitions)


class ServerGauges:
    """The gauges of one partition server, tagged with the cluster, the server and, of a partition's, the partition."""

    def __init__(self, cluster: str, server: str) -> None:
        own = {"cluster": cluster, "server": server}
        self._server, self._partitions = _Set(_SERVER, own), _OfPartitions(_SERVED, own)

    def server(self, status: ServerStatus) -> None:
        """Set everything that one ``Server.status()`` knows."""
        self._server.tell(status)
        self._partitions.tell(status.partitions)


class KvGauges:
    """The gauges of one kv actor, tagged with the cluster, the actor and the space."""

    def __init__(self, cluster: str, actor: str) -> None:
        self._set = _Set(_KV, {"cluster": cluster, "actor": actor}, "space")

    def actor(self, status: KvActorStatus) -> None:
        """Set everything that one ``KvActor.status()`` knows."""
        for space, of_space in status.spaces.items():
            self._set.tell(of_space, space=space)


class TopicGauges:
    """The gauges of one topic actor, tagged with the cluster and the actor."""

    def __init__(self, cluster: str, actor: str) -> None:
        self._set = _Set(_TOPIC, {"cluster": cluster, "actor": actor})

    def actor(self, status: TopicActorStatus) -> None:
        """Set everything that one ``TopicActor.status()`` knows."""
        self._set.tell(status)


class CursorGauges:
    """The gauges of the cluster's cursors, tagged with the cluster, the space and the cursor."""

    def __init__(self, cluster: str) -> None:
        self._set = _Set(_CURSOR, {"cluster": cluster}, "space", "cursor")
        self._told: dict[tuple[str, str], CursorStatus] = {}

    def cursors(self, found: Iterable[CursorStatus]) -> None:
        """Set everything that is known of all there are; one that was deleted is behind no more."""
        now = {(each.space, each.name): each for each in found}
        for key in now:
            if len(self._told) < MOST_PARTITIONS:
                self._told.setdefault(key, now[key])
        for key, last in self._told.items():
            self._set.tell(now.get(key, replace(last, owner=None, lag=0)), space=key[0], cursor=key[1])
