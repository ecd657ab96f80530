"""The cluster manager without Ray and without a thread of its own: what its machine decides is carried out here.

Decisions are made in ``protocol.manager``. Hard state lives only in ZooKeeper: the assignment, the registrations, the
leader lock. So the manager may end at any moment, also between two orders: who is elected next reads everything and
goes on.

Watches, probes and ZooKeeper's answers only put events into a queue. One task takes them out: the machine is told one,
and what it orders is carried out, one order after the other, before it is told the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from waltz_ray.actors.endpoint_probe import probe_endpoint
from waltz_ray.actors.heartbeats import Heartbeats
from waltz_ray.coordination.api import Watch
from waltz_ray.coordination.cluster_store import ClusterStore, Watches
from waltz_ray.coordination.leadership import Leadership
from waltz_ray.errors import CoordinationError, VersionConflict
from waltz_ray.protocol.ids import NO_SESSION, Endpoint
from waltz_ray.protocol.manager import (
    AssignmentRead,
    AwaitSessions,
    Effect,
    Elected,
    EndpointAnswered,
    EndpointRefused,
    EndpointSilent,
    EndpointWell,
    Event,
    FinishFailed,
    FinishSpaces,
    LeadershipLost,
    ManagerMachine,
    PartitionsMade,
    Probe,
    ReadAssignment,
    Registered,
    RemoveRegistration,
    ServersCutOff,
    ServersSeen,
    ServersWanted,
    SettleOver,
    SpacesSeen,
    StartSettling,
    StopProbe,
    WriteAssignment,
    WriteFailed,
)
from waltz_ray.protocol.placement import Assignment
from waltz_ray.protocol.spaces import Space
from waltz_ray.runtime.driver import Driver
from waltz_ray.wire.znodes import ServerDescriptor

__all__ = ["Manager", "end_manager"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_S = 0.5
_SUPERVISE_INTERVAL_S = 2.0
_SESSIONS_INTERVAL_S = 0.25


class Manager:
    """The cluster manager without Ray. Made and used in one event loop; ``start`` before anything else."""

    def __init__(
        self,
        store: ClusterStore,
        servers: int | frozenset[int],
        ensure: Callable[[], None],
        identity: str,
        settle_s: float,
        silent_s: float,
        on_fatal: Callable[[str], None] | None = None,
    ) -> None:
        """``servers``: which should run, or how many, with IDs from 0. ``ensure`` makes the actors exist: it is called
        in a thread every few seconds while this manager leads, may block for a while and may raise. ``identity`` stands
        in the leader lock, for people. ``settle_s``: how long these servers have to register after an election.
        ``silent_s``: who answers nothing for so long loses its partitions to those that do; 0: nobody does.
        ``on_fatal`` is called when the process must end; the default logs the message and ends it.
        """
        expected = servers if isinstance(servers, frozenset) else frozenset(range(servers))
        self.machine = ManagerMachine(store.spaces.table(), expected)
        self.probes: dict[int, asyncio.Task[None]] = {}
        """Who is probed, by server ID."""
        self.supervision_error = ""
        """Why the actors could not be made sure of, the last time; "" if they could."""
        self._beats: dict[int, Heartbeats] = {}
        self._store = store
        self._ensure = ensure
        self._identity = identity
        self._settle_s = settle_s
        self._silent_s = silent_s
        self._fatal = on_fatal or end_manager
        self._orders: deque[Effect] = deque()
        self._driver = Driver[Event, Effect]("manager", self.machine, self._orders.append, self._fatal)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._looks_after = asyncio.Event()  # set while the actors are to be looked after
        self._loop = asyncio.get_running_loop()
        # One thread each: orders stay in order, and a call to Ray that blocks keeps nobody waiting.
        self._zookeeper_thread = ThreadPoolExecutor(1, thread_name_prefix="manager-zookeeper")
        self._actors_thread = ThreadPoolExecutor(1, thread_name_prefix="manager-actors")
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches: list[Watch | Watches] = []
        self._leadership: Leadership | None = None
        self._settling: asyncio.TimerHandle | None = None

    # ---- life -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Watch the servers and stand for election. CoordinationError; then only ``close`` is left."""
        self._spawn(self._decide())
        self._spawn(self._supervise())

        def stand() -> None:
            self._watches.append(self._store.watch_servers(self._on_servers))
            self._watches.append(self._store.spaces.watch(lambda table: self._from_thread(SpacesSeen(table))))
            self._leadership = self._store.lead(
                self._identity, lambda: self._from_thread(Elected()), lambda: self._from_thread(LeadershipLost())
            )

        await self._in_thread(stand)

    async def close(self) -> None:
        """Decide nothing more and give the leader lock away, after the order that is under way. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        watches, self._watches = self._watches, []
        leadership, self._leadership = self._leadership, None

        def leave() -> None:
            for watch in watches:
                watch.cancel()
            if leadership is not None:
                leadership.cancel()

        if watches:
            await self._in_thread(leave)
        self._zookeeper_thread.shutdown(wait=True)
        self._actors_thread.shutdown(wait=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler({"message": "the manager failed", "exception": task.exception()})

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Run a blocking ZooKeeper call off the loop."""
        return await self._loop.run_in_executor(self._zookeeper_thread, call)

    # ---- what happens -----------------------------------------------------------------------------------

    def _put(self, event: Event) -> None:
        self._events.put_nowait(event)

    def _from_thread(self, event: Event) -> None:
        """kazoo's callbacks come in its own threads."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, event)

    def _on_servers(self, servers: dict[int, ServerDescriptor]) -> None:
        seen = {s: Registered(server.endpoint, tuple(server.preferred)) for s, server in servers.items()}
        self._from_thread(ServersSeen(seen))

    def members_seen(self, expected: frozenset[int], draining: frozenset[int]) -> None:
        """Other servers are to run, or to be drained, than was known; from any thread."""
        self._from_thread(ServersWanted(expected, draining))

    def cut_off_seen(self, servers: frozenset[int]) -> None:
        """These reach too few replicas, and no others do; from any thread."""
        self._from_thread(ServersCutOff(servers))

    # ---- what is done about it --------------------------------------------------------------------------

    async def _decide(self) -> None:
        while True:
            self._driver.handle(await self._events.get())
            if self.machine.leading:
                self._looks_after.set()
            else:
                self._looks_after.clear()
            try:
                while self._orders:
                    await self._carry_out(self._orders.popleft())
            except Exception as error:
                message = "manager: an order of its machine could not be carried out"
                log.critical("%s", message, exc_info=error)
                self._fatal(message)
                raise

    async def _carry_out(self, order: Effect) -> None:
        log.info("manager: %s", order)
        match order:
            case StartSettling():
                if self._settling is not None:  # of an election before this one: its end is not the end of this time
                    self._settling.cancel()
                self._settling = self._loop.call_later(self._settle_s, self._put, SettleOver())
            case ReadAssignment():
                await self._read()
            case WriteAssignment(assignment, version):
                await self._write(assignment, version)
            case RemoveRegistration(server_id):
                try:
                    await self._in_thread(lambda: self._store.remove_server_registration(server_id))
                except CoordinationError as error:  # it ends with the dead server's session then
                    log.warning("manager: the registration of server %d was not removed: %s", server_id, error)
            case Probe(server_id, endpoint):
                self._stop_probe(server_id)
                self.probes[server_id] = self._spawn(self._probe(server_id, endpoint))
            case StopProbe(server_id):
                self._stop_probe(server_id)
            case FinishSpaces(partitions):
                await self._finish(partitions)
            case AwaitSessions(space):
                self._spawn(self._await_sessions(space))

    async def _read(self) -> None:
        try:
            self._put(AssignmentRead(*await self._in_thread(self._store.assignment)))
        except CoordinationError as error:
            log.warning("manager: the assignment cannot be read: %s", error)
            self._loop.call_later(_RETRY_S, self._put, WriteFailed())

    async def _write(self, assignment: Assignment, version: int) -> None:
        try:
            written = await self._in_thread(lambda: self._store.set_assignment(assignment, version))
            self._put(AssignmentRead(assignment, written))
        except VersionConflict:
            self._put(WriteFailed())
        except CoordinationError as error:  # the outcome may be unknown: read before anything else
            log.warning("manager: the assignment was not written: %s", error)
            self._loop.call_later(_RETRY_S, self._put, WriteFailed())

    # ---- spaces that are being made ---------------------------------------------------------------------

    async def _finish(self, partitions: int) -> None:
        try:
            await self._in_thread(lambda: self._store.spaces.finish(partitions))
            self._put(PartitionsMade(partitions))
        except CoordinationError as error:
            log.warning("manager: the nodes of %d partitions are not all there yet: %s", partitions, error)
            self._loop.call_later(_RETRY_S, self._put, FinishFailed())

    async def _await_sessions(self, space: Space) -> None:
        waiting = list(space.partitions)
        while space.name in self.machine.awaited and self.machine.leading:
            try:
                waiting = await self._in_thread(lambda left=waiting: self._without_session(left))  # type: ignore[misc]
                if not waiting:
                    await self._in_thread(lambda: self._store.spaces.mark_ready(space.name))
                    return
            except CoordinationError as error:
                log.info("manager: space %s is not ready yet: %s", space.name, error)
            await asyncio.sleep(_SESSIONS_INTERVAL_S)

    def _without_session(self, partitions: list[int]) -> list[int]:
        """Which of them never had a published one."""
        return [p for p in partitions if self._store.roster(p)[0].last_published_session == NO_SESSION]

    # ---- probes -----------------------------------------------------------------------------------------

    async def _probe(self, server_id: int, endpoint: Endpoint) -> None:
        """Until cancelled."""

        def tell(event: Event) -> Callable[[], None]:
            return lambda: self._put(event)

        def others_speak() -> bool:
            return any(each.speaks for each in self._beats.values() if each is not beats)

        silent, well = tell(EndpointSilent(server_id, endpoint)), tell(EndpointWell(server_id, endpoint))
        beats = self._beats[server_id] = Heartbeats(self._silent_s, silent, well, others_speak)
        refused, answered = EndpointRefused(server_id, endpoint), EndpointAnswered(server_id, endpoint)
        holding = probe_endpoint(beats.new_probe, endpoint, tell(refused), tell(answered))
        await asyncio.gather(holding, *([beats.run()] if self._silent_s else []))

    def _stop_probe(self, server_id: int) -> None:
        probe = self.probes.pop(server_id, None)
        self._beats.pop(server_id, None)
        if probe is not None:
            probe.cancel()

    # ---- the actors -------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while True:
            await self._looks_after.wait()
            try:
                await self._loop.run_in_executor(self._actors_thread, self._ensure)
                self.supervision_error = ""
            except Exception as error:  # Ray's errors have many roots; shown in status, tried again
                if str(error) != self.supervision_error:
                    log.exception("manager: actors could not be made sure of")
                self.supervision_error = str(error)
            await asyncio.sleep(_SUPERVISE_INTERVAL_S)


def end_manager(message: str) -> None:
    """After what must not be: its successor begins with what ZooKeeper has."""
    log.critical("%s; this process ends, a new one reads everything from ZooKeeper", message)
    logging.shutdown()  # os._exit flushes nothing
    os._exit(1)
