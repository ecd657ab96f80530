"""The partitions' records in ZooKeeper, looked at again and again beside a smoke: who took which session when."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import CoordinationError
from waltz_ray.protocol.roster import Roster

__all__ = ["RosterRow", "RosterWatch", "read_rosters"]

_LOOK_S = 0.2
_FILE = "rosters.jsonl"


@dataclass(frozen=True)
class RosterRow:
    """A record as it was seen."""

    partition_id: int
    roster: Roster


def read_rosters(directory: Path) -> list[RosterRow]:
    """All that were noted, in the order in which they were seen."""
    rows = (json.loads(line) for line in (directory / _FILE).read_text().splitlines())
    return [RosterRow(p, Roster.from_json(text)) for p, text in rows]


class RosterWatch:
    """Notes each record that is another than before, in ``directory``: a few for every session. As long as ZooKeeper is
    away, nothing."""

    def __init__(self, zookeeper: str, cluster: str, partitions: int, directory: Path) -> None:
        self._partitions, self._path = partitions, directory / _FILE
        self._versions: dict[int, int] = {}
        self._zookeeper = KazooZooKeeper(zookeeper)
        self._store = ClusterStore(self._zookeeper, cluster)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="smoke-rosters", daemon=True)

    def __enter__(self) -> RosterWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stopping.set()
        self._thread.join()
        self._zookeeper.close()

    def look(self) -> None:
        """CoordinationError."""
        for p in range(self._partitions):
            roster, version = self._store.roster(p)
            if self._versions.get(p) != version:
                self._versions[p] = version
                with self._path.open("a") as file:
                    file.write(json.dumps([p, roster.to_json()]) + "\n")

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            try:
                self.look()
            except CoordinationError:
                continue  # it is one of those that are stopped; the records are still there afterwards
