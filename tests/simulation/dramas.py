"""Faults of several acts, each arranged so that one rule of the design is all that saves the log."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.rot import rot_below_the_mark
from waltz_ray.protocol.ids import quorum_of

if TYPE_CHECKING:
    from tests.simulation.replica import SimReplica
    from tests.simulation.servers import SimServer
    from tests.simulation.world import World

__all__ = ["Dramas"]


class Dramas:
    """Each begins one; False if that is not possible now. ``unless_over`` runs a later act unless all was healed."""

    def __init__(self, world: World, random: Random, unless_over: Callable[..., None]) -> None:
        self.world, self.random = world, random
        self._unless_over = unless_over

    def zombie(self) -> bool:
        """Two processes of one server: the first does not know that it has a successor, which may not live long."""
        server = self.random.choice(self.world.servers)
        if not server.up or server.server is None:
            return False
        away_s = self.random.uniform(1.0, 6.0)
        server.leave_a_zombie(away_s)
        if self.random.random() < 0.5:
            self.world.scheduler.after(
                away_s * self.random.uniform(0.5, 1.0), self._kill_successor, server, server.life
            )
        return True

    def _kill_successor(self, server: SimServer, life: int) -> None:
        def kill() -> None:
            if server.life == life:
                server.kill("the successor is killed")
                server.start_later(self.random.choice([0.05, 0.5, 2.0, 6.0]))

        self._unless_over(kill)

    def successor_and_manager_gone(self) -> bool:
        """The successor works and dies, nobody assigns: the first process is all that is left, and knows nothing."""
        server, manager = self.random.choice(self.world.servers), self.world.manager
        if not server.up or server.server is None or not manager.up:
            return False
        lives_s = self.random.uniform(0.6, 2.0)
        server.leave_a_zombie(lives_s + server.session_s + 0.2)

        def end() -> None:
            server.kill("the successor is killed")
            server.start_later(8.0)
            manager.kill("killed with it")
            manager.start_later(server.session_s + self.random.uniform(1.0, 3.0))

        self.world.scheduler.after(lives_s, self._unless_over, end)
        return True

    def twins_take_at_once(self) -> bool:
        """Two live processes of one server want a session at once, and one of them hears nothing of its write.

        Nobody assigns meanwhile, so both have the same generation, and the first one is told of nothing.
        """
        server, manager, random = self.random.choice(self.world.servers), self.world.manager, self.random
        if not server.up or server.server is None or not manager.up:
            return False
        lasts_s = random.uniform(1.5, 4.0)
        manager.kill("killed")
        manager.start_later(lasts_s + 1.0)
        zombie = server.leave_a_zombie()
        self.world.zookeeper.silent_until_s[zombie.loop] = self.world.scheduler.now + lasts_s
        slow_s = random.choice([0.0, 0.1, 0.3])
        for twin in (zombie, server):
            self._slow(twin, slow_s * random.uniform(0.8, 1.2), lasts_s)
        for _ in range(random.randint(1, 3)):
            self.world.scheduler.after(random.uniform(0.1, lasts_s), self._unless_over, self._unsure, (zombie, server))
        return True

    def _unsure(self, twins: tuple[SimServer, SimServer]) -> None:
        """Both lose one replica, so both want a new session; one of them will not hear of a write or two."""
        replica = self.random.choice(self.world.replicas)
        hosts = [twin.loop for twin in twins]
        for stream in self.world.network.connections():
            if stream.loop in hosts and stream.other.loop is replica.loop:
                self.world.network.break_connection(stream, 0.0, 0.0)
        zookeeper = self.random.choice(twins).zookeeper
        if zookeeper is not None:
            lost = self.random.choice([1, 1, 2])
            if self.random.random() < 0.3:
                zookeeper.lose_answers = lost
            else:
                zookeeper.lose_requests = lost

    def _slow(self, server: SimServer, slow_s: float, seconds: float) -> None:
        loop = server.loop

        def fast_again() -> None:
            loop.slow_calls_s = 0.0

        loop.slow_calls_s = slow_s
        self.world.scheduler.after(seconds, fast_again)

    def mount_in_danger(self) -> bool:
        """A quorum of the replicas stops; the only client that mounts meanwhile is gone before anybody answers."""
        up = [replica for replica in self.world.replicas if replica.up and not replica.paused]
        quorum = quorum_of(len(self.world.replicas))
        client = self.random.choice(self.world.clients)
        if len(up) < quorum or not client.up or client.paused:
            return False
        timeout_s = self.world.servers[0].config.replica_timeout_ms / 1000
        for replica in self.random.sample(up, quorum):
            replica.pause(timeout_s * self.random.uniform(1.3, 2.5))
        client.kill("killed")
        client.start_later(0.01)
        life = client.life + 1

        def leave() -> None:
            if client.life == life:
                client.kill("killed while it mounts")
                client.start_later(timeout_s * 3)

        self.world.scheduler.after(timeout_s * self.random.uniform(0.3, 0.9), self._unless_over, leave)
        return True

    def removed_with_a_tail(self) -> bool:
        """A replica that alone has the newest records is taken away, and added again with its old files.

        What it alone had was never committed, so the log has other records there by then.
        """
        world, random = self.world, self.random
        partition_id = random.randrange(world.partitions)
        assigned = world.operator.assigned(partition_id)
        alone = world.replicas[random.choice(sorted(assigned))]
        owners = [s for s in world.servers if s.up and s.server is not None and partition_id in s.server.assigned]
        if len(assigned) < 3 or not owners or not alone.up:
            return False
        others = [world.replicas[replica_id].host for replica_id in sorted(assigned - {alone.replica_id})]
        lag_s = random.uniform(0.1, 0.3)
        world.network.partition(owners[0].host, others, lag_s + 0.1)
        away_s = random.uniform(1.5, 4.5)  # sometimes until a session has opened with it among its replicas again

        def lose_the_server() -> None:
            owners[0].kill("killed, one replica has its last records")
            owners[0].start_later(0.05)
            world.network.partition(alone.host, [server.host for server in world.servers], away_s)

        def take_away() -> None:
            if world.operator.assign(partition_id, assigned - {alone.replica_id}):
                world.operator.restart_one_of(assigned - {alone.replica_id})
                world.scheduler.after(random.uniform(0.5, 1.5), self._unless_over, add_again)

        def add_again() -> None:
            if world.operator.assign(partition_id, world.operator.assigned(partition_id) | {alone.replica_id}):
                world.operator.restart_one_of(assigned - {alone.replica_id})

        world.scheduler.after(lag_s, self._unless_over, lose_the_server)
        world.scheduler.after(lag_s + random.uniform(0.8, 1.6), self._unless_over, take_away)
        return True

    def late_joiner(self) -> bool:
        """A replica comes back while its server cannot enter it; another lags; then the one that has all goes."""
        after, random = self.world.scheduler.after, self.random
        up = [replica for replica in self.world.replicas if replica.up]
        if len(up) < 3:
            return False
        joiner, lagging, complete = random.sample(up, 3)
        out_s = self.world.servers[0].config.replica_timeout_ms / 1000 + random.uniform(0.8, 1.6)
        self.world.network.partition(joiner.host, [server.host for server in self.world.servers], out_s)
        for server in self.world.servers:
            after(out_s - 0.2, self._away, server, 3.0)
        lag_s = random.uniform(0.1, 0.25)
        after(out_s + random.uniform(0.3, 1.2), self._unless_over, lambda: self._lag(lagging, complete, lag_s))
        return True

    def damage_in_danger(self) -> bool:
        """Some replicas lag, one is damaged, and the whole ones are away while a session opens.

        Nothing may be decided without those: what the damaged one has lost, or is about to have copied, must not count
        as all there was.
        """
        world, random = self.world, self.random
        partition_id = random.randrange(world.partitions)
        assigned = [world.replicas[replica_id] for replica_id in sorted(world.operator.assigned(partition_id))]
        damaged, *others = random.sample(assigned, len(assigned))
        if len(assigned) < 3 or not world.operator.may_spoil(damaged) or not all(r.up for r in assigned):
            return False
        whole, lagging = others[: quorum_of(len(assigned)) - 1], others[quorum_of(len(assigned)) - 1 :]
        servers = [server.host for server in world.servers]
        timeout_s = world.servers[0].config.replica_timeout_ms / 1000
        lag_s = min(timeout_s, 0.6) * random.uniform(0.5, 0.9)

        def lag() -> None:
            if rot_below_the_mark(world, damaged, partition_id, random):
                for replica in lagging:
                    world.network.partition(replica.host, servers, lag_s + 0.05)
                world.scheduler.after(lag_s, self._unless_over, strike)

        def strike() -> None:
            if random.random() < 0.5:  # it votes, is found damaged, and opens the same session again
                for replica in lagging:
                    world.network.partition(replica.host, servers, 0.7)
                kill_the_whole()
                world.scheduler.after(random.uniform(0.2, 0.6), self._unless_over, self._find_damage, damaged)
            else:  # it is known to be damaged when the session opens, and the others are slow to copy
                self._find_damage(damaged)
                for replica in whole:
                    replica.slow_until_s = world.scheduler.now + 2.0
                    self._cut_from_servers(replica)
                world.scheduler.after(random.uniform(0.05, 0.8), self._unless_over, kill_the_whole)

        def kill_the_whole() -> None:
            for replica in whole:
                replica.kill("killed, it had everything")
                replica.start_later(6.0)

        self._cut_from_servers(lagging[0])  # a session opens, and with it the marks rise
        world.scheduler.after(0.5, self._unless_over, lag)
        return True

    def _find_damage(self, replica: SimReplica) -> None:
        """Somebody reads everything of it."""
        for partition_id in range(self.world.partitions):
            self.world.look_at(replica, partition_id)
        self._cut_from_servers(replica)

    def _cut_from_servers(self, replica: SimReplica) -> None:
        for stream in self.world.network.connections():
            if stream.other.loop is replica.loop:
                self.world.network.break_connection(stream, 0.0, 0.0)

    def _lag(self, lagging: SimReplica, complete: SimReplica, seconds: float) -> None:
        """Nothing reaches one replica for a while, nothing of it ever will; at the end another one is gone."""
        network = self.world.network
        streams = [stream for stream in network.connections() if stream.other.loop is lagging.loop]
        for stream in streams:
            stream.stalled_until_s = self.world.scheduler.now + seconds + 0.1

        def end() -> None:
            for stream in streams:
                network.break_connection(stream, 0.0, 0.0)
            complete.kill("killed, it had everything")
            complete.start_later(8.0)

        self.world.scheduler.after(seconds, self._unless_over, end)

    def _away(self, server: SimServer, seconds: float) -> None:
        def cut_off() -> None:
            if server.up and server.zookeeper is not None:
                self.world.zookeeper.cut_off(server.zookeeper, seconds, server.session_s)

        self._unless_over(cut_off)
