"""Holds in ZooKeeper: by name, from which records on nothing may be trimmed. And the trim marks that they limit.

::

    /<cluster>/store/trims             partition -> trim mark: records with lower IDs may be gone
    /<cluster>/store/holds             "changes": rises with each hold that is made, or moved back
        /<name>                        partition -> first ID to keep, and why

A hold and a trim mark must not pass each other unseen. Whoever raises a mark has read all holds, and writes the mark in
one transaction with ``store/holds`` as it was when he read it (``trim_store.py``). Whoever makes a hold, or moves one
back, changes ``store/holds`` in the same transaction, and looks at the marks *afterwards* (``check``). So either the
raise has seen the hold, or it was over before the hold was there, and the check sees its mark: then the hold keeps
records that may be gone already, and its maker is told so. A hold that only rises changes its own node alone.

A crash after the transaction and before the check leaves a hold that may be below a mark: it keeps everything that
is left, as one does that is forgotten, until it is released.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from waltz_ray.coordination.api import Write, ZooKeeper
from waltz_ray.coordination.cluster_nodes import naming, to_fields, to_json
from waltz_ray.errors import InvalidInput, NodeExists, NoNode, Trimmed, VersionConflict
from waltz_ray.protocol.value import value

__all__ = ["Hold", "HoldStore", "first_hold_nodes", "read_marks"]

_NAME = re.compile("[A-Za-z0-9_.-]{1,200}")
_MOST_BYTES = 768 * 1024  # of the 1 MiB that a node may have


@value()
class Hold:
    """Of each partition (its number in the cluster) in ``positions`` the records from that ID on are kept.

    ``why``: for people, one line.
    """

    name: str
    positions: Mapping[int, int]
    why: str


def read_marks(zookeeper: ZooKeeper, cluster: str) -> tuple[dict[int, int], int | None]:
    """(trim marks by partition, version of their node; None while there is none). CoordinationError."""
    path = f"/{cluster}/store/trims"
    try:
        data, version = zookeeper.get(path)
    except NoNode:
        return {}, None
    return marks_of(path, data), version


def marks_of(path: str, data: bytes) -> dict[int, int]:
    """What the node of trim marks says. CoordinationError."""
    fields = to_fields(path, data)
    with naming(path):
        return {int(p): int(mark) for p, mark in fields["marks"].items()}


class HoldStore:
    """The holds of ``cluster``. Holds no state. Every call may raise ZooKeeperUnreachable, and CoordinationError for a
    node whose bytes make no sense; after the first a write may have happened or not."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper = zookeeper
        self._cluster = cluster
        self._path = f"/{cluster}/store/holds"

    def hold(self, name: str, positions: Mapping[int, int], why: str) -> None:
        """From now on nothing is trimmed from ``positions`` on. In the place of a hold of that name, if there is one.

        Trimmed if one of the positions is below its partition's mark already: then there is no hold of that name.
        InvalidInput for a name that is none, or for more positions than a node holds.
        """
        while True:
            try:
                self._zookeeper.write_all(self.writes(name, positions, why))
                break
            except (VersionConflict, NodeExists, NoNode):
                continue  # somebody else has changed a hold: look again
        try:
            self.check(positions)
        except Trimmed:
            self.release(name)
            raise

    def writes(self, name: str, positions: Mapping[int, int], why: str) -> list[Write]:
        """The hold as part of a transaction of the caller's, who calls ``check`` once it is written.

        VersionConflict, NodeExists or NoNode of that transaction: somebody was faster, ask for the writes again.
        """
        changes = self._changes()
        node = self._path_of(name)
        return [changes, Write(node, _to_node(Hold(name, positions, why)), self._zookeeper.exists(node))]

    def check(self, positions: Mapping[int, int]) -> None:
        """Trimmed if one of them is below its partition's trim mark."""
        marks, _ = read_marks(self._zookeeper, self._cluster)
        for p, first_id in sorted(positions.items()):
            if first_id < marks.get(p, 0):
                raise Trimmed(p, first_id, marks[p])

    def advance(self, name: str, positions: Mapping[int, int]) -> None:
        """Let go of what is below ``positions``; what the hold has of other partitions, or higher, stays. NoNode."""
        while True:
            try:
                self._zookeeper.write_all([self.advance_write(name, positions)])
            except VersionConflict:
                continue
            return

    def advance_write(self, name: str, positions: Mapping[int, int]) -> Write:
        """The same as part of a transaction of the caller's. NoNode if there is no such hold."""
        hold, version = self._read(name)
        raised = {p: max(first_id, positions.get(p, first_id)) for p, first_id in hold.positions.items()}
        return Write(self._path_of(name), _to_node(Hold(name, raised, hold.why)), version)

    def release(self, name: str) -> None:
        """Nothing is kept for it any more. Idempotent."""
        try:
            self._zookeeper.delete(self._path_of(name))
        except NoNode:
            return

    def find(self, name: str) -> Hold | None:
        """The hold of that name, if there is one."""
        try:
            return self._read(name)[0]
        except NoNode:
            return None

    def release_writes(self, name: str) -> list[Write]:
        """``release`` as part of a transaction of the caller's; none, if there is no such hold."""
        node = self._path_of(name)
        version = self._zookeeper.exists(node)
        return [] if version is None else [Write(node, None, version)]

    def all(self) -> dict[str, Hold]:
        """Every hold by its name."""
        return self.all_as_of()[0]

    def all_as_of(self) -> tuple[dict[str, Hold], Write]:
        """All holds, and what a transaction writes that must fail if one was made, or moved back, since."""
        path, data, version = self._node()
        holds: dict[str, Hold] = {}
        for name in self._zookeeper.children(path):
            try:
                holds[name] = self._read(name)[0]
            except NoNode:
                continue  # released since
        return holds, Write(path, data, version)

    def _changes(self) -> Write:
        path, data, version = self._node()
        fields = to_fields(path, data)
        with naming(path):
            return Write(path, to_json({"changes": int(fields["changes"]) + 1}), version)

    def _node(self) -> tuple[str, bytes, int]:
        """``store/holds``, made if it is not there."""
        while True:
            try:
                return self._path, *self._zookeeper.get(self._path)
            except NoNode:
                try:
                    self._zookeeper.create(self._path, to_json({"changes": 0}))
                except NodeExists:
                    continue

    def _path_of(self, name: str) -> str:
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise InvalidInput(f"{name!r:.60} cannot name a hold: take 1 to 200 of A-Z, a-z, 0-9, _, . and -")
        return f"{self._path}/{name}"

    def _read(self, name: str) -> tuple[Hold, int]:
        path = self._path_of(name)
        data, version = self._zookeeper.get(path)
        fields = to_fields(path, data)
        with naming(path):
            positions = {int(p): int(first_id) for p, first_id in fields["positions"].items()}
            return Hold(name, positions, str(fields["why"])), version


def first_hold_nodes(holds: Iterable[Hold]) -> dict[str, bytes]:
    """The nodes of a new cluster that begins with these holds: path below its root -> content. InvalidInput."""
    return {"/store/holds": to_json({"changes": 0}), **{f"/store/holds/{hold.name}": _to_node(hold) for hold in holds}}


def _to_node(hold: Hold) -> bytes:
    data = to_json({"why": hold.why, "positions": {str(p): first_id for p, first_id in hold.positions.items()}})
    if len(data) > _MOST_BYTES:
        raise InvalidInput(f"hold {hold.name!r}: {len(hold.positions)} partitions are more than a ZooKeeper node holds")
    return data
