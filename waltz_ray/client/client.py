"""The client an application uses. ``waltz_ray.connect`` makes one.

Threads: the application's own call ``append`` and ``submit``; one IO thread owns the sockets of all clients of the
process; one apply thread runs the callbacks; ``ClientConfig.context_threads`` run contexts. A future's result is set on
the IO thread: a callback added to it must be short and must not wait for a client.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Literal, TypeVar

import numpy as np

from waltz_ray.client.application import Callbacks, Transaction, TransactionContext, checked_header, checked_mark
from waltz_ray.client.applier import Applier
from waltz_ray.client.attachment import Attachment
from waltz_ray.client.contexts import ContextRunner
from waltz_ray.client.directory import Directory, Location
from waltz_ray.client.fates import Completion
from waltz_ray.client.feeds import transactions_of
from waltz_ray.client.io_thread import IoThread
from waltz_ray.client.mount_stream import MountStream
from waltz_ray.client.partition import Partition, PartitionState
from waltz_ray.client.requests import Append, ManyAppend, check_size
from waltz_ray.client.rpc import READ_BYTES, Rpc
from waltz_ray.client.stream import StreamPool
from waltz_ray.client.subscription import Subscription
from waltz_ray.client.transport import Transport
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendTimeout, ClientClosed, DataUnavailable, InvalidInput
from waltz_ray.protocol.checksum import crc32
from waltz_ray.protocol.ids import NO_TRANSACTION, LockId
from waltz_ray.protocol.messages.client import FeedMode
from waltz_ray.protocol.records import Int32s, Int64s

__all__ = ["FeedKind", "WaltzClient"]

FeedKind = Literal["records", "headers"]
Lock = LockId | tuple[str, int]
T = TypeVar("T")

_FEED_MODES = {"records": FeedMode.RECORDS, "headers": FeedMode.HEADERS}
_PATIENCE_S = 0.5  # between two looks at a condition that is notified of every change


class WaltzClient:
    """One client of one cluster.

    With ``callbacks`` the given ``partitions`` (default: all) are mounted at once and fed to them, data inline
    (``feed="records"``) or fetched on demand (``"headers"``). Without, a partition is mounted when it is first
    appended to, and only the fates of this client's own appends come back.
    """

    def __init__(
        self,
        directory: Directory,
        transport: Transport,
        callbacks: Callbacks | None = None,
        config: ClientConfig | None = None,
        partitions: Sequence[int] | None = None,
        feed: FeedKind | None = None,
    ) -> None:
        if feed is not None and feed not in _FEED_MODES:
            raise InvalidInput(f"feed must be 'records' or 'headers', not {feed!r}")
        self._directory = directory
        self._transport = transport
        self._callbacks = callbacks
        self.config = config or ClientConfig()
        self._mode = FeedMode.OWN if callbacks is None else _FEED_MODES[feed or "records"]
        self._count = directory.partitions
        self._partitions = tuple(range(self._count))
        if partitions is not None:
            self._partitions = tuple(sorted({self._checked(partition) for partition in partitions}))
        # Before any thread exists: the application's code may raise.
        marks: dict[int, int] = {}
        if callbacks is not None:
            marks = {p: checked_mark(callbacks.client_high_water_mark(p)) for p in self._partitions}
        self.client_id = directory.next_client_id()
        self._attachments: dict[int, Attachment] = {}
        self._subscriptions: set[Subscription] = set()
        self._locations: Mapping[int, Location] = {}
        self._lock = threading.Lock()
        self._ready = threading.Condition()
        self._closed = False
        self._runner = ContextRunner(self._count, self.config, self._attachment)
        self._io = IoThread()
        self._rpc = Rpc(transport, self.config, lambda partition: self._locations.get(partition))
        self._streams = StreamPool(transport, lambda: MountStream(self.config.max_frame_bytes))
        self._applier = Applier(callbacks, self._fetch, self._context_committed)
        try:
            self._stop_watching = directory.watch(lambda locations: self._io.post(self._located, dict(locations)))
        except BaseException:
            self._end_threads()
            raise
        for partition, mark in marks.items():
            self._attach(partition, mark)

    # ---- appending

    def append(
        self,
        partition_id: int,
        data: bytes,
        header: int = 0,
        write_locks: Sequence[Lock] = (),
        read_locks: Sequence[Lock] = (),
        append_locks: Sequence[Lock] = (),
        client_mark: int | None = None,
        retry: bool = True,
    ) -> Future[int]:
        """Propose one transaction; the future's result is its transaction ID.

        Blocks while the partition has ``outstanding_appends`` or ``outstanding_bytes`` without a fate. The future
        raises LockConflict if a lock was refused; PartitionNotReady if it could not be sent in time; AppendFailed
        (with ``retry=False``) where it would otherwise have been sent again; ClientAhead; ClientClosed.
        ``client_mark`` is the high-water mark the locks are checked against: what the application had applied when
        it read what it bases this transaction on. The default is this client's own mark.
        """
        attachment = self._attachments.get(partition_id) or self._attachment(partition_id)
        data = bytes(data)
        lock_count = len(write_locks) + len(read_locks) + len(append_locks)
        check_size(partition_id, len(data), lock_count, self.config.max_frame_bytes)
        append = Append(data, checked_header(header), crc32(data), retry)
        if lock_count:
            mark = attachment.applied_mark if client_mark is None else checked_mark(client_mark)
            if mark is None:
                raise InvalidInput(
                    "an append with locks needs client_mark= in a client without callbacks: "
                    "only the application knows what it has applied"
                )
            append.take_locks(mark, (_hashes(write_locks), _hashes(read_locks), _hashes(append_locks)))
        attachment.outbox.put(append)
        return append.future

    def append_many(
        self, partition_id: int, datas: Sequence[bytes], headers: int | Sequence[int] | Int32s = 0
    ) -> Future[Int64s]:
        """Propose n transactions at once, without locks; the result is their n transaction IDs, in order.

        They are not one unit: after an error some may be in the log (AppendFailed then says which).
        """
        attachment = self._attachments.get(partition_id) or self._attachment(partition_id)
        count = len(datas)
        lengths = np.fromiter(map(len, datas), dtype=np.int64, count=count)
        check_size(partition_id, int(lengths.max(initial=0)), 0, self.config.max_frame_bytes)
        checksums = np.fromiter(map(crc32, datas), dtype=np.uint32, count=count)
        if isinstance(headers, int):
            columns = np.full(count, checked_header(headers), dtype=np.int32)
        else:
            wide = np.array(headers, dtype=np.int64)
            if wide.shape != (count,):
                raise InvalidInput(f"append_many: {count} records but headers of shape {wide.shape}")
            checked_header(int(wide.min(initial=0)))
            checked_header(int(wide.max(initial=0)))
            columns = wide.astype(np.int32)
        append = ManyAppend(b"".join(datas), columns, checksums, lengths.astype(np.int32))
        if count:
            attachment.outbox.put(append)
        else:
            append.future.set_result(append.ids)
        return append.future

    def submit(self, context: TransactionContext) -> Future[bool]:
        """Run ``context`` until it commits (True) or gives up (False); the future carries what it raised."""
        return self._runner.submit(context)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything appended or submitted before this call has its fate; AppendTimeout otherwise."""
        if self._io.is_current:
            raise InvalidInput("flush() was called in a future's callback, which it would wait for")
        futures: list[Future[object]] = [*self._runner.open_futures()]  # type: ignore[list-item]
        for attachment in list(self._attachments.values()):
            futures += [append.future for append in attachment.outbox.open_appends() if append.run is None]
        left = concurrent.futures.wait(futures, timeout).not_done
        if left:
            raise AppendTimeout(
                f"{len(left)} of {len(futures)} appends still have no fate after {timeout} s; flush again"
            )

    # ---- reading

    def read(self, partition_id: int, first_id: int, end_id: int) -> Iterator[Transaction]:
        """Transactions [first_id, end_id) as far as they are committed; DataUnavailable if they can't be read."""
        self._checked(partition_id)
        if first_id < 0:
            raise InvalidInput(f"transaction IDs begin at 0, not {first_id}")
        return self._read(partition_id, first_id, end_id)

    def feed(self, partition_id: int, start: int = 0, follow: bool = False) -> Iterator[Transaction]:
        """Transactions from ``start`` on, beside the callbacks; up to the server's mark, or for ever (``follow``).

        A follower holds a connection until the iterator is closed or the client is.
        """
        self._checked(partition_id)
        if start < 0:
            raise InvalidInput(f"transaction IDs begin at 0, not {start}")
        if follow:
            return self._follow(partition_id, start)
        return self._read(partition_id, start, self.server_high_water_mark(partition_id) + 1)

    def high_water_mark(self, partition_id: int) -> int:
        """The client's: ID of the last transaction applied here, -1 = none (always, without callbacks)."""
        self._checked(partition_id)
        attachment = self._attachments.get(partition_id)
        return attachment.queue.mark if attachment is not None else NO_TRANSACTION

    def server_high_water_mark(self, partition_id: int) -> int:
        """The server's: ID of the last committed transaction, -1 = none; DataUnavailable if nobody answers."""
        self._checked(partition_id)
        return self._io.call(self._rpc.high_water_mark(partition_id))

    # ---- about the client

    @property
    def partitions(self) -> int:
        """Number of partitions of the cluster."""
        return self._count

    def wait_ready(self, timeout: float | None = None) -> None:
        """Until every partition of this client is mounted (and, with callbacks, fed up to the server's mark).

        ClientAhead, or PartitionNotReady after ``timeout`` seconds.
        """
        if self._io.is_current:
            raise InvalidInput("wait_ready() was called in a future's callback, which it would wait for")
        attachments = [self._attachment(partition) for partition in self._partitions]
        start = time.monotonic()
        with self._ready:
            for attachment in attachments:
                while not _is_ready(attachment.partition):
                    if self._closed:
                        raise ClientClosed("the client was closed before its partitions were ready")
                    waited = time.monotonic() - start
                    if timeout is not None and waited >= timeout:
                        raise attachment.partition.not_ready_error(waited * 1000)
                    self._ready.wait(_PATIENCE_S if timeout is None else max(0.001, min(_PATIENCE_S, timeout - waited)))

    def statistics(self) -> dict[str, int]:
        """Counts since the start: ``appends`` (records), ``committed``, ``lock_conflicts``, ``retries`` (attempts
        repeated because the one before is not in the log), ``reconnects`` (mounts after a partition's first)."""
        attachments = list(self._attachments.values())
        mounted = [a.partition for a in attachments]
        return {
            "appends": sum(a.outbox.appends for a in attachments),
            "committed": sum(p.fates.committed for p in mounted),
            "lock_conflicts": sum(p.fates.lock_conflicts for p in mounted),
            "retries": sum(p.fates.retries for p in mounted),
            "reconnects": sum(max(0, p.mounts - 1) for p in mounted),
        }

    def close(self) -> None:
        """Let go of everything; what has no fate yet fails with ClientClosed, whether or not it is in the log."""
        if self._io.is_current:
            raise InvalidInput("close() was called in a future's callback, which it would wait for")
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stop_watching()
        self._end_threads()
        self._directory.close()

    def __enter__(self) -> WaltzClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- inside

    def _checked(self, partition_id: int) -> int:
        if not 0 <= partition_id < self._count:
            raise InvalidInput(f"there is no partition {partition_id}; this cluster has 0 to {self._count - 1}")
        return partition_id

    def _attachment(self, partition_id: int) -> Attachment:
        """The partition, mounted now if it has not been before."""
        if partition_id not in self._attachments:
            if self._checked(partition_id) not in self._partitions:
                raise InvalidInput(
                    f"partition {partition_id} is not one of this client's, {list(self._partitions)}; "
                    f"give it to connect(partitions=...)"
                )
            self._attach(partition_id, NO_TRANSACTION)
        return self._attachments[partition_id]

    def _attach(self, partition_id: int, mark: int) -> None:
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed; connect again")
            if partition_id in self._attachments:
                return
            attachment = Attachment(
                partition_id,
                self.client_id,
                self._mode,
                mark,
                self.config,
                self._io,
                self._streams,
                self._applier,
                self._runner,
                self._notify_ready,
            )
            self._attachments[partition_id] = attachment
            self._io.post(lambda: attachment.start(self._locations.get(partition_id)))

    def _notify_ready(self) -> None:
        with self._ready:
            self._ready.notify_all()

    def _located(self, locations: Mapping[int, Location]) -> None:
        """On the IO thread: the directory has spoken."""
        self._locations = locations
        partitions = [a.partition for a in self._attachments.values()] + [s.partition for s in self._subscriptions]
        for partition in partitions:
            partition.location_changed(locations.get(partition.partition_id))

    def _context_committed(self, completion: Completion) -> BaseException | None:
        run = completion[0].run
        assert run is not None
        return self._runner.committed(run, completion[1])

    def _fetch(self, partition_id: int, transaction_id: int) -> bytes:
        batch = self._io.call(self._rpc.read(partition_id, transaction_id, transaction_id + 1, READ_BYTES))
        if not len(batch):
            raise DataUnavailable(f"partition {partition_id}: the server does not have transaction {transaction_id}")
        return bytes(batch.data(0))

    def _read(self, partition_id: int, first_id: int, end_id: int) -> Iterator[Transaction]:
        while first_id < end_id:
            batch = self._io.call(self._rpc.read(partition_id, first_id, end_id, READ_BYTES))
            if not len(batch):
                return
            yield from transactions_of(batch, first_id - 1, self._fetch)
            first_id = batch.end_id

    def _follow(self, partition_id: int, start: int) -> Iterator[Transaction]:
        client_id = self._directory.next_client_id()
        subscription = Subscription(partition_id, client_id, start, self.config, self._io, self._transport)
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed; connect again")
            self._io.post(self._subscribe, subscription)
        try:
            yield from subscription.transactions(self._fetch)
        finally:
            with suppress(ClientClosed):  # then close() has ended the subscription
                self._io.start(self._unsubscribe(subscription))

    def _subscribe(self, subscription: Subscription) -> None:
        self._subscriptions.add(subscription)
        partition = subscription.partition
        partition.start(self._locations.get(partition.partition_id))

    async def _unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)
        await subscription.stop()

    def _end_threads(self) -> None:
        self._io.stop(self._shut_down())
        with self._ready:
            self._ready.notify_all()
        self._applier.stop()
        self._runner.close(wait=not threading.current_thread().name.startswith("waltz-context"))

    async def _shut_down(self) -> None:
        closed = ClientClosed("the client was closed while this append had no fate; it may or may not be in the log")
        for subscription in list(self._subscriptions):
            await subscription.stop()
            subscription.end(ClientClosed("the client was closed"))
        for attachment in self._attachments.values():
            await attachment.partition.stop()
            for append in attachment.outbox.close(closed):
                append.fail(closed)
        await self._rpc.close()
        await self._streams.close()


def _hashes(locks: Sequence[Lock]) -> list[int]:
    return [(lock if isinstance(lock, LockId) else LockId(*lock)).hash for lock in locks]


def _is_ready(partition: Partition) -> bool:
    if partition.error is not None:
        raise partition.error
    return partition.state is PartitionState.READY
