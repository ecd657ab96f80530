"""The replicas and servers of a running cluster, for applications and the command line: added, drained, removed; and
where partitions are to be.

What is wanted is recorded in ZooKeeper, and the cluster's manager carries it out: a program that ends while it waits
has lost nothing but the sight of it. Asked again, everything goes on from where it is.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from waltz_ray.actors.settings import as_of, from_json
from waltz_ray.client.application import checked_int
from waltz_ray.client.time_limits import checked_timeout
from waltz_ray.coordination.upgrade_store import UpgradeStore
from waltz_ray.errors import (
    CoordinationError,
    InvalidInput,
    NoNode,
    PartitionNotReady,
    StorageError,
    ZooKeeperUnreachable,
)
from waltz_ray.finding import cluster_file
from waltz_ray.handle import ClusterHandle
from waltz_ray.protocol import set_plans
from waltz_ray.protocol.cluster_members import ClusterMembers
from waltz_ray.protocol.placement import NodeView, place_replicas
from waltz_ray.protocol.replica_sets import locate
from waltz_ray.protocol.set_moves import SetReached, next_step

__all__ = ["Members", "ReplicaRow", "ServerRow", "still_waiting"]

log = logging.getLogger(__name__)

Progress = Callable[[str], None]

_POLL_S = 0.1
_IN_THE_MAKING = "its space is being made"


@dataclass(frozen=True)
class ReplicaRow:
    """``partitions``: those that are on it. ``coming`` and ``going``: those that are to be, and not any more."""

    replica: int
    node: str
    zone: str
    draining: bool
    partitions: tuple[int, ...]
    coming: tuple[int, ...]
    going: tuple[int, ...]


@dataclass(frozen=True)
class ServerRow:
    """``registered``: it is alive, as far as ZooKeeper knows. ``preferred``: partitions that it gets if it can."""

    server: int
    registered: bool
    draining: bool
    partitions: tuple[int, ...]
    preferred: tuple[int, ...]


class Members(ClusterHandle):
    """``with Members("demo") as members: members.drain_replica(2)``. For several threads.

    Found as by ``waltz_ray.connect``. Numbers may be any kind of integer, also NumPy's; InvalidInput for what is none,
    or nobody's. What waits tells ``progress`` lines for people; PartitionNotReady after ``timeout`` seconds, and it
    goes on being done.
    """

    # ---- looking

    @property
    def membership(self) -> ClusterMembers:
        """Who belongs to the cluster now."""
        return self._store.members.read()

    def sets(self) -> dict[int, frozenset[int]]:
        """On which replicas each partition is now; not of those whose space is being made, which nobody knows yet."""
        return self._sets()[0]

    def _sets(self) -> tuple[dict[int, frozenset[int]], list[int]]:
        """(on which replicas each partition is, of which that is not known yet)."""
        found, unknown = dict[int, frozenset[int]](), list[int]()
        for p in self._store.spaces.table().kept:
            try:
                found[p] = frozenset(self._store.roster(p)[0].replicas)
            except NoNode:
                unknown.append(p)
        return found, unknown

    def replicas(self) -> list[ReplicaRow]:
        """In rising order."""
        members, sets, moves = self.membership, self.sets(), self._store.moves.read()
        wanted = {p: moves.wanted.get(p, one) for p, one in sets.items()}
        return [
            ReplicaRow(
                r,
                place.node,
                place.zone,
                r in members.draining_replicas,
                tuple(p for p, one in sets.items() if r in one),
                tuple(p for p, one in wanted.items() if r in one - sets[p]),
                tuple(p for p, one in sets.items() if r in one - wanted[p]),
            )
            for r, place in sorted(members.places.items())
        ]

    def servers(self) -> list[ServerRow]:
        """In rising order."""
        members, registered, (assignment, _) = self.membership, self._store.servers(), self._store.assignment()
        return [
            ServerRow(
                s,
                s in registered,
                s in members.draining_servers,
                tuple(assignment.partitions_of(s)),
                self._store.preferred(s),
            )
            for s in sorted(members.servers)
        ]

    # ---- replicas

    def add_replica(self, nodes: list[NodeView]) -> int:
        """One more, which has no partition yet: its number. ``nodes``: the Ray cluster's, alive.

        ConfigError, saying how to start a node for it, if none of several offers its disk. InvalidInput.
        """
        number = -1

        def added(members: ClusterMembers) -> ClusterMembers:
            nonlocal number
            number = members.next_replica
            placement = place_replicas((number,), nodes)
            return members.with_replica(placement[number], locate(placement, nodes)[number])

        self._changed(self._store.members.change(added))
        return number

    def drain_replica(self, number: int) -> dict[int, frozenset[int]]:
        """Have all its partitions moved away, and give it no others: the sets that are wanted instead.

        InvalidInput, and nothing is changed, if too few replicas would be left.
        """
        number = _replica(number)
        with self._planning(f"replica drain {number}"):
            largest = self._largest_set()
            members = self._store.members.change(lambda members: members.draining_replica(number, largest))
            plan = set_plans.moved_off(self._wanted(), members.staying)
            self._want(plan)
            return plan

    def drained(self, number: int) -> dict[int, frozenset[int]]:
        """The sets that ``drain_replica`` would have instead; nothing is changed. InvalidInput as there."""
        members = self.membership.draining_replica(_replica(number), self._largest_set())
        return set_plans.moved_off(self._wanted(), members.staying)

    def _largest_set(self) -> int:
        return max(map(len, self._wanted().values()), default=0)

    def keep_replica(self, number: int) -> None:
        """It is not to be drained after all. What has not moved yet stays."""
        number = _replica(number)
        with self._planning(f"replica drain {number} --cancel"):
            staying = self._store.members.change(lambda members: members.keeping_replica(number)).staying
            wanted, sets = self._store.moves.read().wanted, self.sets()
            left = [p for p in wanted if number in sets.get(p, ()) and number not in wanted[p]]
            self._want({p: set_plans.kept_on(number, sets[p], wanted[p], staying) for p in left})

    def remove_replica(self, number: int) -> None:
        """It belongs to the cluster no more; its files stay where they are.

        InvalidInput unless it has no partition, and while a space is being made: a manager that has not heard yet that
        it is drained may give it one.
        """
        number = _replica(number)
        with self._planning(f"replica remove {number}"):
            held = self._held(number)
            self._changed(self._store.members.change(lambda members: members.without_replica(number, held)))
            self._store.members.forget_replica(number)

    def check_replica_removal(self, number: int) -> None:
        """InvalidInput where ``remove_replica`` would be refused just now; nothing is changed."""
        number = _replica(number)
        self.membership.without_replica(number, self._held(number))

    def _held(self, number: int) -> int:
        """How many partitions are on it, or are to be. InvalidInput while that is not known."""
        now, unknown = self._sets()
        if unknown:
            raise InvalidInput(
                f"replica {number} cannot be removed just now: partition {unknown[0]} is being made, and may be given "
                "to it; try again when its space is ready, see: waltz space list"
            )
        return len({p for sets in (now, self._wanted()) for p, one in sets.items() if number in one})

    # ---- servers

    def add_server(self) -> int:
        """One more, which is given partitions as soon as it is there: its number."""
        number = -1

        def added(members: ClusterMembers) -> ClusterMembers:
            nonlocal number
            number = members.next_server
            return members.with_server()

        self._changed(self._store.members.change(added))
        return number

    def drain_server(self, number: int) -> None:
        """Have its partitions served by others. InvalidInput for the last one, and for the one that an interrupted
        upgrade has drained, which would keep it."""
        number = _server(number)
        with self._planning(f"server drain {number}"):
            under_way = UpgradeStore(self._store.zookeeper, self.cluster).read()
            if under_way is not None and under_way.drained == number:
                raise InvalidInput(
                    f"server {number} is drained for an upgrade that was interrupted, which will keep it; let that "
                    "come to its end first: waltz upgrade --rolling"
                )
            self.drain_server_under_lock(number)

    def drain_server_under_lock(self, number: int) -> None:
        """``drain_server`` for who has the admin lock."""
        self._store.members.change(lambda members: members.draining_server(number))

    def keep_server(self, number: int) -> None:
        """It is not to be drained after all."""
        number = _server(number)
        with self._planning(f"server drain {number} --cancel"):
            self.keep_server_under_lock(number)

    def keep_server_under_lock(self, number: int) -> None:
        """``keep_server`` for who has the admin lock."""
        self._store.members.change(lambda members: members.keeping_server(number))

    def remove_server(self, number: int) -> None:
        """It belongs to the cluster no more, and no partition prefers it. InvalidInput unless it has none."""
        number = _server(number)
        with self._planning(f"server remove {number}"):
            served = len(self._store.assignment()[0].partitions_of(number))
            self._changed(self._store.members.change(lambda members: members.without_server(number, served)))
            if self._store.preferred(number):
                self._store.set_preferred(number, ())

    def check_server_removal(self, number: int) -> None:
        """InvalidInput where ``remove_server`` would be refused just now; nothing is changed."""
        number = _server(number)
        self.membership.without_server(number, len(self._store.assignment()[0].partitions_of(number)))

    # ---- partitions

    def prefer(self, partitions: Sequence[int], server: int) -> None:
        """These partitions are to be served by this server whenever it is there; they move at once. InvalidInput."""
        members, server = self.membership, _server(server)
        members.check_server(server)
        if server in members.draining_servers:
            raise InvalidInput(f"server {server} is drained, and is given nothing")
        partitions = self._checked_partitions(partitions)
        moved = set(partitions)

        def preferring(servers: Mapping[int, Sequence[int]]) -> dict[int, Sequence[int]]:
            changed: dict[int, Sequence[int]] = {
                other: [p for p in before if p not in moved]
                for other, before in servers.items()
                if other != server and moved & set(before)
            }
            mine = servers.get(server, ())
            return {**changed, server: [*mine, *(p for p in partitions if p not in mine)]}

        self._store.change_preferred(preferring)

    def move(self, partitions: Sequence[int], replicas: Sequence[int]) -> dict[int, frozenset[int]]:
        """These partitions are to be on exactly these replicas: what is wanted of them now. InvalidInput."""
        with self._planning("move"):
            members = self.membership
            one = set_plans.checked_set(map(_replica, replicas), members.staying, members.replication)
            plan = dict.fromkeys(self._checked_partitions(partitions), one)
            self._want(plan)
            return plan

    def rebalanced(self) -> dict[int, frozenset[int]]:
        """The sets that ``rebalance`` would have instead of those that there are, or are wanted; nothing is changed."""
        return set_plans.balanced(self._wanted(), self.membership.staying)

    def rebalance(self) -> dict[int, frozenset[int]]:
        """Have partitions spread over zones and nodes, and evenly over replicas: the sets that are wanted instead."""
        with self._planning("rebalance"):
            plan = self.rebalanced()
            self._want(plan)
            return plan

    # ---- waiting

    def waits_for(self, partitions: Iterable[int]) -> dict[int, str]:
        """Of those that are not yet where they should be, what each waits for."""
        moves, found = self._store.moves.read(), {}
        for p in partitions:
            if p not in moves.wanted:
                continue
            try:
                step = next_step(self._store.roster(p)[0], moves.wanted[p], moves.changed_in(p))
            except NoNode:
                found[p] = _IN_THE_MAKING
                continue
            found[p] = "it is there" if isinstance(step, SetReached) else step.why
        return found

    def wait_until_moved(self, partitions: Iterable[int], progress: Progress, timeout: float) -> None:
        """Until these partitions are where they are wanted."""
        waiting = sorted(partitions)

        def left() -> str:
            waits = self.waits_for(waiting)
            if not waits:
                return ""
            p = min(waits)
            return f"{len(waiting) - len(waits)} of {len(waiting)} partitions are moved; partition {p}: {waits[p]}"

        self._wait(left, progress, timeout)

    def wait_until_on(
        self, partitions: Sequence[int], replicas: Iterable[int], progress: Progress, timeout: float
    ) -> None:
        """Until these partitions are on exactly these replicas, as ``move`` has asked for. CoordinationError if
        somebody else has wanted it otherwise meanwhile."""
        self.wait_until_moved(partitions, progress, timeout)
        now, wanted = self.sets(), frozenset(replicas)
        for p in partitions:
            if p in now and now[p] != wanted:  # else its space was deleted
                raise CoordinationError(
                    f"partition {p} is on replicas {_listed(now[p])}, not {_listed(wanted)}: somebody else has moved "
                    "it meanwhile"
                )

    def wait_until_replica_has_none(self, number: int, progress: Progress, timeout: float) -> None:
        """Until no partition is on this replica, which is drained. CoordinationError if somebody else has said
        meanwhile that it stays."""
        number = _replica(number)
        self.wait_until_moved([p for p, one in self.sets().items() if number in one], progress, timeout)
        members = self.membership
        if number in members.places and number not in members.draining_replicas:
            raise CoordinationError(
                f"replica {number} stays: somebody else has said so meanwhile (waltz replica drain {number} --cancel)"
            )

    def wait_until_served(self, partitions: Iterable[int], server: int, progress: Progress, timeout: float) -> None:
        """Until these partitions are this server's, which they prefer, and open there. CoordinationError if that is
        nothing that is wanted any more: somebody else has said so meanwhile."""
        waiting = sorted(partitions)

        def left() -> str:
            assignment, _ = self._store.assignment()
            members, preferred = self.membership, self._store.preferred(server)
            if server not in members.servers or server in members.draining_servers:
                raise CoordinationError(f"server {server} is given nothing: somebody else has drained it meanwhile")
            if other := [p for p in waiting if p not in preferred]:
                raise CoordinationError(
                    f"partition {other[0]} is to be served by another server: somebody else has said so meanwhile"
                )
            for p in waiting:
                owner = assignment.owner(p)
                if owner is None or owner.server_id != server:
                    return f"partition {p} is not assigned to server {server} yet"
                try:
                    roster = self._store.roster(p)[0]
                except NoNode:
                    return f"partition {p}: {_IN_THE_MAKING}"
                if roster.generation < owner.generation or roster.session_id != roster.last_published_session:
                    return f"partition {p} is being opened by server {server}"
            return ""

        self._wait(left, progress, timeout)

    def wait_until_server_has_none(self, number: int, progress: Progress, timeout: float) -> None:
        """Until no partition is assigned to this server, which is drained. CoordinationError if somebody else has said
        meanwhile that it stays."""

        def left() -> str:
            members = self.membership
            if number in members.servers - members.draining_servers:
                raise CoordinationError(
                    f"server {number} stays: somebody else has said so meanwhile (waltz server drain {number} --cancel)"
                )
            has = self._store.assignment()[0].partitions_of(number)
            return f"server {number} still has {len(has)} partitions" if has else ""

        self._wait(left, progress, timeout)

    def _wait(self, left: Callable[[], str], progress: Progress, timeout: float) -> None:
        deadline, told = time.monotonic() + checked_timeout(timeout), ""
        while text := still_waiting(left):
            if text != told:
                progress(text)
                told = text
            if time.monotonic() > deadline:
                raise PartitionNotReady(
                    f"not done after {timeout:g} s: {text}; the manager goes on with it, see waltz status: the same "
                    "command again waits longer"
                )
            time.sleep(_POLL_S)

    # ---- common

    def admin_lock(self, what: str) -> AbstractContextManager[Callable[[], None]]:
        """Of ``what`` changes the cluster: one does at a time. CoordinationError names another one that does now.
        What it gives raises CoordinationError once the lock is lost."""
        return self._store.admin_lock(what)

    def _changed(self, members: ClusterMembers) -> None:
        """``cluster.json``, where it is at hand, says what there is for those who cannot ask ZooKeeper.

        The change has been made: a file that cannot be written is no reason to have it made once more."""
        if not self._found.directory:
            return
        now = as_of(from_json(self._store.info().settings), members).config
        try:
            with cluster_file.alone(self._found.directory):  # or it might say that what was ended meanwhile runs
                known = cluster_file.read(self._found.directory)
                if known is not None:
                    known = replace(known, replicas=now.replicas, servers=now.servers, replication=now.replication)
                    cluster_file.write(known)
        except (InvalidInput, StorageError) as error:
            log.warning("the change was made, and is not noted in the directory until the next waltz up: %s", error)

    def _planning(self, what: str) -> AbstractContextManager[object]:
        """Two plans at a time would not know of each other."""
        return self._store.admin_lock(f"{what}, pid {os.getpid()}")

    def _wanted(self) -> dict[int, frozenset[int]]:
        """On which replicas each partition is to be."""
        wanted = self._store.moves.read().wanted
        return {p: wanted.get(p, one) for p, one in self.sets().items()}

    def _want(self, plan: dict[int, frozenset[int]]) -> None:
        if plan:
            self._store.moves.want(plan)

    def _checked_partitions(self, partitions: Iterable[int]) -> list[int]:
        """As ints: of 1.0 or True ZooKeeper's nodes would have a text that is no number, and nobody could read them."""
        there, wanted = set(self._store.spaces.table().kept), [checked_int("a partition", p) for p in partitions]
        for p in wanted:
            if p not in there:
                raise InvalidInput(f"cluster {self.cluster!r} has no partition {p}; waltz status lists them")
        return wanted


def still_waiting(left: Callable[[], str]) -> str:
    """What ``left`` says; who waits for minutes, or hours, waits for a ZooKeeper that fails over, too."""
    try:
        return left()
    except ZooKeeperUnreachable as error:
        return f"ZooKeeper does not answer just now ({error})"


def _listed(replicas: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(replicas)))


def _replica(number: int) -> int:
    return checked_int("a replica's number", number)


def _server(number: int) -> int:
    return checked_int("a server's number", number)
