"""``cluster-manager``: assigns partitions to servers and makes sure that the actors exist.

How it decides: docs/design.md, "Placement"; that nothing depends on it: docs/design.md, "Actors".

Decisions are made in ``protocol.manager``; here they are carried out. Hard state lives only in ZooKeeper: the settings
(what should run), the assignment, the registrations, the leader lock. The manager may be killed at any moment: Ray
starts it again, it is elected when its predecessor's ZooKeeper session has timed out, reads everything and goes on.
While it is away the data plane does not notice, except that nobody moves the partitions of a server that dies then.

One thread steps the machine and does what it orders. Watches and probes only put events into its queue. A second
thread looks after the actors, because a call to Ray may block.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from waltz_ray.actors.endpoint_probe import EndpointProbe
from waltz_ray.actors.settings import Settings, from_json
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.pulse import ZooKeeperPulse
from waltz_ray.errors import CoordinationError, VersionConflict
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.manager import (
    AssignmentRead,
    Effect,
    Elected,
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
from waltz_ray.protocol.placement import Assignment
from waltz_ray.runtime.driver import Driver
from waltz_ray.runtime.status import (
    ActorState,
    ActorStatus,
    ClusterStatus,
    ManagerStatus,
    PartitionAssignment,
    ZooKeeperView,
)

__all__ = ["ClusterManager", "ManagerHost", "Supervisor"]

log = logging.getLogger(__name__)

StatusT = TypeVar("StatusT", bound=ActorStatus)

_SETTLE_S = 5.0
_RETRY_S = 0.5
_SUPERVISE_INTERVAL_S = 2.0
_VIEW_TIMEOUT_S = 1.0
_SESSION_TIMEOUT_MS = 3000  # how long a successor waits for a killed manager's leader lock


def _end_process(message: str) -> None:
    log.critical("%s; this process ends, a new one reads everything from ZooKeeper", message)
    logging.shutdown()  # os._exit flushes nothing
    os._exit(1)


class Supervisor(Protocol):
    """What the manager needs of Ray."""

    def ensure(self, settings: Settings) -> None:
        """Make every replica and server exist; idempotent, may block for a while, may raise."""
        ...


@dataclass(frozen=True, slots=True)
class _Read:
    """What ZooKeeper said when it was read last, and when that was (``time.monotonic``)."""

    partitions: tuple[PartitionAssignment, ...]
    servers: Mapping[int, Endpoint]
    replicas: Mapping[int, Endpoint]
    at: float


class ManagerHost:
    """The implementation behind the actor. ``close()`` ends its threads and gives the leader lock away."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str, supervisor: Supervisor, settle_s: float = _SETTLE_S) -> None:
        self._store = ClusterStore(zookeeper, cluster)
        self._info = info = self._store.info()
        self.settings = from_json(info.settings)
        self._supervisor = supervisor
        self._settle_s = settle_s
        self._machine = ManagerMachine(info.partitions, frozenset(range(self.settings.config.servers)))
        self._driver = Driver[Event, Effect]("manager", self._machine, self._perform, _end_process)
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._later: list[tuple[float, int, Event]] = []
        self._order = itertools.count()
        self._probes: dict[int, EndpointProbe] = {}
        self._closing = threading.Event()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="manager-view")
        self._reading: Future[None] | None = None
        self._last_read: _Read | None = None
        self._supervision = threading.Event()  # set while the actors are to be looked after
        self.supervision_error = ""
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (("manager", self._run), ("manager-supervision", self._supervise))
        ]
        for thread in self._threads:
            thread.start()
        self._watch = self._store.watch_servers(
            lambda servers: self._events.put(
                ServersSeen({s: Registered(server.endpoint, tuple(server.preferred)) for s, server in servers.items()})
            )
        )
        self._pulse = ZooKeeperPulse(zookeeper, f"/{cluster}")
        self._leadership = self._store.lead(
            f"pid {os.getpid()}", lambda: self._events.put(Elected()), lambda: self._events.put(LeadershipLost())
        )

    @property
    def leading(self) -> bool:
        return self._machine.leading

    def close(self) -> None:
        """End the threads and give the leader lock away. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._supervision.set()
        self._pulse.close()
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._watch.cancel()
        self._leadership.cancel()
        self._events.put(None)
        for thread in self._threads:
            thread.join()
        for probe in self._probes.values():
            probe.stop()

    def view(self, timeout_s: float) -> ClusterStatus:
        """What ZooKeeper says about the cluster: who has what, and who was in the last sessions. Nothing of the actors.

        After ``timeout_s`` what it said last, then with its age: ZooKeeper may be away or hang.
        """
        reading = self._reading
        if reading is None or reading.done():
            reading = self._reading = self._reader.submit(self._read_view)
        wait([reading], timeout_s)
        failure = reading.exception() if reading.done() else None
        read, seen = self._last_read, self._pulse.view()
        age_s = None if read is None else round(time.monotonic() - read.at, 1)
        return ClusterStatus(
            cluster=self._info.name,
            cluster_key=self._info.cluster_key,
            zookeeper_state=ZooKeeperView(seen.state, seen.silent_s, seen.error, age_s, str(failure or "")),
            manager=ManagerStatus(os.getpid(), self.leading, self.supervision_error),
            partitions=read.partitions if read else tuple(map(PartitionAssignment, range(self._info.partitions))),
            registered_servers=read.servers if read else {},
            announced_replicas=read.replicas if read else {},
            placement=self.settings.placement,
            config=self.settings.config,
        )

    def _read_view(self) -> None:
        assignment, _ = self._store.assignment()
        servers, replicas = self._store.servers(), self._store.replicas()
        self._last_read = _Read(
            partitions=tuple(self._read_partition(assignment, p) for p in range(self._info.partitions)),
            servers={server_id: server.endpoint for server_id, server in servers.items()},
            replicas={replica_id: replica.endpoint for replica_id, replica in replicas.items()},
            at=time.monotonic(),
        )

    def _read_partition(self, assignment: Assignment, partition: int) -> PartitionAssignment:
        owner, (record, _) = assignment.owner(partition), self._store.roster(partition)
        last = record.last_published_session
        members = tuple(r for r, e in record.replicas.items() if e.session_id == last >= 0 and e.closing_mark is None)
        server_id = owner.server_id if owner else None
        return PartitionAssignment(partition, server_id, assignment.generation(partition), record.session_id, members)

    # -- the machine's thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while (event := self._next()) is not None:
            self._driver.handle(event)
            if self._machine.leading:
                self._supervision.set()
            elif not self._closing.is_set():
                self._supervision.clear()

    def _next(self) -> Event | None:
        """The next event; None: the end."""
        while True:
            wait = self._later[0][0] - time.monotonic() if self._later else None
            if wait is not None and wait <= 0:
                return heapq.heappop(self._later)[2]
            try:
                return self._events.get(timeout=wait)
            except queue.Empty:
                continue

    def _after(self, delay_s: float, event: Event) -> None:
        heapq.heappush(self._later, (time.monotonic() + delay_s, next(self._order), event))

    def _perform(self, effect: Effect) -> None:
        log.info("manager: %s", effect)
        match effect:
            case StartSettling():
                self._after(self._settle_s, SettleOver())
            case ReadAssignment():
                self._read()
            case WriteAssignment(assignment, version):
                try:
                    self._events.put(AssignmentRead(assignment, self._store.set_assignment(assignment, version)))
                except VersionConflict:
                    self._events.put(WriteFailed())
                except CoordinationError as error:  # the outcome may be unknown: read before anything else
                    log.warning("manager: the assignment was not written: %s", error)
                    self._after(_RETRY_S, WriteFailed())
            case RemoveRegistration(server_id):
                try:
                    self._store.remove_server_registration(server_id)
                except CoordinationError as error:  # it ends with the dead server's session then
                    log.warning("manager: the registration of server %d was not removed: %s", server_id, error)
            case Probe(server_id, endpoint):
                self._stop_probe(server_id)
                self._probes[server_id] = EndpointProbe(server_id, endpoint, self._events.put)
            case StopProbe(server_id):
                self._stop_probe(server_id)

    def _read(self) -> None:
        try:
            self._events.put(AssignmentRead(*self._store.assignment()))
        except CoordinationError as error:
            log.warning("manager: the assignment cannot be read: %s", error)
            self._after(_RETRY_S, WriteFailed())

    def _stop_probe(self, server_id: int) -> None:
        probe = self._probes.pop(server_id, None)
        if probe is not None:
            probe.stop()

    # -- the actors' thread -----------------------------------------------------------------------------

    def _supervise(self) -> None:
        while True:
            self._supervision.wait()
            if self._closing.is_set():
                return
            try:
                self._supervisor.ensure(self.settings)
                self.supervision_error = ""
            except Exception as error:  # Ray's errors have many roots; shown in status, tried again
                if str(error) != self.supervision_error:
                    log.exception("manager: actors could not be made sure of")
                self.supervision_error = str(error)
            self._closing.wait(_SUPERVISE_INTERVAL_S)


class ClusterManager:
    """The actor; see ``ManagerHost``. ``zookeeper`` is a connect string."""

    def __init__(self, cluster: str, zookeeper: str) -> None:
        from waltz_ray.actors.supervision import RaySupervisor, pulse_of, replica_name, server_name
        from waltz_ray.coordination.original_nodes import OriginalNodes
        from waltz_ray.coordination.zookeeper import KazooZooKeeper

        logging.basicConfig(level=logging.INFO)
        self._cluster, self._connect_string = cluster, zookeeper
        self._zookeeper = KazooZooKeeper(zookeeper, _SESSION_TIMEOUT_MS, connect_timeout_s=60)
        self._key = str(ClusterStore(self._zookeeper, cluster).info().cluster_key)
        self._host = ManagerHost(self._zookeeper, cluster, RaySupervisor(zookeeper))
        self._replicas = {r: replica_name(r) for r in self._host.settings.placement}
        self._servers = {s: server_name(s) for s in range(self._host.settings.config.servers)}
        self._pulse = pulse_of(cluster, [*self._replicas.values(), *self._servers.values()])
        self._pulse.start()
        self._for_the_original = OriginalNodes(self._zookeeper, cluster)
        self._for_the_original.start()

    def location(self) -> dict[str, str]:
        """What a client asks for first: the connect string of ZooKeeper, and the key that it has to find there."""
        return {"zookeeper": self._connect_string, "cluster_key": self._key}

    def health(self) -> str:
        return "LEADING" if self._host.leading else "FOLLOWING"

    def status(self) -> ClusterStatus:
        """ZooKeeper's view, and what every server and replica says of itself; for ``waltz status``.

        Answers within seconds whoever hangs.
        """
        from waltz_ray.actors.supervision import statuses

        embedded = not self._host.settings.config.zookeeper
        answers = statuses(self._cluster, self._servers, self._replicas, embedded)
        return replace(
            self._host.view(_VIEW_TIMEOUT_S),
            zookeeper=self._connect_string,
            zookeeper_server=answers.zookeeper,
            servers={s: self._with_silence(self._servers[s], answer) for s, answer in answers.servers.items()},
            replicas={r: self._with_silence(self._replicas[r], answer) for r, answer in answers.replicas.items()},
        )

    def _with_silence(self, name: str, answer: StatusT) -> StatusT:
        if answer.state is not ActorState.NO_ANSWER:
            return answer
        return replace(answer, silent_s=round(self._pulse.silent_s(name), 1))

    def set_preferred(self, server_id: int, partitions: list[int]) -> None:
        """Partitions the server should have whenever it is alive; persisted, placement follows at once."""
        ClusterStore(self._zookeeper, self._cluster).set_preferred(server_id, partitions)

    def shutdown(self) -> None:
        """The manager stops; servers and replicas go on."""
        self._pulse.close()
        self._for_the_original.close()
        self._host.close()
        self._zookeeper.close()
