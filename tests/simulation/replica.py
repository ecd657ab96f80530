"""A storage replica: the real service over the real store on a faulty disk, behind a simulated endpoint.

The endpoint is the one stand-in: ``actors.replica_endpoint`` blocks in threads. The contract is the same: a turn is
everything that has arrived while the disk was busy, it is handled in one call, and its answers leave when the disk is
done. A failed sync ends the process. Power can fail before any single call that changes the disk.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, cast

from tests.simulation.network import Stream
from tests.simulation.process import Process
from tests.storage.faulty_disk import Crashed, FaultyDisk, Survival
from waltz_ray.config import StorageConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import ControlFileMissing, CoordinationError, DiskFull, SyncFailed, WireError
from waltz_ray.protocol.ids import NO_SESSION, NO_TRANSACTION, Endpoint
from waltz_ray.storage.disk import Writable
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.wire.framing import (
    MAGIC_HELLO,
    MAGIC_REPLICA,
    FrameDecoder,
    Hello,
    decode_hello,
    encode_frame,
    encode_hello,
    negotiate,
)
from waltz_ray.wire.replica_messages import (
    REPLICA_VERSION,
    REPLICA_VERSIONS,
    Appended,
    Open,
    RefusalCode,
    Refused,
    ReplicaRequest,
    StateReply,
    Truncate,
    decode_replica,
    encode_replica,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["SimDisk", "SimReplica"]

DIRECTORY = "/data"
_RETRY_S, _REFUSED_RETRY_S = 0.2, 2.0


class SimDisk(FaultyDisk):
    """A disk that outlives its processes."""

    def end_process(self) -> None:
        super().end_process()
        self.calls.clear()

    def lose_everything(self) -> None:
        """Another disk, empty."""
        self._files.clear()
        self._durable_files.clear()
        self._folders, self._durable_folders = {"/"}, {"/"}

    def pwrite(self, handle: int, data: Writable, offset: int) -> None:
        if len(self.calls) > 1000:
            self.calls.clear()
        super().pwrite(handle, data, offset)

    def fill_up(self, room_bytes: int) -> None:
        self.capacity_bytes = self._used() + room_bytes


class _Connection(asyncio.Protocol):
    """One server's stream to the replica."""

    def __init__(self, replica: SimReplica) -> None:
        self._replica = replica
        self._decoder = FrameDecoder(64 * 1024 * 1024)
        self._transport: Stream | None = None
        self._greeted = False
        self._waiting: list[ReplicaRequest] = []
        self._busy = False
        self.peer = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Stream, transport)
        self.peer = self._transport.other.loop.name
        self._transport.write(encode_hello(Hello(REPLICA_VERSIONS, self._replica.loop.name)))

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            for frame in self._decoder.feed(data):
                if not self._greeted:
                    if frame.magic != MAGIC_HELLO:
                        raise WireError("the first frame must be a HELLO")
                    negotiate(REPLICA_VERSIONS, decode_hello(frame.payload).versions)
                    self._greeted = True
                    self._decoder.expect(MAGIC_REPLICA, REPLICA_VERSION)
                else:
                    self._waiting.append(cast(ReplicaRequest, decode_replica(frame.payload)))
        except WireError as error:
            self._replica.world.scheduler.fail(error)  # nobody damages bytes here, so it is a bug
        if not self._busy:
            self._turn()

    def _turn(self) -> None:
        requests, self._waiting = self._waiting, []
        self._busy = bool(requests)
        if self._replica.delays_truncate and any(isinstance(request, Truncate) for request in requests):
            self._late(requests)
        elif requests:
            self._handle(requests)

    def _late(self, requests: list[ReplicaRequest]) -> None:
        """The server loses this connection now; the replica comes to these orders, still in its buffer, later."""
        assert self._transport is not None
        self._replica.delays_truncate = False
        self._replica.tell(f"is late with {requests}, and {self.peer} has gone")
        self._transport.other.hear_of_the_end(0.0002, ConnectionResetError("connection reset by the peer"))
        asyncio.get_running_loop().call_later(self._replica.random.uniform(0.05, 0.8), self._handle, requests)

    def _handle(self, requests: list[ReplicaRequest]) -> None:
        frames = self._replica.handle(requests, self)
        asyncio.get_running_loop().call_later(self._replica.disk_delay_s(), self._answer, frames)

    def _answer(self, frames: bytes) -> None:
        assert self._transport is not None
        self._transport.write(frames)
        self._turn()


