"""What every simulated process has: lives, each with an event loop and a ZooKeeper client of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from tests.simulation.loop import ProcessLoop, new_loop
from tests.simulation.zookeeper import SimZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["CLUSTER", "Process"]

CLUSTER = "sim"


class Process:
    """One process of the world, started, killed and started again; ``loop`` is that of the present (or last) life."""

    def __init__(self, world: World, host: str, session_s: float) -> None:
        self.world = world
        self.host = host
        self.session_s = session_s
        self.life = 0
        self.retired = False  # it has nothing to do any more, and is not started again
        self.up = self.leaves = False  # leaves: it is up, and closes in good order
        self.loop: ProcessLoop = new_loop(world.scheduler, world.network, host)
        self.zookeeper: SimZooKeeper | None = None

    @property
    def paused(self) -> bool:
        return self.up and self.loop.paused

    def begin(self) -> ClusterStore:
        """A new life: loop, ZooKeeper session."""
        world = self.world
        self.life += 1
        self.up = True
        self.loop = new_loop(world.scheduler, world.network, f"{self.host}.{self.life}")
        world.loops.append(self.loop)
        self.zookeeper = world.zookeeper.connect(self.loop)
        self.tell("starts")
        return ClusterStore(self.zookeeper, CLUSTER)

    def start(self) -> None:
        """Begin a life and do what this kind of process does."""
        raise NotImplementedError

    def kill(self, why: str, silent_s: float = 0.0) -> None:
        """The process ends here and now; with ``silent_s`` its whole machine goes and no reset is sent for so long."""
        if not self.up:
            return
        self.tell(f"ends: {why}")
        self.up = self.leaves = False
        self.loop.kill()
        self.world.network.process_ended(self.loop, silent_s)
        if self.zookeeper is not None:
            self.world.zookeeper.gone(self.zookeeper, self.session_s)

    def start_later(self, delay_s: float) -> None:
        """As its supervisor would; nothing happens if it is up by then."""
        self.world.scheduler.after(delay_s, self._start_again, self.life)

    def _start_again(self, life: int) -> None:
        if not self.up and self.life == life and not self.retired:
            self.start()

    def pause(self, seconds: float) -> None:
        """SIGSTOP, then SIGCONT."""
        self.tell(f"stops for {seconds:.2f} s")
        self.loop.pause()
        if self.zookeeper is not None:
            self.world.zookeeper.stopped(self.zookeeper, self.session_s)
        self.world.scheduler.after(seconds, self._resume, self.life)

    def _resume(self, life: int) -> None:
        if self.up and self.life == life and self.loop.paused:
            self.tell("goes on")
            self.loop.resume()

    def tell(self, what: str) -> None:
        self.world.story.tell(self.loop.name, what)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run as this process's code; what it raises ends the history."""
        task = self.loop.enter(lambda: self.loop.create_task(work))

        def ended(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self.world.scheduler.fail(error)

        task.add_done_callback(ended)
