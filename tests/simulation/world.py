"""The whole cluster in one process under one seed.

A *safety phase*, in which the nemesis does what it likes, is followed by a *liveness phase*: everything is healed, and
within bounded simulated time every transaction must have its fate and all replicas identical bytes. Then the checkers
look at everything that was observed.
"""

from __future__ import annotations

import gc
import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from unittest import mock

from tests.simulation.changes import CHANGES, Changes
from tests.simulation.checkers import CHECKERS, Outcome
from tests.simulation.clients import SHARES, SimClient
from tests.simulation.growth import GROWS, Growth, is_gone
from tests.simulation.history import History, Logical, Violation
from tests.simulation.kv import KV, KvPart
from tests.simulation.kv_actors import kv_conditions
from tests.simulation.loop import ProcessLoop, Scheduler, note
from tests.simulation.membership import MOST_MORE, SERVERS, Membership
from tests.simulation.moves import LARGE, MOVES, Moving, replicas_at_first
from tests.simulation.nemesis import Nemesis
from tests.simulation.network import Network
from tests.simulation.operators import REPLICATION, SETS, Operator
from tests.simulation.original_client import OriginalClient
from tests.simulation.process import CLUSTER, Process
from tests.simulation.replica import DIRECTORY, SimReplica
from tests.simulation.servers import SimManager, SimServer
from tests.simulation.story import Story, StoryHandler
from tests.simulation.threads import simulated_threads
from tests.simulation.topic_actors import topic_conditions
from tests.simulation.topics import TOPICS, TopicPart
from tests.simulation.trimming import TRIMS, Trimming
from tests.simulation.upkeep import server_config, storage_config
from tests.simulation.zookeeper import SimZooKeeperServer
from waltz_ray.config import ServerConfig, StorageConfig
from waltz_ray.coordination.cluster_store import ClusterStore, Watches
from waltz_ray.coordination.space_store import SpaceStore
from waltz_ray.coordination.trim_store import TrimStore
from waltz_ray.errors import Corruption
from waltz_ray.protocol.checksum import crc32
from waltz_ray.protocol.messages.client import FeedMode
from waltz_ray.protocol.mounting import Mounting
from waltz_ray.protocol.partition.machine import Partition
from waltz_ray.protocol.partition.reign import Reign
from waltz_ray.protocol.partition.state import Stage
from waltz_ray.protocol.session import Session
from waltz_ray.protocol.session_types import SessionEffect
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.time_lookup import TimeLookup

__all__ = ["Result", "World", "run"]

EPOCH_MS = 1_700_000_000_000  # when the simulated time begins
_LIVENESS_S = 60.0


@dataclass(frozen=True)
class Result:
    """Of one history."""

    seed: int
    digest: str
    simulated_s: float
    commits: int
    faults: dict[str, int]
    counts: dict[str, int]


