"""The services: one pass (``run_once``), and the loop around it.

::

    service = StreamService(StreamSettings("local", "tokyo", "/logs/tokyo", consumers=("all",)), zookeeper)
    service.run(stop)                     # until the event is set
    service.run_once()                    # or one pass: recovery if it is the first, then everything there is

A pass that fails ends the run, in the words of ``commit``: the next pass begins with recovery, as after a crash.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType

from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.errors import ConfigError, NodeDamaged, StorageError, VersionConflict, ZooKeeperUnreachable
from waltz_spark.streams.batches import Copies, Ready
from waltz_spark.streams.commit import CommitThread, Hook, Work
from waltz_spark.streams.copying import Copier, InProcess
from waltz_spark.streams.drops import asked_drops, forget_drops
from waltz_spark.streams.files import FilesOf, directory_of, local_files, normal_root
from waltz_spark.streams.layout import COMMIT_BYTES, consumers_path, hour_name, join, mirrors_path, tmp_path
from waltz_spark.streams.odd import input_sizes, way_problem
from waltz_spark.streams.placing import is_taken, names_problem
from waltz_spark.streams.plain import Rests
from waltz_spark.streams.purge import purge
from waltz_spark.streams.quarantine import record_name, rewrite_quarantine
from waltz_spark.streams.set_clock import SetClock, utc_now
from waltz_spark.streams.settings import StreamSettings
from waltz_spark.streams.states import RECOVERY, Row, StreamState
from waltz_spark.streams.texts import shown
from waltz_spark.streams.work import Found, find_holes, find_work

__all__ = ["Pass", "StreamService", "check_file_systems"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass did. ``standing_by``: another run has the thread's lock, and nothing was done; ``holder`` tells
    which, and for how long it has had it.

    ``committed``: names of the commits; ``replayed``: announcements dropped because they were applied before;
    ``quarantined``: what could not be done, by commit, with the reason; ``dropped``: what of it went to
    trash, as asked for.
    """

    standing_by: bool = False
    committed: tuple[str, ...] = ()
    replayed: tuple[str, ...] = ()
    quarantined: Mapping[str, str] = field(default_factory=dict)
    holder: str = ""
    dropped: tuple[str, ...] = ()


def check_file_systems(settings: StreamSettings, files_of: FilesOf) -> None:
    """ConfigError if what is renamed lies on two file systems: then a rename is a copy, and a crash tears it."""
    root = settings.root
    pairs = [
        (root, join(root, settings.stream), tmp_path(root, settings.name)),
        *((root, settings.inbox(consumer), tmp_path(root, settings.name)) for consumer in settings.consumers),
    ]
    if settings.kind == "local":
        pairs.append((root, join(root, "data"), join(root, "system", "trash")))
    for source in settings.sources:
        for inbox in (consumers_path, mirrors_path):
            directory = inbox(source.root, settings.name, source.producer)
            pairs.append((source.root, directory, join(source.root, "system", "trash")))
    for where, one, other in pairs:
        files = files_of(where)
        if files.file_system(one) != files.file_system(other):
            raise ConfigError(
                f"stream service {settings.name}: {one} and {other} are on different file systems; "
                "put the whole root on one, since a rename between two is not atomic"
            )


@dataclass(slots=True)
class _Passing:
    """What a pass has done so far; ``stay``: what it could not do."""

    committed: list[str] = field(default_factory=list)
    replayed: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    stay: list[Found] = field(default_factory=list)

    def cannot(self, found: Found, problem: str) -> None:
        self.problems[found.name] = problem
        self.stay.append(found)


