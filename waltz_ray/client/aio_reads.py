"""The half of ``AsyncWaltzClient`` that reads."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeVar, overload

from waltz_ray.client.aio_cursors import AsyncCursor, async_cursor_statuses, open_async_cursor
from waltz_ray.client.application import Transaction
from waltz_ray.client.bounds import Bound, FeedPlan, Partitions, begun_further_on, check_partition, checked_range
from waltz_ray.client.closed_meanwhile import closed_meanwhile
from waltz_ray.client.cursor_rules import CursorCall
from waltz_ray.client.directory import Directory
from waltz_ray.client.engine import Engine
from waltz_ray.client.feeds import transactions_of
from waltz_ray.client.followers import AsyncFollower
from waltz_ray.client.keys import Key, partition_for
from waltz_ray.client.rpc import READ_BYTES, only_data
from waltz_ray.client.subscription import FeedItem, Subscription
from waltz_ray.client.times import in_milliseconds, time_of
from waltz_ray.errors import ClientClosed, DataUnavailable, Trimmed, WaltzError
from waltz_ray.protocol.times import TimeMarks
from waltz_ray.runtime.status import CursorStatus

__all__ = ["AsyncReads", "not_here", "times_not_here"]

T = TypeVar("T")


class AsyncReads(ABC):
    """Reads, feeds and followers of a client whose engine and directory the subclass has."""

    def __init__(self) -> None:
        self._questions: set[asyncio.Task[Any]] = set()  # to servers

    @property
    @abstractmethod
    def _engine(self) -> Engine:
        """The client's, once it has been started; InvalidInput before."""

    @abstractmethod
    def _check_here(self) -> None:
        """InvalidInput on another loop than the client's."""

    @property
    @abstractmethod
    def _directory(self) -> Directory:
        """The cluster's, once it has been found."""

    @property
    def partitions(self) -> int:
        """Number of partitions of the cluster."""
        return self._engine.membership.partitions

    def partition_for(self, key: Key) -> int:
        """The partition of a key (text, bytes or an integer), the same for every client (``client/keys.py``)."""
        return partition_for(key, self.partitions)

    def read(self, partition_id: int, first_id: int, end_id: int) -> AsyncIterator[Transaction]:
        """Transactions [first_id, end_id) as far as they are committed; DataUnavailable if they can't be read, Trimmed
        where the next one is gone."""
        return self._read(*checked_range(partition_id, first_id, end_id, self.partitions))

    @overload
    def feed(
        self,
        partitions: Partitions,
        start: Bound = ...,
        follow: Literal[False] = ...,
        last: int | None = ...,
    ) -> AsyncIterator[Transaction]: ...
    @overload
    def feed(
        self,
        partitions: Partitions,
        start: Bound = ...,
        *,
        follow: Literal[True],
        last: int | None = ...,
    ) -> AsyncFollower: ...
    @overload
    def feed(
        self, partitions: Partitions, start: Bound = ..., follow: bool = ..., last: int | None = ...
    ) -> AsyncIterator[Transaction]: ...
    def feed(
        self,
        partitions: Partitions,
        start: Bound = "earliest",
        follow: bool = False,
        last: int | None = None,
    ) -> AsyncIterator[Transaction]:
        """Transactions of one partition, of several, or of all (None), beside the callbacks: see ``WaltzClient.feed``.

        A follower holds a connection until it is stopped, left (``async with``), whoever iterates over it is cancelled,
        or the client is closed.
        """
        plan = FeedPlan.of(partitions, self.partitions, start, last)
        if not follow:
            return self._feed(plan)
        self._check_here()
        return AsyncFollower(partial(self._follow, plan), self._engine.unsubscribe, self._engine.origin)

    async def fetch(self, transaction: Transaction) -> bytes:
        """The transaction's data, brought from the server if it came as a header; DataUnavailable if that fails."""
        try:
            return transaction.data
        except DataUnavailable:
            partition_id, first_id = transaction.partition_id, transaction.transaction_id
        batch = await self._asked(self._engine.rpc.read(partition_id, first_id, first_id + 1, READ_BYTES))
        transaction.keep(only_data(batch, partition_id, first_id))
        return transaction.data

    async def appended_at(self, transaction: Transaction) -> datetime | None:
        """When the transaction was appended, to about a second (``Transaction.appended_at``), asked of the server."""
        partition_id, first_id = transaction.partition_id, transaction.transaction_id
        times = await self._asked(self._engine.rpc.times(partition_id, first_id, first_id + 1))
        transaction.keep_time(time_of(first_id, times))
        return transaction.appended_at

    async def first_id_at(self, partition_id: int, when: datetime) -> int:
        """The ID from which on all transactions are that were appended at ``when`` or later: see ``WaltzClient``."""
        check_partition(partition_id, self.partitions)
        return await self._asked(self._engine.rpc.first_id_at(partition_id, in_milliseconds("when", when)))

    async def high_water_mark(self, partition_id: int) -> int:
        """The client's: ID of the last transaction applied here, -1 = none (always, without callbacks)."""
        return self._engine.applied_mark(partition_id)

    async def server_high_water_mark(self, partition_id: int) -> int:
        """The server's: ID of the last committed transaction, -1 = none; DataUnavailable if nobody answers."""
        check_partition(partition_id, self.partitions)
        return await self._asked(self._engine.rpc.high_water_mark(partition_id))

    async def cursor(
        self,
        name: str,
        partitions: Partitions = None,
        start: Bound = "earliest",
        hold: bool | None = None,
        wait: float | None = 30.0,
        auto_commit: bool = True,
    ) -> AsyncCursor:
        """A feed that goes on where its last owner stopped; see ``WaltzClient.cursor``."""
        call = CursorCall(name, partitions, start, hold, auto_commit)
        self._engine.check_open()
        with closed_meanwhile(self._engine.check_open):
            return await open_async_cursor(self, self._directory.cursors, call, wait, self._engine.check_open)

    async def cursors(self) -> list[CursorStatus]:
        """Every cursor of the space: where it is, who has it, and how many transactions it is behind."""
        self._engine.check_open()
        with closed_meanwhile(self._engine.check_open):
            return await async_cursor_statuses(self, self._directory.cursors)

    async def delete_cursor(self, name: str) -> None:
        """Let go of a cursor, and of what it holds, for ever. CursorTaken while somebody has it; CursorNotFound."""
        self._engine.check_open()
        with closed_meanwhile(self._engine.check_open):
            await asyncio.to_thread(self._directory.cursors.delete, name)

    async def _read(
        self, partition_id: int, first_id: int, end_id: int, earliest: bool = False
    ) -> AsyncIterator[Transaction]:
        while first_id < end_id:
            try:
                batch = await self._asked(self._engine.rpc.read(partition_id, first_id, end_id, READ_BYTES))
            except Trimmed as gone:
                first_id = begun_further_on(gone, earliest)
                continue
            if not len(batch):
                return
            earliest = False
            for transaction in transactions_of(batch, first_id - 1, self._engine.origin):
                yield transaction
            first_id = batch.end_id

    async def _located(self, plan: FeedPlan, follow: bool) -> FeedPlan:
        """With the IDs of the time at which it begins."""
        rpc, time_ms = self._engine.rpc, plan.asked_ms(follow)
        if time_ms is None:
            return plan
        return plan.started_at({p: await self._asked(rpc.first_id_at(p, time_ms)) for p in plan.partitions})

    async def _feed(self, plan: FeedPlan) -> AsyncIterator[Transaction]:
        plan = await self._located(plan, follow=False)
        marks = await self._server_marks(plan.partitions)
        for partition_id, first_id in plan.first_ids(marks).items():
            async for transaction in self._read(partition_id, first_id, marks[partition_id] + 1, plan.earliest):
                yield transaction

    async def _follow(self, plan: FeedPlan, put: Callable[[FeedItem], None]) -> Subscription:
        self._engine.check_open()
        plan = await self._located(plan, follow=True)
        marks = await self._server_marks(plan.partitions) if plan.needs_marks else {}
        client_id = await asyncio.to_thread(self._directory.next_client_id)
        return self._engine.follow(client_id, plan.first_ids(marks), put, earliest=plan.earliest)

    async def _server_marks(self, partitions: Sequence[int]) -> dict[int, int]:
        return {partition: await self.server_high_water_mark(partition) for partition in partitions}

    async def _asked(self, question: Coroutine[Any, Any, T]) -> T:
        """The answer; ClientClosed if the client is closed meanwhile."""
        try:
            self._engine.check_open()
            self._check_here()
        except WaltzError:
            question.close()
            raise
        task = asyncio.get_running_loop().create_task(question)
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)
        try:
            await asyncio.wait([task])  # not the task itself: its end by ``_end_questions`` is none of the caller's
        finally:
            task.cancel()
        if task.cancelled() and self._engine.closed:
            raise ClientClosed("the client was closed while it waited for an answer")
        return task.result()

    async def _end_questions(self) -> None:
        questions = list(self._questions)
        for question in questions:
            question.cancel()
        await asyncio.gather(*questions, return_exceptions=True)


def not_here(partition_id: int, transaction_id: int) -> bytes:
    raise DataUnavailable(
        f"transaction {partition_id}/{transaction_id} came as a header, and a loop must not wait for its data: "
        f"`await client.fetch(transaction)` first"
    )


def times_not_here(partition_id: int, first_id: int, end_id: int) -> TimeMarks:
    raise DataUnavailable(
        f"when transaction {partition_id}/{first_id} was appended is the server's to say, and a loop must not wait for "
        f"it: `await client.appended_at(transaction)` first"
    )
