"""The cast of a transcript: servers with the real ``Partition`` machine, model replicas, ZooKeeper; no chance, no time.

After each command everything that can be delivered is, in a fixed order, one thing at a time; timers wait.
"""

from __future__ import annotations

from collections import deque
from random import Random

from tests.protocol.model_replica import Link, Replica, ZooKeeper, batch_of
from tests.scenarios.telling import tell_effect, tell_event
from waltz_ray.config import ServerConfig
from waltz_ray.protocol.partition.events import (
    ConfirmSession,
    Effect,
    EndTurn,
    Event,
    FeedAgain,
    FeedDue,
    FeedRead,
    ReadFeed,
    ReadRoster,
    TurnEnded,
)
from waltz_ray.protocol.partition.machine import Partition
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.session_types import (
    AppendToReplicas,
    OpenReplica,
    ReadRange,
    SetReplicaMark,
    StartTimer,
    TimerFired,
    TruncateReplica,
    WriteRoster,
)

__all__ = ["Cast", "Server"]


class _NoChance(Random):
    """The models' dice: every append is synced at once, every read brings all it may."""

    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return b


class Server:
    def __init__(self, name: str, config: ServerConfig, replicas: dict[int, Replica]) -> None:
        self.name = name
        self.partition = Partition(0, config)
        self.links = {replica_id: Link(up=replica.up) for replica_id, replica in replicas.items()}
        self.requests: deque[ReadRoster | WriteRoster] = deque()
        self.inbox: deque[Event] = deque()
        self.timers: list[TimerFired] = []
        self.asleep = False


class Cast:
    """One partition, its replicas and servers; ``lines`` is what was said since they were last taken."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.chance = _NoChance(0)
        self.replicas: dict[int, Replica] = {}
        self.hanging: set[int] = set()
        self.zookeeper = ZooKeeper(Roster.initial([]))
        self.servers: dict[str, Server] = {}
        self.client_of: dict[int, int] = {}  # connection -> client

    def settle(self) -> None:
        """Until nothing moves any more."""
        while sum(self._turn_of(server) for server in self.servers.values()):  # not any(): each one gets its turn
            assert len(self.lines) < 2000, "it never comes to rest"

    def _turn_of(self, server: Server) -> bool:
        """One round: an answer of ZooKeeper, one order to each replica, one event of each kind to the server."""
        moved = False
        if server.requests and not self.zookeeper.away:
            moved = True
            server.inbox.append(self.zookeeper.do(server.requests.popleft()))
        for replica_id, link in server.links.items():
            replica = self.replicas[replica_id]
            if replica.up and replica_id not in self.hanging and (link.to_replica or link.reads):
                moved = True
                if link.to_replica:
                    replica.handle(link.to_replica.popleft(), link, self.chance)
                else:
                    replica.read(link.reads.popleft(), link, self.chance)
        for queue in (server.inbox, *(link.to_server for link in server.links.values())):
            if queue and not server.asleep:
                moved = True
                self._hear(server, queue.popleft())
        return moved

    def _hear(self, server: Server, event: Event) -> None:
        if not isinstance(event, FeedDue):  # the loop's next turn, no news
            self.lines.append(f"{server.name} <- {tell_event(event)}")
        for effect in server.partition.step(event):
            if isinstance(effect, FeedAgain):
                self._hear(server, FeedDue())
                continue
            if isinstance(effect, EndTurn):
                server.inbox.append(TurnEnded())
                continue
            self.lines.append(f"{server.name}    -> {tell_effect(effect, self.client_of)}")
            self._carry_out(server, effect)

    def _carry_out(self, server: Server, effect: Effect) -> None:
        match effect:
            case ReadRoster() | WriteRoster():
                server.requests.append(effect)
            case OpenReplica(_, replica_id, _) | TruncateReplica(_, replica_id, _) | SetReplicaMark(_, replica_id, _):
                server.links[replica_id].order(effect, replica_id)
            case ReadRange(_, source_id, _, _, _):
                server.links[source_id].order(effect, source_id)
            case AppendToReplicas(_, replica_ids, _) | ConfirmSession(_, replica_ids, _):
                for replica_id in replica_ids:
                    server.links[replica_id].order(effect, replica_id)
            case ReadFeed(connection_id, client_id, first_id, end_id, _):
                longest = max((r for r in self.replicas.values() if r.up), key=lambda r: len(r.log))
                batch = batch_of(first_id, longest.log[first_id:end_id])
                server.inbox.append(FeedRead(connection_id, client_id, batch))
            case StartTimer(session_id, name, _):
                server.timers.append(TimerFired(session_id, name))
            case _:
                pass  # told to clients or to the operator: the line is all
