"""What a client of topics is given by whoever found the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.client.client import WaltzClient
from waltz_ray.config import ClientConfig
from waltz_ray.protocol.ids import Endpoint

__all__ = ["TopicDirectory", "TopicsPlace"]


class TopicDirectory(Protocol):
    """Where the topic actors are, and what topics there are. Calls may block."""

    @property
    def cluster_key(self) -> str:
        """Of the cluster whose actors they are."""
        ...

    def watch(self, callback: Callable[[Sequence[Endpoint]], None]) -> Callable[[], None]:
        """Tell ``callback``, from any thread, where masters listen, now and after each change; returns what ends it."""
        ...

    def partitions(self, topic: str) -> int:
        """How many the topic has. SpaceNotFound, SpaceGone; InvalidInput if it is no topic."""
        ...

    def close(self) -> None:
        """Let go of the coordination."""
        ...


class TopicsPlace(Protocol):
    """A cluster."""

    def directory(self) -> TopicDirectory:
        """Opened. Blocks; raises what finding the cluster raises."""
        ...

    def log(self, topic: str, config: ClientConfig | None = None) -> WaltzClient:
        """A client of the topic's space, connected."""
        ...

    async def log_async(self, topic: str, config: ClientConfig | None = None) -> AsyncWaltzClient:
        """The same for the loop that runs now, started."""
        ...
