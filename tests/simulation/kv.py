"""The key/value layer while everything goes wrong: in the histories of seeds that have the bit ``KV``.

A space of the kind kv is added to the cluster, a few actors serve it, and clients of both kinds use its items and
locks. What they have seen must be linearizable (``kv_history.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.kv_actors import KV_PORT, SimArranger, SimKvActor
from tests.simulation.kv_clients import SimKvClient
from tests.simulation.kv_history import KvHistory
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["KV", "KvPart"]

KV = 1 << 28


class KvPart:
    """The space, its actors and its clients."""

    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random = world, random
        self.space = world.operator_store.spaces.create("kv", random.choice([1, 2, 4]), kind="kv")
        world.history.grow(self.space.partitions.stop)
        self.history = KvHistory(world)
        self.names = [f"k{n}" for n in range(random.choice([2, 4, 8]))] + ["l0"]
        count = random.choice([2, 2, 3, 4])
        self.actors = [SimKvActor(self, n, Random(random.getrandbits(64))) for n in range(count)]
        self.arranger = SimArranger(self, random.choice([2, 4, 10]))
        self.clients = [
            SimKvClient(self, 0, Random(random.getrandbits(64)), native=True),
            SimKvClient(self, 1, Random(random.getrandbits(64)), native=random.random() < 0.5),
            SimKvClient(self, 2, Random(random.getrandbits(64)), native=True, reads=0.97),
        ]
        self._reader: SimKvClient | None = None
        self._missing: set[str] = set()

    @property
    def partitions(self) -> range:
        """Their numbers in the cluster."""
        return self.space.partitions

    def processes(self) -> list[Process]:
        return [*self.actors, self.arranger, *self.clients]

    def address_of(self, actor: int) -> tuple[str, int]:
        return self.actors[actor].host, KV_PORT

    def actor_at(self, server: str) -> int:
        """Whose ``host:port`` that is."""
        return next(actor.number for actor in self.actors if actor.host == server.rpartition(":")[0])

    # ---- faults -------------------------------------------------------------------------------------------

    def faults(self) -> dict[str, Callable[[], bool]]:
        """For the nemesis."""
        return {
            "kv actor killed": self._kill,
            "kv actor's machine lost": self._lose,
            "kv actor stopped": self._stop,
            "kv actor's projections lost": self._lose_states,
            "kv actor cut off from ZooKeeper": self._cut_off,
            "kv actor alone with its clients": self._isolate,
            "kv actor's clock jumps": self._jump,
            "kv client killed": self._kill_client,
            "kv connection cut": self._cut,
        }

    def _up(self) -> SimKvActor | None:
        actor = self.random.choice(self.actors)
        return actor if actor.up and not actor.paused else None

    def _kill(self) -> bool:
        actor = self._up()
        if actor is None:
            return False
        actor.kill("killed")
        actor.start_later(self.random.choice([0.05, 0.5, 2.0, 6.0]))
        return True

    def _lose(self) -> bool:
        actor = self._up()
        if actor is None:
            return False
        actor.kill("its machine is lost", self.random.uniform(1.0, 8.0))
        actor.start_later(self.random.choice([0.5, 2.0, 6.0]))
        return True

    def _stop(self) -> bool:
        actor = self._up()
        if actor is None:
            return False
        actor.pause(self.random.choice([0.1, 1.0, 3.0]) * self.random.uniform(0.5, 1.5))
        return True

    def _lose_states(self) -> bool:
        actor = self._up()
        if actor is None:
            return False
        actor.kill("its projections are lost")
        actor.states.clear()
        actor.start_later(self.random.choice([0.05, 0.5, 2.0]))
        return True

    def _cut_off(self) -> bool:
        actor = self._up()
        if actor is None or actor.zookeeper is None:
            return False
        actor.tell("is cut off from ZooKeeper")
        self.world.zookeeper.cut_off(actor.zookeeper, self.random.choice([0.2, 2.0, 6.0]), actor.session_s)
        return True

    def _isolate(self) -> bool:
        """It hears neither that others own its units nor of what they write; its clients still ask it."""
        actor = self._up()
        if actor is None or actor.zookeeper is None:
            return False
        seconds = actor.session_s * self.random.uniform(1.5, 4.0)
        network, servers = self.world.network, [server.host for server in self.world.servers]
        self.world.zookeeper.cut_off(actor.zookeeper, seconds, actor.session_s)
        if self.random.random() < 0.5:
            actor.tell(f"is alone with its clients for {seconds:.2f} s")
            network.partition(actor.host, servers, seconds)
            return True
        actor.tell(f"is told nothing by servers for {seconds:.2f} s")
        for stream in network.streams:
            if stream.other.loop is actor.loop and stream.loop.name.startswith("server"):
                stream.stalled_until_s = self.world.scheduler.now + seconds
        return True

    def _cut(self) -> bool:
        """Between a client and an actor; what is on its way is lost."""
        network = self.world.network
        found = [stream for stream in network.connections() if stream.loop.name.startswith("kv-client")]
        if not found:
            return False
        network.break_connection(self.random.choice(found), self.random.choice([0.0, 0.2]), 0.0)
        return True

    def _jump(self) -> bool:
        self.random.choice(self.actors).clock_offset_ms = self.random.choice([-3_600_000, -1_500, 1_500, 86_400_000])
        return True

    def _kill_client(self) -> bool:
        client = self.random.choice(self.clients)
        if not client.up:
            return False
        client.kill("killed")
        client.start_later(self.random.choice([0.05, 0.5]))
        return True

    # ---- the end ------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Clocks are right again; nobody begins anything new."""
        for actor in self.actors:
            actor.clock_offset_ms = 0
        for client in self.clients:
            client.working = False

    def quiet(self) -> bool:
        """Every call has ended."""
        return all(client.up and not client.busy for client in self.clients)

    def all_read(self) -> bool:
        """A new client has read every item: what was acknowledged must be there."""
        if self._reader is None:
            number = len(self.clients)
            self._reader = SimKvClient(self, number, Random(self.random.getrandbits(64)), native=True)
            self._reader.working = False
            self.clients.append(self._reader)
            self._reader.start()
            self._missing = {name for name in self.names if name.startswith("k")}
            for name in sorted(self._missing):
                self._reader.spawn(self._read(self._reader, name))
        return not self._missing

    async def _read(self, reader: SimKvClient, name: str) -> None:
        while not await reader.read(name):
            pass
        self._missing.discard(name)

    def count(self) -> None:
        """What has been done, for who wonders whether anything was."""
        for actor in self.actors:
            compactor = None if actor.server is None else actor.server.compactor
            self.world.history.counts["kv snapshots"] += 0 if compactor is None else compactor.snapshots

    def state(self) -> str:
        """For who waits in vain."""
        return "\n".join(
            [
                f"kv items not read: {sorted(self._missing)}; calls open: {[client.busy for client in self.clients]}",
                *(actor.state() for actor in self.actors),
            ]
        )
