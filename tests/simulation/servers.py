"""Partition servers, and the manager that assigns partitions to them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.security.keys import Trusting
from tests.simulation.loop import ProcessLoop
from tests.simulation.process import Process
from waltz_ray.actors.manager import Manager
from waltz_ray.actors.mover import Mover
from waltz_ray.actors.server import Server
from waltz_ray.actors.set_follower import SetFollower
from waltz_ray.config import ServerConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import CoordinationError

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["SimManager", "SimServer"]

_SETTLE_S, _SILENT_S, _RETRY_S = 1.0, 1.5, 0.5


class SimServer(Process):
    """The real ``Server``, started as its actor does and started again when it ends."""

    def __init__(self, world: World, server_id: int, config: ServerConfig) -> None:
        super().__init__(world, f"server-{server_id}", config.zookeeper_session_ms / 1000)
        self.server_id = server_id
        self.config = replace(config, host=self.host)
        self.server: Server | None = None
        self.clock_offset_ms = 0  # of its wall clock

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
            server = Server(self.server_id, store, self.config, self._fatal_of(self.loop), self._now_ms, Trusting())
            await server.start()
            if self.world.moving is not None:
                await SetFollower(server).start()
        except CoordinationError as error:
            self.kill(f"cannot start: {error}")
            self.start_later(_RETRY_S)
            return
        self.server = server
        self.tell(f"serves at {server.endpoint}")

    def _now_ms(self) -> int:
        return max(0, self.world.now_ms() + self.clock_offset_ms)

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
                cause = sys.exc_info()[1]  # a machine's step failed: that is a bug
                self.world.scheduler.fail(AssertionError(f"{message}: {cause!r}"))
            self.world.scheduler.after(0.0, end, message)

        return fatal


class SimManager(Process):
    """The real ``Manager``, started as its actor does and started again when it ends. Servers need no supervision."""

    def __init__(self, world: World, servers: int) -> None:
        super().__init__(world, "manager", session_s=3.0)
        self._servers = servers

    def start(self) -> None:
        self.spawn(self._start(self.begin()))

    async def _start(self, store: ClusterStore) -> None:
        try:
            times = _SETTLE_S, _SILENT_S
            manager = Manager(store, self._servers, self._ensure, self.loop.name, *times, self._fatal)
            await manager.start()
            if self.world.moving is not None:
                await Mover(store, lambda: manager.machine.leading, self._fatal).start()
            if self.world.membership is not None:
                store.members.watch(lambda m: manager.members_seen(m.servers - m.leaving_servers, m.leaving_servers))
        except CoordinationError as error:
            self.kill(f"cannot start: {error}")
            self.start_later(_RETRY_S)

    def _ensure(self) -> None:
        """Here whoever ends a server starts it again."""

    def _fatal(self, message: str) -> None:
        self.world.scheduler.fail(AssertionError(f"{message}: {sys.exc_info()[1]!r}"))
