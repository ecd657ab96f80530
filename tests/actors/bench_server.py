"""A real ``Server`` with one open partition and clients at its door, without sockets: what one turn of its loop costs.

The partition's session is opened by the protocol tests' bench; from then on the real driver carries its effects out.
Replicas confirm sessions at once and take no appends.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import numpy as np

from tests.protocol.test_partition import Bench
from waltz_ray.actors.client_connection import ClientConnection
from waltz_ray.actors.replica_link import ReplicaLink
from waltz_ray.actors.server import Server
from waltz_ray.config import ServerConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.protocol.partition.events import SessionConfirmed
from waltz_ray.protocol.records import RecordBatch, build_records
from waltz_ray.runtime.status import LinkStatus
from waltz_ray.wire.codec import ClientMessage, decode_client, encode_client
from waltz_ray.wire.framing import MAGIC_CLIENT, MAGIC_HELLO, FrameDecoder, Hello, encode_frame, encode_hello

__all__ = ["GENERATION", "Door", "Replica", "Wire", "bench_server", "open_with"]

GENERATION = 3


class Wire(asyncio.Transport):
    """The client's end of a connection: keeps what is written. ``taking`` = False: the peer takes nothing."""

    def __init__(self, address: str = "10.0.0.1", taking: bool = True) -> None:
        super().__init__()
        self.address = address
        self.taking = taking
        self.written = bytearray()
        self.unsent = 0
        self.ended = ""
        self.reading = True
        self._high = 64 * 1024
        self._stalled = False
        self.protocol: Any = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.address, 4711) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or self._high

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return bool(self.ended)

    def write(self, data: Any) -> None:
        if self.taking:
            self.written += data
            return
        self.unsent += len(data)
        if self.unsent > self._high and not self._stalled:
            self._stalled = True
            self.protocol.pause_writing()

    def take_all(self) -> None:
        """The peer has taken what waited."""
        self.taking, self.unsent = True, 0
        if self._stalled:
            self._stalled = False
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def _end(self, how: str) -> None:
        if not self.ended:
            self.ended = how
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self._end("aborted")

    def close(self) -> None:
        self._end("closed")


class Door:
    """One client: a version, its wire and what it has been told."""

    def __init__(
        self,
        server: Server,
        version: int = 5,
        address: str = "10.0.0.1",
        taking: bool = True,
        wire: Wire | None = None,
    ) -> None:
        self.version = version
        self._decoder = FrameDecoder(1 << 30)
        self._told: list[ClientMessage] = []
        self.wire = wire or Wire(address, taking)
        self.connection: ClientConnection = server.new_connection()
        self.wire.protocol = self.connection
        self.connection.connection_made(self.wire)

    def greet(self, message: str = "test") -> Door:
        self.connection.data_received(encode_hello(Hello((self.version,), message)))
        return self

    def send(self, *messages: ClientMessage) -> None:
        version = self.version
        frames = [encode_frame(MAGIC_CLIENT, version, *encode_client(version, message)) for message in messages]
        self.connection.data_received(b"".join(frames))

    def told(self) -> list[ClientMessage]:
        frames = self._decoder.feed(bytes(self.wire.written))
        self.wire.written.clear()
        self._told += [decode_client(frame.version, frame.payload) for frame in frames if frame.magic != MAGIC_HELLO]
        return self._told


class Replica:
    """A link whose replica confirms every session and answers nothing else."""

    up = True
    endpoint = None

    def status(self) -> LinkStatus:
        return LinkStatus(True, None, {})

    def __init__(self, server: Server, replica_id: int) -> None:
        self.server, self.replica_id = server, replica_id

    def confirm(self, partition_id: int, session_id: int, number: int) -> None:
        self.server.drivers[partition_id].handle(SessionConfirmed(session_id, self.replica_id, number))

    def append(self, partition_id: int, session_id: int, last_id: int, frame: bytes) -> None:
        """It never answers."""


def bench_server(config: ServerConfig | None = None, bench: Bench | None = None) -> Server:
    """In a running loop. Partition 0 is open if a bench is given."""
    store = ClusterStore(MemoryZooKeeper(MemoryZooKeeperServer()), "c")
    store.initialize(2, [0, 1, 2], {})
    server = Server(1, store, config or ServerConfig())
    if bench is not None:
        server.assigned = {0: GENERATION}
        for replica_id in range(3):
            server.links[replica_id] = cast(ReplicaLink, Replica(server, replica_id))
        server.drivers[0].machine = bench.partition
    return server


def open_with(batches: int, records_each: int = 1, config: ServerConfig | None = None) -> Bench:
    """A partition that has committed so many batches."""
    bench = Bench(config or ServerConfig(join_grace_ms=0)).open()
    log = bench.partition.state.log
    assert log is not None
    for _ in range(batches):
        log.retained.append(records_of(log.retained.end_id, records_each))
    log.high_water_mark = log.retained.end_id - 1
    return bench


def records_of(first_id: int, count: int, size: int = 20) -> RecordBatch:
    numbers = np.arange(count, dtype=np.int32)
    zeros = np.zeros(count, dtype=np.int32)
    lengths = np.full(count, size, dtype=np.int32)
    columns = (numbers, zeros, lengths, zeros.astype(np.uint32))
    return build_records(0, first_id, 7, GENERATION, columns, bytes(size * count))
