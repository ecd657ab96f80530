"""What goes wrong with the actors and clients of the key/value layer, beside what goes wrong with the log.

The longer ones are arranged so that one rule is all that saves the layer: an owner that is taken for dead and lives on,
with clients that still ask it; a split meanwhile; a write that arrives after its client has gone on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.actor_faults import ActorFaults, jump_of_a_clock_ms
from tests.simulation.network import desert_once_used
from waltz_ray.kv.routing import Unit, partition_of

if TYPE_CHECKING:
    from tests.simulation.kv import KvPart
    from tests.simulation.kv_actors import SimKvActor

__all__ = ["KvFaults"]

_OF_A_WRITE = 48
"""Bytes on their way among which there is more than questions after items."""
_LOOK_S = 0.05


class KvFaults:
    """``kinds``: by name, each False if it is not possible now."""

    def __init__(self, part: KvPart) -> None:
        self.part = part
        self.random = part.random
        self.actors = ActorFaults(part.random, part.actors, (0.1, 1.0, 3.0))
        self.kinds: dict[str, Callable[[], bool]] = {
            "kv actor killed": self.actors.kill,
            "kv actor's machine lost": self.actors.lose,
            "kv actor stopped": self.actors.stop,
            "kv actor's projections lost": self._lose_states,
            "kv actor cut off from ZooKeeper": self.actors.cut_off,
            "kv actor alone with its clients": self._isolate,
            "kv actor's clock jumps": self._jump,
            "kv client killed": self._kill_client,
            "kv connection cut": self._cut,
            "kv connection deserted": self._desert,
            "kv units split": self._split,
            "kv units split behind an owner's back": self._split_behind_a_back,
        }
        if part.world.trimming is not None:  # elsewhere no log is given up: whoever lags finds all of it
            self.kinds["kv actor lags behind"] = self._lag

    # ---- actors

    def _lose_states(self) -> bool:
        actor = self.actors.up()
        if actor is None:
            return False
        actor.kill("its projections are lost")
        actor.states.clear()
        actor.start_later(self.random.choice([0.05, 0.5, 2.0]))
        return True

    def _isolate(self) -> bool:
        """It hears neither that others own its units nor of what they write; its clients still ask it."""
        actor = self.actors.up()
        if actor is None or actor.zookeeper is None:
            return False
        self._taken_for_dead(actor, self.random.choice(["alone", "told nothing", "late", "late"]))
        return True

    def _taken_for_dead(self, actor: SimKvActor, how: str) -> None:
        assert actor.zookeeper is not None
        world = self.part.world
        seconds = actor.session_s * self.random.uniform(1.5, 4.0)
        world.zookeeper.cut_off(actor.zookeeper, seconds, actor.session_s)
        if how == "alone":
            actor.tell(f"is alone with its clients for {seconds:.2f} s")
            world.network.partition(actor.host, [server.host for server in world.servers], seconds)
        elif how == "told nothing":
            actor.tell(f"is told nothing by servers for {seconds:.2f} s")
            for stream in world.network.streams:
                if stream.other.loop is actor.loop and stream.loop.name.startswith("server"):
                    stream.stalled_until_s = world.scheduler.now + seconds
        else:
            actor.tell(f"writes, and hears {seconds:.2f} s late of what is written")
            actor.deaf_until_s = world.scheduler.now + seconds

    def _lag(self) -> bool:
        """It hears nothing of what is written until another one has compacted what it would hear next; it has units of
        that partition, and its clients ask it. At times it has been taken for dead before, and is given them again."""
        actor = self.actors.up()
        partition = None if actor is None else self._compacted_by_another(actor)
        if actor is None or actor.zookeeper is None or partition is None:
            return False
        world = self.part.world
        if self.random.random() < 0.3:
            seconds = actor.session_s * self.random.uniform(1.2, 2.0)
            world.zookeeper.cut_off(actor.zookeeper, seconds, actor.session_s)
        actor.tell(f"hears nothing, until what follows in partition {partition} is compacted away")
        self._until_overtaken(actor, actor.life, partition, world.scheduler.now + self.random.uniform(3.0, 8.0))
        return True

    def _compacted_by_another(self, actor: SimKvActor) -> int | None:
        """A partition of which the actor has units, but for the one whose owner compacts it."""
        if actor.server is None or actor.server.node is None:
            return None
        partitions, ownership = self.part.space.count, actor.server.node.ownership
        served = {partition_of(unit.bucket, partitions) for unit, instance in ownership.hosted() if not instance}
        found = [p for p in sorted(served) if ownership.held(Unit(ownership.level, p)) is None]
        return self.random.choice(found) if found else None

    def _until_overtaken(self, actor: SimKvActor, life: int, partition: int, until_s: float) -> None:
        """Look again and again. In the end it has to follow anew, so that no server has in memory what is gone."""
        world = self.part.world
        if actor.life != life or not actor.up:
            return
        mark = world.operator_store.trims.marks().get(self.part.space.first + partition, 0)
        if actor.states[partition].mark + 1 >= mark and world.scheduler.now < until_s:
            actor.deaf_until_s = max(actor.deaf_until_s, world.scheduler.now + 2 * _LOOK_S)
            world.scheduler.after(
                _LOOK_S, world.nemesis.unless_over, self._until_overtaken, actor, life, partition, until_s
            )
            return
        actor.tell(f"follows again; partition {partition} begins at {mark}")
        for stream in world.network.connections():
            if stream.loop is actor.loop and stream.other.loop.name.startswith("server"):
                world.network.break_connection(stream, 0.0, 0.0)

    def _jump(self) -> bool:
        """Of one that has its clock already: what that begins with is believed (``SteadyClock``)."""
        actor, offset_ms = self.random.choice(self.part.actors), jump_of_a_clock_ms(self.random)
        if actor.server is not None and actor.server.node is not None:
            actor.clock_offset_ms = offset_ms
        return True

    # ---- units

    def _split(self) -> bool:
        return self.part.arranger.split()

    def _split_behind_a_back(self) -> bool:
        """Whoever has the coarse unit writes on, while others are given what it has become."""
        actor = self.actors.up()
        if actor is None or actor.zookeeper is None or not self.part.arranger.split():
            return False
        self._taken_for_dead(actor, "late")
        return True

    # ---- clients

    def _kill_client(self) -> bool:
        client = self.random.choice(self.part.clients)
        if not client.up:
            return False
        client.kill("killed")
        client.start_later(self.random.choice([0.05, 0.5]))
        return True

    def _cut(self) -> bool:
        """Between a client and an actor; what is on its way is lost."""
        network = self.part.world.network
        found = [stream for stream in network.connections() if stream.loop.name.startswith("kv-client")]
        if not found:
            return False
        network.break_connection(self.random.choice(found), self.random.choice([0.0, 0.2]), 0.0)
        return True

    def _desert(self) -> bool:
        """What a client asks is held up; it gives the connection up, asks again over another one and goes on. Then what
        it had asked first arrives."""
        client = self.random.choice([client for client in self.part.clients if client.writes])
        world = self.part.world
        found = [stream for stream in world.network.connections() if stream.loop is client.loop]
        lasts_s = self.random.uniform(1.0, 5.0)
        for stream in found:
            stream.stalled_until_s = world.scheduler.now + lasts_s
            desert_once_used(world.scheduler, self.random, stream, _OF_A_WRITE, lasts_s / 2)
        return bool(found)
