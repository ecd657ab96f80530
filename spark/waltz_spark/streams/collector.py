"""The collector: the log's feed becomes minute files in ``data/<category>/<collector>/``, every record exactly once.

::

    settings = CollectorSettings("c1", "/logs/tokyo", "bank", cluster="bank")
    collector = Collector(settings, zookeeper, ClusterFeed(spark, settings, zookeeper="127.0.0.1:2181"))
    collector.run(stop)                   # until the event is set
    collector.run_once()                  # or one pass: recovery if it is the first, then the minute that is over

When a UTC minute is over, its transactions are those that were appended in it, by the clocks of the servers, partition
by partition; also those of minutes that were missed during a pause. Each pass takes the next minute in which anything
was appended, and marks those before it (of a week, at the most) as empty ones. The first minute ever takes the whole
log, with those before it where that is very many files. A record that comes when its minute has been taken (a server's
clock is more than ``settle_s`` behind, or a commit took so long) belongs to the next one; so do records of a log from
before there were times, to the last minute that is over.

What a crash leaves, and why an older run can do nothing more: ``collector_states``, ``commit``, ``run``. A collector is
a thread like the services, with its node at ``/databus/<name>`` and its lock below; its name is its directory's, too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import NamedTuple, Protocol

from waltz_ray.client.readers.ranges import Range
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.errors import (
    ConfigError,
    DataUnavailable,
    InvalidInput,
    NodeDamaged,
    VersionConflict,
    ZooKeeperUnreachable,
)
from waltz_spark.streams.collector_states import (
    SUFFIXES,
    TABLE,
    CollectorAction,
    CollectorNode,
    Format,
    Plan,
    decode_collector,
    encode_collector,
    minutes_from,
)
from waltz_spark.streams.files import FilesOf, local_files, normal_root
from waltz_spark.streams.layout import (
    checked_name,
    data_path,
    encode_marker,
    join,
    marker_name,
    minute_name,
    minute_of,
    tmp_path,
)
from waltz_spark.streams.odd import make_way, put_file
from waltz_spark.streams.run import FENCED, Hook, ThreadRun
from waltz_spark.streams.settings import MOST_SECONDS

__all__ = ["PLAN_RANGES", "POINTS", "Collected", "Collector", "CollectorSettings", "Feed", "Written"]

log = logging.getLogger(__name__)

MOST_MARKED = timedelta(days=7)
"""Of empty minutes in a pass: a file each, and what is planned is carried through. Of a clock that is years ahead for a
moment it would be millions, also when it has been put right."""

PLAN_RANGES = 5000
"""Files of one plan at most, for it has to fit into ZooKeeper's nodes, the collector's and the local service's. What is
left of a minute is in the next one; the whole log, which comes first, is in as many minutes as it takes."""

POINTS = (
    "after lock",
    "after claim",
    "after fence",
    "after cleaning",
    "after COLLECT_PLANNED",
    "before WRITE",
    "after files",
    "during WRITE",
    "after WRITE",
    "after COLLECT_FILED",
    "before MARK",
    "during MARK",
    "after MARK",
    "after COLLECT_DONE",
)
"""Where ``hook`` is called, in the order of a run's first pass."""


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """One collector: a partition set of a cluster becomes a category under a root."""

    name: str
    """The thread, ``/databus/<name>``, and the directory ``data/<category>/<name>``. Unique."""

    root: str
    """A directory that every Spark executor sees, or a ``scheme://`` URI."""

    category: str

    cluster: str = ""
    """Its name; "" = the one that is meant (``waltz_ray.finding``), which whoever makes the collector looks for."""

    partitions: tuple[int, ...] = ()
    """() = all there are."""

    format: Format = "parquet"
    """``parquet``, or ``jsonl``: gzip lines, a JSON object each (``collector_files`` has the fields)."""

    bytes_per_task: int = 32 * 1024 * 1024
    """About how much a Spark task reads; each writes one file."""

    interval_s: float = 1.0
    """Pause between two looks at the clock."""

    settle_s: float = 2.0
    """A minute is taken so long after its end: what was appended in it has committed by then, also where a server's
    clock is a little behind."""

    zookeeper_root: str = "/databus"

    @property
    def node(self) -> str:
        return f"{self.zookeeper_root}/{self.name}"

    def validate(self) -> CollectorSettings:
        """Itself; ConfigError names the field that is out of range."""
        try:
            checked_name("name", self.name)
            checked_name("category", self.category)
            root = normal_root(self.root)
        except InvalidInput as error:
            raise ConfigError(f"collector {self.name}: {error}") from error
        wrong = {
            f"format must be one of {', '.join(SUFFIXES)}, not {self.format!r}": self.format not in SUFFIXES,
            "partitions must be different IDs from 0 on": any(p < 0 for p in self.partitions)
            or len(set(self.partitions)) != len(self.partitions),
            "bytes_per_task must be at least 1": self.bytes_per_task < 1,
            f"interval_s must be more than 0, and at most {MOST_SECONDS}": not 0 < self.interval_s <= MOST_SECONDS,
            "settle_s must be from 0 to 60": not 0 <= self.settle_s <= 60,
            "zookeeper_root must be a path": not self.zookeeper_root.startswith("/")
            or self.zookeeper_root.endswith("/"),
        }
        for text, is_wrong in wrong.items():
            if is_wrong:
                raise ConfigError(f"collector {self.name}: {text}")
        return replace(self, root=root)


