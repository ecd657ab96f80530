"""A partition server for client tests: the real wire codecs, an in-memory log, and misbehaviour on request.

It runs on an event loop of its own thread and keeps the rules of docs/design.md, "One append", for one process: appends
of a mount are admitted in order, fates go out on the mount's own stream, a newer connection of a client supersedes an
older one.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from waltz_ray.client.cursor_book import CursorBook
from waltz_ray.client.directory import Location
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.client import (
    AppendedBatch,
    ChannelClosed,
    DataRangeRequest,
    DataRangeResponse,
    ErrorMessage,
    FeedBatch,
    FeedCredit,
    FeedMode,
    FeedRecords,
    FirstIdAtRequest,
    FirstIdAtResponse,
    HindranceRequest,
    HindranceResponse,
    InChannel,
    LockFailureBatch,
    Mount,
    Mounted,
    NotReady,
    PartitionStateRequest,
    PartitionStateResponse,
    Rejected,
    RejectionCode,
    Unmount,
)
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.records import AppendBatch, RecordBatch, build_records
from waltz_ray.wire.channel_codec import channel_head
from waltz_ray.wire.codec import CLIENT_VERSIONS, ClientMessage, decode_client, encode_client
from waltz_ray.wire.framing import (
    FRAME_HEADER_BYTES,
    MAGIC_CLIENT,
    MAGIC_HELLO,
    FrameDecoder,
    Hello,
    cluster_meant,
    decode_hello,
    encode_frame,
    encode_hello,
)
from waltz_ray.wire.primitives import BytesLike

T = TypeVar("T")

THE_FAKE_CLUSTER = "key of the fake cluster"


@dataclass
class Log:
    """One partition's committed records and lock table (exact, no hashing into slots)."""

    partition_id: int
    batches: list[RecordBatch] = field(default_factory=list)
    locks: dict[int, int] = field(default_factory=dict)

    @property
    def mark(self) -> int:
        return self.batches[-1].last_id if self.batches else -1

    def append(self, batch: AppendBatch, chosen: Sequence[int]) -> RecordBatch:
        rows = np.array(chosen, dtype=np.int64)
        bounds = np.concatenate([[0], np.cumsum(batch.lengths)]).tolist()
        body = b"".join(bytes(memoryview(batch.body)[bounds[i] : bounds[i + 1]]) for i in chosen)
        columns = (
            batch.sequence_numbers[rows],
            batch.headers[rows],
            batch.lengths[rows],
            batch.checksums[rows],
        )
        records = build_records(self.partition_id, self.mark + 1, batch.client_id, batch.generation, columns, body)
        self.batches.append(records)
        return records

    def since(self, first_id: int) -> list[RecordBatch]:
        return [batch.since(first_id) for batch in self.batches if batch.last_id >= first_id]

    def data(self) -> list[bytes]:
        return [bytes(data) for batch in self.batches for data in batch.datas()]

    def lock_conflict(self, batch: AppendBatch, index: int) -> int:
        """ID of the conflicting transaction, or -1; a passing one takes its locks at the next ID."""
        checked = [*batch.write_locks.of(index).tolist(), *batch.read_locks.of(index).tolist()]
        newest = max((self.locks.get(lock, -1) for lock in checked), default=-1)
        return newest if newest > int(batch.client_marks[index]) else -1


@dataclass
class MountEntry:
    connection: Connection
    client_id: int
    mode: FeedMode
    credit: int
    sent: int  # last transaction handled for this mount
    ready: Mounted | None  # to be sent when the feed has reached its mark


@dataclass
class Script:
    """What the server does wrong. Counters count down; 0 = behave."""

    drop_after_admitting: int = 0  # take the batch into the log, then cut the connection without an answer
    drop_before_admitting: int = 0  # cut the connection; the batch is lost
    queue_full: int = 0  # answer a batch QUEUE_FULL
    not_ready_mounts: int = 0  # answer a mount NOT_READY
    trim_mark: int = 0  # records below it are gone
    reject_code: RejectionCode | None = None  # for the next batch
    lose_first: int = 0  # of the next batch, so many records vanish without an answer
    hold_mounts: bool = False  # never answer a mount
    hold_appends: bool = False  # admit nothing, answer nothing
    hold_feeds: bool = False  # admit, and tell nobody before the next mount
    hindrance: str = ""  # what it says when it is asked why
    hello_versions: tuple[int, ...] = CLIENT_VERSIONS
    of_cluster: str = ""  # who means another one is refused; "": nobody is


