"""``kv/<n>``: the Ray shell around the kv spaces that one actor serves its part of."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from waltz_ray.actors.access_guard import AccessGuard
from waltz_ray.actors.actor_log import begin_log
from waltz_ray.actors.member_credentials import cluster_secret, kv_credentials, member_credentials
from waltz_ray.actors.metrics import KvGauges, keep_telling
from waltz_ray.actors.process_tuning import quieten_garbage_collector, take_normal_priority
from waltz_ray.actors.settings import own_host, own_settings
from waltz_ray.config import ClientConfig, KvConfig
from waltz_ray.connecting import connect_member
from waltz_ray.coordination.api import Watch
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.layer_store import LayerStore
from waltz_ray.coordination.pulse import ZooKeeperPulse
from waltz_ray.coordination.unit_lease import agreed_session_ms
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import SHORTAGES, ProjectionFailed, WaltzError, shortage
from waltz_ray.kv.serving.space_server import SpaceServer
from waltz_ray.projections.projection_file import remove_projections
from waltz_ray.protocol.spaces import Space, SpaceState, SpaceTable
from waltz_ray.runtime.process import about_process
from waltz_ray.runtime.status import ActorState, KvActorStatus

__all__ = ["KvActor"]

log = logging.getLogger(__name__)

_AGAIN_S = 2.0
_CLIENT = ClientConfig(feed_credit_bytes=1)
"""The next frame is sent when one is folded: it has all that was appended meanwhile (``serving/folding.py``)."""


class KvActor:
    """An async actor. Every method may be called again after a lost answer; none is on the data path."""

    def __init__(self, cluster: str, zookeeper: str, actor_id: int) -> None:
        begin_log(cluster, f"kv/{actor_id}")
        self._cluster = cluster
        self._connect_string = zookeeper
        self._actor_id = actor_id
        self._config = KvConfig()  # and where its files are: once it has started
        self._directory = Path()
        self._zookeeper: KazooZooKeeper | None = None
        self._pulse: ZooKeeperPulse | None = None
        self._starting: asyncio.Task[None] | None = None
        self._failure = ""
        self._servers: dict[str, SpaceServer] = {}
        self._listening: set[SpaceServer] = set()  # of spaces that are being opened: clients may have come already
        self._wanted: dict[str, Space] = {}
        self._gone: dict[str, bool] = {}  # deleted spaces, for ever: whether their projections are removed
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._unopened: dict[str, str] = {}  # of spaces that are being opened again: what has gone wrong
        self._follow: asyncio.Task[None] | None = None
        self._metrics: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._watches: list[Watch] = []
        self._guard: AccessGuard | None = None

    async def start(self) -> None:
        """Idempotent: it follows the cluster's kv spaces when it returns. Errors say what to do."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        try:
            await asyncio.shield(self._starting)
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"
            if self._starting is not None and self._starting.done():
                self._starting = None  # the next call tries again
            raise

    async def health(self) -> bool:
        """Whether it serves what it should."""
        return self._zookeeper is not None and not self._trouble

    async def status(self) -> KvActorStatus:
        """What it says of itself. Waits for nothing."""
        if self._pulse is None:
            reason = self._failure or "it has not been told to start, or waits for ZooKeeper"
            return KvActorStatus(state=ActorState.STARTING, reason=reason, pid=os.getpid())
        waiting = [name for name in self._wanted if name not in self._servers]
        trouble = self._trouble
        state = ActorState.STARTING if waiting or trouble else ActorState.SERVING
        reason = trouble or (f"space {waiting[0]} is being opened" if waiting else "")
        return KvActorStatus(
            state=state,
            reason=reason,
            pid=os.getpid(),
            process=about_process(),
            actor=self._actor_id,
            zookeeper=self._pulse.view(),
            spaces={name: server.status() for name, server in self._servers.items()},
        )

    async def shutdown(self) -> None:
        """Leave: what it has is given to others; the actor is of no use afterwards."""
        watches, self._watches = self._watches, []
        for watch in watches:
            watch.cancel()
        for task in (self._metrics, self._follow, *self._opening.values()):
            if task is not None:
                await _ended(task)
        servers, self._servers = self._servers, {}
        for server in servers.values():
            await server.close()
        if self._pulse is not None:
            self._pulse.close()
        if self._zookeeper is not None:
            await asyncio.to_thread(self._zookeeper.close)

    async def _export(self, gauges: KvGauges) -> None:
        async def tell() -> None:
            gauges.actor(await self.status())

        await keep_telling(f"kv/{self._actor_id}", tell)

    # ---- spaces

    async def _start(self) -> None:
        take_normal_priority()
        loop = asyncio.get_running_loop()

        zookeeper, guard = await asyncio.to_thread(self._connected)
        self._zookeeper, self._guard = zookeeper, guard

        def in_loop(call: Callable[..., None]) -> Callable[..., None]:
            def forward(*arguments: object) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(call, *arguments)

            return forward

        spaces = ClusterStore(zookeeper, self._cluster).spaces
        self._watches += await asyncio.to_thread(guard.watch, in_loop, self._on_rights)
        self._watches.append(await asyncio.to_thread(spaces.watch, in_loop(self._spaces_seen)))
        # Begun last: a start that fails before is tried again, and two of them would serve the same spaces.
        self._pulse = ZooKeeperPulse(zookeeper, f"/{self._cluster}")
        self._metrics = asyncio.ensure_future(self._export(KvGauges(self._cluster, str(self._actor_id))))
        self._follow = asyncio.ensure_future(self._keep_following())
        self._follow.add_done_callback(self._follows_no_more)
        self._failure = ""
        quieten_garbage_collector()

    def _connected(self) -> tuple[KazooZooKeeper, AccessGuard]:
        """With the cluster's settings as they are now. Blocks."""
        config = own_settings(self._cluster, self._connect_string).config
        self._directory = Path(config.directory) / f"kv-{self._actor_id}"
        if self._zookeeper is not None:  # of a start that failed
            self._zookeeper.close()
        client = KazooZooKeeper(self._connect_string, config.kv.session_ms)
        try:
            actors = LayerStore(client, self._cluster).actors("kv")
            session_ms = agreed_session_ms(f"kv/{self._actor_id}", config.kv.session_ms, client.session_timeout_ms)
            host = own_host(config.kv.host)
            self._config = replace(config.kv, host=host, actors=actors, session_ms=session_ms)
            store = ClusterStore(client, self._cluster)
            guard = AccessGuard(f"kv/{self._actor_id}", store, cluster_secret(store))
            guard.read()
        except BaseException:
            client.close()
            raise
        return client, guard

    def _on_rights(self) -> None:
        for server in (*self._servers.values(), *self._listening):
            if server.gateway is not None:
                server.gateway.rights_changed()

    def _spaces_seen(self, table: SpaceTable) -> None:
        ready = [space for space in table.present() if space.kind == "kv" and space.state is SpaceState.READY]
        self._wanted = {space.name: space for space in ready}
        gone = (each.name for each in table.spaces.values() if each.kind == "kv" and each.state is SpaceState.GONE)
        self._gone = dict.fromkeys(gone, False) | self._gone
        self._changed.set()

    async def _keep_following(self) -> None:
        """Serve each kv space there is, and none that was deleted. Each is opened for itself: one whose log does not
        answer, or whose disk is full, is waited for by nobody else."""
        while True:
            self._changed.clear()
            for name in [name for name in self._opening if name not in self._wanted]:
                if (opening := self._opening.pop(name, None)) is not None:
                    await _ended(opening)
            for name in [name for name in self._servers if name not in self._wanted or self._servers[name].failure]:
                server = self._servers.pop(name)
                if server.failure:
                    self._unopened[name] = server.failure
                await server.close()
            self._unopened = {name: why for name, why in self._unopened.items() if name in self._wanted}
            for name, space in self._wanted.items():
                if name not in self._servers and name not in self._opening:
                    begun = self._opening[name] = asyncio.ensure_future(self._open_at_last(space))
                    begun.add_done_callback(self._follows_no_more)
            await self._remove_projections()
            await self._changed.wait()

    async def _remove_projections(self) -> None:
        """Of deleted spaces, whose names are not used again: nobody else would."""
        for name in [name for name, removed in self._gone.items() if not removed]:
            if name in self._servers or name in self._opening:
                continue  # it has gone just now: the next round closes it
            try:
                await asyncio.to_thread(remove_projections, self._directory / name)
            except OSError as error:  # tried again when spaces change, and by the next start
                log.warning("kv/%d: the projections of space %s, which is gone, stay: %s", self._actor_id, name, error)
            else:
                self._gone[name] = True

    async def _open_at_last(self, space: Space) -> None:
        if space.name in self._unopened:
            await asyncio.sleep(_AGAIN_S)  # room is not made at once
        while True:
            try:
                await self._open(space)
            except (WaltzError, *SHORTAGES) as error:
                self._unopened[space.name] = f"space {space.name}: {shortage(error)}"
                log.error("kv/%d: %s", self._actor_id, self._unopened[space.name])
                await asyncio.sleep(_AGAIN_S)
            else:
                break
        self._unopened.pop(space.name, None)
        self._opening.pop(space.name, None)
        self._changed.set()  # it may have failed by now, or have been deleted

    @property
    def _trouble(self) -> str:
        """Why it does not serve all that it should, if something is wrong."""
        failures = (server.failure for server in self._servers.values())
        return self._failure or next(filter(None, (*failures, *self._unopened.values())), "")

    def _follows_no_more(self, following: asyncio.Task[None]) -> None:
        """Not at its end: a bug of ours, which is to be seen, not waited for."""
        error = None if following.cancelled() else following.exception()
        if error is not None:
            log.error("kv/%d serves no space from now on that it does not serve yet", self._actor_id, exc_info=error)
            self._failure = f"it opens no spaces any more: {error!r}, a bug of this actor; see its log, and restart it"

    async def _open(self, space: Space) -> None:
        assert self._zookeeper is not None
        store = ClusterStore(self._zookeeper, self._cluster)
        shown = await asyncio.to_thread(member_credentials, store)
        to_others = await asyncio.to_thread(kv_credentials, store)
        recovery = await asyncio.to_thread(store.recovery)
        client = await connect_member(self._connect_string, self._cluster, space.name, shown, _CLIENT)
        server = SpaceServer(
            self._actor_id,
            self._cluster,
            space,
            client,
            self._zookeeper,
            self._config,
            self._directory,
            self._projection_failed,
            self._guard,
            to_others,
            recovery,
        )
        first = min(self._wanted.values(), key=lambda each: each.first, default=space)  # it may be gone by now
        port = self._config.port + self._actor_id if self._config.port and space == first else 0
        self._listening.add(server)
        try:
            await server.start(port)
        except BaseException:
            await server.close()
            raise
        finally:
            self._listening.discard(server)
        self._servers[space.name] = server

    def _projection_failed(self, error: ProjectionFailed) -> None:
        """The space that says so is left at once, so that others serve; a while later it is opened anew."""
        self._changed.set()


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancel it; if it has failed, that has been said."""
    task.cancel()
    await asyncio.wait([task])
