"""``server/<n>``: the Ray shell around a partition server, with the actor-handle transport."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Callable
from dataclasses import replace

from waltz_ray import compat
from waltz_ray.actors.access_guard import AccessGuard
from waltz_ray.actors.actor_log import begin_log
from waltz_ray.actors.metrics import ServerGauges, keep_telling
from waltz_ray.actors.process_tuning import quieten_garbage_collector, take_normal_priority
from waltz_ray.actors.server import Server
from waltz_ray.actors.set_follower import SetFollower
from waltz_ray.actors.settings import own_host, own_settings
from waltz_ray.config import ClusterConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.pulse import ZooKeeperPulse
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.net.tls import replica_tls
from waltz_ray.runtime.process import about_process
from waltz_ray.runtime.status import ActorState, ServerStatus
from waltz_ray.security.handshakes import Keyring
from waltz_ray.security.secret_file import SecretFile

__all__ = ["Channel", "PartitionServer"]

log = logging.getLogger(__name__)

_LONG_POLL_S = 1.0


class PartitionServer:
    """An async actor. Every method may be called again after a lost answer; none is on the data path but channels."""

    def __init__(self, cluster: str, zookeeper: str, server_id: int) -> None:
        begin_log(cluster, f"server/{server_id}")
        self._cluster = cluster
        self._zookeeper = zookeeper
        self._server_id = server_id
        self._server: Server | None = None
        self._client: KazooZooKeeper | None = None
        self._pulse: ZooKeeperPulse | None = None
        self._starting: asyncio.Task[Server] | None = None
        self._failure = ""
        self._channels: dict[str, Channel] = {}
        self._metrics: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Idempotent: the endpoint is bound and registered when it returns. Errors say what to do."""
        await self._started()

    async def health(self) -> bool:
        """Whether the server serves."""
        return self._server is not None

    async def status(self) -> ServerStatus:
        """What the server says of itself (``Server.status``), and whether ZooKeeper answers it. Waits for nothing."""
        if self._server is None or self._pulse is None:
            reason = self._failure or "it has not been told to start, or waits for ZooKeeper"
            return ServerStatus(state=ActorState.STARTING, reason=reason, pid=os.getpid(), process=about_process())
        return replace(self._server.status(), zookeeper=self._pulse.view(), process=about_process())

    async def shutdown(self) -> None:
        """Leave the cluster; the actor is of no use afterwards."""
        if self._metrics is not None:
            self._metrics.cancel()
        if self._server is not None:
            await self._server.close()
            self._server = None
        if self._pulse is not None:
            self._pulse.close()
        if self._client is not None:
            await asyncio.to_thread(self._client.close)
            self._client = None

    async def _started(self) -> Server:
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        try:
            return await asyncio.shield(self._starting)
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"
            if self._starting is not None and self._starting.done():
                self._starting = None  # the next call tries again
            raise

    async def _start(self) -> Server:
        def connect() -> tuple[ClusterStore, ClusterConfig]:
            config = own_settings(self._cluster, self._zookeeper).config
            if self._client is not None:  # of a start that failed
                self._client.close()
            self._client = KazooZooKeeper(self._zookeeper, config.server.zookeeper_session_ms)
            return ClusterStore(self._client, self._cluster), config

        take_normal_priority()
        store, config = await asyncio.to_thread(connect)
        secret = SecretFile(config.secret_path)
        secret.secret()  # a server that no replica believes had better say so
        guard = AccessGuard(f"server {self._server_id}", store, secret.secret)
        keyring = Keyring.of_server(secret, replica_tls(config.storage.tls_authority))
        here = replace(config.server, host=own_host(config.server.host))
        server = Server(self._server_id, store, here, keyring=keyring, guard=guard)
        try:
            await server.start()
            await SetFollower(server).start()
            assert self._client is not None
            self._pulse = ZooKeeperPulse(self._client, f"/{self._cluster}")
        except BaseException:  # its port, and its place in ZooKeeper, are the next attempt's
            await server.close()
            raise
        self._server = server
        quieten_garbage_collector()
        gauges = ServerGauges(self._cluster, str(self._server_id))

        async def tell() -> None:
            gauges.server(server.status())

        self._metrics = asyncio.ensure_future(keep_telling(f"server/{self._server_id}", tell))
        return server

    # ---- the actor-handle transport: the frames of a TCP connection, carried by numbered calls -------------

    async def channel_open(self) -> str:
        """A new virtual connection; HELLO follows as on TCP."""
        server = await self._started()
        name = uuid.uuid4().hex
        channel = Channel(server, lambda: self._channels.pop(name, None))
        if not channel.is_closing():
            self._channels[name] = channel
        return name

    async def channel_send(self, channel: str, number: int, data: bytes) -> None:
        """Chunk ``number`` (from 0) of what the client sends; calls may arrive in any order."""
        found = self._channels.get(channel)
        if found is not None:
            found.receive(number, data)

    async def channel_receive(self, channel: str, number: int) -> bytes | None:
        """Chunk ``number`` of what the server sends: b"" = nothing within a second, None = closed."""
        found = self._channels.get(channel)
        return None if found is None else await found.next_chunk(number)

    async def channel_close(self, channel: str) -> None:
        """Close the virtual connection. Idempotent."""
        found = self._channels.get(channel)
        if found is not None:
            found.abort()


