"""What ``WaltzClient`` and ``AsyncWaltzClient`` are both made of: partitions, streams, questions, contexts, callbacks.

It has no thread and waits for nothing: who it is for gives it a ``Shell``, and waits in its own way.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from waltz_ray.client.application import Callbacks, checked_header, checked_int, checked_mark
from waltz_ray.client.applier import Applier
from waltz_ray.client.attachment import Attachment
from waltz_ray.client.bounds import Partitions, check_partition, chosen_partitions
from waltz_ray.client.codecs import Codec, encoded
from waltz_ray.client.contexts import ContextRunner
from waltz_ray.client.core import Mounter, PartitionShell
from waltz_ray.client.directory import Directory, Whereabouts
from waltz_ray.client.fates import Completion
from waltz_ray.client.feeds import Origin
from waltz_ray.client.forks import ANOTHER_PROCESS_S
from waltz_ray.client.futures import Fate
from waltz_ray.client.hindrances import Hindrances
from waltz_ray.client.keys import Lock, lock_hash
from waltz_ray.client.mount_stream import MountStreams
from waltz_ray.client.outbox import Outbox
from waltz_ray.client.readiness import ReadyWait
from waltz_ray.client.requests import AppendCall, LockHashes, ManyAppend, check_size
from waltz_ray.client.rpc import Rpc
from waltz_ray.client.shell import Shell
from waltz_ray.client.subscription import FeedItem, Subscription
from waltz_ray.client.transport import Transport
from waltz_ray.config import ClientConfig
from waltz_ray.errors import ClientClosed, InvalidInput, WaltzError
from waltz_ray.protocol.checksum import crc32
from waltz_ray.protocol.ids import NO_TRANSACTION, Location
from waltz_ray.protocol.messages.client import FeedMode
from waltz_ray.protocol.records import Int32s

__all__ = ["Engine", "FeedKind", "Locks", "Membership", "settle"]

FeedKind = Literal["records", "headers"]
"""Whether callbacks are fed whole transactions, or headers with the data fetched on demand."""

_FEED_MODES = {"records": FeedMode.RECORDS, "headers": FeedMode.HEADERS}

Locks = tuple[Sequence[Lock], Sequence[Lock], Sequence[Lock]]
"""Write, read and append locks."""


@dataclass(frozen=True)
class Membership:
    """What is settled before anything of a client runs."""

    client_id: int
    cluster_key: str
    partitions: int
    """Of the space."""
    mounted: tuple[int, ...]
    """Those that this client may use, ascending."""
    marks: Mapping[int, int]
    """The application's high-water marks; empty without callbacks."""
    mode: FeedMode
    config: ClientConfig
    codec: Codec | None = None


def settle(
    client_id: int,
    directory: Directory,
    callbacks: Callbacks | None,
    config: ClientConfig | None,
    partitions: Partitions,
    feed: FeedKind | None,
    codec: Codec | None = None,
) -> Membership:
    """Asks the application for its marks; whatever that raises. ``feed``: if there are callbacks to be fed."""
    if feed is not None and feed not in _FEED_MODES:
        raise InvalidInput(f"feed must be 'records' or 'headers', not {feed!r:.60}")
    if config is not None and not isinstance(config, ClientConfig):
        raise InvalidInput(f"config is a ClientConfig, not {type(config).__name__}: {config!r:.60}")
    count = directory.partitions
    mounted = chosen_partitions(partitions, count)
    marks: dict[int, int] = {}
    if callbacks is not None:
        marks = {p: checked_mark(callbacks.client_high_water_mark(p)) for p in mounted}
    mode = FeedMode.OWN if callbacks is None else _FEED_MODES[feed or "records"]
    key = directory.cluster_key
    return Membership(client_id, key, count, mounted, marks, mode, config or ClientConfig(), codec)


