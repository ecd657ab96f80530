"""A handle on a running cluster by which people and programs change it: what all of them have in common."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

from waltz_ray.client.address import StaysHere
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.finding.find import check_key, find_cluster

__all__ = ["ClusterHandle"]

Handle = TypeVar("Handle", bound="ClusterHandle")


class ClusterHandle(StaysHere):
    """For several threads; to be closed, or used with ``with``. The cluster is found as by ``waltz_ray.connect``, and
    reached by its ZooKeeper only."""

    def __init__(
        self,
        cluster: str | None = None,
        *,
        directory: str | None = None,
        address: str | None = None,
        zookeeper: str | None = None,
    ) -> None:
        """ClusterNotFound, ClusterMismatch, RayNotRunning, ZooKeeperUnreachable, InvalidInput."""
        from waltz_ray.coordination.zookeeper import KazooZooKeeper

        found = self._found = find_cluster(cluster, directory, address, zookeeper)
        self._zookeeper: ZooKeeper = KazooZooKeeper(found.zookeeper)
        self._store = ClusterStore(self._zookeeper, found.name)
        try:
            check_key(found, self._store.info())
        except BaseException:
            self.close()
            raise

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self._store.cluster

    @property
    def zookeeper(self) -> ZooKeeper:
        """Its ZooKeeper, for as long as this is open."""
        return self._zookeeper

    def close(self) -> None:
        """Idempotent."""
        self._zookeeper.close()

    def __enter__(self: Handle) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
