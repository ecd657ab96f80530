"""What a replica does with requests: no sockets, no threads, no clock of its own.

A *turn* is everything that was waiting in a socket. Appends are written in the order they came; one sync then covers
all of them and one cumulative ``Appended`` per partition and session reports it. Any other request of the turn
waits for that sync, so the order of effects is the order of requests and no answer runs ahead of the disk.

Other connections have turns of their own at the same time, and what this one has written they may cut (after opening
the session again, or a higher one) or find damaged before it is synced. So after the sync the log is asked whether
exactly these records are durable now, and what is not is refused, with the reason that holds at that moment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from waltz_ray.errors import DiskFull, InvalidInput, OutOfResources
from waltz_ray.protocol import trimming
from waltz_ray.protocol.ids import NO_SESSION, NO_TRANSACTION
from waltz_ray.protocol.messages.replica import (
    REPLICA_TYPES,
    Append,
    Appended,
    Begin,
    Begun,
    Close,
    Closed,
    ExcessFound,
    FindExcess,
    FindTime,
    LowWaterMarkSet,
    Open,
    Read,
    ReadTimes,
    Records,
    RefusalCode,
    Refused,
    ReplicaReply,
    ReplicaRequest,
    SetLowWaterMark,
    State,
    StateReply,
    TimeFound,
    Times,
    Truncate,
    Truncated,
)
from waltz_ray.protocol.placement import Assignment
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.spaces import SpaceTable, removable
from waltz_ray.protocol.times import joined_times
from waltz_ray.storage import order_rules as rules
from waltz_ray.storage.order_rules import OrderRefused
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.store import ReplicaStore

__all__ = ["ReplicaService"]

T = TypeVar("T")
_log = logging.getLogger(__name__)


class ReplicaService:
    """The protocol of one replica over its store. May be shared by the threads of several connections.

    Only the connection that opened a session last may change its partition. A server that lost a connection opens the
    same session again over a new one; without this rule an order of the old one, still in some buffer, could cut or
    extend the log after the server has been told where it ends.

    And only the owner that opened a session first may open it again. Two processes can believe that one session number
    is theirs only if ZooKeeper's record was misread; whoever comes second is refused, so they never both write. This is
    not on disk: after a restart the first to come is the owner, and the other one has lost its connection with the
    process and must open the session again before anything else.
    """

    def __init__(self, store: ReplicaStore, max_frame_bytes: int = 64 * 1024 * 1024) -> None:
        """No answer to a Read has more records than fit in half a frame (a single one may have more)."""
        self.store = store
        self.read_limit_bytes = max_frame_bytes // 2
        self._connections: dict[int, object] = {}  # that may change a partition
        self._owners: dict[int, str] = {}  # of the sessions that are open
        self._emptied: set[int] = set()  # partitions of which no file is left
        self._kept_small: set[int] = set()  # partitions whose segments are closed early
        self._guards = {partition_id: threading.Lock() for partition_id in store.partition_ids}

    def guard(self, partition_id: int) -> AbstractContextManager[object]:
        """While it is held nobody else opens the partition or changes it."""
        known = self._guards.get(partition_id)
        return self._guards.setdefault(partition_id, threading.Lock()) if known is None else known

    def follow(self, table: SpaceTable, assignment: Assignment) -> None:
        """Have as many partitions as the cluster, and no files of deleted spaces that no server has any more.

        Idempotent. DiskFull, OutOfResources, after all else was done: to be done again. SyncFailed: end the process.
        """
        gone = removable(table, assignment)
        shortages = self._empty(gone.intersection(self.store.partition_ids))  # first: it makes room, growing needs some
        with _noted(shortages):
            self.store.grow(table.partitions)
            shortages += self._empty(gone)
        if shortages:
            raise shortages[0]

    def _empty(self, gone: frozenset[int]) -> list[DiskFull | OutOfResources]:
        """What kept the files of some of these partitions."""
        shortages: list[DiskFull | OutOfResources] = []
        for partition_id in sorted(gone - self._emptied):
            with _noted(shortages):
                self.remove(partition_id)
                self._emptied.add(partition_id)
        return shortages

    def retain(self, table: SpaceTable, marks: Mapping[int, int]) -> None:
        """Drop what is below the trim marks, and close segments early where a space keeps little of its records.

        To be called from time to time. DiskFull, OutOfResources of some partition, after all others have had their
        turn: to be done again. SyncFailed.
        """
        shortages: list[DiskFull | OutOfResources] = []
        served = set(self.store.served_ids)
        for partition_id in served.intersection(marks):  # first: this makes room, and the rest needs some
            with _noted(shortages):
                log = self.store.partition(partition_id)
                if log.may_trim(marks[partition_id]):
                    log.trim(marks[partition_id])
        now_ms = self.store.now_ms()
        for space in table.present():
            early = trimming.closes_early(space.settings)
            of_space = served.intersection(space.partitions)
            if early:
                self._kept_small |= of_space
            for partition_id in of_space & self._kept_small:
                with _noted(shortages):
                    log = self.store.partition(partition_id)
                    limit = trimming.segment_limits(space.settings, sum(log.segment_sizes().values()))
                    log.keep_small(limit.most_bytes, None if limit.age_ms is None else now_ms - limit.age_ms)
                    if not early:  # as usual again
                        self._kept_small.discard(partition_id)
        if shortages:
            raise shortages[0]

    def remove(self, partition_id: int) -> None:
        """The partition's space has been deleted: its files go. What waits for the guard is refused then."""
        with self.guard(partition_id):
            self.store.remove(partition_id)
            self._connections.pop(partition_id, None)
            self._owners.pop(partition_id, None)

    def vacate(self, partition_id: int, published_session: int) -> bool:
        """Give up the records of a partition that was moved to other replicas; the fence stays.

        ``published_session``: the last one, in which this replica has no part. False, and nothing is changed, if it is
        not later than all that were opened here: whoever opened those may still write.
        """
        with self.guard(partition_id):
            if partition_id in self.store.removed:
                return True
            log = self.store.partition(partition_id)
            if log.fence_lost is None:
                if log.session_id >= published_session:
                    return False
                if log.last_id != NO_TRANSACTION or log.damaged is not None:
                    log.begin_at(log.session_id, 0)
            return True

    def handle(self, requests: Sequence[ReplicaRequest], connection: object = None) -> list[ReplicaReply]:
        """Do one turn of ``connection`` (any object that names it; by default all calls are one connection).

        Every request is answered, appends cumulatively. SyncFailed: end the process, answer nothing.
        """
        turn = _Turn(self, connection)
        for request in requests:
            turn.take(request)
        turn.settle()
        return turn.replies

    def open(self, log: PartitionLog, request: Open, connection: object) -> StateReply:
        """Accept a session; from now on its changes come over ``connection``."""
        with self.guard(log.partition_id):
            rules.check_there(self.store, log.partition_id)
            rules.check_owner(log, request, self._owners.get(log.partition_id))
            reply = _open(self.store, log, request)
            self._connections[log.partition_id] = connection
            self._owners[log.partition_id] = request.owner
            return reply

    def state(self, log: PartitionLog, request: State, connection: object) -> StateReply:
        """The partition's state; of a session only to the connection that opened it last, whom it tells that no
        higher one has been accepted."""
        with self.guard(log.partition_id):
            rules.check_there(self.store, log.partition_id)
            if request.session_id != NO_SESSION:
                self._check_change(log, request, connection)
            with log.standing_still():
                log.sync()
                return _state(log, request.session_id, log.session_id)  # others may append: it tells what is durable

    def change(
        self,
        log: PartitionLog,
        request: Append | Truncate | Begin | SetLowWaterMark,
        connection: object,
        action: Callable[[], T],
    ) -> T:
        """Run ``action`` if ``connection`` may; a session opened meanwhile waits until it is done."""
        with self.guard(log.partition_id):
            rules.check_there(self.store, log.partition_id)
            self._check_change(log, request, connection)
            with rules.refusing:
                return action()

    def _check_change(
        self, log: PartitionLog, request: State | Append | Truncate | Begin | SetLowWaterMark, connection: object
    ) -> None:
        rules.check_session(log, request)
        rules.check_connection(log, request, connection, self._connections.get(log.partition_id))


