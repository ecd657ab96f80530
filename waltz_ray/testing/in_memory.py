"""``InMemoryCluster``: servers on the process's IO thread, records in a list, connections that are two queues."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from types import TracebackType

from waltz_ray.client.aio import AsyncWaltzClient, started
from waltz_ray.client.application import Callbacks
from waltz_ray.client.bounds import Partitions
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.codecs import Codec
from waltz_ray.client.directory import Location, Whereabouts
from waltz_ray.client.engine import FeedKind
from waltz_ray.client.io_thread import IoThread
from waltz_ray.client.times import in_milliseconds
from waltz_ray.client.transport import Opening
from waltz_ray.config import ClientConfig, ServerConfig
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.cursor_store import CursorStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.errors import ClientClosed, InvalidInput, InvariantBroken, SpaceGone
from waltz_ray.protocol import trimming
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment, Owner, ServerInfo, assign
from waltz_ray.protocol.spaces import DEFAULT_SPACE, Space
from waltz_ray.testing.faults import FaultDice, Faults
from waltz_ray.testing.pipe import PipeEnd, connected_ends
from waltz_ray.testing.replica import MemoryReplica
from waltz_ray.testing.server import MemoryServer
from waltz_ray.testing.sessions import ClientSessions

__all__ = ["InMemoryCluster"]


class InMemoryCluster:
    """``with InMemoryCluster(partitions=4) as cluster: client = cluster.connect(callbacks=...)``; also ``async with``.

    ``faults`` may be replaced at any time; chance begins with ``seed``. ``faults_met`` counts what has gone wrong, by
    the names of ``Faults``. Close the clients before the cluster: what they have under way has no fate otherwise.
    Methods are for any thread but a future's callback; those that change something return when it is done.
    """

    def __init__(
        self,
        partitions: int = 1,
        servers: int = 1,
        faults: Faults | None = None,
        seed: int = 0,
        config: ServerConfig | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        """``clock``: the servers', which says when a transaction was appended. InvalidInput for less than one partition
        or server."""
        if partitions < 1 or servers < 1:
            raise InvalidInput(f"a cluster has at least one partition and server, not {partitions} and {servers}")
        self.partitions = partitions
        self._clock = clock
        self._server_ids = range(1, servers + 1)
        self._config = config or ServerConfig(retained_bytes=16 * 1024 * 1024)
        self._dice = FaultDice(faults or Faults(), seed)
        self._replica = MemoryReplica(partitions, self._now_ms)
        self._zookeeper = MemoryZooKeeperServer()
        self._suspended: set[int] = set()
        self._fatal: list[str] = []
        self._running: dict[int, tuple[MemoryServer, MemoryZooKeeper]] = {}
        self._numbers = itertools.count(1)
        self._assignment = Assignment()
        self._ids = itertools.count(1)
        self._cluster_key = ""  # made at the first start
        self._directories: dict[str, _Directory] = {}
        self._io: IoThread | None = None

    # ---- life

    def start(self) -> InMemoryCluster:
        """Begin to run; ``with`` does it. InvalidInput if it runs."""
        if self._io is not None:
            raise InvalidInput("this InMemoryCluster is running already; with ... as starts it, too")
        self._io = IoThread()
        self._sessions = ClientSessions(self._zookeeper, self._io)
        try:
            self._io.call(self._start())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End the cluster. InvariantBroken if a server has found a contradiction in itself: a bug of the log."""
        if self._io is not None:
            io, self._io = self._io, None
            io.stop(self._stop())
        if self._fatal:
            raise InvariantBroken(self._fatal[0])

    def __enter__(self) -> InMemoryCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> InMemoryCluster:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # ---- clients

    def connect(
        self,
        callbacks: Callbacks | None = None,
        config: ClientConfig | None = None,
        partitions: Partitions = None,
        feed: FeedKind | None = None,
        space: str = DEFAULT_SPACE,
        *,
        codec: Codec | None = None,
    ) -> WaltzClient:
        """A client of this cluster: the errors and arguments of ``waltz_ray.connect``, but those that find one."""
        directory = self._directory(space)
        try:
            return WaltzClient(directory, self._transport(), callbacks, config, partitions, feed, codec=codec)
        except BaseException:
            directory.close()
            raise

    async def connect_async(
        self,
        callbacks: Callbacks | None = None,
        config: ClientConfig | None = None,
        partitions: Partitions = None,
        feed: FeedKind | None = None,
        space: str = DEFAULT_SPACE,
        *,
        codec: Codec | None = None,
    ) -> AsyncWaltzClient:
        """A client for the loop that runs now, as ``waltz_ray.connect_async`` gives it."""
        directory = await asyncio.to_thread(self._directory, space)
        return await started(
            AsyncWaltzClient(directory, self._transport(), callbacks, config, partitions, feed, codec=codec)
        )

    def _transport(self) -> _Transport:
        return _Transport(self._started.loop, self._server_at, self._dice.delay_s)

    def _directory(self, space: str) -> _ClientDirectory:
        found: list[Space] = []
        self._do(lambda: found.append(self._store.spaces.get(space)))
        return _ClientDirectory(self._directories[space], found[0], self._sessions)

    # ---- spaces

    def create_space(self, name: str, partitions: int = 1, kind: str = "log") -> None:
        """Add a space, ready to be used: ``connect(space=name)``. InvalidInput as of ``waltz space create``."""
        self._do(lambda: self._create_space(name, partitions, kind))

    def delete_space(self, name: str) -> None:
        """Delete a space and its records; its clients are told SpaceGone. SpaceNotFound, SpaceGone, InvalidInput."""
        self._do(lambda: self._delete_space(name))

    # ---- what goes wrong

    @property
    def faults(self) -> Faults:
        """What goes wrong by chance; it may be replaced at any time."""
        return self._dice.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._dice.faults = faults

    @property
    def faults_met(self) -> Mapping[str, int]:
        """How often what has gone wrong, by the names of the fields of ``Faults``."""
        return dict(self._dice.done)

    def force(self, **counts: int) -> None:
        """The next so many messages with appends meet these faults: ``force(lock_failures=1, answers_lost=2)``."""
        self._dice.force(counts)

    @contextmanager
    def suspended(self, partition_id: int) -> Iterator[None]:
        """Meanwhile nothing is fed of a partition: clients with callbacks apply nothing and learn no fates of it."""
        self._hold(partition_id, held=True)
        try:
            yield
        finally:
            self._hold(partition_id, held=False)

    def expire_sessions(self) -> None:
        """The clients' sessions with ZooKeeper end: whoever has a cursor has lost it (CursorLost)."""
        self._sessions.expire()

    def drop_connections(self) -> None:
        """Every client loses its connections, with what is under way."""

        def drop() -> None:
            for server, _ in self._running.values():
                server.drop_connections()

        self._do(drop)

    def kill_server(self, server_id: int = 1) -> None:
        """Kill a server: it ends without a word and is started again: with nothing in its memory and new sessions."""
        self._checked(server_id)
        self._started.call(self._restart(server_id))

    def move(self, partition_id: int) -> None:
        """Move a partition to the next server, in a new generation. InvalidInput if there is one server only."""
        if len(self._server_ids) < 2:
            raise InvalidInput("there is one server, so a partition cannot move; InMemoryCluster(servers=2) has two")
        self._do(lambda: self._move(partition_id))

    # ---- what is given up

    def trim(self, partition_id: int, before_id: int, space: str = DEFAULT_SPACE) -> int:
        """Raise the trim mark of a space's partition to ``before_id``, as far as holds let; what it is now.

        The log lets go of it at once, in whole batches; as in a real cluster a server may have it in its memory still,
        and reads get it from there: with ``config=ServerConfig(retained_bytes=0)`` they get Trimmed. InvalidInput if
        the mark is above what has been committed.
        """
        marks: list[int] = []
        self._do(lambda: marks.append(self._trim(partition_id, before_id, space)))
        return marks[0]

    # ---- on the IO thread

    @property
    def _started(self) -> IoThread:
        if self._io is None:
            raise InvalidInput("the cluster is not running: use `with InMemoryCluster() as cluster`")
        return self._io

    def _do(self, call: Callable[[], object]) -> None:
        async def doing() -> None:
            call()

        self._started.call(doing())

    async def _start(self) -> None:
        self._client = self._zookeeper.client()
        self._store = ClusterStore(self._client, "memory")
        self._cluster_key = str(self._store.initialize(self.partitions, [0]).cluster_key)
        if DEFAULT_SPACE not in self._directories:
            self._directories[DEFAULT_SPACE] = _Directory(range(self.partitions), self._ids, self._cluster_key)
        for server_id in self._server_ids:
            await self._start_server(server_id)
        self._place()

    def _place(self) -> None:
        table = self._store.spaces.table()
        infos = {server_id: ServerInfo() for server_id in self._server_ids}
        self._assign(assign(table.partitions, infos, self._assignment, table.gone))

    def _create_space(self, name: str, partitions: int, kind: str) -> None:
        space = self._store.spaces.create(name, partitions, kind)
        self._store.spaces.finish(space.partitions.stop)
        self._replica.grow(space.partitions.stop)
        self._directories[name] = _Directory(space.partitions, self._ids, self._cluster_key)
        self._place()
        self._store.spaces.mark_ready(name)

    def _trim(self, partition_id: int, before_id: int, space: str) -> int:
        numbers = self._store.spaces.get(space).partitions
        if not 0 <= partition_id < len(numbers):
            raise InvalidInput(f"space {space!r} has no partition {partition_id}; it has 0 to {len(numbers) - 1}")
        number = numbers[partition_id]
        highest = trimming.highest_mark(self._replica.partitions[number].last_id)
        if before_id > highest:
            raise InvalidInput(f"partition {partition_id}: the trim mark can be {highest} at the most, not {before_id}")
        marks = self._store.trims.raise_marks({number: before_id})
        self._replica.trim(marks)
        return marks[number]

    def _now_ms(self) -> int:
        return in_milliseconds("clock", self._clock())

    def _delete_space(self, name: str) -> None:
        space = self._store.spaces.delete(name, name)
        self._place()
        for partition_id in space.partitions:
            self._replica.remove(partition_id)
        try:
            self._store.spaces.get(name)
        except SpaceGone as gone:
            self._directories[name].tell_gone(gone)

    async def _start_server(self, server_id: int) -> None:
        client = self._zookeeper.client()
        server = MemoryServer(
            server_id,
            ClusterStore(client, "memory"),
            self._config,
            self._fatal.append,
            Endpoint("memory", next(self._numbers)),
            self._replica,
            self._dice,
            self._suspended,
            self._now_ms,
        )
        self._running[server_id] = server, client
        await server.start()

    async def _restart(self, server_id: int) -> None:
        server, client = self._running.pop(server_id)
        self._tell()
        await server.end()
        client.close()
        await self._start_server(server_id)
        self._tell()

    async def _stop(self) -> None:
        for server, client in self._running.values():
            await server.close()
            client.close()
        self._running.clear()
        self._client.close()

    def _assign(self, assignment: Assignment) -> None:
        _, version = self._store.assignment()
        self._store.set_assignment(assignment, version)
        self._assignment = assignment
        self._tell()

    def _move(self, partition_id: int) -> None:
        owners = dict(self._assignment.owners)
        owner = owners.get(self._checked_partition(partition_id))
        if owner is None:
            raise InvalidInput(f"partition {partition_id} was deleted with its space")
        owners[partition_id] = Owner(owner.server_id % len(self._server_ids) + 1, owner.generation + 1)
        self._assign(Assignment(owners, self._assignment.unassigned))

    def _tell(self) -> None:
        for directory in self._directories.values():
            directory.tell(
                {
                    partition_id: Location(
                        owner.server_id,
                        owner.generation,
                        self._running[owner.server_id][0].endpoint if owner.server_id in self._running else None,
                        number,
                    )
                    for partition_id, number in enumerate(directory.numbers)
                    if (owner := self._assignment.owner(number)) is not None
                }
            )

    def _hold(self, partition_id: int, held: bool) -> None:
        self._checked_partition(partition_id)

        def hold() -> None:
            (self._suspended.add if held else self._suspended.discard)(partition_id)
            for server, _ in self._running.values():
                server.feed_held(partition_id, held)

        self._do(hold)

    def _server_at(self, endpoint: Endpoint) -> MemoryServer | None:
        return next((server for server, _ in self._running.values() if server.endpoint == endpoint), None)

    def _checked(self, server_id: int) -> None:
        if server_id not in self._server_ids:
            raise InvalidInput(f"there is no server {server_id}; there are {list(self._server_ids)}")

    def _checked_partition(self, partition_id: int) -> int:
        count = self._assignment.proven_partitions()
        if not 0 <= partition_id < count:
            raise InvalidInput(f"there is no partition {partition_id}; there are 0 to {count - 1}")
        return partition_id


