"""The settings of a cluster are changed, in ``store/cluster``, together with the rolling restart that they need.

One transaction has both: settings that are kept, and which processes may still have the ones of before
(``upgrade_store.py``). So whoever comes after an interruption knows that, and finishes it before anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from waltz_ray.coordination.api import Write, ZooKeeper
from waltz_ray.coordination.cluster_nodes import complete_info, info_json
from waltz_ray.coordination.upgrade_store import UpgradeStore
from waltz_ray.errors import CoordinationError, NodeExists, VersionConflict
from waltz_ray.protocol.rolling import RollingUpgrade

__all__ = ["SettingsStore"]

AsRead = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


class SettingsStore:
    """Of ``cluster``. Holds no state; ZooKeeperUnreachable, CoordinationError for damaged bytes."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str, as_read: AsRead = lambda section, kept: kept) -> None:
        """``as_read``: how a section that is kept is read, by whichever version it was kept."""
        self._zookeeper, self._as_read = zookeeper, as_read
        self._root = f"/{cluster}"
        self._upgrades = UpgradeStore(zookeeper, cluster)

    def change(
        self, before: Mapping[str, Any], after: Mapping[str, Any], upgrade: RollingUpgrade, instead: bool = False
    ) -> None:
        """Keep the sections ``after`` of the configuration where there were ``before``, and begin ``upgrade``.

        CoordinationError, and nothing was done, if they are others by now, or an upgrade is under way. ``instead``: in
        the place of that, whose processes are among those of ``upgrade``.
        """
        while True:
            info, version = complete_info(self._zookeeper, self._root)
            config = dict(info.settings["config"])
            if not all(
                _is_kept(self._as_read(name, config.get(name, {})), section) for name, section in before.items()
            ):
                raise CoordinationError("the settings were changed by somebody else meanwhile; compare them again")
            settings = {**info.settings, "config": {**config, **after}}
            data = info_json(replace(info, settings=settings), complete=True)
            try:
                begins = self._upgrades.instead(upgrade) if instead else self._upgrades.beginning(upgrade)
                self._zookeeper.write_all([Write(f"{self._root}/store/cluster", data, version), begins])
            except VersionConflict:
                continue  # a member came or went, or a space: look again
            except NodeExists as error:
                raise CoordinationError("an upgrade is under way: finish it with waltz upgrade --rolling") from error
            return


def _is_kept(kept: Mapping[str, Any], section: Mapping[str, Any]) -> bool:
    """Of a cluster that an older version made some settings are not kept: they have their defaults."""
    return all(section.get(name) == value for name, value in kept.items())