class World:
    """See the module's docstring."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.chance = random
        """Of the threads and pauses of clients and servers, while they run."""
        self.scheduler = Scheduler(Random(random.getrandbits(64)))
        self.story = Story(self.scheduler)
        self.partitions = random.choice([1, 1, 2, 3])
        self.record_bytes = random.choice([0, 0, 160])
        """Data of every transaction is filled up to so much: records of one size, so that old bytes fit new places."""
        if seed & SETS:
            self.partitions = 32 if seed & LARGE else Random(seed + 5).choice([2, 3, 5])
        self.history = History(self.partitions)
        self.network = Network(self.scheduler, Random(random.getrandbits(64)))
        self.zookeeper = SimZooKeeperServer(self.scheduler, Random(random.getrandbits(64)), self.history)
        self.loops: list[ProcessLoop] = []
        self.safety_s = random.uniform(5.0, 14.0)
        self._stop_logging: Callable[[], None] = lambda: None
        replicas = random.choice([3, 3, 3, 5])
        if seed & SETS:
            replicas = 9 if seed & LARGE else Random(seed + 6).choice([5, 6, 7, 9])
        self.operator_store = self._initialize(replicas)
        self.replicas = [SimReplica(self, n, self._storage_config()) for n in range(replicas)]
        servers = random.choice([1, 2, 2, 3])
        config = self._server_config()
        self.history.checkpoint_interval = config.checkpoint_interval
        most = servers + (MOST_MORE if seed & SERVERS else 0)
        self.servers = [SimServer(self, n, config) for n in range(most)]
        self.zombies: list[SimServer] = []
        self.manager = SimManager(self, servers)
        modes = [FeedMode.RECORDS, FeedMode.RECORDS, FeedMode.HEADERS, FeedMode.OWN]
        if seed & SHARES:
            modes = [FeedMode.OWN, FeedMode.OWN, FeedMode.OWN, FeedMode.RECORDS]
        count = random.choice([2, 2, 3, 4, 8])
        pace_s = count * random.uniform(0.03, 0.12) * (6 if seed & (KV | TOPICS) else 1)  # there are others, too
        self.clients: list[SimClient | OriginalClient] = [
            OriginalClient(self, n, Random(random.getrandbits(64)), pace_s)
            if n and random.random() < 0.2
            else SimClient(self, n, random.choice(modes), Random(random.getrandbits(64)), pace_s)
            for n in range(count)
        ]
        self.growth = Growth(self, Random(seed + 1)) if seed & GROWS else None
        """Who adds and deletes spaces, where that is done at all."""
        self.trimming = Trimming(self, Random(seed + 2)) if seed & TRIMS else None
        """Who gives records up, where that is done at all."""
        self.kv = KvPart(self, Random(seed + 3)) if seed & KV else None
        """The key/value layer, where there is one."""
        self.topics = TopicPart(self, Random(seed + 4)) if seed & TOPICS else None
        """Topics, where there are any."""
        self.moving = Moving(self, Random(seed + 8)) if seed & MOVES else None
        """Who has replica sets moved by the manager, where that is done at all."""
        self.membership = Membership(self, Random(seed + 9), servers) if seed & SERVERS else None
        self.changes = Changes(self, Random(seed + 10)) if seed & CHANGES else None
        """Who adds, drains and removes servers, where that is done at all."""
        self.operator = Operator(self, Random(random.getrandbits(64)))
        self.nemesis = Nemesis(self, Random(random.getrandbits(64)), self.safety_s)

    def _initialize(self, replicas: int) -> ClusterStore:
        operator = ProcessLoop(self.scheduler, self.network, "operator")  # type: ignore[abstract]
        self.loops.append(operator)
        store = ClusterStore(self.zookeeper.connect(operator), CLUSTER)
        at_first = range(replicas_at_first(self.seed, replicas))
        store.initialize(self.partitions, at_first, None, REPLICATION if self.seed & SETS else 0)
        return store

    def _storage_config(self) -> StorageConfig:
        choose = self.random.choice
        config = StorageConfig(
            segment_size_bytes=choose([300, 2_000, 8_000, 100_000]),
            index_flush_interval=choose([1, 3, 20]),
            preallocate_bytes=choose([0, 0, 1024, 16_384]),
            journal_bytes=choose([0, 2_500, 20_000]),
            journal_partitions=choose([1, 1, 2]),
            repair=False,
        )
        return storage_config(config, self.seed)

    def _server_config(self) -> ServerConfig:
        choose = self.random.choice
        config = ServerConfig(
            lock_table_size=choose([4, 64, 30_000]),
            lock_table_probes=choose([1, 2, 3]),
            checkpoint_interval=choose([20, 100, 250_000]),
            retained_bytes=choose([0, 10_000, 1 << 20]),
            append_queue_bytes=choose([1_500, 20_000, 1 << 20]),
            replica_lag_bytes=choose([5_000, 1 << 20]),
            join_grace_ms=choose([0, 50]),
            replica_timeout_ms=choose([300, 1_000, 3_000]),
            max_frame_bytes=choose([60_000, 1 << 20]),
            zookeeper_session_ms=choose([1_000, 3_000]),
            retention_interval_ms=200 if self.seed & TRIMS else 0,
        )
        return server_config(config, self.seed)

    def now_ms(self) -> int:
        """What a right wall clock shows."""
        return EPOCH_MS + int(self.scheduler.now * 1000)

    def processes(self) -> list[Process]:
        everybody: list[Process] = [*self.replicas, *self.servers, self.manager, *self.clients]
        if self.kv is not None:
            everybody += self.kv.processes()
        if self.topics is not None:
            everybody += self.topics.processes()
        return [process for process in everybody if not process.retired]

    def living(self) -> list[int]:
        """The partitions, but for those of deleted spaces."""
        if self.growth is not None:
            return self.growth.living
        return [*range(self.partitions), *self._of_layers()]

    def _of_layers(self) -> list[int]:
        """The partitions of spaces of other kinds than logs."""
        return [partition for layer in (self.kv, self.topics) if layer is not None for partition in layer.partitions]

    def _serving(self) -> list[SimClient]:
        """The clients whose space is there."""
        clients = [client for client in self.clients if isinstance(client, SimClient) and client.client is not None]
        return [client for client in clients if client.space is None or not is_gone(self, client.space)]

    def segments(self, replica: SimReplica, partition_id: int) -> dict[int, str]:
        """First ID -> path of the replica's segment files."""
        folder = f"{DIRECTORY}/{partition_id}/"
        paths = [path for path in replica.disk.files() if path.startswith(folder) and path.endswith(".seg")]
        return {int(path.removeprefix(folder).removesuffix(".seg")): path for path in paths}

    # ---- a history ----------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Violation if a rule was broken; its notes tell the story."""
        with _conditions(self):
            try:
                self._run()
            except Violation:
                raise
            except Exception as error:
                raise Violation("crash", f"{type(error).__name__}: {error}") from error
            finally:
                for replica in self.replicas:
                    replica.threads.end()
                for loop in self.loops:
                    loop.bury()
        commits = sum(len(log) for log in self.history.committed)
        faults, counts = dict(self.history.faults), dict(self.history.counts)
        return Result(self.seed, self.story.digest, self.scheduler.now, commits, faults, counts)

    def _run(self) -> None:
        for process in self.processes():
            self.scheduler.after(self.random.uniform(0.0, 0.3), process.start)
        if self.trimming is not None:
            self.trimming.begin()
        self.nemesis.begin()
        self._until(self.safety_s)
        self.nemesis.heal()
        for client in self.clients:
            client.working = False
        if self.kv is not None:
            self.kv.heal()
        if self.topics is not None:
            self.topics.heal()
        self.operator.settle_sets()
        deadline = self.scheduler.now + _LIVENESS_S
        self._wait("everything runs", deadline, lambda: all(p.up and not p.leaves for p in self.processes()))
        self._wait("replicas serve", deadline, self._all_serve)
        if self.growth is not None:
            self._wait("every space is ready", deadline, self.growth.spaces_ready)
        self._scrub()
        self._wait("an owner for every partition", deadline, self._all_ready)
        self._wait("a new client is served by every partition", deadline, self._newcomer())
        if self.kv is not None:
            self._wait("every call of the key/value layer has ended", deadline, self.kv.quiet)
            self._wait("every item is read", deadline, self.kv.all_read)
        if self.topics is not None:
            self._wait("every message has its fate", deadline, self.topics.quiet)
            self._wait("of each group each partition is had by one", deadline, self.topics.shared)
            self._wait("all messages are consumed", deadline, self.topics.all_consumed)
        if self.moving is not None:
            self._wait("every partition is on the replicas that are wanted", deadline, self.moving.reached)
        if self.membership is not None:
            self._wait("every partition is with a server that stays", deadline, self.membership.reached)
        sound = False
        while not sound:
            self._last_words()
            self._wait("every transaction has its fate", deadline, lambda: not self.history.pending())
            self._wait("all replicas are members and alike", deadline, self._converged)
            sound = self._scrub()  # a repair begins at the first damage; further rot below it was not met so far
        self._wait("every subscriber has the whole log", deadline, self._all_fed)
        if self.growth is not None:
            self._wait("the files of deleted spaces are removed", deadline, self.growth.files_removed)
            for partition_id in self.growth.gone:
                self.history.forget(partition_id)
        if self.trimming is not None:
            dropped = self.trimming.dropped
            self._wait("what was trimmed is dropped", deadline, lambda: dropped() and self._converged())
            self.trimming.check()
        if self.moving is not None:
            self.moving.check()
        # Layers' actors may have appended since: what is on its way to a replica is no difference.
        self._wait("all replicas are alike at one moment", deadline, self._converged)
        if self.kv is not None and self.kv.library:
            seen = self.kv.all_seen
            self._wait("who watches has what there is", deadline, lambda: self._converged() and seen())
        living, count = set(self.living()), len(self.history.committed)
        nothing: dict[int, list[bytes]] = {0: []}
        every = [self.read_logs(p) if p in living else nothing for p in range(count)]
        times = [self._times(p) if p in living else {} for p in range(count)]
        outcome = Outcome(self.history, every, times, self.now_ms(), self._of_layers())
        for check in CHECKERS:
            check(outcome)
        if self.kv is not None:
            self.kv.count()
            self.kv.history.check()
        if self.topics is not None:
            self.topics.check(outcome.log)
        for logs in outcome.logs:
            for log in logs.values():
                self.story.mix(b"".join(log))

    def _until(self, moment: float, done: Callable[[], bool] | None = None) -> None:
        def stop() -> bool:
            return self.history.violation is not None or (done is not None and done())

        self.scheduler.run(moment, stop)
        if self.history.violation is not None:
            raise self.history.violation

    def _wait(self, what: str, deadline: float, done: Callable[[], bool]) -> None:
        met = False

        def ask() -> bool:
            nonlocal met
            self.operator.replace_lost_replicas()
            met = done()
            return met

        self._until(deadline, ask)
        if not met:
            raise Violation("liveness", f"not within {_LIVENESS_S:.0f} s after healing: {what}: {self._state()}")
        self.story.tell("world", what)

    def _newcomer(self) -> Callable[[], bool]:
        """Whether a client that was never here before has mounted every partition and committed in it."""
        mode = self.random.choice([FeedMode.RECORDS, FeedMode.OWN, FeedMode.OWN])
        client = SimClient(self, len(self.clients), mode, Random(self.random.getrandbits(64)), 1.0)
        client.working = False
        client.config = replace(client.config, mount_timeout_ms=int(2000 * _LIVENESS_S))
        self.clients.append(client)
        client.start()
        asked: dict[int, Logical] = {}

        def served() -> bool:
            if client.client is None:
                return False
            for partition_id in range(self.partitions):
                logical = asked.get(partition_id)
                if logical is None or (logical.fate is not None and logical.fate.kind != "committed"):
                    asked[partition_id] = client.last_word(partition_id)
            return all(logical.fate is not None for logical in asked.values())

        return served

    def _all_serve(self) -> bool:
        return all(replica.store is not None for replica in self.replicas if not replica.retired)

    def _owner(self, partition_id: int) -> Partition | None:
        """The machine of the one server that has the partition open."""
        machines = [s.server.machine_of(partition_id) for s in self.servers if s.server is not None and s.up]
        ready = [m for m in machines if m is not None and m.ready and m.stage is Stage.OPEN and m.session is not None]
        return ready[0] if len(ready) == 1 else None

    def _all_ready(self) -> bool:
        return all(self._owner(p) is not None for p in self.living())

    def _converged(self) -> bool:
        for partition_id in self.living():
            owner = self._owner(partition_id)
            if owner is None or owner.session is None:
                return False
            assigned = self.operator.assigned(partition_id)
            if owner.session.roster.replicas.keys() != assigned:
                if self.moving is None:  # else its server is told
                    self.operator.make_them_notice(partition_id, owner.session.members)
                return False
            if set(owner.session.members) != assigned:
                return False
            if owner.next_id != owner.high_water_mark + 1:
                return False
            for replica in self._holders(partition_id):
                log = replica.log(partition_id)
                if log is None or log.damaged is not None or log.last_id != owner.high_water_mark:
                    return False
                if log.rotten:
                    return False
        return True

    def _holders(self, partition_id: int) -> list[SimReplica]:
        """The replicas that the partition is assigned to."""
        assigned = self.operator.assigned(partition_id)
        return [replica for replica in self.replicas if replica.replica_id in assigned]

    def _all_fed(self) -> bool:
        living = set(self.living())
        for client in self.clients:
            mine = range(self.partitions)
            if isinstance(client, SimClient):
                mine = range(client.first, client.first + client.count)
            for partition_id in mine:
                if partition_id not in living:
                    continue
                owner = self._owner(partition_id)
                if owner is None:
                    return False
                if isinstance(client, OriginalClient):
                    mark = client.mark if client.partition_id == partition_id else owner.high_water_mark
                elif client.mode is FeedMode.OWN:
                    continue
                else:
                    mark = client.application.marks[partition_id - client.first]
                if mark != owner.high_water_mark:
                    return False
        return True

    def _last_words(self) -> None:
        for client in self._serving():
            for partition_id in range(client.count):
                client.last_word(partition_id)

    def _scrub(self) -> bool:
        """Read everything once, so that rot nobody has met is known and can be repaired. False if there was any."""
        sound = True
        for partition_id in self.living():
            for replica in self._holders(partition_id):
                sound &= self.look_at(replica, partition_id)
        return sound

    def look_at(self, replica: SimReplica, partition_id: int) -> bool:
        """Read all records of a replica's partition. False if there is damage that was not known before."""
        replica.threads.finish()
        log = replica.log(partition_id)
        if log is None or log.damaged is not None:
            return True
        try:
            _records_of(log)
        except Corruption as error:
            replica.tell(f"scrub: {error}")
            return False
        return True

    def read_logs(self, partition_id: int) -> dict[int, list[bytes]]:
        """The records that each of its replicas has, and has had."""
        found: dict[int, list[bytes]] = {}
        first_ids: dict[int, int] = {}
        there: dict[int, bytes] = {}
        for replica in self._holders(partition_id):
            replica.threads.finish()
            log = replica.log(partition_id)
            assert log is not None
            found[replica.replica_id], first_ids[replica.replica_id] = _records_of(log), log.first_id
            there.update(enumerate(found[replica.replica_id], log.first_id))
        if self.trimming is not None:
            for replica_id, first_id in first_ids.items():
                found[replica_id] = self.trimming.gone(partition_id, first_id, there) + found[replica_id]
        if self.history.violation is not None:
            raise self.history.violation
        return found

    def _times(self, partition_id: int) -> dict[int, TimeLookup]:
        found = {}
        for replica in self._holders(partition_id):
            replica.threads.finish()
            log = replica.log(partition_id)
            assert log is not None
            if not replica.disk.rotten_in(partition_id):  # no checksum covers a segment's creation time
                found[replica.replica_id] = log.times()
        return found

    def _state(self) -> str:
        lines = [f"{len(self.history.pending())} pending, e.g. {[p.uid for p in self.history.pending()[:5]]}"]
        for process in self.processes():
            if not process.up or process.paused:
                lines.append(f"{process.host}: up {process.up}, paused {process.paused}")
        for server in self.servers:
            if server.server is not None and server.up:
                lines.append(f"{server.host}: {server.server.status()}")
        for replica in self.replicas:
            for partition_id in self.living():
                log = replica.log(partition_id)
                if log is None:
                    lines.append(f"{replica.host}: no store")
                else:
                    assigned = "" if replica in self._holders(partition_id) else "not assigned, "
                    lines.append(
                        f"{replica.host} p{partition_id}: {assigned}s{log.session_id} {log.last_id} "
                        f"{log.damaged} {log.rotten}"
                    )
        for client in self.clients:
            if isinstance(client, SimClient):
                lines.append(f"{client.host} ({client.mode.name}): {client.application.marks}")
            else:
                lines.append(f"{client.host}: {client.mark} of p{client.partition_id}")
        if self.moving is not None:
            lines.append(self.moving.state())
        if self.membership is not None:
            lines.append(self.membership.state())
        if self.kv is not None:
            lines.append(self.kv.state())
        if self.topics is not None:
            lines.append(self.topics.state())
        return "\n".join(lines)


