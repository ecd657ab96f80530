"""An upgrade that is under way, in ZooKeeper, so that whoever goes on with it knows where it is.

::

    /<cluster>/store/upgrade           "before": actor -> the process it had at the beginning
                                       "drained": the server that is drained for it, null: none

There is no such node while none is under way.
"""

from __future__ import annotations

from waltz_ray.coordination.api import Write, ZooKeeper
from waltz_ray.coordination.cluster_nodes import naming, to_fields, to_json
from waltz_ray.errors import NoNode
from waltz_ray.protocol.rolling import RollingUpgrade

__all__ = ["UpgradeStore"]


class UpgradeStore:
    """Of ``cluster``; who writes holds the admin lock. ZooKeeperUnreachable; CoordinationError for damaged bytes."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper = zookeeper
        self._path = f"/{cluster}/store/upgrade"

    def read(self) -> RollingUpgrade | None:
        """None: none is under way."""
        try:
            data, _ = self._zookeeper.get(self._path)
        except NoNode:
            return None
        fields = to_fields(self._path, data)
        with naming(self._path):
            return RollingUpgrade.of_fields(fields)

    def write(self, upgrade: RollingUpgrade) -> None:
        """In the place of what was there."""
        data = to_json(upgrade.fields())
        try:
            self._zookeeper.set(self._path, data, -1)
        except NoNode:
            self._zookeeper.create(self._path, data)

    def beginning(self, upgrade: RollingUpgrade) -> Write:
        """What makes it be under way, for a transaction; NodeExists there if one is."""
        return Write(self._path, to_json(upgrade.fields()))

    def instead(self, upgrade: RollingUpgrade) -> Write:
        """What makes it be under way, for a transaction, in the place of one that is; VersionConflict or NodeExists
        there if that has gone on."""
        try:
            _, version = self._zookeeper.get(self._path)
        except NoNode:
            return self.beginning(upgrade)
        return Write(self._path, to_json(upgrade.fields()), version)

    def end(self) -> None:
        """It is done. Idempotent."""
        try:
            self._zookeeper.delete(self._path)
        except NoNode:
            return