class Engine:
    """What both clients do, without a thread of its own. What is not said to be for the loop is for any thread.

    ``ready_changed`` is called on the loop when a partition may have become ready, or never will be.
    """

    def __init__(
        self,
        membership: Membership,
        transport: Transport,
        callbacks: Callbacks | None,
        origin: Origin,
        shell: Shell,
        ready_changed: Callable[[], None],
    ) -> None:
        self.membership = membership
        self.attachments: dict[int, Attachment] = {}
        self.closed = self._left_to_parent = False
        self.ready_changed = ready_changed
        self._config = membership.config
        self._transport = transport
        self._shell = shell
        self._lock = threading.Lock()
        self._locations: Mapping[int, Location] = {}
        self._subscriptions: set[Subscription] = set()
        self._endings: set[asyncio.Task[None]] = set()  # of those that nobody takes from any more
        self._begun: dict[PartitionShell, None] = {}  # in the order of their beginning
        self._held: dict[PartitionShell, None] | None = None  # what has been appended to ``together``
        self.mounter = self._mounter(membership.client_id, membership.mode)
        self._gone: WaltzError | None = None  # why there is nothing any more to be mounted or asked
        self.rpc = Rpc(transport, self._config, membership.cluster_key, self._locate)
        self._hindrances = Hindrances(lambda: self._begun, self.rpc, self._config.hindrance_after_ms / 1000)
        self.codec = membership.codec
        self.origin = origin
        self.runner = ContextRunner(membership.partitions, self._config, self.attachment, shell, self.codec)
        self.applier = Applier(callbacks, self.origin, self._completed, shell)

    def _mounter(self, client_id: int, mode: FeedMode) -> Mounter:
        config = self._config
        shares = mode is FeedMode.OWN and config.share_connections
        key = self.membership.cluster_key
        streams = MountStreams(self._transport, config.max_frame_bytes, config.silent_ms, key, shares)
        return Mounter(client_id, mode, self._config, streams, self._shell)

    def _completed(self, completion: Completion) -> BaseException | None:
        run = completion[0].run
        assert run is not None
        return self.runner.committed(run, completion[1])

    # ---- partitions

    def mount_all(self) -> None:
        """Mount every partition that the application has a mark of."""
        for partition, mark in self.membership.marks.items():
            self._attach(partition, mark)

    def attachment(self, partition_id: int) -> Attachment:
        """The partition, mounted from now on if it has not been before."""
        partition_id = check_partition(partition_id, self.membership.partitions)
        if partition_id not in self.attachments:
            mounted = self.membership.mounted
            if partition_id not in mounted:
                raise InvalidInput(
                    f"partition {partition_id} is not one of this client's, {list(mounted)}; "
                    f"give it to connect(partitions=...)"
                )
            self._attach(partition_id, NO_TRANSACTION)
        return self.attachments[partition_id]

    def _attach(self, partition_id: int, mark: int) -> None:
        with self._lock:
            self.check_open()
            if partition_id not in self.attachments:
                attachment = self.attachments[partition_id] = Attachment(self, partition_id, mark)
                self._shell.post(self._begin, attachment.partition)

    def _begin(self, partition: PartitionShell) -> None:
        """On the loop, which hears of no location for it before that."""
        self._begun[partition] = None
        self._hindrances.begin()
        partition.start(self._locations.get(partition.partition_id))
        if self._gone is not None:
            partition.end(self._gone)

    def _locate(self, partition_id: int) -> Location | None:
        if self._gone is not None:
            raise self._gone.with_traceback(None)  # which would grow with each time
        return self._locations.get(partition_id)

    def located(self, locations: Whereabouts) -> None:
        """On the loop: the directory has spoken."""
        if isinstance(locations, WaltzError):
            self._gone = locations
            for partition in self._begun:
                partition.end(locations)
            return
        self._locations = locations
        for partition in self._begun:
            partition.location_changed(locations.get(partition.partition_id))

    def applied_mark(self, partition_id: int) -> int:
        """The client's high-water mark, -1 = none."""
        attachment = self.attachments.get(check_partition(partition_id, self.membership.partitions))
        return attachment.queue.mark if attachment is not None else NO_TRANSACTION

    def readiness(self) -> list[ReadyWait]:
        """Of this client's partitions, all of which are mounted from now on."""
        attachments = [self.attachment(partition) for partition in self.membership.mounted]
        return [ReadyWait(attachment, self.applier, None) for attachment in attachments]

    def applied(self, partition_id: int, transaction_id: int) -> ReadyWait:
        """When ``transaction_id`` has been applied. InvalidInput if nothing is."""
        attachment = self.attachment(partition_id)
        if not attachment.applies:
            raise InvalidInput("a client without callbacks applies nothing: there is nothing to wait for")
        return ReadyWait(attachment, self.applier, checked_mark(transaction_id))

    def statistics(self) -> dict[str, int]:
        """Counts since the start, by the names of ``WaltzClient.statistics``."""
        mounted = [attachment.partition for attachment in list(self.attachments.values())]
        return {
            "appends": sum(p.outbox.appends for p in mounted),
            "committed": sum(p.fates.committed for p in mounted),
            "lock_conflicts": sum(p.fates.lock_conflicts for p in mounted),
            "retries": sum(p.fates.retries for p in mounted),
            "reconnects": sum(max(0, p.machine.mounts - 1) for p in mounted),
        }

    def hindrances(self) -> dict[int, str]:
        """What keeps which partitions from taking appends, as their servers have said."""
        reasons = {p: attachment.outbox.hindrance for p, attachment in list(self.attachments.items())}
        return {p: reason for p, reason in reasons.items() if reason}

    def why(self) -> str:
        """What an error about waiting ends with."""
        told = "; ".join(f"partition {p}: {reason}" for p, reason in self.hindrances().items())
        return f"; the servers say: {told}" if told else ""

    # ---- appends

    def take_locks(
        self,
        attachment: Attachment,
        append: AppendCall,
        locks: Locks,
        client_mark: int | None,
        longest_bytes: int | None = None,
    ) -> None:
        """``append`` is to be made under ``locks``. InvalidInput if nobody says what the application knows.

        ``longest_bytes``: of its longest record, where it has several.
        """
        partition_id = attachment.queue.partition_id
        try:
            lock_count = sum(map(len, locks))
        except TypeError:
            raise InvalidInput("the locks of an append are given as a list of them, one list for each kind") from None
        size_bytes = len(append.data) if longest_bytes is None else longest_bytes
        check_size(partition_id, size_bytes, lock_count, self._config.max_frame_bytes)
        mark = attachment.applied_mark if client_mark is None else checked_mark(client_mark)
        if mark is None:
            raise InvalidInput(
                "an append with locks needs client_mark= in a client without callbacks: "
                "only the application knows what it has applied"
            )
        write, read, appended = ([lock_hash(lock) for lock in kind] for kind in locks)
        append.take_locks(mark, (write, read, appended))

    def append_of(
        self,
        partition_id: int,
        value: object,
        header: int,
        locks: Locks | None,
        client_mark: int | None,
        retry: bool,
        future: Fate[int],
    ) -> tuple[Outbox, AppendCall]:
        """One record, not yet sent, and where it is to be sent from. ``locks`` is None where there are none."""
        if type(partition_id) is not int:
            partition_id = checked_int("a partition ID", partition_id)
        attachment = self.attachments.get(partition_id) or self.attachment(partition_id)
        data = value if type(value) is bytes and self.codec is None else encoded(self.codec, value)
        check_size(partition_id, len(data), 0, self._config.max_frame_bytes)
        append = AppendCall(data, checked_header(header), crc32(data), retry, None, future)
        if locks is not None:
            self.take_locks(attachment, append, locks, client_mark)
        return attachment.outbox, append

    def append_under(
        self, partition_id: int, data: bytes, header: int, hashes: LockHashes, client_mark: int, future: Fate[int]
    ) -> None:
        """On the loop: append for layers on the log, whose arguments are known to be what they should be; of the locks
        they keep the hashes. ``future`` is told how it ends, never within this call. InvalidInput if no server would
        take it; ClientClosed where the partition was not used before the end."""
        attachment = self.attachments.get(partition_id) or self.attachment(partition_id)
        check_size(partition_id, len(data), sum(map(len, hashes)), self._config.max_frame_bytes)
        append = AppendCall(data, header, crc32(data), True, None, future)
        append.take_locks(client_mark, hashes)
        outbox = attachment.outbox
        if self._held is not None:
            attachment.partition.hold()
            self._held[attachment.partition] = None
        try:
            if not outbox.offer(append):
                outbox.stand_in_line(append, lambda error: append.fail(error) if error is not None else None)
        except WaltzError as error:  # the client is closed
            asyncio.get_running_loop().call_soon(future.set_exception, error)

    @contextmanager
    def together(self) -> Iterator[None]:
        """On the loop, for layers that have gathered what they append: it is sent when this ends, and not when the loop
        has looked what else there is."""
        self._held = {}
        try:
            yield
        finally:
            held, self._held = self._held, None
            for partition in held:
                partition.send_due()

    def many_append_of(
        self,
        attachment: Attachment,
        values: Sequence[object],
        headers: int | Sequence[int] | Int32s,
        write_lock: Lock | None,
        client_mark: int | None,
        future: Fate[Any],
    ) -> ManyAppend:
        """Many records, not yet sent."""
        datas = _datas(self.codec, values)
        count = len(datas)
        lengths = np.fromiter(map(len, datas), dtype=np.int64, count=count)
        check_size(attachment.queue.partition_id, int(lengths.max(initial=0)), 0, self._config.max_frame_bytes)
        checksums = np.fromiter(map(crc32, datas), dtype=np.uint32, count=count)
        columns = _checked_headers(headers, count)
        append = ManyAppend(b"".join(datas), columns, checksums, lengths.astype(np.int32), future)
        if write_lock is not None:
            longest = int(lengths.max(initial=0))
            self.take_locks(attachment, append, ((write_lock,), (), ()), client_mark, longest)
        return append

    def open_futures(self) -> list[Fate[Any]]:
        """Of everything appended or submitted so far that has no fate."""
        futures: list[Fate[Any]] = [run.future for run in self.runner.open_runs()]
        for attachment in list(self.attachments.values()):
            futures += [append.future for append in attachment.outbox.open_appends() if append.run is None]
        return futures

    # ---- subscriptions

    def follow(
        self,
        client_id: int,
        first_ids: Mapping[int, int],
        put: Callable[[FeedItem], None],
        ready_changed: Callable[[], None] = lambda: None,
        earliest: bool = False,
        mode: FeedMode = FeedMode.RECORDS,
    ) -> Subscription:
        """A feed that follows, from the first ID of each partition on; ``shut_down`` ends it otherwise.

        ``earliest``: from the first there is, where those were trimmed away. ``mode``: RECORDS, or HEADERS.
        """
        mounter = self._mounter(client_id, mode)
        with self._lock:
            self.check_open()
            subscription = Subscription(mounter, first_ids, put, self._abandon, ready_changed, earliest)
            self._shell.post(self._subscribe, subscription)
        return subscription

    def stand_in(self, client_id: int, first_ids: Mapping[int, int], ready_changed: Callable[[], None]) -> Subscription:
        """Mount partitions in the name of another client; nobody wants the feed, which goes on. InvalidInput: it is
        no other client."""
        if client_id == self.membership.client_id:
            raise InvalidInput(f"client {client_id} runs: that is this client's own ID; supersede one that has died")
        subscription: Subscription = self.follow(
            client_id, first_ids, lambda item: subscription.used(item), ready_changed
        )
        return subscription

    def _subscribe(self, subscription: Subscription) -> None:
        if subscription.stopped:
            return
        self._subscriptions.add(subscription)
        for partition in subscription.partitions.values():
            self._begin(partition)

    def _abandon(self, subscription: Subscription) -> None:
        task = asyncio.get_running_loop().create_task(self.unsubscribe(subscription))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def unsubscribe(self, subscription: Subscription) -> None:
        """On the loop: end. Idempotent; it goes on without who is cancelled on the way."""
        for partition in subscription.partitions.values():
            self._begun.pop(partition, None)
        try:
            await subscription.stop()
        except asyncio.CancelledError:
            if not self.closed:  # else ``shut_down`` does the rest
                self._abandon(subscription)
            raise
        self._subscriptions.discard(subscription)

    # ---- the end

    def check_open(self) -> None:
        """ClientClosed if it is."""
        if self.closed:
            raise ClientClosed("the client is closed, this was not sent; connect again")

    def begin_to_close(self) -> bool:
        """Nothing more is begun. True for the one caller that is to go on with it."""
        with self._lock:
            was_closed, self.closed = self.closed, True
        return not was_closed

    def leave_to_parent(self) -> None:
        """In a forked child: it is closed, and nothing of it is let go of, for that is the parent's."""
        self._lock = threading.Lock()  # whoever held it is in the parent
        self.closed = self._left_to_parent = True
        for attachment in self.attachments.values():
            attachment.outbox.leave_to_parent(ClientClosed(ANOTHER_PROCESS_S))
        self.runner.leave_to_parent()

    def check_process(self) -> None:
        """ClientClosed in a forked child, where nothing that the parent has begun ever ends."""
        if self._left_to_parent:
            raise ClientClosed(ANOTHER_PROCESS_S)

    async def shut_down(self) -> None:
        """On the loop: leave every server; what has no fate ends with ClientClosed."""
        closed = ClientClosed("the client was closed while this append had no fate; it may or may not be in the log")
        unsent = ClientClosed("the client is closed, this append was not sent; connect again")
        async with AsyncExitStack() as ending:  # all of it, the last first; also when who closes it is interrupted
            ending.push_async_callback(self.mounter.streams.close)
            ending.push_async_callback(self.rpc.close)
            for attachment in reversed(list(self.attachments.values())):
                ending.push_async_callback(self._detach, attachment, closed, unsent)
            ending.push_async_callback(self._hindrances.end)
            ending.push_async_callback(self._ended)
            for subscription in reversed(list(self._subscriptions)):
                ending.push_async_callback(self._end_subscription, subscription)

    async def _end_subscription(self, subscription: Subscription) -> None:
        try:
            await self.unsubscribe(subscription)
        except asyncio.CancelledError:
            await subscription.stop()  # the rest
            raise
        finally:
            subscription.end(ClientClosed("the client was closed"))

    async def _ended(self) -> None:
        await asyncio.gather(*self._endings)

    @staticmethod
    async def _detach(attachment: Attachment, closed: ClientClosed, unsent: ClientClosed) -> None:
        try:
            await attachment.partition.stop()
        finally:
            for append, error in attachment.outbox.close(closed, unsent):
                append.fail(error)