@dataclass
class _Written:
    """Appends of one partition and session in the log, not synced: ``line`` is what the log said at the first."""

    log: PartitionLog
    line: int
    last_id: int = NO_TRANSACTION
    appends: list[Append] = field(default_factory=list)


@contextmanager
def _noted(shortages: list[DiskFull | OutOfResources]) -> Iterator[None]:
    try:
        yield
    except (DiskFull, OutOfResources) as shortage:
        shortages.append(shortage)


class _Turn:
    """Appends not yet written (``_waiting``: one partition, one session) and not yet synced (``_written``)."""

    def __init__(self, service: ReplicaService, connection: object) -> None:
        self._service = service
        self._connection = connection
        self._store = service.store
        self.replies: list[ReplicaReply] = []
        self._waiting: list[Append] = []
        self._written: dict[tuple[int, int], _Written] = {}

    def take(self, request: ReplicaRequest) -> None:
        if isinstance(request, Append):
            if self._waiting and not _follows(self._waiting[-1], request):
                self._write()
            self._waiting.append(request)
            return
        self.settle()
        try:
            self.replies.append(self._answer(request))
        except OrderRefused as no:
            self.replies.append(self._refusal(request, no))

    def _answer(
        self,
        request: Open | State | Read | ReadTimes | FindTime | FindExcess | Truncate | Begin | SetLowWaterMark | Close,
    ) -> ReplicaReply:
        log = _log_of(self._store, request)
        partition_id, session_id = request.partition_id, request.session_id
        if isinstance(request, Open):
            return self._service.open(log, request, self._connection)
        if isinstance(request, State):
            return self._service.state(log, request, self._connection)
        if isinstance(request, Read):
            return _read(log, request, min(request.max_bytes, self._service.read_limit_bytes))
        if isinstance(request, ReadTimes):
            return _read_times(log, request)
        if isinstance(request, FindTime):
            return _find_time(log, request)
        if isinstance(request, FindExcess):
            return _find_excess(log, request, self._store.now_ms())
        if isinstance(request, Begin):
            begin_id = request.first_id
            self._service.change(log, request, self._connection, lambda: log.begin_at(session_id, begin_id))
            return Begun(partition_id, session_id, begin_id)
        if isinstance(request, Truncate):
            cut_id = request.last_id
            self._service.change(log, request, self._connection, lambda: log.truncate(session_id, cut_id))
            return Truncated(partition_id, session_id, log.last_id)
        if isinstance(request, SetLowWaterMark):
            marks = request.low_water_mark, request.local_low_water_mark
            self._service.change(log, request, self._connection, lambda: log.set_low_water_mark(session_id, *marks))
            return LowWaterMarkSet(partition_id, session_id)
        rules.check_session(log, request)
        log.sync()
        return Closed(partition_id, session_id)

    def settle(self) -> None:
        """Write what waits, sync all of it at once, acknowledge."""
        self._write()
        self._acknowledge()

    def _acknowledge(self) -> None:
        if not self._written:
            return
        self._store.sync(dict.fromkeys(partition_id for partition_id, _ in self._written))
        for (partition_id, session_id), written in self._written.items():
            if written.log.is_durable(session_id, written.line, written.last_id):
                self.replies.append(Appended(partition_id, session_id, written.last_id))
            else:
                no = rules.taken_away(written.log, session_id)
                self.replies += [self._refusal(append, no) for append in written.appends]
        self._written = {}

    def _write(self) -> None:
        appends, self._waiting = self._waiting, []
        if not appends:
            return
        first = appends[0]
        try:
            log = _log_of(self._store, first)
            batch = _merge(appends)
            line = self._service.change(log, first, self._connection, lambda: log.append(first.session_id, batch))
        except OrderRefused as no:
            self._acknowledge()  # what came before these is answered before them
            self.replies += [self._refusal(append, no) for append in appends]
        else:
            key = first.partition_id, first.session_id
            written = self._written.get(key) or self._written.setdefault(key, _Written(log, line))
            written.last_id = batch.last_id
            written.appends += appends

    def _refusal(self, request: ReplicaRequest, no: OrderRefused) -> Refused:
        current, last_id = NO_SESSION, NO_TRANSACTION
        if no.code not in (RefusalCode.UNKNOWN_PARTITION, RefusalCode.WRONG_CLUSTER):
            try:
                log = self._store.partition(request.partition_id)
                current, last_id = log.session_id, log.last_id  # -1 where the control entry is lost: nothing is known
            except (OutOfResources, InvalidInput):
                pass  # not recovered yet, or removed meanwhile, so nothing is known
        last_id = last_id if no.last_id is None else no.last_id
        kind = REPLICA_TYPES[type(request)]
        return Refused(request.partition_id, request.session_id, kind, no.code, current, last_id, no.message)


