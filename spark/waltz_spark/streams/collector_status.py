"""What the collectors are doing, for people and JSON. Reads only; needs neither lock nor Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from waltz_ray.client.readers.locations import Where
from waltz_ray.client.readers.reading import Marks, Reading
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.errors import WaltzError
from waltz_spark.streams.collector_states import CollectorNode
from waltz_spark.streams.layout import minute_name, minute_of
from waltz_spark.streams.locks import LockHolder
from waltz_spark.streams.nodes import lock_holder, read_nodes

__all__ = ["CollectorStatus", "collector_status"]


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """``holder``: which run has the lock, and for how long, "" = none.

    ``in_flight``: the minute that is planned or filed, with ``records_in_flight``; None = none.

    ``position``: partition -> first ID that is in no file; ``high_water_marks``: the servers', now; ``lag_records``:
    committed and not collected; ``lag_minutes``: minutes that are over and not marked, None before the first.
    ``trouble``: why the marks are not known; the lag is None then.
    """

    name: str
    cluster: str
    category: str
    root: str
    running: bool
    holder: str
    state: str
    in_flight: str | None
    records_in_flight: int
    last_minute: str | None
    lag_minutes: int | None
    minutes: int
    records: int
    position: dict[int, int]
    high_water_marks: dict[int, int]
    lag_records: int | None
    trouble: str


def collector_status(
    zookeeper: ZooKeeper,
    where: Where | None,
    clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    zookeeper_root: str = "/databus",
) -> list[CollectorStatus]:
    """Every collector that ever ran and whose node can be understood. ``where``: of their clusters, None: no marks."""
    return [
        _of(name, node, lock_holder(zookeeper, f"{zookeeper_root}/{name}"), where, clock())
        for name, node in sorted(read_nodes(zookeeper, zookeeper_root).collectors.items())
    ]


def _of(
    name: str, node: CollectorNode, holder: LockHolder | None, where: Where | None, now: datetime
) -> CollectorStatus:
    marks, trouble = _marks(node, where)
    lag = sum(max(0, mark + 1 - node.position.get(p, 0)) for p, mark in marks.items())
    behind = (minute_of(now) - node.last) // timedelta(minutes=1) - 1 if node.last else None
    return CollectorStatus(
        name,
        node.cluster,
        node.category,
        node.root,
        holder is not None,
        holder.told(now) if holder else "",
        node.state.value,
        minute_name(node.plan.minute) if node.plan else None,
        node.plan.records if node.plan else 0,
        minute_name(node.last) if node.last else None,
        behind,
        node.minutes,
        node.records,
        dict(node.position),
        marks,
        None if trouble else lag,
        trouble,
    )


def _marks(node: CollectorNode, where: Where | None) -> tuple[dict[int, int], str]:
    if where is None or not node.cluster:
        return {}, "not asked"
    try:
        with Marks(Reading.of(where, node.cluster)) as marks:
            partitions = marks.locations.checked(list(node.partitions) or None)
            return {partition_id: marks.high_water_mark(partition_id) for partition_id in partitions}, ""
    except WaltzError as error:  # whatever it is: all other threads are told, too
        return {}, str(error)
