"""The spaces of a running cluster, for applications and ``waltz space``: made, listed, described, set, deleted."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from waltz_ray.client.time_limits import checked_timeout, checked_wait
from waltz_ray.errors import NoNode, PartitionNotReady, WaltzError
from waltz_ray.handle import ClusterHandle
from waltz_ray.protocol.ids import NO_SESSION
from waltz_ray.protocol.spaces import Space, SpaceState, SpaceTable
from waltz_ray.runtime.status import PartitionAssignment

__all__ = ["SpaceDescription", "Spaces"]


@dataclass(frozen=True)
class SpaceDescription:
    """A space, and each of its partitions as ZooKeeper has it, by its number in the cluster."""

    space: Space
    partitions: tuple[PartitionAssignment, ...]

    @property
    def without_session(self) -> list[int]:
        """The numbers in the space of the partitions that never had a session: it is not ready because of them."""
        return [p for p, each in enumerate(self.partitions) if each.session in (None, 0, NO_SESSION)]


class Spaces(ClusterHandle):
    """``with Spaces("demo") as spaces: spaces.create("orders", 8)``. For several threads.

    The cluster is found as by ``waltz_ray.connect``. Nothing here needs the cluster's actors, only its ZooKeeper; but a
    space becomes ready, and the files of a deleted one are removed, by the manager, the servers and the replicas.
    """

    def create(
        self,
        name: str,
        partitions: int | None = None,
        kind: str = "log",
        settings: Mapping[str, int | None] | None = None,
        timeout: float | None = 60.0,
    ) -> Space:
        """Add a space of ``partitions`` new partitions; it is ready when this returns. Nothing else pauses.

        Of kind ``kv`` it has a power of two, 16 unless you say another, and ``compact=1`` unless you set it.
        ``timeout`` seconds are waited, None: not at all, and it is *making* then. PartitionNotReady after them; it goes
        on being made. InvalidInput, and nothing is changed: the name is taken or was, or there is no room in ZooKeeper.
        """
        timeout = checked_wait(timeout)
        space = self._store.spaces.create(name, partitions, kind, settings)
        return space if timeout is None else self.wait_ready(name, timeout)

    def wait_ready(self, name: str, timeout: float = 60.0) -> Space:
        """The space, ready. PartitionNotReady after ``timeout`` seconds; SpaceNotFound, SpaceGone."""
        timeout = checked_timeout(timeout)
        seen = threading.Event()
        told: list[Space | WaltzError] = []

        def changed(table: SpaceTable) -> None:
            try:
                space = table.named(name, self.cluster)
            except WaltzError as error:
                told.append(error)
            else:
                if space.state is not SpaceState.READY:
                    return
                told.append(space)
            seen.set()

        watch = self._store.spaces.watch(changed)
        try:
            if not seen.wait(timeout):
                waiting = ", ".join(map(str, self.describe(name).without_session[:5]))
                raise PartitionNotReady(
                    f"space {name!r} of cluster {self.cluster!r} is not ready after {timeout:g} s: no session of its "
                    f"partitions {waiting} yet; it goes on being made, see: waltz space describe {name}"
                )
        finally:
            watch.cancel()
        if isinstance(told[0], WaltzError):
            raise told[0]
        return told[0]

    def list(self) -> list[Space]:
        """All spaces that were not deleted, in the order of their partitions."""
        return self._store.spaces.table().present()

    def describe(self, name: str) -> SpaceDescription:
        """A space and its partitions. SpaceNotFound, SpaceGone."""
        space, (assignment, _) = self._store.spaces.get(name), self._store.assignment()
        found = []
        for p in space.partitions:
            owner = assignment.owner(p)
            server_id, generation = (owner.server_id if owner else None), assignment.generation(p)
            try:
                roster, _ = self._store.roster(p)
            except NoNode:
                found.append(PartitionAssignment(p, server_id, generation, None))
                continue
            members = tuple(sorted(roster.members)) if roster.last_published_session != NO_SESSION else ()
            found.append(PartitionAssignment(p, server_id, generation, roster.last_published_session, members))
        return SpaceDescription(space, tuple(found))

    def set(self, name: str, **settings: Any) -> Space:
        """Change settings (``retention_ms``, ``retention_bytes``, ``compact``; of a topic ``max_message_bytes``).

        None takes one away. docs/spaces.md has what they do. SpaceNotFound, SpaceGone, InvalidInput.
        """
        return self._store.spaces.set(name, settings)

    def deletable(self, name: str) -> Space:
        """What ``delete`` would delete. InvalidInput for the space that every cluster has, and for ``topic-offsets``;
        SpaceNotFound, SpaceGone."""
        return self._store.spaces.deletable(name)

    def delete(self, name: str, confirm: str) -> Space:
        """Delete a space and all its records, for ever; ``confirm`` is its name once more.

        Its clients are told SpaceGone. Its files go as soon as the manager has taken its partitions from their servers.
        InvalidInput as of ``deletable``, or without the right name; SpaceNotFound, SpaceGone.
        """
        return self._store.spaces.delete(name, confirm)