def _records_of(log: PartitionLog) -> list[bytes]:
    records: list[bytes] = []
    while (next_id := log.first_id + len(records)) <= log.last_id:
        batch = log.read(next_id, log.last_id + 1, 1 << 20)
        offsets = batch.offsets.tolist()
        raw = bytes(batch.records)
        records += [raw[start:end] for start, end in itertools.pairwise(offsets)]
    return records


@contextmanager
def _conditions(world: World) -> Iterator[None]:
    """Simulated threads, observed commits, log lines into the story, no collection of garbage at random moments."""
    logger = logging.getLogger("waltz_ray")
    handler = StoryHandler(world.story, world.scheduler)
    level, propagate = logger.level, logger.propagate
    collecting = gc.isenabled()
    with ExitStack() as stack:
        world.chance = Random(world.random.getrandbits(64))
        stack.enter_context(simulated_threads(world.scheduler, world.chance))
        stack.enter_context(mock.patch.object(Partition, "_on_committed", _observed(world)))
        stack.enter_context(mock.patch.object(Reign, "taken", _taking_observed(world)))
        stack.enter_context(mock.patch.object(Session, "_write", _joining_observed(world)))
        stack.enter_context(mock.patch.object(Mounting, "broken", _looked_at_closely()))
        if world.growth is None and world.trimming is None and world.kv is None and world.topics is None:
            stack.enter_context(mock.patch.object(SpaceStore, "watch", _unwatched))
        if world.trimming is None:
            stack.enter_context(mock.patch.object(TrimStore, "watch", _unwatched))
        else:
            stack.enter_context(mock.patch.object(PartitionLog, "_drop", _dropping_observed(world, world.trimming)))
        if world.kv is not None:
            stack.enter_context(kv_conditions(world.kv))
        if world.topics is not None:
            stack.enter_context(topic_conditions(world.topics))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        gc.disable()
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
            if collecting:
                gc.enable()


