"""A storage replica: the real service over the real store on a faulty disk, behind a simulated endpoint.

The endpoint is the one stand-in: ``actors.replica_endpoint`` blocks in threads. The contract is the same: a turn is
everything that has arrived while the disk was busy, it is handled in one call, one turn of a connection at a time, and
its answers leave when the disk is done. Turns of different connections interleave at the disk and at locks
(``disk_threads.py``). A failed sync ends the process. Power can fail before any single call that changes the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, TypeGuard

from tests.simulation.disk_threads import Afterwards, DiskThreads, GatedDisk, MayStop, Pace
from tests.simulation.process import Process
from tests.simulation.replica_connection import Connection
from tests.simulation.replica_turns import Copier, Turn
from tests.simulation.sim_disk import DIRECTORY, SimDisk
from tests.simulation.upkeep import SCRUBS, SimUpkeep
from tests.storage.faulty_disk import Crashed, Survival
from waltz_ray.actors.own_sets import OwnSets
from waltz_ray.config import StorageConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import (
    ControlFileMissing,
    CoordinationError,
    DiskFull,
    NoNode,
    OutOfResources,
    SyncFailed,
    ZooKeeperUnreachable,
)
from waltz_ray.protocol.ids import NO_SESSION, NO_TRANSACTION, Endpoint
from waltz_ray.protocol.messages.replica import (
    Appended,
    Begun,
    Open,
    Read,
    RefusalCode,
    Refused,
    ReplicaReply,
    StateReply,
    Truncated,
)
from waltz_ray.protocol.placement import Assignment
from waltz_ray.protocol.spaces import SpaceTable
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.store import ReplicaStore

if TYPE_CHECKING:
    from tests.simulation.moves import Moving
    from tests.simulation.world import World

__all__ = ["DIRECTORY", "SimReplica"]

_RETRY_S, _REFUSED_RETRY_S = 0.2, 2.0
_LOOKS = 8
_TRIM_S = 0.3
_NORMAL, _ABANDONED = Pace(), Pace((0.005, 0.5), (0.005, 0.5))
_COPIES, _COPIES_NEWEST = Pace((1e-4, 0.02), (1e-4, 0.02)), Pace(None, (0.005, 0.1))
_COPIED = Pace((1e-3, 0.03), (1e-3, 0.03))


class SimReplica(Process):
    """Replica ``replica_id``; its disk lasts, its processes do not."""

    def __init__(self, world: World, replica_id: int, config: StorageConfig) -> None:
        super().__init__(world, f"replica-{replica_id}", session_s=3.0)
        self.replica_id = replica_id
        self.config = config
        self.random = Random(world.random.getrandbits(64))
        self.disk = SimDisk(world.random.getrandbits(32), world.now_ms)
        self.store: ReplicaStore | None = None
        self.service: ReplicaService | None = None
        self._recovering: ReplicaStore | None = None
        self._upkeep: SimUpkeep | None = None
        self.may_stop = MayStop.drawn(self.random)
        self.threads = self._new_threads()
        self._turns: dict[Turn, None] = {}  # that are being handled
        self._numbers = itertools.count()
        self._damaged: set[int] = set()  # partitions that are known to be
        self._looked_at = Counter[tuple[int, int]]()
        self.slow_until_s = 0.0
        self.acknowledged: dict[int, int] = {}
        """Per partition the last ID it has answered for and was not told to cut since: durable, whatever happens."""
        self.delays_truncate = False
        """The next order to truncate is met late, after its connection was lost."""
        self.changes_appends = 0
        """So many of the next appends arrive changed (``changes.py``)."""
        self.copied, self.late, self.abandoned = (
            self.random.choice(shares) if self.may_stop.chance else 0.0
            for shares in ([0.02, 0.02, 0.3], [0.0, 0.05, 0.2], [0.0, 0.002, 0.006])
        )
        """How often somebody copies from a partition while something else is done with it; how often a connection's
        thread comes late to what has arrived, so that more of it is one turn; and how often the connection is lost
        while a turn is handled, which then takes its time."""
        self.lost_files = False
        """It has told a server so, since it was replaced last."""

    def happens(self, share: float) -> bool:
        """Not after the world was healed."""
        return share > 0.0 and not self.may_stop.calm and self.random.random() < share

    def disk_delay_s(self) -> float:
        if self.world.scheduler.now < self.slow_until_s:
            return self.random.uniform(0.05, 0.6)
        return self.random.uniform(5e-5, 2e-3)

    def log(self, partition_id: int) -> PartitionLog | None:
        """The partition's log while the process is up and serves."""
        if not self.up or self.store is None:
            return None
        if self.world.growth is not None:  # one that is not open yet may have to wait for a growth
            known = self.store._partitions.get(partition_id)
            return None if partition_id in self.store.removed else known
        return self.store.partition(partition_id)

    def removed(self, partition_id: int) -> bool:
        """Whether it knows that the partition's space is gone, and has none of its files."""
        known = self.store is not None and partition_id in self.store.removed
        folder = f"{DIRECTORY}/{partition_id}/"
        return known and [path for path in self.disk.files() if path.startswith(folder)] == [f"{folder}removed"]

    # ---- life ---------------------------------------------------------------------------------------------

    def _new_threads(self) -> DiskThreads:
        return DiskThreads(self.loop, self.random, self.may_stop, self.disk_delay_s)

    def start(self) -> None:
        store = self.begin()
        self.threads = self._new_threads()
        self._damaged.clear()
        self.spawn(self._start(store))

    async def _start(self, cluster: ClusterStore) -> None:
        listener = None
        while True:
            try:
                if self.store is None:
                    self._recovering = self._recovering or self.open_store(cluster)
                    self._recover(self._recovering)
                    self.store, self._recovering = self._recovering, None
                    self.service = ReplicaService(self.store)
                    if self.world.seed & SCRUBS:
                        self._upkeep = SimUpkeep(self, self.store)
                if listener is None:
                    listener = await self.loop.create_server(lambda: Connection(self), self.host, 0)
                endpoint = Endpoint(*listener.sockets[0].getsockname())
                await self.loop.run_in_executor(
                    None, cluster.announce_replica, self.replica_id, endpoint, f"{self.host}.{self.life}"
                )
            except ControlFileMissing as error:
                self.tell(f"refused: {error}")
                await asyncio.sleep(_REFUSED_RETRY_S)
            except (CoordinationError, DiskFull) as error:
                self.tell(f"cannot start yet: {error}")
                await asyncio.sleep(_RETRY_S)
            except Crashed:
                self.lose_power(self.survival())
                return
            except SyncFailed as error:
                self.fatal(error)
                return
            else:
                self.tell(f"serves at {endpoint}")
                if self.world.growth is not None:
                    self._follow(cluster)
                if self.world.trimming is not None:
                    self._keep_trimming(cluster)
                if self.world.moving is not None:
                    self._keep_sets(cluster, self.world.moving)
                return

    def open_store(self, cluster: ClusterStore) -> ReplicaStore:
        """``actors.own_storage.open_storage``, without the modules that import Ray."""
        info = cluster.info()
        disk = GatedDisk(self.disk, self.threads)
        try:
            store = ReplicaStore.open(disk, DIRECTORY, info.cluster_key, self.config)
        except ControlFileMissing as error:
            if self._has_joined(cluster):
                raise ControlFileMissing(f"{error}; it has joined sessions, so it must be replaced") from error
            store = ReplicaStore.create(disk, DIRECTORY, info.cluster_key, info.partitions, self.config)
        return store

    def _has_joined(self, cluster: ClusterStore) -> bool:
        for p in cluster.spaces.table().kept:
            try:
                entry = cluster.roster(p)[0].replicas.get(self.replica_id)
            except NoNode:
                continue
            if entry is not None and entry.session_id != NO_SESSION:
                return True
        return False

    def _follow(self, cluster: ClusterStore) -> None:
        """As ``ReplicaHost``: what the spaces say is done in a thread of its own, now and after each change."""

        def look(*state: object) -> None:
            if self.service is not None:
                table, (assignment, _) = cluster.spaces.table(), cluster.assignment()
                self.threads.start(lambda: self._following(table, assignment, again), _NORMAL)

        def again() -> None:
            self.loop.call_later(_RETRY_S, lambda: self._unless_away(look))

        cluster.spaces.watch(look)
        cluster.watch_assignment(look)

    def _keep_sets(self, cluster: ClusterStore, moving: Moving) -> None:
        """As ``ReplicaHost``: what was moved away is given up, in a thread, after each change and from time to time."""
        under_way = False

        def do() -> None:
            nonlocal under_way
            if self.service is not None and not under_way:
                under_way = True
                self.threads.start(in_thread, _NORMAL)

        def in_thread() -> Afterwards:
            service = self.service
            assert service is not None
            try:
                ended = self._end_of_life_in(lambda: sets.follow(cluster, moving.vacating(self, service)))
            except (CoordinationError, DiskFull, OutOfResources) as error:
                self.tell(f"gives nothing up yet: {error}")
                ended = None
            return done if ended is None else ended

        def done() -> None:
            nonlocal under_way
            under_way = False

        def again() -> None:
            do()
            self.loop.call_later(_TRIM_S, again)

        sets = OwnSets(self.replica_id, False, do)
        cluster.moves.watch(sets.seen)
        self.loop.call_later(_TRIM_S, again)

    def _keep_trimming(self, cluster: ClusterStore) -> None:
        """As ``ReplicaHost``: what marks and settings say is done in a thread, from time to time and after each change.
        What is known of both may be old."""
        known: tuple[SpaceTable, dict[int, int]] = SpaceTable(0, {}), {}
        under_way = False

        def of_spaces(table: SpaceTable) -> None:
            nonlocal known
            known = table, known[1]

        def of_marks(marks: dict[int, int]) -> None:
            nonlocal known
            known = known[0], marks
            do()

        def do() -> None:
            nonlocal under_way
            if self.service is not None and not under_way:
                under_way = True
                self.threads.start(lambda: self._retaining(*known, done), _NORMAL)

        def done() -> None:
            nonlocal under_way
            under_way = False

        def again() -> None:
            do()
            self.loop.call_later(_TRIM_S, again)

        cluster.spaces.watch(of_spaces)
        cluster.trims.watch(of_marks)
        self.loop.call_later(_TRIM_S, again)

    def _retaining(self, table: SpaceTable, marks: dict[int, int], done: Callable[[], None]) -> Afterwards:
        service = self.service
        assert service is not None
        before = {p: service.store.partition(p).first_id for p in service.store.served_ids}
        try:
            ended = self._end_of_life_in(lambda: service.retain(table, marks))
        except (DiskFull, OutOfResources) as error:
            self.tell(f"does not trim yet: {error}")
            return done
        if ended is not None:
            return ended
        after = {p: service.store.partition(p).first_id for p in service.store.served_ids}

        def tell() -> None:
            done()
            if after != before:
                self.world.history.counts["trims"] += 1
                self.tell(f"its logs begin with {after} now")

        return tell

    def _unless_away(self, look: Callable[[], None]) -> None:
        with contextlib.suppress(ZooKeeperUnreachable):  # then the watch calls again
            look()

    def _following(self, table: SpaceTable, assignment: Assignment, again: Callable[[], None]) -> Afterwards:
        service = self.service
        assert service is not None
        before = len(service.store.partition_ids), service.store.removed
        try:
            ended = self._end_of_life_in(lambda: service.follow(table, assignment))
        except (DiskFull, OutOfResources) as error:
            self.tell(f"does not follow the spaces yet: {error}")
            return again
        if ended is not None:
            return ended
        after = len(service.store.partition_ids), service.store.removed
        if after == before:
            return lambda: None
        return lambda: self.tell(f"has {after[0]} partitions, removed {sorted(after[1])}")

    def _end_of_life_in(self, act: Callable[[], None]) -> Afterwards | None:
        """What follows if the process ends, or its machine stops, while it does this; None if it goes on."""
        try:
            act()
        except Crashed:
            return lambda: self.lose_power(self.survival())
        except SyncFailed as error:
            self.threads.point()  # others have not heard of it yet
            return partial(self.fatal, error)
        return None

    def _recover(self, store: ReplicaStore) -> None:
        for partition_id in store.served_ids:
            log = store.partition(partition_id)
            self.tell(
                f"partition {partition_id}: session {log.session_id}, last {log.last_id}, "
                f"low {log.low_water_mark}/{log.local_low_water_mark}, damaged {log.damaged}"
            )
            self._look_for_damage(log)
            acknowledged = self.acknowledged.get(partition_id, NO_TRANSACTION)
            if log.damaged is None and log.last_id < acknowledged:
                self.world.history.blame(
                    "no_loss",
                    f"partition {partition_id}: {self.host} acknowledged {acknowledged} and has {log.last_id}",
                )

    def kill(self, why: str, silent_s: float = 0.0) -> None:
        if self.up:
            super().kill(why, silent_s)
            self._end()
            self.disk.end_process()

    def _end(self) -> None:
        self.store = self.service = self._recovering = None
        self.threads.end()
        self._turns.clear()
        if self._upkeep is not None:
            self._upkeep.end()
            self._upkeep = None

    def lose_power(self, survival: Survival) -> None:
        """The machine stops: what was not synced may be lost or torn."""
        self.world.history.faults["power lost"] += 1
        if self.up:
            super().kill(
                f"power lost (kept {survival.kept:.1f}, torn {survival.torn:.1f})", self.random.choice([0, 2.0])
            )
            self._end()
        self.disk.crash(survival)
        self.start_later(self.random.uniform(0.1, 3.0))

    def survival(self) -> Survival:
        kept = self.random.choice([0.0, 0.3, 0.7, 1.0])
        return Survival(kept, self.random.uniform(0.0, 1.0 - kept))

    def fatal(self, error: Exception) -> None:
        """A sync has failed, or a start for that reason: the process ends."""
        if not self.disk.failed:
            self.world.history.blame("crash", f"{self.host} ends, although its disk is sound: {error}")
        self.world.history.faults["process ended by a failed sync"] += 1
        self.kill(f"{error}")
        self.disk.fail_sync = False
        self.start_later(self.random.uniform(0.1, 2.0))

    # ---- serving ------------------------------------------------------------------------------------------

    def handle(self, turn: Turn) -> None:
        """In a thread of its own. Nothing of the answers leaves if the process ends before."""
        self._turns[turn] = None
        turn.number = next(self._numbers)
        self._lower(turn)
        for request in turn.requests:
            if isinstance(request, Open):
                self.world.history.opens(turn.connection, request.partition_id, request.session_id)
        pace = turn.pace or (_ABANDONED if turn.abandoned else self._meet_others(turn))
        self.threads.start(lambda: self._in_thread(turn), pace)

    def _meet_others(self, turn: Turn) -> Pace:
        """At times somebody reads what the turn is about to change. How slow the turn is to be, so that they meet:
        where damage is to be found, or something is to be synced in the midst of it."""
        if not self.copied or self.may_stop.calm:
            return _NORMAL
        partition_id, again = self.random.choice(turn.requests).partition_id, turn.comes_back_to()
        rotten = self._rotten_segment(partition_id) is not None
        if again:
            self._copy_what_is_not_synced(again[0])
        elif turn.cuts():
            self._copy(partition_id)
        elif rotten or self.happens(self.copied):
            self.loop.call_later(self.random.uniform(0.0, 0.004), self._copy, partition_id)
        return _COPIED if again or rotten else _NORMAL

    def _copy_what_is_not_synced(self, partition_id: int, tries: int = 100) -> None:
        """As soon as there is something."""
        log = self.log(partition_id)
        if log is not None and log.last_id > log.synced_id:
            self._copy(partition_id, newest=True)
        elif tries:
            self.loop.call_later(0.001, self._copy_what_is_not_synced, partition_id, tries - 1)

    def _copy(self, partition_id: int, newest: bool = False) -> None:
        """What a server does that copies from this replica to another one."""
        log = self.log(partition_id)
        if log is None or not log.is_open or log.last_id < 0:
            return
        first_id, max_bytes = log.last_id, 400
        if not newest and self.random.random() < 0.5:
            first_id = self.random.randrange(log.last_id + 1)
            rotten_id = self._rotten_segment(partition_id)
            if rotten_id is not None:
                self._looked_at[partition_id, rotten_id] += 1
                first_id, max_bytes = min(first_id, rotten_id), 1 << 20
        turn = Turn(Copier(), [Read(partition_id, log.session_id, first_id, log.last_id + 1, max_bytes)])
        turn.pace = _COPIES_NEWEST if newest else _COPIES
        self.handle(turn)

    def _rotten_segment(self, partition_id: int) -> int | None:
        """The first ID of one that somebody should look at: not, if that was done in vain for some time."""
        if partition_id in self._damaged:
            return None
        names = [path.rpartition("/")[2] for path in self.disk.rotten_in(partition_id) if path.endswith(".seg")]
        ids = [int(name.removesuffix(".seg")) for name in names]
        return next((one for one in ids if self._looked_at[partition_id, one] < _LOOKS), None)

    def _in_thread(self, turn: Turn) -> Afterwards:
        assert self.service is not None
        switches = self.threads.switches
        service, replies = self.service, list[ReplicaReply]()
        ended = self._end_of_life_in(lambda: replies.extend(service.handle(turn.requests, turn.connection)))
        if ended is not None:
            return ended
        if self.threads.switches == switches:  # it met nobody: the disk took its time all the same
            return partial(self._answer_later, turn, replies)
        return partial(self._answer, turn, replies)

    def _answer_later(self, turn: Turn, replies: list[ReplicaReply]) -> None:
        turn.decided = True
        self.loop.call_later(self.disk_delay_s(), self._answer, turn, replies)

    def _lower(self, turn: Turn) -> None:
        """What it is told to cut it need not have any more, nor what others have appended to it before."""
        for partition_id, last_id in turn.cuts().items():
            self.acknowledged[partition_id] = min(self.acknowledged.get(partition_id, NO_TRANSACTION), last_id)
            for other in self._turns:
                if other is not turn:
                    other.cut.add(partition_id)

    def _answer(self, turn: Turn, replies: list[ReplicaReply]) -> None:
        del self._turns[turn]
        self._lower(turn)
        for partition_id in turn.partitions():
            if (log := self.log(partition_id)) is not None:
                self._look_for_damage(log)
        for reply in replies:
            if isinstance(reply, Appended):
                self._acknowledges(turn, reply)
            elif isinstance(reply, Begun):
                self.world.history.counts["logs begun anew"] += 1
            elif isinstance(reply, Truncated):
                for other in self._undecided():
                    if other.number < turn.number:  # else it may append to what has been cut, in a later session
                        other.surely_cut[reply.partition_id] = reply.last_id
            elif self._tells_its_last(reply, turn):
                for other in self._undecided():
                    other.told[reply.partition_id] = reply.last_id
            if isinstance(reply, StateReply | Refused) and not turn.copies:
                self.tell(f"to {turn.connection.peer}: {reply}")
                if isinstance(reply, Refused):
                    self.world.history.refused(self.loop.name, turn.connection.peer, turn.connection, reply)
                    self.lost_files |= reply.code is RefusalCode.LOST_FILES
        turn.connection.answer(replies)

    def _tells_its_last(self, reply: ReplicaReply, turn: Turn) -> TypeGuard[StateReply]:
        """Whether a session will count on it. What is told of damage is no vote: records behind it were written, too,
        and who has sent them may be told so later."""
        if not isinstance(reply, StateReply) or reply.damaged:
            return False
        return turn.opens(reply.partition_id) and self._owns(turn, reply)

    def _undecided(self) -> list[Turn]:
        return [turn for turn in self._turns if not turn.decided]

    def _owns(self, turn: Turn, reply: StateReply) -> bool:
        """Whether nobody has opened the partition after it."""
        assert self.service is not None
        return self.service._connections.get(reply.partition_id) is turn.connection

    def _look_for_damage(self, log: PartitionLog) -> None:
        partition_id = log.partition_id
        if log.rotten and not self.disk.rotten_in(partition_id):
            what = f"{self.host} has rot that nobody made: {log.rotten}"
            self.world.history.blame("no_loss", f"partition {partition_id}: {what}")
        if log.damaged is None:
            self._damaged.discard(partition_id)
        elif partition_id not in self._damaged:
            self._damaged.add(partition_id)
            if not self.disk.rotten_in(partition_id):
                what = f"{self.host} has damage that no rot explains: {log.damaged}"
                self.world.history.blame("no_loss", f"partition {partition_id}: {what}")

    def _acknowledges(self, turn: Turn, reply: Appended) -> None:
        partition_id, peer, history = reply.partition_id, turn.connection.peer, self.world.history
        self.tell(f"p{partition_id} s{reply.session_id} acknowledges {reply.last_id}")
        history.appended(peer, partition_id, reply.session_id)
        cut_id = turn.surely_cut.get(partition_id, reply.last_id)
        if cut_id < reply.last_id and turn.only_appends_to(partition_id):
            what = f"{self.host} acknowledges {reply.last_id}, although it has been cut to {cut_id} meanwhile"
            history.blame("no_loss", f"partition {partition_id}: {what}")
        told_id = turn.told.get(partition_id, reply.last_id)
        # What was decided before a cut may be answered after it, where the turn had more to decide: whoever has cut was
        # told of these records before that, when it opened.
        cut_since = partition_id in turn.cut and not turn.only_appends_to(partition_id)
        if told_id < reply.last_id and not cut_since:
            what = (
                f"{self.host} acknowledges {reply.last_id} to {peer}, another connection was told {told_id} is the last"
            )
            history.blame("one_writer", f"partition {partition_id}: {what}")
        assert self.store is not None
        log = self.log(partition_id)
        if log is not None and reply.last_id < log.first_id:
            return  # it has been trimmed since
        if partition_id in turn.cut or partition_id in self.store.removed:
            return
        if reply.session_id <= history.given_up.get((self.loop.name, partition_id), NO_SESSION):
            return  # it was moved away meanwhile
        self.acknowledged[partition_id] = reply.last_id
        if not self.disk.is_durable(partition_id, turn.record(reply)):
            what = f"{self.host} acknowledges {reply.last_id} of session {reply.session_id}, which is not durable"
            history.blame("no_loss", f"partition {partition_id}: {what}")
