"""What ``client.feed(..., follow=True)`` gives: transactions as they commit, until somebody stops it.

Those of one partition come in the order of their IDs, those of several in the order of their arrival. The
server is told that a frame is done with when the next one is asked for, so at most ``feed_credit_bytes`` of each
partition wait here.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from waltz_ray import compat
from waltz_ray.client.address import StaysHere
from waltz_ray.client.application import Transaction
from waltz_ray.client.feeds import Origin, Transactions
from waltz_ray.client.forks import ANOTHER_PROCESS_S, left_to_parent
from waltz_ray.client.io_thread import in_io_thread
from waltz_ray.client.own_loop import check_loop, check_loop_of_end
from waltz_ray.client.subscription import FeedItem, Subscription
from waltz_ray.client.time_limits import checked_timeout, checked_wait
from waltz_ray.client.waits import item_of
from waltz_ray.errors import ClientClosed, InvalidInput
from waltz_ray.protocol.ids import NO_TRANSACTION

__all__ = ["Arrivals", "AsyncFollower", "Follower"]

_NONE = Transactions([])
_NOTHING: Iterator[Transaction] = iter(())


class Arrivals:
    """What comes, in its order. Who takes it looks at the first, and lets go of it when he has done with it: whoever is
    interrupted in between has it still. ``put`` is for any thread, and for a garbage collection anywhere."""

    def __init__(self) -> None:
        self._items: deque[FeedItem] = deque()
        self._bells: queue.SimpleQueue[None] = queue.SimpleQueue()  # one for each, rung after it is there

    def put(self, item: FeedItem) -> None:
        """One more."""
        self._items.append(item)
        self._bells.put(None)

    def first(self, timeout: float | None) -> FeedItem:
        """The first one, which stays. queue.Empty: none comes within ``timeout`` seconds (None: it waits)."""
        end_s = None if timeout is None else time.monotonic() + timeout
        while not self._items:
            item_of(self._bells, None if end_s is None else end_s - time.monotonic())
        return self._items[0]

    def let_go(self, item: FeedItem) -> None:
        """It was the first, and is not wanted any more. Idempotent."""
        if self._items and self._items[0] is item:
            self._items.popleft()
            with suppress(queue.Empty):
                self._bells.get_nowait()


class Follower(StaysHere, Iterator[Transaction]):
    """A feed without an end, for one thread at a time; ``stop`` is for any. Also a context manager, which stops it.

    Raises ClientClosed, ClientAhead (``start`` is behind the log's end) or Trimmed (what comes next is gone); then it
    is over. InvalidInput in a future's callback, where it would wait: nothing has been taken.
    """

    def __init__(self, subscription: Subscription, items: Arrivals, origin: Origin) -> None:
        """``subscription`` puts into ``items``."""
        self._subscription = subscription
        self._items = items
        self._origin = origin
        # Python looks for Ctrl-C where something is called, so what belongs together is set without a call in between.
        self._held: FeedItem = None  # the first of the items, while its transactions are given out
        self._told: list[FeedItem] = []  # see ``Subscription.used_once``
        self._frame = _NONE  # the transactions of ``_held``
        self._given_id = NO_TRANSACTION  # of the last of them that was given out
        self._rest = _NOTHING  # of them, where they are given out one by one
        self._stopped = self._abandoned = False
        left_to_parent(self)

    @property
    def stopped(self) -> bool:
        """Nothing comes any more: ``stop`` has been called, or it ended in an error."""
        return self._stopped

    def poll(self, timeout: float | None = None) -> Sequence[Transaction]:
        """What has come: some transactions of one partition.

        Waits until there is one, for ``timeout`` seconds at the most: then, and when it is stopped, empty.
        """
        found = self.look(timeout)
        last_id = found.last_id if found else self._given_id
        self._given_id, self._rest = last_id, _NOTHING
        return found

    def look(self, timeout: float | None = None) -> Transactions:
        """What ``poll`` would give, which comes again until ``passed`` says that it has been given out."""
        end_s = None if timeout is None else time.monotonic() + checked_timeout(timeout)
        if timeout != 0 and in_io_thread():
            raise InvalidInput(
                "a feed that follows was waited for in a future's callback, on the thread that brings it"
            )
        while not self._stopped:
            if self._frame and self._given_id < self._frame.last_id:
                return self._frame if self._given_id < 0 else self._frame.after(self._given_id)
            self._let_go()
            try:
                item = self._items.first(None if end_s is None else end_s - time.monotonic())
            except queue.Empty:
                break
            if isinstance(item, Exception):
                self.stop()
                raise item
            frame = self._subscription.taken(item, self._origin)
            self._held, self._told, self._frame, self._given_id = item, [], frame, NO_TRANSACTION
            if item is None:
                self._items.let_go(item)
        return _NONE

    def passed(self, transaction_id: int) -> None:
        """What ``look`` gave last has been given out up to this one."""
        self._given_id = transaction_id

    def stop(self) -> None:
        """Nothing comes any more, and whoever waits for it goes on. Idempotent."""
        if not self._abandoned:
            self._stopped = True
            self._items.put(None)
            self._subscription.abandon()
            self._abandoned = True

    def leave_to_parent(self) -> None:
        """In a forked child: nothing comes there, and whoever would wait for it is told so."""
        self._items.put(ClientClosed(ANOTHER_PROCESS_S))

    def __iter__(self) -> Iterator[Transaction]:
        while not self._stopped:
            for transaction in self._rest:  # it outlives a loop that is left early, but for one that is interrupted
                self._given_id = transaction.transaction_id
                yield transaction
                if self._stopped:
                    return
            self._rest = iter(self.look())

    def __next__(self) -> Transaction:
        return next(iter(self))

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __del__(self) -> None:
        self.stop()

    def _let_go(self) -> None:
        """All of the frame has been given out."""
        if self._held is not None:
            self._subscription.used_once(self._held, self._told)
            self._items.let_go(self._held)
            self._held, self._frame = None, _NONE


class AsyncFollower(StaysHere, AsyncIterator[Transaction]):
    """``Follower`` for coroutines: one task at a time takes from it, any task of the loop may stop it. InvalidInput on
    another loop.

    Whoever is cancelled while he iterates has stopped it; a ``poll`` that is cancelled has taken nothing.
    """

    _stopped = True  # until it has begun

    def __init__(
        self,
        begin: Callable[[Callable[[FeedItem], None]], Coroutine[Any, Any, Subscription]],
        end: Callable[[Subscription], Awaitable[None]],
        origin: Origin,
    ) -> None:
        self._end = end
        self._origin = origin
        self._items: asyncio.Queue[FeedItem] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._beginning = self._loop.create_task(begin(self._items.put_nowait))
        self._beginning.add_done_callback(_retrieved)
        self._held: FeedItem = None
        self._rest: Iterator[Transaction] = iter(())
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Nothing comes any more: ``stop`` has been called, or it ended in an error."""
        return self._stopped

    async def poll(self, timeout: float | None = None) -> Sequence[Transaction]:
        """What has come: some transactions of one partition.

        Waits until there is one, for ``timeout`` seconds at the most: then, and when it is stopped, empty.
        """
        rest = [] if self._stopped else [*self._rest]
        if rest:
            return rest
        try:
            async with compat.timeout(checked_wait(timeout)):
                return await self._next_frame()
        except TimeoutError:
            return _NONE

    async def stop(self) -> None:
        """Nothing comes any more, whoever waits for it goes on, and the connection is closed. Idempotent."""
        if not self._stopped:
            check_loop_of_end(self._loop)
            self._stopped = True
            self._items.put_nowait(None)
            if self._beginning.cancel():  # else it has come to something, and there is nothing to wait for
                await asyncio.wait([self._beginning])
            if _retrieved(self._beginning):
                await self._end(self._beginning.result())

    async def aclose(self) -> None:
        """``stop``, for ``contextlib.aclosing``."""
        await self.stop()

    def __aiter__(self) -> AsyncFollower:
        return self

    async def __anext__(self) -> Transaction:
        while not self._stopped:
            for transaction in self._rest:
                return transaction
            try:
                self._rest = iter(await self._next_frame())
            except asyncio.CancelledError:
                await self.stop()
                raise
        raise StopAsyncIteration

    async def __aenter__(self) -> AsyncFollower:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __del__(self) -> None:
        if self._stopped:
            return
        if not self._beginning.done():
            self._beginning.cancel()
        elif _retrieved(self._beginning):
            self._beginning.result().abandon()

    async def _next_frame(self) -> Transactions:
        check_loop(self._loop)
        if not self._beginning.done():
            await asyncio.wait([self._beginning])  # it goes on if this is cancelled
        while not self._stopped:
            self._stopped = not _retrieved(self._beginning)  # of what could not begin nothing comes: it is said once
            subscription = self._beginning.result()
            subscription.used(self._held)
            self._held = None
            item = await self._items.get()
            if isinstance(item, Exception):
                # At once: who is cancelled, or whose time ends, while he waits for the end would never hear of it.
                self._stopped = True
                if not subscription.stopped:
                    subscription.abandon()
                raise item
            self._held = item
            transactions = subscription.taken(item, self._origin)
            if transactions:
                return transactions
        return _NONE


def _retrieved(task: asyncio.Task[Subscription]) -> bool:
    """It has a result. If it has an exception, nobody needs to be told that nobody has looked at it."""
    return not task.cancelled() and task.exception() is None
