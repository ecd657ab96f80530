"""``client.cursor``: a feed whose position is kept in ZooKeeper, under a name, for one owner at a time.

Every transaction comes at least once: what was not written comes again, after a crash at the earliest from what was
written a second before, and with ``commit()`` from there.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Literal, Protocol

from waltz_ray.client.address import StaysHere
from waltz_ray.client.application import Transaction
from waltz_ray.client.bounds import Bound, Partitions
from waltz_ray.client.closed_meanwhile import closed_meanwhile
from waltz_ray.client.cursor_book import CursorBook, HeldCursor
from waltz_ray.client.cursor_rules import CursorCall, CursorProgress, cursor_starts, first_trimmed
from waltz_ray.client.followers import Follower
from waltz_ray.client.time_limits import checked_timeout
from waltz_ray.client.waits import wait_for
from waltz_ray.errors import (
    CursorLost,
    CursorNotFound,
    CursorTaken,
    CursorUnsettled,
    DataUnavailable,
    Trimmed,
    WaltzError,
    ZooKeeperUnreachable,
)
from waltz_ray.runtime.status import CursorStatus

__all__ = ["Cursor", "CursorReader", "cursor_statuses", "open_cursor"]

logger = logging.getLogger(__name__)


class CursorReader(Protocol):
    """What a cursor needs of its client."""

    @property
    def partitions(self) -> int:
        """Number of partitions of the space."""

    def feed(self, partitions: Partitions, start: Bound = ..., *, follow: Literal[True]) -> Follower:
        """See ``WaltzClient.feed``."""

    def first_id_at(self, partition_id: int, when: datetime) -> int:
        """See ``WaltzClient.first_id_at``."""

    def server_high_water_mark(self, partition_id: int) -> int:
        """See ``WaltzClient.server_high_water_mark``."""


class Cursor(StaysHere, Iterator[Transaction]):
    """A named place in the log, this client's until it is closed: iterate over it, or ``poll``; for one thread.

    ``with client.cursor("audit") as cursor: for transaction in cursor: ...``. A transaction is done when the next one
    is asked for; what is done is written about once a second, by ``commit``, and at the end. Left without an exception,
    ``with`` commits everything that was given out; with one, what was done before.

    Raises CursorLost when another may have it; Trimmed when what it would read next was trimmed away (``reset`` goes on
    from what is left); ClientClosed.
    """

    def __init__(
        self,
        reader: CursorReader,
        book: CursorBook,
        held: HeldCursor,
        call: CursorCall,
        check_open: Callable[[], None],
    ) -> None:
        """Of a cursor that was just taken; ``open_cursor`` makes it."""
        self._reader, self._book, self._held, self._call = reader, book, held, call
        self._check_open = check_open  # of the client
        self._progress = CursorProgress(held.record.positions)
        self._rest: Iterator[Transaction] = iter(())
        # The last one that was given out, until something is asked for again. It is set without a call behind it, in
        # which Python would look for Ctrl-C: whoever is interrupted has had nothing, and it comes again.
        self._given: Transaction | None = None
        self._failure: WaltzError | None = None
        self._stopped = self._told_lost = False
        self._process = os.getpid()
        self._begin(held.record.positions)
        held.when_lost(lambda: self._follower.stop())

    # ---- what it says of itself

    @property
    def name(self) -> str:
        """Its name, one of its space's."""
        return self._call.name

    @property
    def positions(self) -> dict[int, int]:
        """Of each partition the ID behind what is done: where it goes on when that is written."""
        return self._progress.positions

    @property
    def epoch(self) -> int:
        """Higher than that of every earlier owner: a fencing token for what the application writes elsewhere."""
        return self._held.record.epoch

    # ---- reading

    def poll(self, timeout: float | None = None) -> Sequence[Transaction]:
        """What has come: some transactions of one partition. What was given out before is done now.

        Waits until there is one, for ``timeout`` seconds at the most: then, and when it is stopped, empty.
        """
        self._finish()
        self._check()
        self._rest = iter(())
        batch = self._next_batch(timeout)
        self._given = batch[-1] if batch else None
        return batch

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> Transaction:
        self._finish()
        self._check()
        while True:
            self._write_if_due()  # before anything is taken, which would be lost if this is left by an exception
            if self._stopped:
                raise StopIteration
            for transaction in self._rest:
                self._given = transaction
                return transaction
            self._rest = iter(self._next_batch(None))

    def stop(self) -> None:
        """Nothing comes any more, and whoever waits for it goes on; for any thread. ``close`` gives the cursor back."""
        self._stopped = True
        self._follower.stop()

    # ---- moving

    def commit(self) -> None:
        """Everything that was given out is done, and is written when this returns.

        CursorLost; ZooKeeperUnreachable, and it is tried again with the next one.
        """
        self._note()
        self._progress.finish()
        self._write()

    def reset(self, start: Bound) -> None:
        """Go on from ``start``: "earliest", "latest", an ID, one for each partition, a point in time; written at once.

        Trimmed for an ID that is gone; InvalidInput for one behind what is committed. Nothing is changed then. After
        any other error it is not known where it stands, and until it is reset again it raises CursorUnsettled.
        """
        call = CursorCall(self.name, tuple(self._progress.positions), start, None, self._call.auto_commit)
        with closed_meanwhile(self._check_open):
            self._reset(call)
        if self._held.lost is not None:
            self._follower.stop()

    # ---- the end

    def close(self) -> None:
        """Write what is done and give the cursor back. Idempotent. CursorLost, if that could not be written."""
        self.stop()
        if self._process != os.getpid():
            return  # in a forked child: it is the parent's
        try:
            if self._call.auto_commit and not self._told_lost:
                self._write()
        finally:
            self._held.release()

    def __enter__(self) -> Cursor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()
            self.close()
            return
        try:
            self.close()
        except WaltzError as second:  # the first one is what the application has to hear of
            logger.warning("cursor %r was left by an error, and not moved on: %s", self.name, second)

    # ---- inside

    def _reset(self, call: CursorCall) -> None:
        while True:
            positions = _starts(self._reader, self._book, call)
            self._leave(positions)
            try:
                self._held.reset(positions)
            except Trimmed as error:
                if call.moves_with_the_log:
                    continue  # more was trimmed in this moment
                self._failure = error  # it stands there
                raise
            break
        self._begin(positions)

    def _leave(self, positions: Mapping[int, int]) -> None:
        """For there: what was done where it stands now is not written any more, and nothing is read until it begins."""
        self._progress, self._rest, self._given = CursorProgress(positions), iter(()), None
        self._failure = CursorUnsettled(self.name)
        self._follower.stop()

    def _begin(self, positions: Mapping[int, int]) -> None:
        failure = first_trimmed(positions, self._book.first_ids())
        self._follower = self._reader.feed(tuple(positions), positions, follow=True)
        self._failure = failure
        if self._failure is not None or self._stopped:
            self._follower.stop()

    def _note(self) -> None:
        """What was given out last has come there."""
        given = self._given
        if given is not None:
            self._progress.give(given.partition_id, given.transaction_id)
            self._follower.passed(given.transaction_id)
            self._given = None

    def _finish(self) -> None:
        self._note()
        if self._call.auto_commit:
            self._progress.finish()

    def _check(self) -> None:
        if self._held.lost is not None:
            self._told_lost = True
            raise self._held.lost.with_traceback(None)  # which would grow with each time
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _next_batch(self, timeout: float | None) -> Sequence[Transaction]:
        end_s = None if timeout is None else time.monotonic() + checked_timeout(timeout)
        while not self._stopped:
            self._check()
            self._write_if_due()
            now_s = time.monotonic()
            left_s = None if end_s is None else max(0.0, end_s - now_s)
            due_s = self._progress.due_s(now_s) if self._call.auto_commit else None
            try:
                batch = self._follower.look(min((s for s in (left_s, due_s) if s is not None), default=None))
            except WaltzError as error:
                self._failure = error
                raise
            if batch or left_s == 0.0:
                return batch
        return ()

    def _write_if_due(self) -> None:
        """What is done is written, if it is time; where ZooKeeper does not answer, later."""
        now_s = time.monotonic()
        if not self._call.auto_commit or self._progress.due_s(now_s) != 0.0:
            return
        self._progress.tried(now_s)
        try:
            if self._held.connected:
                self._write()
        except ZooKeeperUnreachable as error:
            logger.warning("cursor %r was not moved on, which is tried again: %s", self.name, error)

    def _write(self) -> None:
        positions = self._progress.unwritten
        if not positions:
            return
        try:
            with closed_meanwhile(self._check_open):
                self._held.advance(positions)
        except CursorLost:
            self._told_lost = True
            raise
        self._progress.wrote(positions, time.monotonic())


