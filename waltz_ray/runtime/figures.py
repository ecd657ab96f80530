"""Every figure that a cluster tells: its name, what it says, and how it is read off a status. Pure.

One list for Ray's exporter (``actors/metrics.py``), for ``/metrics`` of the manager (``actors/exposition.py``) and for
docs/metrics.md, which a test holds equal to it. Names are ``waltz_<noun>_<unit>``; a name that ends in ``_total`` only
ever rises while its process lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from waltz_ray.runtime.histogram import HistogramView
from waltz_ray.runtime.status import (
    ActorStatus,
    ClusterStatus,
    CursorStatus,
    EndpointStatistics,
    KvActorStatus,
    KvSpaceStatus,
    Readiness,
    ReplicaStatus,
    ScrubStatus,
    ServedPartition,
    ServerMeasures,
    ServerStatus,
    StoredPartition,
    TopicActorStatus,
)

__all__ = [
    "CLUSTER",
    "CURSOR",
    "FIGURES",
    "KV",
    "REPLICA",
    "SCRUB",
    "SERVED",
    "SERVER",
    "STORED",
    "TOPIC",
    "TRAFFIC",
    "Metric",
    "MEASURES",
    "Sample",
    "Value",
    "samples",
]

S = TypeVar("S")

Value: TypeAlias = "float | HistogramView"


Sample: TypeAlias = "tuple[Metric[Any], list[str], Value]"


@dataclass(frozen=True)
class Metric(Generic[S]):
    """``of``: the figure of a status; None = not known now, the old value stays. With a label ``by`` it is several, by
    that label's values."""

    name: str
    text: str
    of: Callable[[S], Value | Mapping[Any, Value] | None]
    by: str = ""

    def values(self, status: S) -> Iterator[tuple[str, Value]]:
        """(the value of the label ``by``, "" without one; the figure)."""
        found = self.of(status)
        if isinstance(found, Mapping):
            for label, value in found.items():
                yield str(label), value
        elif found is not None:
            yield "", found


def _behind(partition: ServedPartition) -> dict[int, int]:
    mark = partition.high_water_mark
    return {number: max(0, mark - each.last_id) for number, each in partition.replicas.items()}


