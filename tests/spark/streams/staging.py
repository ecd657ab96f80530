"""Everything that can be staged in one process: crashes at any change, a second crash in recovery, zombies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from waltz_spark.streams.files import FilesOf
from waltz_spark.streams.services import StreamService
from waltz_spark.streams.settings import StreamSettings

from tests.spark.streams.faults import Crash, FaultyFiles, FaultyZooKeeper, Fuse
from tests.spark.streams.memory_files import MemoryFiles
from tests.spark.streams.world import CHAIN, NOW, PARTS, Layouts, World
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.errors import WaltzError

__all__ = ["Make", "Stage", "make_service", "stage_before"]

Make = Callable[[StreamSettings, ZooKeeper, FilesOf], StreamService]


def make_service(settings: StreamSettings, zookeeper: ZooKeeper, files_of: FilesOf) -> StreamService:
    return StreamService(settings, zookeeper, files_of, lambda: NOW)


@dataclass
class Stage:
    """A world and its ZooKeeper with no client connected: can be copied."""

    world: World
    files: MemoryFiles
    server: MemoryZooKeeperServer
    make: Make = make_service

    def copied(self) -> Stage:
        files, server = copy.deepcopy((self.files, self.server))
        world = copy.copy(self.world)
        world.files = files
        return Stage(world, files, server, self.make)

    def run(self, name: str, fuse: Fuse) -> bool:
        """One pass of a service; whether it came to its end. Its session is over afterwards."""
        zookeeper = FaultyZooKeeper(self.server, fuse)
        session_id = zookeeper.session_id
        gate = FaultyFiles(self.files, fuse)
        try:
            self.make(self.world.settings[name], zookeeper, lambda root: gate).run_once()
            return True
        except Crash:
            return False
        finally:
            self.server.expire(session_id)
            zookeeper.close()

    def lose_power(self) -> None:
        self.files.lose_power()

    def problems(self) -> list[str]:
        """After a clean run; an error in it is a problem, too."""
        zookeeper = self.server.client()
        try:
            passes = self.world.finish(
                zookeeper, lambda settings, client: self.make(settings, client, lambda root: self.files)
            )
            more = [f"{name}: replayed {one.replayed}" for name, one in passes.items() if len(one.replayed) > 1]
            return self.world.problems(zookeeper) + more
        except (WaltzError, OSError) as error:
            return [f"{type(error).__name__} {error}"]
        finally:
            zookeeper.close()


def stage_before(
    name: str, make: Make = make_service, minutes: int = 2, layouts: Layouts = PARTS, compact: str = ""
) -> Stage:
    """Everything is there for ``name`` to begin its first run."""
    files, server = MemoryFiles(), MemoryZooKeeperServer()
    files_each = 2 if minutes > 1 else 1
    world = World(files, "/x", minutes=minutes, files_each=files_each, layouts=layouts, compact=compact)
    stage = Stage(world, files, server, make)
    for earlier in CHAIN[: CHAIN.index(name)]:
        assert stage.run(earlier, Fuse())
    return stage
