"""What goes wrong with the actors and clients of topics, beside what goes wrong with the log.

As with the key/value layer the longer ones leave one rule to save the topic: an owner, or a master, that is taken for
dead and lives on, with clients that still ask it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.actor_faults import ActorFaults, jump_of_a_clock_ms
from tests.simulation.network import desert_once_used
from tests.simulation.topic_consumers import SimForeignConsumer, SimNativeConsumer
from waltz_ray.protocol.ids import Endpoint

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.topic_actors import SimTopicActor
    from tests.simulation.topics import TopicPart

__all__ = ["TopicFaults"]


class TopicFaults:
    """``kinds``: by name, each False if it is not possible now."""

    def __init__(self, part: TopicPart) -> None:
        self.part = part
        self.random = part.random
        self.actors = ActorFaults(part.random, part.actors, (0.1, 1.0, 4.0))
        self.kinds: dict[str, Callable[[], bool]] = {
            "topic actor killed": self.actors.kill,
            "topic actor's machine lost": self.actors.lose,
            "topic actor stopped": self.actors.stop,
            "topic actor cut off from ZooKeeper": self.actors.cut_off,
            "topic actor taken for dead": self._isolate,
            "topic master cut off from ZooKeeper": self._depose,
            "topic actor's clock jumps": self._jump,
            "topic producer killed": self._kill_producer,
            "topic consumer killed": self._kill_consumer,
            "topic consumer stopped": self._stop_consumer,
            "topic connection cut": self._cut,
            "topic connection stalled": self._stall,
            "topic connection deserted": self._desert,
            "offsets' store slow": self._slow_store,
            "offsets' store deaf": self._deaf_store,
            "group's offset reset": self._reset,
            "group's offset reset under a batch": self._reset_under_a_batch,
        }

    # ---- actors

    def _isolate(self) -> bool:
        """It does not hear that others have its slots, nor what they append; its clients still ask it."""
        actor = self.actors.up()
        if actor is None or actor.zookeeper is None:
            return False
        world = self.part.world
        seconds = actor.session_s * self.random.uniform(1.5, 4.0)
        world.zookeeper.cut_off(actor.zookeeper, seconds, actor.session_s)
        if self.random.random() < 0.3:
            actor.tell(f"is alone with its clients for {seconds:.2f} s")
            world.network.partition(actor.host, [server.host for server in world.servers], seconds)
        else:
            actor.tell(f"writes, and hears {seconds:.2f} s late of what is written")
            actor.deaf_until_s = world.scheduler.now + seconds
            for share in (0.5, 0.8):
                world.scheduler.after(share * seconds, self._ask_former_owner, actor, actor.life)
        return True

    def _ask_former_owner(self, actor: SimTopicActor, life: int) -> None:
        """Consumers that have not heard that somebody else has its slots."""
        if not actor.up or actor.life != life or actor.server is None:
            return
        for port in actor.server.node.ports.values():
            consumer = self.random.choice(self.part.consumers)
            if isinstance(consumer, SimForeignConsumer) and consumer.up and not consumer.paused:
                consumer.try_at(Endpoint(actor.host, port))

    def _depose(self) -> bool:
        """The master goes on as one, alone, until it reaches ZooKeeper again."""
        leading = [actor for actor in self.part.actors if actor.leads and not actor.paused]
        if not leading:
            return False
        actor = self.random.choice(leading)
        assert actor.zookeeper is not None
        actor.tell("leads on without ZooKeeper")
        seconds = actor.session_s * self.random.uniform(1.2, 4.0)
        self.part.world.zookeeper.cut_off(actor.zookeeper, seconds, actor.session_s)
        return True

    def _jump(self) -> bool:
        actor = self.random.choice(self.part.actors)
        actor.clock_offset_ms = jump_of_a_clock_ms(self.random)
        return True

    # ---- clients

    def _kill_one(self, client: Process) -> bool:
        if not client.up:
            return False
        client.kill("killed")
        client.start_later(self.random.choice([0.05, 0.5, 4.0]))
        return True

    def _kill_producer(self) -> bool:
        return self._kill_one(self.random.choice(self.part.producers))

    def _kill_consumer(self) -> bool:
        return self._kill_one(self.random.choice(self.part.consumers))

    def _stop_consumer(self) -> bool:
        consumer = self.random.choice(self.part.consumers)
        if not consumer.up or consumer.paused:
            return False
        consumer.pause(self.part.client_ms / 1000 * self.random.choice([0.2, 1.5, 2.5]))
        return True

    def _cut(self) -> bool:
        """Between a client and an actor; what is on its way is lost."""
        network = self.part.world.network
        hosts = {client.host for client in [*self.part.producers, *self.part.consumers]}
        found = [stream for stream in network.connections() if stream.loop.name.partition(".")[0] in hosts]
        if not found:
            return False
        network.break_connection(self.random.choice(found), self.random.choice([0.0, 0.2]), 0.0)
        return True

    def _stall(self) -> bool:
        """What a client asks comes late, perhaps when it has given up waiting and asked again."""
        client = self.random.choice([*self.part.producers, *self.part.consumers])
        network = self.part.world.network
        found = [stream for stream in network.connections() if stream.loop is client.loop]
        for stream in found:
            stream.stalled_until_s = self.part.world.scheduler.now + self.random.uniform(0.5, 5.0)
        return bool(found)

    def _desert(self) -> bool:
        """What a consumer asks is held up; it loses the connection, asks over another one and goes on. Then what it had
        asked first arrives."""
        world, client = self.part.world, self.random.choice(self.part.consumers)
        hosts = {actor.host for actor in self.part.actors}
        found = [
            stream
            for stream in world.network.connections()
            if stream.loop is client.loop and stream.other.loop.name.partition(".")[0] in hosts
        ]
        lasts_s = self.random.uniform(0.2, 3.0)
        for stream in found:
            stream.stalled_until_s = world.scheduler.now + lasts_s
            desert_once_used(world.scheduler, self.random, stream, 1, lasts_s / 2)
        return bool(found)

    # ---- where groups are

    def _slow_store(self) -> bool:
        self.part.store.slow_until_s = self.part.world.scheduler.now + self.random.uniform(0.5, 3.0)
        return True

    def _deaf_store(self) -> bool:
        self.part.store.deaf_until_s = self.part.world.scheduler.now + self.random.uniform(0.5, 3.0)
        return True

    def _reset(self) -> bool:
        group, partition = self.random.choice(self.part.groups), self.random.randrange(len(self.part.partitions))
        return self.part.reset(group, partition)

    def _reset_under_a_batch(self) -> bool:
        """Who deals with a batch takes so long that he has the partition anew by then."""
        at_work = [
            (each, each.at_work_on)
            for each in self.part.consumers
            if isinstance(each, SimNativeConsumer) and each.up and each.at_work_on is not None
        ]
        if not at_work:
            return False
        consumer, partition = self.random.choice(at_work)
        consumer.slow_until_s = self.part.world.scheduler.now + self.random.uniform(1.0, 4.0)
        return self.part.reset(consumer.group, partition)
