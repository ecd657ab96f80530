"""The words of ``protocol.mounting``: its states, what it is told and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

from waltz_ray.errors import AccessRefused, ClientAhead, Trimmed, WaltzError, WireError
from waltz_ray.protocol.client_monitor import Piece
from waltz_ray.protocol.ids import Location
from waltz_ray.protocol.messages.client import (
    AppendedBatch,
    FeedBatch,
    FeedCredit,
    FeedRecords,
    LockFailureBatch,
    Mount,
    Mounted,
    NotReady,
    Rejected,
    RejectionCode,
    Unmount,
)
from waltz_ray.protocol.records import Int64s, RecordBatch
from waltz_ray.protocol.value import value

__all__ = [
    "HEAVY",
    "TRANSITIONS",
    "AppendsTaken",
    "Applied",
    "CancelTimer",
    "Deliver",
    "Effect",
    "Event",
    "ExpireAppends",
    "FailAppends",
    "GaveUp",
    "Hindered",
    "Located",
    "LoseAppends",
    "MountMessage",
    "MountingState",
    "OpenFailed",
    "OpenStream",
    "Received",
    "RefuseAppends",
    "RefuseLocks",
    "Rewound",
    "SendAppends",
    "SendCredit",
    "SendMount",
    "SendUnmount",
    "SendWaiting",
    "SetTimer",
    "Started",
    "StateChanged",
    "Stopped",
    "StreamBroken",
    "StreamLost",
    "StreamOpened",
    "Timer",
    "MountTimerFired",
]

Token = TypeVar("Token")

MountMessage = AppendedBatch | FeedBatch | FeedRecords | LockFailureBatch | Mounted | NotReady | Rejected
"""What a server says about a mount."""


class MountingState(Enum):
    LOCATING = "locating"
    MOUNTING = "mounting"
    READY = "ready"
    GIVEN_UP = "given up"
    CLOSED = "closed"


TRANSITIONS: Mapping[MountingState, frozenset[MountingState]] = {
    MountingState.LOCATING: frozenset({MountingState.MOUNTING, MountingState.CLOSED}),
    MountingState.MOUNTING: frozenset(
        {MountingState.READY, MountingState.LOCATING, MountingState.GIVEN_UP, MountingState.CLOSED}
    ),
    MountingState.READY: frozenset({MountingState.LOCATING, MountingState.CLOSED}),
    MountingState.GIVEN_UP: frozenset({MountingState.CLOSED}),
    MountingState.CLOSED: frozenset(),
}
"""State -> the states that may follow it; any other step is a bug and raises."""


class Timer(Enum):
    """One of each kind may be set at a time."""

    RETRY = "retry"  # the back-off before the next attempt to mount
    FULL = "full"  # the server's queue was full
    EXPIRY = "expiry"  # the next look for appends that have waited too long


# ---- events


@value()
class Started:
    """The first event: mount, and go on mounting. ``location`` as far as it is known."""

    location: Location | None


@value()
class Located:
    """The directory has spoken. None: nobody owns the partition."""

    location: Location | None


@value()
class StreamOpened:
    """The stream of the last ``OpenStream`` is there."""


@value()
class OpenFailed:
    """The stream that was ordered could not be had, or had ended at once."""

    error: Exception


@value()
class StreamLost:
    """The stream over which the partition was mounted has ended."""

    error: Exception


@value(eq=False)
class Received:
    """A message about this partition over the stream it is mounted over; ``frame_bytes`` cost feed credit."""

    message: MountMessage
    frame_bytes: int


@value()
class Rewound:
    """The application went back: deliver again from ``position`` + 1 on, and mark what is delivered with ``epoch``."""

    position: int
    epoch: int


@value()
class Applied:
    """Delivered frames of so many bytes have been applied, or dropped because they were from before a rewind."""

    frame_bytes: int


@value(eq=False)
class AppendsTaken(Generic[Token]):
    """``batch`` of ``count`` records, at most ``Mounting.room``, is about to be sent."""

    batch: Token
    count: int


@value()
class Hindered:
    """The server has said what keeps the partition from taking appends; "" = nothing, or nobody has asked."""

    reason: str


@value()
class MountTimerFired:
    """What ``SetTimer`` has set is over."""

    timer: Timer


@value()
class Stopped:
    """The client is being closed, or nobody wants the feed any more. The last event."""


Event = (
    Started
    | Located
    | StreamOpened
    | OpenFailed
    | StreamLost
    | Received
    | Rewound
    | Applied
    | AppendsTaken[Any]
    | Hindered
    | MountTimerFired
    | Stopped
)


# ---- effects


@value()
class OpenStream:
    """Get a stream to the server at ``location``. One at a time."""

    location: Location


@value()
class SendMount:
    """Take the stream that has just been opened: from now on its messages about the partition are ours."""

    message: Mount


@value()
class SendUnmount:
    """Leave the stream: nothing of it is ours any more."""

    message: Unmount


@value()
class SendCredit:
    """The server may send more of the feed."""

    message: FeedCredit


@value(eq=False)
class SendAppends(Generic[Token]):
    """Send ``batch``; its records have the sequence numbers from ``first_sequence`` (64 bits) on."""

    batch: Token
    generation: int
    first_sequence: int


@value()
class SendWaiting:
    """Appends may be sent (again): look what waits."""


@value()
class SetTimer:
    """Fire ``timer`` after ``delay_s`` seconds, or somewhat less if ``jittered``, in place of when it would have."""

    timer: Timer
    delay_s: float
    jittered: bool = False


@value()
class CancelTimer:
    """Do not fire it."""

    timer: Timer


@value(eq=False)
class Deliver(Generic[Token]):
    """News of the log: fates of our own records, then transactions that follow those delivered before.

    ``transaction_ids`` are those of our records, which the offsets of ``committed`` point into. ``failed`` were sent
    before one of these and can no longer be in the log, for ``reason``. ``feed`` None: only fates (OWN mode). Each
    ``feed`` has to be followed by ``Applied`` for its ``frame_bytes``.
    """

    feed: RecordBatch | FeedBatch | None
    committed: Sequence[Piece[Token]]
    transaction_ids: Int64s
    failed: Sequence[Piece[Token]]
    reason: str
    frame_bytes: int
    epoch: int


@value(eq=False)
class RefuseLocks(Generic[Token]):
    """A lock was in the way of these; the offsets point into ``transaction_ids``, whose lock it was."""

    pieces: Sequence[Piece[Token]]
    transaction_ids: Int64s


@value(eq=False)
class FailAppends(Generic[Token]):
    """Say of these appends that they are known not to be in the log; they may be sent again."""

    pieces: Sequence[Piece[Token]]
    reason: str


@value(eq=False)
class RefuseAppends(Generic[Token]):
    """Say of these appends that they are not in the log and would be refused again."""

    pieces: Sequence[Piece[Token]]
    reason: str
    code: RejectionCode


@value()
class ExpireAppends:
    """The partition is not ready: what has waited for it longer than ``mount_timeout_ms`` ends with ``error``."""

    error: WaltzError


@value(eq=False)
class LoseAppends(Generic[Token]):
    """Say of these appends that nobody can tell any more whether they are in the log."""

    pieces: Sequence[Piece[Token]]
    error: AccessRefused | Trimmed


@value()
class GaveUp:
    """The partition will not be served before a person has looked at it: everything ends with ``error``."""

    error: AccessRefused | ClientAhead | Trimmed


@value()
class StateChanged:
    """``Mounting.state`` is this now."""

    state: MountingState


@value()
class StreamBroken:
    """The server has broken the protocol: end the stream; ``StreamLost`` follows. Always the last effect."""

    error: WireError


Effect = (
    OpenStream
    | SendMount
    | SendUnmount
    | SendCredit
    | SendAppends[Token]
    | SendWaiting
    | SetTimer
    | CancelTimer
    | Deliver[Token]
    | RefuseLocks[Token]
    | FailAppends[Token]
    | RefuseAppends[Token]
    | ExpireAppends
    | LoseAppends[Token]
    | GaveUp
    | StateChanged
    | StreamBroken
)

HEAVY: frozenset[type] = frozenset(
    (
        *(Received, AppendsTaken, OpenFailed, StreamLost),
        *(Deliver, SendAppends, FailAppends, RefuseAppends, RefuseLocks, LoseAppends, StreamBroken),
    )
)
"""Those that hold records, columns or a traceback."""