class FakeServer:
    """Any number of partitions. Use as a context manager; ``script`` may be changed from the test's thread."""

    def __init__(self, partitions: int = 1, server_id: int = 1, logs: dict[int, Log] | None = None) -> None:
        self.server_id = server_id
        self.logs = logs if logs is not None else {p: Log(p) for p in range(partitions)}
        self.generations: dict[int, int] = dict.fromkeys(self.logs, 1)
        self.script = Script()
        self.mounts: dict[tuple[int, int], MountEntry] = {}
        self.mount_marks: list[int] = []
        self.batch_sizes: list[int] = []
        self.meant: list[str] = []
        """The cluster that each connection meant, by its key."""
        self.connections: set[Connection] = set()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fake-server")
        self._server: asyncio.Server | None = None
        self.endpoint = Endpoint("127.0.0.1", 0)

    def __enter__(self) -> FakeServer:
        self._thread.start()
        self.call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    def do(self, action: Callable[[], T]) -> T:
        """Run ``action`` on the server's thread."""

        async def run() -> T:
            return action()

        return self.call(run())

    def drop_connections(self) -> None:
        def run() -> None:
            for connection in list(self.connections):
                connection.drop()

        self.do(run)

    def location(self, partition: int) -> Location:
        return Location(self.server_id, self.generations[partition], self.endpoint)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _listen(self) -> None:
        self._server = await self.loop.create_server(lambda: Connection(self), "127.0.0.1", 0)
        self.endpoint = Endpoint(*self._server.sockets[0].getsockname()[:2])

    async def _stop(self) -> None:
        assert self._server is not None
        for _ in range(5):  # turns: asyncio loses a socket that is being accepted when its server is closed
            await asyncio.sleep(0)
        self._server.close()
        for _ in range(5):
            for connection in list(self.connections):
                connection.drop()
            await asyncio.sleep(0)

    def append_directly(self, partition: int, datas: Sequence[bytes], header: int = 0) -> None:
        """Another client's transactions."""
        self.do(lambda: self._append_directly(partition, datas, header))

    def _append_directly(self, partition: int, datas: Sequence[bytes], header: int) -> None:
        count = len(datas)
        batch = AppendBatch(
            999_999,
            self.generations[partition],
            partition,
            np.arange(count, dtype=np.int32),
            np.full(count, -1, dtype=np.int64),
            np.full(count, header, dtype=np.int32),
            np.array([len(data) for data in datas], dtype=np.int32),
            np.array([zlib.crc32(data) for data in datas], dtype=np.uint32),
            b"".join(datas),
        )
        self.logs[partition].append(batch, range(count))
        self.pump(partition)

    def leave(self, partition: int) -> None:
        """The partition moves away: NOT_READY to everybody mounted here."""

        def run() -> None:
            for (p, client_id), mount in list(self.mounts.items()):
                if p == partition:
                    mount.connection.send(NotReady(p, -1))
                    del self.mounts[(p, client_id)]
            self.generations[partition] = -1

        self.do(run)

    def pump(self, partition: int) -> None:
        if self.script.hold_feeds:
            return
        for (p, _), mount in list(self.mounts.items()):
            if p == partition:
                self._feed(partition, mount)

    def _feed(self, partition: int, mount: MountEntry) -> None:
        log = self.logs[partition]
        for batch in log.since(mount.sent + 1):
            if mount.mode is FeedMode.OWN:
                self._send_own(partition, mount, batch, log.mark)
            elif mount.credit <= 0:
                return
            elif mount.mode is FeedMode.RECORDS:
                mount.credit -= mount.connection.send(FeedRecords(batch))
            else:
                fields = batch.fields
                columns = [fields[name].astype(np.int32) for name in _FEED_COLUMNS]
                mount.credit -= mount.connection.send(FeedBatch(partition, batch.first_id, *columns))
            mount.sent = batch.last_id
        if mount.ready is not None and mount.sent >= mount.ready.high_water_mark:
            mount.connection.send(mount.ready)
            mount.ready = None

    def _send_own(self, partition: int, mount: MountEntry, batch: RecordBatch, mark: int) -> None:
        own = np.nonzero(batch.fields["client_id"] == mount.client_id)[0]
        sequence_numbers = batch.fields["sequence_number"][own].astype(np.int32)
        ids = (own + batch.first_id).astype(np.int64)
        mount.connection.send(AppendedBatch(partition, mark, sequence_numbers, ids))


