"""The spaces of a cluster in ZooKeeper: created, listed, changed, deleted; and finished, by whoever leads.

::

    /<cluster>/store/cluster           N, the number of partitions
    /<cluster>/store/spaces            "changes": rises with each change of a space, in the same transaction
        /<name>                        kind, first partition, count, state, settings

Crash story. What must not be torn apart is one transaction: ``create`` raises N and makes the space's node, *making*;
every other change sets one space's node. Whatever else a new N means is in ``finish``, which is idempotent, changes
nothing that is done already, and is called by the leading manager as long as a space is *making*: by the next one if
this one dies in the midst of it. Two at once do no harm: N only grows, and each node is made, or raised by
compare-and-set, once.

``store/spaces`` is watched by everybody: one watch tells of all changes. A cluster made before there were spaces has
no such node: it is one space, ``log``, until somebody changes something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from waltz_ray.coordination.api import Watch, Write, ZooKeeper
from waltz_ray.coordination.cluster_nodes import (
    WRITES_AT_ONCE,
    ClusterInfo,
    complete_info,
    info_json,
    naming,
    partition_path,
    to_fields,
    to_json,
)
from waltz_ray.errors import InvalidInput, NodeExists, NoNode, SpaceGone, VersionConflict
from waltz_ray.protocol.spaces import (
    DEFAULT_SPACE,
    OFFSETS_SPACE,
    Space,
    SpaceState,
    SpaceTable,
    changed_settings,
    checked_count,
    checked_kind,
    checked_space_name,
    first_settings,
    most_partitions,
)
from waltz_ray.wire import znodes
from waltz_ray.wire.znodes import StoreParams

__all__ = ["SpaceStore", "first_space_nodes", "space_nodes"]


def first_space_nodes(partitions: int) -> dict[str, bytes]:
    """Of a new cluster: path below its root -> content."""
    return space_nodes([Space(DEFAULT_SPACE, "log", 0, partitions, SpaceState.READY)])


def space_nodes(spaces: Iterable[Space]) -> dict[str, bytes]:
    """The nodes of these spaces, which are all: path below the cluster's root -> content."""
    return {
        "/store/spaces": to_json({"changes": 0}),
        **{f"/store/spaces/{each.name}": _to_node(each) for each in spaces},
    }


