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
from dataclasses import dataclass, replace
from datetime import datetime

from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.errors import ConfigError, InvalidInput
from waltz_spark.streams.announce import Announcement, announce
from waltz_spark.streams.claims import CategoryClaim, in_flight_elsewhere, root_identity
from waltz_spark.streams.compacting import compact
from waltz_spark.streams.copying import Copier, CopyRoom, FileCopy
from waltz_spark.streams.files import FilesOf, SeenPath, directory_of
from waltz_spark.streams.layout import PublishedPath, commit_of, join, parse_published, tmp_path, trash_path
from waltz_spark.streams.nodes import read_nodes
from waltz_spark.streams.odd import make_way, put_file
from waltz_spark.streams.placing import (
    LIST_SUFFIX,
    encode_list,
    is_taken,
    move_directory,
    move_listed,
    placed_name,
    was_moved,
)
from waltz_spark.streams.run import FENCED, Hook, ThreadRun
from waltz_spark.streams.settings import StreamSettings
from waltz_spark.streams.states import (
    RECOVERY,
    TABLE,
    Action,
    PathInFlight,
    Row,
    StreamState,
    ThreadNode,
    decode_node,
    encode_node,
)
from waltz_spark.streams.texts import shown

__all__ = ["PAUSES", "POINTS", "RECOVERY_POINTS", "CommitThread", "Hook", "Staged", "Work"]

POINTS = (
    "before build",
    "during build",
    "after build",
    "after TRANS_COMMIT_START",
    "during MOVE",
    "after MOVE",
    "after TRANS_MV_COMPLETE",
    "during ANNOUNCE",
    "after ANNOUNCE",
    "after TRANS_CNSMR_COMPLETE",
    "during TRASH",
    "after TRASH",
    "after TRANS_TRASH_COMPLETE",
    "after SUCCESS_COMMIT",
)
"""In the order of a commit; before a step is after the one in front of it."""

RECOVERY_POINTS = (
    "after lock",
    "after claim",
    "during fence",
    "after fence",
    "after LOOK",
    "after discard",
    "after cleaning",
)
"""Those of a run's beginning; between fence and cleaning recovery passes the points of the table, too."""

_NODE_ROOM = 4096
"""By what a thread's node may become longer with a path in it: the temporary's name, a state's, another consumer's."""

PAUSES = ("before LOOK", "before MOVE", "before ANNOUNCE", "before TRASH", "before FORGET", "after FORGET")
"""Behind the look at the lock, with nothing done since the point before: where a zombie sleeps worst."""


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
    seen: tuple[SeenPath, ...] = ()
    """The inputs as they were when they rested, in their order; () = there is a marker."""
    sizes: tuple[int, ...] = ()
    """Bytes of the inputs, in their order, once they have been looked at."""

    @property
    def commit(self) -> str:
        return commit_of(self.target)


@dataclass(frozen=True, slots=True)
class Staged:
    """The inputs of ``work``, copied to ``temporary`` of this run; or a ``problem`` with one, and nothing is there."""

    work: Work
    temporary: str
    problem: str = ""


