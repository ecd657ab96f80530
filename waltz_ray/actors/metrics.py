"""What Prometheus sees through Ray: gauges of ``ray.util.metrics``, set every few seconds from ``status()``.

Ray exports them at each node's metrics port with the prefix ``ray_``. Which there are: ``runtime/figures.py``. A
histogram is a gauge for each of its bounds, named and labelled as Prometheus does: its functions take it for one.

A cluster's name that is not ASCII is told as a URL has it.

Ray keeps about 11 KB for every gauge of every partition, in the process that sets it. So a process tells the first
``MOST_PARTITIONS`` that it has one by one, and counts all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar
from urllib.parse import quote

from ray.util.metrics import Gauge

from waltz_ray.runtime.figures import (
    CURSOR,
    KV,
    KV_ACTOR,
    MEASURES,
    REPLICA,
    SCRUB,
    SERVED,
    SERVER,
    STORED,
    TOPIC,
    TRAFFIC,
    Metric,
)
from waltz_ray.runtime.histogram import HistogramView
from waltz_ray.runtime.status import (
    CursorStatus,
    KvActorStatus,
    KvSpaceStatus,
    Readiness,
    ReplicaStatus,
    ServedPartition,
    ServerStatus,
    StoredPartition,
    TopicActorStatus,
)

__all__ = ["MOST_PARTITIONS", "CursorGauges", "Gauges", "KvGauges", "ServerGauges", "TopicGauges", "keep_telling"]

log = logging.getLogger(__name__)

_TELL_EVERY_S = 5.0

MOST_PARTITIONS = 64
"""Of one process, that have gauges of their own; and as many cursors, and key/value spaces."""

_MOST_LABELS = 4 * MOST_PARTITIONS
"""Of one figure that is told by replica, client, stage or reason."""

K = TypeVar("K")
S = TypeVar("S")
Tags = Mapping[str, str]


class _Told(Generic[S]):
    """One figure's gauges. One that is told by a label stays at 0 for what is there no more: a client that has gone."""

    def __init__(self, figure: Metric[S], own: dict[str, str], more: tuple[str, ...]) -> None:
        self._figure = figure
        self._keys = (*own, *more, *([figure.by] if figure.by else []))
        self._own = own
        self._gauges: dict[str, Gauge] = {}
        self._labels: set[tuple[tuple[str, str], ...]] = set()

    def tell(self, status: S, tags: Tags) -> None:
        here = dict[str, str](tags)
        if not self._figure.by:
            for _, value in self._figure.values(status):
                self._set(value, here)
            return
        gone = {labels for labels in self._labels if here.items() <= set(labels)}
        for label, value in self._figure.values(status):
            labels = (*here.items(), (self._figure.by, label))
            gone.discard(labels)
            if labels in self._labels or len(self._labels) < _MOST_LABELS:
                self._labels.add(labels)
                self._set(value, dict(labels))
        for labels in gone:
            self._set(0.0, dict(labels))

    def _set(self, value: float | HistogramView, tags: dict[str, str]) -> None:
        if not isinstance(value, HistogramView):
            self._gauge("").set(float(value), tags=tags)
            return
        for bound, count in value.cumulative():
            self._gauge("_bucket").set(float(count), tags=tags | {"le": bound})
        self._gauge("_count").set(float(value.count), tags=tags)
        self._gauge("_sum").set(value.total, tags=tags)

    def _gauge(self, suffix: str) -> Gauge:
        found = self._gauges.get(suffix)
        if found is None:
            keys = (*self._keys, "le") if suffix == "_bucket" else self._keys
            found = self._gauges[suffix] = Gauge(self._figure.name + suffix, self._figure.text, keys)
            found.set_default_tags(self._own)
        return found


class _Set(Generic[S]):
    """The gauges of one kind of status. ``own``: tags that are the same for ever; ``more``: keys of those that vary."""

    def __init__(self, figures: Iterable[Metric[S]], own: dict[str, str], *more: str) -> None:
        own = {key: value if value.isascii() else quote(value) for key, value in own.items()}  # Ray takes no others
        self._told = [_Told(figure, own, more) for figure in figures]

    def tell(self, status: S, **tags: str) -> None:
        for each in self._told:
            each.tell(status, tags)


class _OfEach(Generic[K, S]):
    """The gauges of what comes and goes, partitions for one, tagged with ``key``: of those that came first, 64.
    Ray forgets no gauge, so one that is here no more is told as ``gone`` makes it of what was said of it last."""

    def __init__(
        self,
        figures: Iterable[Metric[S]],
        own: dict[str, str],
        key: str,
        gone: Callable[[S], S],
    ) -> None:
        self._set = _Set(figures, own, key)
        self._told: dict[K, S] = {}
        self._key, self._gone = key, gone

    def tell(self, present: Mapping[K, S]) -> None:
        for each, status in present.items():
            if each in self._told or len(self._told) < MOST_PARTITIONS:
                self._told[each] = status
                self._set.tell(status, **{self._key: str(each)})
        for each in self._told.keys() - present.keys():
            self._set.tell(self._gone(self._told[each]), **{self._key: str(each)})


