"""What a server hears of replicas that come and go, and of partitions whose sets are changed while it has them.

A running session goes by the roster with which it was opened. So a server is told when the set of one of its partitions
was changed, and its machine opens the next session with it. Replicas that are added are linked to when they announce
themselves, before a set can have them.
"""

from __future__ import annotations

import logging
from typing import Any

from waltz_ray.actors.server import Server
from waltz_ray.protocol.partition.events import RosterChanged
from waltz_ray.protocol.set_moves import Moves

__all__ = ["SetFollower"]

log = logging.getLogger(__name__)


class SetFollower:
    """Of one server, in its loop. ``start`` when the server has started; it ends with the server's ZooKeeper client."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._seen: dict[int, int] = {}  # partition -> number of the last change that was seen
        self._known: set[int] = set()  # replicas that have announced themselves
        self._new: dict[int, Any] = {}  # watches of those that were added

    async def start(self) -> None:
        """Follow from now on."""
        server = self._server

        def watch() -> None:
            server.watches.append(server.store.members.watch_announced(self._announced))
            server.watches.append(server.store.moves.watch(server.from_thread(self._on_moves)))

        await server.in_thread(watch)

    def _announced(self, replica_ids: list[int]) -> None:
        """A watch calls, in its own thread, from which ZooKeeper may be asked."""
        server = self._server
        for replica_id in replica_ids:
            if replica_id not in self._new and replica_id not in server.info.replica_ids:
                self._new[replica_id] = server.store.watch_replica(replica_id, server.from_thread(server.on_replicas))
        for replica_id in self._known - set(replica_ids):
            if replica_id in self._new:
                self._new.pop(replica_id).cancel()
            server.from_thread(server.drop_link)(replica_id)
        self._known = set(replica_ids)

    def _on_moves(self, moves: Moves) -> None:
        before, self._seen = self._seen, {p: number for p, (number, _) in moves.changed.items()}
        for partition_id, number in self._seen.items():
            if partition_id in self._server.assigned and before.get(partition_id) != number:
                log.info("partition %d: its set of replicas was changed", partition_id)
                self._server.drivers[partition_id].handle(RosterChanged())
