"""Where the actors of a key/value space are, as a client finds out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from waltz_ray.errors import SpaceGone
from waltz_ray.kv.routing import checked_partitions

__all__ = ["KvDirectory", "Members", "StaticKvDirectory"]


Members = Sequence[str] | SpaceGone
"""Addresses; or why there never will be any again."""


class KvDirectory(Protocol):
    """Of one space. Its methods may block, and are for any thread."""

    @property
    def partitions(self) -> int:
        """Of the space."""

    @property
    def identity(self) -> Hashable:
        """The space that is meant: clients whose directories have the same may share connections."""

    @property
    def serves(self) -> str:
        """``space_identity`` of it, which its actors have to know as theirs; "": it is not known."""

    def watch(self, callback: Callable[[Members], None]) -> Callable[[], None]:
        """Tell ``callback`` the addresses (``host:port``) of all actors, now and after every change, from any thread;
        SpaceGone when the space has been deleted. Returns what ends it."""

    def tls_only(self) -> bool:
        """Whether the cluster says that its ports take TLS only."""

    def close(self) -> None:
        """Let go of what it needs for that."""


class StaticKvDirectory:
    """Actors whose addresses are known and stay; those that join are heard of from these."""

    def __init__(self, servers: Sequence[str], partitions: int = 16) -> None:
        self.partitions = checked_partitions(partitions)
        """Of the space."""
        self._servers = tuple(servers)
        self.identity = self._servers, self.partitions
        """What was named."""
        self.serves = ""
        """Whatever is served there is meant."""

    def watch(self, callback: Callable[[Members], None]) -> Callable[[], None]:
        """They are told once."""
        callback(self._servers)
        return _nothing

    def tls_only(self) -> bool:
        """Nobody says so."""
        return False

    def close(self) -> None:
        """There is nothing to let go of."""


def _nothing() -> None:
    pass
