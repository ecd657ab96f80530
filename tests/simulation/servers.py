"""Partition servers, and the manager that assigns partitions to them."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.simulation.loop import ProcessLoop
from tests.simulation.process import Process
from waltz_ray.actors.server import Server
from waltz_ray.config import ServerConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import CoordinationError, VersionConflict
from waltz_ray.net.backoff import Backoff
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.manager import (
    AssignmentRead,
    Effect,
    Elected,
    EndpointAnswered,
    EndpointRefused,
    Event,
    LeadershipLost,
    ManagerMachine,
    Probe,
    ReadAssignment,
    Registered,
    RemoveRegistration,
    ServersSeen,
    SettleOver,
    StartSettling,
    StopProbe,
    WriteAssignment,
    WriteFailed,
)
from waltz_ray.wire.framing import Hello, encode_hello
from waltz_ray.wire.znodes import ServerDescriptor

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["SimManager", "SimServer"]

_SETTLE_S, _RETRY_S = 1.0, 0.5


class SimServer(Process):
    """The real ``Server``, started as its actor does and started again when it ends."""

    def __init__(self, world: World, server_id: int, config: ServerConfig) -> None:
        super().__init__(world, f"server-{server_id}", config.zookeeper_session_ms / 1000)
        self.server_id = server_id
        self.config = replace(config, host=self.host)
        self.server: Server | None = None

    def start(self) -> None:
        store = self.begin()
        self.server = None
        self.spawn(self._start(store))

    def leave_a_zombie(self, away_s: float = 0.0) -> SimServer:
        """Whoever starts servers takes this one for dead: it runs on beside its successor.

        For ``away_s`` it is cut off from ZooKeeper.
        """
        zombie = SimServer(self.world, self.server_id, self.config)
        zombie.life, zombie.up, zombie.loop, zombie.zookeeper = self.life, True, self.loop, self.zookeeper
        self.world.zombies.append(zombie)
        if self.zookeeper is not None and away_s:
            self.world.zookeeper.cut_off(self.zookeeper, away_s, self.session_s)
        self.tell("is taken for dead and runs on")
        self.start()
        return zombie

    async def _start(self, store: ClusterStore) -> None:
        try:
            server = Server(self.server_id, store, self.config, self._fatal_of(self.loop))
            await server.start()
        except CoordinationError as error:
            self.kill(f"cannot start: {error}")
            self.start_later(_RETRY_S)
            return
        self.server = server
        self.tell(f"serves at {server.endpoint}")

    def _fatal_of(self, loop: ProcessLoop) -> Callable[[str], None]:
        """What ends the process that runs in ``loop``, which may be a zombie's by then."""

        def end(message: str) -> None:
            for process in (self, *self.world.zombies):
                if process.loop is loop:
                    process.kill(message)
                    if process is self:
                        process.start_later(_RETRY_S)

        def fatal(message: str) -> None:
            if "has registered as server" not in message:
                cause = sys.exception()  # a machine's step failed: that is a bug
                self.world.scheduler.fail(AssertionError(f"{message}: {cause!r}"))
            self.world.scheduler.after(0.0, end, message)

        return fatal


class _Probe(asyncio.Protocol):
    """The manager's connection to a server's endpoint (``actors.endpoint_probe`` with its thread left out)."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(encode_hello(Hello((5,), "cluster-manager probe")))

    def data_received(self, data: bytes) -> None:
        """The server's HELLO."""

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class SimManager(Process):
    """The real machine, watches and leadership; ``actors.cluster_manager`` with its threads left out."""

    def __init__(self, world: World, servers: int) -> None:
        super().__init__(world, "manager", session_s=3.0)
        self._servers = servers
        self.machine: ManagerMachine | None = None
        self._events: deque[Event] = deque()
        self._stepping = False
        self._probes: dict[int, asyncio.Task[None]] = {}
        self._keep: list[Any] = []

    def start(self) -> None:
        store = self.begin()
        self._events.clear()
        self._stepping = False
        self._probes = {}
        self.spawn(self._start(store))

    async def _start(self, store: ClusterStore) -> None:
        try:
            self.machine = ManagerMachine(store.info().partitions, frozenset(range(self._servers)))
            self._store = store
            self._keep = [
                store.watch_servers(self._on_servers),
                store.lead(self.loop.name, lambda: self._put(Elected()), lambda: self._put(LeadershipLost())),
            ]
        except CoordinationError as error:
            self.kill(f"cannot start: {error}")
            self.start_later(_RETRY_S)

    def _on_servers(self, servers: dict[int, ServerDescriptor]) -> None:
        self._put(ServersSeen({s: Registered(d.endpoint, tuple(d.preferred)) for s, d in servers.items()}))

    def _put(self, event: Event) -> None:
        """From any thread: the machine's own takes it in its turn."""
        self.loop.call_soon(self._step, event)

    def _step(self, event: Event) -> None:
        assert self.machine is not None
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        self.loop.create_task(self._decide())

    async def _decide(self) -> None:
        assert self.machine is not None
        while self._events:
            event = self._events.popleft()
            effects = self.machine.step(event)
            if effects:
                self.tell(f"{event} -> {effects}")
            for effect in effects:
                await self._perform(effect)
        self._stepping = False

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case StartSettling():
                self.loop.call_later(_SETTLE_S, self._step, SettleOver())
            case ReadAssignment():
                try:
                    read = await self.loop.run_in_executor(None, self._store.assignment)
                    self._events.append(AssignmentRead(*read))
                except CoordinationError:
                    self.loop.call_later(_RETRY_S, self._step, WriteFailed())
            case WriteAssignment(assignment, version):
                try:
                    written = await self.loop.run_in_executor(None, self._store.set_assignment, assignment, version)
                    self._events.append(AssignmentRead(assignment, written))
                except VersionConflict:
                    self._events.append(WriteFailed())
                except CoordinationError:
                    self.loop.call_later(_RETRY_S, self._step, WriteFailed())
            case RemoveRegistration(server_id):
                try:
                    await self.loop.run_in_executor(None, self._store.remove_server_registration, server_id)
                except CoordinationError as error:
                    self.tell(f"the registration of server {server_id} was not removed: {error}")
            case Probe(server_id, endpoint):
                self._stop_probe(server_id)
                self._probes[server_id] = self.loop.create_task(self._probe(server_id, endpoint))
            case StopProbe(server_id):
                self._stop_probe(server_id)

    def _stop_probe(self, server_id: int) -> None:
        task = self._probes.pop(server_id, None)
        if task is not None:
            task.cancel()

    async def _probe(self, server_id: int, endpoint: Endpoint) -> None:
        refused, pauses = False, Backoff(spread=0.0)
        while True:
            try:
                _, protocol = await self.loop.create_connection(_Probe, *endpoint)
            except ConnectionRefusedError:
                if not refused:
                    refused = True
                    self._put(EndpointRefused(server_id, endpoint))
            except OSError:
                pass  # no proof of anything
            else:
                assert isinstance(protocol, _Probe)
                if refused:
                    refused = False
                    self._put(EndpointAnswered(server_id, endpoint))
                try:
                    await protocol.ended
                finally:
                    protocol.transport.abort()
            await asyncio.sleep(pauses.next_s())
