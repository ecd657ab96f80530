"""The manager moves replica sets, and replicas join and leave the cluster: in the histories of seeds with the bit
``MOVES`` (and ``SETS``).

There the sets are changed by the real ``Mover`` beside the real manager, which is killed while it does so; servers and
replicas follow it by the real ``SetFollower`` and ``OwnSets``; and what a person does is done by the real ``Members``.
All other histories are what they were: their operator changes sets on its own (``operators.py``).

At most one replica of a history ever loses or spoils what it had synced: the mover knows of no such thing, so a set
might get a second one at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.simulation.history import RosterWrite, Violation
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import InvalidInput
from waltz_ray.members import Members
from waltz_ray.protocol.ids import NO_SESSION, quorum_of
from waltz_ray.protocol.placement import NodeView
from waltz_ray.protocol.set_moves import Moves
from waltz_ray.storage.replica_service import ReplicaService

if TYPE_CHECKING:
    from tests.simulation.replica import SimReplica
    from tests.simulation.world import World

__all__ = ["LARGE", "MOVES", "Moving", "SimMembers", "replicas_at_first"]

MOVES = 1 << 31

LARGE = 1 << 32
"""The bit of the seeds whose clusters have nine replicas and 32 partitions."""

_REPLICATION = 3
_MOST_AT_ONCE = 4
_NODES = [NodeView("10.0.0.1", frozenset())]


def replicas_at_first(seed: int, replicas: int) -> int:
    """How many of them belong to the cluster when it is made; the others may be added."""
    return Random(seed + 7).randint(4, replicas) if seed & MOVES else replicas


class SimMembers(Members):
    """Over the operator's ZooKeeper client; there is no directory, and nothing to be found."""

    def __init__(self, store: ClusterStore) -> None:
        found: Any = SimpleNamespace(directory="")
        self._store, self._found = store, found


