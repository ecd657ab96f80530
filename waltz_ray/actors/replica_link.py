"""A server's link to one storage replica: a live stream (fences, appends, marks) and a bulk stream (reads).

Both are shared by all partitions of the server. The link reconnects for ever and follows the replica's announced
endpoint; partitions hear of it as ReplicaLost / ReplicaAvailable with session NO_SUCH_SESSION. Every order given
through it ends in one event, whatever happens to the connection.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import uuid
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from waltz_ray import compat
from waltz_ray.config import ServerConfig
from waltz_ray.errors import AuthenticationFailed, BelowTheLog, ConfigError, ReplicaRefused, WireError
from waltz_ray.net.backoff import Backoff
from waltz_ray.net.connector import connect
from waltz_ray.net.handshake import Prove
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.stream import GreetedStream, Patience
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.replica import (
    APPEND_REQUEST,
    OPEN_REQUEST,
    STATE_REQUEST,
    Appended,
    Begin,
    Begun,
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
from waltz_ray.protocol.partition.events import NO_SUCH_SESSION, SessionConfirmed
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.session_types import (
    ReplicaAppended,
    ReplicaAvailable,
    ReplicaFenced,
    ReplicaLost,
    ReplicaMarked,
    ReplicaOpened,
    ReplicaTruncated,
    SessionEvent,
)
from waltz_ray.runtime.seldom import Few, Seldom
from waltz_ray.runtime.status import LinkStatus
from waltz_ray.security.handshakes import Keyring
from waltz_ray.wire.framing import MAGIC_REPLICA, encode_frame
from waltz_ray.wire.replica_codec import (
    MAX_REPLICA_FRAME_BYTES,
    REPLICA_VERSION,
    REPLICA_VERSIONS,
    decode_replica,
    encode_replica,
)

__all__ = ["BULK_READ_BYTES", "ReplicaLink", "ReplicaOrders", "Takes"]

log = logging.getLogger(__name__)

BULK_READ_BYTES = 4 * 1024 * 1024
"""How much one read of a catch-up asks for."""

_REFUSED_RETRY_S = 1.0
_LONGEST_FULL_RETRY_S = 8.0  # of a disk that stays full
_LOG_EVERY_S = 10.0

_STATE_REQUESTS = (OPEN_REQUEST, STATE_REQUEST)

_Question = Read | ReadTimes | FindTime | FindExcess
_Answer = Records | Times | TimeFound | ExcessFound
_ANSWERS: dict[type[_Question], type[_Answer]] = {
    Read: Records,
    ReadTimes: Times,
    FindTime: TimeFound,
    FindExcess: ExcessFound,
}


class Takes(Protocol):
    """A partition's driver, as far as a link knows it."""

    def handle(self, event: SessionEvent | SessionConfirmed) -> None:
        """What the replica has done, or what has become of the link."""


class ReplicaOrders(Protocol):
    """What a server tells one replica: each order ends in one event, each read in records or an error."""

    @property
    def up(self) -> bool: ...

    @property
    def endpoint(self) -> Endpoint | None: ...

    def status(self) -> LinkStatus: ...

    def move_to(self, endpoint: Endpoint) -> None: ...

    async def close(self) -> None: ...

    def open(self, partition_id: int, session_id: int, joined_session_id: int, owner: str) -> None: ...

    def confirm(self, partition_id: int, session_id: int, number: int) -> None: ...

    def truncate(self, partition_id: int, session_id: int, last_id: int) -> None: ...

    def begin(self, partition_id: int, session_id: int, first_id: int) -> None: ...

    def set_low_water_mark(self, partition_id: int, session_id: int, low_water_mark: int) -> None: ...

    def append(self, partition_id: int, session_id: int, last_id: int, frame: bytes) -> None: ...

    async def read(self, request: Read) -> RecordBatch: ...

    async def times(self, request: ReadTimes) -> Times: ...

    async def find_time(self, request: FindTime) -> int: ...

    async def find_excess(self, request: FindExcess) -> int: ...


def _frame(message: ReplicaRequest) -> bytes:
    return encode_frame(MAGIC_REPLICA, REPLICA_VERSION, *encode_replica(message))


@dataclass(frozen=True, slots=True)
class _FullDisk:
    """What the replica has said, when it is tried again (the loop's clock), and how long the pause after that is."""

    message: str
    until: float
    next_pause_s: float


