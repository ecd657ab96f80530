"""A partition server without Ray: endpoint for clients, links to replicas, its partitions, its ZooKeeper nodes.

It listens first and registers after that, so that an endpoint found in ZooKeeper has always been bound. It serves
what ZooKeeper assigns to its ID and follows every change; it asks nobody for permission to go on while ZooKeeper is
away (the replicas' fences protect the log).

Killed at any point, it leaves: an ephemeral registration (removed by its successor, by the manager, or by time), at
most some taken session IDs, and replicas that have records above the high-water mark, which the next session adopts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from waltz_ray.actors.access_guard import AccessGuard
from waltz_ray.actors.client_connection import ClientChannel, ClientConnection
from waltz_ray.actors.copy_pace import CopyPace
from waltz_ray.actors.partition_driver import Drivers, PartitionDriver
from waltz_ray.actors.replica_link import ReplicaLink, ReplicaOrders
from waltz_ray.actors.retention import Retention
from waltz_ray.actors.turns import Turns
from waltz_ray.config import ServerConfig
from waltz_ray.coordination.api import EphemeralNode
from waltz_ray.coordination.cluster_store import AnnouncedReplica, ClusterStore
from waltz_ray.errors import ConfigError, ReplicaRefused
from waltz_ray.net.half_frames import HalfFrames
from waltz_ray.net.limit import ConnectionLimit
from waltz_ray.net.listener import LoopListener, listen
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.room import Room
from waltz_ray.net.tls import ServerTls
from waltz_ray.net.untaken import Untaken
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.partition.events import Assigned, TrimMarkRaised, Unassigned
from waltz_ray.protocol.partition.machine import Partition
from waltz_ray.protocol.partition.state import Stage
from waltz_ray.protocol.placement import Assignment
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.retained import RetainedMemory
from waltz_ray.runtime.measures import Measures
from waltz_ray.runtime.status import ActorState, Readiness, ReplicaProgress, ServedPartition, ServerStatus
from waltz_ray.runtime.watchdog import Watchdog
from waltz_ray.security.handshakes import Keyring
from waltz_ray.wire.znodes import ServerDescriptor

__all__ = ["MOST_LAGS", "Server"]

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_LAGS = 16
"""Of a partition's subscribers, in a status."""