class Channel(asyncio.Transport):
    """The transport of one virtual connection: what is written waits for the client's next long poll.

    A client that lives asks all the time. One that has not for ``client_stall_ms`` is gone: no kernel says so here.
    """

    def __init__(self, server: Server, on_over: Callable[[], object]) -> None:
        """``on_over``: it is closed, and nobody asks for the rest of what was sent. May be called more than once."""
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._on_over = on_over
        self._silence_s = server.config.client_stall_ms / 1000
        self._polls = 0  # calls that wait for a chunk
        self._called_at = self._loop.time()
        self._watch = self._loop.call_later(self._silence_s, self._check_silence)
        self._early: dict[int, bytes] = {}
        self._next_in = 0
        self._out: list[bytes] = []
        self._out_bytes = 0  # of these: there may be very many, and it is asked for with each
        self._sent: tuple[int, bytes] = (-1, b"")  # the last chunk, again if its answer was lost
        self._wake = asyncio.Event()
        self._closed = False
        self._reading = True
        self._writing_paused = False
        self._high = 64 * 1024
        self._connection = server.new_connection()
        self._connection.connection_made(self)

    def _check_silence(self) -> None:
        rest_s = self._called_at + self._silence_s - self._loop.time()
        if self._polls or rest_s > 0:
            self._watch = self._loop.call_later(self._silence_s if self._polls else rest_s, self._check_silence)
        elif self._closed:
            self._over()
        else:
            self._connection.give_up(f"the client has not called for {round(self._silence_s * 1000)} ms")

    def _over(self) -> None:
        self._watch.cancel()
        self._on_over()

    def receive(self, number: int, data: bytes) -> None:
        self._called_at = self._loop.time()
        if number >= self._next_in:
            self._early[number] = data
        self._hand_over()

    def _hand_over(self) -> None:
        while self._reading and self._next_in in self._early:
            chunk = self._early.pop(self._next_in)
            self._next_in += 1
            if not self._closed:
                self._connection.data_received(chunk)

    async def next_chunk(self, number: int) -> bytes | None:
        """As ``channel_receive``."""
        self._polls += 1
        try:
            return await self._next_chunk(number)
        finally:
            self._polls -= 1
            self._called_at = self._loop.time()

    async def _next_chunk(self, number: int) -> bytes | None:
        if number == self._sent[0]:
            return self._sent[1]
        if not self._out and not self._closed:
            self._wake.clear()
            try:
                async with compat.timeout(_LONG_POLL_S):
                    await self._wake.wait()
            except TimeoutError:
                return b""
        if not self._out and self._closed:
            self._over()  # the client asks no more
            return None
        if not self._out:
            return b""
        chunk, self._out, self._out_bytes = b"".join(self._out), [], 0
        self._sent = (number, chunk)
        if self._writing_paused:
            self._writing_paused = False
            self._loop.call_soon(self._connection.resume_writing)
        return chunk

    # ---- asyncio.Transport, as far as net.stream uses it -----------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        piece = bytes(data)
        self._out.append(piece)
        self._out_bytes += len(piece)
        self._wake.set()
        if not self._writing_paused and self.get_write_buffer_size() > self._high:
            self._writing_paused = True
            self._connection.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = self._high if high is None else high

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._hand_over)

    def is_closing(self) -> bool:
        return self._closed

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    def get_extra_info(self, name: str, default: object = None) -> object:
        if name == "waltz_member":  # who may call this actor is of the cluster's Ray, and may everything
            return True
        return "an actor channel" if name == "peername" else default

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._wake.set()
            self._loop.call_soon(self._connection.connection_lost, None)

    def abort(self) -> None:
        self._out.clear()
        self._out_bytes = 0
        self.close()
        self._over()
