"""Actors of a key/value space in one thread, with a dict in place of the log, behind real sockets.

What the log promises, the dict has: a write is in it for all actors at once, and a request that was done is known. It
says of itself what a real one does: hashmasks, moves, splits. And it can be made to fail as real ones do.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.client.async_client import LoopThread
from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.client.client import WaltzClient
from waltz_ray.errors import InvalidInput
from waltz_ray.kv.client.members import StaticKvDirectory
from waltz_ray.kv.messages import (
    ABSENT,
    ANY_VERSION,
    Ack,
    Capabilities,
    Command,
    DataLock,
    Fail,
    FailCode,
    FailInfo,
    Get,
    GetMany,
    Goodbye,
    Hashmask,
    Hashmasks,
    KvHello,
    LockNative,
    Op,
    Opcode,
    OpKind,
    OpResult,
    Ping,
    Put,
    PutDone,
    Renew,
    Reply,
    ScanCommand,
    ScanItem,
    Scanned,
    Seen,
    SeenMany,
    ServerList,
    SpaceMeant,
    TryElsewhere,
    Unknown,
    UnlockNative,
)
from waltz_ray.kv.routing import fnv1a_32
from waltz_ray.kv.wire import COMMAND_OPCODES, decode_command, encode_command, encode_reply
from waltz_ray.kv.wire_framer import KvFramer
from waltz_ray.net.listener import LoopListener, Tls, listen

__all__ = ["FakeKvActor", "FakeKvCluster", "FakePlace"]


def now_s() -> float:
    """As an actor's clock has it: in whole milliseconds."""
    return int(time.monotonic() * 1000) / 1000


@dataclass
class Held:
    """An item of the dict."""

    kind: int
    data: bytes
    version: int
    deadline: float  # 0 = never


@dataclass
class FakePlace:
    """``KvPlace`` of addresses; it pickles."""

    servers: Sequence[str]
    partitions: int = 16

    def directory(self) -> StaticKvDirectory:
        return StaticKvDirectory(self.servers, self.partitions)

    def log(self) -> WaltzClient:
        raise InvalidInput("there is no log")

    async def log_async(self) -> AsyncWaltzClient:
        raise InvalidInput("there is no log")


@dataclass
class State:
    """What the log would have."""

    items: dict[tuple[bytes, bytes], Held] = field(default_factory=dict)
    locks: dict[bytes, tuple[int, float]] = field(default_factory=dict)
    requests: dict[tuple[int, int], int] = field(default_factory=dict)
    done: Counter[tuple[int, int]] = field(default_factory=Counter)  # how often each write has happened
    settled: dict[int, int] = field(default_factory=dict)
    version: int = 0

    def write(self, client: int, sequence: int, settled: int) -> int:
        """One more transaction."""
        assert settled <= sequence, "it may be repeated, so it is not settled"
        self.version += 1
        self.done[client, sequence] += 1
        self.requests[client, sequence] = self.version
        self.settled[client] = max(settled, self.settled.get(client, 0))
        return self.version

    def item(self, map_name: bytes, name: bytes) -> Held | None:
        held = self.items.get((map_name, name))
        return None if held is None or 0 < held.deadline <= now_s() else held