class StreamService:
    """One thread's service. ZooKeeper, file systems and clock are given; ``hook`` and ``recovery`` are for tests.

    ``on_spark`` copies where there is much to copy (``StreamSettings.spark_copy_bytes``); None: this process does.

    ConfigError for settings that cannot be. Not for use by several Python threads at once.
    """

    def __init__(
        self,
        settings: StreamSettings,
        zookeeper: ZooKeeper,
        files_of: FilesOf = local_files,
        clock: Callable[[], datetime] = utc_now,
        hook: Hook = lambda point: None,
        recovery: Mapping[StreamState, Row] = RECOVERY,
        on_spark: Copier | None = None,
        elapsed_s: Callable[[], float] | None = None,
    ) -> None:
        """``elapsed_s``: by what it is seen that the clock was set; None: the monotonic clock beside the machine's, and
        no other clock is."""
        settings.validate()
        sources = tuple(replace(source, root=normal_root(source.root)) for source in settings.sources)
        self.settings = replace(settings, root=normal_root(settings.root), sources=sources)
        self._zookeeper, self._files_of, self._clock = zookeeper, files_of, clock
        self.thread = CommitThread(self.settings, zookeeper, files_of, clock, hook, recovery)
        beside = time.monotonic if clock is utc_now else lambda: clock().timestamp()
        self._set_clock = SetClock(elapsed_s or beside)
        self._purged_hour = ""
        self._rests = Rests()
        self._copies = Copies(self.settings, InProcess(files_of), on_spark)

    def run_once(self) -> Pass:
        """Recover if this begins a run, then commit everything there is.

        StorageError for what a file system refuses, VersionConflict if another run has taken over,
        ZooKeeperUnreachable, NodeDamaged for a node that cannot be understood. All of them end the run.
        """
        with self.thread.ending_on_error(f"stream service {self.settings.name}"):
            if not self._opened():
                return Pass(standing_by=True, holder=self.thread.holder)
            return self._pass()

    def purge_once(self) -> list[str]:
        """Delete what is older than the retention; the paths. [] if another run has the lock. Errors as above."""
        with self.thread.ending_on_error(f"stream service {self.settings.name}"):
            return self._purged(self._clock())

    def run(self, stop: threading.Event) -> None:
        """Pass after pass until ``stop`` is set, and once an hour a purge; also before a file system's error ends it.

        Waits while ZooKeeper is away, another run has the lock, or a person has to put the thread's node right: that
        is said when it begins. Every other error ends it.
        """
        damaged, standing_by = "", False
        try:
            while not stop.is_set():
                try:
                    passed = self._once_or_purged()
                    if passed.standing_by != standing_by:
                        self._say_standing_by(passed)
                    standing_by = passed.standing_by
                    if not standing_by:
                        self._purge_hourly()
                    damaged = ""
                except NodeDamaged as error:
                    if str(error) != damaged:
                        log.error("stream service %s waits: %s", self.settings.name, error)
                    damaged = str(error)
                except (ZooKeeperUnreachable, VersionConflict) as error:
                    log.warning("stream service %s starts again with recovery: %s", self.settings.name, error)
                stop.wait(self.settings.interval_s)
        finally:
            self.close()

    def close(self) -> None:
        """End the run: another may begin at once. Idempotent."""
        self.thread.close()

    def __enter__(self) -> StreamService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> bool:
        if self.thread.is_open:
            self.thread.check_held()
            return True
        check_file_systems(self.settings, self._files_of)
        return self.thread.open()

    def _purged(self, now: datetime) -> list[str]:
        return purge(self.thread, self._zookeeper, self._files_of, now) if self._opened() else []

    def _once_or_purged(self) -> Pass:
        """``run_once``. Where the disk is full, what is over makes room for whoever begins again."""
        try:
            return self.run_once()
        except StorageError:
            self._purge_hourly()
            raise

    def _purge_hourly(self) -> None:
        now = self._now()
        if hour_name(now) != self._purged_hour and self._set_clock.trusted:
            with self.thread.ending_on_error(f"stream service {self.settings.name}"):
                if not self._opened():
                    return
                for path in self._purged(now):
                    log.info("purged %s", path)
            self._purged_hour = hour_name(now)

    def _now(self) -> datetime:
        """What the clock shows; if it was set, what rests does so from now on."""
        now = self._clock()
        if self._set_clock.look(now):
            self._rests = Rests()
        self._rests.dates_count = self._set_clock.trusted
        return now

    def _say_standing_by(self, passed: Pass) -> None:
        name = self.settings.name
        if passed.standing_by:
            log.warning("stream service %s stands by: %s", name, passed.holder)
        else:
            log.warning("stream service %s has taken over", name)

    def _pass(self) -> Pass:
        passing = _Passing()
        batch: list[Ready] = []
        now = self._now()  # before it is asked what rests
        for found in find_work(self.settings, self._files_of, self._rests, now):
            if self._copies.is_full(batch) or any(each.found.name == found.name for each in batch):
                self._commit(batch, passing)
                batch = []
            if self.is_replay(found):
                self._drop(found)
                passing.replayed.append(found.name)
            elif isinstance(one := self._ready(found), str):
                passing.cannot(found, one)
            else:
                batch.append(one)
        self._commit(batch, passing)
        # After the others: a minute that was missing may just have come, or one that shows that one is missing.
        for hole in find_holes(self.settings, self._files_of, self.thread.node.seen, self._clock()):
            if isinstance(one := self._ready(hole), str):
                passing.problems[hole.name] = one  # there is nothing that could be dropped
            else:
                self._commit([one], passing)
        dropped = self._drop_asked(passing.stay)
        for name in dropped:
            del passing.problems[name]
        self._note(passing.problems)
        return Pass(False, tuple(passing.committed), tuple(passing.replayed), passing.problems, dropped=tuple(dropped))

    def is_replay(self, found: Found) -> bool:
        """Whether an announcement is of what was taken over before."""
        work = found.work
        return work is not None and bool(work.source) and self.thread.node.has_applied(work.source, work.commit)

    def _drop(self, found: Found) -> None:
        assert found.work is not None
        work = found.work
        log.info("stream service %s: %s was taken over before, dropped", self.settings.name, found.name)
        self.thread.put_away_input(work)

    def _drop_asked(self, stay: Sequence[Found]) -> list[str]:
        """Of what cannot be done, put away what people want to be: the names."""
        settings, dropped = self.settings, []
        files = self._files_of(settings.root)
        asked = asked_drops(files, settings.root, settings.name)
        for found in stay if asked else ():
            place = found.droppable
            if record_name(found.name) in asked and place is not None:
                self.thread.drop_input(*place, record_name(found.name))
                log.warning("stream service %s: %s was dropped, as asked for", settings.name, shown(found.name))
                dropped.append(found.name)
        if asked:
            self.thread.check_held()
            forget_drops(files, settings.root, settings.name, asked)
        return dropped

    def _ready(self, found: Found) -> Ready | str:
        """What can be copied and committed, or what keeps it from being done."""
        work = found.work
        if found.problem or work is None:
            return found.problem
        root, files = self.settings.root, self._files_of(self.settings.root)
        if problem := self._taken(work):
            return problem
        if len(work.commit) > COMMIT_BYTES:
            return f"its name {shown(work.commit)} has {len(work.commit)} characters, and {COMMIT_BYTES} are the most"
        if problem := self.thread.node_problem(work):
            return problem
        if self.settings.layout == "document" and (problem := names_problem(work.target.part, work.inputs)):
            return problem
        if problem := way_problem(files, root, directory_of(work.target.on(root))):
            return problem
        sizes, problem = input_sizes(self._files_of(work.src_root), work.input_directory, work.inputs)
        return problem or Ready(found, replace(work, sizes=tuple(sizes)))

    def _taken(self, work: Work) -> str:
        """What stands where the work would; "" = nothing."""
        root = self.settings.root
        target = work.target.on(root)
        if not is_taken(self._files_of(root), root, work.target, work.inputs):
            return ""
        if work.seen:
            names = ", ".join(map(shown, work.inputs[:3]))
            return f"{names} came when {target} was published; give it the name of a later minute"
        return f"{target} is there already, and thread {self.settings.name} does not know of it; compare, delete one"

    def _commit(self, batch: Sequence[Ready], passing: _Passing) -> None:
        """Copy all of them, then commit one after the other."""
        if not batch:
            return
        staged = self.thread.stage([each.work for each in batch], self._copies.copier(batch))
        for each, one in zip(batch, staged, strict=True):
            # Another part of the batch may have the name by now.
            # And by now the node may have less room.
            if problem := one.problem or self._taken(each.work) or self.thread.node_problem(each.work):
                passing.cannot(each.found, problem)
            else:
                self.thread.commit(one)
                passing.committed.append(each.found.name)

    def _note(self, problems: Mapping[str, str]) -> None:
        settings = self.settings
        files = self._files_of(settings.root)
        self.thread.check_held()  # what is written here replaces what a successor has written
        rewrite_quarantine(files, settings.root, settings.name, problems, self._clock(), self.thread.staged)