class Written(NamedTuple):
    """A file that a ``Feed`` wrote: where it is, how many records and bytes are in it."""

    path: str
    records: int
    size_bytes: int


class Feed(Protocol):
    """What a collector reads its transactions from."""

    def cluster_key(self) -> str:
        """Of the cluster whose log it is: one that is made anew under the same name has another."""
        ...

    def hold(self, position: Mapping[int, int]) -> dict[int, int]:
        """``position``, and of each partition that it does not name the first transaction there is.

        From there on nothing is trimmed from now on. Trimmed if something has been.
        """
        ...

    def plan(self, position: Mapping[int, int]) -> list[Range]:
        """All committed transactions from ``position`` (partition -> ID, 0 where it says nothing) on, in ranges of
        one file each, those of a partition in order. DataUnavailable if the log ends before the position."""
        ...

    def plan_minute(self, position: Mapping[int, int], first: datetime, last: datetime) -> tuple[datetime, list[Range]]:
        """The first minute of ``first`` to ``last`` in which anything from ``position`` on was appended, and that as
        ``plan`` gives it; what is older belongs to ``first``. (``last``, nothing) if there is nothing."""
        ...

    def write(self, ranges: Sequence[Range], kind: Format, directory: str) -> list[Written]:
        """A file for each range, in their order, somewhere in ``directory``, which is there; the content is durable.

        OSError where the directory has gone: it may have been taken away from a run that was replaced.
        """
        ...


@dataclass(frozen=True, slots=True)
class Collected:
    """What a pass did. ``standing_by``: another run has the lock, ``holder`` tells which. ``minute``: the one that was
    marked, None if none was over; ``empty``: how many missed ones were marked with it."""

    standing_by: bool = False
    minute: datetime | None = None
    empty: int = 0
    records: int = 0
    size_bytes: int = 0
    holder: str = ""