REPLICA: tuple[Metric[ReplicaStatus], ...] = (
    Metric("waltz_replica_serving", "1 if the replica serves, else 0", lambda r: r.serving),
    Metric("waltz_replica_disk_use_bytes", "bytes in the storage directory", lambda r: r.disk_use_bytes),
    Metric("waltz_replica_disk_free_bytes", "bytes free on its disk", lambda r: r.disk_free_bytes),
    Metric("waltz_replica_partitions", "partitions that the replica has", lambda r: len(r.partitions)),
    Metric(
        "waltz_replica_partitions_damaged",
        "those of them that are damaged and not served",
        lambda r: sum(partition.damaged is not None for partition in r.partitions.values()),
    ),
    Metric("waltz_replica_sync_seconds", "how long the disk took for a sync", lambda r: r.sync),
    Metric(
        "waltz_replica_disk_slow",
        "1 while its syncs take more than 200 ms, or one does not end",
        lambda r: bool(r.slow),
    ),
)
TRAFFIC: tuple[Metric[EndpointStatistics], ...] = (
    Metric(
        "waltz_replica_connections",
        "connections of partition servers since the replica started",
        lambda t: t.connections,
    ),
    Metric(
        "waltz_replica_turns",
        "turns since the replica started; a turn with appends costs one sync",
        lambda t: t.turns,
    ),
    Metric("waltz_replica_records", "records appended since the replica started", lambda t: t.records),
    Metric(
        "waltz_replica_record_bytes", "bytes of records appended since the replica started", lambda t: t.record_bytes
    ),
    Metric("waltz_replica_turn_seconds", "how long a turn with appends took, writing and syncing", lambda t: t.turn),
    Metric(
        "waltz_replica_refusals_total",
        "what servers and readers asked that was refused, and connections without a right proof (unauthenticated)",
        lambda t: t.refusals,
        "reason",
    ),
)
SCRUB: tuple[Metric[ScrubStatus], ...] = (
    Metric("waltz_replica_scrub_done_bytes", "bytes that the running pass has checked", lambda s: s.done_bytes),
    Metric("waltz_replica_scrub_total_bytes", "bytes that it is to check", lambda s: s.total_bytes),
    Metric(
        "waltz_replica_scrub_began_seconds",
        "when the running pass, or the last one, began, Unix time",
        lambda s: None if s.began_ms is None else s.began_ms / 1000,
    ),
    Metric(
        "waltz_replica_scrub_last_pass_seconds",
        "when the last full pass ended, Unix time",
        lambda s: None if s.last_pass_ms is None else s.last_pass_ms / 1000,
    ),
    Metric("waltz_replica_damages_found", "damaged closed segments found since the replica started", lambda s: s.found),
    Metric("waltz_replica_damages_repaired", "those of them that were repaired", lambda s: s.repaired),
    Metric("waltz_replica_damages_unrepaired", "damaged closed segments now", lambda s: len(s.unrepaired)),
)
STORED: tuple[Metric[StoredPartition], ...] = (
    Metric("waltz_replica_first_id", "ID with which the replica's log begins", lambda p: p.first_id),
    Metric("waltz_replica_last_id", "ID of the replica's last valid transaction", lambda p: p.last_id),
    Metric("waltz_replica_low_water_mark", "the replica's low-water mark", lambda p: p.low_water_mark),
    Metric("waltz_replica_session", "highest session the replica has accepted", lambda p: p.session),
    Metric("waltz_replica_damaged", "1 if the partition is damaged and not served", lambda p: p.damaged is not None),
)
SERVER: tuple[Metric[ServerStatus], ...] = (
    Metric("waltz_server_serving", "1 if the server serves, else 0", lambda s: s.serving),
    Metric("waltz_server_connections", "connections of clients", lambda s: s.connections),
    Metric(
        "waltz_server_slow_steps",
        "steps of the event loop that took longer than 20 ms since the server started",
        lambda s: s.slow_steps,
    ),
    Metric("waltz_server_longest_step_ms", "the longest of them in milliseconds", lambda s: s.longest_step_ms),
    Metric("waltz_server_partitions", "partitions that the server has", lambda s: len(s.partitions)),
    Metric(
        "waltz_server_partitions_ready",
        "those of them that are open",
        lambda s: sum(partition.state is Readiness.READY for partition in s.partitions.values()),
    ),
)
MEASURES: tuple[Metric[ServerMeasures], ...] = (
    Metric("waltz_append_stage_seconds", "how long a turn or batch of appends took", lambda m: m.stages, "stage"),
    Metric("waltz_append_records_total", "records that went to the replicas, copies not counted", lambda m: m.records),
    Metric("waltz_append_bytes_total", "bytes of these records", lambda m: m.record_bytes),
    Metric("waltz_append_batch_records", "records that went to the replicas at a time", lambda m: m.batch_records),
    Metric("waltz_append_batch_bytes", "bytes that went to the replicas at a time", lambda m: m.batch_bytes),
    Metric("waltz_append_lock_failures_total", "appends that failed their lock check", lambda m: m.lock_failures),
    Metric("waltz_append_refusals_total", "appends and mounts that were refused", lambda m: m.refused, "reason"),
    Metric(
        "waltz_access_refusals_total",
        "what clients asked that they have not the right to",
        lambda m: m.access_refused,
        "reason",
    ),
    Metric("waltz_partition_recovery_seconds", "how long it took until a session was open", lambda m: m.recovery),
)
SERVED: tuple[Metric[ServedPartition], ...] = (
    Metric(
        "waltz_partition_ready",
        "1 if the partition is open on this server, else 0",
        lambda p: p.state is Readiness.READY,
    ),
    Metric(
        "waltz_partition_high_water_mark",
        "ID of the last committed transaction, while the partition is open",
        lambda p: p.known_mark,
    ),
    Metric("waltz_partition_trim_mark", "ID of the first transaction that must be there", lambda p: p.trim_mark),
    Metric("waltz_partition_session", "session that is running", lambda p: p.session),
    Metric("waltz_partition_generation", "generation of the assignment", lambda p: p.generation),
    Metric("waltz_partition_members", "replicas whose acknowledgements count", lambda p: len(p.members)),
    Metric("waltz_partition_replicas", "replicas of its session, members or not", lambda p: len(p.replicas)),
    Metric(
        "waltz_partition_in_flight_bytes",
        "bytes of records that are admitted and not committed",
        lambda p: p.in_flight_bytes,
    ),
    Metric("waltz_partition_subscribers", "mounted clients", lambda p: p.subscribers),
    Metric(
        "waltz_partition_replica_lag_transactions",
        "committed transactions that a replica of the session does not have",
        _behind,
        "replica",
    ),
    Metric(
        "waltz_subscriber_lag_transactions",
        "committed transactions that a mounted client was not sent yet, of those furthest behind",
        lambda p: p.lags,
        "client",
    ),
)
KV_ACTOR: tuple[Metric[KvActorStatus], ...] = (
    Metric("waltz_kv_serving", "1 if the actor serves, else 0", lambda a: a.serving),
)
KV: tuple[Metric[KvSpaceStatus], ...] = (
    Metric("waltz_kv_primaries", "buckets that the actor serves", lambda s: s.primaries),
    Metric("waltz_kv_secondaries", "buckets that it keeps a second copy of", lambda s: s.secondaries),
    Metric("waltz_kv_mask", "the mask of the space", lambda s: s.mask),
    Metric("waltz_kv_lease", "1 if the actor may answer reads without asking the log, else 0", lambda s: s.lease),
    Metric("waltz_kv_connections", "connections of clients and of other actors", lambda s: s.connections),
    Metric("waltz_kv_commands", "data commands since the actor began to serve the space", lambda s: s.commands),
    Metric("waltz_kv_waiting", "commands that wait for something else than the log", lambda s: s.waiting),
    Metric("waltz_kv_live_bytes", "bytes of the live state, of all partitions", lambda s: s.live_bytes),
    Metric(
        "waltz_kv_tail_bytes", "bytes of the logs from where they are needed, but for snapshots", lambda s: s.tail_bytes
    ),
    Metric(
        "waltz_kv_access_refusals_total",
        "what clients asked that they have not the right to",
        lambda s: s.access_refused,
        "reason",
    ),
)
TOPIC: tuple[Metric[TopicActorStatus], ...] = (
    Metric("waltz_topic_serving", "1 if the actor serves, else 0", lambda s: s.serving),
    Metric("waltz_topic_slots", "slots that the actor has", lambda s: len(s.slots)),
    Metric("waltz_topic_unserved", "partitions of its slots where nothing can be appended", lambda s: len(s.unserved)),
    Metric("waltz_topic_master", "1 if the actor is the master, else 0", lambda s: s.leads),
    Metric("waltz_topic_connections", "connections of clients", lambda s: s.connections),
    Metric("waltz_topic_produced", "messages appended since the actor began", lambda s: s.produced),
    Metric("waltz_topic_refused", "messages refused since the actor began", lambda s: s.refused),
    Metric("waltz_topic_delivered", "messages delivered since the actor began", lambda s: s.delivered),
    Metric("waltz_topic_groups", "partitions that groups consume at the actor", lambda s: s.groups),
)
CURSOR: tuple[Metric[CursorStatus], ...] = (
    Metric("waltz_cursor_lag", "transactions that are committed and still to come", lambda c: c.lag),
    Metric("waltz_cursor_owned", "1 if somebody has the cursor, else 0", lambda c: c.owner is not None),
)


