"""What is read and written of a cursor's nodes in ZooKeeper, and their bytes. ``cursor_store.py`` draws them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from waltz_ray.coordination.api import Write, ZooKeeper
from waltz_ray.coordination.cluster_nodes import naming, to_fields, to_json
from waltz_ray.coordination.hold_store import HoldStore, read_marks
from waltz_ray.errors import CursorNotFound, NoNode, Trimmed
from waltz_ray.protocol.cursors import CursorRecord, hold_name
from waltz_ray.protocol.spaces import Space

__all__ = ["CursorNodes", "now_ms", "record_node"]


class CursorNodes:
    """Of the cursors of ``space``. Holds no state."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str, space: Space) -> None:
        self.zookeeper = zookeeper
        self.space = space
        self.holds = HoldStore(zookeeper, cluster)
        self._cluster = cluster
        self.path = f"/{cluster}/store/cursors/{space.name}"

    def path_of(self, name: str) -> str:
        return f"{self.path}/{name}"

    def lease_of(self, name: str) -> str:
        return f"{self.path}/{name}/lease"

    def hold_name(self, name: str) -> str:
        return hold_name(self.space.name, name)

    def hold_of(self, name: str, positions: Mapping[int, int]) -> tuple[str, dict[int, int], str]:
        """Name, positions by the cluster's numbers, and why, of a cursor's hold."""
        first = self.space.first
        of_cluster = {first + p: position for p, position in positions.items()}
        return self.hold_name(name), of_cluster, f"cursor {name!r} of space {self.space.name!r}"

    def check_hold(self, positions: Mapping[int, int]) -> None:
        """Trimmed if a position was trimmed away."""
        first_ids = self.first_ids()
        for p, position in sorted(positions.items()):
            if position < first_ids[p]:
                raise Trimmed(p, position, first_ids[p])

    def not_found(self, name: str) -> CursorNotFound:
        return CursorNotFound(f"space {self.space.name!r} has no cursor {name!r}; see waltz cursor list")

    def read(self, name: str) -> tuple[CursorRecord, int]:
        """The cursor's node and its version. CursorNotFound."""
        record, version = self.read_any(name)
        if version is None or record.deleted:
            raise self.not_found(name)
        return record, version

    def read_any(self, name: str) -> tuple[CursorRecord, int | None]:
        """The same, also of a cursor that was deleted, or never made: then without a version."""
        path = self.path_of(name)
        try:
            data, version = self.zookeeper.get(path)
        except NoNode:
            return CursorRecord({}), None
        return _of_node(path, data), version

    def holder(self, name: str) -> tuple[str, int] | None:
        """Who has it, and since when (Unix time in milliseconds); None: nobody."""
        path = self.lease_of(name)
        try:
            fields = to_fields(path, self.zookeeper.get(path)[0])
        except NoNode:
            return None
        with naming(path):
            return str(fields["identity"]), int(fields["since_ms"])

    def write(self, name: str, record: CursorRecord, version: int | None, moves_back: bool) -> int:
        """Write the node (None: make it), and its hold with it: its version. VersionConflict, NodeExists, NoNode."""
        writes = [Write(self.path_of(name), record_node(record), version)]
        if record.holds_retention:
            writes += self._hold_writes(name, record.positions, moves_back)
        elif moves_back:
            writes += self.holds.release_writes(self.hold_name(name))
        self.zookeeper.write_all(writes)
        return 0 if version is None else version + 1

    def _hold_writes(self, name: str, positions: Mapping[int, int], moves_back: bool) -> list[Write]:
        hold = self.hold_of(name, positions)
        if not moves_back:
            try:
                return [self.holds.advance_write(*hold[:2])]
            except NoNode:
                pass  # somebody has released it by hand
        return self.holds.writes(*hold)

    def first_ids(self) -> dict[int, int]:
        """Of each partition of the space the first ID that was not trimmed away."""
        marks, _ = read_marks(self.zookeeper, self._cluster)
        return {p: marks.get(number, 0) for p, number in enumerate(self.space.partitions)}


def now_ms() -> int:
    """Unix time."""
    return time.time_ns() // 1_000_000


def record_node(record: CursorRecord) -> bytes:
    """The bytes of a cursor's node."""
    return to_json(
        {
            "positions": {str(p): position for p, position in sorted(record.positions.items())},
            "holds_retention": record.holds_retention,
            "epoch": record.epoch,
            "owner": record.owner,
            "changed_ms": record.changed_ms,
        }
    )


def _of_node(path: str, data: bytes) -> CursorRecord:
    fields = to_fields(path, data)
    with naming(path):
        positions = {int(p): int(position) for p, position in fields["positions"].items()}
        return CursorRecord(
            positions,
            bool(fields["holds_retention"]),
            int(fields["epoch"]),
            str(fields["owner"]),
            int(fields["changed_ms"]),
        )
