"""Faults of several acts, each arranged so that one rule of the design is all that saves the log."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.clients import SimClient
from tests.simulation.rot import rot_below_the_mark
from waltz_ray.protocol.ids import quorum_of
from waltz_ray.protocol.session_replica import Phase

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
        self._busy_until_s = 0.0

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
        if len(assigned) < 3 or not owners or not alone.up or not self._begins(3.0):
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

        world.scheduler.after(lag_s / 2, self._unless_over, self._burst, partition_id)
        world.scheduler.after(lag_s, self._unless_over, lose_the_server)
        world.scheduler.after(lag_s + random.uniform(0.8, 1.6), self._unless_over, take_away)
        return True

    def late_joiner(self) -> bool:
        """A replica comes back while its server cannot enter it; others lag; then those that have all go."""
        world, random = self.world, self.random
        partition_id = random.randrange(world.partitions)
        assigned = [world.replicas[replica_id] for replica_id in sorted(world.operator.assigned(partition_id))]
        if len(assigned) < 3 or not all(r.up for r in assigned) or not self._begins(6.0):
            return False
        joiner, *others = random.sample(assigned, len(assigned))
        complete, lagging = others[: quorum_of(len(assigned)) - 1], others[quorum_of(len(assigned)) - 1 :]
        servers = [server.host for server in world.servers]
        lag_s = random.uniform(0.1, 0.25)

        def joiner_is(phase: Phase) -> bool:
            machines = [s.server.machine_of(partition_id) for s in world.servers if s.up and s.server is not None]
            sessions = [m.session for m in machines if m is not None and m.session is not None]
            phases = [one.phases().get(joiner.replica_id) for one in sessions if one.published]
            return any(known is not None and known[0] is phase for known in phases)

        def come_back() -> None:
            for server in world.servers:
                self._away(server, 4.0)
            world.network.partition(joiner.host, servers, 0.0)
            self._when(lambda: joiner_is(Phase.LIVE), lag, 3.5)

        def lag() -> None:
            self._lag(lagging, complete, lag_s)
            world.scheduler.after(lag_s / 2, self._unless_over, self._burst, partition_id)

        world.network.partition(joiner.host, servers, 6.0)
        self._when(lambda: joiner_is(Phase.LOST), come_back, 5.0)
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
        if not self._begins(3.0):
            return False
        whole, lagging = others[: quorum_of(len(assigned)) - 1], others[quorum_of(len(assigned)) - 1 :]
        servers = [server.host for server in world.servers]
        timeout_s = world.servers[0].config.replica_timeout_ms / 1000
        lag_s = min(timeout_s, 0.6) * random.uniform(0.5, 0.9)

        def lag() -> None:
            if rot_below_the_mark(world, damaged, partition_id, random):
                for replica in lagging:
                    world.network.partition(replica.host, servers, lag_s + 0.05)
                world.scheduler.after(lag_s / 2, self._unless_over, self._burst, partition_id)
                world.scheduler.after(lag_s, self._unless_over, strike)

        def strike() -> None:
            for replica in lagging:
                self._cut_from_servers(replica)  # what it did not get in time it never gets
                world.network.partition(replica.host, servers, 0.0)
            if random.random() < 0.5:  # it votes, is found damaged, and opens the same session again
                for replica in lagging:
                    world.network.partition(replica.host, servers, 0.7)
                kill_the_whole()
                world.scheduler.after(random.uniform(0.2, 0.6), self._unless_over, self._find_damage, damaged)
            else:  # it is found damaged by the session that runs, and the whole ones answer the next one too late
                for replica in whole:
                    replica.slow_until_s = world.scheduler.now + 1.0
                self._find_damage(damaged)
                world.scheduler.after(random.uniform(0.02, 0.3), self._unless_over, kill_the_whole)

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

    def _lag(self, lagging: list[SimReplica], complete: list[SimReplica], seconds: float) -> None:
        """Nothing reaches some replicas for a while, nothing of it ever will; at the end the others are gone."""
        network = self.world.network
        loops = [replica.loop for replica in lagging]
        streams = [stream for stream in network.connections() if stream.other.loop in loops]
        for stream in streams:
            stream.stalled_until_s = self.world.scheduler.now + seconds + 0.1

        def end() -> None:
            for stream in streams:
                network.break_connection(stream, 0.0, 0.0)
            for replica in complete:
                replica.kill("killed, it had everything")
                replica.start_later(8.0)

        self.world.scheduler.after(seconds, self._unless_over, end)

    def _burst(self, partition_id: int) -> None:
        """Every client appends something now."""
        for client in self.world.clients:
            if not isinstance(client, SimClient) or client.space is not None:
                continue
            if client.client is not None and not client.paused:
                client.last_word(partition_id)

    def _begins(self, seconds: float) -> bool:
        """False while another drama of the kind that needs quiet is on."""
        now = self.world.scheduler.now
        if now < self._busy_until_s:
            return False
        self._busy_until_s = now + seconds
        return True

    def _when(self, condition: Callable[[], bool], act: Callable[[], object], patience_s: float) -> None:
        """Act as soon as it is so; nothing happens if it does not become so in time."""
        until_s = self.world.scheduler.now + patience_s

        def look() -> None:
            if condition():
                act()
            elif self.world.scheduler.now < until_s:
                self.world.scheduler.after(0.02, self._unless_over, look)

        look()

    def _away(self, server: SimServer, seconds: float) -> None:
        def cut_off() -> None:
            if server.up and server.zookeeper is not None:
                self.world.zookeeper.cut_off(server.zookeeper, seconds, server.session_s)

        self._unless_over(cut_off)