def _serving(actors: Mapping[int, ActorStatus]) -> float:
    return sum(actor.serving for actor in actors.values())


CLUSTER: tuple[Metric[ClusterStatus], ...] = (
    Metric("waltz_cluster_partitions", "partitions of all spaces", lambda c: len(c.partitions)),
    Metric(
        "waltz_cluster_partitions_ready",
        "those that take appends on the server that has them",
        lambda c: sum((now := c.served(p)) is not None and now.takes_appends for p in c.partitions),
    ),
    Metric("waltz_cluster_servers_serving", "servers that serve", lambda c: _serving(c.servers)),
    Metric("waltz_cluster_replicas_serving", "replicas that serve", lambda c: _serving(c.replicas)),
    Metric("waltz_cluster_kv_actors_serving", "key/value actors that serve", lambda c: _serving(c.kv)),
    Metric("waltz_cluster_topic_actors_serving", "topic actors that serve", lambda c: _serving(c.topics)),
    Metric(
        "waltz_zookeeper_silent_seconds",
        "how long ago ZooKeeper answered the manager",
        lambda c: None if c.zookeeper_state is None else c.zookeeper_state.silent_s,
    ),
    Metric("waltz_manager_leading", "1 if the manager leads, else 0", lambda c: c.manager.leading),
    Metric(
        "waltz_manager_view_seconds",
        "when the manager saw the cluster last, Unix time",
        lambda c: None if c.at_ms is None else c.at_ms / 1000,
    ),
    Metric(
        "waltz_http_access_refusals_total",
        "what was asked at the manager's HTTP port without the right to",
        lambda c: c.manager.http_refused,
        "reason",
    ),
)