def _unwatched(self: object, callback: object) -> Watches:
    """``SpaceStore.watch``, or ``TrimStore``'s, where there is nothing to be told."""
    return Watches([])


def _observed(world: World) -> Callable[[Partition, int], None]:
    """``Partition._on_committed`` that also tells the history what has been committed."""
    original = Partition._on_committed

    def on_committed(self: Partition, high_water_mark: int) -> None:
        log = self.state.log
        assert log is not None
        assert world.scheduler.current is not None
        first_id = max(log.high_water_mark + 1, log.retained.first_id)
        for batch in log.retained.between(first_id, high_water_mark + 1) if first_id <= high_water_mark else []:
            offsets, raw = batch.offsets.tolist(), bytes(batch.records)
            for index in range(len(batch)):
                record = raw[offsets[index] : offsets[index + 1]]
                if world.changes is not None and crc32(record[:-4]).to_bytes(4, "big") != record[-4:]:
                    continue  # it has changed since it was sent, and nobody takes it for what it was
                who = world.scheduler.current.name
                world.history.server_committed(who, self.partition_id, batch.first_id + index, record)
        original(self, high_water_mark)

    return on_committed


def _taking_observed(world: World) -> Callable[[Reign, int], list[SessionEffect]]:
    """``Reign.taken`` that also tells the history who believes to have which session."""
    original = Reign.taken

    def taken(self: Reign, version: int) -> list[SessionEffect]:
        assert self._taking is not None
        assert world.scheduler.current is not None
        partition_id, session_id = self._state.partition_id, self._taking[0].session_id
        world.history.taken(world.scheduler.current.name, partition_id, session_id)
        return original(self, version)

    return taken