class _Stream(GreetedStream):
    """One TCP connection to the replica."""

    def __init__(self, link: ReplicaLink, bulk: bool) -> None:
        patience = Patience(first_ms=link.config.replica_timeout_ms)
        super().__init__(
            MAGIC_REPLICA,
            REPLICA_VERSIONS,
            MAX_REPLICA_FRAME_BYTES,
            "waltz_ray server",
            link.outgoing,
            patience,
            prove=link.prove,
        )
        self.link = link
        self.bulk = bulk
        self.left = False
        """The link has given it up: what has come over it and was not handled is of no order that there is."""

    def on_ready(self) -> None:
        super().on_ready()
        self.link.stream_ready(self)

    def data_received(self, data: bytes) -> None:
        self.link.heard_at[self.bulk] = self._loop.time()  # a long answer may take its time
        super().data_received(data)

    def on_frame(self, frame: memoryview) -> None:
        if self.left:
            return
        message = decode_replica(frame)
        if type(message) is Appended and not self.bulk:  # nearly always
            self.link.on_appended(message)
        elif not isinstance(message, ReplicaReply):
            raise WireError(f"a replica must not send {type(message).__name__}")
        elif self.bulk:
            self.link.on_bulk(message)
        else:
            self.link.on_live(message)

    def on_broken(self, error: WireError) -> None:
        if not isinstance(error, AuthenticationFailed):
            super().on_broken(error)
        elif count := self.link.denied.due():
            name, place = self.link.replica_id, self.peer
            log.warning("replica %d at %s: no connection (%d times by now): %s", name, place, count, error)

    def on_impatience(self, reason: str) -> None:
        if self.link.silent.due():
            super().on_impatience(reason)

    def on_closed(self, error: Exception) -> None:
        self.link.stream_closed(self, error)


