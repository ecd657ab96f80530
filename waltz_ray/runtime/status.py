"""What the parts of a cluster say of themselves: frozen classes, which travel from actors, and ``to_json`` of any.

The fields' names are the keys of ``waltz status --json``. None, and an empty mapping of an actor that does not serve,
mean: not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.spaces import Space
from waltz_ray.runtime.histogram import HistogramView

if TYPE_CHECKING:  # whoever only shows a status needs no machines for it
    from waltz_ray.config import ClusterConfig
    from waltz_ray.protocol.messages.replica import RefusalCode
    from waltz_ray.protocol.partition.state import Stage
    from waltz_ray.protocol.session_replica import Phase

__all__ = [
    "ActorState",
    "ActorStatus",
    "ClusterStatus",
    "CursorStatus",
    "EmbeddedZooKeeperStatus",
    "EndpointStatistics",
    "KvActorStatus",
    "KvSpaceStatus",
    "TopicActorStatus",
    "LinkStatus",
    "ManagerStatus",
    "MembershipStatus",
    "PartitionAssignment",
    "ProcessStatus",
    "Readiness",
    "ReplicaProgress",
    "ReplicaStatus",
    "RottenSegment",
    "ScrubStatus",
    "ServedPartition",
    "ServerMeasures",
    "ServerStatus",
    "SetMove",
    "StoredPartition",
    "ZooKeeperStatus",
    "ZooKeeperView",
    "cursors_behind",
    "known_marks",
    "to_json",
]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class _Word(str, Enum):
    """Printed as its value; ``StrEnum``, which Python 3.10 lacks."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


class _Travels:
    """What one process tells another, by the names of its fields: while a cluster is upgraded one of them may know
    fields that the other does not. What is not known is passed over, and what was not said has its default."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        names, values = _shape(type(self))  # type: ignore[arg-type]  # classes can be hashed
        return _arrived, (type(self), names, values(self))


@cache
def _shape(kind: type) -> tuple[tuple[str, ...], Callable[[object], tuple[object, ...]]]:
    """The names of a class's fields, which are several, and what gets them of an object."""
    names = tuple(each.name for each in fields(kind))
    return names, attrgetter(*names)


def _arrived(kind: type, names: tuple[str, ...], values: tuple[object, ...]) -> object:
    known, said = _shape(kind)[0], dict(zip(names, values, strict=True))
    return kind(**(said if names == known else {name: said[name] for name in known if name in said}))


class ActorState(_Word):
    """What an actor does, in its own words, or in those of who asked it (NO_ANSWER, ABSENT)."""

    STARTING = "STARTING"  # it needs time or somebody else, and no person
    SERVING = "SERVING"
    REFUSED = "REFUSED"  # it cannot start as things are, says why, and looks again
    STOPPED = "STOPPED"
    DOWN = "DOWN"  # its process has ended and is started again
    NO_ANSWER = "NO ANSWER"  # within the time it was given
    ABSENT = "ABSENT"  # Ray knows no actor of that name


class Readiness(_Word):
    """Whether a partition takes appends on the server that has it."""

    READY = "READY"
    NOT_READY = "NOT_READY"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus(_Travels):
    """What a process runs with. ``version``: of this package; ``now_ms``: its wall clock, Unix time; ``open_files``:
    None where that cannot be known; ``open_files_limit``: how many it may have."""

    version: str
    python: str
    now_ms: int
    open_files: int | None
    open_files_limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStatus(_Travels):
    """What every actor's status has.

    ``reason``: why it does not serve, "" else. ``silent_s``: seconds since it answered last, told of one that is
    silent. ``pid``: of the process that does the work; ``process``: what it runs with.
    """

    state: ActorState
    reason: str = ""
    silent_s: float | None = None
    pid: int | None = None
    process: ProcessStatus | None = None

    @property
    def serving(self) -> bool:
        """Whether it does its work."""
        return self.state is ActorState.SERVING


