"""Runs the commit table of one thread: the only module that moves data and writes the thread's node.

A *run* begins when the thread's lock, an ephemeral node, is taken, and ends with it. It has a directory of its own,
``system/tmp/<thread>/<run>``; whatever becomes visible to others, a published path or an announcement, becomes so by a
rename out of that directory.

Zombies. A run can be stopped anywhere, lose its lock, and wake up after a successor has recovered and gone on. Before
every action it looks at its lock and its node's version, and every write carries that version. What remains is the
pause between the look and the action itself. The successor therefore begins by writing its name into the node, so that
no older write succeeds, and by renaming the directories of all older runs, before it looks at anything. Either the
zombie's rename came first, and is seen, or it finds nothing to rename. So after that

- a move to the final path and an announcement fail (and no run makes its directory a second time);
- a move to trash finds its input gone: the successor has moved it. Names of inputs are never used again, but for a
  repeated announcement of the same commit, which its consumer would drop anyway;
- a zombie in its own recovery can rename the directory of its successor. That one's next rename fails, it ends with an
  error, and the next recovery finds the state as after any crash.

Power. A name is synced before the state that claims it; the content of files before they are renamed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from waltz_ray.coordination.api import ZooKeeper, release
from waltz_ray.errors import ConfigError, CoordinationError, NodeExists, NoNode, VersionConflict
from waltz_spark.streams.announce import Announcement, announce
from waltz_spark.streams.files import Files, FilesOf, copy_file, directory_of
from waltz_spark.streams.layout import PublishedPath, commit_of, join, parse_published, tmp_path, trash_path
from waltz_spark.streams.settings import StreamSettings
from waltz_spark.streams.states import (
    RECOVERY,
    TABLE,
    Action,
    PathInFlight,
    Row,
    State,
    ThreadNode,
    decode_node,
    encode_node,
)

__all__ = ["POINTS", "RECOVERY_POINTS", "CommitThread", "Hook", "Work"]

Hook = Callable[[str], None]
"""Told the name of every point passed (``POINTS``, ``RECOVERY_POINTS``), for tests that stop there."""

POINTS = (
    "before build",
    "during build",
    "after build",
    "after TRANS_COMMIT_START",
    "before MOVE",
    "during MOVE",
    "after MOVE",
    "after TRANS_MV_COMPLETE",
    "before ANNOUNCE",
    "during ANNOUNCE",
    "after ANNOUNCE",
    "after TRANS_CNSMR_COMPLETE",
    "before TRASH",
    "during TRASH",
    "after TRASH",
    "after TRANS_TRASH_COMPLETE",
    "before FORGET",
    "after FORGET",
    "after SUCCESS_COMMIT",
)
"""In the order of a commit. "before" an action is behind the look at the lock."""

RECOVERY_POINTS = (
    "after lock",
    "after claim",
    "during fence",
    "after fence",
    "before LOOK",
    "after LOOK",
    "after discard",
    "after cleaning",
)
"""Those of a run's beginning; between fence and cleaning recovery passes the points of the table, too."""

_FENCED = ".fenced"


@dataclass(frozen=True, slots=True)
class Work:
    """One path to commit: ``inputs`` in ``input_directory`` become ``target``, then ``names`` in ``src`` go to trash.

    Both directories are on ``src_root``. ``source``: the producer that announced it, "" for a collector's minute.
    """

    target: PublishedPath
    src_root: str
    input_directory: str
    inputs: tuple[str, ...]
    src: str
    names: tuple[str, ...]
    source: str = ""

    @property
    def commit(self) -> str:
        return commit_of(self.target)