def open_cursor(
    reader: CursorReader, book: CursorBook, call: CursorCall, wait: float | None, check_open: Callable[[], None]
) -> Cursor:
    """The cursor, made if it is not there, and ours; see ``WaltzClient.cursor``. ``check_open``: of the client."""
    call.plan(reader.partitions)  # InvalidInput at once
    end_s = None if wait is None else time.monotonic() + checked_timeout(wait)
    while True:
        try:
            held = book.take(call.name, call.hold)
            break
        except CursorNotFound:
            _create(reader, book, call)
        except CursorTaken:
            if not _wait_until_free(book, call.name, end_s, check_open):
                raise
    try:
        call.check(held.record.positions, reader.partitions)
        return Cursor(reader, book, held, call, check_open)
    except BaseException:
        held.release()
        raise


def cursor_statuses(reader: CursorReader, book: CursorBook) -> list[CursorStatus]:
    """Every cursor of the space, with how far it is behind as far as servers answer."""
    found = book.all()
    marks = {p: _mark(reader, p) for p in sorted({p for each in found for p in each.positions})}
    return [each.behind(marks) for each in found]


def _mark(reader: CursorReader, partition_id: int) -> int | None:
    try:
        return reader.server_high_water_mark(partition_id)
    except DataUnavailable:
        return None  # said as "not known"


def _create(reader: CursorReader, book: CursorBook, call: CursorCall) -> None:
    try:
        book.create(call.name, _starts(reader, book, call), bool(call.hold))
    except Trimmed:
        if not call.moves_with_the_log:
            raise  # else more was trimmed in this moment: it begins anew


def _starts(reader: CursorReader, book: CursorBook, call: CursorCall) -> dict[int, int]:
    plan = call.plan(reader.partitions)
    first_ids = book.first_ids()
    if isinstance(call.start, datetime):
        plan = plan.started_at({p: reader.first_id_at(p, call.start) for p in plan.partitions})
    marks = {p: reader.server_high_water_mark(p) for p in plan.partitions}
    return cursor_starts(plan, call.moves_with_the_log, marks, first_ids)


def _wait_until_free(book: CursorBook, name: str, end_s: float | None, check_open: Callable[[], None]) -> bool:
    if end_s is not None and time.monotonic() >= end_s:
        return False
    free = threading.Event()
    cancel = book.when_free(name, free.set)
    try:
        # The directory of a client that is closed meanwhile tells nothing any more.
        return wait_for(free, None if end_s is None else end_s - time.monotonic(), check_open)
    finally:
        cancel()
