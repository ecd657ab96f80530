"""The shell of ``protocol.mounting`` on an asyncio loop: streams, timers, and the appends and fates of one partition.

Everything here happens on the client's loop, and nothing decides about the protocol: what has happened is told to the
machine, and what it answers is carried out at once and in order.

Appends are gathered while the wire is busy, and while more is to be expected: the bell makes the loop look once for all
that is put until then, and what follows from a message is sent with what follows from those that came with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from waltz_ray.client.fates import Completion, ContextFates, Fates
from waltz_ray.client.mount_stream import MountStream, MountStreams
from waltz_ray.client.numbering import feed_in_space, in_cluster
from waltz_ray.client.outbox import Bell, Outbox
from waltz_ray.client.requests import Sending
from waltz_ray.client.shell import Shell
from waltz_ray.config import ClientConfig
from waltz_ray.errors import InvariantBroken, WaltzError, WireError
from waltz_ray.protocol.ids import Location
from waltz_ray.protocol.messages.client import FeedBatch, FeedMode, Unmount
from waltz_ray.protocol.mounting import Mounting
from waltz_ray.protocol.mounting_types import (
    HEAVY,
    AppendsTaken,
    Applied,
    CancelTimer,
    Deliver,
    Effect,
    Event,
    ExpireAppends,
    FailAppends,
    GaveUp,
    Hindered,
    Located,
    LoseAppends,
    MountingState,
    MountMessage,
    MountTimerFired,
    OpenFailed,
    OpenStream,
    Received,
    RefuseAppends,
    RefuseLocks,
    Rewound,
    SendAppends,
    SendCredit,
    SendMount,
    SendUnmount,
    SendWaiting,
    SetTimer,
    Started,
    StateChanged,
    Stopped,
    StreamBroken,
    StreamLost,
    StreamOpened,
)
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.runtime.driver import Driver

__all__ = ["Mounter", "PartitionShell", "Sink"]

logger = logging.getLogger(__name__)

_LINGER = "linger"  # the one timer that is not the machine's


@dataclass(frozen=True)
class Mounter:
    """Who mounts: what all partitions of one client ID share."""

    client_id: int
    mode: FeedMode
    config: ClientConfig
    streams: MountStreams
    shell: Shell


class Sink(ContextFates, Protocol):
    """Who takes the feed of a partition. Called on the client's loop; must not block."""

    def deliver(
        self, feed: RecordBatch | FeedBatch | None, completions: Sequence[Completion], frame_bytes: int, epoch: int
    ) -> None:
        """Transactions that follow those delivered before, and contexts that have committed in or before them.

        ``PartitionShell.applied(frame_bytes)`` has to be called when they are applied, or dropped because
        ``epoch`` is from before a rewind.
        """

    def ready_changed(self) -> None:
        """The partition's state has changed."""

    def never_ready(self, error: WaltzError) -> None:
        """The partition will not be served before a person has looked at it; nothing follows."""


