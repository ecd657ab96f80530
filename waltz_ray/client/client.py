"""The client an application uses. ``waltz_ray.connect`` makes one.

Threads: the application's own call ``append`` and ``submit``; one IO thread owns the sockets of all clients of the
process; one apply thread runs the callbacks; ``ClientConfig.context_threads`` run contexts. A future's result is set on
the IO thread: a callback added to it must be short and must not wait for a client.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

from waltz_ray.client.address import Address, Find, travelling
from waltz_ray.client.application import (
    Callbacks,
    SubmitResult,
    Transaction,
    TransactionContext,
    checked_client_id,
)
from waltz_ray.client.bounds import Bound, FeedPlan, Partitions, begun_further_on, check_partition, checked_range
from waltz_ray.client.closed_meanwhile import closed_meanwhile
from waltz_ray.client.codecs import Codec
from waltz_ray.client.cursor_rules import CursorCall
from waltz_ray.client.cursors import Cursor, cursor_statuses, open_cursor
from waltz_ray.client.directory import Directory, Whereabouts
from waltz_ray.client.engine import Engine, FeedKind, settle
from waltz_ray.client.feeds import Origin, transactions_of
from waltz_ray.client.followers import Arrivals, Follower
from waltz_ray.client.forks import left_to_parent
from waltz_ray.client.futures import ContextFuture, LightFuture
from waltz_ray.client.keys import Key, Lock, partition_for
from waltz_ray.client.outbox import Outbox
from waltz_ray.client.readiness import Awaited, MountedWait
from waltz_ray.client.requests import AppendCall
from waltz_ray.client.rpc import READ_BYTES, only_data
from waltz_ray.client.threads import Threads
from waltz_ray.client.time_limits import TimeLimit, checked_timeout, checked_wait, expire_append
from waltz_ray.client.times import in_milliseconds, time_of
from waltz_ray.client.transport import Transport
from waltz_ray.client.waits import LOOK_S, undone
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendTimeout, InvalidInput, Trimmed
from waltz_ray.protocol.records import Int32s, Int64s
from waltz_ray.protocol.times import TimeMarks
from waltz_ray.runtime.status import CursorStatus

__all__ = ["WaltzClient"]

T = TypeVar("T")


class WaltzClient:
    """One client of one cluster. It pickles as its address (without callbacks), and connects when it is first used.

    With ``callbacks`` the given ``partitions`` (default: all) are mounted at once and fed to them, data inline
    (``feed="records"``) or fetched on demand (``"headers"``). Without, a partition is mounted when it is first
    appended to, and only the fates of this client's own appends come back.

    With a ``codec`` what is appended are values, and ``transaction.value`` is what they were; ``transaction.data`` is
    their bytes. Without, both are bytes.
    """

    def __init__(
        self,
        directory: Directory,
        transport: Transport,
        callbacks: Callbacks | None = None,
        config: ClientConfig | None = None,
        partitions: Partitions = None,
        feed: FeedKind | None = None,
        threads: Threads | None = None,
        find: Find | None = None,
        codec: Codec | None = None,
    ) -> None:
        """``threads``: only the simulator gives other than real ones. ``find``: how another process gets the same."""
        self._address = Address(find, config, partitions, codec) if find is not None else None
        self._has_callbacks = callbacks is not None
        self._directory = directory
        # Before any thread exists: the application's code may raise.
        membership = settle(directory.next_client_id(), directory, callbacks, config, partitions, feed, codec)
        self.client_id = membership.client_id
        self.config = membership.config
        self._partitions = membership.mounted
        self._count = membership.partitions
        self._ready = threading.Condition()
        self._threads = threads or Threads(self.config)
        origin = Origin(self._fetch, self._times, codec)
        try:
            self._engine = Engine(membership, transport, callbacks, origin, self._threads, self._ready_changed)
        except BaseException:  # no thread can be started that applies
            self._threads.stop(_nothing())
            raise
        try:
            self._stop_watching = directory.watch(self._located)
        except BaseException:
            self._end_threads()
            raise
        left_to_parent(self._engine)
        self._engine.mount_all()

    # ---- appending

    def append(
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
    ) -> Future[int]:
        """Propose one transaction; the future's result is its transaction ID.

        Blocks while the partition has ``outstanding_appends`` or ``outstanding_bytes`` without a fate. The future
        raises LockConflict if a lock was refused; PartitionNotReady if it could not be sent in time; AppendFailed
        (with ``retry=False``) where it would otherwise have been sent again; ClientAhead; Trimmed; ClientClosed.
        ``client_mark`` is the high-water mark the locks are checked against: what the application had applied when
        it read what it bases this transaction on. The default is this client's own mark.

        After ``timeout`` seconds, waiting for room included, it ends: OutboxFull is raised, or the future raises
        AppendFailed, if nothing was sent; otherwise AppendTimeout, whose ``fate`` is done when the feed has said
        whether it is in the log.
        """
        locks = (write_locks, read_locks, append_locks) if write_locks or read_locks or append_locks else None
        future: LightFuture[int] = LightFuture()
        outbox, append = self._engine.append_of(partition_id, data, header, locks, client_mark, retry, future)
        if timeout is not None:
            return self._limited(outbox, append, future, timeout)
        if not outbox.offer(append):
            self._threads.wait_for_room(outbox, append)
        return future

    def try_append(
        self,
        partition_id: int,
        data: Any,
        header: int = 0,
        write_locks: Sequence[Lock] = (),
        read_locks: Sequence[Lock] = (),
        append_locks: Sequence[Lock] = (),
        client_mark: int | None = None,
        retry: bool = True,
    ) -> Future[int]:
        """``append`` that never blocks: OutboxFull at once where that would wait for room. Also in a callback."""
        locks = (write_locks, read_locks, append_locks) if write_locks or read_locks or append_locks else None
        future: LightFuture[int] = LightFuture()
        outbox, append = self._engine.append_of(partition_id, data, header, locks, client_mark, retry, future)
        if not outbox.offer(append, ahead=self._threads.on_loop):
            raise outbox.full_error(0)
        return future

    def append_many(
        self,
        partition_id: int,
        datas: Sequence[Any],
        headers: int | Sequence[int] | Int32s = 0,
        timeout: float | None = None,
        write_lock: Lock | None = None,
        client_mark: int | None = None,
    ) -> Future[Int64s]:
        """Propose n transactions at once; the result is their n transaction IDs, in order.

        They are not one unit: after an error some may be in the log (PartlyAppended then says which). ``timeout`` is
        that of ``append``. Each of them takes ``write_lock``, if there is one: the first against ``client_mark``, each
        of the others against the ID that the one before it has if all of them follow ``client_mark`` directly. So it is
        for who appends to the partition alone: where anybody else has appended behind ``client_mark``, under whatever
        lock or none, some are refused (LockConflict, or PartlyAppended: not all were).
        """
        attachment = self._engine.attachment(partition_id)
        future: LightFuture[Int64s] = LightFuture()
        append = self._engine.many_append_of(attachment, datas, headers, write_lock, client_mark, future)
        if not append.count:
            future.set_result(append.ids)
        elif timeout is not None:
            return self._limited(attachment.outbox, append, future, timeout)
        else:
            self._threads.put(attachment.outbox, append)
        return future

    def submit(self, context: TransactionContext, timeout: float | None = None) -> Future[SubmitResult]:
        """Run ``context`` until it commits (a true result, with the transaction's ID) or gives up (a false one).

        The future carries what the context raised. After ``timeout`` seconds it raises AppendTimeout and there is no
        further attempt; what becomes of the one under way is said by the error's ``fate``.
        """
        future: LightFuture[SubmitResult] = ContextFuture(lambda: self._threads.on_applying)
        runner = self._engine.runner
        if timeout is None:
            runner.submit(context, future)
            return future
        timeout = checked_timeout(timeout)
        run = runner.submit(context, future)
        limit = TimeLimit(future, "the context", timeout, lambda: runner.expire(run, timeout), self._engine.why)
        return limit.begin(self._threads.post, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything appended or submitted before this call has its fate; AppendTimeout otherwise."""
        self._engine.check_process()
        if self._threads.on_loop:
            raise InvalidInput("flush() was called in a future's callback, which it would wait for")
        if self._threads.on_applying and self._engine.runner.open_runs():
            raise InvalidInput("flush() was called in a callback, behind which the contexts end that it would wait for")
        if self._engine.runner.executes_here:
            raise InvalidInput("flush() was called in a context, for whose end it would wait")
        limit_s = checked_wait(timeout)
        futures = cast(list[Future[object]], self._engine.open_futures())
        left = undone(futures, limit_s)
        if left:
            raise AppendTimeout(
                f"{len(left)} of {len(futures)} appends still have no fate after {timeout} s; flush again"
                f"{self._engine.why()}"
            )

    # ---- reading

    def read(self, partition_id: int, first_id: int, end_id: int) -> Iterator[Transaction]:
        """Transactions [first_id, end_id) as far as they are committed; DataUnavailable if they can't be read, Trimmed
        where the next one is gone."""
        return self._read(*checked_range(partition_id, first_id, end_id, self._count))

    @overload
    def feed(
        self,
        partitions: Partitions,
        start: Bound = ...,
        follow: Literal[False] = ...,
        last: int | None = ...,
    ) -> Iterator[Transaction]: ...
    @overload
    def feed(
        self,
        partitions: Partitions,
        start: Bound = ...,
        *,
        follow: Literal[True],
        last: int | None = ...,
    ) -> Follower: ...
    @overload
    def feed(
        self, partitions: Partitions, start: Bound = ..., follow: bool = ..., last: int | None = ...
    ) -> Iterator[Transaction]: ...
    def feed(
        self,
        partitions: Partitions,
        start: Bound = "earliest",
        follow: bool = False,
        last: int | None = None,
    ) -> Iterator[Transaction]:
        """Transactions of one partition, of several, or of all (None), beside the callbacks.

        They begin at ``start``: "earliest", the first there is; a transaction ID, one for each partition, a point in
        time (``first_id_at``), or "latest": what commits from now on; or with the ``last`` n of each partition. They
        end at the servers' marks, one partition after the other; or never (``follow``), as they come: then a
        ``Follower``, which holds a connection until it is stopped. Trimmed where what comes next is gone.
        """
        plan = FeedPlan.of(partitions, self._count, start, last)
        asked_ms = plan.asked_ms(follow)
        if asked_ms is not None:
            plan = plan.started_at({p: self._first_id_at(p, asked_ms) for p in plan.partitions})
        marks = {}
        if plan.needs_marks or not follow:
            marks = {partition: self.server_high_water_mark(partition) for partition in plan.partitions}
        first_ids = plan.first_ids(marks)
        if not follow:
            return chain.from_iterable(
                self._read(p, first_ids[p], mark + 1, plan.earliest) for p, mark in marks.items()
            )
        items = Arrivals()
        client_id = self._directory.next_client_id()
        subscription = self._engine.follow(client_id, first_ids, items.put, earliest=plan.earliest)
        return Follower(subscription, items, self._engine.origin)

    def fetch(self, transaction: Transaction) -> bytes:
        """The transaction's data, brought from the server if it came as a header; DataUnavailable if that fails."""
        return transaction.data

    def appended_at(self, transaction: Transaction) -> datetime | None:
        """When the transaction was appended, to about a second (``Transaction.appended_at``), asked of the server."""
        partition_id, first_id = transaction.partition_id, transaction.transaction_id
        transaction.keep_time(time_of(first_id, self._times(partition_id, first_id, first_id + 1)))
        return transaction.appended_at

    def first_id_at(self, partition_id: int, when: datetime) -> int:
        """The ID from which on all transactions are that were appended at ``when`` (with a time zone) or later.

        Up to a second's transactions before it may be among them; at a whole second none is. If there is none yet, the
        ID that the next one will get. DataUnavailable if nobody answers.
        """
        check_partition(partition_id, self._count)
        return self._first_id_at(partition_id, in_milliseconds("when", when))

    def high_water_mark(self, partition_id: int) -> int:
        """The client's: ID of the last transaction applied here, -1 = none (always, without callbacks)."""
        return self._engine.applied_mark(partition_id)

    def server_high_water_mark(self, partition_id: int) -> int:
        """The server's: ID of the last committed transaction, -1 = none; DataUnavailable if nobody answers."""
        check_partition(partition_id, self._count)
        return self._threads.call(self._engine.rpc.high_water_mark(partition_id))

    # ---- cursors

    def cursor(
        self,
        name: str,
        partitions: Partitions = None,
        start: Bound = "earliest",
        hold: bool | None = None,
        wait: float | None = 30.0,
        auto_commit: bool = True,
    ) -> Cursor:
        """A feed that goes on where its last owner stopped: its position is kept under ``name``, one owner at a time.

        If there is none of that name it begins at ``start`` (as ``feed`` does) with ``partitions`` (None: all).
        ``hold``: nothing is trimmed that it has not passed; None: as it was, a new one does not hold. ``auto_commit``:
        what is done is written about once a second and at the end; else only by ``commit``.

        CursorTaken if somebody else still has it after ``wait`` seconds (0: at once; None: it waits as long as that
        takes). Trimmed, InvalidInput.
        """
        call = CursorCall(name, partitions, start, hold, auto_commit)
        self._engine.check_open()
        with closed_meanwhile(self._engine.check_open):
            return open_cursor(self, self._directory.cursors, call, wait, self._engine.check_open)

    def cursors(self) -> list[CursorStatus]:
        """Every cursor of the space: where it is, who has it, and how many transactions it is behind."""
        self._engine.check_open()
        with closed_meanwhile(self._engine.check_open):
            return cursor_statuses(self, self._directory.cursors)

    def delete_cursor(self, name: str) -> None:
        """Let go of a cursor, and of what it holds, for ever. CursorTaken while somebody has it; CursorNotFound."""
        self._engine.check_open()
        with closed_meanwhile(self._engine.check_open):
            self._directory.cursors.delete(name)

    # ---- about the client

    @property
    def partitions(self) -> int:
        """Number of partitions of the cluster."""
        return self._count

    @property
    def cluster_key(self) -> str:
        """Of the cluster: made once, with it; no other one has it, whatever its name."""
        return self._directory.cluster_key

    def partition_for(self, key: Key) -> int:
        """The partition of a key (text, bytes or an integer), the same for every client (``client/keys.py``)."""
        return partition_for(key, self._count)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Until every partition of this client is mounted and, with callbacks, applied up to the server's mark.

        That mark is the one of the mount. ClientAhead; Trimmed; after ``timeout`` seconds PartitionNotReady, or
        NotApplied, which says how far it came and why not further.
        """
        self._engine.check_process()
        self._wait(self._engine.readiness(), timeout, "wait_ready")

    def wait_applied(self, partition_id: int, transaction_id: int, timeout: float | None = None) -> None:
        """Until the callbacks have applied ``transaction_id``. Raises what ``wait_ready`` does."""
        self._engine.check_process()
        self._wait([self._engine.applied(partition_id, transaction_id)], timeout, "wait_applied")

    def _wait(self, awaited: Sequence[Awaited], timeout: float | None, name: str) -> None:
        if self._threads.on_loop or self._threads.on_applying:
            raise InvalidInput(f"{name}() was called in a callback, which it would wait for")
        self._wait_for(awaited, timeout)

    def _wait_for(self, awaited: Sequence[Awaited], timeout: float | None) -> None:
        timeout = checked_wait(timeout)
        start_s = time.monotonic()
        with self._ready:
            for one in awaited:
                while not one.reached(self._engine.closed):
                    waited_s = time.monotonic() - start_s
                    if timeout is not None and waited_s >= timeout:
                        one.give_up()
                        raise one.error(waited_s)
                    left_s = LOOK_S if timeout is None else min(LOOK_S, timeout - waited_s)
                    self._ready.wait(max(0.001, left_s))

    def supersede(self, client_id: int, timeout: float | None = None) -> list[int]:
        """For who goes on where a client ended whose process has died: nothing more of ``client_id`` gets into the log.

        Each partition is mounted in its name, so that what is left of it on the way there is refused, and what was in
        flight has its fate. Returns the marks of all partitions: what that client ever appended is not above them.
        It must not run any more: a client that lives would mount again. PartitionNotReady after ``timeout`` seconds.
        """
        client_id, timeout = checked_client_id(client_id), checked_wait(timeout)
        first_ids = {partition: self.server_high_water_mark(partition) + 1 for partition in range(self._count)}
        subscription = self._engine.stand_in(client_id, first_ids, self._ready_changed)
        try:
            self._wait_for([*map(MountedWait, subscription.partitions.values())], timeout)
        finally:
            self._threads.call(self._engine.unsubscribe(subscription))
        return [self.server_high_water_mark(partition) for partition in range(self._count)]

    def hindrances(self) -> dict[int, str]:
        """Why partitions of this client take no appends just now, as their servers say; others are not in it.

        A server is asked when something has waited for ``hindrance_after_ms``; the log of the process says it, too.
        """
        return self._engine.hindrances()

    def statistics(self) -> dict[str, int]:
        """Counts since the start: ``appends`` (records), ``committed``, ``lock_conflicts``, ``retries`` (attempts
        repeated because the one before is not in the log), ``reconnects`` (mounts after a partition's first)."""
        return self._engine.statistics()

    def close(self) -> None:
        """Let go of everything; what has no fate yet fails with ClientClosed, whether or not it is in the log."""
        if "_engine" not in self.__dict__:
            return  # it came pickled and was never used
        if sys.is_finalizing():
            return  # in a ``__del__``: its threads have ended, which may have held any lock; the system does the rest
        if self._threads.on_loop:
            raise InvalidInput("close() was called in a future's callback, which it would wait for")
        if not self._engine.begin_to_close():
            return
        with ExitStack() as closing:  # all of it, after Ctrl-C, too: nobody can close the rest later
            closing.callback(self._directory.close)  # its session has the leases of cursors
            closing.callback(self._end_threads)
            self._stop_watching()

    def __enter__(self) -> WaltzClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- travelling

    def __reduce__(self) -> tuple[Callable[[Address], WaltzClient], tuple[Address]]:
        return _arrived, (travelling(self._address, self._has_callbacks),)

    if not TYPE_CHECKING:  # or a misspelt name would pass

        def __getattr__(self, name: str) -> Any:
            """Of a client that came pickled, which connects when it is first used."""
            if name.startswith("__") or "_connecting" not in self.__dict__:
                return object.__getattribute__(self, name)  # which raises
            with self._connecting:
                if "_engine" in self.__dict__:
                    return object.__getattribute__(self, name)  # another thread has connected
                address = self._address
                directory, transport = address.find()
                try:
                    self.__init__(
                        directory,
                        transport,
                        None,
                        address.config,
                        address.partitions,
                        find=address.find,
                        codec=address.codec,
                    )
                except BaseException:
                    self.__dict__.pop("_engine", None)  # it has ended: the next use connects once more
                    directory.close()
                    raise
                return object.__getattribute__(self, name)

    # ---- inside

    def _limited(self, outbox: Outbox, append: AppendCall, fate: LightFuture[T], timeout: float) -> Future[T]:
        """Send it; the answer comes within ``timeout`` seconds."""
        timeout = checked_timeout(timeout)
        end_s = time.monotonic() + timeout
        if not outbox.offer(append):
            self._threads.wait_for_room(outbox, append, timeout)
        expire = partial(expire_append, outbox, append, timeout)
        limit = TimeLimit(fate, "the append", timeout, expire, lambda: outbox.why)
        return limit.begin(self._threads.post, max(0.0, end_s - time.monotonic()))

    def _ready_changed(self) -> None:
        with self._ready:
            self._ready.notify_all()

    def _located(self, locations: Whereabouts) -> None:
        self._threads.post(self._engine.located, locations)

    def _fetch(self, partition_id: int, transaction_id: int) -> bytes:
        batch = self._threads.call(self._engine.rpc.read(partition_id, transaction_id, transaction_id + 1, READ_BYTES))
        return only_data(batch, partition_id, transaction_id)

    def _first_id_at(self, partition_id: int, time_ms: int) -> int:
        return self._threads.call(self._engine.rpc.first_id_at(partition_id, time_ms))

    def _times(self, partition_id: int, first_id: int, end_id: int) -> TimeMarks:
        return self._threads.call(self._engine.rpc.times(partition_id, first_id, end_id))

    def _read(self, partition_id: int, first_id: int, end_id: int, earliest: bool = False) -> Iterator[Transaction]:
        """``earliest``: from the first there is, if that is further on."""
        while first_id < end_id:
            try:
                batch = self._threads.call(self._engine.rpc.read(partition_id, first_id, end_id, READ_BYTES))
            except Trimmed as gone:
                first_id = begun_further_on(gone, earliest)
                continue
            if not len(batch):
                return
            earliest = False
            yield from transactions_of(batch, first_id - 1, self._engine.origin)
            first_id = batch.end_id

    def _end_threads(self) -> None:
        try:
            self._threads.stop(self._engine.shut_down())
        finally:
            self._ready_changed()
            self._engine.applier.stop()
            self._engine.runner.close()


async def _nothing() -> None:
    """There is nothing to be let go of."""


def _arrived(address: Address) -> WaltzClient:
    client = WaltzClient.__new__(WaltzClient)
    client.__dict__.update(_address=address, _has_callbacks=False, _connecting=threading.RLock())
    return client