@dataclass(frozen=True, slots=True)
class ZooKeeperStatus(_Travels):
    """How ZooKeeper is seen by one of its clients.

    ``state``: the connection's (``coordination.api.ConnectionState``), which may say connected of a server that hangs;
    ``silent_s``: seconds since its last answer; ``error``: what the last request met, "" if it was answered.
    """

    state: str
    silent_s: float
    error: str

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self.state == "connected"

    def answers(self, within_s: float) -> bool:
        """Whether it is connected and has answered within the last ``within_s`` seconds."""
        return self.connected and self.silent_s < within_s


@dataclass(frozen=True, slots=True)
class ZooKeeperView(ZooKeeperStatus):
    """The manager's, with the age of what it shows of ZooKeeper: ``view_age_s`` in seconds, None = never read.

    ``view_error``: why it could not be read just now, "" if it was, or is still being read.
    """

    view_age_s: float | None
    view_error: str


@dataclass(frozen=True, slots=True)
class LinkStatus(_Travels):
    """A server's link to one replica: whether it works, where it leads, how often the replica has said no."""

    up: bool
    endpoint: Endpoint | None
    refusals: Mapping[RefusalCode, int]


@dataclass(frozen=True, slots=True)
class ReplicaProgress(_Travels):
    """How far one replica is in a session, as its server knows it; ``last_id`` is on its disk."""

    phase: Phase
    last_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPartition(_Travels):
    """A partition on the server that has it. ``session``, ``low_water_mark``: None while no session is open.

    ``members``: replicas whose acknowledgements count; ``in_flight_bytes``: of records that are admitted and not
    committed; ``subscribers``: mounted clients; ``hindrance``: what keeps it from taking appends, "" = nothing;
    ``trim_mark``: what is below may be gone; ``lags``: of the subscribers that are furthest behind (client ID), by how
    many committed transactions.
    """

    generation: int
    state: Readiness
    stage: Stage
    session: int | None
    low_water_mark: int | None
    high_water_mark: int
    members: tuple[int, ...]
    replicas: Mapping[int, ReplicaProgress]
    in_flight_bytes: int
    subscribers: int
    hindrance: str = ""
    trim_mark: int = 0
    lags: Mapping[int, int] = field(default_factory=dict)

    @property
    def takes_appends(self) -> bool:
        """Whether it is open, and a quorum of its replicas takes part: without one it stays READY, and waits."""
        return self.state is Readiness.READY and not self.hindrance

    @property
    def known_mark(self) -> int | None:
        """ID of the last committed transaction, -1 = none; None while the log is not open, so that nobody knows."""
        return self.high_water_mark if self.state is Readiness.READY else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMeasures(_Travels):
    """Since a server began (``runtime.measures``). ``stages``: seconds by stage; ``batch_records``, ``batch_bytes``:
    what goes to replicas at a time; ``recovery``: seconds until a session was open; ``refused``: appends, and mounts,
    by reason; ``lock_failures``: appends that met a newer transaction under their locks. ``records``, ``record_bytes``:
    what went to replicas, copies not counted; ``access_refused``: what clients had not the right to, by reason."""

    stages: Mapping[str, HistogramView]
    batch_records: HistogramView
    batch_bytes: HistogramView
    recovery: HistogramView
    refused: Mapping[str, int]
    lock_failures: int
    records: int = 0
    record_bytes: int = 0
    access_refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus(ActorStatus):
    """A partition server's. ``links``: by replica; ``zookeeper``: as this server sees it.

    ``slow_steps``: steps of its event loop that took too long since it started (``runtime.watchdog``), and the longest.
    """

    server_id: int | None = None
    incarnation: str | None = None
    endpoint: Endpoint | None = None
    connections: int | None = None
    slow_steps: int | None = None
    longest_step_ms: float | None = None
    links: Mapping[int, LinkStatus] = field(default_factory=dict)
    partitions: Mapping[int, ServedPartition] = field(default_factory=dict)
    zookeeper: ZooKeeperStatus | None = None
    measures: ServerMeasures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPartition(_Travels):
    """A partition on a replica's disk. ``damaged``: why it is not served, None if it is.

    All marks are None of one whose control entry is lost.
    """

    session: int | None = None
    first_id: int | None = None
    last_id: int | None = None
    synced_id: int | None = None
    low_water_mark: int | None = None
    local_low_water_mark: int | None = None
    damaged: str | None = None


