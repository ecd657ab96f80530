"""Who belongs to a cluster, in ZooKeeper: replicas and servers are added, drained and removed in ``store/cluster``.

Every change is one compare-and-set of that node, which has the cluster's shape from its beginning. So it is there for
good, and a cluster that is taken down and brought up again has the same members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from waltz_ray.coordination.api import Watch, ZooKeeper
from waltz_ray.coordination.cluster_nodes import complete_info, info_json
from waltz_ray.errors import NoNode, VersionConflict
from waltz_ray.protocol.cluster_members import ClusterMembers

__all__ = ["MemberStore"]


class MemberStore:
    """Of ``cluster``. Holds no state. Every call may raise ZooKeeperUnreachable, and CoordinationError for a node whose
    bytes make no sense."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper = zookeeper
        self._root = f"/{cluster}"

    def read(self) -> ClusterMembers:
        """Who belongs to it now. ClusterNotFound."""
        return complete_info(self._zookeeper, self._root)[0].members

    def change(self, change: Callable[[ClusterMembers], ClusterMembers]) -> ClusterMembers:
        """Compare-and-set of what ``change`` makes of it, which may be asked several times, and may refuse."""
        while True:
            info, version = complete_info(self._zookeeper, self._root)
            wanted = change(info.members)
            if wanted == info.members:
                return wanted
            data = info_json(replace(info, members=wanted), complete=True)
            try:
                self._zookeeper.set(f"{self._root}/store/cluster", data, version)
            except VersionConflict:
                continue  # another change, or a new space: look again
            return wanted

    def watch(self, callback: Callable[[ClusterMembers], None]) -> Watch:
        """``callback`` now, and after each change; also when a space was added."""
        path = f"{self._root}/store/cluster"
        return self._zookeeper.watch_data(path, lambda data, version: callback(self.read()))

    def forget_replica(self, replica_id: int) -> None:
        """Delete where a removed replica listened. Idempotent."""
        try:
            self._zookeeper.delete(f"{self._root}/store/replicas/{replica_id}")
        except NoNode:
            return

    def watch_announced(self, callback: Callable[[list[int]], None]) -> Watch:
        """``callback`` with the replicas that were ever started and not removed, now and when there is another one."""
        return self._zookeeper.watch_children(
            f"{self._root}/store/replicas", lambda names: callback(sorted(map(int, names)))
        )
