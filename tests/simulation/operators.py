"""The person at the cluster: replaces lost replicas, changes replica sets, moves partitions, restarts what must notice.

Like any careful operator this one never takes away the last sound copy: what faults may spoil and what a set may be
reduced to are decided together (``may_spoil``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import TYPE_CHECKING

from waltz_ray.errors import CoordinationError, NoNode, VersionConflict
from waltz_ray.protocol.ids import quorum_of
from waltz_ray.protocol.roster import Roster

if TYPE_CHECKING:
    from tests.simulation.replica import SimReplica
    from tests.simulation.world import World

__all__ = ["REPLICATION", "SETS", "Operator"]

SETS = 1 << 26
"""The bit of the seeds whose clusters have more replicas than a partition needs. In all others each partition has all
of them unless the operator takes one away."""

REPLICATION = 3
"""In those: on how many replicas a partition is made."""

_SMALLEST_SET = {3: 2, 5: 3}
_PATIENCE_S = 2.0
"""How long a server gets to notice a changed set before something is restarted for it."""


class Operator:
    """``spoiled``: replicas whose synced records were lost or rotted at some time."""

    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random = world, random
        self.store = world.operator_store
        self.spoiled: set[int] = set()
        self._restarted_at_s = 0.0
        replicas = len(world.replicas)
        moves = bool(world.seed & SETS)
        self._smallest, self._largest = (REPLICATION, REPLICATION + 1) if moves else (_SMALLEST_SET[replicas], replicas)
        """Of a set: one that moves from replica to replica has one more on the way."""

    def assigned(self, partition_id: int) -> frozenset[int]:
        """The replicas that hold this partition, as recorded now."""
        return frozenset(self.store.roster(partition_id)[0].replicas)

    # ---- what may be lost ---------------------------------------------------------------------------------

    def may_spoil(self, replica: SimReplica) -> bool:
        """Whether this replica's synced records may be lost: no more replicas than the quorum may miss."""
        if replica.replica_id in self.spoiled:
            return True
        if self.world.moving is not None:  # where sets are going nobody knows yet
            return not self.spoiled
        spoiled = self.spoiled | {replica.replica_id}
        return all(_survives(record, spoiled) for record in self._records())

    def _records(self) -> Iterator[Roster]:
        for p in self.world.living():
            try:
                yield self.store.roster(p)[0]
            except NoNode:
                continue  # its space is being made

    # ---- lost replicas ------------------------------------------------------------------------------------

    def replace_lost_replicas(self) -> None:
        """What a person does about a replica without its files, as soon as it is allowed."""
        for replica_id in sorted(self.spoiled):
            replica = self.world.replicas[replica_id]
            if replica.up and (replica.store is None or replica.lost_files):
                try:
                    self.store.replace_replica(replica_id)
                    replica.lost_files = False
                    self.tell(f"replaces replica {replica_id}")
                except CoordinationError as error:
                    self.tell(f"cannot replace replica {replica_id} yet: {error}")

    # ---- replica sets -------------------------------------------------------------------------------------

    def change_a_set(self) -> bool:
        """Add or take away one replica of one partition; a server is sometimes made to notice at once."""
        random = self.random
        partition_id = random.randrange(self.world.partitions)
        everybody = {replica.replica_id for replica in self.world.replicas}
        assigned = self.assigned(partition_id)
        absent = everybody - assigned if len(assigned) < self._largest else set()
        if absent and (random.random() < 0.5 or len(assigned) <= self._smallest):
            wanted = assigned | {random.choice(sorted(absent))}
        else:
            wanted = assigned - {random.choice(sorted(assigned))}
        if len(wanted) < self._smallest or not self.assign(partition_id, wanted):
            return False
        roll = random.random()
        if roll < 0.4:
            self.restart_one_of(assigned & wanted)
        elif roll < 0.6:
            self.move()
        return True

    def assign(self, partition_id: int, replica_ids: Iterable[int]) -> bool:
        """False if the set may not be changed so, or not now."""
        record, version = self.store.roster(partition_id)
        try:
            changed = record.with_replicas(replica_ids)
        except ValueError as error:
            self.tell(f"partition {partition_id}: {sorted(replica_ids)} is refused: {error}")
            return False
        if not _survives(changed, self.spoiled):
            return False
        try:
            self.store.set_roster(partition_id, changed, version)
        except VersionConflict:
            return False
        self.tell(f"partition {partition_id}: assigned to {sorted(changed.replicas)}, was {sorted(record.replicas)}")
        self.world.history.counts["acts of the operator"] += 1
        return True

    def settle_sets(self) -> None:
        """After the faults: all replicas again, or the sets as they are if nothing was lost meanwhile.

        Those that move stay where they are, but a replica that was taken away for a drama is made up for.
        """
        if self.world.moving is not None:
            self.world.moving.settle()
            return
        if self.world.seed & SETS:
            self._fill_sets()
            return
        if self.spoiled or self.random.random() < 0.7:
            for partition_id in range(self.world.partitions):
                self._have_all_again(partition_id)

    def _have_all_again(self, partition_id: int) -> None:
        """All, but for lost ones of other sets where there are so many that no session could be opened with them."""
        wanted = set(range(len(self.world.replicas)))
        while (assigned := self.assigned(partition_id)) != wanted:
            if not self.assign(partition_id, wanted):
                sound = wanted - (self.spoiled - assigned)
                if sound == wanted:
                    raise AssertionError(f"partition {partition_id} cannot have all replicas again")
                wanted = sound

    def _fill_sets(self) -> None:
        for partition_id in range(self.world.partitions):  # those of spaces are left as they were made
            while len(assigned := self.assigned(partition_id)) < REPLICATION:
                absent = sorted({replica.replica_id for replica in self.world.replicas} - assigned)
                if not self.assign(partition_id, assigned | {self.random.choice(absent)}):
                    raise AssertionError(f"partition {partition_id} cannot have {REPLICATION} replicas again")

    def make_them_notice(self, partition_id: int, noticed: Iterable[int]) -> None:
        """A server goes on with the set it knows until it opens a session: one of its replicas is restarted."""
        if self.world.scheduler.now >= self._restarted_at_s + _PATIENCE_S:
            self.tell(f"partition {partition_id} should have {sorted(self.assigned(partition_id))}")
            self.restart_one_of(noticed)

    def restart_one_of(self, replica_ids: Iterable[int]) -> None:
        up = [replica_id for replica_id in sorted(replica_ids) if self.world.replicas[replica_id].up]
        if up:
            self._restarted_at_s = self.world.scheduler.now
            replica = self.world.replicas[self.random.choice(up)]
            replica.kill("restarted by the operator")
            replica.start_later(0.05)
            self.world.history.counts["acts of the operator"] += 1

    # ---- assignments --------------------------------------------------------------------------------------

    def move(self) -> bool:
        """Another server is preferred for some partitions."""
        server = self.random.choice(self.world.servers)
        partitions = [p for p in range(self.world.partitions) if self.random.random() < 0.6]
        for other in self.world.servers:
            self.store.set_preferred(other.server_id, partitions if other is server else [])
        return True

    def tell(self, what: str) -> None:
        self.world.story.tell("operator", what)


def _survives(record: Roster, spoiled: set[int]) -> bool:
    """Whether a sound copy of everything, and enough sound replicas to open a session, are left in this set.

    Of its members at least ``published_quorum`` hold each committed record; of a session that it will have, a quorum.
    """
    sound_members = len(spoiled & record.members) < record.published_quorum
    replicas = len(record.replicas)
    return sound_members and len(spoiled & record.replicas.keys()) <= replicas - quorum_of(replicas)
