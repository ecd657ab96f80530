"""``cluster-manager``: assigns partitions to servers and makes sure that the actors exist.

How it decides: docs/design.md, "Placement"; that nothing depends on it: docs/design.md, "Actors".

Decisions are made in ``protocol.manager`` and carried out in ``manager.py``, in an event loop; here are the thread that
runs the loop, the view of the cluster, and the Ray actor. Hard state lives only in ZooKeeper: the settings (what should
run), the assignment, the registrations, the leader lock. The manager may be killed at any moment: Ray starts it again,
it is elected when its predecessor's ZooKeeper session has timed out, reads everything and goes on. While it is away the
data plane does not notice, except that nobody moves the partitions of a server that dies then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Container, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from waltz_ray.actors.access_guard import AccessGuard
from waltz_ray.actors.actor_log import begin_log
from waltz_ray.actors.cut_off import CutOff
from waltz_ray.actors.layers import Layers
from waltz_ray.actors.manager import Manager, end_manager
from waltz_ray.actors.metrics import CursorGauges
from waltz_ray.actors.mover import Mover
from waltz_ray.actors.settings import Settings, as_of, from_json
from waltz_ray.actors.topic_slots import TopicSlots
from waltz_ray.actors.window import Window
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.cursor_store import CursorLooks
from waltz_ray.coordination.layer_store import LayerStore
from waltz_ray.coordination.pulse import ZooKeeperPulse
from waltz_ray.coordination.upgrade_store import UpgradeStore
from waltz_ray.errors import SHORTAGES, ClusterNotFound, CoordinationError, NoNode, ZooKeeperUnreachable, shortage
from waltz_ray.kv.placement import BucketSplitting
from waltz_ray.protocol.authentication import Credential, Role
from waltz_ray.protocol.cluster_members import ClusterMembers
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment
from waltz_ray.protocol.spaces import Space
from waltz_ray.runtime.process import about_process
from waltz_ray.runtime.status import (
    ActorState,
    ActorStatus,
    ClusterStatus,
    CursorStatus,
    ManagerStatus,
    MembershipStatus,
    PartitionAssignment,
    SetMove,
    ZooKeeperView,
    cursors_behind,
)
from waltz_ray.security.handshakes import ticket_end_ms
from waltz_ray.security.secret_file import SecretFile

__all__ = ["ClusterManager", "ManagerHost", "Supervisor"]

StatusT = TypeVar("StatusT", bound=ActorStatus)

log = logging.getLogger(__name__)

_SETTLE_S = 5.0
_VIEW_TIMEOUT_S = 1.0
_READ_ALWAYS = 256  # partitions, of which each is a read of ZooKeeper, whoever looks
_SESSION_TIMEOUT_MS = 3000  # how long a successor waits for a killed manager's leader lock


class Supervisor(Protocol):
    """What the manager needs of Ray."""

    def ensure(self, settings: Settings) -> None:
        """Make every replica and server exist; idempotent, may block for a while, may raise."""
        ...


@dataclass(frozen=True, slots=True)
class _Read:
    """What ZooKeeper said when it was read last, and when that was (``time.monotonic``)."""

    partitions: tuple[PartitionAssignment, ...]
    spaces: tuple[Space, ...]
    cursors: tuple[CursorStatus, ...]
    servers: Mapping[int, Endpoint]
    replicas: Mapping[int, Endpoint]
    moves: Mapping[int, SetMove]
    upgrading: bool
    at: float


class ManagerHost:
    """The implementation behind the actor. ``close()`` ends its threads and gives the leader lock away."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str, supervisor: Supervisor, settle_s: float = _SETTLE_S) -> None:
        self._zookeeper = zookeeper
        self._store = ClusterStore(zookeeper, cluster)
        self._info = self._store.info()
        self._made_with = from_json(self._info.settings)
        self.settings = as_of(self._made_with, self._info.members)
        """As of the members that were seen last."""
        self.members = self._info.members
        self._layer_store = LayerStore(zookeeper, cluster)
        self._cursors = CursorLooks(zookeeper, cluster)
        self._kv_actors = self._layer_store.actors("kv")
        self._topic_actors = self._layer_store.actors("topic")
        self._forgotten: set[int] = set()  # replicas that were removed, and are announced nowhere any more
        self._supervisor = supervisor
        self._settle_s = settle_s
        self._closed = False
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="manager-view")
        self._reading: Future[None] | None = None
        self._sparing = False  # what is being read
        self._last_read: _Read | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="manager", daemon=True)
        self._thread.start()
        try:
            self.manager = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        except BaseException:
            self._end_loop()
            raise
        self._pulse = ZooKeeperPulse(zookeeper, f"/{cluster}")
        self._store.members.watch(self._members_seen)

    def _members_seen(self, members: ClusterMembers) -> None:
        """A watch calls, in its own thread."""
        self.members, self.settings = members, as_of(self._made_with, members)
        self.manager.members_seen(members.servers - members.leaving_servers, members.leaving_servers)

    async def _start(self) -> Manager:
        manager = Manager(
            self._store,
            frozenset(self.settings.server_ids) - self._info.members.leaving_servers,
            self._ensure,
            f"pid {os.getpid()}",
            self._settle_s,
            self.settings.config.server.silent_ms / 1000,
        )
        layers = self._layers = Layers(
            self._zookeeper,
            self._info.name,
            self.settings.config.kv,
            lambda space: BucketSplitting(space.count),
            lambda: manager.machine.leading,
            lambda: self._kv_actors,
            self._settle_s,
        )
        slots = self._topic_slots = TopicSlots(
            self._zookeeper,
            self._info.name,
            lambda: manager.machine.leading,
            lambda: self._topic_actors,
            self._settle_s,
        )
        self._mover = Mover(self._store, lambda: manager.machine.leading, gone=lambda: manager.machine.table.gone)
        try:
            await manager.start()
            await layers.start()
            await slots.start()
            await self._mover.start()
        except BaseException:
            await self._mover.close()
            await manager.close()
            await layers.close()
            await slots.close()
            raise
        return manager

    def _ensure(self) -> None:
        """As the settings say, with as many actors of layers as there are to be by now."""
        config = self.settings.config
        try:
            self._kv_actors = self._layer_store.actors("kv")
            self._topic_actors = self._layer_store.actors("topic")
            self._forget_removed()
        except CoordinationError as error:  # the others are looked after without ZooKeeper, too
            log.info("manager: how many actors of layers there are to be was not read again: %s", error)
        kv = replace(config.kv, actors=self._kv_actors)
        topics = replace(config.topics, actors=self._topic_actors)
        self._supervisor.ensure(replace(self.settings, config=replace(config, kv=kv, topics=topics)))

    def _forget_removed(self) -> None:
        """Who removed a replica, and was killed before it was done, left where that listened: servers look there."""
        members = self.members
        for replica_id in sorted(set(range(members.next_replica)) - members.places.keys() - self._forgotten):
            self._store.members.forget_replica(replica_id)
            self._forgotten.add(replica_id)

    @property
    def leading(self) -> bool:
        return self.manager.machine.leading

    def close(self) -> None:
        """End the threads and give the leader lock away. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._pulse.close()
        self._reader.shutdown(wait=False, cancel_futures=True)
        asyncio.run_coroutine_threadsafe(self._mover.close(), self._loop).result()
        asyncio.run_coroutine_threadsafe(self._layers.close(), self._loop).result()
        asyncio.run_coroutine_threadsafe(self._topic_slots.close(), self._loop).result()
        asyncio.run_coroutine_threadsafe(self.manager.close(), self._loop).result()
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def view(self, timeout_s: float, sparing: bool = False) -> ClusterStatus:
        """What ZooKeeper says about the cluster: who has what, and who was in the last sessions. Nothing of the actors.

        After ``timeout_s`` what it said last, then with its age: ZooKeeper may be away or hang. ``sparing``, for who
        asks again and again: of very many partitions the sessions and members may be those of the last assignment, and
        a cursor that was made anew after it was deleted is told a few looks later.

        ClusterNotFound while it closes: then its successor is to be asked.
        """
        try:
            reading = self._reading
            if reading is None or reading.done() or (self._sparing and not sparing):
                self._sparing = sparing
                reading = self._reading = self._reader.submit(self._read_view, sparing)
            wait([reading], timeout_s)
            failure = reading.exception() if reading.done() else None
        except (RuntimeError, CancelledError) as error:  # of an executor that has been shut down
            if not self._closed:
                raise
            raise ClusterNotFound(f"the manager of cluster {self._info.name!r} is closing") from error
        read, seen = self._last_read, self._pulse.view()
        age_s = None if read is None else round(time.monotonic() - read.at, 1)
        return ClusterStatus(
            cluster=self._info.name,
            cluster_key=self._info.cluster_key,
            zookeeper_state=ZooKeeperView(seen.state, seen.silent_s, seen.error, age_s, str(failure or "")),
            manager=ManagerStatus(os.getpid(), self.leading, self.manager.supervision_error),
            partitions=read.partitions if read else tuple(map(PartitionAssignment, range(self._info.partitions))),
            spaces=read.spaces if read else (),
            cursors=read.cursors if read else (),
            registered_servers=read.servers if read else {},
            announced_replicas=read.replicas if read else {},
            placement=self.settings.placement,
            members=MembershipStatus(
                tuple(self.settings.server_ids),
                tuple(sorted(self.members.draining_servers)),
                tuple(sorted(self.members.draining_replicas)),
            ),
            moves=read.moves if read else {},
            upgrading=read is not None and read.upgrading,
            config=self.settings.config,
        )

    @property
    def kv_actors(self) -> int:
        """How many kv actors there are to be, as it was read last."""
        return self._kv_actors

    @property
    def topic_actors(self) -> int:
        """How many topic actors there are to be, as it was read last."""
        return self._topic_actors

    def _read_view(self, sparing: bool) -> None:
        self._kv_actors = self._layer_store.actors("kv")
        (assignment, _), spaces = self._store.assignment(), self._store.spaces.table()
        servers, replicas, moves = self._store.servers(), self._store.replicas(), self._read_moves()
        last = self._last_read
        before = {each.partition: each for each in last.partitions} if sparing and last is not None else {}
        if len(before) <= _READ_ALWAYS:
            before = {}
        moving = moves.keys() | (last.moves.keys() if last is not None else set())  # also who has just arrived
        self._last_read = _Read(
            partitions=tuple(self._read_partition(assignment, p, before.get(p), moving) for p in spaces.kept),
            spaces=tuple(spaces.present()),
            cursors=tuple(self._cursors.all(spaces.present(), sparing)),
            servers={server_id: server.endpoint for server_id, server in servers.items()},
            replicas={replica_id: replica.endpoint for replica_id, replica in replicas.items()},
            moves=moves,
            upgrading=UpgradeStore(self._zookeeper, self._info.name).read() is not None,
            at=time.monotonic(),
        )

    def _read_moves(self) -> dict[int, SetMove]:
        waits = self._mover.waits
        return {
            p: SetMove(tuple(sorted(wanted)), waits.get(p, ""))
            for p, wanted in sorted(self._store.moves.read().wanted.items())
        }

    def _read_partition(
        self, assignment: Assignment, partition: int, before: PartitionAssignment | None, moving: Container[int]
    ) -> PartitionAssignment:
        owner = assignment.owner(partition)
        stands = partition not in moving and before is not None and before.members
        if before is not None and stands and before.generation == assignment.generation(partition):
            return before
        try:
            record, _ = self._store.roster(partition)
        except NoNode:
            return PartitionAssignment(partition)  # its space is being made
        last = record.last_published_session
        members = tuple(r for r, e in record.replicas.items() if e.session_id == last >= 0 and e.closing_mark is None)
        server_id = owner.server_id if owner else None
        generation, replicas = assignment.generation(partition), tuple(sorted(record.replicas))
        return PartitionAssignment(partition, server_id, generation, record.session_id, members, replicas)


class ClusterManager:
    """The actor; see ``ManagerHost``. ``zookeeper`` is a connect string."""

    def __init__(self, cluster: str, zookeeper: str) -> None:
        begin_log(cluster, "cluster-manager")
        self._cluster, self._connect_string = cluster, zookeeper
        try:
            self._begin(cluster, zookeeper)
        except (ZooKeeperUnreachable, *SHORTAGES) as error:
            # Ray starts a process anew that has ended, and never an actor whose constructor has raised an error. What
            # the last ones tell of, a lack of handles, threads or memory, may be over by then.
            end_manager(f"manager: it cannot begin: {shortage(error)}")

    def _begin(self, cluster: str, zookeeper: str) -> None:
        from waltz_ray.actors.supervision import RaySupervisor, pulse_of, replica_name, server_name
        from waltz_ray.coordination.original_nodes import OriginalNodes
        from waltz_ray.coordination.zookeeper import KazooZooKeeper

        self._zookeeper = KazooZooKeeper(zookeeper, _SESSION_TIMEOUT_MS, connect_timeout_s=60)
        self._key = str(ClusterStore(self._zookeeper, cluster).info().cluster_key)
        self._host = ManagerHost(self._zookeeper, cluster, RaySupervisor(zookeeper))
        self._secret = SecretFile(self._host.settings.config.secret_path)
        self._replica_name, self._server_name = replica_name, server_name
        self._pulse = pulse_of(cluster, [*self._replicas.values(), *self._servers.values()])
        self._pulse.start()
        self._for_the_original = OriginalNodes(self._zookeeper, cluster)
        self._for_the_original.start()
        gauges, cut_off, http = CursorGauges(cluster), CutOff(), self._host.settings.config.http

        def then(view: ClusterStatus) -> None:
            gauges.cursors(view.cursors)
            before, now = cut_off.servers, cut_off.seen(view.servers)
            if now != before:
                self._host.manager.cut_off_seen(now)

        # What ZooKeeper's thread changes there is one reference, which the HTTP port's thread reads.
        self._guard = AccessGuard("the manager's HTTP port", ClusterStore(self._zookeeper, cluster))
        self._guard.read()
        self._guard_watches = self._guard.watch(lambda call: call, lambda: None)
        self._window = Window(lambda: self._seen(sparing=True), then, http, self._guard)
        self._window.open()

    def __repr__(self) -> str:
        """What Ray's dashboard shows as the actor's name, asked for once: where the cluster's page is."""
        window = getattr(self, "_window", None)  # Ray asks also after ``__init__`` has failed
        return f"waltz {self._cluster} {(window and window.url) or '(no HTTP port)'}"

    @property
    def _replicas(self) -> dict[int, str]:
        """Those that belong to the cluster by now, each with its actor's name."""
        return {r: self._replica_name(r) for r in self._host.settings.placement}

    @property
    def _servers(self) -> dict[int, str]:
        return {s: self._server_name(s) for s in self._host.settings.server_ids}

    def location(self) -> dict[str, str]:
        """What a client asks for first: the connect string of ZooKeeper, and the key that it has to find there."""
        return {"zookeeper": self._connect_string, "cluster_key": self._key}

    def reading_ticket(self) -> Credential:
        """For who reads from the replicas, and does not run where the secret lies. SecretUnusable."""
        return self._secret.secret().credential(Role.READER, ticket_end_ms())

    def health(self) -> str:
        return "LEADING" if self._host.leading else "FOLLOWING"

    def status(self) -> ClusterStatus:
        """ZooKeeper's view, and what every server and replica says of itself; for ``waltz status``.

        Answers within seconds whoever hangs.
        """
        return self._seen(sparing=False)

    def _seen(self, sparing: bool) -> ClusterStatus:
        from waltz_ray.actors.supervision import statuses

        embedded = not self._host.settings.config.zookeeper
        view = self._host.view(_VIEW_TIMEOUT_S, sparing)
        kv, topics = range(self._host.kv_actors), range(self._host.topic_actors)
        self._pulse.follow([*self._replicas.values(), *self._servers.values()])
        answers = statuses(self._cluster, self._servers, self._replicas, embedded, kv=kv, topics=topics)
        process = about_process()
        return replace(
            view,
            at_ms=time.time_ns() // 1_000_000,
            manager=replace(
                view.manager,
                http=self._window.endpoint,
                http_error=self._window.error,
                http_refused=dict(self._guard.refused),
                process=process,
            ),
            version=process.version,
            cursors=cursors_behind(view.cursors, view.spaces, answers.servers),
            zookeeper=self._connect_string,
            zookeeper_server=answers.zookeeper,
            servers={s: self._with_silence(self._server_name(s), answer) for s, answer in answers.servers.items()},
            replicas={r: self._with_silence(self._replica_name(r), answer) for r, answer in answers.replicas.items()},
            kv=answers.kv,
            topics=answers.topics,
        )

    def _with_silence(self, name: str, answer: StatusT) -> StatusT:
        if answer.state is not ActorState.NO_ANSWER:
            return answer
        return replace(answer, silent_s=round(self._pulse.silent_s(name), 1))

    def set_preferred(self, server_id: int, partitions: list[int]) -> None:
        """Partitions the server should have whenever it is alive; persisted, placement follows at once."""
        ClusterStore(self._zookeeper, self._cluster).set_preferred(server_id, partitions)

    def spaces(self) -> list[Space]:
        """All spaces that were not deleted; these calls are those of ``waltz_ray.Spaces``, for who has this handle."""
        return ClusterStore(self._zookeeper, self._cluster).spaces.table().present()

    def create_space(
        self, name: str, partitions: int | None, kind: str = "log", settings: Mapping[str, int | None] | None = None
    ) -> Space:
        """Add a space; it is *making* when this returns, and ready soon."""
        return ClusterStore(self._zookeeper, self._cluster).spaces.create(name, partitions, kind, settings)

    def set_space(self, name: str, settings: Mapping[str, int | None]) -> Space:
        """Change settings; None takes one away."""
        return ClusterStore(self._zookeeper, self._cluster).spaces.set(name, settings)

    def delete_space(self, name: str, confirm: str) -> Space:
        """Delete a space and its records, confirmed by its name."""
        return ClusterStore(self._zookeeper, self._cluster).spaces.delete(name, confirm)

    def shutdown(self) -> None:
        """The manager stops; servers and replicas go on."""
        self._window.close()
        for watch in self._guard_watches:
            watch.cancel()
        self._pulse.close()
        self._for_the_original.close()
        self._host.close()
        self._zookeeper.close()
