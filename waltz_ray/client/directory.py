"""How a client learns where a partition is. Injected, so that the client itself knows nothing of ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from waltz_ray.client.cursor_book import CursorBook
from waltz_ray.errors import WaltzError
from waltz_ray.protocol.ids import Location

__all__ = ["Directory", "Location", "Whereabouts"]


Whereabouts = Mapping[int, Location] | WaltzError
"""Where each partition is; or why there are none any more, nor will be."""


class Directory(Protocol):
    """A space of a cluster as its clients see it, its partitions numbered from 0."""

    @property
    def partitions(self) -> int:
        """Number of partitions, fixed for the life of the space."""

    @property
    def cluster_key(self) -> str:
        """Made once, with the cluster: no other one has it, whatever its name."""

    @property
    def cursors(self) -> CursorBook:
        """The space's named cursors."""

    def next_client_id(self) -> int:
        """A client ID nobody has or had."""

    def watch(self, callback: Callable[[Whereabouts], None]) -> Callable[[], None]:
        """Call ``callback`` with all locations now and after every change, from any thread; returns a canceller.

        A partition that nobody owns is absent from the mapping. When the space has been deleted: with SpaceGone, last.
        """

    def close(self) -> None:
        """Let go of connections."""
