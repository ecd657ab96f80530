"""The client for coroutines, async Ray actors among them. ``waltz_ray.connect_async`` makes one.

It is the engine of ``WaltzClient`` on the caller's loop. It has no thread: callbacks and contexts run on the loop, so
they must not block; only a directory's calls (ZooKeeper) go through the loop's executor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast

from waltz_ray import compat
from waltz_ray.client.address import Address, Find, travelling
from waltz_ray.client.aio_reads import AsyncReads, not_here, times_not_here
from waltz_ray.client.application import Callbacks, SubmitResult, TransactionContext, checked_client_id
from waltz_ray.client.bounds import Partitions
from waltz_ray.client.codecs import Codec
from waltz_ray.client.directory import Directory, Whereabouts
from waltz_ray.client.ending import Ending
from waltz_ray.client.engine import Engine, FeedKind, settle
from waltz_ray.client.feeds import Origin
from waltz_ray.client.keys import Lock
from waltz_ray.client.opening import opened
from waltz_ray.client.own_loop import AwaitedFate, OwnLoop, check_loop
from waltz_ray.client.readiness import Awaited, MountedWait
from waltz_ray.client.time_limits import checked_timeout, checked_wait, unknown_error
from waltz_ray.client.transport import Transport
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendTimeout, InvalidInput
from waltz_ray.protocol.records import Int32s, Int64s

__all__ = ["AsyncWaltzClient", "engine_of", "next_client_id_of", "started"]

T = TypeVar("T")


class AsyncWaltzClient(AsyncReads):
    """One client of one cluster, for one event loop: ``async with AsyncWaltzClient(...) as client``.

    With ``callbacks`` the given ``partitions`` (default: all) are mounted at once and fed to them, data inline
    (``feed="records"``) or left at the server (``"headers"``; ``await client.fetch(transaction)`` brings it). Without,
    a partition is mounted when it is first appended to, and only the fates of this client's own appends come back.

    It pickles as its address (without callbacks), and connects where it is started. On another loop than that its calls
    raise InvalidInput.

    What is cancelled leaves nothing behind: an append that has not been sent is not sent any more, one that has been
    may still commit, and nobody is told; a context is not executed again; a feed's connection is closed.
    """

    def __init__(
        self,
        directory: Directory,
        transport: Transport,
        callbacks: Callbacks | None = None,
        config: ClientConfig | None = None,
        partitions: Partitions = None,
        feed: FeedKind | None = None,
        find: Find | None = None,
        codec: Codec | None = None,
    ) -> None:
        """Owns ``directory`` once it has been started. ``find``: how another process gets the same."""
        self._prepare((directory, transport), callbacks, config, partitions, feed, codec)
        self._address = Address(find, config, partitions, codec) if find is not None else None

    def _prepare(
        self,
        found: tuple[Directory, Transport] | None,
        callbacks: Callbacks | None,
        config: ClientConfig | None,
        partitions: Partitions,
        feed: FeedKind | None,
        codec: Codec | None,
    ) -> None:
        super().__init__()
        self._found = found
        self._callbacks = callbacks
        self.config = config or ClientConfig()
        self._given_partitions = partitions
        self._feed_kind = feed
        self._codec = codec
        self._starting = asyncio.Lock()
        self._started: Engine | None = None
        self._ending: Ending | None = None
        self._ready = asyncio.Event()  # set for a moment whenever a partition's state has changed

    # ---- life

    async def start(self) -> None:
        """Begin, on the loop that runs now. Idempotent. ClientClosed, and what the callbacks or the directory raise."""
        async with self._starting:
            if self._started is not None:
                self._started.check_open()
                return
            if self._found is not None:
                await self._start(*self._found)
                return
            assert self._address is not None, "it came pickled, as its address"
            self._found = await opened(self._address.find, lambda found: found[0].close())
            try:
                await self._start(*self._found)
            except (Exception, asyncio.CancelledError):
                await asyncio.to_thread(self._directory.close)
                self._found = None
                raise

    async def _start(self, directory: Directory, transport: Transport) -> None:
        client_id = await asyncio.to_thread(directory.next_client_id)
        callbacks, config, partitions = self._callbacks, self.config, self._given_partitions
        kind = self._feed_kind
        membership = settle(client_id, directory, callbacks, config, partitions, kind, self._codec)
        shell = self._shell = OwnLoop(self.config)
        changed, origin = self._ready_changed, Origin(not_here, times_not_here, self._codec)
        engine = self._started = Engine(membership, transport, callbacks, origin, shell, changed)

        def located(locations: Whereabouts) -> None:
            shell.post(engine.located, locations)

        try:
            self._stop_watching = await opened(lambda: directory.watch(located), lambda stop: stop())
        except (Exception, asyncio.CancelledError):
            engine.begin_to_close()
            try:
                await self._end()
            finally:
                self._started = None  # it may be started again
            raise
        engine.mount_all()

    async def close(self) -> None:
        """Let go of everything; what has no fate yet fails with ClientClosed, whether or not it is in the log.

        On its own loop, or, when that is closed, on any.
        """
        async with self._starting:  # not in the middle of it
            if self._ending is None:
                if self._started is None:
                    return
                if not self._shell.loop.is_closed():
                    self._check_here()
                if not self._started.begin_to_close():
                    return
                self._ending = Ending(self._close)
        await self._ending.come()

    async def __aenter__(self) -> AsyncWaltzClient:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _close(self) -> None:
        try:
            await asyncio.to_thread(self._stop_watching)
            if not self._shell.loop.is_closed():  # else what was on it has ended with it
                await self._end()
        finally:  # its session has the leases of cursors, and nobody could close it later
            await asyncio.to_thread(self._directory.close)

    async def _end(self) -> None:
        engine = self._engine
        self._shell.stop()
        await self._end_questions()
        await engine.shut_down()
        self._ready_changed()
        engine.applier.stop()
        engine.runner.close()
        await self._shell.stop_offers()

    @property
    def _directory(self) -> Directory:
        assert self._found is not None, "it has been found before it is started"
        return self._found[0]

    @property
    def _engine(self) -> Engine:
        if self._started is None:
            raise InvalidInput("the client has not been started: use `async with`, or await client.start() first")
        return self._started

    def _check_here(self) -> None:
        if self._started is not None and not self._started.closed:
            check_loop(self._shell.loop)

    def __reduce__(self) -> tuple[Callable[[Address], AsyncWaltzClient], tuple[Address]]:
        return _arrived, (travelling(self._address, self._callbacks is not None),)

    # ---- appending

    async def append(
        self,
        partition_id: int,
        data: Any,
        header: int = 0,
        write_locks: Sequence[Lock] = (),
        read_locks: Sequence[Lock] = (),
        append_locks: Sequence[Lock] = (),
        client_mark: int | None = None,
        retry: bool = True,
        timeout: float | None = None,
    ) -> int:
        """Propose one transaction; its transaction ID once it is committed.

        Waits while the partition has ``outstanding_appends`` or ``outstanding_bytes`` without a fate. Raises what the
        future of ``WaltzClient.append`` raises, and takes the same arguments; the ``fate`` of AppendTimeout is a
        future of this loop.
        """
        if (waits := self._before_append()) is not None:
            await waits
        locks = (write_locks, read_locks, append_locks) if write_locks or read_locks or append_locks else None
        fate: AwaitedFate[int] = AwaitedFate(self._shell.loop)
        outbox, append = self._engine.append_of(partition_id, data, header, locks, client_mark, retry, fate)
        return await self._shell.sent(outbox, append, fate, timeout)

    async def try_append(
        self,
        partition_id: int,
        data: Any,
        header: int = 0,
        write_locks: Sequence[Lock] = (),
        read_locks: Sequence[Lock] = (),
        append_locks: Sequence[Lock] = (),
        client_mark: int | None = None,
        retry: bool = True,
    ) -> int:
        """``append`` that never waits for room: OutboxFull at once where there is none."""
        if (waits := self._before_append()) is not None:
            await waits
        locks = (write_locks, read_locks, append_locks) if write_locks or read_locks or append_locks else None
        fate: AwaitedFate[int] = AwaitedFate(self._shell.loop)
        outbox, append = self._engine.append_of(partition_id, data, header, locks, client_mark, retry, fate)
        if not outbox.offer(append):
            raise outbox.full_error(0)
        return await self._shell.told(outbox, append, fate)

    def _before_append(self) -> asyncio.Future[None] | None:
        self._engine.check_open()
        self._check_here()
        return self._shell.before_append()

    async def append_many(
        self,
        partition_id: int,
        datas: Sequence[Any],
        headers: int | Sequence[int] | Int32s = 0,
        timeout: float | None = None,
        write_lock: Lock | None = None,
        client_mark: int | None = None,
    ) -> Int64s:
        """Propose n transactions at once; their n transaction IDs, in order.

        They are not one unit: after an error some may be in the log (PartlyAppended then says which). ``timeout`` is
        that of ``append``. Each of them takes ``write_lock``, if there is one: the first against ``client_mark``, each
        of the others against the ID that the one before it has if all of them follow ``client_mark`` directly. So it is
        for who appends to the partition alone: where anybody else has appended behind ``client_mark``, under whatever
        lock or none, some are refused (LockConflict, or PartlyAppended: not all were).
        """
        engine = self._engine
        self._check_here()
        if (waits := self._shell.before_many()) is not None:
            await waits
        attachment = engine.attachment(partition_id)
        fate: AwaitedFate[Int64s] = AwaitedFate(self._shell.loop)
        append = engine.many_append_of(attachment, datas, headers, write_lock, client_mark, fate)
        return await self._shell.sent(attachment.outbox, append, fate, timeout) if append.count else append.ids

    async def submit(self, context: TransactionContext, timeout: float | None = None) -> SubmitResult:
        """Run ``context`` until it commits (a true result, with the transaction's ID) or gives up (a false one).

        Raises what it raised. Hooks run on the loop. ``timeout`` is that of ``WaltzClient.submit``.
        """
        runner = self._engine.runner
        self._check_here()
        fate: AwaitedFate[SubmitResult] = AwaitedFate(self._shell.loop)
        if timeout is not None:
            timeout = checked_timeout(timeout)
        run = runner.submit(context, fate)
        try:
            if timeout is None or await fate.told_within(timeout):
                return await fate.waiter
        except asyncio.CancelledError as error:
            runner.cancel(run, error)
            raise
        runner.expire(run, timeout)
        raise unknown_error("the context", timeout, fate.left_alone(), self._engine.why())

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything appended or submitted before this call has its fate; AppendTimeout otherwise."""
        limit_s = checked_wait(timeout)
        self._check_here()
        fates = cast(list[AwaitedFate[object]], self._engine.open_futures())
        waiters = [fate.waiter for fate in fates]
        left = (await asyncio.wait(waiters, timeout=limit_s))[1] if waiters else ()
        if left:
            raise AppendTimeout(
                f"{len(left)} of {len(waiters)} appends still have no fate after {timeout} s; flush again"
                f"{self._engine.why()}"
            )

    # ---- about the client

    @property
    def client_id(self) -> int:
        """This client's ID, which no other client has had or will ever have."""
        return self._engine.membership.client_id

    @property
    def cluster_key(self) -> str:
        """Of the cluster: made once, with it; no other one has it, whatever its name."""
        return self._directory.cluster_key

    async def wait_ready(self, timeout: float | None = None) -> None:
        """Until every partition of this client is mounted and, with callbacks, applied up to the server's mark.

        Raises what ``WaltzClient.wait_ready`` does.
        """
        await self._wait(self._engine.readiness(), timeout)

    async def wait_applied(self, partition_id: int, transaction_id: int, timeout: float | None = None) -> None:
        """Until the callbacks have applied ``transaction_id``. Raises what ``wait_ready`` does."""
        await self._wait([self._engine.applied(partition_id, transaction_id)], timeout)

    async def _wait(self, awaited: Sequence[Awaited], timeout: float | None) -> None:
        self._check_here()
        limit_s, start_s = checked_wait(timeout), self._shell.monotonic()
        one: Awaited | None = None
        try:
            async with compat.timeout(limit_s):
                for one in awaited:
                    while not one.reached(self._engine.closed):
                        await self._ready.wait()
        except TimeoutError:
            assert one is not None, "time was over before there was anything to wait for"
            raise one.error(self._shell.monotonic() - start_s) from None
        finally:
            for one in awaited:
                one.give_up()

    async def supersede(self, client_id: int, timeout: float | None = None) -> list[int]:
        """Let nothing more of a client whose process has died into the log: see ``WaltzClient.supersede``."""
        client_id, timeout = checked_client_id(client_id), checked_wait(timeout)
        marks = await self._server_marks(range(self.partitions))
        first_ids = {partition: mark + 1 for partition, mark in marks.items()}
        subscription = self._engine.stand_in(client_id, first_ids, self._ready_changed)
        try:
            await self._wait([*map(MountedWait, subscription.partitions.values())], timeout)
        finally:
            await self._engine.unsubscribe(subscription)
        return [*(await self._server_marks(range(self.partitions))).values()]

    def hindrances(self) -> dict[int, str]:
        """Why partitions of this client take no appends just now, as their servers say; others are not in it.

        A server is asked when something has waited for ``hindrance_after_ms``; the log of the process says it, too.
        """
        return self._engine.hindrances()

    def statistics(self) -> dict[str, int]:
        """Counts since the start, by the names of ``WaltzClient.statistics``."""
        return self._engine.statistics()

    def _ready_changed(self) -> None:
        self._ready.set()  # whoever waits is woken
        self._ready.clear()


async def started(client: AsyncWaltzClient) -> AsyncWaltzClient:
    """The same, begun on the loop that runs now; if that fails its directory is closed, for nobody else would do it."""
    try:
        await client.start()
    except (Exception, asyncio.CancelledError):
        await asyncio.to_thread(client._directory.close)
        raise
    return client


def engine_of(client: AsyncWaltzClient) -> Engine:
    """What a started client is made of, for layers on the log, which wait for fates in ways of their own."""
    return client._engine


async def next_client_id_of(client: AsyncWaltzClient) -> int:
    """A client ID nobody was ever given, for ``Engine.follow``."""
    return await asyncio.to_thread(client._directory.next_client_id)


def _arrived(address: Address) -> AsyncWaltzClient:
    client = AsyncWaltzClient.__new__(AsyncWaltzClient)
    client._prepare(None, None, address.config, address.partitions, None, address.codec)
    client._address = address
    return client
