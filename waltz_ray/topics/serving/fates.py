"""What becomes of a message that is to be appended."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AppendedMessage", "MessageFate", "MessageLost", "MessageRefused", "NotServed"]


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


@dataclass(frozen=True)
class MessageRefused:
    """It is not in the log, and cannot be: no server would take it."""

    reason: str


MessageFate = AppendedMessage | NotServed | MessageLost | MessageRefused