def _follows(before: Append, request: Append) -> bool:
    """Whether both can go into one write."""
    return (
        before.partition_id == request.partition_id
        and before.session_id == request.session_id
        and before.first_id + len(before.lengths) == request.first_id
    )


def _merge(appends: list[Append]) -> RecordBatch:
    if len(appends) == 1:
        return appends[0].batch
    lengths = np.concatenate([append.lengths for append in appends])
    records = b"".join(append.records for append in appends)
    times = joined_times([append.times for append in appends])
    return RecordBatch(appends[0].partition_id, appends[0].first_id, lengths, records, times=times)


def _log_of(store: ReplicaStore, request: ReplicaRequest) -> PartitionLog:
    rules.check_there(store, request.partition_id)
    with rules.refusing:
        log = store.partition(request.partition_id)
        if not isinstance(request, Open):
            log.check_fence()
        return log


def _open(store: ReplicaStore, log: PartitionLog, request: Open) -> StateReply:
    if request.cluster_key != store.cluster_key:
        raise OrderRefused(
            RefusalCode.WRONG_CLUSTER,
            # Whoever does not have the key is told nothing from which it could be learned.
            f"this replica belongs to another cluster than the one with key {request.cluster_key}; "
            "is the server's ZooKeeper the right one?",
        )
    if log.fence_lost is not None and request.joined_session_id == NO_SESSION:
        return _open_anew(log, request)
    with rules.refusing:
        log.check_fence()
    rules.check_files(log, request, store.directory)
    with log.standing_still(), rules.refusing_open:
        previous = log.open_session(request.session_id)
        return _state(log, request.session_id, previous)


