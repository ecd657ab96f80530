"""What the threads are doing, for people and JSON (``runtime.status.to_json``). Reads only; needs no lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from waltz_ray.coordination.api import ZooKeeper
from waltz_spark.streams.consumer import pending_names
from waltz_spark.streams.entries import data_entries
from waltz_spark.streams.files import Files, FilesOf, local_files
from waltz_spark.streams.ignored import ignored
from waltz_spark.streams.layout import minute_of, parse_minute
from waltz_spark.streams.locks import LockHolder
from waltz_spark.streams.nodes import lock_holder, read_nodes
from waltz_spark.streams.quarantine import QuarantineRecord, quarantined
from waltz_spark.streams.states import ThreadNode
from waltz_spark.streams.work import is_marker

__all__ = ["ThreadStatus", "status"]


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """``running``: some run has the thread's lock; ``holder``: which, and for how long, "" = none.

    ``in_flight``: the path being committed, under the root.

    ``lag_minutes``: from the minute of the last commit to now; None before the first. ``pending``: for each consumer
    the number of announcements it has not consumed. ``ignored``: what is left alone on purpose, reason -> entries.
    ``unpublished``: complete minutes in ``data/`` of a local, what is announced to a consumer; ``oldest_unpublished``:
    the oldest minute of them, which says how far the thread is behind.
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
    unpublished: int
    oldest_unpublished: str | None


def status(
    zookeeper: ZooKeeper,
    files_of: FilesOf = local_files,
    clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    zookeeper_root: str = "/databus",
) -> list[ThreadStatus]:
    """Every service that ever ran, by name, but those whose nodes cannot be understood (``nodes``)."""
    nodes = read_nodes(zookeeper, zookeeper_root).services
    waiting = _announced(nodes, files_of)
    return [
        _of(name, node, lock_holder(zookeeper, f"{zookeeper_root}/{name}"), files_of, clock(), waiting.get(name, []))
        for name, node in sorted(nodes.items())
    ]


def _announced(nodes: dict[str, ThreadNode], files_of: FilesOf) -> dict[str, list[str]]:
    """Consumer -> what all its producers have announced to it and it has not taken over."""
    found: dict[str, list[str]] = {}
    for producer, node in nodes.items():
        for consumer in node.consumers if node.root else ():
            found.setdefault(consumer, []).extend(pending_names(files_of(node.root), node.root, consumer, producer))
    return found


def _minutes(files: Files, root: str) -> list[str]:
    """Of the markers in ``data/``."""
    return [name for each in data_entries(files, root).collectors for name in each.names if is_marker(name)]


def _of(
    name: str, node: ThreadNode, holder: LockHolder | None, files_of: FilesOf, now: datetime, announced: list[str]
) -> ThreadStatus:
    last = node.last
    lag = (minute_of(now) - parse_minute(last.commit)) // timedelta(minutes=1) if last else None
    files = files_of(node.root) if node.root else None  # "" until the first run has claimed it
    unpublished = _minutes(files, node.root) if files and node.kind == "local" else announced
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
        len(unpublished),
        min((minute[:12] for minute in unpublished), default=None),
    )
