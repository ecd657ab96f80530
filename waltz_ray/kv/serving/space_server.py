"""One kv space served by one actor: node, gateway, projections, registration, compaction. In one event loop.

It listens first, folds what there is, and registers after that: an endpoint found in ZooKeeper has always been bound,
and who is registered is warm. It leaves in the other order.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

from waltz_ray.actors.access_guard import AccessGuard
from waltz_ray.client.aio import AsyncWaltzClient, engine_of, next_client_id_of
from waltz_ray.client.credentials import NO_CREDENTIALS, Presented
from waltz_ray.config import KvConfig
from waltz_ray.coordination.api import Watch, ZooKeeper
from waltz_ray.coordination.layer_store import LayerStore
from waltz_ray.coordination.trim_store import TrimStore
from waltz_ray.coordination.unit_lease import confirmed_incarnations, keep_lease
from waltz_ray.coordination.unit_store import UnitMember, UnitRegistration, UnitStore
from waltz_ray.errors import ConfigError, ProjectionFailed
from waltz_ray.kv.keeper_types import KeeperLimits
from waltz_ray.kv.placement import BucketSplitting
from waltz_ray.kv.routing import Unit, space_identity
from waltz_ray.kv.serving.clock import SteadyClock
from waltz_ray.kv.serving.compactor import Compactor
from waltz_ray.kv.serving.folding import forget_what_is_lost
from waltz_ray.kv.serving.gateway import Gateway
from waltz_ray.kv.serving.peers import Peers
from waltz_ray.kv.serving.port import GatewayLimits
from waltz_ray.kv.serving.space_log import SpaceLog
from waltz_ray.kv.serving.space_node import KvMember, SpaceNode, Surroundings
from waltz_ray.kv.wire import Dialect
from waltz_ray.net.tls import ServerTls
from waltz_ray.projections.kv_state import LmdbState
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.ownership_types import RegisteredAs, UnitTable, Unregistered
from waltz_ray.protocol.spaces import Space
from waltz_ray.runtime.boot_clock import boot_s
from waltz_ray.runtime.status import KvSpaceStatus

__all__ = ["SpaceServer"]

log = logging.getLogger(__name__)

_NOTABLE_MS = 2000


class SpaceServer:
    """``client``: of this space, started, without callbacks; it is closed with this. ``directory``: of the projections,
    this actor's own. ``failed`` is called once when a projection cannot be kept: then this should be closed.
    ``guard``: of the rights of clients; ``shown``: what proves to the other actors that this is one. ``recovery``: as
    ``LmdbState`` has it.
    """

    def __init__(
        self,
        actor: int,
        cluster: str,
        space: Space,
        client: AsyncWaltzClient,
        zookeeper: ZooKeeper,
        config: KvConfig,
        directory: Path,
        failed: Callable[[ProjectionFailed], None],
        guard: AccessGuard | None = None,
        shown: Presented = NO_CREDENTIALS,
        recovery: str = "",
    ) -> None:
        self._guard, self._shown, self._recovery = guard, shown, recovery
        self.space = space
        self.failure = ""
        self.endpoint: Endpoint | None = None
        self._actor = actor
        self._client = client
        self._config = config
        self._directory = directory
        self._failed_there = failed
        self._loop = asyncio.get_running_loop()
        self._store = UnitStore[Unit](zookeeper, cluster, "kv", space.name, BucketSplitting(space.count))
        self._trims = TrimStore(zookeeper, cluster)
        self._layers = LayerStore(zookeeper, cluster)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix=f"kv-{actor}-{space.name}-zookeeper")
        self._lease_thread = ThreadPoolExecutor(1, thread_name_prefix=f"kv-{actor}-{space.name}-lease")
        self._registration: UnitRegistration | None = None
        self._watches: list[Watch] = []
        self._registering = threading.Lock()  # who is cancelled meanwhile leaves it to go on in its thread
        self._left = False  # nothing is registered any more
        self._tasks: set[asyncio.Task[None]] = set()
        self._space_log = SpaceLog(engine_of(client), partial(next_client_id_of, client))
        self.node: SpaceNode | None = None
        self.gateway: Gateway | None = None
        self.compactor: Compactor | None = None
        self._peers: Peers | None = None

    async def start(self, port: int) -> None:
        """Listen, fold, register. ConfigError if the port is in use; ProjectionFailed, StorageLocked."""
        config = self._config
        states = await self._opened()
        clock = SteadyClock()
        limits = KeeperLimits(
            max_value_bytes=config.max_value_bytes,
            answer_bytes=config.max_frame_bytes,
            fullwait_ms=config.fullwait_ms,
            backups=config.actors > 1,
        )
        around = Surroundings(
            log=self._space_log,
            states=states,
            confirm_members=self._confirm_members,
            ask_secondary=self._ask_secondary,
            failed=self._failed,
            now_ms=clock,
            lease_clock=boot_s,
            peer_leaves=self._peer_leaves,
        )
        session_s, margin_s = config.session_ms / 1000, config.lease_margin_ms / 1000
        node = self.node = SpaceNode(self._actor, session_s, margin_s, limits, around)
        gateway = self.gateway = self._new_gateway(node)
        node.announcements.gateway = gateway
        await self._listen(gateway, port)
        assert self.endpoint is not None
        own = _server(self.endpoint)
        self._peers = Peers(own, node.outgoing, config.fullwait_ms / 1000, self._shown, self._identity)
        await node.start()
        while not node.caught_up:
            await node.next_fold()
        self._set(clock, states)
        await self._in_thread(self._register)
        self._spawn(self._keep_lease())
        self.compactor = Compactor(node, self._space_log, self._trim, config.compact_bytes // self.space.count)
        self._spawn(self.compactor.run())

    async def close(self) -> None:
        """Serve nothing more: registration removed, clients told, projections closed. Idempotent."""
        registration, self._registration = self._registration, None

        def leave() -> None:
            with self._registering:
                self._left = True
                watches, self._watches = self._watches, []
                late, self._registration = self._registration, None
            for watch in watches:
                watch.cancel()
            for each in (registration, late):
                if each is not None:
                    each.cancel()

        if self._peers is not None:
            await self._peers.leave()
        if self.node is not None:
            self.node.leave()  # nothing is begun under a lease that ends now
        await self._in_thread(leave)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.node is not None:
            await self.node.close()
        if self._peers is not None:
            await self._peers.close()
        if self.gateway is not None:
            await self.gateway.close()
        await self._client.close()
        self._threads.shutdown(wait=False)
        self._lease_thread.shutdown(wait=False)

    def status(self) -> KvSpaceStatus:
        """What it says of itself. Waits for nothing."""
        assert self.node is not None
        assert self.gateway is not None
        assert self.compactor is not None
        node, states = self.node, self.node.states
        hosted = node.ownership.hosted()
        lease_until, outrun = node.ownership.lease_until_s(), node.ownership.outrun()
        return KvSpaceStatus(
            endpoint=self.endpoint,
            incarnation=node.ownership.incarnation,
            mask=node.mask,
            primaries=sum(instance == 0 for _, instance in hosted),
            secondaries=sum(instance > 0 for _, instance in hosted),
            lease=lease_until is not None and boot_s() < lease_until,
            marks={partition: state.mark for partition, state in states.items()},
            connections=self.gateway.connections,
            commands=node.keeper.commands,
            waiting=node.keeper.waiting,
            live_bytes=sum(state.live_bytes for state in states.values()),
            tail_bytes=sum(state.tail_bytes for state in states.values()),
            snapshots=self.compactor.snapshots,
            access_refused=dict(self.gateway.counts.access_refused),
            outrun="" if outrun is None else f"bucket {outrun[0]}: {outrun[1]}",
        )

    # ---- beginning

    def _set(self, clock: SteadyClock, states: Mapping[int, LmdbState]) -> None:
        """No earlier than anything that was decided before us: what has expired to somebody is not to come back."""
        behind_ms = clock.at_least(max(state.newest_ms for state in states.values()))
        if behind_ms > _NOTABLE_MS:
            log.warning(
                "kv/%d, space %s: this machine's clock is %d s behind what its log says; deadlines go by the log",
                self._actor,
                self.space.name,
                behind_ms // 1000,
            )

    async def _opened(self) -> dict[int, LmdbState]:
        key = self._client.cluster_key
        open_one = partial(LmdbState, self._directory, key, self.space.name, recovery=self._recovery)
        states: dict[int, LmdbState] = {}
        try:
            for partition, number in enumerate(self.space.partitions):
                states[partition] = open_one(partition, number)
            await forget_what_is_lost(self._space_log, states)
        except BaseException:
            for state in states.values():
                state.close()
            raise
        return states

    def _new_gateway(self, node: SpaceNode) -> Gateway:
        config = self._config
        limits = GatewayLimits(
            connections=config.connections,
            connections_per_peer=config.connections_per_peer,
            outstanding=config.outstanding,
            frame_bytes=config.max_frame_bytes,
            untaken_ms=config.stall_ms,
            unsent_bytes=config.unsent_bytes,
            idle_ms=config.idle_ms,
        )
        name = f"kv/{self._actor}, space {self.space.name}"
        dialect, guard = cast(Dialect, config.dialect), self._guard
        about = self.space.name, self._identity
        return Gateway(name, node, dialect, limits, node.outgoing, self._tls(), True, guard, *about)

    @property
    def _identity(self) -> str:
        return space_identity(self._client.cluster_key, self.space.name)

    def _tls(self) -> ServerTls | None:
        """ConfigError if its files cannot be used."""
        config = self._config
        if not config.tls_certificate:
            return None
        try:
            return ServerTls(config.tls_certificate, config.tls_key, config.tls_clients or None, optional=True)
        except OSError as error:  # which ssl.SSLError is
            files = ", ".join(filter(None, (config.tls_certificate, config.tls_key, config.tls_clients)))
            raise ConfigError(
                f"kv/{self._actor} cannot use its files for TLS ({files}; KvConfig.tls_certificate, tls_key, "
                f"tls_clients): {error.strerror or error}; they have to be PEM files, on every node"
            ) from error

    async def _listen(self, gateway: Gateway, port: int) -> None:
        host = self._config.host or "127.0.0.1"
        try:
            self.endpoint = Endpoint(host, await gateway.listen(host, port))
        except OSError as error:
            raise ConfigError(
                f"kv/{self._actor} cannot listen on {host}:{port}: {error.strerror}; "
                "choose another KvConfig.port, or 0 for any free one"
            ) from error

    def _register(self) -> None:
        assert self.node is not None
        assert self.endpoint is not None
        node = self.node

        def members(found: dict[int, UnitMember]) -> None:
            known = {actor: KvMember(each.incarnation, _server(each.endpoint)) for actor, each in found.items()}
            self._post(node.members_seen, known)
            if self._peers is not None:
                self._post(self._peers.forget_all_but, {each.server for each in known.values()})

        def table(found: UnitTable[Unit] | None) -> None:
            if found is not None:
                self._post(node.table_seen, found)

        def wanted(count: int) -> None:
            self._post(node.actors_wanted, count)

        with self._registering:
            if self._left:
                return
            self._watches.append(self._layers.watch("kv", wanted))
            self._watches.append(self._store.watch_members(members))
            self._watches.append(self._store.watch_table(table))
            self._registration = self._store.register(self._actor, self.endpoint, self._told, boot_s)

    def _told(self, event: RegisteredAs | Unregistered) -> None:
        assert self.node is not None
        if isinstance(event, RegisteredAs):
            self._post(self.node.registered, event.incarnation)
        else:
            self._post(self.node.unregistered)

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        """From ZooKeeper's threads."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)

    # ---- going on

    async def _keep_lease(self) -> None:
        node = self.node
        assert node is not None
        await keep_lease(
            f"kv/{self._actor}",
            lambda: self._registration,
            self._lease_thread,
            (self._config.session_ms - self._config.lease_margin_ms) / 1000,
            lambda lease: node.lease_confirmed(lease.incarnation, lease.sent_at_s),
        )

    async def _confirm_members(self) -> Mapping[int, str]:
        return await confirmed_incarnations(
            f"kv/{self._actor}", self._store, self._threads, self._config.session_ms / 1000
        )

    async def _ask_secondary(self, server: str, partition: int, transaction_id: int) -> bool:
        assert self._peers is not None
        return await self._peers.has(server, partition, transaction_id)

    def _peer_leaves(self, server: str) -> None:
        if self._peers is not None:
            self._peers.rest(server)

    async def _trim(self, marks: Mapping[int, int]) -> None:
        numbers = {self.space.first + partition: mark for partition, mark in marks.items()}
        await self._in_thread(lambda: self._trims.raise_marks(numbers))

    def _failed(self, error: ProjectionFailed) -> None:
        self.failure = str(error)
        log.error("kv/%d, space %s: %s", self._actor, self.space.name, error)
        self._failed_there(error)

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await self._loop.run_in_executor(self._threads, call)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "a kv task failed", "exception": error})
            # Without its lease nothing is served, without its compactor the log grows: it is opened anew.
            self._failed(ProjectionFailed(f"a task of it has ended: {error!r}; see its log"))


def _server(endpoint: Endpoint) -> str:
    return f"{endpoint.host}:{endpoint.port}"