_HALF_FRAMES_BYTES = 256 * 1024 * 1024  # four of the longest
_ANSWERING_BYTES = 256 * 1024 * 1024  # of answers that are being read for clients
_UNTAKEN_BYTES = 1024 * 1024 * 1024  # as much as 128 subscribers that take nothing are sent


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Server:
    """A partition server without Ray. Made and used in one event loop; ``start`` before anything else."""

    def __init__(
        self,
        server_id: int,
        store: ClusterStore,
        config: ServerConfig,
        on_fatal: Callable[[str], None] | None = None,
        now_ms: Callable[[], int] = _wall_clock_ms,
        keyring: Keyring | None = None,
        guard: AccessGuard | None = None,
    ) -> None:
        """``on_fatal`` is called when the process must end; the default logs the message and ends it. ``now_ms`` is the
        wall clock, in milliseconds since 1970. ``keyring`` proves to replicas that this is a server of their cluster;
        None: it has no links to replicas of that kind. ``guard``: knows the rights of clients; None: they need none."""
        self.now_ms = now_ms
        self.fatal = on_fatal or _end_process
        self._keyring = keyring
        self.guard = guard
        self.server_id = server_id
        self.incarnation = uuid.uuid4().hex
        self.store = store
        self.config = config
        self.queue = Pool(config.append_queue_bytes)
        self.retained = RetainedMemory(config.retained_bytes)
        self.info = store.info()
        self.partitions = self.info.partitions
        """Those that are known here: of a growth it hears with the first assignment that names them."""
        self.outgoing = Outgoing()
        self.links: dict[int, ReplicaOrders] = _Links(self.new_link)
        self.watchdog = Watchdog()
        self.measures = Measures()
        self.turns = Turns(self.outgoing)
        self.copying = CopyPace(config.copy_bytes_per_s)
        self.assigned: dict[int, int] = {}  # partition -> generation
        self._trim_marks: dict[int, int] = {}
        self.endpoint: Endpoint | None = None
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(4, thread_name_prefix=f"waltz-server-{server_id}-zookeeper")
        self.drivers = Drivers(self)
        self.connections: dict[int, ClientConnection | ClientChannel] = {}
        """Those that have said HELLO, and the channels of them, by their number."""
        self.limit = ConnectionLimit(f"server {server_id}", config.connections, config.connections_per_peer)
        self.half_frames = HalfFrames(_HALF_FRAMES_BYTES, config.client_stall_ms)
        self.answering = Room(_ANSWERING_BYTES)
        self.untaken = Untaken(_UNTAKEN_BYTES, self._streams)
        self._last_connection_id = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: LoopListener | None = None
        interval_ms = config.retention_interval_ms
        self._retention = Retention(self, interval_ms / 1000) if interval_ms else None
        self._registration: EphemeralNode | None = None
        self.watches: list[Any] = []
        """Those that end with it."""

    # ---- life -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, link, register, follow the assignment. ConfigError if the port is in use."""
        if self.guard is not None:
            await self.in_thread(self.guard.read)
        endpoint = self.endpoint = await self.listen()
        for replica_id in self.info.replica_ids:
            self.links[replica_id] = self.new_link(replica_id)

        def register() -> None:
            if self.guard is not None:
                self.watches += self.guard.watch(self.from_thread, self._on_rights)
            self.watches.append(self.store.watch_replicas(self.from_thread(self.on_replicas)))
            preferred = self.store.preferred(self.server_id)
            self._registration = self.store.register_server(self.server_id, endpoint, preferred)
            self.watches.append(self.store.watch_servers(self.from_thread(self._on_servers)))
            if self._retention is not None:
                self.watches.append(self.store.spaces.watch(self.from_thread(self._retention.follow)))
            self.watches.append(self.store.trims.watch(self.from_thread(self._on_trim_marks)))
            self.watches.append(self.store.watch_assignment(self.from_thread(self._on_assignment)))

        await self.in_thread(register)
        if self._retention is not None:
            self.spawn(self._retention.keep_looking())

    async def listen(self) -> Endpoint:
        """Where clients find it from now on. ConfigError if the port is in use, or files for TLS cannot be used."""
        host, name = self.config.host or "127.0.0.1", f"server {self.server_id}"
        tls = self._tls()
        try:
            self._listener = await listen(name, self.new_connection, host, self.config.port, tls, plain=True)
        except OSError as error:
            raise ConfigError(
                f"server {self.server_id} cannot listen on {host}:{self.config.port}: {error.strerror}; "
                "choose another port, or 0 for any free one"
            ) from error
        return Endpoint(host, self._listener.port)

    def _tls(self) -> ServerTls | None:
        """ConfigError if its files cannot be used."""
        config = self.config
        if not config.tls_certificate:
            return None
        try:
            clients, optional = config.tls_clients or None, config.tls_certificates_optional
            return ServerTls(config.tls_certificate, config.tls_key, clients, optional)
        except OSError as error:  # which ssl.SSLError is
            files = ", ".join(filter(None, (config.tls_certificate, config.tls_key, config.tls_clients)))
            raise ConfigError(
                f"server {self.server_id} cannot use its files for TLS ({files}): {error.strerror or error}; they have "
                "to be PEM files, on every node"
            ) from error

    def new_link(self, replica_id: int) -> ReplicaOrders:
        """To a replica, wherever it will announce itself."""
        if self._keyring is None:
            raise ConfigError(f"server {self.server_id} has no secret of the cluster, so no replica would believe it")
        key = self.info.cluster_key
        return ReplicaLink(replica_id, key, self.config, self.drivers, self.outgoing, self.queue, self._keyring)

    async def close(self) -> None:
        """Leave: no new work, partitions dropped (clients are told), registration removed."""
        registration, self._registration = self._registration, None
        watches, self.watches = self.watches, []

        def leave() -> None:
            for watch in watches:
                watch.cancel()
            if registration is not None:
                registration.cancel()

        await self.in_thread(leave)
        self._on_assignment(Assignment(), 0)
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections.values()):
            if isinstance(connection, ClientConnection):
                connection.finish("the server is closing")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(driver.close() for driver in self.drivers.values()))
        await asyncio.gather(*(link.close() for link in self.links.values()))
        self._threads.shutdown(wait=True)

    def from_thread(self, call: Callable[..., None]) -> Callable[..., None]:
        """The same call, to be made from kazoo's threads, in which its callbacks come."""

        def forward(*arguments: object) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(call, *arguments)

        return forward

    def drop_link(self, replica_id: int) -> None:
        """The replica was removed: nobody is looked for there any more."""
        link = self.links.pop(replica_id, None)
        if link is not None:
            self.spawn(link.close())

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run a blocking ZooKeeper call off the loop."""
        return await self._loop.run_in_executor(self._threads, call)

    def spawn(self, work: Awaitable[None]) -> None:
        """Run in the background; a failure is logged with its traceback by the loop's handler."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler({"message": "a request failed", "exception": task.exception()})

    # ---- what ZooKeeper says ----------------------------------------------------------------------------

    def on_replicas(self, replicas: dict[int, AnnouncedReplica]) -> None:
        """These listen there now."""
        for replica_id, announced in replicas.items():
            self.links[replica_id].move_to(announced.endpoint)

    def _on_servers(self, servers: dict[int, ServerDescriptor]) -> None:
        """End the process if another one has registered as this server.

        The place is not taken back: two processes would fence each other off for ever. Ended and started again, this
        one is the newer one. Staying without a registration would be worse: when the other goes, nobody is there.
        """
        registered = servers.get(self.server_id)
        taken = registered is not None and registered.endpoint != self.endpoint
        if self._registration is not None and (taken or not self._registration.active):
            self.fatal(f"another process has registered as server {self.server_id}")

    def _on_assignment(self, assignment: Assignment, version: int) -> None:
        self.partitions = max(self.partitions, assignment.proven_partitions())
        mine = assignment.partitions_of(self.server_id)
        before, self.assigned = self.assigned, mine
        self.queue.sharers = self.retained.sharers = max(1, len(mine))
        for partition_id in before.keys() - mine.keys():
            self.drivers[partition_id].handle(Unassigned("assigned to another server"))
        for partition_id, generation in mine.items():
            if partition_id not in before and partition_id in self._trim_marks:
                self.drivers[partition_id].handle(TrimMarkRaised(self._trim_marks[partition_id]))
            self.drivers[partition_id].handle(Assigned(generation, len(mine)))

    def _on_rights(self) -> None:
        for connection in list(self.connections.values()):
            if isinstance(connection, ClientConnection):
                connection.rights_changed()

    def _on_trim_marks(self, marks: dict[int, int]) -> None:
        before, self._trim_marks = self._trim_marks, marks
        for partition_id in self.assigned:
            if marks.get(partition_id, 0) != before.get(partition_id, 0):
                self.drivers[partition_id].handle(TrimMarkRaised(marks.get(partition_id, 0)))

    # ---- partitions -------------------------------------------------------------------------------------

    def machine_of(self, partition_id: int) -> Partition | None:
        """The machine of a partition this server has, else None."""
        return self.drivers[partition_id].machine if partition_id in self.assigned else None

    async def read(self, partition_id: int, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        """Committed records, at least one. ReplicaRefused or ConnectionError."""
        machine = self.machine_of(partition_id)
        if machine is None or first_id < 0 or first_id > machine.high_water_mark:
            raise ReplicaRefused(f"partition {partition_id}: transaction {first_id} is not committed on this server")
        return await self.drivers[partition_id].read(first_id, end_id, max_bytes)

    # ---- connections ------------------------------------------------------------------------------------

    def new_connection(self) -> ClientConnection:
        """A protocol object for one more client, over TCP or over a channel of the actor-handle transport."""
        return ClientConnection(self.next_connection_id(), self)

    def _streams(self) -> list[ClientConnection]:
        return [each for each in self.connections.values() if isinstance(each, ClientConnection)]

    def next_connection_id(self) -> int:
        """The number of one more client, as partitions know it."""
        self._last_connection_id += 1
        return self._last_connection_id

    # ---- for operators ----------------------------------------------------------------------------------

    def status(self) -> ServerStatus:
        """Endpoint, connections, replica links, and per assigned partition its state; nothing of ZooKeeper."""
        return ServerStatus(
            state=ActorState.SERVING,
            pid=os.getpid(),
            server_id=self.server_id,
            incarnation=self.incarnation,
            endpoint=self.endpoint,
            connections=len(self.connections),
            slow_steps=self.watchdog.slow_steps,
            longest_step_ms=round(self.watchdog.longest_ms, 1),
            links={replica_id: link.status() for replica_id, link in self.links.items()},
            partitions={p: _served(self.drivers[p]) for p in sorted(self.assigned)},
            measures=replace(
                self.measures.view(), access_refused={} if self.guard is None else dict(self.guard.refused)
            ),
        )


class _Links(dict[int, ReplicaOrders]):
    """Links to replicas. One that has come since the server was started is linked to by whoever hears of it first:
    a partition's roster, or its announcement."""

    def __init__(self, new_link: Callable[[int], ReplicaOrders]) -> None:
        super().__init__()
        self._new_link = new_link

    def __missing__(self, replica_id: int) -> ReplicaOrders:
        link = self[replica_id] = self._new_link(replica_id)
        return link


def _end_process(message: str) -> None:
    log.critical("%s; this process ends, the next one opens new sessions from the replicas", message)
    os._exit(1)


def _served(driver: PartitionDriver) -> ServedPartition:
    machine = driver.machine
    session = machine.session
    ready = machine.ready and machine.stage is not Stage.IDLE
    phases = {} if session is None else session.phases()
    return ServedPartition(
        generation=machine.generation,
        state=Readiness.READY if ready else Readiness.NOT_READY,
        stage=machine.stage,
        session=None if session is None else session.session_id,
        low_water_mark=None if session is None else session.low_water_mark,
        high_water_mark=machine.high_water_mark,
        members=() if session is None else tuple(session.members),
        replicas={replica_id: ReplicaProgress(phase, last_id) for replica_id, (phase, last_id) in phases.items()},
        in_flight_bytes=machine.in_flight_bytes,
        subscribers=machine.subscribers,
        hindrance=driver.hindrance(),
        trim_mark=machine.trim_mark,
        lags=machine.lags(MOST_LAGS),
    )
