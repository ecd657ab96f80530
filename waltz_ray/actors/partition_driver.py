"""Runs one partition machine: hands it events, carries its effects out, feeds the answers back as events.

No decision is made here. Events queue while an effect is being carried out, so the machine is never re-entered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol, TypeVar

from waltz_ray.actors.copy_pace import CopyPace
from waltz_ray.actors.replica_link import BULK_READ_BYTES, ReplicaOrders
from waltz_ray.actors.turns import Turns
from waltz_ray.config import ServerConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import CoordinationError, ReplicaRefused, VersionConflict, ZooKeeperUnreachable
from waltz_ray.protocol import trimming
from waltz_ray.protocol.messages.client import FeedBatch, FeedMode, FeedRecords
from waltz_ray.protocol.messages.replica import FindExcess, FindTime, Read, ReadTimes
from waltz_ray.protocol.partition.events import (
    HEAVY,
    AppendReceived,
    ConfirmSession,
    CreditReceived,
    Effect,
    EndTurn,
    Event,
    FeedAgain,
    FeedDue,
    FeedRead,
    FeedReadFailed,
    PartitionDropped,
    PartitionReady,
    ReadFeed,
    ReadRoster,
    RosterRead,
    SendFeed,
    SendMessage,
    ServerMessage,
    TurnEnded,
)
from waltz_ray.protocol.partition.hindrance import ZOOKEEPER_IS_SILENT
from waltz_ray.protocol.partition.machine import Partition
from waltz_ray.protocol.partition.state import Stage
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.retained import RetainedMemory, joined, limited
from waltz_ray.protocol.roster_write import RosterWrite
from waltz_ray.protocol.session_types import (
    AppendToReplicas,
    BeginReplica,
    OpenReplica,
    RangeRead,
    RangeReadFailed,
    ReadRange,
    ReplicaAppended,
    RosterConflict,
    RosterWritten,
    SetReplicaMark,
    StartTimer,
    TimerFired,
    TruncateReplica,
    Warn,
    WriteRoster,
)
from waltz_ray.protocol.times import TimeMarks, times_within
from waltz_ray.runtime.driver import Driver
from waltz_ray.runtime.measures import AppendStages, Measures
from waltz_ray.runtime.watchdog import Watchdog
from waltz_ray.wire.codec import BATCH_VERSION, encode_client
from waltz_ray.wire.feed_data import feed_data_frames
from waltz_ray.wire.framing import MAGIC_CLIENT, encode_frame
from waltz_ray.wire.replica_codec import append_frame_parts
from waltz_ray.wire.time_columns import TIME_MARK_BYTES

__all__ = ["Connection", "Drivers", "Host", "PartitionDriver"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_ZOOKEEPER_RETRY_S = 0.2
_UNUSABLE_RETRY_S = 2.0  # what a person has to put right

_NOTHING_IS_COMMITTED_BY = frozenset((AppendReceived, TurnEnded, FeedDue, FeedRead, CreditReceived))


class Connection(Protocol):
    """What a partition needs of a client's connection."""

    version: int

    def deliver(self, message: ServerMessage) -> None:
        """What the partition's machine tells this client."""

    def deliver_feed(self, message: FeedBatch | FeedRecords, frames: bytes) -> None:
        """A feed message; ``frames`` is its encoding in ``version``, shared with other connections."""


class Host(Protocol):
    """What a partition needs of the server it is on."""

    config: ServerConfig
    queue: Pool
    retained: RetainedMemory
    store: ClusterStore
    incarnation: str  # of this process
    links: dict[int, ReplicaOrders]
    turns: Turns
    copying: CopyPace
    watchdog: Watchdog
    measures: Measures
    now_ms: Callable[[], int]  # the wall clock

    @property
    def connections(self) -> Mapping[int, Connection]:
        """The clients' connections that have said HELLO and are not gone, by number."""

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        """Run a blocking call (ZooKeeper) off the loop."""

    def fatal(self, message: str) -> None:
        """End the process: its memory cannot be trusted; the next session takes everything from the disks."""


