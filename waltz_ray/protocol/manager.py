"""What the cluster manager decides, as a pure machine: past facts in, orders out (docs/design.md, "Placement").

``ManagerMachine.step(event)`` returns the orders that follow. It owns no clock, socket, Ray or ZooKeeper; the shell
(``actors/cluster_manager.py``) watches and obeys. Nothing here is hard state: a new machine that is told the registered
servers and the stored assignment comes to the same decisions, so the manager may die at any time.

Rules:

- Nothing is ordered unless we lead, the servers and the assignment are known, and no write is on its way.
- A server whose registered endpoint *refused* a connection is gone, whatever ZooKeeper still says: its registration
  is removed and its partitions are placed elsewhere in the same step. If we are wrong nothing is lost: storage fences
  protect the log and a living server registers again.
- A server that answers nothing may be alive, and keeps its registration as long as its ZooKeeper session does. It is
  given nothing as long as another one answers; if none does, it is more likely us, and nothing moves.
- A server that reaches too few replicas is given nothing as long as another one reaches more.
- A server that is drained is given nothing, as long as another one answers; so what it has moves, in one step.
- Right after an election the servers that should run get ``settle`` time to register: a cluster that starts must
  not give everything to whoever comes first and move it again a second later.
- New partitions are placed when everything that they need in ZooKeeper is there: whoever leads makes it, also what a
  predecessor left half made. An assignment that names a partition proves that it is there: a leader that has not heard
  of a growth must not drop what another one has placed, nor forget its generation.
- The partitions of deleted spaces are placed nowhere; they keep their generations.
- A write of the assignment that lost its compare-and-set, or failed, is followed by reading, never by repeating.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment, ServerInfo, assign
from waltz_ray.protocol.spaces import Space, SpaceTable
from waltz_ray.protocol.value import value

__all__ = [
    "AssignmentRead",
    "AwaitSessions",
    "Effect",
    "Elected",
    "EndpointAnswered",
    "EndpointRefused",
    "EndpointSilent",
    "EndpointWell",
    "Event",
    "FinishFailed",
    "FinishSpaces",
    "LeadershipLost",
    "ManagerMachine",
    "ServersWanted",
    "PartitionsMade",
    "Probe",
    "ReadAssignment",
    "Registered",
    "RemoveRegistration",
    "ServersCutOff",
    "ServersSeen",
    "SettleOver",
    "SpacesSeen",
    "StartSettling",
    "StopProbe",
    "WriteAssignment",
    "WriteFailed",
]


@value()
class Registered:
    """A live server as ZooKeeper knows it."""

    endpoint: Endpoint
    preferred: tuple[int, ...] = ()


# -- events -------------------------------------------------------------------------------------------------


@value()
class Elected:
    """We hold the leader lock."""


@value()
class LeadershipLost:
    """Somebody else may hold it."""


@value()
class SettleOver:
    """The time that StartSettling asked for is over."""


@value()
class ServersSeen:
    """The registered servers, all of them."""

    servers: Mapping[int, Registered]


@value()
class AssignmentRead:
    """The stored assignment: read, or just written by us."""

    assignment: Assignment
    version: int


@value()
class WriteFailed:
    """WriteAssignment lost its compare-and-set, or its outcome is unknown."""


@value()
class EndpointRefused:
    """A connection to the server's endpoint broke and a new one was refused: nobody listens there."""

    server_id: int
    endpoint: Endpoint


@value()
class EndpointAnswered:
    """Somebody listens there again after all."""

    server_id: int
    endpoint: Endpoint


@value()
class EndpointSilent:
    """The server there has answered nothing for so long that it hangs, or cannot be reached."""

    server_id: int
    endpoint: Endpoint


@value()
class EndpointWell:
    """It answers again, and has done so for a while."""

    server_id: int
    endpoint: Endpoint


@value()
class ServersCutOff:
    """Those that answer and reach too few replicas to commit anything, all of them."""

    servers: frozenset[int]


