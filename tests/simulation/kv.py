"""The key/value layer while everything goes wrong: in the histories of seeds that have the bit ``KV``.

A space of the kind kv is added to the cluster, a few actors serve it, and clients of both kinds use its items and
locks. What they have seen must be linearizable (``kv_history.py``).
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.kv_actors import KV_PORT, SimArranger, SimKvActor
from tests.simulation.kv_clients import SimKvClient
from tests.simulation.kv_faults import KvFaults
from tests.simulation.kv_history import KvHistory
from tests.simulation.kv_library import SimLibraryClient, fold
from tests.simulation.process import Process
from waltz_ray.kv.records import decode_record
from waltz_ray.protocol.records import RECORD_HEADER_BYTES

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["KV", "LIBRARY", "TOGETHER", "KvPart"]

KV = 1 << 28
TOGETHER = 1 << 33
"""Beside ``KV``: clients write several items with one command."""
LIBRARY = 1 << 37
"""Beside ``KV``: there are clients of the library, too, which scan and watch."""


class KvPart:
    """The space, its actors and its clients."""

    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random = world, random
        self.space = world.operator_store.spaces.create("kv", random.choice([1, 2, 4]), kind="kv")
        world.history.grow(self.space.partitions.stop)
        self.history = KvHistory(world)
        self.together = bool(world.seed & TOGETHER)
        self.names = [f"k{n}{n}{n}" for n in range(random.choice([2, 4, 8]))] + ["l0"]  # of several sections
        count = random.choice([2, 2, 3, 4])
        self.actors = [SimKvActor(self, n, Random(random.getrandbits(64))) for n in range(count)]
        self.arranger = SimArranger(self, random.choice([2, 4, 10]))
        cautious = world.seed % 8 == 7
        self.clients = [
            SimKvClient(self, 0, Random(random.getrandbits(64)), native=True),
            SimKvClient(self, 1, Random(random.getrandbits(64)), native=random.random() < 0.5),
            SimKvClient(
                self, 2, Random(random.getrandbits(64)), native=True, reads=0.9 if cautious else 0.97, cautious=cautious
            ),
        ]
        self.library = [
            SimLibraryClient(self, number, Random(random.getrandbits(64)))
            for number in range(10, 12)
            if world.seed & LIBRARY
        ]
        self.faults = KvFaults(self)
        self._reader: SimKvClient | None = None
        self._missing: set[str] = set()

    @property
    def partitions(self) -> range:
        """Their numbers in the cluster."""
        return self.space.partitions

    def processes(self) -> list[Process]:
        return [*self.actors, self.arranger, *self.clients, *self.library]

    def address_of(self, actor: int) -> tuple[str, int]:
        return self.actors[actor].host, KV_PORT

    def actor_at(self, server: str) -> int:
        """Whose ``host:port`` that is."""
        return next(actor.number for actor in self.actors if actor.host == server.rpartition(":")[0])

    def _callers(self) -> list[SimKvClient | SimLibraryClient]:
        return [*self.clients, *self.library]

    # ---- the end ------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Clocks are right again; nobody begins anything new."""
        for actor in self.actors:
            actor.clock_offset_ms, actor.deaf_until_s = 0, 0.0
        for client in self._callers():
            client.working = False

    def quiet(self) -> bool:
        """Every call has ended."""
        return all(client.up and not client.busy for client in self._callers())

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

    def all_seen(self) -> bool:
        """Who watches has what the log says that there is."""
        there: dict[str, tuple[bytes, int]] = {}
        for number in self.partitions:
            log, *_ = self.world.read_logs(number).values()
            for at, record in enumerate(log):
                fold(there, at, decode_record(record[RECORD_HEADER_BYTES:-4]))
        return all(client.seen == there for client in self.library)

    def lasts(self, key: str) -> bool:
        """Whether an item is never given a deadline."""
        return bool(self.library) and key.endswith("1")

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
                f"watched: {[client.seen for client in self.library]}",
                *(actor.state() for actor in self.actors),
            ]
        )
