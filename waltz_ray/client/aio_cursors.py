"""``Cursor`` for coroutines: the same names, awaited. What blocks (ZooKeeper) runs in the loop's executor."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Literal, Protocol

from waltz_ray import compat
from waltz_ray.client.address import StaysHere
from waltz_ray.client.application import Transaction
from waltz_ray.client.bounds import Bound, Partitions
from waltz_ray.client.closed_meanwhile import closed_meanwhile
from waltz_ray.client.cursor_book import CursorBook, HeldCursor
from waltz_ray.client.cursor_rules import CursorCall, CursorProgress, cursor_starts, first_trimmed
from waltz_ray.client.followers import AsyncFollower
from waltz_ray.client.opening import opened
from waltz_ray.client.time_limits import checked_timeout
from waltz_ray.client.waits import LOOK_S
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

__all__ = ["AsyncCursor", "AsyncCursorReader", "async_cursor_statuses", "open_async_cursor"]

logger = logging.getLogger(__name__)


class AsyncCursorReader(Protocol):
    """What a cursor needs of its client."""

    @property
    def partitions(self) -> int:
        """Number of partitions of the space."""

    def feed(self, partitions: Partitions, start: Bound = ..., *, follow: Literal[True]) -> AsyncFollower:
        """See ``AsyncWaltzClient.feed``."""

    async def first_id_at(self, partition_id: int, when: datetime) -> int:
        """See ``AsyncWaltzClient.first_id_at``."""

    async def server_high_water_mark(self, partition_id: int) -> int:
        """See ``AsyncWaltzClient.server_high_water_mark``."""


class AsyncCursor(StaysHere, AsyncIterator[Transaction]):
    """``Cursor`` for one task: ``async with await client.cursor("audit") as cursor: async for transaction in cursor``.

    Whoever is cancelled while he waits has taken nothing, and what was given out before is not done by that.
    """

    def __init__(
        self,
        reader: AsyncCursorReader,
        book: CursorBook,
        held: HeldCursor,
        call: CursorCall,
        check_open: Callable[[], None],
    ) -> None:
        """Of a cursor that was just taken; ``open_async_cursor`` makes and begins it."""
        self._reader, self._book, self._held, self._call = reader, book, held, call
        self._check_open = check_open  # of the client
        self._loop = asyncio.get_running_loop()
        self._follower: AsyncFollower | None = None
        self._progress = CursorProgress(held.record.positions)
        self._rest: Iterator[Transaction] = iter(())
        self._failure: WaltzError | None = None
        self._changing: asyncio.Future[None] | None = None  # of the record, perhaps still under way
        self._ending: asyncio.Task[None] | None = None  # of the follower, when it is lost
        self._stopped = self._told_lost = False

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

    async def poll(self, timeout: float | None = None) -> Sequence[Transaction]:
        """What has come: some transactions of one partition. What was given out before is done now.

        Waits until there is one, for ``timeout`` seconds at the most: then, and when it is stopped, empty.
        """
        self._finish()
        self._check()
        batch: Sequence[Transaction] = [] if self._stopped else [*self._rest]
        batch = batch or await self._next_batch(timeout)
        if batch:
            self._progress.give(batch[-1].partition_id, batch[-1].transaction_id)
        return batch

    def __aiter__(self) -> AsyncCursor:
        return self

    async def __anext__(self) -> Transaction:
        self._finish()
        self._check()
        while True:
            await self._write_if_due()  # before anything is taken, which would be lost if this is left by an exception
            if self._stopped:
                raise StopAsyncIteration
            for transaction in self._rest:
                self._progress.give(transaction.partition_id, transaction.transaction_id)
                return transaction
            self._rest = iter(await self._next_batch(None))

    async def stop(self) -> None:
        """Nothing comes any more, and whoever waits for it goes on. ``close`` gives the cursor back."""
        self._stopped = True
        if self._follower is not None:
            await self._follower.stop()

    # ---- moving

    async def commit(self) -> None:
        """Everything that was given out is done, and is written when this returns.

        CursorLost; ZooKeeperUnreachable, and it is tried again with the next one.
        """
        self._progress.finish()
        await self._write()

    async def reset(self, start: Bound) -> None:
        """Go on from ``start``; see ``Cursor.reset``."""
        call = CursorCall(self.name, tuple(self._progress.positions), start, None, self._call.auto_commit)
        with closed_meanwhile(self._check_open):
            await self._reset(call)

    # ---- the end

    async def close(self) -> None:
        """Write what is done and give the cursor back. Idempotent. CursorLost, if that could not be written."""
        try:
            await self.stop()
            if self._call.auto_commit and not self._told_lost:
                await self._write()
        finally:
            await asyncio.shield(asyncio.to_thread(self._held.release))

    async def __aenter__(self) -> AsyncCursor:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()
            await self.close()
            return
        try:
            await self.close()
        except WaltzError as second:  # the first one is what the application has to hear of
            logger.warning("cursor %r was left by an error, and not moved on: %s", self.name, second)

    # ---- inside

    async def begin(self, positions: Mapping[int, int]) -> None:
        """Read from there."""
        if self._follower is not None:
            await self._follower.stop()
        failure = first_trimmed(positions, await asyncio.to_thread(self._book.first_ids))
        self._follower = self._reader.feed(tuple(positions), positions, follow=True)
        self._failure = failure
        self._held.when_lost(self._wake)
        if self._failure is not None or self._stopped:
            await self._follower.stop()

    async def _reset(self, call: CursorCall) -> None:
        while True:
            positions = await _starts(self._reader, self._book, call)
            self._progress, self._rest = CursorProgress(positions), iter(())  # what was done is not written any more
            self._failure = CursorUnsettled(self.name)  # until it has begun there
            try:
                await self._change(self._held.reset, positions)
            except Trimmed as error:
                if call.moves_with_the_log:
                    continue  # more was trimmed in this moment
                self._failure = error  # it stands there
                raise
            break
        await self.begin(positions)

    def _wake(self) -> None:
        """From any thread: it is lost, whoever waits for more is to hear of it."""

        def end() -> None:
            if self._follower is not None:
                self._ending = self._loop.create_task(self._follower.stop())

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(end)

    def _finish(self) -> None:
        if self._call.auto_commit:
            self._progress.finish()

    def _check(self) -> None:
        if self._held.lost is not None:
            self._told_lost = True
            raise self._held.lost.with_traceback(None)  # which would grow with each time
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    async def _next_batch(self, timeout: float | None) -> Sequence[Transaction]:
        end_s = None if timeout is None else time.monotonic() + checked_timeout(timeout)
        while not self._stopped:
            self._check()
            await self._write_if_due()
            now_s = time.monotonic()
            left_s = None if end_s is None else max(0.0, end_s - now_s)
            due_s = self._progress.due_s(now_s) if self._call.auto_commit else None
            assert self._follower is not None, "it has begun"
            try:
                batch = await self._follower.poll(min((s for s in (left_s, due_s) if s is not None), default=None))
            except WaltzError as error:
                self._failure = error
                raise
            if batch or left_s == 0.0:
                return batch
        return ()

    async def _write_if_due(self) -> None:
        """What is done is written, if it is time; where ZooKeeper does not answer, later."""
        now_s = time.monotonic()
        if not self._call.auto_commit or self._progress.due_s(now_s) != 0.0:
            return
        self._progress.tried(now_s)
        try:
            if self._held.connected:
                await self._write()
        except ZooKeeperUnreachable as error:
            logger.warning("cursor %r was not moved on, which is tried again: %s", self.name, error)

    async def _write(self) -> None:
        positions = self._progress.unwritten
        if not positions:
            return
        try:
            with closed_meanwhile(self._check_open):
                await self._change(self._held.advance, positions)
        except CursorLost:
            self._told_lost = True
            raise
        self._progress.wrote(positions, time.monotonic())

    async def _change(self, change: Callable[[Mapping[int, int]], None], positions: Mapping[int, int]) -> None:
        """Write it, after the change before: that goes on in its thread if who waited for it was cancelled."""
        if self._changing is not None:
            await asyncio.wait([self._changing])
        self._changing = asyncio.ensure_future(asyncio.to_thread(change, positions))
        await asyncio.shield(self._changing)


async def open_async_cursor(
    reader: AsyncCursorReader, book: CursorBook, call: CursorCall, wait: float | None, check_open: Callable[[], None]
) -> AsyncCursor:
    """The cursor, made if it is not there, and ours; see ``WaltzClient.cursor``. ``check_open``: of the client."""
    call.plan(reader.partitions)  # InvalidInput at once
    end_s = None if wait is None else time.monotonic() + checked_timeout(wait)
    while True:
        try:
            held = await opened(lambda: book.take(call.name, call.hold), lambda taken: taken.release())
            break
        except CursorNotFound:
            await _create(reader, book, call)
        except CursorTaken:
            if not await _wait_until_free(book, call.name, end_s, check_open):
                raise
    try:
        call.check(held.record.positions, reader.partitions)
        cursor = AsyncCursor(reader, book, held, call, check_open)
        await cursor.begin(held.record.positions)
        return cursor
    except (Exception, asyncio.CancelledError):
        await asyncio.shield(asyncio.to_thread(held.release))
        raise


async def async_cursor_statuses(reader: AsyncCursorReader, book: CursorBook) -> list[CursorStatus]:
    """Every cursor of the space, with how far it is behind as far as servers answer."""
    found = await asyncio.to_thread(book.all)
    marks = {p: await _mark(reader, p) for p in sorted({p for each in found for p in each.positions})}
    return [each.behind(marks) for each in found]


async def _mark(reader: AsyncCursorReader, partition_id: int) -> int | None:
    try:
        return await reader.server_high_water_mark(partition_id)
    except DataUnavailable:
        return None  # said as "not known"


async def _create(reader: AsyncCursorReader, book: CursorBook, call: CursorCall) -> None:
    try:
        await asyncio.to_thread(book.create, call.name, await _starts(reader, book, call), bool(call.hold))
    except Trimmed:
        if not call.moves_with_the_log:
            raise  # else more was trimmed in this moment: it begins anew


async def _starts(reader: AsyncCursorReader, book: CursorBook, call: CursorCall) -> dict[int, int]:
    plan = call.plan(reader.partitions)
    first_ids = await asyncio.to_thread(book.first_ids)
    if isinstance(call.start, datetime):
        plan = plan.started_at({p: await reader.first_id_at(p, call.start) for p in plan.partitions})
    marks = {p: await reader.server_high_water_mark(p) for p in plan.partitions}
    return cursor_starts(plan, call.moves_with_the_log, marks, first_ids)


async def _wait_until_free(book: CursorBook, name: str, end_s: float | None, check_open: Callable[[], None]) -> bool:
    if end_s is not None and time.monotonic() >= end_s:
        return False
    loop, free = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(free.set)

    cancel = await opened(lambda: book.when_free(name, tell), lambda cancel: cancel())
    try:
        while end_s is None or time.monotonic() < end_s:
            with suppress(TimeoutError):
                async with compat.timeout(LOOK_S if end_s is None else min(LOOK_S, end_s - time.monotonic())):
                    await free.wait()
                    return True
            check_open()  # the directory of a client that was closed meanwhile tells nothing any more
        return False
    finally:
        await asyncio.to_thread(cancel)