class Moving:
    """The person who adds, drains and removes replicas, and says where partitions are to be."""

    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random = world, random
        self.store = world.operator_store
        self.members = SimMembers(self.store)
        self.kinds: dict[str, Callable[[], bool]] = {
            "partition's set wanted": self._move,
            "sets rebalanced": self._rebalance,
            "replica added": self._add,
            "replica drained": self._drain,
            "drain of a replica cancelled": self._keep,
            "replica removed": self._remove,
            "manager killed in a move": self._kill_the_manager,
            "manager killed and its answers lost": self._lose_answers,
        }
        self._wanted: dict[int, frozenset[int]] = {}
        for replica in world.replicas[replicas_at_first(world.seed, len(world.replicas)) :]:
            replica.retired = True
        self.store.moves.watch(self.look)

    # ---- what a person does -------------------------------------------------------------------------------

    def _do(self, what: str, act: Callable[[], Any]) -> bool:
        try:
            done = act()
        except InvalidInput as error:
            self.tell(f"{what} is refused: {error}")
            return False
        self.tell(f"{what}: {done}")
        return True

    def _want(self, what: str, act: Callable[[], dict[int, frozenset[int]]]) -> bool:
        plan: dict[int, frozenset[int]] = {}
        done = self._do(what, lambda: plan.update(act()) or plan)
        self._wanted |= plan
        self.world.history.counts["sets wanted"] += len(plan)
        return done and bool(plan)

    def _move(self) -> bool:
        staying = sorted(self.members.membership.staying)
        size = _REPLICATION if self.random.random() < 0.7 or len(staying) < 5 else 5
        one = sorted(self.random.sample(staying, min(size, len(staying))))
        partitions = [p for p in range(self.world.partitions) if self.random.random() < 0.5]
        return bool(partitions) and self._want(
            f"move {partitions} to {one}", lambda: self.members.move(partitions, one)
        )

    def _rebalance(self) -> bool:
        return self._want("rebalance", self.members.rebalance)

    def _drain(self) -> bool:
        number = self.random.choice(sorted(self.members.membership.places))
        return self._want(f"drain replica {number}", lambda: self.members.drain_replica(number))

    def _keep(self) -> bool:
        draining = sorted(self.members.membership.draining_replicas)
        if not draining:
            return False
        number = self.random.choice(draining)
        done = self._do(f"keep replica {number}", lambda: self.members.keep_replica(number))
        wanted = self.store.moves.read().wanted
        self._wanted |= {p: wanted[p] for p in self._wanted if p in wanted}
        return done

    def _add(self) -> bool:
        number = self.members.membership.next_replica
        if number >= len(self.world.replicas):
            return False
        self._do("add a replica", lambda: self.members.add_replica(_NODES))
        replica = self.world.replicas[number]
        replica.retired = False
        replica.start()
        return True

    def _remove(self) -> bool:
        draining = sorted(self.members.membership.draining_replicas)
        return bool(draining) and self._removed(self.random.choice(draining))

    def _removed(self, number: int) -> bool:
        if not self._do(f"remove replica {number}", lambda: self.members.remove_replica(number)):
            return False
        for p in self.world.living():
            if number in self.world.operator.assigned(p):
                raise Violation("set_moves", f"replica {number} is removed, and partition {p} is on it")
        replica = self.world.replicas[number]
        replica.retired = True
        replica.kill("it belongs to the cluster no more")
        return True

    # ---- what happens to who carries it out ---------------------------------------------------------------

    def _kill_the_manager(self) -> bool:
        manager = self.world.manager
        if not manager.up or not self.store.moves.read().changed:
            return False
        manager.kill("killed while sets move")
        manager.start_later(self.random.choice([0.05, 0.5, 2.0]))
        return True

    def _lose_answers(self) -> bool:
        """Of the manager's next writes some happen and it does not hear of it; then it dies."""
        manager = self.world.manager
        if not manager.up or manager.zookeeper is None or not self.store.moves.read().wanted:
            return False
        manager.zookeeper.lose_answers = self.random.choice([1, 2, 3])
        life = manager.life

        def die() -> None:
            if manager.up and manager.life == life:
                manager.kill("killed while sets move, its answers lost")
                manager.start_later(self.random.choice([0.05, 0.5]))

        self.world.scheduler.after(self.random.uniform(0.05, 0.6), self.world.nemesis.unless_over, die)
        return True

    # ---- afterwards ---------------------------------------------------------------------------------------

    def settle(self) -> None:
        """What has lost a replica that nobody moves gets one again."""
        wanted = self.store.moves.read().wanted
        for p in range(self.world.partitions):
            assigned = self.world.operator.assigned(p)
            if p not in wanted and len(assigned) < _REPLICATION:
                free = sorted(self.members.membership.staying.keys() - assigned)
                one = assigned | set(self.random.sample(free, _REPLICATION - len(assigned)))
                self._want(f"fill {p}", partial(self.members.move, [p], sorted(one)))

    def reached(self) -> bool:
        """Everything is where it was wanted last; who was drained has nothing, and is removed."""
        if self.store.moves.read().wanted:
            return False
        for number in sorted(self.members.membership.draining_replicas):
            if not self._removed(number):
                raise Violation("set_moves", f"replica {number} is drained, nothing moves, and it cannot be removed")
        return True

    def check(self) -> None:
        """Where partitions are, and each step that the manager has made."""
        for p, wanted in sorted(self._wanted.items()):
            assigned = self.world.operator.assigned(p)
            if assigned != wanted:
                raise Violation("set_moves", f"partition {p} is on {sorted(assigned)}, wanted was {sorted(wanted)}")
        for p, writes in enumerate(self.world.history.roster_writes):
            shrunk_in = NO_SESSION
            for before, write in pairwise(writes):
                if write.who.startswith("manager"):
                    self.world.history.counts["sets changed by the mover"] += 1
                    problem, shrunk_in = _problem(before, write, shrunk_in)
                    if problem:
                        raise Violation("set_moves", f"partition {p}: {write.who}: {problem}")

    def look(self, moves: Moves) -> None:
        """After each change of what is wanted or on its way."""
        if len(moves.changed) > _MOST_AT_ONCE:
            self.world.history.blame("set_moves", f"partitions {sorted(moves.changed)} are all on the way")

    def vacating(self, replica: SimReplica, service: ReplicaService) -> Any:
        """The replica's service, for ``OwnSets``: nobody counts on what it had acknowledged of what it gives up."""

        def vacate(p: int, published_session: int) -> bool:
            log = service.store.partition(p)
            if log.session_id < published_session:  # from here on, also if the power fails meanwhile
                self.world.history.given_up[replica.loop.name, p] = log.session_id
                if replica.acknowledged.pop(p, None) is not None:
                    self.world.history.counts["partitions given up"] += 1
                    replica.tell(f"partition {p} was moved away, and is given up")
            return service.vacate(p, published_session)

        return SimpleNamespace(vacate=vacate, store=service.store)

    def state(self) -> str:
        """For who waits in vain."""
        return f"{self.store.moves.read()}, {self.members.membership}"

    def tell(self, what: str) -> None:
        self.world.story.tell("operator", what)


def _problem(before: RosterWrite, write: RosterWrite, shrunk_in: int) -> tuple[str, int]:
    """What is wrong with a step, empty if nothing is; the session that was published last when a member was taken away
    last."""
    published = max((session for session, _ in before.replicas.values()), default=NO_SESSION)
    if published == NO_SESSION:
        return "", shrunk_in
    members = {r for r, (session, mark) in before.replicas.items() if session == published and mark is None}
    old, new = set(before.replicas), set(write.replicas)
    away = members - new
    step = f"from {sorted(old)} (members {sorted(members)}) to {sorted(new)}"
    if len(new - old) > 1 or len(away) > 1:
        return f"more than one replica at a time, {step}", shrunk_in
    if len(new) < min(_REPLICATION, len(old)):
        return f"fewer than {_REPLICATION} replicas are left, {step}", shrunk_in
    if away and new - members:
        return f"a member is taken away before all others have the log, {step}", shrunk_in
    if (away or new - old) and len(members & new) < quorum_of(len(new)):
        return f"no session can be published by who is left, {step}", shrunk_in
    if away and published == shrunk_in:
        return f"members are taken away one after the other, and no session between, {step}", shrunk_in
    return "", published if away else shrunk_in