@dataclass(frozen=True, slots=True)
class EndpointStatistics(_Travels):
    """Since a replica's endpoint was made. A turn with appends costs one sync: records / turns is the group commit.

    ``refusals``: orders that were refused, by reason. ``turn``: seconds that turns with appends took, writing and
    syncing; None where nothing measures them.
    """

    connections: int = 0
    turns: int = 0
    requests: int = 0
    records: int = 0
    record_bytes: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)
    turn: HistogramView | None = None


@dataclass(frozen=True, slots=True)
class RottenSegment(_Travels):
    """Damage in a closed segment, whose partition goes on. ``why_not``: why it is not repaired, "" while that is under
    way or was not tried yet."""

    partition: int
    path: str
    damage: str
    why_not: str


@dataclass(frozen=True, slots=True)
class ScrubStatus(_Travels):
    """How far a replica's check of its closed segments is: ``done_bytes`` of ``total_bytes`` of the pass that
    ``began_ms``.

    ``last_pass_ms``: when the last full pass ended. Unix milliseconds, None = never. ``found``, ``repaired``: damages
    since the replica started. ``unrepaired``: those that are there now. ``ended``: the error after which nothing is
    checked or repaired any more until the replica is started again, "" = none."""

    done_bytes: int = 0
    total_bytes: int = 0
    began_ms: int | None = None
    last_pass_ms: int | None = None
    found: int = 0
    repaired: int = 0
    unrepaired: tuple[RottenSegment, ...] = ()
    ended: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus(ActorStatus):
    """A storage replica's. ``node``: Ray's ID of the node it runs on; ``since_ms``: when its state began, Unix time.

    ``problem``: what is wrong although it serves (a full disk), "" = nothing; ``slow``: the same of its disk's syncs,
    for which nobody waits as long as a quorum has better disks; ``lost``: which partitions it takes no part in, as it
    remembers less of them than it had promised. ``traffic``: None without an endpoint. ``scrub``: None
    while it does not serve. ``sync``: seconds that the disk took for a sync.
    """

    replica: int | None = None
    node: str | None = None
    since_ms: int | None = None
    problem: str = ""
    slow: str = ""
    lost: str = ""
    incarnation: str | None = None
    directory: str | None = None
    endpoint: Endpoint | None = None
    disk_use_bytes: int | None = None
    disk_free_bytes: int | None = None
    partitions: Mapping[int, StoredPartition] = field(default_factory=dict)
    traffic: EndpointStatistics | None = None
    scrub: ScrubStatus | None = None
    sync: HistogramView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedZooKeeperStatus(ActorStatus):
    """The embedded ZooKeeper's, as its keeper tells it: where it listens, and how often it was started again.

    ``problem``: what is wrong although it serves (a full disk), "" = nothing.
    """

    endpoint: str = ""
    restarts: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSpaceStatus(_Travels):
    """A kv space as one of its actors serves it.

    ``mask``: of the space; ``primaries``, ``secondaries``: buckets under it that this actor serves, or keeps a second
    copy of; ``lease``: whether it may answer reads at once, else it asks the log; ``marks``: of each partition of the
    space, counted from 0, the last transaction folded; ``waiting``: commands that wait for something else than the log;
    ``live_bytes``, ``tail_bytes``: of the state of all partitions, and of their logs from where they are needed, but
    for snapshots; ``snapshots``: of sections, that this actor has written;
    ``access_refused``: what clients asked that they have not the right to, by reason; ``outrun``: a bucket that it is
    given, and may not take, for the log is further than the table that gives it, "" = none.
    """

    endpoint: Endpoint | None
    incarnation: str | None
    mask: int
    primaries: int
    secondaries: int
    lease: bool
    marks: Mapping[int, int]
    connections: int
    commands: int
    waiting: int
    live_bytes: int
    tail_bytes: int
    snapshots: int
    access_refused: Mapping[str, int] = field(default_factory=dict)
    outrun: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvActorStatus(ActorStatus):
    """A kv actor's. ``spaces``: by name; ``zookeeper``: as this actor sees it."""

    actor: int | None = None
    spaces: Mapping[str, KvSpaceStatus] = field(default_factory=dict)
    zookeeper: ZooKeeperStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicActorStatus(ActorStatus):
    """A topic actor's. ``master``: where it listens for what clients say to a master; ``leads``: it is the master.

    ``slots``: where its slots listen; ``unserved``: "topic/slot" of its slots where nothing can be appended yet, or any
    more; ``produced``, ``refused``, ``delivered``: messages since it began; ``groups``: (group, partition) that consume
    here; ``topics``: those that it knows; ``outrun``: a partition that it is given, and may not take, for the log is
    further than the table that gives it, "" = none.
    """

    actor: int | None = None
    master: Endpoint | None = None
    leads: bool = False
    incarnation: str | None = None
    slots: Mapping[int, int] = field(default_factory=dict)
    unserved: tuple[str, ...] = ()
    topics: Mapping[str, int] = field(default_factory=dict)
    connections: int = 0
    produced: int = 0
    refused: int = 0
    delivered: int = 0
    groups: int = 0
    zookeeper: ZooKeeperStatus | None = None
    outrun: str = ""


