"""What the threads are doing, for people and JSON (``runtime.status.to_json``). Reads only; needs no lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from waltz_ray.coordination.api import ZooKeeper
from waltz_spark.streams.consumer import pending_names
from waltz_spark.streams.files import FilesOf, local_files
from waltz_spark.streams.ignored import ignored
from waltz_spark.streams.layout import minute_of, parse_minute
from waltz_spark.streams.locks import LockHolder
from waltz_spark.streams.nodes import lock_holder, read_nodes
from waltz_spark.streams.quarantine import QuarantineRecord, quarantined
from waltz_spark.streams.states import ThreadNode

__all__ = ["ThreadStatus", "status"]


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """``running``: some run has the thread's lock; ``holder``: which, and for how long, "" = none.

    ``in_flight``: the path being committed, under the root.

    ``lag_minutes``: from the minute of the last commit to now; None before the first. ``pending``: for each consumer
    the number of announcements it has not consumed. ``ignored``: what is left alone on purpose, reason -> entries.
    """

    name: str
    kind: str
    root: str
    running: bool
    holder: str
    state: str
    in_flight: str | None
    commits: int
    last_commit: str | None
    last_commit_time: str | None
    lag_minutes: int | None
    pending: dict[str, int]
    quarantined: list[QuarantineRecord]
    ignored: dict[str, int]


def status(
    zookeeper: ZooKeeper,
    files_of: FilesOf = local_files,
    clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    zookeeper_root: str = "/databus",
) -> list[ThreadStatus]:
    """Every service that ever ran, by name, but those whose nodes cannot be understood (``nodes``)."""
    return [
        _of(name, node, lock_holder(zookeeper, f"{zookeeper_root}/{name}"), files_of, clock())
        for name, node in sorted(read_nodes(zookeeper, zookeeper_root).services.items())
    ]


def _of(name: str, node: ThreadNode, holder: LockHolder | None, files_of: FilesOf, now: datetime) -> ThreadStatus:
    last = node.last
    lag = (minute_of(now) - parse_minute(last.commit)) // timedelta(minutes=1) if last else None
    files = files_of(node.root) if node.root else None  # "" until the first run has claimed it
    return ThreadStatus(
        name,
        node.kind,
        node.root,
        holder is not None,
        holder.told(now) if holder else "",
        node.state.value,
        node.path.final_path if node.path else None,
        node.commits,
        last.final_path if last else None,
        last.time if last else None,
        lag,
        {consumer: len(pending_names(files, node.root, consumer, name)) for consumer in node.consumers}
        if files
        else {},
        quarantined(files, node.root, name) if files else [],
        ignored(files, node.root, node.kind) if files else {},
    )
