"""The partitions that a replica is on by now, of those that it once had: what was moved away is given up.

A partition that was moved to other replicas leaves its log behind. It goes when a session was published without this
replica, later than any that it has opened: from then on nobody will ever ask it for these records. The fence stays, so
a server of before is still refused; and if the partition comes back one day, it is copied like a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import NoNode
from waltz_ray.protocol.ids import NO_SESSION
from waltz_ray.protocol.set_moves import Moves
from waltz_ray.storage.replica_service import ReplicaService

__all__ = ["OwnSets"]

log = logging.getLogger(__name__)


class OwnSets:
    """``changed`` is called, in a watch's thread, when there is something to ``follow``. ``has_all``: every replica
    has every partition, and it was never otherwise."""

    def __init__(self, replica_id: int, has_all: bool, changed: Callable[[], None]) -> None:
        self.has_all = has_all
        self.left: frozenset[int] = frozenset()
        """Partitions that were moved away, and of which nothing is left here."""
        self.known: dict[int, tuple[int, ...]] = {}
        """Of each partition, where not all replicas have all, on which it is; those that are on their way as before."""
        self._replica_id = replica_id
        self._changed = changed
        self._wanted: frozenset[int] | None = None  # partitions that are to move, as they were seen last
        self._moves = Moves()
        self._all_unsure = False
        self._unsure: set[int] = set()

    def seen(self, moves: Moves) -> None:
        """A watch calls: nothing is done in its thread."""
        before, self._wanted = self._wanted, frozenset(moves.wanted)
        last, self._moves = self._moves, moves
        if moves.change:
            self.has_all = False
        if before is None:
            self._all_unsure = not self.has_all
        elif _more_than_told(last, moves):
            self._all_unsure = True
        else:
            self._unsure |= before - self._wanted
        self._changed()

    def follow(self, store: ClusterStore, service: ReplicaService) -> None:
        """Give up what is not this replica's any more. CoordinationError, DiskFull, OutOfResources: to be done again.
        SyncFailed: end the process."""
        if self._all_unsure:
            self._all_unsure = False
            try:
                self._unsure |= set(_opened(service))
            except BaseException:
                self._all_unsure = True
                raise
            self.known.clear()
        for p in sorted(self._unsure):
            self._unsure.discard(p)  # before it is looked at: it may change, and be told of, meanwhile
            sure = False
            try:
                sure = self._is_sure(p, store, service)
            finally:
                if not sure:
                    self._unsure.add(p)

    def _is_sure(self, p: int, store: ClusterStore, service: ReplicaService) -> bool:
        """Whether the partition is this replica's, or nothing of it is left here."""
        self.known.pop(p, None)
        try:
            roster, _ = store.roster(p)
        except NoNode:
            return True
        if self._replica_id in roster.replicas:
            self.left -= {p}
            return True
        if not service.vacate(p, roster.last_published_session):
            return False
        log.info("replica %d: partition %d was moved to %s", self._replica_id, p, sorted(roster.replicas))
        self.left |= {p}
        return True

    def look(self, store: ClusterStore) -> None:
        """Know where the partitions are that were not known yet. CoordinationError."""
        members = store.members.read()
        self.has_all = self.has_all and members.replication == len(members.places)
        if self.has_all:
            return
        on_their_way = self._moves.changed
        for p in store.spaces.table().kept:
            if p not in self.known and p not in on_their_way:
                try:
                    self.known[p] = tuple(sorted(store.roster(p)[0].replicas))
                except NoNode:
                    continue  # its space is being made


def _more_than_told(last: Moves, now: Moves) -> bool:
    """Whether sets were changed since of which ``now`` says nothing any more: a watch tells what there is, not what
    there was, and of a move that began and ended while ZooKeeper was out of reach there is nothing left."""
    return now.change - last.change > sum(number > last.change for number, _ in now.changed.values())


def _opened(service: ReplicaService) -> Iterable[int]:
    store = service.store
    return [p for p in store.served_ids if store.partition(p).session_id != NO_SESSION]
