"""Runs one partition machine: hands it events, carries its effects out, feeds the answers back as events.

No decision is made here. Events queue while an effect is being carried out, so the machine is never re-entered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from waltz_ray.actors.replica_link import BULK_READ_BYTES, ReplicaLink
from waltz_ray.actors.watchdog import SLOW_S, Watchdog
from waltz_ray.config import ServerConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import ReplicaRefused, VersionConflict, ZooKeeperUnreachable
from waltz_ray.protocol.partition import Partition, Stage
from waltz_ray.protocol.partition_record import PartitionRecord
from waltz_ray.protocol.partition_types import (
    AppendReceived,
    ConfirmSession,
    Effect,
    EndTurnAgain,
    Event,
    FeedAgain,
    FeedDue,
    FeedRead,
    FeedReadFailed,
    PartitionDropped,
    PartitionReady,
    ReadFeed,
    ReadRecord,
    RecordRead,
    SendFeed,
    SendMessage,
    ServerMessage,
    TurnEnded,
)
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.retained import joined, limited
from waltz_ray.protocol.session_types import (
    AppendToReplicas,
    OpenReplica,
    RangeRead,
    RangeReadFailed,
    ReadRange,
    RecordConflict,
    RecordWritten,
    SetLowWaterMark,
    StartTimer,
    TimerFired,
    TruncateReplica,
    Warn,
    WriteRecord,
)
from waltz_ray.wire.batches import FeedBatch, FeedMode, FeedRecords
from waltz_ray.wire.replica_messages import Read, append_frame_parts

__all__ = ["Host", "PartitionDriver"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_ZOOKEEPER_RETRY_S = 0.2


class Host(Protocol):
    """What a partition needs of the server it is on."""

    config: ServerConfig
    queue: Pool
    store: ClusterStore
    incarnation: str  # of this process
    links: dict[int, ReplicaLink]
    watchdog: Watchdog

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        """Run a blocking call (ZooKeeper) off the loop."""

    def send(self, connection_id: int, message: ServerMessage) -> None:
        """To one client connection; nothing happens if it is gone."""

    def send_feed(self, connection_ids: tuple[int, ...], message: FeedBatch | FeedRecords) -> None:
        """To several, encoded once."""

    def end_turn_of(self, driver: PartitionDriver) -> None:
        """Call ``driver.end_turn`` when everything that is waiting in the sockets has been handed over."""

    def feed_turn_of(self, driver: PartitionDriver) -> None:
        """Call ``driver.feed_turn`` after other input, and the other partitions that have asked, had their turn."""

    def fatal(self, message: str) -> None:
        """End the process: its memory cannot be trusted; the next session takes everything from the disks."""


class PartitionDriver:
    """See the module's docstring. All methods run in the event loop."""

    def __init__(self, partition_id: int, host: Host) -> None:
        self.partition_id = partition_id
        self.machine = Partition(partition_id, host.config, host.queue, host.incarnation)
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._stepping = False
        self._turn_scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._ready: list[asyncio.Future[None]] = []

    def handle(self, event: Event) -> None:
        """One fact; everything that follows from it is carried out before this returns (or has been started)."""
        self._events.append(event)
        if isinstance(event, AppendReceived):
            self._schedule_end_of_turn()
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                event, started = self._events.popleft(), time.monotonic()
                for effect in self.machine.step(event):
                    self._carry_out(effect)
                if (seconds := time.monotonic() - started) > SLOW_S:
                    self._host.watchdog.slow(f"partition {self.partition_id}: {type(event).__name__}", seconds)
        except Exception:
            # Half a step done: whatever this partition said from here on could be wrong.
            log.exception("partition %d: a step of its machine failed", self.partition_id)
            self._host.fatal(f"partition {self.partition_id}: a step of its machine failed")
            raise
        finally:
            self._stepping = False

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def read(self, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        """Committed records from ``first_id`` (at least one, which must exist), from memory or a member replica."""
        recent = self.machine.recent(first_id, end_id, max_bytes)
        if recent:
            return limited(joined(recent), max_bytes)
        return await self._read_from_replicas(first_id, min(end_id, self.machine.high_water_mark + 1), max_bytes)

    # ---- effects ----------------------------------------------------------------------------------------

    def _schedule_end_of_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._host.end_turn_of(self)

    def end_turn(self) -> None:
        self._turn_scheduled = False
        self.handle(TurnEnded())

    def feed_turn(self) -> None:
        self.handle(FeedDue())

    def _carry_out(self, effect: Effect) -> None:
        links, me = self._host.links, self.partition_id
        match effect:
            case AppendToReplicas(session_id, replica_ids, batch):
                frame = b"".join(append_frame_parts(me, session_id, batch))
                for replica_id in replica_ids:
                    links[replica_id].append(me, session_id, batch.last_id, frame)
            case EndTurnAgain():
                self._schedule_end_of_turn()
            case FeedAgain():
                self._host.feed_turn_of(self)
            case SendFeed(connection_ids, mode, batch):
                self._host.send_feed(connection_ids, _feed_message(mode, batch))
            case SendMessage(connection_id, message):
                self._host.send(connection_id, message)
            case ReadFeed():
                self._spawn(self._read_feed(effect))
            case OpenReplica(session_id, replica_id, joined_session_id, owner):
                links[replica_id].open(me, session_id, joined_session_id, owner)
            case ConfirmSession(session_id, replica_ids, number):
                for replica_id in replica_ids:
                    links[replica_id].confirm(me, session_id, number)
            case TruncateReplica(session_id, replica_id, last_id):
                links[replica_id].truncate(me, session_id, last_id)
            case SetLowWaterMark(session_id, replica_id, low_water_mark):
                links[replica_id].set_low_water_mark(me, session_id, low_water_mark)
            case ReadRange():
                self._spawn(self._read_range(effect))
            case WriteRecord(session_id, record, version):
                self._spawn(self._write_record(session_id, record, version))
            case ReadRecord():
                self._spawn(self._read_record())
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

    async def _read_record(self) -> None:
        while self.machine.stage is not Stage.IDLE:
            try:
                record, version = await self._host.in_thread(partial(self._host.store.partition, self.partition_id))
            except ZooKeeperUnreachable as error:
                log.warning("partition %d: cannot read its record, trying again: %s", self.partition_id, error)
                await asyncio.sleep(_ZOOKEEPER_RETRY_S)
                continue
            self.handle(RecordRead(record, version))
            return

    async def _write_record(self, session_id: int, record: PartitionRecord, version: int) -> None:
        """Compare-and-set. After a lost answer, reading tells whether the write happened."""
        unsure = False
        while self.machine.stage is not Stage.IDLE:
            try:
                if unsure:
                    stored, stored_version = await self._host.in_thread(
                        partial(self._host.store.partition, self.partition_id)
                    )
                    if record.has_replaced(version, stored, stored_version):
                        self.handle(RecordWritten(session_id, stored_version))
                        return
                write = partial(self._host.store.set_partition, self.partition_id, record, version)
                written = await self._host.in_thread(write)
            except VersionConflict:
                self.handle(RecordConflict(session_id))
                return
            except ZooKeeperUnreachable as error:
                log.warning("partition %d: cannot write its record, trying again: %s", self.partition_id, error)
                unsure = True
                await asyncio.sleep(_ZOOKEEPER_RETRY_S)
                continue
            self.handle(RecordWritten(session_id, written))
            return

    # ---- reads ------------------------------------------------------------------------------------------

    async def _read_range(self, order: ReadRange) -> None:
        limit = self._answer_limit(min(order.max_bytes, BULK_READ_BYTES))
        request = Read(self.partition_id, order.session_id, order.first_id, order.end_id, limit)
        try:
            batch = await self._host.links[order.source_id].read(request)
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
        """What a read may ask for: a longer answer than a frame may have would end the link, again and again."""
        return min(max_bytes, self._host.config.max_frame_bytes // 2)

    async def _read_from_replicas(self, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        """From the first member that can; ReplicaRefused or ConnectionError of the last one that cannot."""
        session = self.machine.session
        if session is None:
            raise ConnectionError(f"partition {self.partition_id} is between two sessions")
        error: ReplicaRefused | ConnectionError = ConnectionError("no member replica")
        max_bytes = self._answer_limit(max_bytes)
        # Spread the partitions' reads over the members.
        members = sorted(session.members, key=lambda r: (r - self.partition_id) % len(self._host.links))
        for replica_id in members:
            request = Read(self.partition_id, session.session_id, first_id, end_id, max_bytes)
            try:
                return await self._host.links[replica_id].read(request)
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