class Collector(ThreadRun):
    """One category's collector. ZooKeeper, feed, file systems and clock are given; ``hook`` is for tests.

    ConfigError for settings that cannot be. Not for use by several Python threads at once.
    """

    def __init__(
        self,
        settings: CollectorSettings,
        zookeeper: ZooKeeper,
        feed: Feed,
        files_of: FilesOf = local_files,
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        hook: Hook = lambda point: None,
    ) -> None:
        self.settings = settings = settings.validate()
        if not settings.cluster:
            raise ConfigError(
                f"collector {settings.name}: cluster must be a name; whoever makes it finds the one meant"
            )
        self._feed = feed
        self._data = data_path(settings.root, settings.category, settings.name)
        self._size_bytes = 0
        self._waits_for: datetime | None = None
        self.node = CollectorNode()
        super().__init__(settings.name, settings.root, settings.node, zookeeper, files_of(settings.root), clock, hook)

    def open(self) -> bool:
        """Take the lock, shut out older runs, carry through what they left. False if another run has the lock.

        CoordinationError if the node cannot be understood, ConfigError if it is about something else. ClusterNotFound.
        """
        if not self._take_lock(encode_collector(CollectorNode())):
            return False
        self._hook("after lock")
        self._claim()
        self._hook("after claim")
        self._check_file_system()
        self._fence()
        self._hook("after fence")
        self._carry_through()
        self._clean()
        self._hook("after cleaning")
        return True

    def run_once(self) -> Collected:
        """Recover if this begins a run, then collect what is over.

        StorageError for what a file system refuses, VersionConflict if another run has taken over,
        ZooKeeperUnreachable, DataUnavailable, CoordinationError, Trimmed. All of them end the run: the next begins with
        recovery, as after a crash.
        """
        with self.ending_on_error(f"collector {self.settings.name}"):
            if self.is_open:
                self.check_held()
            elif not self.open():
                return Collected(standing_by=True, holder=self.holder)
            return self._collect()

    def run(self, stop: threading.Event) -> None:
        """Pass after pass until ``stop`` is set.

        Waits while ZooKeeper or a partition's server is away, another run has the lock, or a person has to put the
        thread's node right: that is said when it begins. Every other error ends it.
        """
        damaged, standing_by = "", False
        try:
            while not stop.is_set():
                try:
                    passed = self.run_once()
                    if passed.standing_by and not standing_by:
                        log.warning("collector %s stands by: %s", self.settings.name, passed.holder)
                    standing_by = passed.standing_by
                    if passed.minute is not None:
                        continue  # more may be over: after a pause one follows the other
                except NodeDamaged as error:
                    if str(error) != damaged:
                        log.error("collector %s waits: %s", self.settings.name, error)
                    damaged = str(error)
                except (ZooKeeperUnreachable, VersionConflict, DataUnavailable) as error:
                    log.warning("collector %s starts again with recovery: %s", self.settings.name, error)
                stop.wait(self.settings.interval_s)
        finally:
            self.close()

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _claim(self) -> None:
        settings = self.settings
        node = decode_collector(settings.node, self._read())
        if (node.position or node.plan is not None) and node.cluster != settings.cluster:
            raise ConfigError(
                f"collector {settings.name}: its position is one in the log of cluster {node.cluster}, not of "
                f"{settings.cluster}; give the other cluster's collector another name"
            )
        key = self._feed.cluster_key()
        if (node.position or node.plan is not None) and node.cluster_key not in ("", key):
            raise ConfigError(
                f"collector {settings.name}: its position is one in the log of another cluster {node.cluster} (their "
                "keys differ), which was made anew or restored since; give this one's collector another name"
            )
        if node.plan is not None and (node.category, node.root) != (settings.category, settings.root):
            raise ConfigError(
                f"collector {settings.name}: minute {minute_name(node.plan.minute)} of {node.category} under "
                f"{node.root} is in flight; run it with these once, or give the other collector another name"
            )
        node = replace(node, holder=self._run, cluster=settings.cluster, partitions=settings.partitions)
        self._write(replace(node, category=settings.category, root=settings.root, cluster_key=key))

    def _check_file_system(self) -> None:
        one, other = self._data, tmp_path(self.settings.root, self.settings.name)
        if self._files.file_system(one) != self._files.file_system(other):
            raise ConfigError(
                f"collector {self.settings.name}: {one} and {other} are on different file systems; put the whole root "
                "on one, since a rename between two is not atomic"
            )

    def _collect(self) -> Collected:
        over = minute_of(self._clock() - timedelta(seconds=self.settings.settle_s)) - timedelta(minutes=1)
        last = self.node.last
        if last is not None and over <= last:
            if over < last - timedelta(hours=1) and self._waits_for != last:
                self._waits_for = last  # said once
                log.error(
                    "collector %s waits: it has marked minute %s, and by the clock here %s is over; was one wrong?",
                    self.settings.name,
                    minute_name(last),
                    minute_name(over),
                )
            return Collected()
        if last is not None:
            over = min(over, last + MOST_MARKED)
        self._size_bytes = 0
        # What is below is in files, and marked. The first minute ever begins with what is left of the log.
        self.node = replace(self.node, position=self._feed.hold(self.node.position))
        if last is None:
            ranges = self._feed.plan(self.node.position)
            minute = over - timedelta(minutes=max(0, len(ranges) - 1) // PLAN_RANGES)
        else:
            minute, ranges = self._feed.plan_minute(self.node.position, last + timedelta(minutes=1), over)
        planned = self.node.planned(minute, ranges[:PLAN_RANGES], self.settings.format)
        plan = planned.plan
        assert plan is not None
        self._write(planned)
        self._hook("after COLLECT_PLANNED")
        self._carry_through()
        empty = (plan.minute - plan.since) // timedelta(minutes=1)
        return Collected(False, plan.minute, empty, plan.records, self._size_bytes)

    def _carry_through(self) -> None:
        while (plan := self.node.plan) is not None:
            row = TABLE[self.node.state]
            self.check_held()
            self._hook("before " + row.action.name)
            following = self._write_files(plan) if row.action is CollectorAction.WRITE else self._mark(plan)
            assert following.state is row.next
            self._hook("after " + row.action.name)
            self._write(following)
            self._hook("after " + row.next.value)
            if following.plan is None:
                self._files.delete(plan.markers)  # it is empty; one of a run that was shut out goes with that

    def _write_files(self, plan: Plan) -> CollectorNode:
        """WRITE. Everything is durable when it returns: the files in their place, the markers in ours."""
        staged = self.staged("files")
        self._files.make_directory(staged)
        written = self._feed.write(plan.ranges, plan.format, staged) if plan.ranges else []
        if len(written) != len(plan.ranges) or sum(each.records for each in written) != plan.records:
            raise DataUnavailable(
                f"collector {self.settings.name}: {sum(each.records for each in written)} of {plan.records} records of "
                f"minute {minute_name(plan.minute)} were written; it is written again"
            )
        self._size_bytes = sum(each.size_bytes for each in written)
        self._hook("after files")
        markers = self._prepare_markers(plan)
        make_way(self._files, self._root, self._data)
        for name, each in zip(plan.files, written, strict=True):
            self.check_held()
            # Over what an attempt before left there: nobody has seen that, there is no marker yet.
            put_file(self._files, self._root, each.path, join(self._data, name))
            self._hook("during WRITE")
        self._files.sync_directory(self._data)
        self._files.delete(staged)
        return self.node.filed(markers)

    def _prepare_markers(self, plan: Plan) -> str:
        directory = self.staged("markers")
        self._files.make_directory(directory)
        for minute in minutes_from(plan.since, plan.minute):
            self._files.write(join(directory, marker_name(minute)), [self._marker(plan, minute)])
        self._files.sync_directory(directory)
        self._files.sync_directory(directory.rpartition("/")[0])
        return directory

    def _marker(self, plan: Plan, minute: datetime) -> bytes:
        mine = minute == plan.minute
        more = {"cluster": self.settings.cluster, "ranges": plan.ranges if mine else ()}
        return encode_marker(minute, plan.files if mine else (), more)

    def _mark(self, plan: Plan) -> CollectorNode:
        """MARK. A marker that is not where it was prepared has been moved, by whichever run."""
        for minute in minutes_from(plan.since, plan.minute):
            target = join(self._data, marker_name(minute))
            prepared = self._prepared(plan, minute)
            if not prepared and minute == plan.minute and self._never_marked(plan, target):
                prepared = self.staged("marker")
                self._files.write(prepared, [self._marker(plan, minute)])
            if prepared:
                self.check_held()
                self._files.rename(prepared, target)
                self._hook("during MARK")
        self._files.sync_directory(self._data)
        return self.node.done()

    def _prepared(self, plan: Plan, minute: datetime) -> str:
        """Where the minute's marker waits: in the run that prepared it, which may be shut out by now; "" = nowhere."""
        run, _, name = plan.markers.rpartition("/")
        places = [join(directory, marker_name(minute)) for directory in (plan.markers, join(run + FENCED, name))]
        return next((place for place in places if self._files.exists(place)), "")

    def _never_marked(self, plan: Plan, target: str) -> bool:
        """A person has emptied ``system/tmp``. The local service moves a minute's files away before its marker."""
        if not plan.files or self._files.exists(target):
            return False
        return all(self._files.exists(join(self._data, name)) for name in plan.files)

    def _write(self, node: CollectorNode) -> None:
        self._put(encode_collector(node))
        self.node = node
