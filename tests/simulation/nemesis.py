"""What goes wrong: one fault after another, of the kinds this seed has, until the world is healed.

What it never does, because no log of this design could survive it: losing or rotting the synced records of more
replicas than the quorum may miss, and rotting records above a replica's low-water mark (a bad record there is a torn
tail by definition, and is cut; see docs/testing.md).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.clients import SimClient
from tests.simulation.dramas import Dramas
from tests.simulation.operators import SETS
from tests.simulation.process import Process
from tests.simulation.rot import rot_behind_the_end, rot_below_the_mark, rot_in_an_index
from tests.simulation.upkeep import SCRUBS

if TYPE_CHECKING:
    from tests.simulation.replica import SimReplica
    from tests.simulation.world import World

__all__ = ["Nemesis"]


_WEIGHTS = {
    **{"damage in danger": 3, "late joiner in danger": 3, "removed with a tail": 2, "twins take at once": 2},
    **{"space created": 2, "space deleted": 2},
    **{"kv actor killed": 4, "kv actor stopped": 4, "kv actor alone with its clients": 4, "kv actor's machine lost": 2},
    **{"kv connection cut": 6, "kv connection deserted": 8, "kv units split behind an owner's back": 2},
    "kv actor lags behind": 8,
    **{"topic actor killed": 4, "topic actor stopped": 4, "topic actor taken for dead": 4, "topic consumer killed": 4},
    **{
        "topic connection cut": 3,
        "topic connection stalled": 4,
        "topic connection deserted": 4,
        "topic master cut off from ZooKeeper": 2,
    },
    **{"group's offset reset": 3, "group's offset reset under a batch": 4},
    **{"log trimmed": 6, "hold changed": 4, "retention changed": 2},
}
"""What needs some luck to do harm is tried more often."""


class Nemesis:
    """See the module's docstring. ``kinds`` of a seed are a random half of all."""

    def __init__(self, world: World, random: Random, faults_in: float) -> None:
        self.world, self.random = world, random
        dramas = Dramas(world, random, self.unless_over)
        self.everything: dict[str, Callable[[], bool]] = {
            "connection cut": self._cut,
            "connection half-open": self._half_open,
            "connection deserted": self._desert,
            "stream stalled": self._stall,
            "network partitioned": self._partition,
            "replica killed": self._kill_replica,
            "replica without power": self._power,
            "power fails in a call": self._power_in_a_call,
            "replica stopped": self._stop_replica,
            "disk full": self._disk_full,
            "disk slow": self._disk_slow,
            "sync fails": self._sync_error,
            "bit rot below the mark": self._rot,
            "bit rot in an index": self._rot_index,
            "bit rot behind the end": self._rot_behind_the_end,
            "disk lost": self._lose_disk,
            "server killed": self._kill_server,
            "server's machine lost": self._lose_server,
            "server stopped": self._stop_server,
            "server taken for dead": dramas.zombie,
            "successor and manager gone": dramas.successor_and_manager_gone,
            "twins take at once": dramas.twins_take_at_once,
            "damage in danger": dramas.damage_in_danger,
            "removed with a tail": dramas.removed_with_a_tail,
            "late joiner in danger": dramas.late_joiner,
            "mount in danger": dramas.mount_in_danger,
            "truncation delayed": self._delay_truncate,
            "server's clock jumps": self._jump,
            "server's wall clock jumps": self._jump_wall_clock,
            "partition moved": world.operator.move,
            "replica set changed": world.operator.change_a_set,
            "manager killed": self._kill_manager,
            "zookeeper cut off": self._zookeeper_cut,
            "zookeeper session expired": self._zookeeper_expire,
            "zookeeper loses an answer": self._zookeeper_lose_answer,
            "zookeeper loses a request": self._zookeeper_lose_request,
            "zookeeper slow": self._zookeeper_slow,
            "zookeeper watches late": self._zookeeper_late,
            "client killed": self._kill_client,
            "client stopped": self._stop_client,
            "client closed": self._close_client,
        }
        share = random.choice([0.2, 0.5, 0.8])
        self._weights = _WEIGHTS
        self.kinds = {name: do for name, do in self.everything.items() if random.random() < share}
        if world.growth is not None:
            self.kinds |= {"space created": world.growth.create, "space deleted": world.growth.delete}
        if world.trimming is not None:
            self.kinds |= {
                "log trimmed": world.trimming.trim,
                "hold changed": world.trimming.change_a_hold,
                "retention changed": world.trimming.change_what_is_kept,
            }
        if world.kv is not None:
            self.kinds |= world.kv.faults.kinds
        if world.topics is not None:
            self.kinds |= world.topics.faults.kinds
        if world.seed & SCRUBS:
            self.kinds |= {"bit rot below the mark": self._rot, "bit rot in an index": self._rot_index}
            self._weights = {**self._weights, "bit rot below the mark": 8}
        if world.seed & SETS:
            self.kinds["replica set changed"] = self.everything["replica set changed"]
            self._weights = {**self._weights, "replica set changed": 8}
        if world.moving is not None:
            for kind in ("replica set changed", "removed with a tail"):  # who changes sets there is the mover
                self.kinds.pop(kind, None)
            self.kinds |= world.moving.kinds
            self._weights = {**self._weights, **dict.fromkeys(world.moving.kinds, 4)}
        if world.membership is not None:
            self.kinds |= world.membership.kinds
            self._weights = {**self._weights, **dict.fromkeys(world.membership.kinds, 4)}
        if world.changes is not None:
            self.kinds |= world.changes.kinds
            self._weights = {**self._weights, **dict.fromkeys(world.changes.kinds, 8)}
        self._gap_s = faults_in / random.randint(5, 20)
        self.over = False

    def begin(self) -> None:
        self._next()

    def _next(self) -> None:
        self.world.scheduler.after(self.random.expovariate(1 / self._gap_s), self._strike)

    def _strike(self) -> None:
        if self.over:
            return
        if self.kinds:
            name = self.random.choices(list(self.kinds), [self._weights.get(kind, 1) for kind in self.kinds])[0]
            self.world.story.tell("nemesis", name)
            if self.kinds[name]():
                self.world.history.faults[name] += 1
            else:
                self.world.story.tell("nemesis", "not possible now")
        self._next()

    def heal(self) -> None:
        """Everything works again; what is down is started."""
        self.over = True
        world = self.world
        world.story.tell("nemesis", "---- everything is healed ----")
        world.network.heal()
        world.zookeeper.late = 0.0
        world.zookeeper.silent_until_s.clear()
        for server in world.servers:
            server.clock_offset_ms = 0
        for zombie in world.zombies:
            zombie.kill("somebody notices the second process")
        for replica in world.replicas:
            replica.disk.crash_after, replica.disk.capacity_bytes, replica.disk.fail_sync = None, None, False
            replica.slow_until_s, replica.delays_truncate, replica.changes_appends = 0.0, False, 0
            replica.may_stop.calm = True
        for process in world.processes():
            process.loop.slow_calls_s = 0.0
            if process.paused:
                process.loop.resume()
            if process.zookeeper is not None:
                process.zookeeper.lose_answers = process.zookeeper.lose_requests = 0
                world.zookeeper.let_in(process.zookeeper)
            process.start_later(self.random.uniform(0.01, 0.5))

    def unless_over(self, do: Callable[..., object], *arguments: Any) -> None:
        """For what was arranged for later."""
        if not self.over:
            do(*arguments)

    # ---- the network --------------------------------------------------------------------------------------

    def _cut(self) -> bool:
        streams = self.world.network.connections()
        if not streams:
            return False
        stream = self.random.choice(streams)
        soon = [0.0, 0.001, 0.5, 3.0]
        self.world.network.break_connection(stream, self.random.choice(soon), self.random.choice(soon))
        return True

    def _half_open(self) -> bool:
        streams = self.world.network.connections()
        if not streams:
            return False
        stream = self.random.choice(streams)
        unaware = self.random.choice([stream, stream.other])
        self.world.network.half_open(stream, unaware, self.random.choice([0.0, 1.0, 6.0]))
        return True

    def _stall(self) -> bool:
        streams = self.world.network.connections()
        if not streams:
            return False
        stream = self.random.choice(streams)
        side = self.random.choice([stream, stream.other])
        side.stalled_until_s = self.world.scheduler.now + self.random.uniform(0.1, 3.0)
        return True

    def _desert(self) -> bool:
        """The connecting side gives up and connects again; what it had written arrives later."""
        streams = self.world.network.connections()
        if not streams:
            return False
        stream = self.random.choice(streams)
        stream.stalled_until_s = self.world.scheduler.now + self.random.uniform(0.3, 2.0)
        self.world.scheduler.after(self.random.uniform(0.02, 0.3), stream.desert)
        return True

    def _partition(self) -> bool:
        hosts = [process.host for process in self.world.processes()]
        alone = self.random.choice(hosts)
        others = [host for host in hosts if host != alone and self.random.random() < 0.6]
        self.world.network.partition(alone, others, self.random.uniform(0.2, 5.0))
        return True

    # ---- replicas -----------------------------------------------------------------------------------------

    def _replica(self) -> SimReplica:
        return self.random.choice(self.world.replicas)

    def _restart(self, process: Process) -> None:
        process.start_later(self.random.choice([0.05, 0.5, 2.0, 6.0]))

    def _kill_replica(self) -> bool:
        replica = self._replica()
        if not replica.up:
            return False
        replica.kill("killed", self.random.choice([0.0, 0.0, 4.0]))
        self._restart(replica)
        return True

    def _power(self) -> bool:
        """One replica, or all of them at once."""
        chosen = [self._replica()] if self.random.random() < 0.7 else self.world.replicas
        up = [replica for replica in chosen if replica.up]
        for replica in up:
            replica.lose_power(replica.survival())
        return bool(up)

    def _power_in_a_call(self) -> bool:
        self._replica().disk.crash_after = self.random.choice([0, 1, 1, 1, 2, 3, 5, 8, 13, 40])
        return True

    def _stop_replica(self) -> bool:
        return self._stop(self._replica(), [0.1, 1.0, 3.0])

    def _stop(self, process: Process, lengths_s: list[float]) -> bool:
        if not process.up or process.paused:
            return False
        process.pause(self.random.choice(lengths_s) * self.random.uniform(0.5, 1.5))
        return True

    def _disk_full(self) -> bool:
        disk = self._replica().disk

        def room_again() -> None:
            disk.capacity_bytes = None

        disk.fill_up(self.random.randrange(3000))
        self.world.scheduler.after(self.random.uniform(0.3, 4.0), room_again)
        return True

    def _delay_truncate(self) -> bool:
        self._replica().delays_truncate = True
        return True

    def _disk_slow(self) -> bool:
        self._replica().slow_until_s = self.world.scheduler.now + self.random.uniform(0.5, 3.0)
        return True

    def _sync_error(self) -> bool:
        self._replica().disk.fail_sync = True
        return True

    def _rot(self) -> bool:
        return rot_below_the_mark(self.world, self._replica(), self._partition_id(), self.random)

    def _rot_index(self) -> bool:
        return rot_in_an_index(self._replica(), self.random)

    def _rot_behind_the_end(self) -> bool:
        return rot_behind_the_end(self._replica(), self._partition_id(), self.random)

    def _partition_id(self) -> int:
        return self.random.randrange(self.world.partitions)

    def _lose_disk(self) -> bool:
        replica = self._replica()
        if not self.world.operator.may_spoil(replica) or not replica.up:
            return False
        self.world.operator.spoiled.add(replica.replica_id)
        replica.kill("its disk is lost, another one is put in")
        replica.disk.lose_everything()
        replica.acknowledged.clear()
        self._restart(replica)
        return True

    # ---- servers, manager, clients ------------------------------------------------------------------------

    def _kill_server(self) -> bool:
        server = self.random.choice(self.world.servers)
        if not server.up:
            return False
        server.kill("killed")
        self._restart(server)
        return True

    def _lose_server(self) -> bool:
        server = self.random.choice(self.world.servers)
        if not server.up:
            return False
        server.kill("its machine is lost", self.random.uniform(1.0, 8.0))
        self._restart(server)
        return True

    def _stop_server(self) -> bool:
        return self._stop(self.random.choice(self.world.servers), [0.1, 1.0, 3.0, 6.0])

    def _jump(self) -> bool:
        server = self.random.choice(self.world.servers)
        server.loop.jump(self.random.choice([0.3, 2.0, 30.0]))
        return server.up

    def _jump_wall_clock(self) -> bool:
        server = self.random.choice(self.world.servers)
        server.clock_offset_ms = self.random.choice([-86_400_000, -3_600_000, -1_500, 1_500, 45_000, 86_400_000])
        return server.up

    def _kill_manager(self) -> bool:
        manager = self.world.manager
        if not manager.up:
            return False
        manager.kill("killed")
        self._restart(manager)
        return True

    def _kill_client(self) -> bool:
        client = self.random.choice(self.world.clients)
        if not client.up:
            return False
        client.kill("killed", self.random.choice([0.0, 0.0, 5.0]))
        self._restart(client)
        return True

    def _close_client(self) -> bool:
        client = self.random.choice(self.world.clients)
        if not isinstance(client, SimClient) or client.client is None or not client.up or client.paused:
            return False
        client.spawn(client.leave())
        return True

    def _stop_client(self) -> bool:
        return self._stop(self.random.choice(self.world.clients), [0.1, 2.0, 5.0])

    # ---- ZooKeeper ----------------------------------------------------------------------------------------

    def _process(self) -> Process | None:
        """Mostly servers: there is most to lose."""
        pool: list[Process] = [*self.world.servers, *self.world.servers, self.world.manager, *self.world.clients]
        process = self.random.choice(pool)
        return process if process.up and process.zookeeper is not None else None

    def _zookeeper_cut(self) -> bool:
        process = self._process()
        if process is None or process.zookeeper is None:
            return False
        process.tell("is cut off from ZooKeeper")
        self.world.zookeeper.cut_off(process.zookeeper, self.random.choice([0.2, 2.0, 8.0]), process.session_s)
        return True

    def _zookeeper_expire(self) -> bool:
        process = self._process()
        if process is None or process.zookeeper is None:
            return False
        process.tell("loses its ZooKeeper session")
        self.world.zookeeper.expire(process.zookeeper.session_id)
        return True

    def _zookeeper_lose_answer(self) -> bool:
        process = self._process()
        if process is None or process.zookeeper is None:
            return False
        process.zookeeper.lose_answers = self.random.choice([1, 1, 2])
        return True

    def _zookeeper_lose_request(self) -> bool:
        process = self._process()
        if process is None or process.zookeeper is None:
            return False
        process.zookeeper.lose_requests = self.random.choice([1, 1, 2])
        return True

    def _zookeeper_slow(self) -> bool:
        process = self._process()
        if process is None:
            return False
        loop = process.loop

        def fast_again() -> None:
            loop.slow_calls_s = 0.0

        loop.slow_calls_s = self.random.uniform(0.1, 1.5)
        self.world.scheduler.after(self.random.uniform(0.5, 4.0), fast_again)
        return True

    def _zookeeper_late(self) -> bool:
        zookeeper = self.world.zookeeper

        def in_time() -> None:
            zookeeper.late = 0.0

        zookeeper.late = self.random.choice([0.3, 1.0])
        self.world.scheduler.after(self.random.uniform(1.0, 4.0), in_time)
        return True
