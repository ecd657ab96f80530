"""One partition of one client: find its server, mount, append, take fates and feed, and again when that ends.

::

    LOCATING --endpoint known--> MOUNTING --MOUNTED(READY)--> READY
       ^                            |                           |
       +------ back-off ------------+------ stream lost, NOT_READY, moved, rewind
                                    +--MOUNTED(CLIENT_AHEAD)--> AHEAD (for a person; nothing is appended any more)

Appends are sent in READY only. What was sent and has no fate when a mount ends stays with the monitor until the
next MOUNTED(READY), which fails the rest: only then is it known what is in the log. A partition is mounted from
``position``, the last transaction handed to its sink, so nothing is skipped and nothing handed over twice.

Everything here happens on the IO thread; only the ``Outbox`` is shared.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

import numpy as np

from waltz_ray.client.directory import Location
from waltz_ray.client.fates import Completion, ContextFates, Fates
from waltz_ray.client.mount_stream import MountMessage, MountStream
from waltz_ray.client.outbox import Outbox
from waltz_ray.client.stream import StreamPool
from waltz_ray.config import ClientConfig
from waltz_ray.errors import ClientAhead, PartitionNotReady, WaltzError, WireError
from waltz_ray.net.backoff import Backoff
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import (
    AppendedBatch,
    FeedBatch,
    FeedCredit,
    FeedMode,
    FeedRecords,
    LockFailureBatch,
    Mount,
    Mounted,
    Rejected,
    RejectionCode,
    Unmount,
)
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.records import Int32s, Int64s, RecordBatch

__all__ = ["Partition", "PartitionState", "Sink"]

logger = logging.getLogger(__name__)

_NOTHING_PENDING = -2  # client mark in OWN mode: begin at the server's mark
_MOUNT_IS_GONE = (
    RejectionCode.WRONG_GENERATION,
    RejectionCode.NOT_MOUNTED,
    RejectionCode.SUPERSEDED,
    RejectionCode.CLOSING,
)


class PartitionState(Enum):
    LOCATING = "locating"
    MOUNTING = "mounting"
    READY = "ready"
    AHEAD = "client ahead"


class Sink(ContextFates, Protocol):
    """Who takes the feed of a partition. Called on the IO thread; must not block."""

    def deliver(
        self, feed: RecordBatch | FeedBatch | None, completions: Sequence[Completion], frame_bytes: int, epoch: int
    ) -> None:
        """Transactions that follow those delivered before, and contexts that have committed in or before them.

        ``Partition.give_credit(frame_bytes)`` has to be called when they are applied, or dropped because
        ``epoch`` is from before a rewind.
        """

    def ready_changed(self) -> None:
        """``Partition.state`` may have changed."""

    def client_ahead(self, error: ClientAhead) -> None:
        """The partition will not be served before a person has looked at it."""


class Partition:
    """See the module. ``position`` is the ID of the last transaction the sink has (RECORDS and HEADERS modes)."""

    def __init__(
        self,
        partition_id: int,
        client_id: int,
        mode: FeedMode,
        position: int,
        config: ClientConfig,
        streams: StreamPool[MountStream],
        outbox: Outbox,
        sink: Sink,
    ) -> None:
        self.partition_id = partition_id
        self.client_id = client_id
        self.state = PartitionState.LOCATING
        self.trouble: Exception | None = None
        self.error: ClientAhead | None = None
        self.position = position
        self.ready_mark = position
        self.mounts = 0
        self.fates = Fates(partition_id, config, outbox, sink)
        self._mode = mode
        self._config = config
        self._max_batch_bytes = min(config.batch_bytes, config.max_frame_bytes // 2)
        self._streams = streams
        self._outbox = outbox
        self._sink = sink
        self._location: Location | None = None
        self._mounted_at: Location | None = None
        self._changed = asyncio.Event()
        self._stream: MountStream | None = None
        self._ended: asyncio.Future[None] | None = None
        self._mount_number = 0
        self._pauses = Backoff(longest_s=1.0)  # between two attempts to mount
        self._epoch = 0
        self._held_bytes = 0  # of frames that the sink has and has not applied
        self._credit_bytes = 0  # given back by the sink, not yet by us
        self._mount_mark = position  # that the newest mount began at
        self._mount_bytes = 0  # of frames that have come since
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._full_pauses = Backoff(0.005, 0.2, spread=0.0)  # while the server's queue is full
        self._task: asyncio.Task[None] | None = None

    # ---- life

    def start(self, location: Location | None) -> None:
        """Begin to mount and to go on mounting."""
        self._location = location
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._run_ended)
        self._set_timer("expire", self._expiry_step_s, self._expire)

    async def stop(self) -> None:
        """Leave; nothing more is sent or delivered."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for timer in self._timers.values():  # last: leaving a mount sets one
            timer.cancel()
        self._timers.clear()
        self.fates.monitor.drain()

    def location_changed(self, location: Location | None) -> None:
        """The directory says so. A mount elsewhere ends: a hung server would keep it for ever."""
        if location == self._location:
            return
        self._location = location
        self._changed.set()
        old = self._mounted_at
        if old is None or location is None or location.endpoint is None or location == old:
            return
        if location.generation >= old.generation:
            self._end_mount(ConnectionResetError(f"partition {self.partition_id} has moved to {location.endpoint}"))

    def rewind(self, position: int, epoch: int) -> None:
        """Deliver again from ``position`` + 1 on, and mark what is delivered with ``epoch``."""
        self.position = position
        self._epoch = epoch
        self._changed.set()  # mount again at once
        self._end_mount(ConnectionResetError(f"the application went back to transaction {position}"))

    def _run_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a bug of ours: say so at once, not when the task is collected
            logger.error("partition %d: the client has stopped mounting it", self.partition_id, exc_info=error)
            self.trouble = error if isinstance(error, Exception) else None

    async def _run(self) -> None:
        while self.state is not PartitionState.AHEAD:
            while self._location is None or self._location.endpoint is None:
                await self._changed.wait()
                self._changed.clear()
            self._changed.clear()
            location = self._location
            try:
                stream = await self._streams.get(location)
            except (OSError, WireError) as error:
                self.trouble = error
            else:
                if not stream.ended and location == self._location:
                    await self._serve(stream, location)
            await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._pauses.next_s()):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _serve(self, stream: MountStream, location: Location) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        self._stream, self._mounted_at = stream, location
        self._set_state(PartitionState.MOUNTING)
        stream.attach(self.partition_id, self)
        try:
            self._send_mount(stream, location)
            await self._ended
        finally:
            stream.detach(self.partition_id, self)
            stream.send(Unmount(self.partition_id, self.client_id))
            self._stream = self._mounted_at = None
            if self.state is not PartitionState.AHEAD:
                self._set_state(PartitionState.LOCATING)

    def _send_mount(self, stream: MountStream, location: Location) -> None:
        self._mount_number = (self._mount_number + 1) & 0x7FFFFFFF
        self.mounts += 1
        mark = self.position
        if self._mode is FeedMode.OWN:
            monitor = self.fates.monitor
            mark = monitor.resume_mark if monitor.pending else _NOTHING_PENDING
        req_id = ReqId(self.client_id, location.generation, self.partition_id, self._mount_number)
        self._credit_bytes, self._mount_mark, self._mount_bytes = 0, mark, 0
        credit_bytes = max(0, self._config.feed_credit_bytes - self._held_bytes)
        stream.send(Mount(req_id, mark, self._mode, credit_bytes))

    def _end_mount(self, reason: Exception) -> None:
        """Appends stop at once; the run loop goes on from here."""
        self.trouble = reason
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        if self.state is PartitionState.READY:
            self._set_state(PartitionState.LOCATING)

    def _set_state(self, state: PartitionState) -> None:
        self.state = state
        if state is not PartitionState.READY and "expire" not in self._timers:
            self._set_timer("expire", self._expiry_step_s, self._expire)
        self._sink.ready_changed()

    # ---- what the stream says

    def stream_lost(self, stream: MountStream, error: Exception) -> None:
        if stream is self._stream:
            self._end_mount(error)

    def stream_writable(self) -> None:
        self.pump()

    def send_due(self) -> None:
        self._outbox.awake()
        self.pump()

    def stream_message(self, stream: MountStream, message: MountMessage, frame_bytes: int) -> None:
        if stream is not self._stream or (self._ended is not None and self._ended.done()):
            return  # this mount is over; the next one brings it again
        if isinstance(message, FeedRecords):
            fields = message.batch.fields
            own = np.nonzero(fields["client_id"] == self.client_id)[0]
            sequence_numbers = fields["sequence_number"][own].astype(np.int32)
            self._feed(message.batch, message.batch.first_id, own, sequence_numbers, frame_bytes)
        elif isinstance(message, AppendedBatch):
            completions = self._entries(message.sequence_numbers, message.transaction_ids)
            self.fates.monitor.mark_seen(message.high_water_mark)
            if completions:
                self._sink.deliver(None, completions, 0, self._epoch)
        elif isinstance(message, FeedBatch):
            own = np.nonzero(message.client_ids == self.client_id)[0]
            self._feed(message, message.first_id, own, message.sequence_numbers[own], frame_bytes)
        elif isinstance(message, LockFailureBatch):
            self._send_later()
            self.fates.lock_failures(message)
        elif isinstance(message, Rejected):
            self._rejected(message)
        elif isinstance(message, Mounted):
            self._mounted(message)
        else:
            self._end_mount(PartitionNotReady(f"partition {self.partition_id} is leaving its server"))

    def _mounted(self, message: Mounted) -> None:
        if message.req_id.sequence_number != self._mount_number or message.req_id.client_id != self.client_id:
            return  # an answer to an earlier mount over the same stream
        if message.state == MountState.CLIENT_AHEAD:
            self._client_ahead(message.high_water_mark)
        elif message.state == MountState.NOT_READY:
            self._end_mount(
                PartitionNotReady(
                    f"partition {self.partition_id} is not ready at its server "
                    f"(generation {message.req_id.generation}, the server has {message.generation})"
                )
            )
        else:
            self.ready_mark = message.high_water_mark
            self._pauses.reset()
            self.trouble = None
            self.fates.mounted_ready(message.high_water_mark)
            self._set_state(PartitionState.READY)
            self.pump()

    def _client_ahead(self, server_mark: int) -> None:
        self.error = ClientAhead(
            f"partition {self.partition_id}: the application's high-water mark is {self.position}, the log ends at "
            f"{server_mark}; the application has applied what this log never had: restore one or the other"
        )
        self._set_state(PartitionState.AHEAD)
        self._end_mount(self.error)
        self.fates.monitor.drain()
        for append in self._outbox.close(self.error):
            append.fail(self.error)
        self._sink.client_ahead(self.error)

    def _feed(
        self, feed: RecordBatch | FeedBatch, first_id: int, own: Int64s, sequence_numbers: Int32s, frame_bytes: int
    ) -> None:
        count = len(feed)
        if first_id > self.position + 1:
            if self.state is PartitionState.MOUNTING:
                return  # the rest of an earlier mount over the same stream, from before a rewind
            raise WireError(
                f"partition {self.partition_id}: the feed jumps from transaction {self.position} to {first_id}"
            )
        if first_id == self._mount_mark + 1:
            # The feed begins here: what has come since the mount was sent for an earlier one, over the same stream.
            # Its credit ended with that, and must not be given to this one.
            self._credit_bytes -= self._mount_bytes
            self._mount_bytes = 0
        self._mount_bytes += frame_bytes
        self.position = max(self.position, first_id + count - 1)
        completions = self._entries(sequence_numbers, own.astype(np.int64) + first_id) if len(own) else []
        self.fates.monitor.mark_seen(first_id + count - 1)
        self._held_bytes += frame_bytes
        self._sink.deliver(feed, completions, frame_bytes, self._epoch)

    def _entries(self, sequence_numbers: Int32s, transaction_ids: Int64s) -> list[Completion]:
        self._send_later()
        completions = self.fates.entries(sequence_numbers, transaction_ids)
        self._full_pauses.reset()
        return completions

    def _send_later(self) -> None:
        """What follows from this message, such as appends in callbacks, is sent with what follows from its company."""
        assert self._stream is not None
        self._outbox.look_later()
        self._stream.send_later(self)

    def _rejected(self, message: Rejected) -> None:
        if message.code == RejectionCode.QUEUE_FULL:
            self._set_timer("full", self._full_pauses.next_s(), self.pump)
        self.fates.rejected(message)
        if message.code in _MOUNT_IS_GONE:
            self._end_mount(PartitionNotReady(self.fates.reason(message)))

    # ---- sending

    def wake(self) -> None:
        """There is something in the outbox."""
        self._outbox.awake()
        if self._config.linger_ms and self._outbox.waiting < self._config.batch_records:
            if "linger" not in self._timers:
                self._set_timer("linger", self._config.linger_ms / 1000, self.pump)
        else:
            self.pump()

    def pump(self) -> None:
        """Send what waits, in the largest batches allowed, while the wire is free."""
        stream = self._stream
        if stream is None or self.state is not PartitionState.READY:
            return
        location = self._mounted_at
        assert location is not None
        address = self.client_id, location.generation, self.partition_id
        while self._outbox.waiting and not stream.busy and "full" not in self._timers:
            batch = self._outbox.take(min(self._config.batch_records, self.fates.monitor.room), self._max_batch_bytes)
            if batch is None:
                return
            first_sequence = self.fates.monitor.register(batch, 0, batch.count)
            stream.send_parts(batch.encode(address, first_sequence))

    def give_credit(self, frame_bytes: int) -> None:
        """Frames of so many bytes have been applied; the server hears of it in large portions."""
        self._held_bytes -= frame_bytes
        self._credit_bytes += frame_bytes
        if self._stream is not None and self._credit_bytes >= self._config.feed_credit_bytes // 4:
            self._stream.send(FeedCredit(self.partition_id, self._credit_bytes))
            self._credit_bytes = 0

    # ---- timers

    def _set_timer(self, name: str, delay_s: float, action: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.pop(name, None)
            action()

        old = self._timers.pop(name, None)
        if old is not None:
            old.cancel()
        self._timers[name] = asyncio.get_running_loop().call_later(delay_s, run)

    @property
    def _expiry_step_s(self) -> float:
        return max(0.001, self._config.mount_timeout_ms / 10_000)

    def _expire(self) -> None:
        """Answer what has waited too long for the partition to become ready."""
        if self.state is PartitionState.READY:
            return
        old = self._outbox.take_older(time.monotonic() - self._config.mount_timeout_ms / 1000)
        self._outbox.free(old)
        for append in old:
            append.fail(self.not_ready_error(self._config.mount_timeout_ms))
        self._outbox.forget(old)
        self._set_timer("expire", self._expiry_step_s, self._expire)

    def not_ready_error(self, waited_ms: float) -> WaltzError:
        """Why this partition could not be used."""
        if self.error is not None:
            return self.error
        why = self.trouble or "no server owns it"
        return PartitionNotReady(
            f"partition {self.partition_id} was not ready within {waited_ms:.0f} ms: {why}; try again"
        )
