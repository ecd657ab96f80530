"""The trim marks of a cluster in ZooKeeper: read, watched, raised.

A trim mark says that the records below it may disappear. It only rises: never above what is committed (that is the
caller's to know), nor above what a hold keeps (``hold_store.py`` draws the nodes, and says why none is passed unseen).
One node has the marks of all partitions, so one watch tells a replica of all of them, and one write raises any number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from waltz_ray.coordination.api import Watch, Write, ZooKeeper
from waltz_ray.coordination.cluster_nodes import to_json
from waltz_ray.coordination.hold_store import Hold, HoldStore, marks_of, read_marks
from waltz_ray.errors import NodeExists, VersionConflict
from waltz_ray.protocol import trimming as rules

__all__ = ["TrimStore"]


class TrimStore:
    """The trim marks of ``cluster``, by the partitions' numbers in it. Holds no state beyond its parts.

    Every call may raise ZooKeeperUnreachable, and CoordinationError for a node whose bytes make no sense.
    """

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper = zookeeper
        self._cluster = cluster
        self._path = f"/{cluster}/store/trims"
        self.holds = HoldStore(zookeeper, cluster)

    def marks(self) -> dict[int, int]:
        """Of each partition that has one; nothing was ever trimmed of the others."""
        return read_marks(self._zookeeper, self._cluster)[0]

    def watch(self, callback: Callable[[dict[int, int]], None]) -> Watch:
        """``callback`` with all marks, now and after each change."""

        def changed(data: bytes | None, version: int) -> None:
            callback({} if data is None else marks_of(self._path, data))

        return self._zookeeper.watch_data(self._path, changed)

    def raise_marks(self, wanted: Mapping[int, int]) -> dict[int, int]:
        """Raise marks as far as the holds let: the marks that these partitions have now.

        None is ever lowered. The caller sees to it that nothing in ``wanted`` is above what is committed: the ID behind
        the last committed record is the highest mark there may be. After ZooKeeperUnreachable it may have happened.
        """
        while True:
            holds, as_read = self.holds.all_as_of()
            marks, version = read_marks(self._zookeeper, self._cluster)
            raised = rules.raised_marks(marks, wanted, [hold.positions for hold in holds.values()])
            now = {**marks, **raised}
            if raised:
                data = to_json({"marks": {str(p): mark for p, mark in sorted(now.items())}})
                try:
                    self._zookeeper.write_all([as_read, Write(self._path, data, version)])
                except (VersionConflict, NodeExists):
                    continue  # another mark was raised, or a hold was made: look again
            return {p: now.get(p, 0) for p in wanted}

    def keeping(self, p: int, first_id: int) -> list[Hold]:
        """The holds that keep a record of the partition below ``first_id``."""
        return [hold for hold in self.holds.all().values() if hold.positions.get(p, first_id) < first_id]