class FakeKvCluster:
    """``with FakeKvCluster(3) as cluster``. Everything that begins with no underscore is for the test's thread."""

    def __init__(
        self, actors: int = 3, partitions: int = 16, mask: int = 0xF, dialect: str = "doc", tls: Tls | None = None
    ) -> None:
        self.state = State()
        self.partitions, self.dialect, self.tls = partitions, dialect, tls
        self.thread = LoopThread()
        self.actors = [FakeKvActor(self, number) for number in range(actors)]
        self.mask = mask
        self.owners = [bucket % actors for bucket in range(mask + 1)]  # -1: nobody
        for actor in self.actors:
            self.thread.call(actor.listen())

    def place(self, only: int | None = None) -> FakePlace:
        """``only``: one actor; of the others a client hears from it."""
        servers = [actor.server for actor in self.actors]
        return FakePlace(servers if only is None else [servers[only]], self.partitions)

    def owner(self, name: bytes) -> int:
        return self.owners[fnv1a_32(name) & self.mask]

    def move(self, bucket: int, actor: int, told: bool = True) -> None:
        """To another actor, -1 = nobody; ``told``: announced to everybody."""
        self.thread.call(self._move(bucket, actor, told))

    def move_all(self, actor: int, told: bool = True) -> None:
        for bucket in range(self.mask + 1):
            self.move(bucket, actor, told)

    def split(self, told: bool = True) -> None:
        """All buckets at once; every second of the finer ones goes to the next actor."""
        self.thread.call(self._split(told))

    async def _move(self, bucket: int, actor: int, told: bool) -> None:
        before, self.owners[bucket] = self.owners[bucket], actor
        if told:
            for number, instance in ((before, -1), (actor, 0)):
                if number >= 0:
                    self.actors[number].tell(Hashmask(self.mask, bucket, instance))

    async def _split(self, told: bool) -> None:
        old, self.mask = self.owners, (self.mask << 4) | 0xF
        count = len(self.actors)
        self.owners = [(old[b & (len(old) - 1)] + b // len(old)) % count for b in range(self.mask + 1)]
        if told:
            for actor in self.actors:
                for message in actor.masks():
                    actor.tell(message)

    def __enter__(self) -> FakeKvCluster:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self.actors:
            self.thread.call(actor.die())
        assert self.thread.end() == set()


class FakeConnection(asyncio.Protocol):
    """One of an actor's."""

    def __init__(self, actor: FakeKvActor) -> None:
        self._actor = actor
        self._framer = KvFramer()
        self._unread = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._actor.lives:
            self._actor.connections.add(self)
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if self._actor.reads:
            data, self._unread = self._unread, b""
            for opcode, replied_to, message_id, payload in self._framer.feed(data):
                if not replied_to and self in self._actor.connections:
                    assert payload is not None
                    self._actor.handle(self, opcode, message_id, payload)

    def write(self, data: bytes) -> None:
        if self in self._actor.connections:
            assert self._transport is not None
            self._transport.write(data)

    def abort(self) -> None:
        self._actor.connections.discard(self)
        assert self._transport is not None
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._actor.connections.discard(self)


class FakeKvActor:
    """One port. ``faults``: for each of the next data commands, in their order: "" = none, "before" = the connection is
    dropped and nothing done, "after" = done and dropped, "late" = done, dropped, and done again later (a copy that was
    on its way), or a FailCode, refused with it."""

    def __init__(self, cluster: FakeKvCluster, number: int) -> None:
        self.number = number
        self.server = ""
        self.faults: deque[str | FailCode] = deque()
        self.seen: list[Command] = []
        """Data commands that came."""
        self.native = True
        self.may_read = True
        """Clients have the right to."""
        self.identity = ""
        """Of the space that it serves; "": it does not know that one may be meant."""
        self._cluster = cluster
        self._listener: LoopListener | None = None
        self.connections: set[FakeConnection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()  # of locks
        self.lives = self.reads = False
        self._last_id = 7000
        self._late: list[Command] = []

    # ---- life

    async def listen(self, port: int = 0) -> None:
        self.lives = self.reads = True
        self._listener = await listen(
            "a fake kv actor", lambda: FakeConnection(self), "127.0.0.1", port, self._cluster.tls
        )
        self.server = f"127.0.0.1:{self._listener.port}"

    def kill(self) -> None:
        """It accepts nothing, and every connection is reset."""
        self._cluster.thread.call(self.die())

    def revive(self) -> None:
        self._cluster.thread.call(self.listen(int(self.server.rpartition(":")[2])))

    def pause(self) -> None:
        """As SIGSTOP: connections live, nothing is answered, nothing is told."""
        self._cluster.thread.call(self._set(False))

    def wake(self) -> None:
        self._cluster.thread.call(self._set(True))

    async def _set(self, reads: bool) -> None:
        self.reads = reads
        if reads:
            for connection in [*self.connections]:
                connection.data_received(b"")

    async def die(self) -> None:
        self.lives = False
        if self._listener is not None:
            self._listener.close()
        for writer in [*self.connections]:
            writer.abort()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- the protocol

    def tell(self, command: Command) -> None:
        for writer in self.connections if self.reads else ():
            self._last_id += 1
            writer.write(encode_command(self._last_id, command))

    def masks(self) -> list[Command]:
        cluster = self._cluster
        rows = tuple((bucket, 0) for bucket, owner in enumerate(cluster.owners) if owner == self.number)
        if cluster.dialect == "doc":
            return [Hashmasks(cluster.mask, rows)]
        return [Hashmask(cluster.mask, bucket, instance) for bucket, instance in rows]

    def handle(self, writer: FakeConnection, opcode: int, message_id: int, payload: bytes) -> None:
        unknown = (opcode >= 3000 and not self.native) or (opcode == Opcode.SPACE and not self.identity)
        if opcode not in COMMAND_OPCODES or unknown:
            writer.write(encode_reply(opcode, message_id, Unknown(opcode)))
            return
        command = decode_command(opcode, payload)
        if isinstance(command, LockNative):
            task = asyncio.ensure_future(self._lock(writer, opcode, message_id, command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        reply = self._basic(command)
        if reply is not None:
            writer.write(encode_reply(opcode, message_id, reply))
            if isinstance(command, KvHello):
                self._introduce(writer)
            return
        reply = self._data(writer, command)
        if reply is not None:
            writer.write(encode_reply(opcode, message_id, reply))

    def _basic(self, command: Command) -> Reply | None:
        if isinstance(command, Capabilities):
            return Ack() if command.opcode in COMMAND_OPCODES and (self.native or command.opcode < 3000) else Fail()
        if isinstance(command, SpaceMeant):
            return Ack() if command.identity == self.identity else Fail()
        return Ack() if isinstance(command, KvHello | Ping | Goodbye) else None

    def _introduce(self, writer: FakeConnection) -> None:
        servers = tuple(actor.server for actor in self._cluster.actors)
        lists = [ServerList(servers)] if self._cluster.dialect == "doc" else [ServerList((one,)) for one in servers]
        for command in [*lists, *self.masks()]:
            self._last_id += 1
            writer.write(encode_command(self._last_id, command))

    def _data(self, writer: FakeConnection, command: Command) -> Reply | None:
        """The reply; None: the connection is dropped instead."""
        if isinstance(command, Get):
            return self._get(command) if self.may_read else FailInfo(FailCode.NOT_ALLOWED, "it may not read")
        fault = self.faults.popleft() if self.faults else ""
        if fault == "before":
            writer.abort()
            return None
        self.seen.append(command)
        if isinstance(fault, FailCode):
            return FailInfo(fault, f"it was told to say {fault.name}")
        reply = self._done(command)
        if fault in ("after", "late"):
            writer.abort()
            if fault == "late":
                self._late.append(command)
            return None
        return reply

    def repeat_late(self) -> None:
        """Copies of commands arrive that had been on their way for long."""

        async def again() -> None:
            for command in self._late:
                self._done(command)
            self._late.clear()

        self._cluster.thread.call(again())

    def _mine(self, key_hash: int) -> bool:
        return self._cluster.owners[key_hash & self._cluster.mask] == self.number

    def _elsewhere(self, key_hash: int) -> Reply:
        owner = self._cluster.owners[key_hash & self._cluster.mask]
        if owner < 0:
            return FailInfo(FailCode.NOT_READY, "nobody serves this bucket just now")
        return TryElsewhere(self._cluster.actors[owner].server)

    def _get(self, command: Get) -> Reply:
        return Fail() if self._mine(command.key_hash) else self._elsewhere(command.key_hash)

    def _done(self, command: Command) -> Reply:
        if isinstance(command, Put):
            results = [self._put(command, command.sequence + n, op) for n, op in enumerate(command.ops)]
            return PutDone(tuple(results))
        if isinstance(command, GetMany):
            return SeenMany(tuple(self._seen(command.map_name, name) for name in command.names))
        if isinstance(command, ScanCommand):
            return self._scan(command)
        assert isinstance(command, UnlockNative | Renew)
        if not self._mine(fnv1a_32(command.name)):
            return self._elsewhere(fnv1a_32(command.name))
        return self._of_lock(command)

    def _put(self, put: Put, sequence: int, op: Op) -> OpResult:
        state = self._cluster.state
        if not self._mine(fnv1a_32(op.name)):
            code = (
                FailCode.NOT_READY if isinstance(self._elsewhere(fnv1a_32(op.name)), FailInfo) else FailCode.ELSEWHERE
            )
            return OpResult(code)
        known = state.requests.get((put.client, sequence))
        if known is not None:
            return OpResult(FailCode.OK, known)
        if sequence < state.settled.get(put.client, 0):
            return OpResult(FailCode.BAD_REQUEST)  # a late copy: it has had its answer
        item = state.item(put.map_name, op.name)
        version = -1 if item is None else item.version
        if op.expected != ANY_VERSION and version != (-1 if op.expected == ABSENT else op.expected):
            return OpResult(FailCode.CONFLICT, version)
        if op.kind != OpKind.SET and item is None:
            return OpResult(FailCode.MISSING)
        new = state.write(put.client, sequence, put.settled)
        deadline = now_s() + op.expires_ms / 1000 if op.expires_ms else 0.0
        if op.kind == OpKind.SET:
            state.items[put.map_name, op.name] = Held(op.type, op.data, new, deadline)
        elif op.kind == OpKind.DELETE:
            del state.items[put.map_name, op.name]
        else:
            assert item is not None
            item.deadline, item.version = deadline, new
        return OpResult(FailCode.NOT_REPLICATED if put.fullwait and op.data == b"alone" else FailCode.OK, new)

    def _seen(self, map_name: bytes, name: bytes) -> Seen:
        if not self._mine(fnv1a_32(name)):
            return Seen(FailCode.ELSEWHERE)
        item = self._cluster.state.item(map_name, name)
        if item is None:
            return Seen(FailCode.MISSING)
        return Seen(FailCode.OK, item.kind, item.data, item.version, self._left_ms(item))

    @staticmethod
    def _left_ms(item: Held) -> int:
        return max(1, round((item.deadline - now_s()) * 1000)) if item.deadline else 0

    def _scan(self, scan: ScanCommand) -> Reply:
        cluster = self._cluster
        partition_mask = cluster.partitions - 1
        buckets = [b for b, owner in enumerate(cluster.owners) if owner == self.number]
        mine = tuple(bucket for bucket in buckets if bucket & partition_mask == scan.partition)
        names = sorted(
            name
            for map_name, name in cluster.state.items
            if map_name == scan.map_name
            and name.startswith(scan.prefix)
            and name > scan.after
            and fnv1a_32(name) & cluster.mask in mine
            and cluster.state.item(map_name, name) is not None
        )
        found = []
        for name in names[: scan.limit]:
            item = cluster.state.items[scan.map_name, name]
            found.append(ScanItem(name, item.kind, item.data, item.version, self._left_ms(item)))
        return Scanned(cluster.mask, mine, len(names) > scan.limit, cluster.state.version, tuple(found))

    # ---- locks

    async def _lock(self, writer: FakeConnection, opcode: int, message_id: int, command: LockNative) -> None:
        until = time.monotonic() + command.wait_ms / 1000
        fault = self.faults.popleft() if self.faults else ""
        if fault == "before":
            writer.abort()
            return
        self.seen.append(command)
        while (reply := self._taken(command)) is None:
            if time.monotonic() >= until:
                reply = Fail()
                break
            await asyncio.sleep(0.005)
        if fault == "after":
            writer.abort()
        else:
            writer.write(encode_reply(opcode, message_id, reply))

    def _taken(self, command: LockNative) -> Reply | None:
        state, name = self._cluster.state, command.name
        if not self._mine(fnv1a_32(name)):
            return self._elsewhere(fnv1a_32(name))
        code, deadline = state.locks.get(name, (0, 0.0))
        known = state.requests.get((command.client, command.sequence))
        if known is not None:
            return DataLock(code) if code >> 16 == known else Fail()
        if deadline > time.monotonic():
            return None
        version = state.write(command.client, command.sequence, command.settled)
        state.locks[name] = (version << 16, time.monotonic() + command.lease_ms / 1000)
        return DataLock(version << 16)

    def _of_lock(self, command: UnlockNative | Renew) -> Reply:
        state = self._cluster.state
        code, deadline = state.locks.get(command.name, (0, 0.0))
        if (command.client, command.sequence) in state.requests:
            return DataLock(code) if isinstance(command, Renew) else Ack()
        if code != command.code or deadline <= time.monotonic():
            return Fail()
        state.write(command.client, command.sequence, command.settled)
        if isinstance(command, Renew):
            state.locks[command.name] = (code, time.monotonic() + command.lease_ms / 1000)
            return DataLock(code)
        del state.locks[command.name]
        return Ack()