class SimReplica(Process):
    """Replica ``replica_id``; its disk lasts, its processes do not."""

    def __init__(self, world: World, replica_id: int, config: StorageConfig) -> None:
        super().__init__(world, f"replica-{replica_id}", session_s=3.0)
        self.replica_id = replica_id
        self.config = config
        self.random = Random(world.random.getrandbits(64))
        self.disk = SimDisk(world.random.getrandbits(32))
        self.store: ReplicaStore | None = None
        self.service: ReplicaService | None = None
        self._recovering: ReplicaStore | None = None
        self.slow_until_s = 0.0
        self.acknowledged: dict[int, int] = {}
        """Per partition the last ID it has answered for and was not told to cut since: durable, whatever happens."""
        self.delays_truncate = False
        """The next order to truncate is met late, after its connection was lost."""
        self.lost_files = False
        """It has told a server so, since it was replaced last."""

    def disk_delay_s(self) -> float:
        if self.world.scheduler.now < self.slow_until_s:
            return self.random.uniform(0.05, 0.6)
        return self.random.uniform(5e-5, 2e-3)

    def log(self, partition_id: int) -> PartitionLog | None:
        """The partition's log while the process is up and serves."""
        return self.store.partition(partition_id) if self.up and self.store is not None else None

    # ---- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        store = self.begin()
        self.spawn(self._start(store))

    async def _start(self, cluster: ClusterStore) -> None:
        listener = None
        while True:
            try:
                if self.store is None:
                    self._recovering = self._recovering or self._open(cluster)
                    self._recover(self._recovering)
                    self.store, self._recovering = self._recovering, None
                    self.service = ReplicaService(self.store)
                if listener is None:
                    listener = await self.loop.create_server(lambda: _Connection(self), self.host, 0)
                endpoint = Endpoint(*listener.sockets[0].getsockname())
                await self.loop.run_in_executor(
                    None, cluster.announce_replica, self.replica_id, endpoint, f"{self.host}.{self.life}"
                )
            except ControlFileMissing as error:
                self.tell(f"refused: {error}")
                await asyncio.sleep(_REFUSED_RETRY_S)
            except (CoordinationError, DiskFull) as error:
                self.tell(f"cannot start yet: {error}")
                await asyncio.sleep(_RETRY_S)
            except Crashed:
                self.lose_power(self.survival())
                return
            except SyncFailed as error:
                self._fatal(error)
                return
            else:
                self.tell(f"serves at {endpoint}")
                return

    def _open(self, cluster: ClusterStore) -> ReplicaStore:
        """``actors.storage_replica.open_storage``, without the modules that import Ray."""
        info = cluster.info()
        try:
            store = ReplicaStore.open(self.disk, DIRECTORY, info.cluster_key, self.config)
        except ControlFileMissing as error:
            entries = [cluster.partition(p)[0].replicas.get(self.replica_id) for p in range(info.partitions)]
            if any(entry is not None and entry.session_id != NO_SESSION for entry in entries):
                raise ControlFileMissing(f"{error}; it has joined sessions, so it must be replaced") from error
            store = ReplicaStore.create(self.disk, DIRECTORY, info.cluster_key, info.partitions, self.config)
        return store

    def _recover(self, store: ReplicaStore) -> None:
        for partition_id in store.partition_ids:
            log = store.partition(partition_id)
            self.tell(
                f"partition {partition_id}: session {log.session_id}, last {log.last_id}, "
                f"low {log.low_water_mark}/{log.local_low_water_mark}, damaged {log.damaged}"
            )
            acknowledged = self.acknowledged.get(partition_id, NO_TRANSACTION)
            if log.damaged is None and log.last_id < acknowledged:
                self.world.history.blame(
                    "no_loss",
                    f"partition {partition_id}: {self.host} acknowledged {acknowledged} and has {log.last_id}",
                )

    def kill(self, why: str, silent_s: float = 0.0) -> None:
        if self.up:
            super().kill(why, silent_s)
            self.store = self.service = self._recovering = None
            self.disk.end_process()

    def lose_power(self, survival: Survival) -> None:
        """The machine stops: what was not synced may be lost or torn."""
        self.world.history.faults["power lost"] += 1
        if self.up:
            super().kill(
                f"power lost (kept {survival.kept:.1f}, torn {survival.torn:.1f})", self.random.choice([0, 2.0])
            )
            self.store = self.service = self._recovering = None
        self.disk.crash(survival)
        self.disk.calls.clear()
        self.start_later(self.random.uniform(0.1, 3.0))

    def survival(self) -> Survival:
        kept = self.random.choice([0.0, 0.3, 0.7, 1.0])
        return Survival(kept, self.random.uniform(0.0, 1.0 - kept))

    def _fatal(self, error: Exception) -> None:
        self.world.history.faults["process ended by a failed sync"] += 1
        self.kill(f"{error}")
        self.disk.fail_sync = False
        self.start_later(self.random.uniform(0.1, 2.0))

    # ---- serving ------------------------------------------------------------------------------------------

    def handle(self, requests: list[ReplicaRequest], connection: _Connection) -> bytes:
        """One turn; the answers' frames. Nothing of them leaves if the process ended."""
        assert self.service is not None
        for request in requests:
            if isinstance(request, Truncate):
                kept = min(self.acknowledged.get(request.partition_id, NO_TRANSACTION), request.last_id)
                self.acknowledged[request.partition_id] = kept
            elif isinstance(request, Open):
                self.world.history.opens(connection, request.partition_id, request.session_id)
        try:
            replies = self.service.handle(requests, connection)
        except Crashed:
            self.lose_power(self.survival())
            return b""
        except SyncFailed as error:
            self._fatal(error)
            return b""
        for reply in replies:
            if isinstance(reply, Appended):
                self.acknowledged[reply.partition_id] = reply.last_id
                self.world.history.appended(connection.peer, reply.partition_id, reply.session_id)
                self.tell(f"p{reply.partition_id} s{reply.session_id} acknowledges {reply.last_id}")
            elif isinstance(reply, StateReply | Refused):
                self.tell(f"to {connection.peer}: {reply}")
                if isinstance(reply, Refused):
                    self.world.history.refused(self.loop.name, connection.peer, connection, reply)
                    self.lost_files |= reply.code is RefusalCode.LOST_FILES
        return b"".join(encode_frame(MAGIC_REPLICA, REPLICA_VERSION, *encode_replica(reply)) for reply in replies)
