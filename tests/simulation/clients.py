"""Clients of version 5: the real ``WaltzClient``, an application that outlives it, and what it does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.history import Fate, Feed, Logical, Trace
from tests.simulation.payload import Payload
from tests.simulation.process import CLUSTER, Process
from tests.simulation.threads import SimThreads
from tests.simulation.zookeeper import SimZooKeeper
from waltz_ray.client.application import Callbacks, SubmitResult, Transaction, TransactionBuilder, TransactionContext
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.config import ClientConfig
from waltz_ray.connecting import StoreDirectory
from waltz_ray.errors import (
    AppendFailed,
    ClientAhead,
    ClientClosed,
    CoordinationError,
    DataUnavailable,
    InvalidInput,
    LockConflict,
    PartitionNotReady,
    PartlyAppended,
    SpaceGone,
    Trimmed,
)
from waltz_ray.protocol.ids import LockId
from waltz_ray.protocol.messages.client import FeedMode
from waltz_ray.protocol.records import RECORD_OVERHEAD_BYTES
from waltz_ray.protocol.spaces import DEFAULT_SPACE, Space

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["SHARES", "Application", "SimClient"]

SHARES = 1 << 30
"""In histories whose seeds have this bit, processes that only append have several clients, which share connections."""

_NOT_IN_THE_LOG = (AppendFailed, LockConflict, PartitionNotReady)


class Application(Callbacks):
    """What survives the client's process: the application's database with its mark."""

    def __init__(self, client: SimClient, random: Random) -> None:
        self._client = client
        self._random = random
        self.marks = dict.fromkeys(range(client.count), -1)
        self.feeds: dict[int, Feed] = {}

    def mounted_anew(self) -> None:
        """A new client begins after the marks."""
        for partition_id in self.marks:
            self._feed_anew(partition_id)

    def _feed_anew(self, partition_id: int) -> None:
        number = self._client.first + partition_id
        feed = self.feeds[partition_id] = Feed(self._client.loop.name, number, self.marks[partition_id])
        self._client.world.history.feeds.append(feed)

    def client_high_water_mark(self, partition_id: int) -> int:
        return self.marks[partition_id]

    def apply_transactions(self, partition_id: int, transactions: Sequence[Transaction]) -> None:
        fails = self._random.random() < 0.01
        for transaction in transactions[: self._random.randrange(len(transactions)) if fails else None]:
            self.apply_transaction(transaction)
        if fails:
            if self._random.random() < 0.5:
                self._go_back(partition_id)
            raise RuntimeError("the application's database is away")

    def _go_back(self, partition_id: int) -> None:
        """An older database is restored."""
        self.marks[partition_id] = max(-1, self.marks[partition_id] - self._random.randrange(30))
        self._client.trace(partition_id, "went back", self.marks[partition_id])
        self._client.world.history.counts["databases restored"] += 1
        self._feed_anew(partition_id)

    def take_over(self, partition_id: int, mark: int) -> None:
        """What it would have to be told was trimmed: it takes a database that has all of that."""
        self.marks[partition_id] = max(mark, self.marks[partition_id])
        self._client.world.history.counts["databases taken over"] += 1

    def apply_transaction(self, transaction: Transaction) -> None:
        p, transaction_id = transaction.partition_id, transaction.transaction_id
        who = str(tuple(transaction.req_id._replace(partition_id=self._client.first + p)))
        if self._client.mode is FeedMode.RECORDS:
            who += " " + Payload.decode(transaction.data).uid
        self.feeds[p].entries.append((transaction_id, who))
        self._client.trace(p, "applied", transaction_id)
        self.marks[p] = transaction_id
        self._client.world.history.counts["fed"] += 1

    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        if isinstance(error, ClientAhead):
            self._client.world.history.blame("no_loss", f"{self._client.loop.name}: {error}")
        elif isinstance(error, Trimmed):
            self._client.is_left_behind(partition_id, error)


class _Context(TransactionContext):
    """A logical transaction with locks, executed until it commits; sometimes it gives up."""

    def __init__(self, client: SimClient, logical: Logical, random: Random) -> None:
        self._client, self._logical, self._random = client, logical, random
        self._locks = Payload.random_locks(random)
        self._padding = random.randrange(120)

    def partition_id(self, partitions: int) -> int:
        return self._logical.partition_id - self._client.first

    def execute(self, builder: TransactionBuilder) -> bool:
        if self._random.random() < 0.02:
            return False
        assert self._client.client is not None
        partition_id = self._logical.partition_id - self._client.first
        mark = self._client.client.high_water_mark(partition_id)
        builder.data = Payload(self._logical.uid, mark, *self._locks).encode(
            self._padding, self._client.world.record_bytes
        )
        write, read, append = self._locks
        builder.write_locks = _ids(write)
        builder.read_locks = _ids(read)
        builder.append_locks = _ids(append)
        self._client.world.history.counts["executions"] += 1
        return True

    def on_completion(self, committed: bool) -> None:
        if committed:
            partition_id = self._logical.partition_id - self._client.first
            self._client.trace(partition_id, "completed", self._logical.uid)

    def on_lock_failure(self, transaction_id: int) -> None:
        partition_id = self._logical.partition_id - self._client.first
        self._client.trace(partition_id, "lock refused", transaction_id)
        self._client.world.history.counts["lock failures of contexts"] += 1


def _ids(locks: tuple[int, ...]) -> list[LockId]:
    return [LockId("account", number) for number in locks]


class SimClient(Process):
    """One client process. ``stop_work``: no further transactions, those on their way go on."""

    def __init__(
        self, world: World, number: int, mode: FeedMode, random: Random, pace_s: float, space: Space | None = None
    ) -> None:
        """Of ``space``; None: of the one that the cluster was made with. It calls partitions as its space does."""
        super().__init__(world, f"client-{number}", session_s=6.0)
        self.space = space
        self.first, self.count = (0, world.partitions) if space is None else (space.first, space.count)
        self.mode = mode
        self.random = random
        self.working = True
        self.client: WaltzClient | None = None
        self.companions: list[WaltzClient] = []
        """More clients of the process, which only append; where there are any."""
        self.application = Application(self, random)
        self._made = 0
        self._open: dict[str, Logical] = {}
        self._trace = Trace(self.host, {})
        self._pace_s = pace_s
        self._known_id = dict.fromkeys(range(self.count), -1)  # OWN: the last ID of its own it heard of
        self.config = ClientConfig(
            outstanding_appends=random.choice([20, 200, 10_000]),
            batch_records=random.choice([3, 50, 4096]),
            linger_ms=random.choice([0.0, 0.0, 5.0]),
            feed_credit_bytes=random.choice([4096, 20_000, 1 << 20]),
            mount_timeout_ms=random.choice([1_000, 8_000, 60_000]),
            request_timeout_ms=random.choice([500, 10_000]),
            quick_mounts_ms=0,  # no more than how often it tries, and the seeds would lead elsewhere
            hindrance_after_ms=0,  # it decides nothing, and would only change what the seeds lead to
        )

    # ---- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.begin()
        self.client = None
        self.spawn(self._start())

    async def _start(self) -> None:
        assert self.zookeeper is not None
        own = self.mode is FeedMode.OWN
        feed = None if own else "records" if self.mode is FeedMode.RECORDS else "headers"
        try:
            directory = self._directory(self.zookeeper)
            if not own:
                self.application.mounted_anew()
            marks = {self.first + p: mark for p, mark in self.application.marks.items()}
            self._trace = Trace(self.loop.name, marks)
            self.world.history.traces.append(self._trace)
            self.client = self._connect(directory, feed)
            if own and self.world.seed & SHARES:
                self.companions = [self._companion() for _ in range(self.random.randint(1, 4))]
        except CoordinationError as error:
            self.kill(f"cannot start: {error}")
            self.start_later(0.5)
            return
        except SpaceGone as error:
            self.retired = True
            self.kill(str(error))
            return
        await self._work()

    def _directory(self, zookeeper: SimZooKeeper) -> StoreDirectory:
        return StoreDirectory(zookeeper, CLUSTER, DEFAULT_SPACE if self.space is None else self.space.name)

    def _companion(self) -> WaltzClient:
        return self._connect(self._directory(self.world.zookeeper.connect(self.loop)), None)

    def _connect(self, directory: StoreDirectory, feed: str | None) -> WaltzClient:
        return WaltzClient(
            directory,
            TcpTransport(),
            None if feed is None else self.application,
            self.config,
            feed=feed,  # type: ignore[arg-type]
            threads=SimThreads(self.world.chance),
        )

    def kill(self, why: str, silent_s: float = 0.0) -> None:
        if self.up:
            super().kill(why, silent_s)
            self.client, self.companions = None, []
            for logical in list(self._open.values()):
                self._told(logical, Fate("unknown"))

    def is_left_behind(self, partition_id: int, error: Trimmed) -> None:
        """It cannot go on from its mark: another process begins where it can."""
        life = self.life

        def restart() -> None:
            if self.up and self.life == life:
                self.kill(f"{error}")
                self.application.take_over(partition_id, error.first_id - 1)
                self.start_later(0.1)

        if error.wanted_id >= error.first_id:
            self.world.history.blame("trims", f"{self.loop.name} is told: {error}")
        self.world.scheduler.after(0.0, restart)

    def trace(self, partition_id: int, what: str, about: int | str) -> None:
        """The application is told something."""
        self._trace.events.append((self.first + partition_id, what, about))

    async def leave(self) -> None:
        """``WaltzClient.close``, if possible while something waits to be applied, and the end of the process."""
        for _ in range(300):
            if self.client is None or self.client._engine.applier.has_work:
                break
            await asyncio.sleep(0.001)
        client = self.client
        if client is None or self.world.nemesis.over:
            return
        self.client, self.leaves = None, True
        self.tell("closes its client")
        companions, self.companions = self.companions, []
        for one in (client, *companions):
            await self._close(one)
        self.trace(0, "closed", 0)
        await asyncio.sleep(self.random.choice([0.01, 0.1, 0.5]))
        self.kill("has closed its client")
        self.start_later(self.random.choice([0.05, 0.5, 1.5]))

    async def _close(self, client: WaltzClient) -> None:
        threads = client._threads
        assert isinstance(threads, SimThreads)
        threads.blocking = True
        client.close()
        assert threads.ended is not None
        await threads.ended

    async def _exchange(self, index: int) -> None:
        """One of several clients goes, and another one comes; the others know nothing of it."""
        assert self.client is not None
        companion = self.companions.pop(index)
        self.world.history.counts["companions closed"] += 1
        await self._close(companion)
        if self.client is not None and not self.world.nemesis.over:
            try:
                self.companions.append(self._companion())
            except (CoordinationError, SpaceGone) as error:
                self.tell(f"has one client less: {error}")

    # ---- work ---------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while self.working:
            await asyncio.sleep(self.random.expovariate(1 / self._pace_s))
            if self.working and self.client is not None and len(self._open) < 40:
                await self._do_something()

    async def _do_something(self) -> None:
        if self.companions and self.random.random() < 0.05:
            await self._exchange(self.random.randrange(len(self.companions)))
            return
        roll = self.random.random()
        p = self.random.randrange(self.count)
        if roll < 0.35:
            self._append(p)
        elif roll < 0.5:
            self._append_many(p)
        elif roll < 0.95 and self.mode is not FeedMode.OWN:
            self._submit(p)
        elif roll < 0.95:
            self._append(p)
        else:
            await self._read(p)

    def last_word(self, p: int) -> Logical:
        """One more append, after the faults: the partition must take it."""
        return self.loop.enter(lambda: self._append(p, locks=False))

    def _new(self, p: int) -> Logical:
        self._made += 1
        uid = f"{self.host}/{self._made}"
        number = self.first + p
        logical: Logical = self.world.history.logical(uid, number, self.loop.name, self.world.scheduler.now)
        self._open[uid] = logical
        return logical

    def _told(self, logical: Logical, fate: Fate) -> None:
        if self._open.pop(logical.uid, None) is not None:
            self.world.history.fate(logical.uid, fate)
            self.tell(f"{logical.uid} in p{logical.partition_id}: {fate.kind} {fate.transaction_id}")

    def _appender(self) -> WaltzClient:
        assert self.client is not None
        return self.random.choice([self.client, *self.companions]) if self.companions else self.client

    def _append(self, p: int, locks: bool = True) -> Logical:
        assert self.client is not None
        client = self._appender()
        logical = self._new(p)
        if client is self.client:
            self.trace(p, "proposed", logical.uid)
        payload, options = Payload(logical.uid), {}
        if locks and self.random.random() < 0.5:
            mark = self._known_id[p] if self.mode is FeedMode.OWN else self.client.high_water_mark(p)
            payload = Payload(logical.uid, mark, *Payload.random_locks(self.random))
            names = ("write_locks", "read_locks", "append_locks")
            options = {name: _ids(kind) for name, kind in zip(names, payload[2:], strict=True)}
            options["client_mark"] = mark  # type: ignore[assignment]
        try:
            future = client.append(
                p,
                payload.encode(self.random.choice([0, 10, 200, 900]), self.world.record_bytes),
                retry=self.random.random() < 0.8,
                **options,  # type: ignore[arg-type]
            )
        except (AppendFailed, ClientAhead, PartitionNotReady, SpaceGone, Trimmed) as error:
            self._failed([logical], error)
        else:
            future.add_done_callback(lambda done: self._appended(logical, done, client is self.client))
        return logical

    def _appended(self, logical: Logical, done: Future[int], traced: bool) -> None:
        error = done.exception()
        if error is not None:
            self._failed([logical], error)
            return
        p = logical.partition_id - self.first
        if traced:
            self.trace(p, "completed", logical.uid)
        self._known_id[p] = max(self._known_id[p], done.result())
        self._told(logical, Fate("committed", done.result()))

    def _append_many(self, p: int) -> None:
        assert self.client is not None
        logicals = [self._new(p) for _ in range(self.random.randint(2, 12))]
        datas = [Payload(one.uid).encode(self.random.randrange(80), self.world.record_bytes) for one in logicals]

        def done(future: Future[Any]) -> None:
            error = future.exception()
            if error is not None:
                self._failed(logicals, error)
                return
            for one, transaction_id in zip(logicals, future.result().tolist(), strict=True):
                self._told(one, Fate("committed", transaction_id))

        try:
            self._appender().append_many(p, datas).add_done_callback(done)
        except (AppendFailed, ClientAhead, PartitionNotReady, SpaceGone, Trimmed) as error:
            self._failed(logicals, error)

    def _failed(self, logicals: list[Logical], error: BaseException) -> None:
        if isinstance(error, ClientAhead):
            self.world.history.blame("no_loss", f"{self.loop.name}: {error}")
        elif not isinstance(error, (*_NOT_IN_THE_LOG, ClientClosed, PartlyAppended, SpaceGone, Trimmed)):
            self.world.scheduler.fail(error)
        # Of several, those that have been sent may be in the log: the error says how many.
        unknown = isinstance(error, ClientClosed | PartlyAppended | SpaceGone | Trimmed)
        kind = "unknown" if unknown else "absent"
        for logical in logicals:
            self._told(logical, Fate(kind))

    def _submit(self, p: int) -> None:
        assert self.client is not None
        logical = self._new(p)
        self.trace(p, "proposed", logical.uid)

        def done(future: Future[SubmitResult]) -> None:
            error = future.exception()
            if error is not None:
                self._failed([logical], error)
            else:
                self._told(logical, Fate("in the log" if future.result() else "absent"))

        self.client.submit(_Context(self, logical, self.random)).add_done_callback(done)

    async def _read(self, p: int) -> None:
        """A range through the RPC stream; what the server answers must be the log."""
        assert self.client is not None
        first_id = self.random.randint(0, 40)
        try:
            batch = await self.client._engine.rpc.read(p, first_id, first_id + self.random.randint(1, 60), 3000)
        except (DataUnavailable, InvalidInput, ClientClosed, SpaceGone, Trimmed):
            return
        offsets = batch.offsets.tolist()
        for index in range(len(batch)):
            record = bytes(memoryview(batch.records)[offsets[index] : offsets[index + 1]])
            assert len(record) >= RECORD_OVERHEAD_BYTES
            self.world.history.reads.append((self.first + p, batch.first_id + index, record))
