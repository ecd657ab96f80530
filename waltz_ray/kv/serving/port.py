"""What the gateway asks of the node behind it, and how much of its clients it puts up with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from waltz_ray.kv.messages import (
    Ack,
    Capabilities,
    Command,
    Fail,
    Hashmask,
    Hashmasks,
    NewServer,
    Ping,
    Reply,
    ServerList,
    Unknown,
)
from waltz_ray.kv.wire import COMMAND_OPCODES, MAX_FRAME_BYTES

__all__ = ["CommandPort", "GatewayCounts", "GatewayLimits", "courtesy"]


class CommandPort(Protocol):
    """The node, as far as the gateway knows it. All calls are made in the event loop."""

    def servers(self) -> Sequence[str]:
        """``host:port`` of all members."""

    def hashmasks(self) -> Hashmasks:
        """What this actor has."""

    def accepting(self) -> str:
        """Empty while clients are welcome; else the server that they try instead."""

    def submit(self, connection_id: int, command: Command, answer: Callable[[Reply], None]) -> None:
        """A data command (opcode 1000 and above) or a ``SecondaryHas``; of one connection in the order they came in.

        ``answer`` is called exactly once, now or later, also after ``left``: until then the command takes room. Who has
        many answers at once gives them inside ``with outgoing:`` (the gateway's), so that they leave with one write.
        """

    def input_ended(self) -> None:
        """What had arrived over one connection has been submitted. A hint: commands are taken without it, too."""

    def left(self, connection_id: int, goodbye: bool = False) -> None:
        """The connection is gone: what is not on its way to the log is not done. Or its client has said ``goodbye``,
        which comes before that: then only what waits for a lock or an owner is not done."""

    def peer_shutting_down(self, server: str) -> None:
        """A member has said so itself."""


@dataclass(frozen=True)
class GatewayLimits:
    """Of one port. Times in milliseconds."""

    connections: int = 4096
    """In all."""
    connections_per_peer: int = 2048
    """From one address."""
    outstanding: int = 4096
    """Commands of one connection without an answer; at so many nothing more is read from it."""
    outstanding_bytes: int = 256 * 1024 * 1024
    """Of commands without an answer, of all connections: at so many only those that have none outstanding have one data
    command taken, of at most 64 KiB. So who fills it does not shut out others."""
    incoming_bytes: int = 256 * 1024 * 1024
    """Of frames above 64 KiB that are not whole yet, of all connections: a command that finds no room for its own is
    dropped as it comes, and gets failinfo(TOO_MANY)."""
    frame_bytes: int = MAX_FRAME_BYTES
    """One frame, in or out. A header that names more ends the connection."""
    busy_bytes: int = 1024 * 1024
    """Unsent to one connection: at so many nothing more is read from it."""
    unsent_bytes: int = 64 * 1024 * 1024
    """Unsent to one connection: beyond so many a reply of more than 1 KiB becomes failinfo(TOO_MANY)."""
    untaken_bytes: int = 1024 * 1024 * 1024
    """Unsent to all connections: beyond so many such a reply to one that has more than its share becomes the same."""
    first_ms: int = 30_000
    """Until a connection has sent its first whole frame."""
    untaken_ms: int = 60_000
    """While it takes too little of what it is sent."""
    frame_ms: int = 60_000
    """Until a frame above 64 KiB is whole."""
    idle_ms: int = 0
    """Without a whole frame and without a command that waits: it is told goodbye after once to twice this. 0: never."""
    goodbye_ms: int = 1_000
    """At its end: for what is outstanding, or for the ack of our goodbye."""


@dataclass
class GatewayCounts:
    """What has happened on a port since it was opened."""

    commands: int = 0
    """Data commands handed to the node."""
    nonsense: int = 0
    """Payloads that made no sense."""
    unknown: int = 0
    """Commands of opcodes that nobody knows."""
    stray_replies: int = 0
    """Replies to nothing that was asked."""
    no_room: int = 0
    """Commands and replies that became failinfo(TOO_MANY)."""
    access_refused: Counter[str] = field(default_factory=Counter)
    """Commands that became failinfo(NOT_ALLOWED), by reason."""


ACK, FAIL = Ack(), Fail()


def courtesy(opcode: int, command: Command | None) -> Reply:
    """What either side answers without looking at anything; ``command`` None: there is no such opcode."""
    if isinstance(command, Capabilities):
        return ACK if command.opcode in COMMAND_OPCODES else FAIL
    if isinstance(command, Ping | ServerList | Hashmasks | Hashmask | NewServer):
        return ACK
    return Unknown(opcode)
