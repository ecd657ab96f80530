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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from typing import Any, Protocol

from waltz_ray.actors.endpoint_probe import EndpointProbe
from waltz_ray.actors.settings import Settings, from_json
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.pulse import ZooKeeperPulse
from waltz_ray.errors import CoordinationError, VersionConflict
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
from waltz_ray.runtime.driver import Driver

__all__ = ["ClusterManager", "ManagerHost", "Supervisor"]

log = logging.getLogger(__name__)

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


class ManagerHost:
    """The implementation behind the actor. ``close()`` ends its threads and gives the leader lock away."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str, supervisor: Supervisor, settle_s: float = _SETTLE_S) -> None:
        self._store = ClusterStore(zookeeper, cluster)
        info = self._store.info()
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
        self._reading: Future[dict[str, Any]] | None = None
        self._last_view: tuple[float, dict[str, Any]] | None = None
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
        """Idempotent."""
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

    def view(self, timeout_s: float) -> dict[str, Any]:
        """What ZooKeeper says about the cluster, as JSON: who has what, and who was in the last sessions.

        After ``timeout_s`` what it said last, then with its age: ZooKeeper may be away or hang.
        """
        reading = self._reading
        if reading is None or reading.done():
            reading = self._reading = self._reader.submit(self._read_view)
        wait([reading], timeout_s)
        failure = reading.exception() if reading.done() else None
        read_at, view = self._last_view or (None, self._unknown())
        return view | {
            "zookeeper_state": self._pulse.view()
            | {
                "view_age_s": None if read_at is None else round(time.monotonic() - read_at, 1),
                "view_error": str(failure or ""),
            },
            "placement": {str(r): resource for r, resource in self.settings.placement.items()},
            "manager": {
                "pid": os.getpid(),
                "leading": self.leading,
                "supervision_error": self.supervision_error,
            },
            "config": asdict(self.settings.config),
        }

    def _unknown(self) -> dict[str, Any]:
        """The view before ZooKeeper was read for the first time."""
        info = self._store.info()
        nothing: dict[str, Any] = {"server": None, "generation": 0, "session": -1, "members": []}
        partitions = [{"partition": partition} | nothing for partition in range(info.partitions)]
        named = {"cluster": info.name, "cluster_key": str(info.cluster_key), "partitions": partitions}
        return named | {"registered_servers": {}, "announced_replicas": {}}

    def _read_view(self) -> dict[str, Any]:
        info = self._store.info()
        assignment, _ = self._store.assignment()
        servers, replicas = self._store.servers(), self._store.replicas()
        partitions = []
        for partition in range(info.partitions):
            owner, (record, _) = assignment.owner(partition), self._store.roster(partition)
            last = record.last_published_session
            members = [r for r, e in record.replicas.items() if e.session_id == last >= 0 and e.closing_mark is None]
            partitions.append(
                {
                    "partition": partition,
                    "server": owner.server_id if owner else None,
                    "generation": assignment.generation(partition),
                    "session": record.session_id,
                    "members": members,
                }
            )
        view = {
            "cluster": info.name,
            "cluster_key": str(info.cluster_key),
            "partitions": partitions,
            "registered_servers": {str(s): str(server.endpoint) for s, server in servers.items()},
            "announced_replicas": {str(r): str(replica.endpoint) for r, replica in replicas.items()},
        }
        self._last_view = time.monotonic(), view
        return view

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
        self._replicas = {str(r): replica_name(r) for r in self._host.settings.placement}
        self._servers = {str(s): server_name(s) for s in range(self._host.settings.config.servers)}
        self._pulse = pulse_of(cluster, [*self._replicas.values(), *self._servers.values()])
        self._pulse.start()
        self._for_the_original = OriginalNodes(self._zookeeper, cluster)
        self._for_the_original.start()

    def location(self) -> dict[str, str]:
        """What a client asks for first: the connect string of ZooKeeper, and the key that it has to find there."""
        return {"zookeeper": self._connect_string, "cluster_key": self._key}

    def health(self) -> str:
        return "LEADING" if self._host.leading else "FOLLOWING"

    def status(self) -> dict[str, Any]:
        """For ``waltz status --json``: ZooKeeper's view, and what every server and replica says of itself.

        Answers within seconds whoever hangs.
        """
        from waltz_ray.actors.supervision import ZOOKEEPER, statuses

        ours = [] if self._host.settings.config.zookeeper else [ZOOKEEPER]
        answers = statuses(self._cluster, [*self._replicas.values(), *self._servers.values(), *ours])
        embedded = answers.pop(ZOOKEEPER, None)
        for name, answer in answers.items():
            if answer["state"] == "NO ANSWER":
                answer["silent_s"] = round(self._pulse.silent_s(name), 1)
        return self._host.view(_VIEW_TIMEOUT_S) | {
            "zookeeper": self._connect_string,
            "zookeeper_server": embedded,
            "servers": {s: answers[name] for s, name in self._servers.items()},
            "replicas": {r: answers[name] for r, name in self._replicas.items()},
        }

    def set_preferred(self, server_id: int, partitions: list[int]) -> None:
        """Partitions the server should have whenever it is alive; persisted, placement follows at once."""
        ClusterStore(self._zookeeper, self._cluster).set_preferred(server_id, partitions)

    def shutdown(self) -> None:
        """The manager stops; servers and replicas go on."""
        self._pulse.close()
        self._for_the_original.close()
        self._host.close()
        self._zookeeper.close()
