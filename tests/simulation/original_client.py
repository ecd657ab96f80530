"""A client of version 4, one transaction per message, as the Java original speaks: written from docs/wire.md.

It keeps a mark, mounts with it, learns of a commit by its own ReqId in the feed, and of what is not in the log by a
lock failure, by a later entry of its own, or by the answer to its next mount.
"""

from __future__ import annotations

import asyncio
import zlib
from random import Random
from typing import TYPE_CHECKING, cast

from tests.simulation.history import Fate, Feed, Logical
from tests.simulation.payload import Payload
from tests.simulation.process import CLUSTER, Process
from waltz_ray import compat
from waltz_ray.client.directory import Location, Whereabouts
from waltz_ray.connecting import StoreDirectory
from waltz_ray.errors import CoordinationError, WaltzError
from waltz_ray.protocol.ids import LockId, ReqId
from waltz_ray.protocol.messages.original import (
    AppendRequest,
    FeedData,
    FeedRequest,
    FeedSuspended,
    LockFailure,
    MountRequest,
    MountResponse,
    MountState,
)
from waltz_ray.wire.codec import ClientMessage, decode_client, encode_client
from waltz_ray.wire.framing import MAGIC_CLIENT, MAGIC_HELLO, FrameDecoder, Hello, encode_frame, encode_hello

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["OriginalClient"]

_VERSION = 4
_OPEN_AT_ONCE = 4


class _Connection(asyncio.Protocol):
    def __init__(self, client: OriginalClient) -> None:
        self._client = client
        self._decoder = FrameDecoder(64 * 1024 * 1024)
        self._transport: asyncio.Transport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.get_extra_info("socket").setsockopt(1, 9, 1)  # SO_KEEPALIVE
        self._transport.write(encode_hello(Hello((_VERSION,), "the original")))

    def send(self, message: ClientMessage) -> None:
        assert self._transport is not None
        self._transport.write(encode_frame(MAGIC_CLIENT, _VERSION, *encode_client(_VERSION, message)))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            if frame.magic == MAGIC_HELLO:
                self._client.greeted(self)
            else:
                self._client.receive(self, decode_client(_VERSION, frame.payload))

    def connection_lost(self, exc: BaseException | None) -> None:
        self._client.lost(self)
        if not self.ended.done():
            self.ended.set_result(None)


