"""Which servers reach too few replicas while others reach them: seen in what the servers say of themselves.

Such a server answers the manager and ZooKeeper, so nobody else would notice that its partitions commit nothing. One
that reaches few because few replicas live is no worse than the others, and gets to keep what it has
(``protocol.manager.ServersCutOff``).
"""

from __future__ import annotations

from collections.abc import Mapping

from waltz_ray.runtime.status import ActorState, ServerStatus

__all__ = ["CutOff"]

_ILL_LOOKS = 2
"""Replicas that are started again are away for a moment, too."""
_WELL_LOOKS = 3
"""Who was cut off is given partitions again only then: a move costs others a pause."""


class CutOff:
    """Of all servers, look by look. Not for several threads."""

    def __init__(self) -> None:
        self.servers: frozenset[int] = frozenset()
        """Those that are cut off, as of the last look."""
        self._looks: dict[int, int] = {}  # in a row, that said otherwise than ``servers``

    def seen(self, statuses: Mapping[int, ServerStatus]) -> frozenset[int]:
        """One more look; ``servers`` after it. Who does not answer is as he was."""
        for server_id, status in statuses.items():
            if status.state is not ActorState.SERVING:
                continue
            is_cut_off = server_id in self.servers
            if _reaches_too_few(status) is is_cut_off:
                self._looks.pop(server_id, None)
                continue
            looks = self._looks[server_id] = self._looks.get(server_id, 0) + 1
            if looks >= (_WELL_LOOKS if is_cut_off else _ILL_LOOKS):
                del self._looks[server_id]
                self.servers ^= {server_id}
        self.servers = self.servers.intersection(statuses)
        return self.servers


def _reaches_too_few(status: ServerStatus) -> bool:
    """Half of all replicas, or fewer: in some of its partitions there is no quorum."""
    up = sum(link.up for link in status.links.values())
    return bool(status.links) and 2 * up <= len(status.links)