def _served_no_more(last: ServedPartition) -> ServedPartition:
    """Its marks and numbers stay, for they only rise."""
    nobody = replace(last, state=Readiness.NOT_READY, members=(), replicas={}, lags={})
    return replace(nobody, in_flight_bytes=0, subscribers=0)


def _stored_no_more(last: StoredPartition) -> StoredPartition:
    return replace(last, damaged=None)


def _space_no_more(last: KvSpaceStatus) -> KvSpaceStatus:
    """What was counted stays."""
    idle = replace(last, primaries=0, secondaries=0, lease=False, connections=0, waiting=0)
    return replace(idle, live_bytes=0, tail_bytes=0)


class Gauges:
    """One replica's gauges, tagged with the cluster and the replica; works without a running Ray (sets nothing)."""

    def __init__(self, cluster: str, replica: str) -> None:
        own = {"cluster": cluster, "replica": replica}
        self._replica, self._traffic = _Set(REPLICA, own), _Set(TRAFFIC, own)
        self._scrub = _Set(SCRUB, own)
        self._partitions = _OfEach[int, StoredPartition](STORED, own, "partition", _stored_no_more)

    def replica(self, status: ReplicaStatus) -> None:
        """Set everything that one ``ReplicaHost.status()`` knows."""
        self._replica.tell(status)
        if status.traffic is not None:
            self._traffic.tell(status.traffic)
        if status.scrub is not None:
            self._scrub.tell(status.scrub)
        if status.serving:  # else it knows of none
            self._partitions.tell(status.partitions)


class ServerGauges:
    """The gauges of one partition server, tagged with the cluster, the server and, of a partition's, the partition."""

    def __init__(self, cluster: str, server: str) -> None:
        own = {"cluster": cluster, "server": server}
        self._server, self._measures = _Set(SERVER, own), _Set(MEASURES, own)
        self._partitions = _OfEach[int, ServedPartition](SERVED, own, "partition", _served_no_more)

    def server(self, status: ServerStatus) -> None:
        """Set everything that one ``Server.status()`` knows."""
        self._server.tell(status)
        if status.measures is not None:
            self._measures.tell(status.measures)
        self._partitions.tell(status.partitions)


class KvGauges:
    """The gauges of one kv actor, tagged with the cluster, the actor and the space."""

    def __init__(self, cluster: str, actor: str) -> None:
        own = {"cluster": cluster, "actor": actor}
        self._actor = _Set(KV_ACTOR, own)
        self._spaces = _OfEach[str, KvSpaceStatus](KV, own, "space", _space_no_more)

    def actor(self, status: KvActorStatus) -> None:
        """Set everything that one ``KvActor.status()`` knows; a space that was deleted is served no more."""
        self._actor.tell(status)
        self._spaces.tell(status.spaces)


class TopicGauges:
    """The gauges of one topic actor, tagged with the cluster and the actor."""

    def __init__(self, cluster: str, actor: str) -> None:
        self._set = _Set(TOPIC, {"cluster": cluster, "actor": actor})

    def actor(self, status: TopicActorStatus) -> None:
        """Set everything that one ``TopicActor.status()`` knows."""
        self._set.tell(status)


class CursorGauges:
    """The gauges of the cluster's cursors, tagged with the cluster, the space and the cursor."""

    def __init__(self, cluster: str) -> None:
        self._set = _Set(CURSOR, {"cluster": cluster}, "space", "cursor")
        self._told: dict[tuple[str, str], CursorStatus] = {}

    def cursors(self, found: Iterable[CursorStatus]) -> None:
        """Set everything that is known of all there are; one that was deleted is behind no more."""
        now = {(each.space, each.name): each for each in found}
        for key in now:
            if len(self._told) < MOST_PARTITIONS:
                self._told.setdefault(key, now[key])
        for key, last in self._told.items():
            self._set.tell(now.get(key, replace(last, owner=None, lag=0)), space=key[0], cursor=key[1])


async def keep_telling(who: str, tell: Callable[[], Awaitable[None]], every_s: float = _TELL_EVERY_S) -> None:
    """``tell`` Ray again and again, until this is cancelled. What one round meets is logged, and the next one comes:
    of who ceased to tell, what he said last would be told for ever."""
    failed = ""
    while True:
        try:
            await tell()
            failed = ""
        except Exception as error:  # whatever it is
            if str(error) != failed:
                log.exception("%s: its figures are not told to Ray; trying again", who)
            failed = str(error)
        await asyncio.sleep(every_s)