class OriginalClient(Process):
    """One client of one partition. A failed attempt is made again under a new ReqId until it commits."""

    def __init__(self, world: World, number: int, random: Random, pace_s: float) -> None:
        super().__init__(world, f"original-{number}", session_s=6.0)
        self.random = random
        self.working = True
        self._pace_s = pace_s
        self.partition_id = random.randrange(world.partitions)
        self.mark = -1
        self.client_id = -1
        self._number = 0
        self._made = 0
        self._ready = False
        self._connection: _Connection | None = None
        self._mount: ReqId | None = None
        self._location: Location | None = None
        self._pending: dict[int, Logical] = {}  # by sequence number
        self._again: list[Logical] = []
        self._feed = Feed(self.host, self.partition_id, -1)

    # ---- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.begin()
        self._ready, self._connection, self._location = False, None, None
        self._feed = Feed(self.loop.name, self.partition_id, self.mark)
        self.world.history.feeds.append(self._feed)
        self.spawn(self._run())

    def kill(self, why: str, silent_s: float = 0.0) -> None:
        if self.up:
            super().kill(why, silent_s)
            for logical in self._pending.values():
                self._told(logical, Fate("unknown"))
            for logical in self._again:
                self._told(logical, Fate("absent"))
            self._pending, self._again = {}, []

    async def _run(self) -> None:
        assert self.zookeeper is not None
        try:
            directory = StoreDirectory(self.zookeeper, CLUSTER)
            self.client_id = directory.next_client_id()
            directory.watch(self._located)
        except CoordinationError as error:
            self.kill(f"cannot start: {error}")
            self.start_later(0.5)
            return
        self.spawn(self._work())
        while True:
            location = self._location
            if location is not None and location.endpoint is not None:
                try:
                    connecting = self.loop.create_connection(lambda: _Connection(self), *location.endpoint)
                    async with compat.timeout(5):
                        _, protocol = await connecting
                    assert isinstance(protocol, _Connection)
                    await protocol.ended
                except OSError:  # TimeoutError is one
                    pass
            await asyncio.sleep(self.random.uniform(0.05, 0.5))

    def _located(self, locations: Whereabouts) -> None:
        assert not isinstance(locations, WaltzError), "the space of all clients cannot be deleted"

        def take() -> None:
            self._location = locations.get(self.partition_id)
            if self._connection is not None:
                self._connection.close()  # a hung server would keep it for ever

        if locations.get(self.partition_id) != self._location:
            self.loop.call_soon_threadsafe(take)

    # ---- the protocol -------------------------------------------------------------------------------------

    def _next_req_id(self) -> ReqId:
        assert self._location is not None
        self._number += 1
        return ReqId(self.client_id, self._location.generation, self.partition_id, self._number)

    def greeted(self, connection: _Connection) -> None:
        if self._location is None:
            connection.close()
            return
        self._connection, self._ready = connection, False
        self._mount = self._next_req_id()
        connection.send(MountRequest(self._mount, self.mark, self._number))

    def lost(self, connection: _Connection) -> None:
        if connection is self._connection:
            self._connection, self._ready = None, False

    def receive(self, connection: _Connection, message: ClientMessage) -> None:
        if connection is not self._connection:
            return
        if isinstance(message, FeedData):
            self._on_feed(message)
        elif isinstance(message, FeedSuspended):
            connection.send(FeedRequest(message.req_id, self.mark))
        elif isinstance(message, LockFailure):
            pending = self._pending.pop(message.req_id.sequence_number, None)
            if pending is not None:
                # A full queue is told like this too, with a transaction that may have been applied already.
                self._again.append(pending)
        elif isinstance(message, MountResponse) and message.req_id == self._mount:
            if message.state is MountState.READY:
                self._ready = True
                self._failed_before(self._number + 1)
            elif message.state is MountState.CLIENT_AHEAD:
                self.world.history.blame("no_loss", f"{self.loop.name} at {self.mark} is told it is ahead of the log")
            else:
                connection.close()

    def _on_feed(self, entry: FeedData) -> None:
        if entry.transaction_id <= self.mark:
            return
        self._feed.entries.append((entry.transaction_id, str(tuple(entry.req_id))))
        self.mark = entry.transaction_id
        if entry.req_id.client_id == self.client_id:
            self._failed_before(entry.req_id.sequence_number)
            pending = self._pending.pop(entry.req_id.sequence_number, None)
            if pending is not None:
                self._told(pending, Fate("committed", entry.transaction_id))

    def _failed_before(self, number: int) -> None:
        for sequence_number in [n for n in self._pending if n < number]:
            self._again.append(self._pending.pop(sequence_number))

    # ---- work ---------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(1 / self._pace_s))
            if self._again:
                logical = self._again[0]
                if self._send(logical):
                    self._again.remove(logical)
            elif self.working and len(self._pending) < _OPEN_AT_ONCE and self._ready:
                self._made += 1
                uid = f"{self.host}/{self._made}"
                logical = self.world.history.logical(uid, self.partition_id, self.loop.name, self.world.scheduler.now)
                self._send(logical)

    def _send(self, logical: Logical) -> bool:
        if self._connection is None or not self._ready:
            return False
        locks: tuple[tuple[int, ...], ...] = ((), (), ())
        if self.random.random() < 0.5:
            locks = Payload.random_locks(self.random)
        data = Payload(logical.uid, self.mark, *locks).encode(self.random.randrange(100), self.world.record_bytes)
        req_id = self._next_req_id()
        self._pending[req_id.sequence_number] = logical
        write, read, append = (tuple(LockId("account", number).hash for number in kind) for kind in locks)
        self._connection.send(AppendRequest(req_id, self.mark, write, read, append, 0, data, zlib.crc32(data)))
        return True

    def _told(self, logical: Logical, fate: Fate) -> None:
        self.world.history.fate(logical.uid, fate)
        self.tell(f"{logical.uid} in p{logical.partition_id}: {fate.kind} {fate.transaction_id}")