@value()
class SpacesSeen:
    """The spaces have changed."""

    table: SpaceTable


@value()
class ServersWanted:
    """The servers that should run, and those that are to have nothing any more, though they may still be there."""

    expected: frozenset[int]
    draining: frozenset[int]


@value()
class PartitionsMade:
    """FinishSpaces is done: ZooKeeper has all that so many partitions need."""

    partitions: int


@value()
class FinishFailed:
    """FinishSpaces is not done, or perhaps in part."""


Event = (
    EndpointAnswered
    | Elected
    | LeadershipLost
    | SettleOver
    | ServersSeen
    | AssignmentRead
    | WriteFailed
    | EndpointRefused
    | EndpointSilent
    | EndpointWell
    | ServersCutOff
    | SpacesSeen
    | ServersWanted
    | PartitionsMade
    | FinishFailed
)

# -- effects ------------------------------------------------------------------------------------------------


@value()
class StartSettling:
    """Send SettleOver after the settle time."""


@value()
class ReadAssignment:
    """Read it, then send AssignmentRead."""


@value()
class WriteAssignment:
    """Compare-and-set it, then send AssignmentRead with the new version, or WriteFailed."""

    assignment: Assignment
    version: int


@value()
class RemoveRegistration:
    """Delete the server's registration in ZooKeeper."""

    server_id: int


@value()
class Probe:
    """Keep a connection to the endpoint; EndpointRefused when nobody listens there, EndpointAnswered if then again.
    EndpointSilent when nobody answers there, EndpointWell when somebody does so again."""

    server_id: int
    endpoint: Endpoint


@value()
class StopProbe:
    """The endpoint is no longer of interest."""

    server_id: int


@value()
class FinishSpaces:
    """Have in ZooKeeper all that so many partitions need, then send PartitionsMade, or FinishFailed."""

    partitions: int


@value()
class AwaitSessions:
    """Mark the space *ready* as soon as each of its partitions has a published session, while we lead."""

    space: Space


Effect = (
    StartSettling
    | ReadAssignment
    | WriteAssignment
    | RemoveRegistration
    | Probe
    | StopProbe
    | FinishSpaces
    | AwaitSessions
)


