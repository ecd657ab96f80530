"""What becomes of a message that is to be appended."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AppendedMessage", "MessageFate", "MessageLost", "NotServed"]


@dataclass(frozen=True)
class AppendedMessage:
    """A message is committed."""

    transaction_id: int


@dataclass(frozen=True)
class NotServed:
    """It is not in the log, and will not be: the partition is another actor's, or soon."""


@dataclass(frozen=True)
class MessageLost:
    """Nobody can say whether it is in the log, or will be."""

    reason: str


MessageFate = AppendedMessage | NotServed | MessageLost
