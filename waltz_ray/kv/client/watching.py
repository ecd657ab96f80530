"""What becomes of items, from the feed of the space: its records as events."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from waltz_ray.client.address import StaysHere
from waltz_ray.client.codecs import Codec
from waltz_ray.client.unclosed import warn_unclosed
from waltz_ray.errors import ClientClosed, InvalidInput
from waltz_ray.kv.client.beginnings import WatchBeginning
from waltz_ray.kv.client.values import KvName, name_text, value_of
from waltz_ray.kv.model import Delete, Expired, Item, ItemKey, ItemWrite, Record, Set, Several
from waltz_ray.kv.records import decode_record
from waltz_ray.kv.routing import fnv1a_32
from waltz_ray.kv.rules import same_map

if TYPE_CHECKING:
    from waltz_ray.client.aio import AsyncWaltzClient
    from waltz_ray.client.application import Transaction
    from waltz_ray.client.client import WaltzClient
    from waltz_ray.client.followers import AsyncFollower, Follower
    from waltz_ray.kv.client.engine import KvEngine

__all__ = [
    "AsyncKvWatch",
    "ItemDeleted",
    "ItemEvent",
    "ItemExpired",
    "ItemSet",
    "ItemTouched",
    "KvWatch",
    "LogsOfWatches",
    "WatchStart",
    "checked_start",
]

WatchStart = Literal["earliest", "latest"] | Mapping[int, int]
"""Where a watch begins. "latest": with what is committed from then on. A mapping: with a transaction ID for each
partition of the space. "earliest": with the first transaction of each partition; or, where that is compacted away,
with all the items that there were when the snapshots in its place had ended, each as an ItemSet (of its last change, in
the order of their versions), and then with what came after."""


@dataclass(frozen=True)
class ItemSet:
    """An item has this value now."""

    name: KvName
    value: Any
    version: int
    """ID of the transaction, which is in ``partition``; ``version + 1`` is where to go on. What was written together
    (``set_many``) may be of one transaction: there is no going on in the midst of it."""
    partition: int
    deadline_ms: int
    """When it expires, milliseconds since 1970; 0 = never."""


@dataclass(frozen=True)
class ItemDeleted:
    """There is no such item any more."""

    name: KvName
    version: int
    """ID of the transaction that says so."""
    partition: int


@dataclass(frozen=True)
class ItemTouched:
    """An item lives until another time, with the value it had."""

    name: KvName
    version: int
    """ID of the transaction; the item's version now."""
    partition: int
    deadline_ms: int
    """Milliseconds since 1970; 0 = for ever."""


@dataclass(frozen=True)
class ItemExpired:
    """An item has expired, some time ago: nobody has read it since its deadline. Several may be of one transaction."""

    name: KvName
    version: int
    """That the item had. If an event of a newer one was seen, it lives."""
    partition: int


ItemEvent = ItemSet | ItemDeleted | ItemTouched | ItemExpired
"""What a watch brings."""


def checked_start(start: WatchStart) -> WatchStart:
    """InvalidInput: it is none."""
    if start in ("earliest", "latest") or isinstance(start, Mapping):
        return start
    raise InvalidInput(f"start is 'latest', 'earliest' or an ID for each partition, not {start!r:.60}")


class _Written(NamedTuple):
    """What becomes an ItemSet: its value is decoded when it is asked for, so that what cannot be is alone in that."""

    key: ItemKey
    item: Item
    partition: int


_Change = _Written | ItemDeleted | ItemTouched | ItemExpired


