"""How a client learns where a partition is. Injected, so that the client itself knows nothing of ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from waltz_ray.protocol.ids import Location

__all__ = ["Directory", "Location"]


class Directory(Protocol):
    """A cluster as its clients see it."""

    @property
    def partitions(self) -> int:
        """Number of partitions, fixed for the life of the cluster."""

    @property
    def cluster_key(self) -> str:
        """Made once, with the cluster: no other one has it, whatever its name."""

    def next_client_id(self) -> int:
        """A client ID nobody has or had."""

    def watch(self, callback: Callable[[Mapping[int, Location]], None]) -> Callable[[], None]:
        """Call ``callback`` with all locations now and after every change, from any thread; returns a canceller.

        A partition that nobody owns is absent from the mapping.
        """

    def close(self) -> None:
        """Let go of connections."""