def _datas(codec: Codec | None, datas: Sequence[Any]) -> Sequence[bytes]:
    if type(datas) is not list and (isinstance(datas, str | bytes | bytearray) or not isinstance(datas, Sequence)):
        raise InvalidInput(f"append_many takes a list with one value for each transaction, not {type(datas).__name__}")
    if codec is None and [*map(type, datas)].count(bytes) == len(datas):  # 2 us for a hundred
        return datas
    return [encoded(codec, data) for data in datas]


def _checked_headers(headers: int | Sequence[int] | Int32s, count: int) -> Int32s:
    """One for each of ``count`` records."""
    if type(headers) is int:
        return np.full(count, checked_header(headers), dtype=np.int32)
    if not isinstance(headers, np.ndarray):
        if isinstance(headers, str | bytes) or not isinstance(headers, Sequence):
            return np.full(count, checked_header(cast(int, headers)), dtype=np.int32)
        if [*map(type, headers)].count(int) != len(headers):
            headers = [checked_header(header) for header in headers]
        try:
            headers = np.array(headers, dtype=np.int64)
        except OverflowError as error:
            raise InvalidInput(f"append_many: headers must be signed 32-bit integers: {error}") from error
    if headers.shape != (count,):
        raise InvalidInput(f"append_many: {count} records but headers of shape {headers.shape}")
    if headers.dtype.kind not in "iu":
        raise InvalidInput(f"append_many: headers must be integers, not {headers.dtype}")
    checked_header(int(headers.min(initial=0)))
    checked_header(int(headers.max(initial=0)))
    return headers.astype(np.int32)