_FEED_COLUMNS = ("client_id", "generation", "sequence_number", "header")


class Connection(asyncio.Protocol):
    """One client connection: decode, act, answer."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.decoder = FrameDecoder(64 * 1024 * 1024)
        self.transport: asyncio.Transport | None = None
        self.channels: dict[int, FakeChannel] = {}
        self.pieces = 0  # of input

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections.add(self)
        transport.write(encode_hello(Hello(self.server.script.hello_versions, "fake server")))

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.server.connections.discard(self)
        for one in (self, *self.channels.values()):
            one.unmount_all()

    def unmount_all(self) -> None:
        mounts = self.server.mounts
        for key in [key for key, mount in mounts.items() if mount.connection is self]:
            del mounts[key]

    def data_received(self, data: bytes) -> None:
        self.pieces += 1
        for frame in self.decoder.feed(data):
            if self.transport is None or self.transport.is_closing():
                return
            if frame.magic != MAGIC_HELLO:
                self.handle(decode_client(5, frame.payload))
            else:
                self.greeted(cluster_meant(decode_hello(frame.payload).message))

    def greeted(self, meant: str) -> None:
        self.server.meant.append(meant)
        ours = self.server.script.of_cluster
        if self.transport is not None and ours and meant != ours:
            self.send(ErrorMessage("it is another cluster's"))
            self.transport.close()

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def send(self, message: ClientMessage) -> int:
        """Bytes of the frame."""
        return self.write(encode_client(5, message))

    def write(self, parts: Sequence[BytesLike]) -> int:
        frame = encode_frame(MAGIC_CLIENT, 5, *parts)
        if self.transport is not None:
            self.transport.write(frame)
        assert len(frame) > FRAME_HEADER_BYTES
        return len(frame)

    def handle(self, message: ClientMessage) -> None:
        if isinstance(message, InChannel):
            channel = self.channels.setdefault(message.channel, FakeChannel(self, message.channel))
            channel.handle(decode_client(5, message.message))
        elif isinstance(message, ChannelClosed):
            self.channels.pop(message.channel).unmount_all()
        elif isinstance(message, Mount):
            self.mount(message)
        elif isinstance(message, AppendBatch):
            self.append(message)
        elif isinstance(message, FeedCredit):
            for (partition, _), mount in list(self.server.mounts.items()):
                if partition == message.partition_id and mount.connection is self:
                    mount.credit += message.credit_bytes
                    self.server._feed(partition, mount)
        elif isinstance(message, Unmount):
            mounted = self.server.mounts.get((message.partition_id, message.client_id))
            if mounted is not None and mounted.connection is self:
                del self.server.mounts[(message.partition_id, message.client_id)]
        elif isinstance(message, DataRangeRequest):
            self.read(message)
        elif isinstance(message, PartitionStateRequest):
            known = self.server.logs.get(message.partition_id)  # none: it only wants to hear us
            state, mark = (MountState.NOT_READY, -1) if known is None else (MountState.READY, known.mark)
            self.send(PartitionStateResponse(message.request_id, message.partition_id, 1, 1, mark, state))
        elif isinstance(message, FirstIdAtRequest):
            assert message.time_ms == 0, "nothing here has a time"
            self.send(FirstIdAtResponse(message.request_id, 0, None))
        elif isinstance(message, HindranceRequest):
            self.send(HindranceResponse(message.request_id, message.partition_id, self.server.script.hindrance))
        else:
            raise AssertionError(f"the client sent {message!r}")

    def mount(self, message: Mount) -> None:
        server, partition = self.server, message.req_id.partition_id
        generation, mark = server.generations[partition], server.logs[partition].mark
        server.mount_marks.append(message.client_mark)
        if server.script.hold_mounts:
            return
        if server.script.not_ready_mounts or message.req_id.generation != generation:
            server.script.not_ready_mounts = max(0, server.script.not_ready_mounts - 1)
            self.send(Mounted(message.req_id, MountState.NOT_READY, generation, -1))
        elif message.client_mark > mark:
            self.send(Mounted(message.req_id, MountState.CLIENT_AHEAD, generation, mark))
        elif message.client_mark != -2 and message.client_mark + 1 < server.script.trim_mark:
            self.send(Mounted(message.req_id, MountState.TRIMMED, generation, server.script.trim_mark - 1))
        else:
            sent = mark if message.client_mark == -2 else message.client_mark
            ready = Mounted(message.req_id, MountState.READY, generation, mark)
            entry = MountEntry(self, message.req_id.client_id, message.feed, message.credit_bytes, sent, ready)
            server.mounts[(partition, entry.client_id)] = entry
            server._feed(partition, entry)

    def append(self, batch: AppendBatch) -> None:
        server, script, partition = self.server, self.server.script, batch.partition_id
        server.batch_sizes.append(len(batch))
        mount = server.mounts.get((partition, batch.client_id))
        if script.hold_appends:
            return
        if script.drop_before_admitting:
            script.drop_before_admitting -= 1
            return self.drop()
        if script.queue_full:
            script.queue_full -= 1
            return self.reject(batch, RejectionCode.QUEUE_FULL)
        if script.reject_code is not None:
            code, script.reject_code = script.reject_code, None
            return self.reject(batch, code)
        if batch.generation != server.generations[partition]:
            return self.reject(batch, RejectionCode.WRONG_GENERATION)
        if mount is None or mount.connection is not self:
            return self.reject(batch, RejectionCode.NOT_MOUNTED if mount is None else RejectionCode.SUPERSEDED)
        self.admit(batch)
        if script.drop_after_admitting:
            script.drop_after_admitting -= 1
            return self.drop()
        server.pump(partition)
        return None

    def reject(self, batch: AppendBatch, code: RejectionCode) -> None:
        generation = self.server.generations[batch.partition_id]
        self.send(Rejected(batch.partition_id, generation, code, batch.sequence_numbers, "as scripted"))

    def admit(self, batch: AppendBatch) -> None:
        server, log = self.server, self.server.logs[batch.partition_id]
        start, server.script.lose_first = server.script.lose_first, 0
        if not batch.has_locks:
            if start < len(batch):
                log.append(batch, range(start, len(batch)))
            return
        for index in range(start, len(batch)):
            conflict = log.lock_conflict(batch, index)
            if conflict >= 0:
                failed = batch.sequence_numbers[index : index + 1]
                self.send(LockFailureBatch(batch.partition_id, failed, np.array([conflict], dtype=np.int64)))
                continue
            log.append(batch, [index])
            for lock in [*batch.write_locks.of(index).tolist(), *batch.append_locks.of(index).tolist()]:
                log.locks[lock] = log.mark
            server.pump(batch.partition_id)

    def read(self, message: DataRangeRequest) -> None:
        log = self.server.logs[message.partition_id]
        found = [
            batch.slice(0, message.end_id - batch.first_id)
            for batch in log.since(message.first_id)
            if batch.first_id < message.end_id
        ]
        empty = RecordBatch(message.partition_id, message.first_id, np.zeros(0, dtype=np.int32), b"")
        self.send(DataRangeResponse(message.request_id, found[0] if found else empty, log.mark, None))


class FakeDirectory:
    """Locations that a test changes."""

    def __init__(self, servers: Mapping[int, FakeServer], last_id: int = 100) -> None:
        """``last_id``: of the clients of before."""
        self.servers = servers
        self._partitions = len(servers)
        self._lock = threading.Lock()
        self._next_id = last_id
        self._callback: Callable[[Mapping[int, Location]], None] | None = None
        self.locations: dict[int, Location] = {p: server.location(p) for p, server in servers.items()}
        self.closed = False

    @property
    def partitions(self) -> int:
        return self._partitions

    @property
    def cluster_key(self) -> str:
        return THE_FAKE_CLUSTER

    @property
    def cursors(self) -> CursorBook:
        raise AssertionError("the fake cluster keeps no cursors")

    def next_client_id(self) -> int:
        with self._lock:
            self._next_id += 1
            return self._next_id

    def watch(self, callback: Callable[[Mapping[int, Location]], None]) -> Callable[[], None]:
        self._callback = callback
        callback(dict(self.locations))
        return self._cancel

    def move(self, partition: int, location: Location | None) -> None:
        if location is None:
            self.locations.pop(partition, None)
        else:
            self.locations[partition] = location
        if self._callback is not None:
            self._callback(dict(self.locations))

    def _cancel(self) -> None:
        self._callback = None

    def close(self) -> None:
        self.closed = True


class FakeChannel(Connection):
    """One of several clients that share ``connection``."""

    def __init__(self, connection: Connection, number: int) -> None:
        super().__init__(connection.server)
        self.connection = connection
        self.number = number

    def send(self, message: ClientMessage) -> int:
        return self.connection.write([channel_head(self.number), *encode_client(5, message)])

    def drop(self) -> None:
        self.connection.drop()