class _Reader:
    """Transactions of a kv space as the events that are asked for; those of one partition in their order."""

    def __init__(self, codec: Codec | None, map_name: bytes, prefix: bytes, start: WatchStart) -> None:
        self._codec = codec
        self._start = start
        self._beginnings: dict[int, WatchBeginning | None] = {}  # of each partition, from its first transaction on
        self._map_name = map_name
        self._map_hash = fnv1a_32(map_name) if map_name else 0
        self._prefix = prefix
        self._others: set[ItemKey] = set()  # items that are of another map of this hash, as was said when they were set

    def event(self, change: _Change) -> ItemEvent:
        """InvalidInput, DecodingFailed: its value cannot be read."""
        if not isinstance(change, _Written):
            return change
        key, item, partition = change
        value = value_of(self._codec, key.name, item.type, item.data, item.version, partition)
        return ItemSet(name_text(key.name), value, item.version, partition, item.deadline_ms)

    def changes(self, transaction: Transaction) -> Iterable[_Change]:
        """What ``event`` makes events of. Who was interrupted asks again. WireError: it is none of a kv space."""
        record = decode_record(transaction.data)
        partition, version = transaction.partition_id, transaction.transaction_id
        if partition not in self._beginnings:
            in_the_midst = self._start == "earliest" and version > 0
            self._beginnings[partition] = WatchBeginning(self._wanted) if in_the_midst else None
        beginning = self._beginnings[partition]
        if beginning is None:
            return self._changes(record, version, partition)
        items = beginning.items(version, record)
        if items is None:
            return ()
        found = [_Written(key, item, partition) for key, item in items if self._is_ours(key, item)]
        self._beginnings[partition] = None
        return found

    def _changes(self, record: Record, version: int, partition: int) -> Iterator[_Change]:
        if isinstance(record, Several):
            for write in record.writes:
                yield from self._changes(write, version, partition)
        elif isinstance(record, Expired):
            for key, expired in record.items:
                if key in self._others:
                    self._others.discard(key)
                elif self._wanted(key):
                    yield ItemExpired(name_text(key.name), expired, partition)
        elif isinstance(record, ItemWrite) and self._wanted(record.key):
            name = name_text(record.key.name)
            if isinstance(record, Set):
                item = Item(record.type, record.data, version, record.deadline_ms, record.map_name)
                if self._is_ours(record.key, item):
                    yield _Written(record.key, item, partition)
            elif record.key in self._others:
                if isinstance(record, Delete):
                    self._others.discard(record.key)
            elif isinstance(record, Delete):
                yield ItemDeleted(name, version, partition)
            else:
                yield ItemTouched(name, version, partition, record.deadline_ms)

    def _is_ours(self, key: ItemKey, item: Item) -> bool:
        """Whether what was set is of the map that is watched, and not of another one of the same hash. What becomes of
        it later does not say of which map it is: so that is remembered."""
        if same_map(item, self._map_name):
            self._others.discard(key)
            return True
        self._others.add(key)
        return False

    def _wanted(self, key: ItemKey) -> bool:
        return key.map_hash == self._map_hash and key.name.startswith(self._prefix)


class _Events:
    """Those of one transaction after the other. Whoever is interrupted in here, as by Ctrl-C in a codec, has taken
    nothing: what is raised that is no error leaves the event, or the transaction, for who asks again."""

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader
        self._transaction: Transaction | None = None
        self._changes: deque[_Change] = deque()

    def take(self, transaction: Transaction) -> None:
        """The next one, where ``next`` has nothing left of the one before."""
        self._transaction = transaction

    def next(self) -> ItemEvent | None:
        """None: there is none left. WireError, InvalidInput, DecodingFailed: who asks again has what comes after it."""
        if self._transaction is not None:
            try:
                self._changes = deque(self._reader.changes(self._transaction))
            except Exception:
                self._transaction = None
                raise
            self._transaction = None
        if not self._changes:
            return None
        try:
            event = self._reader.event(self._changes[0])
        except Exception:
            self._changes.popleft()
            raise
        self._changes.popleft()
        return event


class LogsOfWatches:
    """The clients of the log that the watches of one client have: they are closed with it. For any thread.

    In a forked child there are none: the parent's are the parent's.
    """

    def __init__(self) -> None:
        self._closed = False
        self._begin()

    @property
    def closed(self) -> bool:
        """All of them are, with their key/value client."""
        return self._closed

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._logs: set[WaltzClient] = set()

    def _own_lock(self) -> threading.Lock:
        if self._process != os.getpid():  # whoever held it is in another process
            self._begin()
        return self._lock

    def add(self, log: WaltzClient) -> WaltzClient:
        """``log``. ClientClosed, and that is closed, too."""
        with self._own_lock():
            if not self._closed:
                self._logs.add(log)
                return log
        log.close()
        raise ClientClosed("the key/value client is closed; connect again")

    def discard(self, log: WaltzClient) -> None:
        """Its watch has closed it."""
        with self._own_lock():
            self._logs.discard(log)

    def close(self) -> None:
        """All of them; from the first on no other one comes. Idempotent. InvalidInput where one would wait for itself:
        then it is as open as before, and can be closed elsewhere."""
        with self._own_lock():
            before, self._closed = self._closed, True
        try:
            while (log := self._any()) is not None:
                log.close()
                self.discard(log)
        except BaseException:
            with self._own_lock():
                self._closed = before
            raise

    def _any(self) -> WaltzClient | None:
        with self._own_lock():
            return next(iter(self._logs), None)