class PartitionShell:
    """One mounted partition. ``position``: the sink has the transactions up to this one."""

    def __init__(self, mounter: Mounter, partition_id: int, position: int, sink: Sink, earliest: bool = False) -> None:
        """``earliest``: what is delivered may begin further on, where what follows ``position`` was trimmed away."""
        config = mounter.config
        self.partition_id = partition_id
        self._number = partition_id  # in the cluster, as the location says
        client_id, mode = mounter.client_id, mounter.mode
        self.machine: Mounting[Sending] = Mounting(partition_id, client_id, mode, position, config, earliest)
        self.error: WaltzError | None = None
        """Why it never will be ready (again)."""
        self._driver = Driver[Event, Effect[Sending]](
            f"partition {partition_id} of client {mounter.client_id}",
            self.machine,
            self._carry_out,
            self._give_up,
            heavy=HEAVY,
        )
        self._bell = Bell(mounter.shell.post, self._look)
        self.outbox = Outbox(partition_id, config, mounter.shell.monotonic, self._bell)
        self.fates = Fates(partition_id, self.outbox, sink)
        self._mounter = mounter
        self._config = config
        self._max_batch_bytes = min(config.batch_bytes, config.max_frame_bytes // 2)
        self._sink = sink
        self._stream: MountStream | None = None  # that the partition is mounted over
        self._opened: MountStream | None = None  # that it may be mounted over next
        self._opening: asyncio.Task[None] | None = None
        self._in_vain = False  # it has moved from where a stream is being opened to
        self._timers: dict[Hashable, asyncio.TimerHandle] = {}
        self._pump_again = False  # after the step under way
        self._given_up = False
        self._wrong: WireError | None = None  # what the server has sent
        self._effects: dict[type, Callable[[Any], None]] = {
            OpenStream: self._open,
            SendMount: self._send_mount,
            SendUnmount: self._send_unmount,
            SendCredit: self._send_credit,
            SendAppends: self._send_appends,
            SendWaiting: lambda effect: self.pump(),
            SetTimer: self._set_timer,
            CancelTimer: self._cancel_timer,
            Deliver: self._deliver,
            RefuseLocks: self._refuse_locks,
            FailAppends: lambda effect: self.fates.failed(effect.pieces, effect.reason),
            RefuseAppends: lambda effect: self.fates.refused(effect.pieces, effect.reason, effect.code),
            ExpireAppends: self._expire,
            LoseAppends: lambda effect: self.fates.unknown(effect.pieces, effect.error),
            GaveUp: lambda effect: self._end(effect.error),
            StateChanged: lambda effect: sink.ready_changed(),
            StreamBroken: self._broken,
        }

    def _tell(self, event: Event) -> None:
        try:
            self._driver.handle(event)
        except Exception:
            # It is in the log, and whom it concerns has been told; who calls us serves other partitions, too.
            if not self._given_up:
                raise
        if self._pump_again and not self._driver.stepping:
            self._pump_again = False
            self.pump()

    def _carry_out(self, effect: Effect[Sending]) -> None:
        self._effects[effect.__class__](effect)

    def _give_up(self, why: str) -> None:
        """A bug of ours: what the machine says from here on could be wrong. Nothing is sent or delivered any more."""
        error = InvariantBroken(
            f"{why}: a bug of this client. Appends without a fate may or may not be in the log; "
            "connect again, and report what the log of this process says"
        )
        self._end(error)
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.detach(self._number, self)
            stream.send(Unmount(self._number, self._mounter.client_id))
        self._cancel_timers()
        self._sink.ready_changed()
        self._given_up = True

    # ---- life

    def start(self, location: Location | None) -> None:
        """Begin to mount and to go on mounting."""
        self._take_number(location)
        self._tell(Started(location))

    async def stop(self) -> None:
        """Leave; nothing more is sent or delivered."""
        self._tell(Stopped())
        self._cancel_timers()
        self._in_vain = False
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)

    def location_changed(self, location: Location | None) -> None:
        """The directory says so."""
        self._take_number(location)
        self._tell(Located(location))
        if self._opening is not None and self.machine.opens_in_vain and not self._in_vain:
            self._in_vain = True  # a server that hangs would be waited for; others may want the stream, which goes on
            self._opening.cancel()

    def _take_number(self, location: Location | None) -> None:
        if location is not None:
            self._number = location.number_of(self._number)

    def end(self, error: WaltzError) -> None:
        """There is no such partition any more: whatever is asked for from now on, or waits, ends with ``error``."""
        if self.error is None:
            self._end(error)
            self._tell(Stopped())
            self._cancel_timers()
            self._sink.ready_changed()

    def rewind(self, position: int, epoch: int) -> None:
        """Deliver again from ``position`` + 1 on, and mark what is delivered with ``epoch``."""
        self._tell(Rewound(position, epoch))

    def applied(self, frame_bytes: int) -> None:
        """Frames of so many bytes have been applied."""
        self._tell(Applied(frame_bytes))

    @property
    def waits(self) -> bool:
        """Whether something of it has neither a fate nor a server that takes it."""
        state = self.machine.state
        return bool(self.outbox.outstanding) or state in (MountingState.LOCATING, MountingState.MOUNTING)

    @property
    def progress(self) -> object:
        """Another value whenever an append has had a fate, or the state has changed."""
        return self.fates.committed, self.fates.lock_conflicts, self.machine.state is MountingState.READY

    def hindered(self, reason: str) -> None:
        """The server has said what keeps the partition from taking appends; "" = it does, as far as is known."""
        if reason != self.machine.hindrance and self.error is None:
            self.outbox.hindrance = reason
            self._tell(Hindered(reason))

    # ---- streams

    def _open(self, effect: OpenStream) -> None:
        self._in_vain = False
        self._opening = asyncio.get_running_loop().create_task(self._opened_or_failed(effect.location))
        self._opening.add_done_callback(self._open_ended)

    async def _opened_or_failed(self, location: Location) -> None:
        try:
            stream = await self._mounter.streams.get(location)
            if stream.ended:
                raise ConnectionResetError("the connection has ended")
        except (OSError, WireError) as error:
            self._tell(OpenFailed(error))
        else:
            self._opened = stream
            self._tell(StreamOpened())
            self._opened = None

    def _open_ended(self, task: asyncio.Task[None]) -> None:
        if task is self._opening:
            self._opening = None
            if task.cancelled() and self._in_vain:
                self._tell(OpenFailed(ConnectionAbortedError("it has moved while a connection was being opened")))
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a bug of ours: say so at once, not when the task is collected
            logger.error("partition %d: the client has stopped mounting it", self.partition_id, exc_info=error)
            if self.error is None:  # else the driver has said so
                self._give_up(f"partition {self.partition_id}: opening a stream failed: {error!r}")

    def _send_mount(self, effect: SendMount) -> None:
        stream = self._stream = self._opened
        assert stream is not None
        stream.attach(self._number, self)
        stream.send(in_cluster(effect.message, self._number))

    def _send_unmount(self, effect: SendUnmount) -> None:
        stream, self._stream = self._stream, None
        assert stream is not None
        stream.detach(self._number, self)
        stream.send(in_cluster(effect.message, self._number))

    def _send_credit(self, effect: SendCredit) -> None:
        assert self._stream is not None
        self._stream.send(in_cluster(effect.message, self._number))

    def stream_message(self, stream: MountStream, message: MountMessage, frame_bytes: int) -> None:
        if stream is self._stream:
            self._tell(Received(message, frame_bytes))
            if self._wrong is not None:
                wrong, self._wrong = self._wrong, None
                raise wrong  # to the stream, which ends itself

    def stream_lost(self, stream: MountStream, error: Exception) -> None:
        if stream is self._stream:
            self._tell(StreamLost(error))

    def _broken(self, effect: StreamBroken) -> None:
        self._wrong = effect.error

    # ---- what becomes of appends, and the feed

    def _deliver(self, effect: Deliver[Sending]) -> None:
        completions: Sequence[Completion] = ()
        if len(effect.transaction_ids):
            self._send_later()
        if effect.committed:
            completions = self.fates.in_the_log(effect.committed, effect.transaction_ids)
        if effect.failed:
            self.fates.failed(effect.failed, effect.reason)
        if effect.feed is not None or completions:
            feed = None if effect.feed is None else feed_in_space(effect.feed, self.partition_id)
            self._sink.deliver(feed, completions, effect.frame_bytes, effect.epoch)

    def _refuse_locks(self, effect: RefuseLocks[Sending]) -> None:
        self._send_later()
        self.fates.lock_failed(effect.pieces, effect.transaction_ids)

    def _expire(self, effect: ExpireAppends) -> None:
        old = self.outbox.take_older(self._config.mount_timeout_ms / 1000)
        self.outbox.free(old)
        for append in old:
            append.fail(effect.error)
        self.outbox.forget(old)

    def _end(self, error: WaltzError) -> None:
        self.error = error
        for append, reason in self.outbox.close(error, error):
            append.fail(reason)
        self._sink.never_ready(error)

    # ---- sending

    def _look(self) -> None:
        """Somebody has rung: there is something in the outbox."""
        self._bell.rung = False
        if self._config.linger_ms and self.outbox.waiting < self._config.batch_records:
            if _LINGER not in self._timers:
                self._call_later(_LINGER, self._config.linger_ms / 1000, self.pump)
        else:
            self.pump()

    def _send_later(self) -> None:
        """What follows from this message is sent with what follows from those that came together with it."""
        assert self._stream is not None
        self._bell.rung = True
        self._stream.send_later(self)

    def hold(self) -> None:
        """Send nothing before ``send_due``, which must follow within this turn of the loop."""
        self._bell.rung = True

    def send_due(self) -> None:
        """Send what waits."""
        self._bell.rung = False
        self.pump()

    def stream_writable(self) -> None:
        self.pump()

    def pump(self) -> None:
        """Send what waits, in the largest batches allowed, while the wire is free."""
        if self._driver.stepping:
            self._pump_again = True  # each batch is a step of its own
            return
        stream, outbox, most = self._stream, self.outbox, self._config.batch_records
        while outbox.waiting and stream is not None and not stream.busy:
            room = self.machine.room
            batch = outbox.take(room if room < most else most, self._max_batch_bytes) if room else None
            if batch is None:
                return
            self._tell(AppendsTaken(batch, batch.count))

    def _send_appends(self, effect: SendAppends[Sending]) -> None:
        assert self._stream is not None
        address = self._mounter.client_id, effect.generation, self._number
        self._stream.send_appends(self._number, effect.batch.encode(address, effect.first_sequence))

    # ---- timers

    def _cancel_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _set_timer(self, effect: SetTimer) -> None:
        delay_s = effect.delay_s * self._mounter.shell.jitter() if effect.jittered else effect.delay_s
        self._call_later(effect.timer, delay_s, lambda: self._tell(MountTimerFired(effect.timer)))

    def _cancel_timer(self, effect: CancelTimer) -> None:
        timer = self._timers.pop(effect.timer, None)
        if timer is not None:
            timer.cancel()

    def _call_later(self, name: Hashable, delay_s: float, action: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.pop(name, None)
            action()

        old = self._timers.pop(name, None)
        if old is not None:
            old.cancel()
        self._timers[name] = asyncio.get_running_loop().call_later(delay_s, run)