class CommitThread(ThreadRun):
    """``open`` takes the lock and recovers; ``stage`` copies inputs; ``commit`` publishes one path; ``close`` gives the
    lock away.

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
        recovery: Mapping[StreamState, Row] = RECOVERY,
    ) -> None:
        self.settings = settings
        self._files_of, self._recovery = files_of, recovery
        self.node = ThreadNode()
        self._categories = CategoryClaim(settings, zookeeper)
        super().__init__(settings.name, settings.root, settings.node, zookeeper, files_of(settings.root), clock, hook)

    def open(self) -> bool:
        """Take the lock, shut out older runs, recover. False if another run has the lock: nothing was done.

        CoordinationError if the node's content cannot be understood, ConfigError if it is another service's, or if
        another local service takes the same categories from the same root.
        """
        if not self._take_lock(encode_node(ThreadNode())):
            return False
        self._hook("after lock")
        self._claim()
        self._hook("after claim")
        self._claim_categories()
        self._fence()
        self._hook("after fence")
        self._carry_through(self._recovery)
        self._clean()
        self._hook("after cleaning")
        return True

    def close(self) -> None:
        """Give the categories and the lock away. Idempotent."""
        if self.is_open and self._zookeeper.session_id == self._session_id:
            self._categories.release()
        super().close()

    def stage(self, works: Sequence[Work], copier: Copier) -> list[Staged]:
        """Copy what the works take; whose ``problem`` is not "" has left nothing. All of it goes with the run.

        OSError for what is wrong on our own side.
        """
        self.check_held()
        self._hook("before build")
        temporaries = [self._new_directory(work.commit) for work in works]
        in_document = self.settings.layout == "document"
        copies = [_copies(work, temporary, in_document) for work, temporary in zip(works, temporaries, strict=True)]
        room = CopyRoom(self._files, self._new_directory, lambda: self._hook("during build"))
        problems = copier.copy(copies, room)
        staged = [
            Staged(work, temporary, problem or self._changed(work))
            for work, temporary, problem in zip(works, temporaries, problems, strict=True)
        ]
        if most_bytes := self.settings.compact_bytes:
            good = [each.temporary for each in staged if not each.problem]
            compact(copier.compact, self._files, self._new_directory, good, most_bytes)
        for each in staged:
            if each.problem:
                self.check_held()
                self._files.delete(each.temporary)
            else:
                self._files.sync_directory(each.temporary)
                if in_document:
                    names = self._files.list(each.temporary)
                    self._files.write(each.temporary + LIST_SUFFIX, [encode_list(names)])
                    self._files.sync_directory(directory_of(each.temporary))
        self._hook("after build")
        return staged

    def commit(self, staged: Staged) -> None:
        """Publish the target of what was staged without a problem, and put its input away: SUCCESS_COMMIT.

        FileExistsError if the target is published already: nothing was done."""
        work = staged.work
        self.check_held()
        if is_taken(self._files, self.settings.root, work.target, work.inputs):
            raise FileExistsError(f"{work.target.on(self.settings.root)} is published already")
        self._write(self.node.started(self._in_flight(work, staged.temporary)))
        self._hook("after " + StreamState.START.value)
        self._carry_through(TABLE)

    def node_problem(self, work: Work) -> str:
        """Why the thread's node cannot say that the work is in flight: it has too many names; "" = it can."""
        node = self.node.started(self._in_flight(work, tmp_path(self.settings.root, self.settings.name, self._run)))
        try:
            encode_node(replace(node, holder=node.holder + " " * _NODE_ROOM))
        except InvalidInput as error:
            return str(error)
        return ""

    def _in_flight(self, work: Work, temporary: str) -> PathInFlight:
        return PathInFlight(
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

    def put_away_input(self, work: Work) -> None:
        """Move the input of work that was committed before to trash, without committing anything."""
        self.check_held()
        self._put_away(work.src_root, work.src, work.names, self._trash_of(work))

    def drop_input(self, root: str, directory: str, names: Sequence[str], record: str) -> None:
        """Move input that cannot be done to trash, unpublished: a person wants it."""
        self.check_held()
        # A name of its own: nothing that is in trash is replaced.
        name = f"dropped.{uuid.uuid4().hex}.{record[:50]}"
        self._put_away(root, directory, names, self._trash(root, name))

    def _trash_of(self, work: Work) -> str:
        return self._trash(work.src_root, work.commit)

    def _trash(self, root: str, name: str) -> str:
        settings = self.settings
        return trash_path(root, self._clock(), settings.name, name, settings.layout == "document")

    def _put_away(self, root: str, source: str, names: Sequence[str], target: str) -> None:
        """Those that are not there any more were moved before."""
        if not names:
            return  # of a minute that was missing
        files = self._files_of(root)
        make_way(files, root, target)
        for name in names:
            if files.exists(join(source, name)):
                self.check_held()
                put_file(files, root, join(source, name), join(target, name))
            self._hook("during TRASH")
        files.sync_directory(target)
        files.sync_directory(source)

    def _claim(self) -> None:
        settings = self.settings
        node = decode_node(settings.node, self._read())
        if node.path is not None and (node.kind, node.root) != (settings.kind, settings.root):
            raise ConfigError(
                f"stream thread {settings.name}: {node.path.commit} is in flight, as {node.kind} under {node.root}; "
                "run it with these once, or give the other service another name"
            )
        self._write(
            replace(node, holder=self._run, kind=settings.kind, root=settings.root, consumers=settings.consumers)
        )

    def _claim_categories(self) -> None:
        settings = self.settings
        if settings.kind != "local":
            return
        self._categories.take(root_identity(self._files, settings.root))
        # After the others have seen the claim: one that begins later is refused there.
        if problem := in_flight_elsewhere(settings, read_nodes(self._zookeeper, settings.zookeeper_root).services):
            raise ConfigError(problem)

    def _new_directory(self, name: str) -> str:
        path = self.staged(name)
        self._files.make_directory(path)
        return path

    def _changed(self, work: Work) -> str:
        """Which input is not what it was when it was looked at, or rested; "" = none."""
        source = self._files_of(work.src_root)
        for number, name in enumerate(work.inputs):
            path = join(work.input_directory, name)
            seen = source.look(path)
            size_bytes = seen.size_bytes if seen is not None else -1
            if size_bytes != work.sizes[number] or (work.seen and seen != work.seen[number]):
                return f"{shown(path)} changed while it was copied; is it still being written?"
        return ""

    def _carry_through(self, table: Mapping[StreamState, Row]) -> None:
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
        part, root = parse_published(path.final_path), self.settings.root
        self._files.make_directories(directory_of(part.on(root)))
        move = move_listed if self.settings.layout == "document" else move_directory
        move(self._files, path.tmp_path, part, root, lambda: self._hook("during MOVE"))

    def _announce(self, path: PathInFlight) -> None:
        announcement = Announcement(self.settings.name, parse_published(path.final_path))
        for consumer in path.consumers:
            self.check_held()
            inbox = self.settings.inbox(consumer)
            announce(self._files, self.settings.root, inbox, announcement, self.staged(f"to.{consumer}"))
            self._hook("during ANNOUNCE")

    def _look(self, path: PathInFlight) -> bool:
        """Whether the move happened. A temporary that is still there was not moved, whoever made the final path.

        It is not deleted here but after the next state is written (``_clean``): a second look must find the same.
        """
        run, _, name = path.tmp_path.rpartition("/")
        return was_moved(self._files, f"{run}{FENCED}/{name}", parse_published(path.final_path), self.settings.root)

    def _write(self, node: ThreadNode) -> None:
        self._put(encode_node(node))
        self.node = node


def _placed(work: Work) -> list[str]:
    return [placed_name(work.target.part, name) for name in work.inputs]


def _copies(work: Work, temporary: str, in_document: bool) -> list[FileCopy]:
    return [
        FileCopy(work.src_root, join(work.input_directory, name), join(temporary, new_name), size_bytes)
        for name, new_name, size_bytes in zip(
            work.inputs, _placed(work) if in_document else work.inputs, work.sizes, strict=True
        )
    ]