class KvWatch(StaysHere, Iterator[ItemEvent]):
    """Events without an end, for one thread at a time; ``stop`` is for any. ``with`` stops it.

    It begins when it is made: what is written after that is in it. Raises what a feed of the log does; ClientClosed
    when the key/value client is closed. DecodingFailed: a value cannot be read; who asks again has what comes after it.
    Whoever is interrupted (Ctrl-C) while he asks may ask again, too.
    """

    _process = 0  # in which it is open

    def __init__(
        self,
        connect: Callable[[], WaltzClient],
        watching: LogsOfWatches,
        codec: Codec | None,
        map_name: bytes,
        prefix: bytes,
        start: WatchStart,
    ) -> None:
        self._events = _Events(_Reader(codec, map_name, prefix, start))
        self._watching = watching
        self._log = watching.add(connect())
        try:
            self._feed: Follower = self._log.feed(None, start, follow=True)
        except BaseException:
            self._end()
            raise
        self._process = os.getpid()

    def __iter__(self) -> KvWatch:
        return self

    def __next__(self) -> ItemEvent:
        while not self._feed.stopped:
            event = self._events.next()
            if event is not None:
                return event
            self._events.take(next(self._feed))  # no generator of it, which would end by Ctrl-C
        raise StopIteration

    def stop(self) -> None:
        """Nothing comes any more, and whoever waits for it goes on. Idempotent."""
        self._feed.stop()
        self._end()

    def __del__(self) -> None:
        if self._process and not self._watching.closed:
            warn_unclosed(self, "watch of keys and values", self._process)

    def _end(self) -> None:
        self._process = 0
        self._log.close()
        self._watching.discard(self._log)

    def __enter__(self) -> KvWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class AsyncKvWatch(StaysHere):
    """Events without an end, for ``async for``; ``async with`` stops it, and begins it.

    It begins when it is entered, or first asked: what is written after that is in it. Raises what a feed of the log
    does; ClientClosed when the key/value client is closed. DecodingFailed: a value cannot be read; who asks again has
    what comes after it. Whoever is cancelled while he asks, as by a time-out, has taken nothing, and may ask again.
    """

    _process = 0  # in which it is open

    def __init__(
        self,
        connect: Callable[[], Awaitable[AsyncWaltzClient]],
        engine: KvEngine,
        codec: Codec | None,
        map_name: bytes,
        prefix: bytes,
        start: WatchStart,
    ) -> None:
        self._events = _Events(_Reader(codec, map_name, prefix, start))
        self._connect = connect
        self._engine = engine
        self._start = start
        self._beginning = asyncio.Lock()
        self._stopped = False
        self._log: AsyncWaltzClient | None = None
        self._feed: AsyncFollower | None = None
        self._transactions: Iterator[Transaction] = iter(())

    async def begin(self) -> None:
        """From here on everything is in it. Idempotent, also for tasks at once. After ``stop`` nothing begins."""
        if self._feed is None and not self._stopped:
            async with self._beginning:
                if self._feed is None and not self._stopped:
                    await self._begin()

    async def _begin(self) -> None:
        """What was there when it was cancelled, or stopped, is used by the next one, or closed by ``stop``."""
        self._engine.check_open()
        if self._log is None:
            self._log, self._process = await self._connect(), os.getpid()
            self._engine.watching.add(self._log)
        if self._engine.closed or self._stopped:
            await self._close_log()
            self._engine.check_open()
            return
        start = self._start
        try:
            if start == "latest":  # where that is, is settled now and not when the feed comes to it
                marks = [await self._log.server_high_water_mark(p) for p in range(self._engine.connections.partitions)]
                start = {partition: mark + 1 for partition, mark in enumerate(marks)}
            self._feed = self._log.feed(None, start, follow=True)
        except ClientClosed:
            if self._engine.closed or not self._stopped:
                raise

    async def stop(self) -> None:
        """Nothing comes any more, and whoever waits for it goes on. Idempotent."""
        self._stopped = True
        if self._feed is not None:
            await self._feed.stop()
        await self._close_log()

    def __del__(self) -> None:
        if self._process and not self._engine.closed:
            warn_unclosed(self, "watch of keys and values", self._process)

    async def _close_log(self) -> None:
        self._process = 0
        if self._log is not None:
            await self._log.close()
            self._engine.watching.discard(self._log)

    def __aiter__(self) -> AsyncKvWatch:
        return self

    async def __anext__(self) -> ItemEvent:
        await self.begin()
        while self._feed is not None and not self._feed.stopped:
            event = self._events.next()
            if event is not None:
                return event
            transaction = next(self._transactions, None)
            if transaction is not None:
                self._events.take(transaction)
            else:  # polled: an iteration that is cancelled ends its feed
                self._transactions = iter(await self._feed.poll())
        if not self._stopped:
            self._engine.check_open()
        raise StopAsyncIteration

    async def __aenter__(self) -> AsyncKvWatch:
        try:
            await self.begin()
        except (Exception, asyncio.CancelledError):
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