class PartitionDriver(Driver[Event, Effect]):
    """Runs one partition's machine on its server; all methods run in the event loop."""

    machine: Partition

    def __init__(self, partition_id: int, host: Host) -> None:
        machine = Partition(partition_id, host.config, host.queue, host.incarnation, host.retained)
        super().__init__(f"partition {partition_id}", machine, self._order, host.fatal, host.watchdog, HEAVY)
        self.partition_id = partition_id
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._zookeeper_trouble = ""
        self._stages = AppendStages(host.measures)

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def handle(self, event: Event) -> None:
        """As every driver; and what it means for appends on their way is measured."""
        kind = type(event)
        if kind in _NOTHING_IS_COMMITTED_BY:  # most events are such, or acknowledgements
            super().handle(event)
            return
        if kind is ReplicaAppended:
            assert isinstance(event, ReplicaAppended)
            self._stages.acknowledged(event.last_id)
            super().handle(event)
        else:
            super().handle(event)
            self._stages.stage(self.machine.stage)
        if self._stages.waiting:
            self._stages.committed(self.machine.high_water_mark, self.machine.subscribers)

    async def read(self, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        """Committed records from ``first_id`` (at least one, which must exist), from memory or a member replica."""
        recent = self.machine.recent(first_id, end_id, max_bytes)
        if recent:
            return limited(joined(recent), max_bytes)
        return await self._read_from_replicas(first_id, min(end_id, self.machine.high_water_mark + 1), max_bytes)

    async def times(self, first_id: int, end_id: int) -> tuple[int, TimeMarks]:
        """(end, marks): when the records [first_id, end) were appended, up to ``end_id`` or fewer.

        Raises what ``read`` does.
        """
        # Of each transaction one mark at the most, so the answer fits.
        most = self._host.config.max_frame_bytes // 2 // TIME_MARK_BYTES
        end_id = min(end_id, self.machine.high_water_mark + 1, first_id + most)
        known = await self._ask_replicas(
            lambda link, session_id: link.times(ReadTimes(self.partition_id, session_id, first_id, end_id))
        )
        return known.end_id, known.times

    async def first_id_at(self, time_ms: int) -> int:
        """The first committed record that may have been appended at ``time_ms`` or later, or the next one that will be.

        Raises what ``read`` does.
        """
        found = await self._ask_replicas(
            lambda link, session_id: link.find_time(FindTime(self.partition_id, session_id, time_ms))
        )
        if not self.machine.ready:  # what is committed is not known any more: anything would seem to be before it
            raise ConnectionError(f"partition {self.partition_id} has left this server while replicas were asked")
        return max(self.machine.trim_mark, min(found, self.machine.high_water_mark + 1))

    async def excess(self, age_ms: int, most_bytes: int) -> int:
        """The first committed record to keep, if records older than ``age_ms`` may go, and what is more than
        ``most_bytes`` of segments (-1 = whatever that is): the lowest that any member says, by its own clock and disk.

        Raises what ``read`` does, if a member does not answer.
        """
        session_id, members = self.machine.sources()
        if not members:
            raise ConnectionError(f"partition {self.partition_id} has no member replica just now")
        question = FindExcess(self.partition_id, session_id, age_ms, most_bytes)
        found = await asyncio.gather(*(self._host.links[replica_id].find_excess(question) for replica_id in members))
        return min(*found, trimming.highest_mark(self.machine.high_water_mark))

    def hindrance(self) -> str:
        """What keeps the partition from taking appends, one line for people; "" if nothing does."""
        return self.machine.hindrance(self._zookeeper_trouble)

    # ---- effects ----------------------------------------------------------------------------------------

    def end_turn(self) -> None:
        """What waited in the sockets has been handed over."""
        self._stages.turn_began()
        self.handle(TurnEnded(self._host.now_ms()))
        self._stages.turn_ended()

    def feed_turn(self) -> None:
        """Other input, and the partitions that asked before, had their turn."""
        self.handle(FeedDue())

    def _order(self, effect: Effect) -> None:
        links, me = self._host.links, self.partition_id
        match effect:
            case AppendToReplicas(session_id, replica_ids, batch):
                self._stages.sent(batch.last_id, len(batch), batch.size_bytes)
                frame = b"".join(append_frame_parts(me, session_id, batch))
                for replica_id in replica_ids:
                    links[replica_id].append(me, session_id, batch.last_id, frame)
            case SendMessage(connection_id, message):
                connection = self._host.connections.get(connection_id)
                if connection is not None:  # else nobody is there any more to be told
                    connection.deliver(message)
                self._stages.told(message)
            case EndTurn():
                self._stages.arrived()
                self._host.turns.end_turn_of(self)
            case FeedAgain():
                self._host.turns.feed_turn_of(self)
            case SendFeed(connection_ids, mode, batch):
                self._send_feed(connection_ids, _feed_message(mode, batch))
                self._stages.fed(batch.last_id, self.machine.high_water_mark)
            case ReadFeed():
                self._spawn(self._read_feed(effect))
            case OpenReplica(session_id, replica_id, joined_session_id, owner):
                links[replica_id].open(me, session_id, joined_session_id, owner)
            case ConfirmSession(session_id, replica_ids, number):
                for replica_id in replica_ids:
                    links[replica_id].confirm(me, session_id, number)
            case TruncateReplica(session_id, replica_id, last_id):
                links[replica_id].truncate(me, session_id, last_id)
            case BeginReplica(session_id, replica_id, first_id):
                links[replica_id].begin(me, session_id, first_id)
            case SetReplicaMark(session_id, replica_id, low_water_mark):
                links[replica_id].set_low_water_mark(me, session_id, low_water_mark)
            case ReadRange():
                self._spawn(self._read_range(effect))
            case WriteRoster():
                self._spawn(self._write_roster(effect))
            case ReadRoster():
                self._spawn(self._read_roster())
            case StartTimer(session_id, name, delay_ms):
                self._start_timer(TimerFired(session_id, name), delay_ms)
            case Warn(_, message):
                log.warning("%s", message)
            case PartitionReady(generation, session_id, high_water_mark):
                log.info(
                    "partition %d: session %d of generation %d is open at %d",
                    me,
                    session_id,
                    generation,
                    high_water_mark,
                )
            case PartitionDropped(reason):
                log.info("partition %d: dropped: %s", me, reason)

    def _send_feed(self, connection_ids: tuple[int, ...], message: FeedBatch | FeedRecords) -> None:
        """To several connections, encoded once for each version."""
        connections, encoded = self._host.connections, dict[int, bytes]()
        for connection_id in connection_ids:
            connection = connections.get(connection_id)
            if connection is not None:
                version = connection.version
                if version not in encoded:
                    encoded[version] = _feed_frames(version, message)
                connection.deliver_feed(message, encoded[version])

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # An effect that ends in no event would leave the machine waiting for ever.
            log.error("partition %d: an effect failed", self.partition_id, exc_info=task.exception())
            self._host.fatal(f"partition {self.partition_id}: an effect failed: {task.exception()}")

    def _start_timer(self, fired: TimerFired, delay_ms: int) -> None:
        def fire() -> None:
            self._timers.discard(handle)
            self.handle(fired)

        handle = self._loop.call_later(delay_ms / 1000, fire)
        self._timers.add(handle)

    # ---- ZooKeeper: waits for it as long as it takes ------------------------------------------------------

    async def _read_roster(self) -> None:
        while self.machine.stage is not Stage.IDLE:
            try:
                roster, version = await self._host.in_thread(partial(self._host.store.roster, self.partition_id))
            except CoordinationError as error:
                await self._pause_after("read", error)
                continue
            self._zookeeper_trouble = ""
            self.handle(RosterRead(roster, version))
            return

    async def _write_roster(self, order: WriteRoster) -> None:
        write, store = RosterWrite(order.session_id, order.roster, order.version), self._host.store
        answer: RosterWritten | RosterConflict | None = None
        while self.machine.stage is not Stage.IDLE and answer is None:
            try:
                if write.must_look:
                    answer = write.found(*await self._host.in_thread(partial(store.roster, self.partition_id)))
                else:
                    attempt = partial(store.set_roster, self.partition_id, order.roster, order.version)
                    answer = write.written(await self._host.in_thread(attempt))
            except VersionConflict:
                answer = RosterConflict(order.session_id)
            except CoordinationError as error:
                write.unanswered()
                await self._pause_after("write", error)
        if answer is not None:
            self._zookeeper_trouble = ""
            self.handle(answer)

    async def _pause_after(self, what: str, error: CoordinationError) -> None:
        """A node that cannot be used is no reason to end: the next server would end, too, with all its partitions."""
        log.warning("partition %d: cannot %s its roster, trying again: %s", self.partition_id, what, error)
        silent = isinstance(error, ZooKeeperUnreachable)
        self._zookeeper_trouble = ZOOKEEPER_IS_SILENT if silent else f"its roster in ZooKeeper cannot be used: {error}"
        await asyncio.sleep(_ZOOKEEPER_RETRY_S if silent else _UNUSABLE_RETRY_S)

    # ---- reads ------------------------------------------------------------------------------------------

    async def _read_range(self, order: ReadRange) -> None:
        limit = self._answer_limit(min(order.max_bytes, BULK_READ_BYTES))
        request = Read(self.partition_id, order.session_id, order.first_id, order.end_id, limit)
        running = self.machine.session
        if running is not None and running.session_id == order.session_id:  # else everybody waits for this copy
            await self._host.copying.wait()
        try:
            link = self._host.links[order.source_id]
            batch = await link.read(request)
            self._host.copying.copied(batch.size_bytes, self._loop.time())
            if not batch.times:  # the copy is as old as its source
                known = await link.times(ReadTimes(self.partition_id, order.session_id, batch.first_id, batch.end_id))
                batch.times = times_within(known.times, batch.first_id, batch.end_id)
        except (ReplicaRefused, ConnectionError) as error:
            self.handle(RangeReadFailed(order.session_id, order.source_id, order.target_id, str(error)))
            return
        self.handle(RangeRead(order.session_id, order.source_id, order.target_id, batch))

    async def _read_feed(self, order: ReadFeed) -> None:
        try:
            batch = await self._read_from_replicas(order.first_id, order.end_id, order.max_bytes)
        except (ReplicaRefused, ConnectionError) as error:
            self.handle(FeedReadFailed(order.connection_id, order.client_id, str(error)))
            return
        self.handle(FeedRead(order.connection_id, order.client_id, batch))

    def _answer_limit(self, max_bytes: int) -> int:
        """What a read may ask for: a single record that is longer comes all the same."""
        return min(max_bytes, self._host.config.max_frame_bytes // 2)

    async def _read_from_replicas(self, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        limit = self._answer_limit(max_bytes)
        return await self._ask_replicas(
            lambda link, session_id: link.read(Read(self.partition_id, session_id, first_id, end_id, limit))
        )

    async def _ask_replicas(self, ask: Callable[[ReplicaOrders, int], Awaitable[T]]) -> T:
        """The answer of the first member that can; ReplicaRefused or ConnectionError of the last one that cannot."""
        session_id, sources = self.machine.sources()
        error: ReplicaRefused | ConnectionError = ConnectionError(
            f"partition {self.partition_id} has no member replica just now"
        )
        for replica_id in sources:
            try:
                return await ask(self._host.links[replica_id], session_id)
            except (ReplicaRefused, ConnectionError) as refusal:
                error = refusal
        raise error


def _feed_message(mode: FeedMode, batch: RecordBatch) -> FeedBatch | FeedRecords:
    if mode is FeedMode.RECORDS:
        return FeedRecords(batch)
    fields = batch.fields
    return FeedBatch(
        batch.partition_id,
        batch.first_id,
        fields["client_id"],
        fields["generation"],
        fields["sequence_number"],
        fields["header"],
    )


def _feed_frames(version: int, message: FeedBatch | FeedRecords) -> bytes:
    if version < BATCH_VERSION:
        assert isinstance(message, FeedBatch)
        return feed_data_frames(version, message)
    return encode_frame(MAGIC_CLIENT, version, *encode_client(version, message))


class Drivers(dict[int, PartitionDriver]):
    """The drivers of a server's partitions. Every partition of the cluster has one from the moment somebody asks for
    it: one that is not assigned here is idle, and says so."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host

    def __missing__(self, partition_id: int) -> PartitionDriver:
        driver = self[partition_id] = PartitionDriver(partition_id, self._host)
        return driver