class ReplicaLink:
    """A server's two streams to one storage replica, kept connected; all methods run in the event loop."""

    def __init__(
        self,
        replica_id: int,
        cluster_key: uuid.UUID,
        config: ServerConfig,
        drivers: Mapping[int, Takes],
        outgoing: Outgoing,
        queue: Pool,
        keyring: Keyring,
    ) -> None:
        """``drivers``: of the server's partitions. ``queue``: what is in flight there; a replica that has not taken
        this is no slower than the rest. ``keyring`` proves to the replica that this is a server of its cluster."""
        self.replica_id = replica_id
        self.config = config
        self.outgoing = outgoing
        self.heard_at = [0.0, 0.0]  # over the live stream, and over the bulk stream
        self.refusals: Counter[RefusalCode] = Counter()
        self.silent, self.denied = Seldom(_LOG_EVERY_S), Seldom(_LOG_EVERY_S)
        self.prove: Prove = partial(keyring.open, replica_id)
        self._tls = keyring.context
        self._unknown, self._refused = Seldom(_LOG_EVERY_S), Few()
        self._full: dict[int, _FullDisk] = {}  # by partition
        self._queue = queue
        self._cluster_key = cluster_key
        self._drivers = drivers
        self._endpoint: Endpoint | None = None
        self._changed = asyncio.Event()
        self._turned_away = False  # the last connection ended before the replica had said who it is
        self._live: _Stream | None = None
        self._bulk: _Stream | None = None
        self._ready: set[bool] = set()
        self._up = False
        self._down_because = "it has not announced itself"
        self._waiting: dict[tuple[int, int], int] = {}  # (partition, session) -> last ID sent and not acknowledged
        self._orders = 0  # live orders without an answer
        self._states: deque[int | None] = deque()  # what the next StateReplies answer: None = Open, else a question
        self._reads: deque[tuple[_Question, asyncio.Future[_Answer]]] = deque()
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._keep_connected())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a bug of ours: without this the replica would be away for ever, and nobody would know
            log.critical("replica %d: its link has failed", self.replica_id, exc_info=error)

    # ---- connection -------------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Whether both streams work."""
        return self._up

    @property
    def endpoint(self) -> Endpoint | None:
        """The endpoint at which the replica announced itself last, None if it never did."""
        return self._endpoint

    def status(self) -> LinkStatus:
        """Whether it works, where it leads, and how often the replica has said no, by reason."""
        return LinkStatus(self._up, self._endpoint, dict(self.refusals))

    def move_to(self, endpoint: Endpoint) -> None:
        """The replica has announced itself at ``endpoint``."""
        if endpoint != self._endpoint:
            self._endpoint = endpoint
            self._changed.set()
            self._disconnect(f"it moved to {endpoint}")

    async def close(self) -> None:
        self._closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._disconnect("the server is closing")

    async def _keep_connected(self) -> None:
        # In step or not: it is at one replica, and of few servers. Between two attempts, or two looks at its progress.
        pauses = Backoff(longest_s=1.0, spread=0.0)
        loop = asyncio.get_running_loop()
        while not self._closed:  # Python 3.10: it may be cancelled and only be told that a time is over
            self._changed.clear()
            if self._endpoint is not None and self._live is None and self._bulk is None:
                self.heard_at = [loop.time()] * 2
                try:
                    # Limited: a host that does not answer is asked again by the kernel up to a minute later only.
                    timeout_ms = self.config.replica_timeout_ms
                    async with compat.timeout(timeout_ms / 1000):
                        for bulk in (False, True):
                            made, tls = partial(self._new_stream, bulk), self._tls()
                            await connect(made, *self._endpoint, timeout_s=None, tls=tls, untaken_ms=timeout_ms)
                    if not self._turned_away:
                        pauses.reset()
                    if self._live is None or self._bulk is None:
                        self._disconnect(self._down_because)  # one was lost while the other was being made
                except (OSError, ConfigError) as error:
                    self._not_reached(self._endpoint, error)
            try:
                async with compat.timeout(pauses.next_s()):
                    await self._changed.wait()
                    pauses.reset()
            except TimeoutError:
                pass
            self._check_progress(loop.time())

    def _not_reached(self, endpoint: Endpoint, error: OSError | ConfigError) -> None:
        log.debug("replica %d at %s: %s", self.replica_id, endpoint, error)
        lasts = isinstance(error, ConfigError) or isinstance(error.__cause__, ssl.SSLError)  # no restart mends it
        if lasts and (count := self.denied.due()):
            log.warning("replica %d: no connection (%d times by now): %s", self.replica_id, count, error)
        self._disconnect(f"cannot connect to {endpoint}: {error}")

    def _new_stream(self, bulk: bool) -> _Stream:
        stream = _Stream(self, bulk)
        if bulk:
            self._bulk = stream
        else:
            self._live = stream
        return stream

    def stream_ready(self, stream: _Stream) -> None:
        self._ready.add(stream.bulk)
        if len(self._ready) == 2 and not self._up:
            self._up, self._turned_away = True, False
            self.heard_at = [asyncio.get_running_loop().time()] * 2
            self._tell_all(ReplicaAvailable(NO_SUCH_SESSION, self.replica_id))

    def stream_closed(self, stream: _Stream, error: Exception) -> None:
        if stream in (self._live, self._bulk):
            was_up = self._up
            self._turned_away = not was_up
            self._disconnect(str(error))
            if was_up:  # else it has no place for us, another secret, or is none: that does not change so soon
                self._changed.set()  # try again at once: a restarted replica may listen already

    def _disconnect(self, reason: str) -> None:
        """Both streams go together; every open order ends in ReplicaLost or a failed read."""
        streams = (self._live, self._bulk)
        self._live = self._bulk = None
        self._ready.clear()
        self._waiting.clear()
        self._orders = 0
        self._full.clear()  # another process may have room
        self._down_because = reason
        self._states.clear()
        for stream in streams:
            if stream is not None:
                stream.left = True
                stream.abort(reason)
        reads, self._reads = self._reads, deque()
        for _, future in reads:
            if not future.done():
                future.set_exception(ConnectionError(reason))
        if self._up:
            self._up = False
            self._tell_all(ReplicaLost(NO_SUCH_SESSION, self.replica_id, reason))

    def _tell_all(self, event: SessionEvent) -> None:
        for driver in list(self._drivers.values()):
            driver.handle(event)

    def _check_progress(self, now: float) -> None:
        if not self._up:
            return  # how long a HELLO may take the streams know
        assert self._live is not None
        for bulk, waits in ((False, self._waiting or self._orders), (True, self._reads)):
            if not waits:
                self.heard_at[bulk] = now
            elif (now - self.heard_at[bulk]) * 1000 > self.config.replica_timeout_ms:
                self._disconnect(f"no answer for {self.config.replica_timeout_ms} ms")
                break
        # Behind the others, that is: where all disks are slow, a quorum would be cut off and nothing gained.
        behind = 0 if self._live is None else self._live.unsent_bytes - self._queue.used_bytes
        if behind > self.config.replica_lag_bytes:
            self._disconnect(f"more than {self.config.replica_lag_bytes} bytes behind")

    # ---- orders -----------------------------------------------------------------------------------------

    def open(self, partition_id: int, session_id: int, joined_session_id: int, owner: str) -> None:
        """Fence the replica for a session; it counts as lost while its disk is likely to be full.

        With a full disk it would be a member, refuse the first append, and so end each session that has just begun. It
        is tried again after a while, which grows: each time may cost a session.
        """
        full = self._full.get(partition_id)
        if full is not None and asyncio.get_running_loop().time() < full.until:
            self._drivers[partition_id].handle(ReplicaLost(session_id, self.replica_id, full.message))
            return
        self._order(Open(partition_id, session_id, self._cluster_key, joined_session_id, owner))

    def confirm(self, partition_id: int, session_id: int, number: int) -> None:
        """Ask whether ``session_id`` is still the highest."""
        self._order(State(partition_id, session_id), number)

    def truncate(self, partition_id: int, session_id: int, last_id: int) -> None:
        self._order(Truncate(partition_id, session_id, last_id))

    def begin(self, partition_id: int, session_id: int, first_id: int) -> None:
        self._order(Begin(partition_id, session_id, first_id))

    def set_low_water_mark(self, partition_id: int, session_id: int, low_water_mark: int) -> None:
        self._order(SetLowWaterMark(partition_id, session_id, low_water_mark, low_water_mark))

    def append(self, partition_id: int, session_id: int, last_id: int, frame: bytes) -> None:
        """``frame`` is a whole Append frame that ends with ``last_id``; one frame serves all replicas."""
        if self._up and self._live is not None:
            if not self._waiting and not self._orders:
                self.heard_at[False] = asyncio.get_running_loop().time()
            self._waiting[partition_id, session_id] = last_id
            self._live.send_bytes(frame)
        else:
            self._drivers[partition_id].handle(self._not_connected(session_id))

    async def read(self, request: Read) -> RecordBatch:
        """Records from the replica. ReplicaRefused or ConnectionError say why not."""
        answer = await self._ask(request)
        assert isinstance(answer, Records)
        return answer.batch

    async def times(self, request: ReadTimes) -> Times:
        """When records were appended. Raises what ``read`` does."""
        answer = await self._ask(request)
        assert isinstance(answer, Times)
        return answer

    async def find_time(self, request: FindTime) -> int:
        """The first record of a time. Raises what ``read`` does."""
        answer = await self._ask(request)
        assert isinstance(answer, TimeFound)
        return answer.first_id

    async def find_excess(self, request: FindExcess) -> int:
        """The first record that the replica would keep. Raises what ``read`` does."""
        answer = await self._ask(request)
        assert isinstance(answer, ExcessFound)
        return answer.first_id

    async def _ask(self, question: _Question) -> _Answer:
        if not self._up or self._bulk is None:
            raise ConnectionError(f"replica {self.replica_id} is not connected")
        future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._reads.append((question, future))
        self._bulk.send_bytes(_frame(question))
        return await future

    def _order(self, request: Open | State | Truncate | Begin | SetLowWaterMark, number: int | None = None) -> None:
        if self._up and self._live is not None:
            frame = _frame(request)  # before it is counted on
            self._orders += 1
            if isinstance(request, Open | State):
                self._states.append(number)
            self._live.send_bytes(frame)
        else:
            self._drivers[request.partition_id].handle(self._not_connected(request.session_id))

    def _not_connected(self, session_id: int) -> ReplicaLost:
        return ReplicaLost(session_id, self.replica_id, f"not connected: {self._down_because}")

    # ---- answers ----------------------------------------------------------------------------------------

    def on_appended(self, message: Appended) -> None:
        session, last_id = (message.partition_id, message.session_id), message.last_id
        if self._waiting.get(session, -1) <= last_id:
            self._waiting.pop(session, None)
        if self._full:
            self._full.pop(message.partition_id, None)
        self._drivers[message.partition_id].handle(ReplicaAppended(message.session_id, self.replica_id, last_id))

    def on_live(self, message: ReplicaReply) -> None:
        partition_id, session_id, me = message.partition_id, message.session_id, self.replica_id
        if isinstance(message, Refused) and message.request_type == APPEND_REQUEST:
            self._waiting.pop((partition_id, session_id), None)
        else:
            self._orders = max(0, self._orders - 1)
        number = None
        about_state = isinstance(message, Refused) and message.request_type in _STATE_REQUESTS
        if isinstance(message, StateReply) or about_state:
            number = self._states.popleft()
        if isinstance(message, StateReply) and number is not None:
            self._drivers[partition_id].handle(SessionConfirmed(session_id, me, number))
        elif isinstance(message, StateReply):
            opened = ReplicaOpened(session_id, me, message.local_low_water_mark, message.last_id, message.damaged)
            self._drivers[partition_id].handle(opened)
        elif isinstance(message, Truncated):
            self._drivers[partition_id].handle(ReplicaTruncated(session_id, me, message.last_id))
        elif isinstance(message, Begun):
            self._drivers[partition_id].handle(ReplicaTruncated(session_id, me, message.first_id - 1))
        elif isinstance(message, LowWaterMarkSet):
            self._drivers[partition_id].handle(ReplicaMarked(session_id, me))
        elif isinstance(message, Refused):
            self._on_refused(message)

    def _on_refused(self, refused: Refused) -> None:
        self.refusals[refused.code] += 1
        if refused.code in (RefusalCode.FENCED, RefusalCode.OTHER_OWNER):
            fenced = ReplicaFenced(refused.session_id, self.replica_id, refused.current_session_id)
            self._drivers[refused.partition_id].handle(fenced)
            return
        # A thousand partitions that a replica does not have yet are one piece of news.
        if refused.code is not RefusalCode.UNKNOWN_PARTITION or self._unknown.due():
            self._refused.say(log, logging.WARNING, "replica %d: %s", self.replica_id, refused.message)
        loop, pause_s = asyncio.get_running_loop(), _REFUSED_RETRY_S
        if refused.code is RefusalCode.DISK_FULL:
            before = self._full.get(refused.partition_id)
            if before is not None and loop.time() < before.until:
                pause_s = before.until - loop.time()  # an append that was under way
            else:
                pause_s = before.next_pause_s if before is not None else _REFUSED_RETRY_S
                next_pause_s = min(2 * pause_s, _LONGEST_FULL_RETRY_S)
                self._full[refused.partition_id] = _FullDisk(refused.message, loop.time() + pause_s, next_pause_s)
        lost_files = refused.code is RefusalCode.LOST_FILES
        bad_records = refused.request_type == APPEND_REQUEST and refused.code is RefusalCode.INVALID_REQUEST
        lost = ReplicaLost(refused.session_id, self.replica_id, refused.message, lost_files, bad_records)
        self._drivers[refused.partition_id].handle(lost)
        # The link works, so nothing else would announce the replica again: let it be tried from time to time.
        loop.call_later(pause_s, self._try_again, refused)

    def _try_again(self, refused: Refused) -> None:
        if self._up:
            self._drivers[refused.partition_id].handle(ReplicaAvailable(NO_SUCH_SESSION, self.replica_id))

    def on_bulk(self, message: ReplicaReply) -> None:
        if not self._reads:
            raise WireError(f"unexpected {type(message).__name__} on the bulk stream")
        request, future = self._reads.popleft()
        if future.done():
            return
        if isinstance(message, _ANSWERS[type(request)]):
            future.set_result(message)
        elif isinstance(message, Refused) and message.code is RefusalCode.TRIMMED:
            future.set_exception(BelowTheLog(message.partition_id, message.last_id + 1))
        elif isinstance(message, Refused):
            future.set_exception(ReplicaRefused(f"replica {self.replica_id} does not serve reads: {message.message}"))
            if message.code in (RefusalCode.DAMAGED, RefusalCode.FENCED):
                # It has met its damage, or a higher session, after this one took it for its own: told at once. A
                # session that only copies would not hear of it otherwise, and would ask for ever.
                self._on_refused(message)
        else:
            raise WireError(f"{type(message).__name__} does not answer {type(request).__name__}")
