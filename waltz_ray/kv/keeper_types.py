"""What a ``Keeper`` is told, and what it orders; what it needs of ownership and of its partitions' states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from waltz_ray.kv.messages import Command, Reply
from waltz_ray.kv.model import Record
from waltz_ray.kv.routing import Unit
from waltz_ray.protocol.value import value

__all__ = [
    "Answer",
    "AnswerRead",
    "FateUnknown",
    "AppendRecord",
    "AskSecondary",
    "AskWhetherItStands",
    "Asked",
    "RecordCommitted",
    "ConnectionLeft",
    "Effect",
    "Event",
    "FoldedTo",
    "KeeperLimits",
    "LeaseIsOver",
    "Rearranged",
    "RecordRefused",
    "SecondaryAnswered",
    "Serving",
    "StandsOrNot",
    "TimePassed",
    "WritesBounded",
    "UnitDrained",
    "UnitStops",
    "WantFolded",
]


class Serving(Protocol):
    """What is this actor's, just now (``protocol/ownership.py``)."""

    @property
    def mask(self) -> int:
        """The mask of the space."""

    def unit_of(self, key_hash: int) -> Unit | None:
        """The unit under which the key is served here, None if it is not."""

    def elsewhere(self, key_hash: int) -> str:
        """``host:port`` of the actor that has the key, as far as is known and if it lives; else empty."""

    def secondary(self, key_hash: int) -> int | None:
        """The actor that has the second copy, None if there is none at the moment."""


@value()
class KeeperLimits:
    """What an owner puts up with."""

    max_value_bytes: int = 8 * 1024 * 1024
    max_batch: int = 4096
    """Entries of a batch, and of a page of a scan."""
    answer_bytes: int = 32 * 1024 * 1024
    """Of the values in the answer to a batch of reads: no connection takes more. A page of a scan ends long before."""
    step_bytes: int = 256 * 1024 * 1024
    """Of the values in all answers of one step: they are in memory together. What is read beyond them is refused."""
    park_ms: int = 5_000
    """How long a command waits for somebody to serve its bucket."""
    fullwait_ms: int = 10_000
    """How long a write waits for its secondary."""
    backups: bool = True
    """The cluster is to have secondaries: it has more than one actor (at the start; ``Keeper.expect_backups``)."""
    most_lease_ms: int = 24 * 3600 * 1000
    unsettled: int = 1 << 19
    """From a client's first write without an answer, as it says, to its last. All of these are remembered, and written
    anew at each fold of one more; and what is remembered of a client has to fit into one record of a snapshot."""
    waiting: int = 100_000
    """Commands that may wait for something at one time."""


# ---- events


@value(eq=False)
class Asked:
    """A command has come; it ends in one ``Answer`` with its ``token``."""

    token: int
    connection: int
    command: Command


@value()
class RecordCommitted:
    """AppendRecord ``number`` is in the log."""

    number: int
    transaction_id: int


@value()
class RecordRefused:
    """AppendRecord ``number`` is not in the log: ``transaction_id`` may have changed who owns its unit."""

    number: int
    transaction_id: int


@value()
class FateUnknown:
    """AppendRecord ``number`` may or may not be in the log, and nobody can say."""

    number: int
    reason: str


@value()
class FoldedTo:
    """The state of the partition has all up to its mark."""

    partition: int


@value()
class UnitStops:
    """The unit is not to be served any more; ends in UnitDrained."""

    unit: Unit


@value()
class WritesBounded:
    """The partition is being compacted: its log may grow by so much before writes wait. None: by any amount."""

    partition: int
    room_bytes: int | None


@value()
class Rearranged:
    """Who has which unit, or where he is, may have changed."""


@value(eq=False)
class LeaseIsOver:
    """AnswerRead was not sent: the lease was over by then."""

    read: object


@value(eq=False)
class StandsOrNot:
    """AskWhetherItStands: whether the lease held."""

    refusal: object
    stands: bool


@value()
class SecondaryAnswered:
    """AskSecondary ``number``: whether the secondary has it."""

    number: int
    has: bool


@value()
class ConnectionLeft:
    """Nobody waits any more for the answers: its commands that only wait end without being done.

    ``goodbye``: its client has said so, and takes answers for a moment: what stands behind other writes is done.
    """

    connection: int
    goodbye: bool = False


@value()
class TimePassed:
    """Look what has taken too long."""


Event = (
    Asked
    | RecordCommitted
    | RecordRefused
    | FateUnknown
    | FoldedTo
    | UnitStops
    | WritesBounded
    | Rearranged
    | LeaseIsOver
    | StandsOrNot
    | SecondaryAnswered
    | ConnectionLeft
    | TimePassed
)

# ---- effects


@value(eq=False)
class AppendRecord:
    """Append it under the read locks of ``units``, with the state's mark as client mark. Ends in RecordCommitted,
    RecordRefused or FateUnknown."""

    number: int
    partition: int
    units: Sequence[Unit]
    record: Record


@value()
class Answer:
    """The one reply to a command."""

    token: int
    reply: Reply


@value(eq=False)
class AnswerRead:
    """The reply to a command that only reads: if the lease of each of ``units`` holds *now*, else LeaseIsOver(read)."""

    token: int
    reply: Reply
    units: Sequence[Unit]
    read: object


@value(eq=False)
class AskWhetherItStands:
    """A write is refused for what is there: true if the lease of ``unit`` holds *now*. Ends in StandsOrNot(refusal)."""

    unit: Unit
    refusal: object


@value()
class AskSecondary:
    """Ask ``actor`` to say when it has ``transaction_id`` of ``partition``. Ends in SecondaryAnswered."""

    number: int
    actor: int
    partition: int
    transaction_id: int


@value()
class UnitDrained:
    """Nothing of the unit is under way any more."""

    unit: Unit


@value()
class WantFolded:
    """Something waits until the partition's state has ``transaction_id``: it should not be late."""

    partition: int
    transaction_id: int


Effect = AppendRecord | Answer | AnswerRead | AskWhetherItStands | AskSecondary | UnitDrained | WantFolded