def _joining_observed(world: World) -> Callable[[Session, frozenset[int]], None]:
    """``Session._write`` that also tells the history who is entered as a member with less than a member has."""
    original = Session._write

    def write(self: Session, joined: frozenset[int]) -> None:
        assert self.low_water_mark is not None
        for replica_id in sorted(joined):
            log = world.replicas[replica_id].log(self.partition_id)
            # One that a higher session has fenced may have been cut since; the write is going to fail.
            if log is None or log.session_id != self.session_id or log.damaged is not None:
                continue
            if log.synced_id < self.low_water_mark:
                where = f"partition {self.partition_id}: session {self.session_id} begins at {self.low_water_mark}"
                world.history.blame("members", f"{where}, replica {replica_id} joins it with {log.synced_id}")
        original(self, joined)

    return write


def _dropping_observed(world: World, trimming: Trimming) -> Callable[[PartitionLog, int], None]:
    """``PartitionLog._drop`` whose records are kept for the checkers."""
    original = PartitionLog._drop

    def drop(self: PartitionLog, first_id: int) -> None:
        [replica] = [each for each in world.replicas if each.store is not None and each.log(self.partition_id) is self]
        trimming.keep(replica, self.partition_id, self.first_id, first_id)
        original(self, first_id)

    return drop


def _looked_at_closely() -> Callable[[Mounting[Any]], str | None]:
    """``Mounting.broken`` with what costs too much in production."""
    original = Mounting.broken

    def broken(self: Mounting[Any]) -> str | None:
        return original(self) or self.monitor.broken()

    return broken


def run(seed: int) -> Result:
    """The history of ``seed``; Violation with the story as a note."""
    world = World(seed)
    try:
        return world.run()
    except Violation as violation:
        note(violation, f"seed {seed:#x}\n{world.story.text()}")
        raise
    finally:
        gc.collect()
