"""What a topic port asks of what is behind it, and how much of its clients it puts up with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from waltz_ray.topics.framing import MAX_BLOCKS
from waltz_ray.topics.rpc import RpcCall, RpcFault
from waltz_ray.topics.wire import TopicRequest, TopicResponse

__all__ = ["RequestPort", "TopicPortCounts", "TopicPortLimits"]


class RequestPort(Protocol):
    """The master, or a slot, as far as its port knows it. Called in the event loop."""

    def submit(
        self,
        request: TopicRequest,
        call: RpcCall,
        connection: int,
        answer: Callable[[TopicResponse | RpcFault], None],
    ) -> None:
        """One request that has waited for no longer than its client does. ``answer`` is called exactly once, now or
        later. ``connection``: over which it came; a newer one has a higher number."""


@dataclass(frozen=True)
class TopicPortLimits:
    """Of one port. Times in milliseconds."""

    connections: int = 4096
    """In all."""
    connections_per_peer: int = 2048
    """From one address."""
    outstanding: int = 1024
    """Requests of one connection without an answer; at so many nothing more is read from it."""
    outstanding_bytes: int = 256 * 1024 * 1024
    """Of requests without an answer, of all connections: at so many only those that have none outstanding have one
    taken, of at most 64 KiB."""
    incoming_bytes: int = 256 * 1024 * 1024
    """Of frames above 64 KiB that are not whole yet, of all connections: one that finds no room for its own is dropped
    as it comes, and gets an OverflowException."""
    blocks: int = MAX_BLOCKS
    """Of one frame. A head that names more ends the connection."""
    busy_bytes: int = 1024 * 1024
    """Unsent to one connection: at so many nothing more is read from it."""
    unsent_bytes: int = 128 * 1024 * 1024
    """The same, of what was asked before: beyond so many it is closed."""
    untaken_bytes: int = 1024 * 1024 * 1024
    """Unsent to all connections: beyond so many one that has more than its share is closed when it is sent more."""
    first_ms: int = 30_000
    """Until a connection has sent its first whole frame."""
    untaken_ms: int = 60_000
    """While it takes too little of what it is sent."""
    frame_ms: int = 60_000
    """Until a frame above 64 KiB is whole."""
    idle_ms: int = 0
    """Without a whole frame and without a request that waits: it is closed after once to twice this. 0: never."""


@dataclass
class TopicPortCounts:
    """What has happened on a port since it was opened."""

    requests: int = 0
    """Handed on."""
    nonsense: int = 0
    """Messages that made no sense."""
    unknown: int = 0
    """Of methods that the port does not have."""
    late: int = 0
    """Discarded: nobody waited for them any more."""
    no_room: int = 0
    """Refused, because too much was outstanding."""
