"""A whole partition in one process under one seed: replicas, ZooKeeper, servers with the real machine, clients.

The world holds every effect of the machines and brings back exactly one event for each that waits, in an order drawn
from ``Random(seed)``. A *safety phase* with faults is followed by a *liveness phase*: everything is healed, and then
the partition must open, every append must get its fate, and all replicas must become identical.

On failure the last steps are the message: ``run(seed)`` raises ``Violation`` with the seed and the story.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.protocol import checkers
from tests.protocol.checkers import Fate, Key, Sent, Violation
from tests.protocol.model_client import Client, Connection
from tests.protocol.model_replica import Link, Replica, ZooKeeper, batch_of
from waltz_ray.config import ServerConfig
from waltz_ray.protocol.ids import quorum_of
from waltz_ray.protocol.messages.client import FeedMode
from waltz_ray.protocol.partition.events import (
    NO_SUCH_SESSION,
    AppendReceived,
    Assigned,
    ConfirmSession,
    ConnectionClosed,
    Effect,
    Event,
    FeedAgain,
    FeedDue,
    FeedRead,
    FeedReadFailed,
    PartitionDropped,
    PartitionReady,
    ReadFeed,
    ReadRoster,
    SendFeed,
    SendMessage,
    TrimMarkRaised,
    TurnEnded,
    Unassigned,
)
from waltz_ray.protocol.partition.machine import Partition
from waltz_ray.protocol.partition.state import Stage
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.roster_write import RosterWrite
from waltz_ray.protocol.session_types import (
    AppendToReplicas,
    BeginReplica,
    OpenReplica,
    ReadRange,
    ReplicaAvailable,
    RosterConflict,
    RosterWritten,
    SetReplicaMark,
    StartTimer,
    TimerFired,
    TruncateReplica,
    Warn,
    WriteRoster,
)

__all__ = ["Result", "World", "run"]

STORY_STEPS = 60
LIVENESS_STEPS = 12_000


@dataclass(slots=True)
class Server:
    """One life of a partition server; a crash makes the next life."""

    server_id: int
    partition: Partition
    links: dict[int, Link]
    life: int = 0
    up: bool = True
    paused: bool = False
    inbox: deque[Event] = field(default_factory=deque)  # from the manager
    requests: deque[ReadRoster | WriteRoster] = field(default_factory=deque)  # to ZooKeeper
    unsure: bool = False  # the first of them is a write whose answer was lost
    answers: deque[Event] = field(default_factory=deque)  # from ZooKeeper
    reads: list[ReadFeed] = field(default_factory=list)
    timers: list[TimerFired] = field(default_factory=list)
    turn_open: bool = False
    feed_due: bool = False
    high_water_mark: int = -1


@dataclass(frozen=True, slots=True)
class Result:
    """What a walk has seen, so that a suite can assert that it exercised anything."""

    committed: int
    sessions: int
    fates: dict[str, int]


class World:
    """See the module's docstring. ``faults`` are chosen by the seed unless given: a subset of ``FAULTS``."""

    FAULTS = (
        "cut",
        "replica_crash",
        "server_crash",
        "move",
        "twin",
        "pause",
        "zookeeper",
        "client_cut",
        "damage",
        "lost_ack",
        "ambiguous",
        "trim",
    )

    def __init__(self, seed: int, *, replicas: int | None = None, faults: tuple[str, ...] | None = None) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        count = replicas or random.choice([3, 3, 3, 5])
        chosen = tuple(f for f in self.FAULTS if random.random() < 0.6)
        if "ambiguous" in chosen:
            chosen += ("ambiguous", "ambiguous")  # it takes several to do harm
        self.faults = chosen if faults is None else faults
        self.config = ServerConfig(
            lock_table_size=random.choice([3, 16, 1000]),
            lock_table_probes=random.choice([1, 2]),
            checkpoint_interval=random.choice([5, 30, 100_000]),
            retained_bytes=random.choice([0, 4_000, 1 << 20]),
            append_queue_bytes=random.choice([150, 1 << 20]),
            replica_lag_bytes=random.choice([400, 1 << 20]),
            progress_bytes=(1, 300, 1 << 30)[seed % 3],  # not drawn: everything else is as it was before there was any
        )
        self.quorum = quorum_of(count)
        self.committed: list[bytes] = []
        self.trim_mark = 0
        self.replicas = {r: Replica(r, self.committed) for r in range(count)}
        self.zookeeper = ZooKeeper(Roster.initial(range(count)))
        self.servers = [self._new_server(i, 0) for i in range(random.choice([1, 2, 2, 3]))]
        modes = [FeedMode.RECORDS, FeedMode.HEADERS, FeedMode.OWN]
        self.clients = [Client(i, random.choice(modes), random) for i in range(random.randint(2, 4))]
        self.connections: dict[int, Connection] = {}
        self.owner, self.generation = 0, 0
        self.sessions = 0
        self.story: deque[str] = deque(maxlen=STORY_STEPS)
        self.steps = 0
        self.healing = False
        self._next_connection = 0
        self._move()

    def _new_server(self, server_id: int, life: int) -> Server:
        links = {r: Link(up=replica.up) for r, replica in self.replicas.items()}
        inbox: deque[Event] = deque([TrimMarkRaised(self.trim_mark)] if self.trim_mark else [])
        return Server(server_id, Partition(0, self.config, owner=f"{server_id}.{life}"), links, life, inbox=inbox)

    def tell(self, line: str) -> None:
        self.story.append(f"{self.steps:5} {line}")

    # ---- a walk -------------------------------------------------------------------------------------------

    def run(self, steps: int) -> Result:
        try:
            for _ in range(steps):
                self.step()
            self.heal()
            for _ in range(LIVENESS_STEPS):
                if self.settled():
                    break
                self.step()
            else:
                raise Violation(f"no liveness: {self._why_not_settled()}")
            self.check_end()
        except Exception as error:
            text = "\n".join(self.story)
            raise Violation(
                f"seed {self.seed}: {type(error).__name__}: {error}\nfaults {self.faults}\n{text}"
            ) from error
        fates: dict[str, int] = {}
        for fate in self._fates().values():
            fates[fate.kind] = fates.get(fate.kind, 0) + 1
        return Result(len(self.committed), self.sessions, fates)

    def step(self) -> None:
        """One thing happens somewhere."""
        self.steps += 1
        actions = self._deliveries()
        roll = self.random.random()
        if self.healing:
            actions += self._client_actions()
        elif roll < 0.04 and self.faults:
            self._fault(self.random.choice(self.faults))
            return
        elif roll < 0.10:
            self._recover_something()
            return
        elif roll < 0.45:
            actions = self._client_actions() or actions
        if actions:
            self.random.choice(actions)()

    def _deliveries(self) -> list[Callable[[], None]]:
        """Everything that could arrive next."""
        actions: list[Callable[[], None]] = []
        for server in self.servers:
            actions += self._server_deliveries(server)
            for replica_id, link in server.links.items():
                replica = self.replicas[replica_id]
                if replica.up and link.to_replica:
                    actions.append(lambda s=server, r=replica_id: self._to_replica(s, r))  # type: ignore[misc]
                if replica.up and link.reads:
                    actions.append(lambda r=replica, k=link: r.read(k.reads.popleft(), k, self.random))  # type: ignore[misc]
                if replica.up and link.unacknowledged is not None:
                    actions.append(lambda r=replica, k=link: r.sync(k))  # type: ignore[misc]
                if replica.up and link.ghosts and (self.healing or self.random.random() < 0.1):
                    actions.append(lambda r=replica, k=link: r.haunt(k, self.random))  # type: ignore[misc]
                if link.up and link.refused and (self.healing or self.random.random() < 0.2):
                    actions.append(lambda r=replica_id, k=link: self._announce(k, r))  # type: ignore[misc]
        for replica in self.replicas.values():
            if replica.up and replica.damaged_from is None and replica.begin < min(self.trim_mark, len(replica.log)):
                actions.append(lambda r=replica: self._trim(r))  # type: ignore[misc]
        for connection in self.connections.values():
            if connection.client_has_it and connection.to_client:
                actions.append(lambda c=connection: c.client.receive(c.to_client.popleft()))  # type: ignore[misc]
        return actions

    def _server_deliveries(self, server: Server) -> list[Callable[[], None]]:
        actions: list[Callable[[], None]] = []
        if server.requests and not self.zookeeper.away:
            actions.append(lambda: self._to_zookeeper(server))
        if server.paused or not server.up:
            return actions
        queues = [server.inbox, server.answers, *(link.to_server for link in server.links.values())]
        queues += [
            c.to_server
            for c in self.connections.values()
            if c.server_has_it and (c.server, c.life) == (server.server_id, server.life)
        ]
        for queue in queues:
            if queue:
                actions.append(lambda q=queue: self._feed(server, q.popleft()))  # type: ignore[misc]
        if server.turn_open:
            actions.append(lambda: self._feed(server, TurnEnded()))
        if server.feed_due:
            actions.append(lambda: self._feed(server, FeedDue()))
        if server.timers:
            actions.append(lambda: self._feed(server, server.timers.pop(self.random.randrange(len(server.timers)))))
        if server.reads:
            actions.append(lambda: self._read_feed(server))
        return actions

    # ---- events in, effects out -----------------------------------------------------------------------------

    def _feed(self, server: Server, event: Event) -> None:
        self.tell(f"server {server.server_id}.{server.life} <- {_short(event)}")
        if isinstance(event, AppendReceived):
            server.turn_open = True
        elif isinstance(event, TurnEnded):
            server.turn_open = False
        elif isinstance(event, FeedDue):
            server.feed_due = False
        elif isinstance(event, ConnectionClosed):
            self.connections[event.connection_id].server_has_it = False
        effects = server.partition.step(event)
        self._watch_high_water_mark(server)
        for effect in effects:
            self._execute(server, effect)

    def _execute(self, server: Server, effect: Effect) -> None:
        if not isinstance(effect, SendFeed | SendMessage):
            self.tell(f"server {server.server_id}.{server.life} -> {_short(effect)}")
        match effect:
            case (
                OpenReplica(_, replica_id, _)
                | TruncateReplica(_, replica_id, _)
                | BeginReplica(_, replica_id, _)
                | SetReplicaMark(_, replica_id, _)
            ):
                server.links[replica_id].order(effect, replica_id)
            case ReadRange(_, source_id, _, _, _):
                server.links[source_id].order(effect, source_id)
            case AppendToReplicas(_, replica_ids, _) | ConfirmSession(_, replica_ids, _):
                for replica_id in replica_ids:
                    server.links[replica_id].order(effect, replica_id)
            case ReadRoster() | WriteRoster():
                server.requests.append(effect)
            case StartTimer(session_id, name, _):
                server.timers.append(TimerFired(session_id, name))
            case ReadFeed():
                server.reads.append(effect)
            case FeedAgain():
                assert not server.feed_due, "one turn at a time"
                server.feed_due = True
            case SendMessage(connection_id, message):
                self._to_client(server, connection_id).append(message)
            case SendFeed(connection_ids, _, _):
                for connection_id in connection_ids:
                    self._to_client(server, connection_id).append(effect)
            case PartitionReady():
                self.sessions += 1
            case PartitionDropped() | Warn():
                pass

    def _to_client(self, server: Server, connection_id: int) -> deque[object]:
        connection = self.connections[connection_id]
        if connection.server_has_it and connection.client_has_it:
            return connection.to_client  # type: ignore[return-value]
        return deque()  # the shell drops what it is told to send over a closed connection

    def _watch_high_water_mark(self, server: Server) -> None:
        """A mark that moves must be backed by a quorum of disks, and agree with every mark before it."""
        mark = server.partition.high_water_mark
        if not server.partition.ready:
            server.high_water_mark = -1
            return
        if mark < server.high_water_mark:
            raise Violation(f"server {server.server_id}: high-water mark fell from {server.high_water_mark} to {mark}")
        server.high_water_mark = mark
        for transaction_id in range(len(self.committed), mark + 1):
            held = [r.log[transaction_id] for r in self.replicas.values() if r.durable > transaction_id]
            if max((held.count(record) for record in held), default=0) < self.quorum:
                raise Violation(f"{transaction_id} counts as committed, but no quorum has it on disk")
            self.committed.append(max(held, key=held.count))

    def _to_replica(self, server: Server, replica_id: int) -> None:
        link, replica = server.links[replica_id], self.replicas[replica_id]
        order = link.to_replica.popleft()
        self.tell(f"replica {replica_id} (has {len(replica.log)}) <- {_short(order)} of server {server.server_id}")
        replica.handle(order, link, self.random)

    def _announce(self, link: Link, replica_id: int) -> None:
        """After a refusal nothing else would announce the replica again."""
        link.refused = False
        link.to_server.append(ReplicaAvailable(NO_SUCH_SESSION, replica_id))

    def _to_zookeeper(self, server: Server) -> None:
        request = server.requests[0]
        before = self.zookeeper.roster.last_published_session
        if isinstance(request, WriteRoster) and self._is_lost(server, request):
            self._lose_answer(server, request)
            return
        server.requests.popleft()
        answer = self._answer_of_zookeeper(server, request)
        if isinstance(answer, RosterWritten) and isinstance(request, WriteRoster):
            if request.roster.last_published_session > before:
                self._check_publication(request.roster)
            if not self.healing and "lost_ack" in self.faults and self.random.random() < 0.1:
                answer = RosterConflict(request.session_id)  # written, but nobody can tell: the retry found it changed
        self.tell(f"zookeeper: {_short(request)} of server {server.server_id}: {type(answer).__name__}")
        server.answers.append(answer)

    def _answer_of_zookeeper(self, server: Server, request: ReadRoster | WriteRoster) -> Event:
        """After a lost answer reading tells whether the write happened."""
        unsure, server.unsure = server.unsure, False
        if unsure and isinstance(request, WriteRoster):
            write = RosterWrite(request.session_id, request.roster, request.version)
            found = write.found(self.zookeeper.roster, self.zookeeper.version)
            if found is not None:
                return found
        return self.zookeeper.do(request)

    def _is_lost(self, server: Server, request: WriteRoster) -> bool:
        """Mostly where another server wants to write over the same version: what it finds may be the other's."""
        if self.healing or "ambiguous" not in self.faults:
            return False
        others = [other.requests[0] for other in self.servers if other is not server and other.requests]
        contested = any(isinstance(other, WriteRoster) and other.version == request.version for other in others)
        return self.random.random() < (0.7 if contested else 0.05)

    def _lose_answer(self, server: Server, request: WriteRoster) -> None:
        """The write happens or does not; the server does not hear, and will look."""
        before = self.zookeeper.roster.last_published_session
        happens = not server.unsure and self.random.random() < 0.5
        written = happens and isinstance(self.zookeeper.do(request), RosterWritten)
        if written and request.roster.last_published_session > before:
            self._check_publication(request.roster)
        self.tell(f"zookeeper: {_short(request)} of server {server.server_id}: no answer, done {happens}")
        server.unsure = True

    def _check_publication(self, roster: Roster) -> None:
        """Every member of the session that has just been published holds all that was committed before."""
        for replica_id, entry in roster.replicas.items():
            replica = self.replicas[replica_id]
            if entry.session_id == roster.session_id and replica.damaged_from is None:
                try:
                    checkers.check_no_loss(replica.log[: replica.durable], self.committed)
                except Violation as violation:
                    raise Violation(f"member {replica_id} of session {roster.session_id}: {violation}") from None

    def _read_feed(self, server: Server) -> None:
        read = server.reads.pop(self.random.randrange(len(server.reads)))
        if not self.healing and self.random.random() < 0.2:
            self._feed(server, FeedReadFailed(read.connection_id, read.client_id, "no replica answers"))
            return
        if read.first_id < min(replica.begin for replica in self.replicas.values()):
            self._feed(server, FeedReadFailed(read.connection_id, read.client_id, "trimmed"))
            return
        end = min(read.end_id, read.first_id + self.random.randint(1, 5))
        batch = batch_of(read.first_id, self.committed[read.first_id : end])
        self._feed(server, FeedRead(read.connection_id, read.client_id, batch))

    # ---- clients ------------------------------------------------------------------------------------------

    def _client_actions(self) -> list[Callable[[], None]]:
        actions: list[Callable[[], None]] = []
        for client in self.clients:
            if client.connection is None:
                actions.append(lambda c=client: self._connect(c))  # type: ignore[misc]
                continue
            if client.owed_credit:
                actions.append(client.give_credit)
            if not client.ready and not client.mounting:
                actions.append(lambda c=client: self._mount_again(c))  # type: ignore[misc]
            if client.ready and not self.healing and len(client.pending) < 8:
                actions.append(lambda c=client: self._append(c))  # type: ignore[misc]
                if self.random.random() < 0.1:
                    actions.append(client.flush)
                if self.random.random() < 0.03 and not client.pending:
                    actions.append(lambda c=client: self._unmount(c))  # type: ignore[misc]
        return actions

    def _connect(self, client: Client) -> None:
        twins = [s for s in self.servers if s.up and s.partition.generation == self.generation]
        server = self.servers[self.owner]
        if twins and not self.healing and self.random.random() < 0.5:
            server = self.random.choice(twins)
        if not server.up:
            return
        connection = Connection(self._next_connection, server.server_id, server.life, client)
        self._next_connection += 1
        self.connections[connection.connection_id] = connection
        self.tell(f"client {client.client_id} connects to server {server.server_id}.{server.life} and mounts")
        client.mount(connection, self.generation)

    def _mount_again(self, client: Client) -> None:
        connection = client.connection
        assert connection is not None
        if connection.server == self.owner and self.random.random() < 0.7:
            self.tell(f"client {client.client_id} mounts again over connection {connection.connection_id}")
            client.mount(connection, self.generation)
        else:
            self._cut_client(connection)

    def _append(self, client: Client) -> None:
        sent = [client.random_sent() for _ in range(self.random.randint(1, 3))]
        self.tell(f"client {client.client_id} appends {client.next_number} and on: {sent}")
        client.append(sent)

    def _unmount(self, client: Client) -> None:
        connection = client.connection
        assert connection is not None
        client.unmount()
        connection.client_has_it = False
        connection.to_server.append(ConnectionClosed(connection.connection_id))

    def _cut_client(self, connection: Connection) -> None:
        """The client knows at once; the server reads some of what was under way, whenever it comes to it."""
        connection.client_has_it = False
        connection.to_client.clear()
        for _ in range(self.random.randint(0, len(connection.to_server))):
            connection.to_server.pop()
        connection.to_server.append(ConnectionClosed(connection.connection_id))
        if connection.client.connection is connection:
            connection.client.cut()

    # ---- faults -------------------------------------------------------------------------------------------

    def _fault(self, kind: str) -> None:
        random = self.random
        server = random.choice(self.servers)
        replica = self.replicas[random.randrange(len(self.replicas))]
        self.tell(f"FAULT {kind}: server {server.server_id}, replica {replica.replica_id}")
        if kind == "cut" and server.links[replica.replica_id].up:
            self._cut_link(server, replica.replica_id)
        elif kind == "replica_crash" and replica.up:
            self._crash_replica(replica)
        elif kind == "server_crash" and server.up:
            self._crash_server(server)
        elif kind == "move":
            self._move()
        elif kind == "twin":
            self._twin()
        elif kind == "ambiguous":
            self._rivals()
        elif kind == "pause":
            server.paused = True
        elif kind == "zookeeper":
            self.zookeeper.away = True
        elif kind == "client_cut":
            alive = [c for c in self.connections.values() if c.client_has_it]
            if alive:
                self._cut_client(random.choice(alive))
        elif kind == "damage" and replica.up and replica.durable > replica.begin and self._damage_is_survivable():
            self._crash_replica(replica)
            replica.damaged_from = random.randrange(replica.begin, replica.durable)
        elif kind == "trim":
            self._raise_trim_mark(random.randint(0, len(self.committed)))

    def _raise_trim_mark(self, mark: int) -> None:
        self.trim_mark = max(self.trim_mark, mark)
        for server in self.servers:
            if server.up:
                server.inbox.append(TrimMarkRaised(self.trim_mark))

    def _trim(self, replica: Replica) -> None:
        """It drops some of its segments below the mark."""
        replica.trim(self.random.randint(replica.begin, min(self.trim_mark, len(replica.log))))
        self.tell(f"replica {replica.replica_id} drops what is before {replica.begin}")

    def _damage_is_survivable(self) -> bool:
        """One replica at a time: until the one before has been copied again, its records are on fewer disks."""
        return all(r.damaged_from is None and r.durable >= len(self.committed) for r in self.replicas.values())

    def _cut_link(self, server: Server, replica_id: int) -> None:
        """The replica still reads some of what was under way; its answers are lost."""
        link, replica = server.links[replica_id], self.replicas[replica_id]
        for _ in range(self.random.randint(0, len(link.to_replica)) if replica.up else 0):
            replica.handle(link.to_replica.popleft(), link, self.random)
        link.cut(replica_id)

    def _crash_replica(self, replica: Replica) -> None:
        replica.crash(self.random)
        for server in self.servers:
            link = server.links[replica.replica_id]
            if link.up:
                link.cut(replica.replica_id)
            link.ghosts.clear()

    def _crash_server(self, server: Server) -> None:
        for _ in range(self.random.randint(0, len(server.requests))):
            self._to_zookeeper(server)
        server.requests.clear()
        for replica_id in server.links:
            self._cut_link(server, replica_id)
        server.up = False
        for connection in self.connections.values():
            if (connection.server, connection.life) == (server.server_id, server.life):
                connection.server_has_it = False
                if connection.client_has_it:
                    self._cut_client(connection)

    def _move(self) -> None:
        """The manager gives the partition away; each server hears of it when it does."""
        self.generation += 1
        self.owner = self.random.randrange(len(self.servers))
        for server in self.servers:
            news = Assigned(self.generation) if server.server_id == self.owner else Unassigned("moved")
            if server.up:
                server.inbox.append(news)

    def _twin(self) -> None:
        """A second server believes in the same generation: one restarted beside the old one, which is not dead.

        Clients may go to and fro between the two: a mount is answered only by the one the replicas still obey.
        """
        new = self.random.choice(self.servers)
        if new.up and new.server_id != self.owner and new.partition.generation != self.generation and not new.inbox:
            self.owner = new.server_id
            new.inbox.append(Assigned(self.generation))

    def _rivals(self) -> None:
        """Twins that both lose a replica want a session at one time, and may ask for the same number."""
        rivals = [s for s in self.servers if s.up and s.partition.generation == self.generation]
        if len(rivals) < 2:
            self._twin()
        for rival in rivals if len(rivals) > 1 else []:
            up = [replica_id for replica_id, link in rival.links.items() if link.up]
            if up:
                self._cut_link(rival, self.random.choice(up))

    def _recover_something(self) -> None:
        actions: list[Callable[[], None]] = []
        for replica in self.replicas.values():
            if not replica.up:
                actions.append(replica.restart)
        for server in self.servers:
            if not server.up:
                actions.append(lambda s=server: self._restart_server(s))  # type: ignore[misc]
            elif server.paused:
                actions.append(lambda s=server: setattr(s, "paused", False))  # type: ignore[misc]
            for replica_id, link in server.links.items():
                if server.up and not link.up and self.replicas[replica_id].up:
                    actions.append(lambda r=replica_id, k=link: k.restore(r))  # type: ignore[misc]
        if self.zookeeper.away:
            actions.append(lambda: setattr(self.zookeeper, "away", False))
        if actions:
            self.random.choice(actions)()

    def _restart_server(self, server: Server) -> None:
        new = self._new_server(server.server_id, server.life + 1)
        self.servers[server.server_id] = new
        if self.owner == server.server_id:
            new.inbox.append(Assigned(self.generation))

    # ---- liveness -----------------------------------------------------------------------------------------

    def heal(self) -> None:
        self.tell("HEAL")
        self.zookeeper.away = False
        for replica in self.replicas.values():
            if not replica.up:
                replica.restart()
        for server in list(self.servers):
            server.paused = False
            if not server.up:
                self._restart_server(server)
            else:
                for replica_id, link in server.links.items():
                    if not link.up:
                        link.restore(replica_id)
        self._move()
        self.healing = True

    def settled(self) -> bool:
        return not self._why_not_settled()

    def _why_not_settled(self) -> str:
        partition = self.servers[self.owner].partition
        if partition.stage is not Stage.OPEN or partition.session is None:
            opening = partition.reign._opening
            phases = None if opening is None else (opening.low_water_mark, opening.phases())
            return f"the partition is {partition.stage}; X and replicas {phases}; {self.zookeeper.roster}"
        for client in self.clients:
            if not client.ready or client.pending:
                return f"client {client.client_id}: ready {client.ready}, pending {client.pending}"
            if client.mode is not FeedMode.OWN and client.mark != partition.high_water_mark:
                return f"client {client.client_id} is at {client.mark} of {partition.high_water_mark}"
            if client.flushes:
                return f"client {client.client_id} waits for its flush"
        if len(partition.session.members) < len(self.replicas):
            return f"replicas: {partition.session.phases()}"
        if partition.next_id != partition.high_water_mark + 1 or any(c.to_server for c in self._live_connections()):
            return "something is in flight"
        logs = [r.log for r in self.replicas.values()]
        return "" if all(log == logs[0] for log in logs) else f"log lengths {[len(log) for log in logs]}"

    def _live_connections(self) -> list[Connection]:
        return [c for c in self.connections.values() if c.server_has_it and c.client_has_it]

    def _fates(self) -> dict[Key, Fate]:
        return {key: fate for client in self.clients for key, fate in client.fates.items()}

    def check_end(self) -> None:
        logs = {r.replica_id: r.log for r in self.replicas.values()}
        checkers.check_same_logs(logs)
        log = logs[0]
        checkers.check_no_loss(log, self.committed)
        checkers.check_ids(log)
        checkers.check_no_duplicates(log)
        sent: dict[Key, Sent] = {}
        for client in self.clients:
            sent |= client.sent
            for mark, ids in client.feeds:
                checkers.check_feed_is_dense(mark, ids)
            for before, high_water_mark in client.flushed:
                checkers.check_flush(log, before, high_water_mark)
        fates = self._fates()
        if fates.keys() != sent.keys():
            raise Violation(f"without a fate: {sorted(sent.keys() - fates.keys())}")
        checkers.check_fates(log, fates)
        checkers.check_locks(log, sent)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 160 else text[:157] + "..."


def run(seed: int, steps: int = 600, faults: tuple[str, ...] | None = None) -> Result:
    """One walk; Violation with the story if a rule is broken."""
    return World(seed, faults=faults).run(steps)