@dataclass(frozen=True, slots=True)
class ManagerStatus(_Travels):
    """The cluster manager's own. ``leading`` None: not known; ``reason``: why it was not asked, "" else.

    ``supervision_error``: why it cannot make sure of the actors, "" if it can. ``http``: where its HTTP port is, None
    if it has none; ``http_error``: why it has none although it should; ``http_refused``: what was asked there
    without the right to, by reason.
    """

    pid: int | None
    leading: bool | None
    supervision_error: str = ""
    reason: str = ""
    http: Endpoint | None = None
    http_error: str = ""
    process: ProcessStatus | None = None
    http_refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionAssignment(_Travels):
    """What ZooKeeper says of a partition: which server has it (None: nobody), who was in its last session, and on which
    replicas it is.

    Before ZooKeeper was read for the first time nobody has it and its session is -1. ``session`` None: it was asked of
    a server that has none open (``ClusterStatus``, without the manager).
    """

    partition: int
    server: int | None = None
    generation: int = 0
    session: int | None = -1
    members: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SetMove(_Travels):
    """Of a partition that is to be on other replicas: on which, and what it waits for just now ("": for its turn)."""

    wanted: tuple[int, ...]
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class MembershipStatus(_Travels):
    """The servers that are to run, and who is drained."""

    servers: tuple[int, ...] = ()
    draining_servers: tuple[int, ...] = ()
    draining_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorStatus(_Travels):
    """A cursor: where it stands (the ID that comes next) in each of its partitions, as its space numbers them.

    ``owner``: who has it, and ``since_ms``; None: nobody. ``changed_ms``: when it was written last; both Unix time.
    ``lag``: transactions that are committed and still to come; None where a mark is not known.
    """

    space: str
    name: str
    positions: Mapping[int, int]
    holds_retention: bool
    epoch: int
    owner: str | None = None
    since_ms: int | None = None
    changed_ms: int = 0
    lag: int | None = None

    def behind(self, marks: Mapping[int, int | None]) -> CursorStatus:
        """The same with its lag, given the high-water marks of its partitions."""
        behind = 0
        for p, position in self.positions.items():
            mark = marks.get(p)
            if mark is None:
                return replace(self, lag=None)
            behind += max(0, mark + 1 - position)
        return replace(self, lag=behind)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus(_Travels):
    """The whole: what ZooKeeper says, and what every actor says of itself. All by number.

    ``zookeeper_server``: the embedded one's, None where the ensemble is somebody else's. ``placement``: replica -> the
    Ray resource that ties it to its node. What only the manager knows is None, or empty, where it did not answer; the
    partitions are those that servers have then. Deleted spaces, and their partitions, are not told. ``upgrading``: a
    rolling upgrade, or a change of settings, was begun and has not ended. ``at_ms``: when the manager put it together,
    Unix time. ``version``: of this package where the manager runs; what an earlier one sent than this field has none.
    """

    cluster: str
    cluster_key: UUID | None = None
    zookeeper: str | None = None
    zookeeper_state: ZooKeeperView | None = None
    zookeeper_server: EmbeddedZooKeeperStatus | None = None
    manager: ManagerStatus
    partitions: tuple[PartitionAssignment, ...]
    spaces: tuple[Space, ...] = ()
    cursors: tuple[CursorStatus, ...] = ()
    registered_servers: Mapping[int, Endpoint] = field(default_factory=dict)
    announced_replicas: Mapping[int, Endpoint] = field(default_factory=dict)
    servers: Mapping[int, ServerStatus] = field(default_factory=dict)
    replicas: Mapping[int, ReplicaStatus] = field(default_factory=dict)
    kv: Mapping[int, KvActorStatus] = field(default_factory=dict)
    topics: Mapping[int, TopicActorStatus] = field(default_factory=dict)
    placement: Mapping[int, str] = field(default_factory=dict)
    members: MembershipStatus | None = None
    moves: Mapping[int, SetMove] = field(default_factory=dict)
    upgrading: bool = False
    config: ClusterConfig | None = None
    at_ms: int | None = None
    version: str = ""

    def served(self, partition: PartitionAssignment) -> ServedPartition | None:
        """The partition as the server tells it that has it; None if nobody has it, or that server does not say so."""
        server = None if partition.server is None else self.servers.get(partition.server)
        return None if server is None else server.partitions.get(partition.partition)

    def unserved_slots(self, space: Space) -> int:
        """Partitions of a topic that no actor says it serves."""
        served: set[int] = set()
        for actor in self.topics.values():
            served |= {slot for slot in actor.slots if f"{space.name}/{slot}" not in actor.unserved}
            if space.name not in actor.topics:
                served -= set(actor.slots)
        return sum(slot not in served for slot in range(1, space.count + 1))

    def unserved_buckets(self, space: str) -> int:
        """Buckets of a kv space that no actor says it serves."""
        said = [actor.spaces[space] for actor in self.kv.values() if space in actor.spaces]
        return max((each.mask for each in said), default=0xF) + 1 - sum(each.primaries for each in said)


