"""The client for coroutines, async Ray actors among them. ``waltz_ray.connect_async`` makes one.

It is the engine of ``WaltzClient`` on the caller's loop. It has no thread: callbacks and contexts run on the loop, so
they must not block; only a directory's calls (ZooKeeper) go through the loop's executor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast

from waltz_ray.client.application import Callbacks, Transaction, TransactionContext, checked_header
from waltz_ray.client.directory import Directory
from waltz_ray.client.engine import Engine, Lock, check_partition, settle
from waltz_ray.client.feeds import transactions_of
from waltz_ray.client.outbox import Outbox
from waltz_ray.client.own_loop import AwaitedFate, OwnLoop
from waltz_ray.client.requests import AppendCall, check_size
from waltz_ray.client.rpc import READ_BYTES
from waltz_ray.client.subscription import FeedItem
from waltz_ray.client.transport import Transport
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendTimeout, ClientClosed, InvalidInput
from waltz_ray.protocol.checksum import crc32
from waltz_ray.protocol.ids import Location
from waltz_ray.protocol.messages.client import FeedMode
from waltz_ray.protocol.records import Int32s, Int64s

__all__ = ["AsyncWaltzClient"]

T = TypeVar("T")


class AsyncWaltzClient:
    """One client of one cluster, for one event loop: ``async with AsyncWaltzClient(...) as client``.

    With ``callbacks`` the given ``partitions`` (default: all) are mounted at once and fed to them, data inline.
    Without, a partition is mounted when it is first appended to, and only the fates of this client's own appends
    come back.

    What is cancelled leaves nothing behind: an append that has not been sent is not sent any more, one that has been
    may still commit, and nobody is told; a context is not executed again; a feed's connection is closed.
    """

    def __init__(
        self,
        directory: Directory,
        transport: Transport,
        callbacks: Callbacks | None = None,
        config: ClientConfig | None = None,
        partitions: Sequence[int] | None = None,
    ) -> None:
        """Owns ``directory`` once it has been started."""
        self._directory = directory
        self._transport = transport
        self._callbacks = callbacks
        self.config = config or ClientConfig()
        self._given_partitions = partitions
        self._starting = asyncio.Lock()
        self._started: Engine | None = None
        self._closing: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()  # set for a moment whenever a partition's state has changed
        self._questions: set[asyncio.Task[Any]] = set()  # to servers

    # ---- life

    async def start(self) -> None:
        """Begin, on the loop that runs now. Raises what the callbacks or the directory raise."""
        async with self._starting:
            if self._started is None:
                await self._start()

    async def _start(self) -> None:
        directory = self._directory
        client_id = await asyncio.to_thread(directory.next_client_id)
        callbacks, config, partitions = self._callbacks, self.config, self._given_partitions
        membership = settle(client_id, directory.partitions, callbacks, config, partitions, FeedMode.RECORDS)
        shell = self._shell = OwnLoop(self.config)
        changed = self._ready_changed
        engine = self._started = Engine(membership, self._transport, callbacks, _never_fetched, shell, changed)

        def located(locations: Mapping[int, Location]) -> None:
            shell.post(engine.located, dict(locations))

        try:
            self._stop_watching = await asyncio.to_thread(directory.watch, located)
        except BaseException:
            engine.begin_to_close()
            await self._end()
            raise
        engine.mount_all()

    async def close(self) -> None:
        """Let go of everything; what has no fate yet fails with ClientClosed, whether or not it is in the log."""
        async with self._starting:  # not in the middle of it
            if self._closing is None:
                if self._started is None or not self._started.begin_to_close():
                    return
                self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> AsyncWaltzClient:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _close(self) -> None:
        await asyncio.to_thread(self._stop_watching)
        await self._end()
        await asyncio.to_thread(self._directory.close)

    async def _end(self) -> None:
        engine = self._engine
        self._shell.stop()
        questions = list(self._questions)
        for question in questions:
            question.cancel()
        await asyncio.gather(*questions, return_exceptions=True)
        await engine.shut_down()
        self._ready_changed()
        engine.applier.stop()
        engine.runner.close()
        await self._shell.stop_offers()

    @property
    def _engine(self) -> Engine:
        if self._started is None:
            raise InvalidInput("the client has not been started: use `async with`, or await client.start() first")
        return self._started

    # ---- appending

    async def append(
        self,
        partition_id: int,
        data: bytes,
        header: int = 0,
        write_locks: Sequence[Lock] = (),
        read_locks: Sequence[Lock] = (),
        append_locks: Sequence[Lock] = (),
        client_mark: int | None = None,
        retry: bool = True,
    ) -> int:
        """Propose one transaction; its transaction ID once it is committed.

        Waits while the partition has ``outstanding_appends`` or ``outstanding_bytes`` without a fate. Raises what the
        future of ``WaltzClient.append`` raises, and takes the same arguments.
        """
        engine = self._engine
        attachment = engine.attachment(partition_id)
        data = bytes(data)
        check_size(partition_id, len(data), 0, self.config.max_frame_bytes)
        fate: AwaitedFate[int] = AwaitedFate(self._shell.loop)
        append = AppendCall(data, checked_header(header), crc32(data), retry, None, fate)
        if write_locks or read_locks or append_locks:
            engine.take_locks(attachment, append, (write_locks, read_locks, append_locks), client_mark)
        return await self._sent(attachment.outbox, append, fate)

    async def append_many(
        self, partition_id: int, datas: Sequence[bytes], headers: int | Sequence[int] | Int32s = 0
    ) -> Int64s:
        """Propose n transactions at once, without locks; their n transaction IDs, in order.

        They are not one unit: after an error some may be in the log (AppendFailed then says which).
        """
        engine = self._engine
        attachment = engine.attachment(partition_id)
        fate: AwaitedFate[Int64s] = AwaitedFate(self._shell.loop)
        append = engine.many_append_of(attachment, datas, headers, fate)
        return await self._sent(attachment.outbox, append, fate) if append.count else append.ids

    async def submit(self, context: TransactionContext) -> bool:
        """Run ``context`` until it commits (True) or gives up (False); raises what it raised. Hooks run on the loop."""
        runner = self._engine.runner
        fate: AwaitedFate[bool] = AwaitedFate(self._shell.loop)
        run = runner.submit(context, fate)
        try:
            return await fate.waiter
        except asyncio.CancelledError as error:
            runner.cancel(run, error)
            raise

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything appended or submitted before this call has its fate; AppendTimeout otherwise."""
        fates = cast(list[AwaitedFate[object]], self._engine.open_futures())
        waiters = [fate.waiter for fate in fates]
        left = (await asyncio.wait(waiters, timeout=timeout))[1] if waiters else ()
        if left:
            raise AppendTimeout(
                f"{len(left)} of {len(waiters)} appends still have no fate after {timeout} s; flush again"
            )

    async def _sent(self, outbox: Outbox, append: AppendCall, fate: AwaitedFate[T]) -> T:
        await self._shell.offer(outbox, append)
        try:
            return await fate.waiter
        except asyncio.CancelledError:
            append.retry = False
            outbox.withdraw(append)
            raise

    # ---- reading

    def read(self, partition_id: int, first_id: int, end_id: int) -> AsyncIterator[Transaction]:
        """Transactions [first_id, end_id) as far as they are committed; DataUnavailable if they can't be read."""
        check_partition(partition_id, self.partitions)
        if first_id < 0:
            raise InvalidInput(f"transaction IDs begin at 0, not {first_id}")
        return self._read(partition_id, first_id, end_id)

    def feed(self, partition_id: int, after: int = -1, follow: bool = False) -> AsyncIterator[Transaction]:
        """Transactions after the mark ``after``, beside the callbacks; up to the server's, or for ever (``follow``).

        A follower holds a connection until the iterator is closed (``contextlib.aclosing``), whoever awaits it is
        cancelled, or the client is closed.
        """
        check_partition(partition_id, self.partitions)
        if after < -1:
            raise InvalidInput(f"a high-water mark must be -1 (none) or a transaction ID, not {after}")
        return self._follow(partition_id, after) if follow else self._feed(partition_id, after)

    async def high_water_mark(self, partition_id: int) -> int:
        """The client's: ID of the last transaction applied here, -1 = none (always, without callbacks)."""
        return self._engine.applied_mark(partition_id)

    async def server_high_water_mark(self, partition_id: int) -> int:
        """The server's: ID of the last committed transaction, -1 = none; DataUnavailable if nobody answers."""
        check_partition(partition_id, self.partitions)
        return await self._asked(self._engine.rpc.high_water_mark(partition_id))

    async def _read(self, partition_id: int, first_id: int, end_id: int) -> AsyncIterator[Transaction]:
        while first_id < end_id:
            batch = await self._asked(self._engine.rpc.read(partition_id, first_id, end_id, READ_BYTES))
            if not len(batch):
                return
            for transaction in transactions_of(batch, first_id - 1, _never_fetched):
                yield transaction
            first_id = batch.end_id

    async def _feed(self, partition_id: int, after: int) -> AsyncIterator[Transaction]:
        end_id = await self.server_high_water_mark(partition_id) + 1
        async for transaction in self._read(partition_id, after + 1, end_id):
            yield transaction

    async def _follow(self, partition_id: int, after: int) -> AsyncIterator[Transaction]:
        engine = self._engine
        engine.check_open()
        items: asyncio.Queue[FeedItem] = asyncio.Queue()
        client_id = await asyncio.to_thread(self._directory.next_client_id)
        subscription = engine.subscription(partition_id, client_id, after, items.put_nowait)
        engine.follow(subscription)
        try:
            while True:
                item = await items.get()
                for transaction in subscription.taken(item, _never_fetched):
                    yield transaction
                subscription.used(item)
        finally:
            await engine.unsubscribe(subscription)

    async def _asked(self, question: Coroutine[Any, Any, T]) -> T:
        """The answer; ClientClosed if the client is closed meanwhile."""
        if self._engine.closed:
            question.close()
            self._engine.check_open()
        task = asyncio.get_running_loop().create_task(question)
        self._questions.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self._engine.closed and not _is_cancelled():
                raise ClientClosed("the client was closed while it waited for an answer") from None
            raise
        finally:
            self._questions.discard(task)

    # ---- about the client

    @property
    def client_id(self) -> int:
        """This client's ID, which no other client has had or will ever have."""
        return self._engine.membership.client_id

    @property
    def partitions(self) -> int:
        """Number of partitions of the cluster."""
        return self._directory.partitions

    async def wait_ready(self, timeout: float | None = None) -> None:
        """Until every partition of this client is mounted (and, with callbacks, fed up to the server's mark).

        ClientAhead, or PartitionNotReady after ``timeout`` seconds.
        """
        engine = self._engine
        for partition in [engine.attachment(one).partition for one in engine.membership.mounted]:
            start_s = self._shell.monotonic()
            try:
                async with asyncio.timeout(timeout):
                    while not engine.is_ready(partition):
                        await self._ready.wait()
            except TimeoutError:
                raise partition.machine.not_ready_error((self._shell.monotonic() - start_s) * 1000) from None

    def statistics(self) -> dict[str, int]:
        """Counts since the start, by the names of ``WaltzClient.statistics``."""
        return self._engine.statistics()

    def _ready_changed(self) -> None:
        self._ready.set()  # whoever waits is woken
        self._ready.clear()


def _never_fetched(partition_id: int, transaction_id: int) -> bytes:
    raise AssertionError("the data of every feed is inline")


def _is_cancelled() -> bool:
    """Somebody has cancelled this very task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