FIGURES: Mapping[str, tuple[tuple[str, ...], tuple[Metric[Any], ...]]] = {
    "The cluster, told by its manager": (("cluster",), CLUSTER),
    "A server": (("cluster", "server"), SERVER),
    "The way of appends through a server": (("cluster", "server"), MEASURES),
    "A partition on its server": (("cluster", "server", "partition"), SERVED),
    "A replica": (("cluster", "replica"), REPLICA),
    "What a replica is asked": (("cluster", "replica"), TRAFFIC),
    "A replica's check of its files": (("cluster", "replica"), SCRUB),
    "A partition on a replica": (("cluster", "replica", "partition"), STORED),
    "A key/value actor": (("cluster", "actor"), KV_ACTOR),
    "A space on a key/value actor": (("cluster", "actor", "space"), KV),
    "A topic actor": (("cluster", "actor"), TOPIC),
    "A cursor": (("cluster", "space", "cursor"), CURSOR),
}
"""All there are, by what they are about: the labels of these, and the figures."""


def _told(group: tuple[Metric[S], ...], status: S | None, *labels: str) -> Iterator[Sample]:
    if status is None:
        return
    for metric in group:
        for by, value in metric.values(status):
            yield metric, [*labels, *([by] if metric.by else [])], value


def samples(view: ClusterStatus) -> Iterator[Sample]:
    """Every figure of a cluster that is known: (metric, the values of its group's labels and of ``by``, the figure)."""
    name = view.cluster
    yield from _told(CLUSTER, view, name)
    for number, server in view.servers.items():
        yield from _told(SERVER, server, name, str(number))
        yield from _told(MEASURES, server.measures, name, str(number))
        for partition, served in server.partitions.items():
            yield from _told(SERVED, served, name, str(number), str(partition))
    for number, replica in view.replicas.items():
        yield from _told(REPLICA, replica, name, str(number))
        yield from _told(TRAFFIC, replica.traffic, name, str(number))
        yield from _told(SCRUB, replica.scrub, name, str(number))
        for partition, stored in replica.partitions.items():
            yield from _told(STORED, stored, name, str(number), str(partition))
    for number, actor in view.kv.items():
        yield from _told(KV_ACTOR, actor, name, str(number))
        for space, said in actor.spaces.items():
            yield from _told(KV, said, name, str(number), space)
    for number, topics in view.topics.items():
        yield from _told(TOPIC, topics, name, str(number))
    for cursor in view.cursors:
        yield from _told(CURSOR, cursor, name, cursor.space, cursor.name)