def known_marks(servers: Iterable[ServerStatus]) -> dict[int, int]:
    """By partition the ID of the last committed transaction, -1 = none, where a server knows it.

    While a partition moves two have it, and what one of them knows may be old.
    """
    marks: dict[int, int] = {}
    for server in servers:
        for number, served in server.partitions.items():
            if served.known_mark is not None:
                marks[number] = max(served.known_mark, marks.get(number, -1))
    return marks


def cursors_behind(
    cursors: Sequence[CursorStatus], spaces: Iterable[Space], servers: Mapping[int, ServerStatus]
) -> tuple[CursorStatus, ...]:
    """``cursors`` with their lags, by the high-water marks of the servers that have answered."""
    marks = known_marks(servers.values())
    firsts = {space.name: space.first for space in spaces}
    return tuple(
        each.behind({p: marks.get(firsts[each.space] + p) for p in each.positions})
        for each in cursors
        if each.space in firsts
    )


def to_json(value: object) -> Json:
    """``value`` as ``json.dumps`` takes it: classes as objects by field, mappings with their keys as text.

    An enum is its word (its value if that is text, else its name), an endpoint "host:port". TypeError for anything else
    that JSON has no word for.
    """
    match value:
        case Enum():
            return value.value if isinstance(value.value, str) else value.name
        case None | bool() | int() | float() | str():
            return value
        case Endpoint() | UUID():
            return str(value)
        case Mapping():
            return {str(to_json(key)): to_json(each) for key, each in value.items()}
        case list() | tuple():
            return [to_json(each) for each in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    raise TypeError(f"JSON has no word for {type(value).__name__}: {value!r}")