class CommitThread:
    """``open`` takes the lock and recovers; ``commit`` publishes one path; ``close`` gives the lock away.

    Any error, from ``open`` as from ``commit``, leaves what a crash at that point would leave: ``close``, and ``open``
    again. VersionConflict: another run has taken over. Not for use by several Python threads at once.
    """

    def __init__(
        self,
        settings: StreamSettings,
        zookeeper: ZooKeeper,
        files_of: FilesOf,
        clock: Callable[[], datetime],
        hook: Hook = lambda point: None,
        recovery: Mapping[State, Row] = RECOVERY,
    ) -> None:
        self.settings = settings
        self._zookeeper, self._files_of, self._clock, self._hook = zookeeper, files_of, clock, hook
        self._recovery = recovery
        self._files: Files = files_of(settings.root)
        self._lock = settings.node + "/lock"
        self._session_id: int | None = None
        self._token = uuid.uuid4().hex.encode()
        self._run = ""
        self._attempts = 0
        self._version = -1
        self.node = ThreadNode()

    @property
    def is_open(self) -> bool:
        return self._session_id is not None

    def open(self) -> bool:
        """Take the lock, shut out older runs, recover. False if another run has the lock: nothing was done.

        CoordinationError if the node's content cannot be understood, ConfigError if it is another service's.
        """
        self._run = uuid.uuid4().hex
        if not self._take_lock():
            return False
        self._hook("after lock")
        self._claim()
        self._hook("after claim")
        self._fence()
        self._hook("after fence")
        self._carry_through(self._recovery)
        self._clean()
        self._hook("after cleaning")
        return True

    def close(self) -> None:
        """Give the lock away. Idempotent."""
        if self._session_id is not None:
            session_id, self._session_id = self._session_id, None
            if self._zookeeper.session_id == session_id:
                release(self._zookeeper, self._lock)

    def commit(self, work: Work) -> bool:
        """Publish ``work.target`` and put its input away: True, in SUCCESS_COMMIT. False if an input file is missing:
        nothing was done. FileExistsError if the target is published already."""
        self.check_held()
        if self._files.exists(work.target.on(self.settings.root)):
            raise FileExistsError(f"{work.target.on(self.settings.root)} is published already")
        self._hook("before build")
        temporary = self.staged(work.commit)
        if not self._build(work, temporary):
            return False
        self._hook("after build")
        path = PathInFlight(
            work.commit,
            work.src_root,
            work.src,
            work.names,
            temporary,
            work.target.relative,
            self._trash_of(work),
            self.settings.consumers,
            work.source,
        )
        self._write(self.node.started(path))
        self._hook("after " + State.START.value)
        self._carry_through(TABLE)
        return True

    def staged(self, name: str) -> str:
        """A path in this run's directory that was not given out before."""
        self._attempts += 1
        return tmp_path(self.settings.root, self.settings.name, self._run, f"{name}.{self._attempts}")

    def check_held(self) -> None:
        """VersionConflict unless this run still has the lock and nobody else has written the node."""
        mine = self._session_id is not None and self._zookeeper.owner(self._lock) == self._session_id
        if not mine or self._zookeeper.exists(self.settings.node) != self._version:
            raise VersionConflict(f"stream thread {self.settings.name}: another run has taken over; this one stops")

    def put_away_input(self, work: Work) -> None:
        """Move the input of work that was committed before to trash, without committing anything."""
        self.check_held()
        self._put_away(work.src_root, work.src, work.names, self._trash_of(work))

    def _trash_of(self, work: Work) -> str:
        return trash_path(work.src_root, self._clock(), self.settings.name, work.commit)

    def _put_away(self, root: str, source: str, names: Sequence[str], target: str) -> None:
        """Those that are not there any more were moved before."""
        files = self._files_of(root)
        files.make_directories(target)
        for name in names:
            if files.exists(join(source, name)):
                self.check_held()
                files.replace(join(source, name), join(target, name))
            self._hook("during TRASH")
        files.sync_directory(target)
        files.sync_directory(source)

    def _take_lock(self) -> bool:
        with suppress(NodeExists):  # as it is from the second run on
            self._zookeeper.create(self.settings.node, encode_node(ThreadNode()), make_parents=True)
        session_id = self._zookeeper.session_id
        try:
            self._zookeeper.create(self._lock, self._token, ephemeral=True)
        except NodeExists:
            if not self._lock_is_ours(session_id):
                return False
        self._session_id = session_id
        return True

    def _lock_is_ours(self, session_id: int) -> bool:
        """A lost reply may have left us a lock of our session that we do not know of."""
        try:
            return self._zookeeper.owner(self._lock) == session_id and self._zookeeper.get(self._lock)[0] == self._token
        except NoNode:
            return False

    def _claim(self) -> None:
        settings = self.settings
        data, self._version = self._zookeeper.get(settings.node)
        node = decode_node(settings.node, data)
        if node.path is not None and (node.kind, node.root) != (settings.kind, settings.root):
            raise ConfigError(
                f"stream thread {settings.name}: {node.path.commit} is in flight, as {node.kind} under {node.root}; "
                "run it with these once, or give the other service another name"
            )
        self._write(
            replace(node, holder=self._run, kind=settings.kind, root=settings.root, consumers=settings.consumers)
        )

    def _fence(self) -> None:
        directory = tmp_path(self.settings.root, self.settings.name)
        self._files.make_directories(directory)
        for run in self._files.list(directory):
            if not run.endswith(_FENCED):
                self.check_held()
                self._files.rename(join(directory, run), join(directory, run + _FENCED))
                self._hook("during fence")
        self._files.make_directory(join(directory, self._run))
        self._files.sync_directory(directory)

    def _clean(self) -> None:
        directory = tmp_path(self.settings.root, self.settings.name)
        for run in self._files.list(directory):
            if run.endswith(_FENCED):
                self._files.delete(join(directory, run))

    def _build(self, work: Work, temporary: str) -> bool:
        source = self._files_of(work.src_root)
        self._files.make_directory(temporary)
        for name in work.inputs:
            try:
                copy_file(source, join(work.input_directory, name), self._files, join(temporary, name))
            except FileNotFoundError:
                self.check_held()
                if source.exists(join(work.input_directory, name)):
                    raise  # it is our own directory that is missing
                self._files.delete(temporary)
                return False
            self._hook("during build")
        self._files.sync_directory(temporary)
        return True

    def _carry_through(self, table: Mapping[State, Row]) -> None:
        while (path := self.node.path) is not None:
            row = table[self.node.state]
            self.check_held()
            self._hook("before " + row.action.name)
            done = self._act(row.action, path)
            self._hook("after " + row.action.name)
            if done:
                self._write(self.node.at(row.next, self._clock().isoformat()))
                self._hook("after " + row.next.value)
            else:
                self._write(self.node.discarded())
                self._hook("after discard")

    def _act(self, action: Action, path: PathInFlight) -> bool:
        """False only from LOOK: the move did not happen, and cannot any more."""
        if action is Action.MOVE:
            self._move(path)
        elif action is Action.ANNOUNCE:
            self._announce(path)
        elif action is Action.TRASH:
            self._put_away(path.src_root, path.src, path.names, path.trash_path)
        elif action is Action.LOOK:
            return self._look(path)
        return True

    def _move(self, path: PathInFlight) -> None:
        final = join(self.settings.root, path.final_path)
        self._files.make_directories(directory_of(final))
        self._files.rename(path.tmp_path, final)
        self._hook("during MOVE")
        self._files.sync_directory(directory_of(final))

    def _announce(self, path: PathInFlight) -> None:
        announcement = Announcement(self.settings.name, parse_published(path.final_path))
        for consumer in path.consumers:
            self.check_held()
            announce(self._files, self.settings.root, consumer, announcement, self.staged(f"to.{consumer}"))
            self._hook("during ANNOUNCE")

    def _look(self, path: PathInFlight) -> bool:
        """Whether the move happened. A temporary that is still there was not moved, whoever made the final path.

        It is not deleted here but after the next state is written (``_clean``): a second look must find the same.
        """
        final = join(self.settings.root, path.final_path)
        run, _, name = path.tmp_path.rpartition("/")
        if self._files.exists(final) and not self._files.exists(f"{run}{_FENCED}/{name}"):
            self._files.sync_directory(directory_of(final))
            return True
        return False

    def _write(self, node: ThreadNode) -> None:
        try:
            self._version = self._zookeeper.set(self.settings.node, encode_node(node), self._version)
        except NoNode as error:
            raise CoordinationError(
                f"ZooKeeper node {self.settings.node} was deleted under a running service"
            ) from error
        self.node = node
