"""Partitions that are to be on other replicas, in ZooKeeper: what is wanted, and which sets were changed.

::

    /<cluster>/store/moves             "change": counts changes of sets
                                       "wanted": partition -> the replicas that it shall be on
                                       "changed": partition -> [number of its last change, session published last then]

A set is changed in one transaction with this node: whoever watches it, which servers do, is told of every change. What
is wanted stays recorded until it is so, whoever carries it out and however often that one dies. There is no such node
before something is wanted for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from waltz_ray.coordination.api import Watch, Write, ZooKeeper
from waltz_ray.coordination.cluster_nodes import naming, partition_path, to_fields, to_json
from waltz_ray.errors import NodeExists, NoNode, VersionConflict
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.set_moves import Moves

__all__ = ["MoveStore"]


class MoveStore:
    """Of ``cluster``. Holds no state. Every call may raise ZooKeeperUnreachable, and CoordinationError for a node whose
    bytes make no sense."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper = zookeeper
        self._root = f"/{cluster}"
        self._path = f"/{cluster}/store/moves"

    def read(self) -> Moves:
        """What is wanted now."""
        return self._read()[0]

    def watch(self, callback: Callable[[Moves], None]) -> Watch:
        """``callback`` now and after each change."""
        return self._zookeeper.watch_data(
            self._path, lambda data, version: callback(Moves() if data is None else self._decoded(data))
        )

    def want(self, sets: Mapping[int, Iterable[int]]) -> Moves:
        """Record that these partitions shall be there."""
        return self._change(lambda moves: moves.with_wanted(sets))

    def done(self, partition: int, reached: frozenset[int]) -> None:
        """The partition is there; what else is wanted by now stays."""
        self._change(lambda moves: moves.without(partition, reached))

    def forget(self, partitions: Container[int]) -> Moves:
        """Nothing is wanted of these partitions any more; what is wanted then."""
        return self._change(lambda moves: moves.without_any(partitions))

    def look_again(self, partition: int, session_id: int) -> None:
        """Tell the partition's server once more that its set was changed."""
        self._change(lambda moves: moves.with_change(partition, session_id) if partition in moves.wanted else moves)

    def change_set(self, partition: int, roster: Roster, version: int, changed: Roster) -> bool:
        """Compare-and-set of the partition's roster, which everybody is told; False if it is another one by now, or if
        nothing is wanted of the partition any more: another leader may have seen it arrive.

        ``roster`` was read with ``version``. After ZooKeeperUnreachable it may have happened.
        """
        moves, moves_version = self._read()
        if partition not in moves.wanted:
            return False  # a change would be on the way for ever: nobody looks at what is not wanted
        now = moves.with_change(partition, roster.last_published_session)
        record = Write(partition_path(self._root, partition), changed.to_json().encode(), version)
        try:
            self._zookeeper.write_all([record, self._write(now, moves_version)])
        except (VersionConflict, NodeExists):
            return False
        return True

    def _change(self, change: Callable[[Moves], Moves]) -> Moves:
        while True:
            moves, version = self._read()
            wanted = change(moves)
            if wanted == moves:
                return moves
            try:
                self._zookeeper.write_all([self._write(wanted, version)])
            except (VersionConflict, NodeExists):
                continue  # somebody else wants something, or a set was changed: look again
            return wanted

    def _write(self, moves: Moves, version: int) -> Write:
        fields = {
            "change": moves.change,
            "wanted": {str(p): sorted(one) for p, one in sorted(moves.wanted.items())},
            "changed": {str(p): list(last) for p, last in sorted(moves.changed.items())},
        }
        return Write(self._path, to_json(fields, packed=True), None if version < 0 else version)

    def _read(self) -> tuple[Moves, int]:
        try:
            data, version = self._zookeeper.get(self._path)
        except NoNode:
            return Moves(), -1
        return self._decoded(data), version

    def _decoded(self, data: bytes) -> Moves:
        fields = to_fields(self._path, data)
        with naming(self._path):
            return Moves(
                int(fields["change"]),
                {int(p): frozenset(map(int, one)) for p, one in fields["wanted"].items()},
                {int(p): (int(last[0]), int(last[1])) for p, last in fields["changed"].items()},
            )
