"""A log in memory, a collector on it, the local service behind it, and what must hold when both are done."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from waltz_spark.streams.collector import Collector, CollectorSettings, Written
from waltz_spark.streams.collector_states import CollectorState, Format, decode_collector, minutes_from
from waltz_spark.streams.files import Files
from waltz_spark.streams.layout import join, parse_published
from waltz_spark.streams.quarantine import quarantined
from waltz_spark.streams.services import StreamService
from waltz_spark.streams.settings import StreamSettings

from tests.spark.streams.faults import Crash, FaultyFiles, FaultyZooKeeper, Fuse
from tests.spark.streams.memory_files import MemoryFiles
from tests.spark.streams.world import walk
from waltz_ray.client.readers.ranges import Range, bounds_of, split_ranges
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.errors import Trimmed, WaltzError

__all__ = ["BEGIN", "MINUTE", "ListFeed", "MakeCollector", "Place", "problems_of", "record", "settings_of"]

BEGIN = datetime(2026, 11, 21, 15, 50, 10, tzinfo=timezone.utc)
LOCAL = "tokyo"
MINUTE = timedelta(minutes=1)


def record(partition_id: int, transaction_id: int) -> str:
    return f"{partition_id}/{transaction_id}"


class ListFeed:
    """``marks``: partition -> high-water mark. Files of two records each, written through a gate, without Spark."""

    def __init__(self, marks: Mapping[int, int], files: Files) -> None:
        self.marks, self.files = marks, files
        self.trim_marks: Mapping[int, int] = {}
        self.held: list[dict[int, int]] = []
        self.key = "the key of the first"

    def cluster_key(self) -> str:
        return self.key

    def hold(self, position: Mapping[int, int]) -> dict[int, int]:
        for p, first_id in position.items():
            if first_id < self.trim_marks.get(p, 0):
                raise Trimmed(p, first_id, self.trim_marks[p])
        self.held.append({**{p: self.trim_marks.get(p, 0) for p in self.marks}, **position})
        return self.held[-1]

    def plan(self, position: Mapping[int, int]) -> list[Range]:
        wanted = bounds_of({p: position.get(p, 0) for p in self.marks}, "latest", self.marks)
        return split_ranges(wanted, {}, 2)

    def plan_minute(self, position: Mapping[int, int], first: datetime, last: datetime) -> tuple[datetime, list[Range]]:
        """Whatever there is was appended in the last minute."""
        return last, self.plan(position)

    def write(self, ranges: Sequence[Range], kind: Format, directory: str) -> list[Written]:
        written = []
        for number, each in enumerate(ranges):
            records = [record(each.partition_id, n) for n in range(each.first_id, each.end_id)]
            path = join(directory, str(number))
            self.files.write(path, [json.dumps(records).encode()])
            written.append(Written(path, len(records), 0))
        return written


MakeCollector = Callable[..., Collector]


def settings_of(root: str, node: str = "/databus") -> CollectorSettings:
    return CollectorSettings("c1", root, "bank", "waltz", zookeeper_root=node)


def local_settings(root: str, node: str = "/databus") -> StreamSettings:
    return StreamSettings("local", LOCAL, root, zookeeper_root=node)


def problems_of(
    files: Files,
    root: str,
    zookeeper: ZooKeeper,
    node: str,
    marks: Mapping[int, int],
    last: datetime,
    first: datetime | None = None,
) -> list[str]:
    """What does not hold when the collector and the local service have done everything up to the minute ``last``.

    ``first``: the first minute there must be; None: whichever came first.
    """
    found = []
    base = join(root, "streams_local")
    published: list[str] = []
    minutes = set()
    for path, data in walk(files, base).items():
        relative = path.removeprefix(root + "/")
        minutes.add(parse_published(relative if data is None else relative.rpartition("/")[0]).minute)
        published += json.loads(data) if data is not None else []
    expected = [record(p, n) for p, mark in marks.items() for n in range(mark + 1)]
    if sorted(published) != sorted(expected):
        twice = sorted({one for one in published if published.count(one) > 1})
        found.append(f"missing {sorted(set(expected) - set(published))}, twice {twice}")
    wanted = set(minutes_from(first or min(minutes, default=last), last))
    if minutes != wanted:
        found.append(f"minutes missing {sorted(wanted - minutes)}, too much {sorted(minutes - wanted)}")
    left = [path for path, data in walk(files, join(root, "data")).items() if data is not None]
    found += [f"left in data/: {left}"] if left else []
    kept = walk(files, join(root, "system", "tmp", "c1"))
    found += [f"left in tmp: {sorted(kept)}"] if len(kept) > 1 else []
    found += [f"quarantined {one}" for one in quarantined(files, root, LOCAL)]
    state = decode_collector("c1", zookeeper.get(f"{node}/c1")[0])
    ends = {p: mark + 1 for p, mark in marks.items()}
    if state.state is not CollectorState.DONE or state.last != last or dict(state.position) != ends:
        found.append(f"the node says {state}")
    return found


@dataclass
class Place:
    """All in memory, with no client connected: can be copied."""

    files: MemoryFiles = field(default_factory=MemoryFiles)
    server: MemoryZooKeeperServer = field(default_factory=MemoryZooKeeperServer)
    marks: dict[int, int] = field(default_factory=lambda: {0: 2, 1: 0})
    now: datetime = BEGIN
    make: MakeCollector = Collector
    first: datetime | None = None

    def copied(self) -> Place:
        return Place(*copy.deepcopy((self.files, self.server, self.marks)), self.now, self.make, self.first)

    def later(self, minutes: int) -> None:
        """Time goes on, and so does the log."""
        self.now += minutes * MINUTE
        self.marks = {0: self.marks[0] + 3, 1: self.marks[1] + 1}

    def collect(self, fuse: Fuse) -> bool:
        """One pass of the collector; whether it came to its end. Its session is over afterwards."""
        gate = FaultyFiles(self.files, fuse)

        def run(zookeeper: ZooKeeper) -> None:
            feed = ListFeed(self.marks, gate)
            passed = self.make(settings_of("/x"), zookeeper, feed, lambda root: gate, lambda: self.now).run_once()
            assert not passed.standing_by

        return self._run(fuse, run)

    def publish(self, fuse: Fuse) -> bool:
        """One pass of the local service."""
        gate = FaultyFiles(self.files, fuse)

        def run(zookeeper: ZooKeeper) -> None:
            passed = StreamService(local_settings("/x"), zookeeper, lambda root: gate, lambda: self.now).run_once()
            assert not passed.standing_by

        return self._run(fuse, run)

    def _run(self, fuse: Fuse, run: Callable[[ZooKeeper], object]) -> bool:
        zookeeper = FaultyZooKeeper(self.server, fuse)
        session_id = zookeeper.session_id
        try:
            run(zookeeper)
            return True
        except Crash:
            return False
        finally:
            self.server.expire(session_id)
            zookeeper.close()

    def problems(self) -> list[str]:
        """After a clean pass of both; an error in it is a problem, too."""
        zookeeper = self.server.client()
        try:
            self.collect(Fuse())
            self.publish(Fuse())
            last = self.now.replace(second=0) - MINUTE
            return problems_of(self.files, "/x", zookeeper, "/databus", self.marks, last, self.first)
        except (WaltzError, OSError) as error:
            return [f"{type(error).__name__} {error}"]
        finally:
            zookeeper.close()
