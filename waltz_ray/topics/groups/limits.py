"""Times and limits of the master of topics."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GroupLimits", "GroupTimes"]


@dataclass(frozen=True)
class GroupTimes:
    """Milliseconds; the master is told the time with each event."""

    client_ms: int = 30_000
    """A client that was silent for so long is gone; the protocol's figure."""
    order_ms: int = 120_000
    """A consumer that beats, and has done nothing of what it was told for so long, is sent away. Longer than a client
    needs to try a few brokers that do not answer, each until its time-out."""
    session_ms: int = 60_000
    """For so long a bound session may lack members before another one can take its place."""

    def __post_init__(self) -> None:
        for name in ("client_ms", "order_ms", "session_ms"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give a number of milliseconds above 0")


@dataclass(frozen=True)
class GroupLimits:
    """How much the master keeps of clients, and takes from one. What is beyond is refused."""

    producers: int = 16_384
    groups: int = 4_096
    members: int = 16_384
    """Of all groups."""
    members_of_group: int = 1_024
    topics: int = 256
    """Of one client."""
    filters: int = 500
    """Message types, of one topic of one client."""
    reported: int = 16_384
    """Partitions in one message."""
    name_chars: int = 1_024
    """Of a client, a group, a topic, a session key, a message type."""

    def __post_init__(self) -> None:
        for name, most in vars(self).items():
            if most <= 0:
                raise ValueError(f"{name} is {most}: give a number above 0")