class SpaceStore:
    """The spaces of ``cluster``. Holds nothing but those that are gone, which they are for ever. Every call may raise
    ZooKeeperUnreachable, and CoordinationError for a node whose bytes make no sense."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper = zookeeper
        self._cluster = cluster
        self._root = "/" + cluster
        self._path = self._root + "/store/spaces"
        self._gone: dict[str, Space] = {}

    # ---- reading

    def table(self) -> SpaceTable:
        """All spaces, and N, as of now. ClusterNotFound."""
        try:
            names = self._zookeeper.children(self._path)
        except NoNode:
            names = []
        # Not read again: everybody asks at each change, and of names that are never used again there may be thousands.
        spaces = {name: self._gone.get(name) or self._read(name)[0] for name in names}
        self._gone.update((name, space) for name, space in spaces.items() if space.state is SpaceState.GONE)
        partitions = self._info()[0].partitions  # after the spaces: it is never less than what they need
        with naming(self._root):
            if not spaces:
                spaces = {DEFAULT_SPACE: Space(DEFAULT_SPACE, "log", 0, partitions, SpaceState.READY)}
            return SpaceTable(partitions, spaces)

    def watch(self, callback: Callable[[SpaceTable], None]) -> Watch:
        """``callback`` now, and after each change of a space."""
        return self._zookeeper.watch_data(self._path, lambda data, version: callback(self.table()))

    def get(self, name: str) -> Space:
        """SpaceNotFound, SpaceGone."""
        return self.table().named(checked_space_name(name), self._cluster)

    # ---- changing

    def create(
        self, name: str, count: int | None, kind: str = "log", settings: Mapping[str, Any] | None = None
    ) -> Space:
        """A space of ``count`` new partitions (None: as its kind has it), *making*. InvalidInput, and nothing changed.

        After ZooKeeperUnreachable it may be there or not: look.
        """
        checked_space_name(name)
        count = checked_count(checked_kind(kind), count)
        checked = first_settings(kind, settings or {})
        while True:
            changes = self._changes()
            table = self.table()
            self._check_free(table, name)
            info, version = self._info()
            self._check_room(info, count)
            space = Space(name, kind, info.partitions, count, SpaceState.MAKING, checked)
            grown = replace(info, partitions=info.partitions + count)
            writes = [
                Write(self._root + "/store/cluster", info_json(grown, complete=True), version),
                changes,
                Write(f"{self._path}/{name}", _to_node(space)),
            ]
            try:
                self._zookeeper.write_all(writes)
            except (VersionConflict, NodeExists):
                continue  # somebody else has changed something: look again
            return space

    def set(self, name: str, changes: Mapping[str, Any]) -> Space:
        """Change settings; None takes one away. SpaceNotFound, SpaceGone, InvalidInput."""

        def changed(space: Space) -> Space:
            return replace(space, settings=changed_settings(space.settings, changes, space.kind))

        return self._change(name, changed)

    def deletable(self, name: str) -> Space:
        """What ``delete`` would delete. InvalidInput for the space that every cluster has, and for the one without
        which topics are never served again; SpaceNotFound, SpaceGone."""
        checked_space_name(name)
        if name == DEFAULT_SPACE:
            raise InvalidInput(f"space {DEFAULT_SPACE!r} is the one every cluster has; it cannot be deleted")
        space = self.get(name)
        if name == OFFSETS_SPACE and space.kind == "kv":  # its name would not come again
            raise InvalidInput(f"space {OFFSETS_SPACE!r} has the offsets of all groups of topics; it cannot be deleted")
        return space

    def delete(self, name: str, confirm: str) -> Space:
        """Mark a space *gone*, for ever; its records are removed soon. ``confirm``: its name once more.

        InvalidInput if that differs, and as ``deletable``. SpaceNotFound, SpaceGone.
        """
        self.deletable(name)
        if confirm != name:
            raise InvalidInput(f"deleting space {name!r} removes all its records; confirm it with its name: {name}")
        return self._change(name, lambda space: space.in_state(SpaceState.GONE))

    def mark_ready(self, name: str) -> None:
        """Every partition of it has a session. No effect if it is ready or gone."""
        try:
            self._change(name, lambda space: space.in_state(SpaceState.READY))
        except SpaceGone:
            return

    def _change(self, name: str, change: Callable[[Space], Space]) -> Space:
        while True:
            changes = self._changes()
            space = self.get(name)
            _, version = self._read(name)
            wanted = change(space)
            if wanted == space:
                return space
            try:
                self._zookeeper.write_all([changes, Write(f"{self._path}/{name}", _to_node(wanted), version)])
            except VersionConflict:
                continue
            return wanted

    def _changes(self) -> Write:
        """What everybody is told by: only one of those who have read the same can write. Made if it is not there."""
        while True:
            try:
                data, version = self._zookeeper.get(self._path)
            except NoNode:
                nodes = first_space_nodes(self._info()[0].partitions)
                try:
                    self._zookeeper.write_all([Write(self._root + path, data) for path, data in nodes.items()])
                except NodeExists:
                    continue
                continue
            fields = to_fields(self._path, data)
            with naming(self._path):
                return Write(self._path, to_json({"changes": int(fields["changes"]) + 1}), version)

    def _check_free(self, table: SpaceTable, name: str) -> None:
        there = table.spaces.get(name)
        if there is not None:
            gone = there.state is SpaceState.GONE
            as_it_is = f"{there.kind}, {there.count} partitions, {there.state.value}"
            why = "was deleted, and its name is not used again" if gone else f"is there already ({as_it_is})"
            what = "" if gone else ", or use that one: waltz space describe tells whether it is ready"
            raise InvalidInput(f"space {name!r} of cluster {self._cluster!r} {why}; take another name{what}")

    def _check_room(self, info: ClusterInfo, count: int) -> None:
        most = most_partitions(info.replication)
        if info.partitions + count > most:
            raise InvalidInput(
                f"cluster {self._cluster!r} has {info.partitions} partitions, deleted ones counted, and cannot have "
                f"{count} more: a ZooKeeper node holds {most}"
            )

    # ---- finishing

    def finish(self, partitions: int) -> None:
        """Have every node that ``partitions`` partitions need. Idempotent; see the top."""
        info, _ = self._info()
        self._make_rosters(partitions, info)
        self._raise(self._root, lambda data: _raised_root(self._root, data, partitions))
        self._raise(self._root + "/store", lambda data: _raised_params(self._root + "/store", data, partitions))
        path = self._root + "/serverDescriptors"
        self._raise(path, lambda data: _raised_assignment(path, data, partitions))

    def _make_rosters(self, partitions: int, info: ClusterInfo) -> None:
        while True:
            there = set(self._zookeeper.children(self._root + "/store/partitions"))
            missing = [p for p in range(partitions) if str(p) not in there]
            if not missing:
                return
            first = info.first_rosters(partitions)
            try:
                for start in range(0, len(missing), WRITES_AT_ONCE):
                    some = missing[start : start + WRITES_AT_ONCE]
                    self._zookeeper.write_all([Write(partition_path(self._root, p), first[p]) for p in some])
            except NodeExists:
                continue  # another manager is about it, too

    def _raise(self, path: str, raised: Callable[[bytes], bytes | None]) -> None:
        """Write what ``raised`` makes of the node, unless it says None: that is done."""
        while True:
            data, version = self._zookeeper.get(path)
            wanted = raised(data)
            if wanted is None:
                return
            try:
                self._zookeeper.set(path, wanted, version)
            except VersionConflict:
                continue
            return

    def _read(self, name: str) -> tuple[Space, int]:
        path = f"{self._path}/{name}"
        data, version = self._zookeeper.get(path)
        return _of_node(path, data), version

    def _info(self) -> tuple[ClusterInfo, int]:
        return complete_info(self._zookeeper, self._root)


def _to_node(space: Space) -> bytes:
    return to_json(
        {
            "name": space.name,
            "kind": space.kind,
            "first": space.first,
            "count": space.count,
            "state": space.state.value,
            "settings": dict(space.settings),
        }
    )


def _of_node(path: str, data: bytes) -> Space:
    fields = to_fields(path, data)
    with naming(path):
        settings = {str(name): int(number) for name, number in fields["settings"].items()}
        state = SpaceState(fields["state"])
        return Space(
            str(fields["name"]), str(fields["kind"]), int(fields["first"]), int(fields["count"]), state, settings
        )


def _raised_root(path: str, data: bytes, partitions: int) -> bytes | None:
    root = znodes.decode_root(path, data)
    return None if root.partitions >= partitions else znodes.encode_root(root._replace(partitions=partitions))


def _raised_params(path: str, data: bytes, partitions: int) -> bytes | None:
    params = znodes.decode_store_params(path, data)
    if params.partitions >= partitions:
        return None
    return znodes.encode_store_params(StoreParams(params.cluster_key, partitions))


def _raised_assignment(path: str, data: bytes, partitions: int) -> bytes | None:
    node = znodes.decode_assignment(path, data)
    return None if node.partitions >= partitions else znodes.encode_assignment(node._replace(partitions=partitions))