@dataclass
class ManagerMachine:
    """``table``: the spaces of the cluster; ``expected``: the IDs of the servers that should run; ``draining``: who
    is about to be removed, or was."""

    table: SpaceTable
    expected: frozenset[int]
    draining: frozenset[int] = frozenset()
    made: int = 0  # partitions that have all they need in ZooKeeper
    finishing: bool = False
    awaited: set[str] = field(default_factory=set)  # spaces whose sessions are waited for
    leading: bool = False
    settled: bool = False
    servers: dict[int, Registered] | None = None  # None: not seen yet
    gone: dict[int, Endpoint] = field(default_factory=dict)  # refused, and still registered so
    silent: dict[int, Endpoint] = field(default_factory=dict)  # registered so, and hung
    cut_off: frozenset[int] = frozenset()
    assignment: Assignment | None = None  # None: to be read
    version: int = -1
    writing: bool = False

    def __post_init__(self) -> None:
        if not self.table.has_grown:
            self.made = self.table.partitions

    def step(self, event: Event) -> list[Effect]:
        """Take in one fact; the orders that follow from it."""
        effects: list[Effect] = []
        match event:
            case Elected():
                self.leading, self.settled, self.writing = True, False, False
                self.assignment = None
                self.awaited.clear()
                effects = [StartSettling(), ReadAssignment(), *(RemoveRegistration(s) for s in sorted(self.gone))]
            case LeadershipLost():
                self.leading = False
            case SettleOver():
                self.settled = True
            case ServersSeen(servers):
                effects = self._servers_seen(servers)
            case AssignmentRead(assignment, version):
                self.assignment, self.version, self.writing = assignment, version, False
                self.made = max(self.made, assignment.proven_partitions())
            case WriteFailed():
                self.assignment, self.writing = None, False
                effects = [ReadAssignment()] if self.leading else []
            case EndpointRefused(server_id, endpoint):
                effects = self._refused(server_id, endpoint)
            case EndpointAnswered(server_id, endpoint):
                if self.gone.get(server_id) == endpoint:
                    del self.gone[server_id]
            case EndpointSilent(server_id, endpoint):
                server = (self.servers or {}).get(server_id)
                if server is not None and server.endpoint == endpoint:
                    self.silent[server_id] = endpoint
            case EndpointWell(server_id, endpoint):
                if self.silent.get(server_id) == endpoint:
                    del self.silent[server_id]
            case ServersCutOff(cut_off):
                self.cut_off = cut_off
            case SpacesSeen(table):
                self.table = table
                self.awaited &= {space.name for space in table.making}
            case ServersWanted(expected, draining):
                self.expected, self.draining = expected, draining
            case PartitionsMade(partitions):
                self.made, self.finishing = max(self.made, partitions), False
            case FinishFailed():
                self.finishing = False
        return effects + self._make() + self._place()

    def broken(self) -> str | None:
        """Which invariant does not hold."""
        if self.assignment is None:
            return None
        strangers = sorted(p for p in self.assignment.owners if not 0 <= p < self.made)
        return f"partitions {strangers} are assigned, there are {self.made}" if strangers else None

    def live(self) -> dict[int, Registered]:
        """The servers that partitions may be given to."""
        return {s: server for s, server in self._there().items() if self.silent.get(s) != server.endpoint}

    def _there(self) -> dict[int, Registered]:
        """Those that are not known to be gone."""
        servers = self.servers or {}
        return {s: server for s, server in servers.items() if self.gone.get(s) != server.endpoint}

    def _servers_seen(self, servers: Mapping[int, Registered]) -> list[Effect]:
        before, self.servers = self.servers or {}, dict(servers)
        self.gone, self.silent = (
            {s: e for s, e in known.items() if s in servers and servers[s].endpoint == e}
            for known in (self.gone, self.silent)
        )
        effects: list[Effect] = [StopProbe(s) for s in sorted(before) if s not in servers]
        for server_id, server in sorted(servers.items()):
            if server_id not in before or before[server_id].endpoint != server.endpoint:
                effects.append(Probe(server_id, server.endpoint))
        return effects

    def _refused(self, server_id: int, endpoint: Endpoint) -> list[Effect]:
        server = (self.servers or {}).get(server_id)
        if server is None or server.endpoint != endpoint:
            return []  # news of a predecessor
        self.gone[server_id] = endpoint
        return [RemoveRegistration(server_id)] if self.leading else []

    def _make(self) -> list[Effect]:
        """What a growth still needs."""
        if not self.leading:
            return []
        effects: list[Effect] = []
        if self.table.partitions > self.made and not self.finishing:
            self.finishing = True
            effects.append(FinishSpaces(self.table.partitions))
        for space in self.table.making:
            if space.partitions.stop <= self.made and space.name not in self.awaited:
                self.awaited.add(space.name)
                effects.append(AwaitSessions(space))
        return effects

    def _place(self) -> list[Effect]:
        if not self.leading or self.servers is None or self.assignment is None or self.writing:
            return []
        live = self.live()
        if not live and self._there():
            return []  # nobody answers
        if not self.settled and not self.expected <= live.keys():
            return []
        self.settled = True
        staying = live.keys() - self.draining or live.keys()
        reaching = staying - self.cut_off or staying
        infos = {s: ServerInfo(live[s].preferred) for s in sorted(reaching)}
        wanted = assign(self.made, infos, self.assignment, self.table.gone & frozenset(range(self.made)))
        if wanted == self.assignment:
            return []
        self.writing = True
        return [WriteAssignment(wanted, self.version)]