def _open_anew(log: PartitionLog, request: Open) -> StateReply:
    """The fence is lost, and ZooKeeper says that nobody counts on what this replica has: it may begin empty."""
    _log.warning("%s; it has joined no session, so session %d makes it anew", log.fence_lost, request.session_id)
    with log.standing_still(), rules.refusing_open:
        log.make_anew(request.session_id)
        return _state(log, request.session_id, NO_SESSION)


def _state(log: PartitionLog, session_id: int, previous_session_id: int) -> StateReply:
    """Of a log that stands still: a reader that finds damage in between would make it a vote for a shorter log, as if
    that were whole."""
    marks = log.low_water_mark, log.local_low_water_mark
    damaged = log.damaged is not None
    return StateReply(log.partition_id, session_id, previous_session_id, *marks, log.synced_id, damaged)


def _readable_end(log: PartitionLog, request: ReadTimes | FindTime | FindExcess) -> int:
    """One past the last record of which may be told: a session everything, anybody what is known to be committed."""
    if request.session_id == NO_SESSION:
        return log.low_water_mark + 1
    rules.check_session(log, request)
    return log.last_id + 1


def _read_times(log: PartitionLog, request: ReadTimes) -> Times:
    end_id = min(request.end_id, _readable_end(log, request))
    with rules.refusing:
        end_id, times = log.times().marks(request.first_id, end_id)
    return Times(request.partition_id, request.session_id, end_id, times)


def _find_time(log: PartitionLog, request: FindTime) -> TimeFound:
    end_id = _readable_end(log, request)
    with rules.refusing:
        first_id = log.times().first_id_at(request.time_ms)
    return TimeFound(request.partition_id, request.session_id, min(first_id, end_id))


def _find_excess(log: PartitionLog, request: FindExcess, now_ms: int) -> ExcessFound:
    end_id = _readable_end(log, request)
    oldest_ms = None if request.age_ms < 0 else now_ms - request.age_ms
    with rules.refusing:
        first_id = log.excess(oldest_ms, None if request.most_bytes < 0 else request.most_bytes)
    return ExcessFound(request.partition_id, request.session_id, min(first_id, end_id))


def _read(log: PartitionLog, request: Read, max_bytes: int) -> Records:
    """A session reads all it has; anybody (session -1) what is known to be committed: up to the low-water mark."""
    end_id = request.end_id
    if request.session_id == NO_SESSION:
        end_id = min(end_id, log.low_water_mark + 1)
    else:
        rules.check_session(log, request)
        if end_id > log.synced_id + 1:
            log.sync()  # another replica may store what we answer, so it must be durable here first
            end_id = min(end_id, log.synced_id + 1)  # others may append meanwhile
    with rules.refusing:
        batch = log.read(request.first_id, end_id, max_bytes)
    return Records(request.partition_id, request.session_id, batch.first_id, batch.lengths, batch.records)