class _Transport:
    """``client.transport.Transport`` to servers in ``loop``."""

    shared: Hashable | None = None

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        server_at: Callable[[Endpoint], MemoryServer | None],
        delay_s: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._server_at = server_at
        self._delay_s = delay_s

    async def connect(self, location: Location, stream: Opening) -> None:
        if location.endpoint is None:
            raise ConnectionError(f"server {location.server_id} is not running")
        ours, theirs = connected_ends(asyncio.get_running_loop(), self._loop, self._delay_s)
        try:
            self._loop.call_soon_threadsafe(self._accept, location.endpoint, theirs)
        except RuntimeError as error:
            raise ConnectionError("the in-memory cluster has been closed") from error
        ours.begin(stream)

    def _accept(self, endpoint: Endpoint, end: PipeEnd) -> None:
        server = self._server_at(endpoint)
        if server is None:
            end.abort()
        else:
            end.begin(server.new_connection())


class _Directory:
    """What all clients of a space are told. ``numbers``: its partitions' in the cluster."""

    def __init__(self, numbers: range, ids: Iterator[int], cluster_key: str) -> None:
        self.numbers = numbers
        self.partitions = len(numbers)
        self.cluster_key = cluster_key
        self._lock = threading.Lock()  # over the calls, too: nobody is told an older view after a newer one
        self._ids = ids
        self._locations: Whereabouts = {}
        self._watchers: dict[object, Callable[[Whereabouts], None]] = {}

    def next_client_id(self) -> int:
        with self._lock:
            return next(self._ids)

    def watch(self, callback: Callable[[Whereabouts], None]) -> Callable[[], None]:
        key = object()
        with self._lock:
            self._watchers[key] = callback
            callback(self._locations)

        def cancel() -> None:
            with self._lock:
                self._watchers.pop(key, None)

        return cancel

    def tell(self, locations: Mapping[int, Location]) -> None:
        """Tell everybody that locations have changed."""
        if not isinstance(self._locations, SpaceGone):
            self._tell(locations)

    def tell_gone(self, error: SpaceGone) -> None:
        """Tell everybody that there is nothing any more."""
        self._tell(error)

    def _tell(self, locations: Whereabouts) -> None:
        with self._lock:
            self._locations = locations
            for callback in self._watchers.values():
                callback(locations)


class _ClientDirectory:
    """``client.directory.Directory`` of a space, for one client: with a session of its own, if it has cursors."""

    def __init__(self, shared: _Directory, space: Space, sessions: ClientSessions) -> None:
        self._shared, self._space, self._sessions = shared, space, sessions
        self._lock = threading.Lock()
        self._session: ZooKeeper | None = None
        self._cursors: CursorStore | None = None
        self.partitions, self.cluster_key = shared.partitions, shared.cluster_key
        self.next_client_id, self.watch = shared.next_client_id, shared.watch

    @property
    def cursors(self) -> CursorStore:
        with self._lock:
            if self._cursors is None:
                session = self._session = self._sessions.begin()
                identity = f"session {session.session_id}"
                self._cursors = CursorStore(session, "memory", self._space, identity)
            return self._cursors

    def close(self) -> None:
        with self._lock:
            if self._session is None:
                return
            try:
                self._session.close()
            except ClientClosed:
                return  # the cluster has been closed before, with all sessions
